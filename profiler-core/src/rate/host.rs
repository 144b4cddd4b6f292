//! The budget of a host over time: what was spent of it, what may still be, and when it is shared anew.
//!
//! The budget is kept over any ten seconds: what a target overspends in the step in which its load rises is
//! taken back within the same ten seconds.

use super::set_up::SetUp;
use super::share::{AGES, Demand, Shares, share};
use super::spending::{MERGE_NS, Spending, SpendingSpan, TEN_SECONDS_NS};

const SECOND_NS: f64 = 1e9;
/// Between two sharings, if nothing is wrong (ns).
const CALM_NS: u64 = 1_000_000_000;
/// A budget stays where it is this near to what it would become: costs are known to some percent, and a change is not free.
const DEAD_BAND: f64 = 1.1;
/// Part of the budget that names may keep from samples: profiles would be named well and say little otherwise.
const MOST_FOR_NAMES: f64 = 0.35;
/// Granted budgets may exceed what is available by this factor before it is shared anew at once; controllers aim at
/// nine tenths of theirs.
const SLACK: f64 = 1.05;
/// A budget that is too small for so long is too small for what there is, and not for a burst or for set-up that is paid for over
/// minutes (ns).
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
    /// What names took, as a matter of the minutes that follow.
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
    /// A budget of so many CPUs: its share of the CPU time of all that are online.
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

    /// Another budget from now on (CPUs).
    pub fn set_cpus(&mut self, cpus: f64) {
        self.cpus = cpus;
        self.shared_ns = None;
    }

    /// Takes in what was spent since the last time, for targets and on its own (ns of CPU time), `once_ns` of it on set-up, which
    /// is charged over the minutes that follow, and `names_ns` on names, which wait for what samples leave; `at_ns` is of a clock that
    /// does not go back.
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

    /// Names are expected to take so much (CPUs).
    pub fn expect_names(&mut self, cpus: f64) {
        self.expected_names_cpus = cpus;
    }

    /// CPUs reserved for names: the larger of what they took, averaged over minutes, and what they are expected to
    /// take, within 35% of the budget. The average keeps one window or request from changing the rates.
    fn kept_for_names_cpus(&self) -> f64 {
        self.names.due_cpus().max(self.expected_names_cpus).clamp(0.0, self.most_for_names_cpus())
    }

    /// What names may take at most, unless a request waits for them (CPUs).
    pub fn most_for_names_cpus(&self) -> f64 {
        MOST_FOR_NAMES * self.cpus.max(0.0)
    }

    /// What was spent in the last ten seconds, over what was to be spent; 1 is all of it.
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
    ) -> Option<Shares> {
        let left_cpus = self.left_cpus(housekeeping_cpus.max(0.0), demands, granted);
        let calm = self.shared_ns.is_some_and(|shared_ns| at_ns < shared_ns.saturating_add(CALM_NS));
        if calm && demands.len() == granted.len() && would_spend(demands, granted) <= SLACK * left_cpus {
            return None;
        }
        self.shared_ns = Some(at_ns);
        let mut shares = share(demands, left_cpus);
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
    /// A window ends so if what samples cost under the budgets in force, times some factor, is no more than it has left;
    /// and of a target that bursts, the rest of the window holds no more than what it has not yet used. The least of these
    /// factors is what all budgets together may grow or have to shrink by.
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
        let (mut begun, mut spans) = (SpendingSpan::default(), self.beside_names.begun());
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

/// The old one, where the new one is as good as the same.
fn steadied(new: f64, old: f64) -> f64 {
    if (new / DEAD_BAND..=new * DEAD_BAND).contains(&old) { old } else { new }
}

/// What targets would spend that use up these budgets, fixed costs at least (CPUs).
fn would_spend(demands: &[Demand], budgets: &[f64]) -> f64 {
    demands.iter().zip(budgets).map(|both| both.0.fixed_cpus + samples_cpus(both)).sum()
}

/// The part of it that samples take.
fn samples_cpus((demand, budget_ratio): (&Demand, &f64)) -> f64 {
    (budget_ratio - demand.fixed_cpus / demand.counted_cpus.max(1e-9)).max(0.0) * demand.busy_cpus
}

#[cfg(test)]
mod tests;
