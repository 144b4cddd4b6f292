//! What other ways to attach would cost, estimated before they are tried: by the switches of the target's
//! threads, and by what else keeps the CPUs busy.

use profiler_core::attach::{AttachMode, Foreseen, GROUP_SWITCH};

use super::Engine;
use crate::output::DecisionLog;
use crate::sampler::source::Attachment;
use crate::sampler::switches::Switches;
use crate::sys::{clock, procfs};

/// How often switches, or the CPUs of other processes, are read (ns). The first reading comes after `FIRST_LOOK_NS`:
/// the kernel counts a machine's CPU time in ticks.
const LOOK_EVERY_NS: u64 = 1_000_000_000;
const FIRST_LOOK_NS: u64 = 100_000_000;
/// Threads whose switches are read while they have no events.
const FEW_THREADS: usize = 8;
/// Cost of switches from which the load of other processes matters (CPU time per wall time).
const WORTH_A_LOOK: f64 = 0.001;
/// Own CPU time for a sample of another process, which is read and thrown away (ns).
pub(crate) const NON_TARGET_OWN_NS: f64 = 2_000.0;

/// The latest estimates.
#[derive(Default)]
pub(super) struct Ways {
    others: Others,
    switches: Switches,
    looked_ns: Option<u64>,
    /// Whether the load of other processes matters.
    asks_for_others: bool,
    foreseen: Foreseen,
}

impl Ways {
    /// Nothing is known yet, except the `cpus` that other processes kept busy while the target was watched.
    pub(super) fn beside(cpus: Option<f64>) -> Self {
        Self { others: Others { cpus, ..Others::default() }, ..Self::default() }
    }
}

/// CPU time (ns), of everything, of the target and of this process, and when it was read.
#[derive(Clone, Copy, Default)]
struct Others {
    busy_ns: u64,
    target_ns: u64,
    own_ns: u64,
    at_ns: u64,
    /// CPUs that other processes kept busy, once known.
    cpus: Option<f64>,
}

impl<L: DecisionLog> Engine<L> {
    /// Starts to measure the load of other processes.
    pub(super) fn begin_ways(&mut self, now_ns: u64) {
        if !self.attaching.choice.is_fixed() && self.pace.resting.is_none() {
            self.attaching.ways.others = self.others_at(now_ns);
        }
    }

    /// Estimates what the other ways to attach would cost; under the present one there were `switches` in `wall_ns`.
    pub(super) fn foresee_ways(&mut self, now_ns: u64, switches: u64, wall_ns: f64) {
        if self.attaching.choice.is_fixed() || self.pace.resting.is_some() {
            return; // the host's budget decides for one target among many
        }
        let switch_ns = self.costs.model.per_switch_ns.mean_ns;
        let switches_cpus = switches as f64 * switch_ns / wall_ns.max(1.0);
        match self.attaching.choice.mode() {
            AttachMode::Task => {
                self.attaching.ways.asks_for_others = switches_cpus >= WORTH_A_LOOK;
                let is_one =
                    matches!(self.sampler.attachment(), Attachment::Tasks(threads) if threads.len() == 1);
                self.attaching.ways.foreseen = Foreseen {
                    task_cpus: None,
                    cpu_cpus: self.attaching.ways.others.cpus.map(|cpus| self.non_target_cpus(cpus)),
                    group_cpus: is_one.then_some(switches_cpus * GROUP_SWITCH),
                };
            }
            AttachMode::Cpu | AttachMode::Cgroup => self.look_at_switches(now_ns, switch_ns),
        }
        self.attaching.choice.foresee(self.attaching.ways.foreseen);
    }

    /// Another way to attach is in force from now on.
    pub(super) fn go_another_way(&mut self) {
        (self.attaching.ways.switches, self.attaching.ways.looked_ns) = (Switches::default(), None);
        (self.attaching.ways.foreseen, self.attaching.ways.asks_for_others) = (Foreseen::default(), false);
    }

    /// What samples of other processes cost if these keep `cpus` CPUs busy, at the wanted rate (CPU time per wall
    /// time).
    fn non_target_cpus(&self, cpus: f64) -> f64 {
        cpus * self.wanted_hz() * self.non_target_sample_ns() * 1e-9
    }

    /// What a sample of another process costs (ns), including the profiler's work.
    pub(super) fn non_target_sample_ns(&self) -> f64 {
        self.controller.cost().target.mean_ns + NON_TARGET_OWN_NS
    }

    /// The rate that the law asks for within the slowdown budget (samples per CPU-second); events of whole CPUs may not
    /// reach it.
    pub(super) fn wanted_hz(&self) -> f64 {
        let wanted = |decided: profiler_core::rate::Decision| {
            decided.terms.unbounded_rate_hz.min(decided.caps.budget_cap_hz).max(decided.rate_hz)
        };
        self.last_decision.map_or(self.controller.rate_hz(), wanted)
    }

    fn others_at(&self, at_ns: u64) -> Others {
        Others {
            busy_ns: procfs::machine_busy_ns(),
            target_ns: self.session.cpu_now_ns(),
            own_ns: clock::self_cpu_ns(),
            at_ns,
            cpus: self.attaching.ways.others.cpus,
        }
    }

    /// Measures the load of other processes, if it matters and is due; to be called right after the target's CPU time
    /// was read.
    pub(super) fn look_at_others(&mut self, now_ns: u64) {
        let last = self.attaching.ways.others;
        let wall_ns = now_ns.saturating_sub(last.at_ns);
        let pause_ns = if last.cpus.is_none() { FIRST_LOOK_NS } else { LOOK_EVERY_NS };
        if !self.attaching.ways.asks_for_others || wall_ns < pause_ns {
            return;
        }
        let now = self.others_at(now_ns);
        let busy_ns = now.busy_ns.saturating_sub(last.busy_ns);
        let known_ns = now.target_ns.saturating_sub(last.target_ns) + now.own_ns.saturating_sub(last.own_ns);
        let cpus = busy_ns.saturating_sub(known_ns) as f64 / wall_ns as f64;
        self.attaching.ways.others = Others { cpus: Some(cpus.min(self.sampler.cpus() as f64)), ..now };
    }

    fn look_at_switches(&mut self, now_ns: u64, switch_ns: f64) {
        let since_ns = self.attaching.ways.looked_ns.map(|looked_ns| now_ns.saturating_sub(looked_ns));
        if since_ns.is_some_and(|since_ns| since_ns < LOOK_EVERY_NS) {
            return;
        }
        self.attaching.ways.looked_ns = Some(now_ns);
        let threads = self.threads();
        if threads.len() > FEW_THREADS {
            self.attaching.ways.foreseen = Foreseen::default();
            return;
        }
        let switches = self.attaching.ways.switches.with_events(&threads, true);
        if let Some(since_ns) = since_ns {
            let task_cpus = Some(switches as f64 * switch_ns / since_ns.max(1) as f64);
            self.attaching.ways.foreseen = Foreseen { task_cpus, ..Foreseen::default() };
        }
    }
}
