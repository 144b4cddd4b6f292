//! The thread that queries the runtimes, all that are due at once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use tokio::task::JoinSet;

use super::names::ContainerNames;
use super::schedule::QuerySchedule;
use super::{Need, Protocol, RuntimeStatus, RuntimeTrouble, SeenRuntime, SharedContainers, client, wait};
use crate::sys::{clock, priority};

/// Longest wait for orders (ns).
const NEVER_NS: u64 = 3_600_000_000_000;

/// A runtime, as the thread knows it.
struct Runtime {
    socket: PathBuf,
    schedule: QuerySchedule,
    /// What it has answered to, or is tried first.
    protocol: Protocol,
    names: ContainerNames,
    has_answered: bool,
    trouble: Option<RuntimeTrouble>,
    asked: u64,
    failed: u64,
}

impl Runtime {
    fn new(socket: PathBuf) -> Self {
        Self {
            protocol: Protocol::likely(&socket),
            socket,
            schedule: QuerySchedule::default(),
            names: ContainerNames::default(),
            has_answered: false,
            trouble: None,
            asked: 0,
            failed: 0,
        }
    }

    fn took(&mut self, now_ns: u64, answer: Said, are_named: bool) {
        self.asked += 1;
        self.failed += u64::from(answer.is_err());
        self.schedule.asked(now_ns, answer.is_ok());
        let before = self.trouble.take();
        match answer {
            Ok((protocol, names)) => {
                if before.is_some_and(|before| !before.is_usual()) {
                    tracing::info!("container runtime {} answers again", self.socket.display());
                }
                (self.protocol, self.names, self.has_answered) = (protocol, names, true);
            }
            Err(trouble) => {
                let is_told = before.is_some_and(|before| before.is_usual() == trouble.is_usual());
                if !is_told && (are_named || !trouble.is_usual()) {
                    tracing::warn!(
                        "container runtime {}: {}; containers keep their known names, and it is queried \
                         again with growing pauses",
                        self.socket.display(),
                        trouble.in_words()
                    );
                }
                self.trouble = Some(trouble);
            }
        }
    }

    fn seen(&self) -> SeenRuntime {
        let status = RuntimeStatus {
            socket: self.socket.display().to_string(),
            protocol: self.has_answered.then_some(self.protocol),
            containers: self.names.len(),
            asked: self.asked,
            failed: self.failed,
            problem: self.trouble.as_ref().map(RuntimeTrouble::in_words),
            retry_s: 0.0,
        };
        let is_usual = self.trouble.as_ref().is_some_and(RuntimeTrouble::is_usual);
        SeenRuntime { status, next_ns: self.schedule.due_ns(false), is_usual }
    }
}

/// The thread's side.
pub(super) struct Rounds {
    shared: Arc<SharedContainers>,
    runtimes: Vec<Runtime>,
}

/// What is to be done next.
struct Turn {
    sockets: Vec<PathBuf>,
    are_named: bool,
    is_urgent: bool,
}

impl Rounds {
    pub(super) fn new(shared: Arc<SharedContainers>) -> Self {
        Self { shared, runtimes: Vec::new() }
    }

    pub(super) fn run(mut self) {
        priority::come_later();
        while let Some(turn) = self.next() {
            self.runtimes.retain(|runtime| turn.sockets.contains(&runtime.socket));
            for socket in
                turn.sockets.iter().filter(|socket| !self.knows(socket)).cloned().collect::<Vec<_>>()
            {
                self.runtimes.push(Runtime::new(socket));
            }
            let due = self.due(turn.is_urgent);
            let answers = self.ask(&due);
            for (at, answer) in answers {
                self.runtimes[at].took(clock::monotonic_ns(), answer, turn.are_named);
            }
            self.publish();
        }
    }

    fn knows(&self, socket: &PathBuf) -> bool {
        self.runtimes.iter().any(|runtime| runtime.socket == *socket)
    }

    /// Waits until a runtime is due; `None` at the end.
    fn next(&self) -> Option<Turn> {
        let mut orders = self.shared.orders();
        loop {
            if orders.is_over {
                return None;
            }
            let now_ns = clock::monotonic_ns();
            let until_ns = match orders.need {
                Need::Nothing => now_ns + NEVER_NS,
                _ if !orders.sockets.iter().all(|socket| self.knows(socket)) => now_ns,
                _ => self.next_ns(orders.is_urgent).unwrap_or(now_ns + NEVER_NS),
            };
            if until_ns <= now_ns {
                let is_urgent = std::mem::take(&mut orders.is_urgent);
                return Some(Turn {
                    sockets: orders.sockets.clone(),
                    are_named: orders.are_named,
                    is_urgent,
                });
            }
            let waited = self.shared.changed.wait_timeout(orders, wait(now_ns, until_ns));
            orders = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    fn next_ns(&self, is_urgent: bool) -> Option<u64> {
        self.runtimes.iter().map(|runtime| runtime.schedule.due_ns(is_urgent)).min()
    }

    /// The runtimes that are due.
    fn due(&self, is_urgent: bool) -> Vec<usize> {
        let now_ns = clock::monotonic_ns();
        let is_due = |runtime: &Runtime| runtime.schedule.due_ns(is_urgent) <= now_ns;
        self.runtimes.iter().enumerate().filter(|(_, runtime)| is_due(runtime)).map(|(at, _)| at).collect()
    }

    /// Asks these runtimes at once: one that hangs keeps no other waiting for longer than its own time.
    fn ask(&self, due: &[usize]) -> Vec<(usize, Said)> {
        let asked = due
            .iter()
            .map(|&at| (at, self.runtimes[at].socket.clone(), self.runtimes[at].protocol))
            .collect();
        let failed =
            |why: String| due.iter().map(|&at| (at, Err(RuntimeTrouble::Failed(why.clone())))).collect();
        // Nothing that a runtime sends may end this thread.
        match catch_unwind(AssertUnwindSafe(|| ask_all(asked))) {
            Ok(Ok(answers)) => answers,
            Ok(Err(error)) => failed(format!("it cannot be queried ({error})")),
            Err(_) => failed("internal error while its response was read; see the log".to_owned()),
        }
    }

    fn publish(&self) {
        let mut names = ContainerNames::default();
        for (id, container) in self.runtimes.iter().flat_map(|runtime| runtime.names.iter()) {
            names.add(Arc::clone(id), Arc::clone(container));
        }
        names.leave_out(self.runtimes.iter().map(|runtime| runtime.names.left_out()).sum());
        let runtimes = self.runtimes.iter().map(Runtime::seen).collect();
        let mut answer = self.shared.answer();
        let number = answer.number + 1;
        let names = if *answer.names == names { Arc::clone(&answer.names) } else { Arc::new(names) };
        *answer = super::LatestContainers { number, names, runtimes };
    }
}

/// What a runtime has answered, and to which protocol.
type Said = Result<(Protocol, ContainerNames), RuntimeTrouble>;
type Asked = Vec<(usize, PathBuf, Protocol)>;

fn ask_all(asked: Asked) -> std::io::Result<Vec<(usize, Said)>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answers = runtime.block_on(async {
        let mut all = JoinSet::new();
        for (at, socket, protocol) in asked {
            all.spawn(async move { (at, ask_one(&socket, protocol).await) });
        }
        all.join_all().await
    });
    Ok(answers)
}

/// A runtime may speak the other protocol: the name of its socket is only a hint.
async fn ask_one(socket: &std::path::Path, protocol: Protocol) -> Said {
    let trouble = match client::ask(socket, protocol).await {
        Ok(names) => return Ok((protocol, names)),
        Err(trouble @ RuntimeTrouble::OtherProtocol(_)) => trouble,
        Err(trouble) => return Err(trouble),
    };
    let other = protocol.other();
    client::ask(socket, other).await.map(|names| (other, names)).map_err(|_| trouble)
}
