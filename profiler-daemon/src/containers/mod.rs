//! Names of containers and Kubernetes pods, from the container runtimes of this host.
//!
//! A control group's name holds the id of a container and nothing else. A thread queries the runtimes for all
//! containers: at the start, when a process runs in a container that no answer has named (at most every two
//! seconds), and every half minute. A runtime that fails is queried less and less often. The loop never waits
//! for an answer: it uses the latest ones, and containers have no names until then.

mod client;
mod cri;
mod engine;
mod frame;
mod names;
mod round;
mod schedule;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod workload;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use config::DaemonSettings;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, faccessat};
use serde::Serialize;

pub(crate) use self::names::{Container, ContainerNames, Pod};
use self::round::Rounds;
use crate::sys::clock;

/// What a runtime speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Protocol {
    /// Kubernetes' Container Runtime Interface: containerd and CRI-O.
    Cri,
    /// Docker's, which Podman speaks too.
    Engine,
}

impl Protocol {
    /// What a socket of this name most likely speaks.
    fn likely(socket: &Path) -> Self {
        let name = socket.file_name().unwrap_or_default().to_string_lossy();
        if name.contains("docker") || name.contains("podman") { Self::Engine } else { Self::Cri }
    }

    fn other(self) -> Self {
        match self {
            Self::Cri => Self::Engine,
            Self::Engine => Self::Cri,
        }
    }
}

/// Why a runtime says nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RuntimeTrouble {
    /// There is no such socket.
    Missing,
    /// This process may not open it.
    Denied,
    /// It speaks the protocol, but does not serve what is asked.
    NotServed(String),
    /// It does not answer at all.
    Silent(String),
    OtherProtocol(String),
    Failed(String),
}

impl RuntimeTrouble {
    /// Whether a healthy host may have this problem at a default socket.
    fn is_usual(&self) -> bool {
        matches!(self, Self::Missing | Self::NotServed(_))
    }

    /// What is wrong and what to do.
    fn in_words(&self) -> String {
        match self {
            Self::Missing => "there is no such socket; is the runtime running?".to_owned(),
            Self::Denied => {
                "it cannot be opened: a runtime's socket belongs to root; give the profiler's user access to it \
                             (docs/containers.md)"
                    .to_owned()
            }
            Self::NotServed(text) => {
                format!(
                    "it does not serve runtime.v1 of CRI ({text}); switch CRI on, or use containerd 1.6 or later"
                )
            }
            Self::Silent(text) | Self::OtherProtocol(text) | Self::Failed(text) => text.clone(),
        }
    }
}

/// What the names of containers are needed for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Need {
    /// Nothing.
    #[default]
    Nothing,
    /// Labels, which are missing where no runtime answers.
    Labels,
    /// Which processes targets have.
    Targets,
}

impl Need {
    /// What these settings need.
    pub(crate) fn of(settings: &DaemonSettings) -> Self {
        let by_container = |target: &config::TargetSettings| {
            target.container.is_some() || target.each == Some(config::Each::Container)
        };
        if settings.targets.iter().any(config::TargetSettings::needs_runtimes) {
            Self::Targets
        } else if !settings.containers.pod_labels.is_empty()
            || settings.targets.iter().any(by_container)
            || settings.relabel_sources().any(is_by_runtime)
        {
            Self::Labels
        } else {
            Self::Nothing
        }
    }
}

/// How a runtime is.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RuntimeStatus {
    /// Its socket.
    pub(crate) socket: String,
    /// What it speaks; none before it has answered.
    pub(crate) protocol: Option<Protocol>,
    /// Containers of its last answer.
    pub(crate) containers: usize,
    /// Times that it was asked.
    pub(crate) asked: u64,
    /// Times that it gave no answer.
    pub(crate) failed: u64,
    /// Why it gave none at last.
    pub(crate) problem: Option<String>,
    /// When it is queried again at the latest (s from now).
    pub(crate) retry_s: f64,
}

/// What was found out last.
#[derive(Debug, Default)]
struct LatestContainers {
    /// Counts the answers.
    number: u64,
    names: Arc<ContainerNames>,
    runtimes: Vec<SeenRuntime>,
}

/// A runtime as it was seen last.
#[derive(Clone, Debug)]
struct SeenRuntime {
    status: RuntimeStatus,
    next_ns: u64,
    /// Whether its problem is one on a sound host too.
    is_usual: bool,
}

/// What the thread is to do.
#[derive(Debug, Default)]
struct LookupOrders {
    sockets: Vec<PathBuf>,
    /// Whether the settings name the sockets.
    are_named: bool,
    need: Need,
    /// Whether a process runs in a container without a name.
    is_urgent: bool,
    is_over: bool,
}

/// What the loop and the thread share.
#[derive(Debug, Default)]
struct SharedContainers {
    orders: Mutex<LookupOrders>,
    changed: Condvar,
    answer: Mutex<LatestContainers>,
}

impl SharedContainers {
    fn orders(&self) -> MutexGuard<'_, LookupOrders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locked to move a few words, never during a query.
    fn answer(&self) -> MutexGuard<'_, LatestContainers> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The container runtimes of this host, as the loop sees them.
#[derive(Debug, Default)]
pub(crate) struct Runtimes {
    shared: Arc<SharedContainers>,
    has_thread: bool,
    /// The answer that was taken last.
    taken: u64,
    need: Need,
    are_named: bool,
}

impl Runtimes {
    /// Asks for what these settings need from now on. `least` is what is needed beside them.
    pub(crate) fn adopt(&mut self, settings: &DaemonSettings, least: Need) {
        let need = Need::of(settings).max(least);
        let sockets = settings.containers.sockets.clone();
        let are_named = are_named(&sockets);
        (self.need, self.are_named) = (need, are_named);
        let mut orders = self.shared.orders();
        if orders.need != need || orders.sockets != sockets {
            *orders = LookupOrders { sockets, are_named, need, is_urgent: false, is_over: false };
            self.shared.changed.notify_one();
        }
        drop(orders);
        if need > Need::Nothing && !self.has_thread {
            self.start();
        }
    }

    fn start(&mut self) {
        let rounds = Rounds::new(Arc::clone(&self.shared));
        match std::thread::Builder::new().name("containers".to_owned()).spawn(move || rounds.run()) {
            Ok(_) => self.has_thread = true,
            Err(error) => {
                tracing::error!(
                    "containers have no names: the thread that queries runtimes could not be started ({error})"
                );
            }
        }
    }

    /// A process runs in a container without a name.
    pub(crate) fn query_soon(&self) {
        let mut orders = self.shared.orders();
        if !std::mem::replace(&mut orders.is_urgent, true) {
            self.shared.changed.notify_one();
        }
    }

    /// Names that have not been taken yet.
    pub(crate) fn take(&mut self) -> Option<Arc<ContainerNames>> {
        let answer = self.shared.answer();
        let is_new = answer.number != std::mem::replace(&mut self.taken, answer.number);
        is_new.then(|| Arc::clone(&answer.names))
    }

    /// Whether they are asked at all.
    pub(crate) fn are_needed(&self) -> bool {
        self.need > Need::Nothing
    }

    /// Whether any answer has come: a container without a name is unknown to all runtimes then.
    pub(crate) fn have_answered(&self) -> bool {
        self.are_needed() && self.taken > 0
    }

    /// The state of each; default sockets that do not exist are left out.
    pub(crate) fn status(&self) -> Vec<RuntimeStatus> {
        let now_ns = clock::monotonic_ns();
        if !self.are_needed() {
            return Vec::new();
        }
        let answer = self.shared.answer();
        let shown = answer.runtimes.iter().filter(|seen| self.are_named || !seen.is_usual);
        let status = |seen: &SeenRuntime| {
            let retry_s = seen.next_ns.saturating_sub(now_ns) as f64 * 1e-9;
            RuntimeStatus { retry_s, ..seen.status.clone() }
        };
        shown.map(status).collect()
    }

    /// Problems, a line for each.
    pub(crate) fn degraded(&self) -> Vec<String> {
        if self.need == Need::Nothing || (self.need == Need::Labels && !self.are_named) {
            return Vec::new();
        }
        let answer = self.shared.answer();
        let mut lines: Vec<String> = answer
            .runtimes
            .iter()
            .filter(|seen| self.are_named || !seen.is_usual)
            .filter_map(|seen| {
                Some(format!("container runtime {}: {}", seen.status.socket, seen.status.problem.as_ref()?))
            })
            .collect();
        let none_answers = answer.number > 0 && answer.runtimes.iter().all(|seen| seen.is_usual);
        if none_answers && lines.is_empty() {
            lines.push(
                "targets need the names of containers, and no container runtime answers at the default sockets; write \
                 containers.sockets"
                    .to_owned(),
            );
        }
        if answer.names.left_out() > 0 {
            lines.push(format!(
                "{} containers have no names, since there are more than {}",
                answer.names.left_out(),
                names::MAX_CONTAINERS
            ));
        }
        lines
    }

    /// Ends the queries.
    pub(crate) fn end(&self) {
        self.shared.orders().is_over = true;
        self.shared.changed.notify_one();
    }
}

/// The default sockets that exist, and whether this process may open each.
pub(crate) fn found() -> Vec<(PathBuf, bool)> {
    let sockets = config::ContainerSettings::default().sockets.into_iter();
    let tried = sockets.map(|socket| {
        let may_open = faccessat(AT_FDCWD, &socket, AccessFlags::W_OK, AtFlags::AT_EACCESS);
        (socket, may_open)
    });
    tried
        .filter(|(_, may_open)| !matches!(may_open, Err(Errno::ENOENT | Errno::ENOTDIR)))
        .map(|(socket, may_open)| (socket, may_open.is_ok()))
        .collect()
}

/// Sockets that these settings need and that do not exist, a line for each.
pub(crate) fn missing(settings: &DaemonSettings) -> Vec<String> {
    if Need::of(settings) < Need::Targets {
        return Vec::new();
    }
    let sockets = &settings.containers.sockets;
    let there = |socket: &&PathBuf| socket.exists();
    if !are_named(sockets) {
        let none = !sockets.iter().any(|socket| there(&socket));
        let text = "containers.sockets: no container runtime listens at the default sockets, so that containers have no names";
        return none.then(|| text.to_owned()).into_iter().collect();
    }
    let missing = sockets.iter().filter(|socket| !there(socket));
    missing.map(|socket| format!("containers.sockets: there is no socket {}", socket.display())).collect()
}

/// Whether a label of targets comes from what runtimes say.
fn is_by_runtime(label: &str) -> bool {
    label.starts_with("k8s.") || label.starts_with("container.")
}

/// Whether these are not the default sockets, most of which do not exist.
fn are_named(sockets: &[PathBuf]) -> bool {
    sockets != config::ContainerSettings::default().sockets
}

/// How long the thread waits at most (ns).
fn wait(now_ns: u64, until_ns: u64) -> Duration {
    Duration::from_nanos(until_ns.saturating_sub(now_ns))
}
