//! The budget of a host over time: what was spent, what may still be spent, and when it is shared again.
//!
//! The budget is kept over any ten seconds: what a target overspends in the step in which its load rises is
//! taken back within the same ten seconds.

use super::budget_division::{AGES, Demand, Division, divide};
use super::last_ten_seconds::{MERGE_NS, TEN_SECONDS_NS};
use super::set_up::SetUp;
use super::spending::{Spending, SpendingSpan};

const SECOND_NS: f64 = 1e9;
/// Time between two sharings, unless a budget is exceeded (ns).
const CALM_NS: u64 = 1_000_000_000;
/// A budget is kept if the new one is within this factor: costs are only known to some percent, and changes cost.
const DEAD_BAND: f64 = 1.1;
/// Part of the budget that names may keep from samples: profiles would be named well and say little otherwise.
const MOST_FOR_NAMES: f64 = 0.35;
/// Windows that have waited for their names for so long get the whole of that (ns).
const LONG_WAIT_NS: u64 = 2_000_000_000;
/// If the granted budgets exceed what is available by this factor, it is shared again at once; controllers aim at nine
/// tenths of their budgets.
const SLACK: f64 = 1.05;
/// If the budget is too small for this long, there are too many targets for it: a burst, or set-up that is charged over
/// minutes, would be over (ns).
const SHORT_NS: u64 = 300_000_000_000;

/// The budget of a host, for all targets and for what is spent on none of them.
///
/// It is a rate of spending, in CPUs. Every window of ten seconds that has begun is to end within what it was in its time: so
/// what a target that woke up overspent in a step is taken back from all in the seconds after.
#[derive(Clone, Debug)]
pub struct HostBudget {
    cpus: f64,
    spending: Spending,
    /// Spending other than on names, against the budget that remains after what is reserved for names.
    beside_names: Spending,
    set_up: SetUp,
    /// Spending on names, which is charged over the following minutes.
    names: SetUp,
    /// What they are expected to take (CPUs).
    expected_names_cpus: f64,
    last_ns: Option<u64>,
    shared_ns: Option<u64>,
    /// Since when there is less than the lowest rates of all targets need (ns).
    short_since_ns: Option<u64>,
    worst_10s_ratio: f64,
}

impl HostBudget {
    /// A budget of `cpus`: the host's share of the CPU time of all online CPUs.
    pub fn new(cpus: f64) -> Self {
        Self {
            cpus,
            spending: Spending::default(),
            beside_names: Spending::default(),
            set_up: SetUp::default(),
            names: SetUp::default(),
            expected_names_cpus: 0.0,
            last_ns: None,
            shared_ns: None,
            short_since_ns: None,
            worst_10s_ratio: 0.0,
        }
    }

    /// The budget from now on (CPUs); another one is shared at once.
    pub fn set_cpus(&mut self, cpus: f64) {
        if self.cpus != cpus {
            self.cpus = cpus;
            self.shared_ns = None;
        }
    }

    /// Books what was spent since the last call, on targets and otherwise (ns of CPU time). `once_ns` of it were
    /// set-up, which is charged over the following minutes, and `names_ns` were for names, which wait for what samples
    /// leave. `at_ns` is from a monotonic clock.
    pub fn book(&mut self, at_ns: u64, spent_ns: f64, once_ns: f64, names_ns: f64) {
        let wall_ns = at_ns.saturating_sub(*self.last_ns.get_or_insert(at_ns)) as f64;
        self.last_ns = self.last_ns.max(Some(at_ns));
        let spent_ns = spent_ns - self.set_up.put_off_ns(wall_ns, once_ns);
        self.spending.book(SpendingSpan { wall_ns, spent_ns, granted_ns: self.cpus * wall_ns });
        self.names.put_off_ns(wall_ns, names_ns);
        let granted_ns = (self.cpus - self.kept_for_names_cpus()) * wall_ns;
        self.beside_names.book(SpendingSpan { wall_ns, spent_ns: spent_ns - names_ns, granted_ns });
        if self.spending.held().wall_ns >= TEN_SECONDS_NS {
            self.worst_10s_ratio = self.worst_10s_ratio.max(self.last_10s_ratio());
        }
    }

    /// Sets what names are expected to take (CPUs), and how long the oldest window has waited for its names (ns). After two seconds,
    /// names get the most that they may take. Otherwise samples would use up the budget until the windows have waited too long, and are
    /// named at once whatever that costs.
    pub fn expect_names(&mut self, cpus: f64, waited_ns: u64) {
        self.expected_names_cpus = if waited_ns >= LONG_WAIT_NS { self.most_for_names_cpus() } else { cpus };
    }

    /// CPUs reserved for names: the larger of what they took, averaged over minutes, and what they are expected to
    /// take, within 35% of the budget. The average keeps one window or request from changing the rates.
    fn kept_for_names_cpus(&self) -> f64 {
        self.names.due_cpus().max(self.expected_names_cpus).clamp(0.0, self.most_for_names_cpus())
    }

    /// Most that names may take, unless a request waits for them (CPUs).
    pub fn most_for_names_cpus(&self) -> f64 {
        MOST_FOR_NAMES * self.cpus.max(0.0)
    }

    /// Spending of the last ten seconds over the budget for them.
    pub fn last_10s_ratio(&self) -> f64 {
        let all = self.spending.held();
        if all.granted_ns > 0.0 { all.spent_ns / all.granted_ns } else { 0.0 }
    }

    /// The largest such ratio.
    pub fn worst_10s_ratio(&self) -> f64 {
        self.worst_10s_ratio
    }

    /// What may be spent from now on, so that each window of ten seconds that has begun ends within the budget (CPUs); the
    /// budget at most, 0 at least.
    pub fn affordable_cpus(&self) -> f64 {
        self.spending.affordable_cpus(self.cpus).min(self.cpus).max(0.0)
    }

    /// What may be spent at once, so that each window of ten seconds that has begun or begins now ends within the budget, if
    /// `others_cpus` are spent beside it (ns); negative where that is not possible.
    pub fn room_ns(&self, others_cpus: f64) -> f64 {
        let left_cpus = self.cpus - others_cpus.max(0.0);
        self.spending.room_ns(left_cpus)
    }

    /// Shares what may be spent: once a second, and at once where the budgets in force (`granted`, in the order of the
    /// demands) would spend more than that. Budgets within 10% of the new ones stay, unless together they would exceed
    /// what is left by 5%. `housekeeping_cpus` is spent on no target; names are not in it.
    pub fn share(
        &mut self,
        at_ns: u64,
        housekeeping_cpus: f64,
        demands: &[Demand],
        granted: &[f64],
    ) -> Option<Division> {
        let left_cpus = self.left_cpus(housekeeping_cpus.max(0.0), demands, granted);
        let calm = self.shared_ns.is_some_and(|shared_ns| at_ns < shared_ns.saturating_add(CALM_NS));
        if calm && demands.len() == granted.len() && would_spend(demands, granted) <= SLACK * left_cpus {
            return None;
        }
        self.shared_ns = Some(at_ns);
        let mut shares = divide(demands, left_cpus);
        self.short_since_ns = shares.is_short.then(|| self.short_since_ns.unwrap_or(at_ns));
        let steady: Vec<f64> =
            shares.of.iter().zip(granted).map(|(new, old)| steadied(new.granted_ratio, *old)).collect();
        if steady.len() == demands.len() && would_spend(demands, &steady) <= SLACK * left_cpus {
            shares
                .of
                .iter_mut()
                .zip(steady)
                .for_each(|(share, granted_ratio)| share.granted_ratio = granted_ratio);
        }
        Some(shares)
    }

    /// Whether the budget has been less than the lowest rates of all targets need for five minutes: there are too many targets for it.
    pub fn is_short(&self, at_ns: u64) -> bool {
        self.short_since_ns.is_some_and(|since_ns| at_ns.saturating_sub(since_ns) >= SHORT_NS)
    }

    /// What may be spent on targets that are as busy as expected over their busiest ten seconds, so that each window of ten
    /// seconds that has begun ends within the budget (CPUs).
    ///
    /// That holds for a window if the cost of samples under the present budgets, times some factor, is at most what the
    /// window has left. For a target with bursts, the rest of the window contains at most the part of its load that it
    /// has not used yet. All budgets together may grow, or have to shrink, by the smallest of these factors.
    fn left_cpus(&self, housekeeping_cpus: f64, demands: &[Demand], granted: &[f64]) -> f64 {
        let for_samples_cpus = self.cpus - self.kept_for_names_cpus();
        let fixed_cpus: f64 = demands.iter().map(|demand| demand.fixed_cpus).sum();
        let of_samples: Vec<f64> = demands.iter().zip(granted).map(samples_cpus).collect();
        let all_cpus: f64 = of_samples.iter().sum();
        if all_cpus <= 0.0 || demands.len() != granted.len() {
            let affordable_cpus = self.beside_names.affordable_cpus(for_samples_cpus).min(for_samples_cpus);
            return (affordable_cpus - housekeeping_cpus).max(0.0);
        }
        let always_cpus = fixed_cpus + housekeeping_cpus;
        let mut factor = (for_samples_cpus - always_cpus) / all_cpus;
        let (mut begun, mut spans) = (SpendingSpan::default(), self.beside_names.windows());
        for age in 0..AGES {
            while begun.wall_ns < (age + 1) as f64 * SECOND_NS {
                let Some(span) = spans.next() else { break };
                begun = span;
            }
            let to_come_ns = TEN_SECONDS_NS - begun.wall_ns;
            if begun.wall_ns < (age + 1) as f64 * SECOND_NS || to_come_ns < MERGE_NS {
                break;
            }
            let left_ns = begun.granted_ns + (for_samples_cpus - always_cpus) * to_come_ns - begun.spent_ns;
            let wanted_cpus: f64 =
                of_samples.iter().zip(demands).map(|(cpus, demand)| cpus * demand.pace[age]).sum();
            if wanted_cpus > 0.0 {
                factor = factor.min(left_ns / (wanted_cpus * to_come_ns));
            }
        }
        (fixed_cpus + all_cpus * factor).max(0.0)
    }
}

/// `old`, if `new` is almost the same.
fn steadied(new: f64, old: f64) -> f64 {
    if (new / DEAD_BAND..=new * DEAD_BAND).contains(&old) { old } else { new }
}

/// What targets that use up these budgets would spend, at least their fixed costs (CPUs).
fn would_spend(demands: &[Demand], budgets: &[f64]) -> f64 {
    demands.iter().zip(budgets).map(|both| both.0.fixed_cpus + samples_cpus(both)).sum()
}

/// The part of it for samples.
fn samples_cpus((demand, budget_ratio): (&Demand, &f64)) -> f64 {
    (budget_ratio - demand.fixed_cpus / demand.counted_cpus.max(1e-9)).max(0.0) * demand.busy_cpus
}

#[cfg(test)]
mod tests;
