//! How much of a service runs on other hosts: replicas of one service are sampled as one program
//! ([`Replicas`]).
//!
//! Once a minute, a thread queries the CPU time of each service from a Prometheus that scrapes the profilers of all hosts. The loop never
//! waits for it. The number of replicas is the CPU time of the service on all hosts over that of the target on this one, unless the
//! settings give that number. Without a plausible answer, a target is a fleet of one.

mod answer;
mod client;
mod poller;
mod usage;

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use config::DaemonSettings;
use profiler_core::rate::Replicas;
use serde::Serialize;

use self::answer::Services;
pub(crate) use self::client::PrometheusClient;
use self::usage::Usages;
use crate::sys::clock;

const SECOND_NS: u64 = 1_000_000_000;
/// An answer that is older is not believed any more (ns).
const OLD_NS: u64 = 300 * SECOND_NS;
/// The label that is the target's name.
const TARGET: &str = "target";
const NO_SERIES: &str = "Prometheus has no CPU time of it";
const NOT_YET: &str = "Prometheus has not been queried yet";
const JUST_BEGUN: &str = "it has just started, and its CPU use is not known yet";
const NO_ANSWER: &str = "Prometheus has not answered for five minutes";
const NO_LABEL: &str = "it does not have the label that fleet.label names";
const NO_NUMBER: &str =
    "Prometheus' figure for it is rejected: it is not an amount of CPU time, or appears twice";

/// Where a number of replicas comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReplicaSource {
    /// The settings.
    Settings,
    /// Prometheus.
    Prometheus,
    /// It is unknown, and counts as one.
    None,
}

/// The fleet of a target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Membership {
    /// CPU time of all replicas over that of the target here.
    pub(crate) replicas: f64,
    /// Where that number comes from.
    pub(crate) source: ReplicaSource,
    /// Why it is unknown.
    pub(crate) reason: Option<String>,
}

/// State of the queries.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FleetStatus {
    /// Host and port of the Prometheus; none where the settings alone give the numbers.
    pub(crate) prometheus: Option<String>,
    /// What replicas have in common.
    pub(crate) label: String,
    /// Queries.
    pub(crate) asked: u64,
    /// Queries without a usable answer.
    pub(crate) failed: u64,
    /// Age of the last answer (s).
    pub(crate) age_s: Option<f64>,
    /// Services in that answer.
    pub(crate) services: usize,
    /// Targets whose number of replicas is known.
    pub(crate) members: usize,
    /// Why the last query failed.
    pub(crate) problem: Option<String>,
}

/// What the thread should do.
#[derive(Debug, Default)]
struct PollerOrders {
    client: Option<Arc<PrometheusClient>>,
    is_over: bool,
}

/// The last answer, and counts of queries.
#[derive(Debug, Default)]
struct FleetAnswer {
    /// Counts the answers.
    number: u64,
    /// When it came (ns).
    at_ns: Option<u64>,
    /// Length of time that its figures cover (ns).
    range_ns: u64,
    services: Arc<Services>,
    asked: u64,
    failed: u64,
    problem: Option<String>,
}

/// What the loop and the thread share.
#[derive(Debug, Default)]
struct SharedFleet {
    orders: Mutex<PollerOrders>,
    changed: Condvar,
    answer: Mutex<FleetAnswer>,
}

impl SharedFleet {
    fn orders(&self) -> MutexGuard<'_, PollerOrders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locked to move a few words, never during a query.
    fn answer(&self) -> MutexGuard<'_, FleetAnswer> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A target, as far as the fleet is concerned.
pub(crate) struct FleetTarget<'t> {
    /// What it is called.
    pub(crate) name: &'t str,
    /// Its labels.
    pub(crate) labels: &'t BTreeMap<String, String>,
    /// CPU time that it used so far (ns).
    pub(crate) cpu_ns: u64,
    /// Its number of replicas in the settings.
    pub(crate) replicas: Option<u32>,
}

/// The fleet, as the loop sees it.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    shared: Arc<SharedFleet>,
    has_thread: bool,
    client: Option<Arc<PrometheusClient>>,
    label: String,
    usages: Usages,
    members: BTreeMap<String, Membership>,
    /// Number of the answer that was taken last.
    taken: u64,
    /// Whether the settings configure a fleet.
    is_asked_for: bool,
    /// Whether the fleet was removed from the settings, and the samplers still use its replicas.
    is_left: bool,
    /// Whether it was logged that targets are fleets of one.
    is_told: bool,
}

impl Fleet {
    /// Applies these settings. `began_ns` is when the counters of the targets started.
    pub(crate) fn adopt(
        &mut self,
        client: Option<PrometheusClient>,
        settings: &DaemonSettings,
        began_ns: u64,
    ) {
        let says = settings.targets.iter().any(|target| target.replicas.is_some());
        let was_asked_for = std::mem::replace(&mut self.is_asked_for, says || client.is_some());
        self.is_left = (was_asked_for || self.is_left) && !self.is_asked_for;
        self.label.clone_from(&settings.fleet.label);
        self.is_told = false;
        let is_same = match (&self.client, &client) {
            (Some(old), Some(new)) => old.settings() == new.settings(),
            (None, None) => true,
            _ => false,
        };
        // Its files are read anew in any case.
        self.client = client.map(Arc::new);
        self.shared.orders().client.clone_from(&self.client);
        if !is_same {
            let mut answer = self.shared.answer();
            *answer = FleetAnswer { number: answer.number + 1, ..FleetAnswer::default() };
            self.members.clear();
        }
        self.shared.changed.notify_one();
        if self.client.is_some() && !self.has_thread {
            self.start(began_ns);
        }
    }

    fn start(&mut self, began_ns: u64) {
        let shared = Arc::clone(&self.shared);
        let begun = std::thread::Builder::new()
            .name("fleet".to_owned())
            .spawn(move || poller::run(&shared, began_ns));
        match begun {
            Ok(_) => self.has_thread = true,
            Err(error) => {
                let text =
                    format!("there is no thread to ask Prometheus ({error}); raise the limit of threads");
                tracing::error!("fleet: {text}");
                self.shared.answer().problem = Some(text);
            }
        }
    }

    /// Whether any target may have replicas, or had some until now.
    pub(crate) fn is_in_use(&self) -> bool {
        self.is_asked_for || self.is_left
    }

    /// Takes in the targets and their CPU time so far; once a second.
    pub(crate) fn observe(&mut self, now_ns: u64, targets: &[FleetTarget<'_>]) {
        if !self.is_asked_for {
            self.is_left = false;
            self.usages = Usages::default(); // nothing is read until there is a fleet again
            return self.members.clear();
        }
        self.usages.observe(now_ns, targets.iter().map(|target| (target.name, target.cpu_ns)));
        let (number, at_ns, range_ns, services) = {
            let answer = self.shared.answer();
            (answer.number, answer.at_ns, answer.range_ns, Arc::clone(&answer.services))
        };
        let is_new = number != std::mem::replace(&mut self.taken, number);
        let age_ns = at_ns.map(|at_ns| now_ns.saturating_sub(at_ns));
        let mut before = std::mem::take(&mut self.members);
        for target in targets {
            // The figures stay as they were compared when they came.
            let is_compared = |known: &Membership| {
                known.source != ReplicaSource::Settings && known.reason.as_deref() != Some(JUST_BEGUN)
            };
            let known = before.remove(target.name).filter(|known| !is_new && is_compared(known));
            let member = match (target.replicas, age_ns) {
                (Some(replicas), _) => set_by_settings(replicas),
                (None, _) if self.client.is_none() => continue,
                (None, None) => alone(NOT_YET),
                (None, Some(age_ns)) if age_ns > OLD_NS => alone(NO_ANSWER),
                (None, Some(_)) => known.unwrap_or_else(|| self.judge(target, &services, now_ns, range_ns)),
            };
            self.members.insert(target.name.to_owned(), member);
        }
        self.tell(is_new && age_ns.is_some());
    }

    /// The fleet of a target by an answer.
    fn judge(&self, target: &FleetTarget<'_>, services: &Services, now_ns: u64, range_ns: u64) -> Membership {
        let service = match self.label.as_str() {
            TARGET => Some(target.name),
            label => target.labels.get(label).map(String::as_str),
        };
        let Some(service) = service else { return alone(NO_LABEL) };
        if !self.usages.has_known(target.name, now_ns, poller::FIRST_NS) {
            return alone(JUST_BEGUN);
        }
        let fleet_cpus = match services.get(service) {
            None => return alone(NO_SERIES),
            Some(None) => return alone(NO_NUMBER),
            Some(Some(cpus)) => *cpus,
        };
        match Replicas::of(fleet_cpus, self.usages.of(target.name, now_ns, range_ns)) {
            Ok(replicas) => {
                Membership { replicas: replicas.get(), source: ReplicaSource::Prometheus, reason: None }
            }
            Err(error) => alone(&format!("Prometheus' figure for it is rejected: {error}")),
        }
    }

    /// Logs once that targets are fleets of one.
    fn tell(&mut self, has_answer: bool) {
        let alone = || self.members.iter().filter(|(_, member)| member.source == ReplicaSource::None);
        if !has_answer || self.is_told || self.client.is_none() || alone().next().is_none() {
            return;
        }
        let (count, all) = (alone().count(), self.members.len());
        let (name, reason) = alone()
            .next()
            .map_or(("", ""), |(name, member)| (name.as_str(), member.reason.as_deref().unwrap_or_default()));
        tracing::info!(
            "fleet: {count} of {all} targets are sampled as fleets of one, such as {name} ({reason}); `sweetspot ctl targets` has the others"
        );
        self.is_told = true;
    }

    /// The fleet of a target; none without a fleet in the settings.
    pub(crate) fn membership(&self, name: &str) -> Option<&Membership> {
        self.members.get(name)
    }

    /// The number of replicas of a target.
    pub(crate) fn replicas(&self, name: &str) -> Replicas {
        self.membership(name).map_or(Replicas::ONE, |member| Replicas::new(member.replicas))
    }

    /// The state of the queries; none without a fleet in the settings.
    pub(crate) fn status(&self) -> Option<FleetStatus> {
        let answer = self.shared.answer();
        let now_ns = clock::monotonic_ns();
        self.is_asked_for.then(|| FleetStatus {
            prometheus: self.client.as_ref().map(|client| client.host().to_owned()),
            label: self.label.clone(),
            asked: answer.asked,
            failed: answer.failed,
            age_s: answer.at_ns.map(|at_ns| now_ns.saturating_sub(at_ns) as f64 * 1e-9),
            services: answer.services.len(),
            members: self.members.values().filter(|member| member.source != ReplicaSource::None).count(),
            problem: answer.problem.clone(),
        })
    }

    /// Ends the queries.
    pub(crate) fn end(&self) {
        self.shared.orders().is_over = true;
        self.shared.changed.notify_one();
    }
}

/// A problem, for a person.
pub(crate) fn degraded(status: Option<&FleetStatus>) -> Option<String> {
    let problem = status?.problem.as_ref()?;
    let is_old = status?.age_s.is_none_or(|age_s| age_s > OLD_NS as f64 * 1e-9);
    let meanwhile = match is_old {
        true => "each host is sampled as a fleet of one",
        false => "the last answer counts for five minutes",
    };
    Some(format!("fleet: {problem}; {meanwhile}"))
}

fn set_by_settings(replicas: u32) -> Membership {
    let replicas = Replicas::new(f64::from(replicas)).get();
    Membership { replicas, source: ReplicaSource::Settings, reason: None }
}

fn alone(reason: &str) -> Membership {
    Membership { replicas: 1.0, source: ReplicaSource::None, reason: Some(reason.to_owned()) }
}

#[cfg(test)]
mod tests;
