//! What sampling cost, over the run and over its worst second and ten seconds.
//!
//! An idle target is granted a tenth of a CPU, but not next to its last busy moment: ten seconds that contain
//! both are compared with the CPU time of that moment. So the account says what all windows in progress can
//! still afford; the clocks go down to their slowest for it, and are fast again one step into the next burst.

use super::budget_grant::Grant;
use super::cost::Cost;
use super::last_ten_seconds::{LastTenSeconds, MERGE_NS, SpanFigures, TEN_SECONDS_NS};
use super::meter::Spend;
use super::sample_cost::OWN_COST_FLOOR_CPUS;

const SECOND_NS: f64 = 1e9;
/// Floor for the target's CPU time when the cost charged to it is compared with it (share of one CPU). In a window with
/// less, the ratio would only depend on whether one sample fell into it.
pub(super) const TARGET_FLOOR_CPUS: f64 = 0.01;

#[derive(Clone, Copy, Debug, Default)]
struct AccountStep {
    wall_ns: f64,
    cpu_ns: f64,
    target_ns: f64,
    /// How long other threads of the target waited meanwhile.
    waiting_ns: f64,
    others_ns: f64,
    /// The part of `others_ns` that the budget of the profiler's own CPU time counts.
    own_ns: f64,
    /// The part of `others_ns` that the budget counts later.
    put_off_ns: f64,
    /// By how much the costs above may be too low; not part of the ratio.
    doubt_ns: f64,
    /// CPU time that the budget is a ratio of, with its floor (ns).
    counted_ns: f64,
    /// What the budget then in force granted (ns).
    granted_ns: f64,
}

impl SpanFigures for AccountStep {
    fn wall_ns(&self) -> f64 {
        self.wall_ns
    }

    fn add(&mut self, other: Self) {
        self.wall_ns += other.wall_ns;
        self.cpu_ns += other.cpu_ns;
        self.target_ns += other.target_ns;
        self.waiting_ns += other.waiting_ns;
        self.others_ns += other.others_ns;
        self.own_ns += other.own_ns;
        self.put_off_ns += other.put_off_ns;
        self.doubt_ns += other.doubt_ns;
        self.counted_ns += other.counted_ns;
        self.granted_ns += other.granted_ns;
    }
}

impl AccountStep {
    /// Share of the target's CPU time that sampling took from it, threads that waited for it included.
    fn slowdown_ratio(&self) -> f64 {
        (self.target_ns + self.waiting_ns) / self.cpu_ns_or(TARGET_FLOOR_CPUS)
    }

    /// Share of one CPU that the profiler used.
    fn own_cpu_ratio(&self) -> f64 {
        self.own_ns / self.wall_ns.max(1.0)
    }

    fn ratio(&self) -> f64 {
        self.target_ns / self.cpu_ns_or(TARGET_FLOOR_CPUS)
            + self.others_ns / self.cpu_ns_or(OWN_COST_FLOOR_CPUS)
    }

    /// CPU time that a cost is compared with (ns): the target's, or the floor.
    fn cpu_ns_or(&self, floor_cpus: f64) -> f64 {
        self.cpu_ns.max(floor_cpus * self.wall_ns).max(1.0)
    }

    /// What a budget leaves to be spent outside of the target (ns), with the costs at their upper end. Its last `to_come_ns` are
    /// still to come.
    fn left_ns(&self, budget: Grant, to_come_ns: f64) -> f64 {
        let others_cpu_ns = self.cpu_ns_or(OWN_COST_FLOOR_CPUS);
        let target_ns = self.target_ns * others_cpu_ns / self.cpu_ns_or(TARGET_FLOOR_CPUS);
        // What was spent within an earlier budget does not count against the present one.
        let earlier_ns = self.granted_ns - budget.over_ns(self.wall_ns - to_come_ns, self.counted_ns);
        let others_ns = self.others_ns - self.put_off_ns;
        budget.over_ns(self.wall_ns, others_cpu_ns) + earlier_ns - target_ns - others_ns - self.doubt_ns
    }
}

/// The overhead of a run.
///
/// Windows are of *wall-clock* time, since that is when a user is slowed down; they end at each reading and
/// reach back at least a second (ten). Their ratio is what was charged to the target, over its CPU time in
/// the window, plus what was spent elsewhere (the profiler itself, samples that hit others) over the same.
/// Where the target hardly ran, the denominators have floors, 1% of a CPU for the former and 10% for the
/// latter: the profiler has to look after an idle target, too, and a ratio to nothing would be no news. So an
/// idle target reads own CPU time against a tenth of a CPU. The ratio of the whole run has no floor.
#[derive(Clone, Debug, Default)]
pub struct Account {
    history: LastTenSeconds<AccountStep>,
    run: AccountStep,
    spent: Spend,
    worst_1s: Option<f64>,
    worst_10s: Option<f64>,
    worst_slowdown_10s: Option<f64>,
    worst_own_10s: Option<f64>,
    budget: Grant,
}

impl Account {
    /// An empty one, for a budget (ratio of the target's CPU time); the default has none.
    pub(super) fn new(budget_ratio: f64) -> Self {
        Self { budget: Grant::of_ratio(budget_ratio), ..Self::default() }
    }

    /// Sets the budget from now on.
    pub(super) fn set_budget(&mut self, budget: Grant) {
        self.budget = budget;
    }

    /// Books a step of `wall_ns` in which the target used `cpu_ns`.
    pub fn book(&mut self, wall_ns: f64, cpu_ns: f64, spend: &Spend) {
        let others_ns = spend.foreign_ns + spend.self_ns;
        let (target_ns, waiting_ns, doubt_ns) = (spend.target_ns(), spend.waiting_ns, spend.doubt_ns);
        let (own_ns, put_off_ns) = (spend.own_ns(), spend.put_off_ns);
        let mut step = AccountStep {
            wall_ns,
            cpu_ns,
            target_ns,
            waiting_ns,
            others_ns,
            own_ns,
            put_off_ns,
            doubt_ns,
            ..AccountStep::default()
        };
        step.counted_ns = step.cpu_ns_or(OWN_COST_FLOOR_CPUS);
        step.granted_ns = self.budget.over_ns(wall_ns, step.counted_ns);
        self.run.add(step);
        self.spent.add(spend);
        self.history.book(step);
        let worse =
            |worst: Option<f64>, now: Option<f64>| now.map(|now| worst.unwrap_or(0.0).max(now)).or(worst);
        self.worst_1s = worse(self.worst_1s, self.window(SECOND_NS).map(|w| w.ratio()));
        let ten_seconds = self.window(TEN_SECONDS_NS);
        self.worst_10s = worse(self.worst_10s, ten_seconds.map(|w| w.ratio()));
        self.worst_slowdown_10s = worse(self.worst_slowdown_10s, ten_seconds.map(|w| w.slowdown_ratio()));
        self.worst_own_10s = worse(self.worst_own_10s, ten_seconds.map(|w| w.own_cpu_ratio()));
    }

    /// Returns the account so far, and begins the next one. That judges the windows that end from now on, even if they
    /// began before.
    pub fn take(&mut self) -> Account {
        let history = self.history.clone();
        let next = Account { history, budget: self.budget, ..Account::default() };
        std::mem::replace(self, next)
    }

    /// The latest window of at least `length_ns`; none before the run is that long.
    fn window(&self, length_ns: f64) -> Option<AccountStep> {
        self.history.windows().find(|window| window.wall_ns >= length_ns * 0.999)
    }

    /// What may be spent from now on, so that each window of ten seconds that has begun ends within the budgets of its
    /// time, if the target keeps `busy_cpus` busy (ratio of its CPU time); negative where that is no longer possible.
    ///
    /// A target that falls idle is granted a tenth of a CPU once: a window that holds its last busy moment, too, is
    /// set against the CPU time of that.
    pub(super) fn affordable_ratio(&self, busy_cpus: f64) -> f64 {
        let mut least = f64::INFINITY;
        for begun in self.history.windows() {
            let to_come_ns = TEN_SECONDS_NS - begun.wall_ns;
            if to_come_ns < MERGE_NS {
                break;
            }
            let mut whole =
                AccountStep { wall_ns: to_come_ns, cpu_ns: busy_cpus * to_come_ns, ..AccountStep::default() };
            whole.add(begun);
            least = least.min(whole.left_ns(self.budget, to_come_ns) / to_come_ns);
        }
        least / busy_cpus.max(OWN_COST_FLOOR_CPUS)
    }

    /// Overhead of the last second, or of the run while it is shorter.
    pub fn last_1s_ratio(&self) -> f64 {
        self.window(SECOND_NS).unwrap_or(self.run).ratio()
    }

    /// The largest overhead of any one second; of the run while it is shorter.
    pub fn worst_1s_ratio(&self) -> f64 {
        self.worst_1s.unwrap_or_else(|| self.run.ratio())
    }

    /// The largest overhead of any ten seconds; of the run while it is shorter.
    pub fn worst_10s_ratio(&self) -> f64 {
        self.worst_10s.unwrap_or_else(|| self.run.ratio())
    }

    /// Share of the target's CPU time that its samples, context switches and records took from it, threads that waited meanwhile included;
    /// 0 if it used none.
    pub fn slowdown_ratio(&self) -> f64 {
        let slowed_ns = self.run.target_ns + self.run.waiting_ns;
        if self.run.cpu_ns > 0.0 { slowed_ns / self.run.cpu_ns } else { 0.0 }
    }

    /// Slowdown of the last ten seconds, or of the run while it is shorter.
    pub fn last_10s_slowdown_ratio(&self) -> f64 {
        self.window(TEN_SECONDS_NS).unwrap_or(self.run).slowdown_ratio()
    }

    /// [`Account::own_cpu_ratio`] of the last ten seconds, or of the run while it is shorter.
    pub fn last_10s_own_cpu_ratio(&self) -> f64 {
        self.window(TEN_SECONDS_NS).unwrap_or(self.run).own_cpu_ratio()
    }

    /// The largest slowdown of any ten seconds; of the run while it is shorter.
    pub fn worst_10s_slowdown_ratio(&self) -> f64 {
        self.worst_slowdown_10s.unwrap_or_else(|| self.slowdown_ratio())
    }

    /// CPU time of the profiler, set-up left out, and of samples that hit other processes, as a share of one CPU.
    pub fn own_cpu_ratio(&self) -> f64 {
        self.run.own_cpu_ratio()
    }

    /// The largest [`Account::own_cpu_ratio`] of any ten seconds; of the run while it is shorter.
    pub fn worst_10s_own_cpu_ratio(&self) -> f64 {
        self.worst_own_10s.unwrap_or_else(|| self.own_cpu_ratio())
    }

    /// Overhead of the run: everything spent over the target's CPU time, without a floor; 0 if it used none.
    pub fn ratio(&self) -> f64 {
        let spent = self.run.target_ns + self.run.others_ns;
        if self.run.cpu_ns > 0.0 { spent / self.run.cpu_ns } else { 0.0 }
    }

    /// Everything spent since the start, by cause.
    pub fn spent(&self) -> &Spend {
        &self.spent
    }

    /// CPU time that the target used (s).
    pub fn target_cpu_s(&self) -> f64 {
        self.run.cpu_ns * 1e-9
    }

    /// What sampling was charged to the target, its samples and its context switches: CPU time that the
    /// scheduler counts as the target's own.
    pub fn charged(&self) -> Cost {
        Cost::new(self.spent.target_ns(), self.spent.target_se_ns)
    }

    /// The part of [`Account::charged`] that the samples cost, without context switches.
    pub fn charged_by_samples(&self) -> Cost {
        Cost::new(self.spent.samples_ns(), self.spent.samples_se_ns)
    }

    /// CPU time charged to the target by sampling (s).
    pub fn target_spend_s(&self) -> f64 {
        self.run.target_ns * 1e-9
    }

    /// CPU time spent elsewhere: by the profiler itself, and by samples that hit others (s).
    pub fn others_spend_s(&self) -> f64 {
        self.run.others_ns * 1e-9
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::{CostModel, OverheadMeter, Reading};

    fn spend(base_ns: f64, self_ns: f64) -> Spend {
        Spend { base_ns, self_ns, ..Spend::default() }
    }

    #[test]
    fn accounts_taken_one_after_the_other_add_up_and_miss_no_second() {
        let (mut whole, mut parts, mut taken) = (Account::default(), Account::default(), Vec::new());
        for step in 0..300 {
            let cost = if (95..105).contains(&step) { 5e6 } else { 1e6 };
            whole.book(0.1e9, 0.1e9, &spend(cost, 1e5));
            parts.book(0.1e9, 0.1e9, &spend(cost, 1e5));
            if step % 100 == 99 {
                taken.push(parts.take());
            }
        }
        let sum: f64 = taken.iter().map(|part| part.target_spend_s() + part.others_spend_s()).sum();
        assert!((sum - whole.target_spend_s() - whole.others_spend_s()).abs() < 1e-9);
        let cpu_s: f64 = taken.iter().map(Account::target_cpu_s).sum();
        assert!((cpu_s - whole.target_cpu_s()).abs() < 1e-9);
        let worst = taken.iter().map(Account::worst_1s_ratio).fold(0.0, f64::max);
        assert!((worst - whole.worst_1s_ratio()).abs() < 1e-9, "{worst}: half of it lies in either part");
        assert!((worst - 0.051).abs() < 1e-9 && taken[2].worst_1s_ratio() < 0.012);
    }

    #[test]
    fn the_worst_second_is_found() {
        let mut account = Account::default();
        for step in 0..300 {
            let cost = if (100..110).contains(&step) { 5e6 } else { 1e6 };
            account.book(0.1e9, 0.1e9, &spend(cost, 0.0));
        }
        assert!((account.worst_1s_ratio() - 0.05).abs() < 1e-9);
        assert!((account.worst_10s_ratio() - 0.014).abs() < 1e-9);
        assert!((account.last_1s_ratio() - 0.01).abs() < 1e-9);
        assert!(account.history.len() <= 101);
    }

    #[test]
    fn errors_of_one_calibration_add_up_and_switches_are_told_apart() {
        let model = CostModel {
            per_sample_ns: Cost::new(10_000.0, 500.0),
            per_frame_ns: Cost::default(),
            per_byte_ns: Cost::default(),
            per_switch_ns: Cost::new(500.0, 100.0),
            ..CostModel::default()
        };
        let meter = OverheadMeter::new(model);
        let reading = Reading { samples: 9, lost: 1, switches: 20, foreign_samples: 5, ..Reading::default() };
        let mut account = Account::default();
        (0..100).for_each(|_| account.book(0.1e9, 0.1e9, &meter.spend(&reading)));
        assert_eq!(account.charged(), Cost::new(100.0 * 110_000.0, 100.0 * 7_000.0));
        assert_eq!(account.charged_by_samples(), Cost::new(100.0 * 100_000.0, 100.0 * 5_000.0));
        assert_eq!(account.target_spend_s(), account.charged().mean_ns * 1e-9);
    }

    #[test]
    fn what_is_affordable_keeps_every_ten_seconds_within_the_budget() {
        let fallen_idle = |spend_ns: &dyn Fn(&Account) -> f64| {
            let mut account = Account::new(0.01);
            (0..100).for_each(|_| account.book(0.1e9, 0.1e9, &spend(0.8e6, 0.0)));
            for _ in 0..200 {
                let self_ns = spend_ns(&account);
                account.book(0.1e9, 0.0, &spend(0.0, self_ns));
            }
            account.worst_10s_ratio()
        };
        let tenth_ns = 0.1 * 0.1e9;
        let afforded = |account: &Account| tenth_ns * account.affordable_ratio(0.0).max(0.0);
        let worst = fallen_idle(&afforded);
        assert!((0.0095..0.01001).contains(&worst), "{worst}");
        // A tenth of a CPU's budget, in each second, is too much beside the last busy one.
        assert!(fallen_idle(&|_| 0.01 * tenth_ns) > 0.015);
        assert_eq!(Account::new(0.01).affordable_ratio(1.0), f64::INFINITY);
    }

    #[test]
    fn a_budget_that_falls_is_no_reason_to_regret_what_was_spent_before() {
        let mut account = Account::new(0.01);
        (0..100).for_each(|_| account.book(0.1e9, 0.1e9, &spend(1e6, 0.0)));
        assert!((account.affordable_ratio(1.0) - 0.01).abs() < 1e-9);
        account.set_budget(Grant::of_ratio(0.002));
        assert!((account.affordable_ratio(1.0) - 0.002).abs() < 1e-9, "{}", account.affordable_ratio(1.0));
        account.book(0.1e9, 0.1e9, &spend(1e6, 0.0)); // five times as much as it may
        assert!(account.affordable_ratio(1.0) < 0.002);
    }

    #[test]
    fn an_idle_target_sets_own_time_against_a_tenth_of_a_cpu() {
        let mut account = Account::default();
        (0..100).for_each(|_| account.book(0.1e9, 0.0, &spend(0.0, 50_000.0)));
        assert!((account.worst_10s_ratio() - 0.005).abs() < 1e-9);
        assert_eq!(account.ratio(), 0.0);
    }
}
