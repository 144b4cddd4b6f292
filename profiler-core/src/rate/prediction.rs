//! What sampling will cost, before it does (Saavedra-Barrera 1988: characterise the machine, analyse the
//! program, predict): the counts of a target that was watched, times what each costs here, under the law and
//! the caps of the controller.
//!
//! ```
//! use profiler_core::attach::AttachChoice;
//! use profiler_core::rate::{CostModel, RateSettings, Activity, predict};
//!
//! let watched = Activity {
//!     wall_ns: 2_000_000_000,
//!     target_cpu_ns: 1_000_000_000,
//!     switches: 500,
//!     ..Activity::default()
//! };
//! let choice = AttachChoice::new(None, true, 1, 2, watched.switches_per_s());
//! let prediction = predict(RateSettings::default(), CostModel::default(), &watched, choice);
//! assert_eq!(prediction.bound_by.as_str(), "host"); // without a budget of own time, that bounds everything together
//! assert!(prediction.overhead_ratio.mean < 0.01);
//! ```

use super::activity::{Activity, Figure, SEEN_NS};
use super::cost::{Cost, CostModel};
use super::fleet::Replicas;
use super::function_shares::PRIOR_SPREAD;
use super::model::{BoundBy, Caps};
use super::own_cost::{Own, OwnCostPrior};
use super::prices::Prices;
use super::rate_target::{BUDGET_MARGIN, BudgetLoad, Circumstances, RateTarget, threads_held_up};
use super::sample_cost::{OWN_COST_FLOOR_CPUS, PerSample, SampleCost};
use super::settings::RateSettings;
use crate::attach::{AttachChoice, AttachMode, GROUP_SWITCH, Observed};
use crate::stats::characterise::Parameters;

/// Standard deviation of S before any function was seen, as a share of it: the largest functions take 40%, or 5%.
const SPREAD_DOUBT: f64 = 0.5;
/// An uncertain cost is assumed to be at least this share of its mean: no sample is free.
const LEAST_COST: f64 = 0.1;
/// Looks until the attach mode is settled, a second of sampling each: one mode, the other and back, and once more.
const SETTLING_LOOKS: u64 = 8;
const SECOND_NS: u64 = 1_000_000_000;

/// What sampling a target is going to cost, and how often it will be sampled, if it goes on as it was watched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// The way to attach that remains when both were tried.
    pub attach_mode: AttachMode,
    /// o: what one sample costs the target (ns).
    pub overhead_ns: Figure,
    /// What is spent whatever the rate (ratio of the target's CPU time): the sum of the next two.
    pub fixed_ratio: Figure,
    /// The part of `fixed_ratio` for context switches, records that are not samples, and new tasks.
    pub events_ratio: Figure,
    /// Of that: what the profiler itself needs with time.
    pub own_ratio: Figure,
    /// The rate that the controller settles at (samples per CPU-second).
    pub rate_hz: Figure,
    /// λ*: the law's, without budget and caps (samples per CPU-second).
    pub unbounded_rate_hz: f64,
    /// What bounds the rate besides the law.
    pub caps: Caps,
    /// What sets the rate.
    pub bound_by: BoundBy,
    /// Everything that is spent at that rate (ratio of the target's CPU time).
    pub overhead_ratio: Figure,
}

/// Predicts what sampling will cost if the target continues as it was `watched`; `choice` is the initial way to attach.
///
/// The rate is the one that the controller keeps to once it is settled, before it knows the functions: their spread is
/// its prior's, of a share of 15%. Settings and costs out of range are brought into it, as the controller does.
pub fn predict(
    settings: RateSettings,
    costs: CostModel,
    watched: &Activity,
    mut choice: AttachChoice,
) -> Prediction {
    let basis = PredictionBasis::new(settings.sane(), costs.sane(), watched);
    if watched.was_seen() {
        for second in 0..SETTLING_LOOKS {
            choice.observe(second * SECOND_NS, basis.observed(choice.mode()), || 0);
        }
    }
    basis.predict(choice.mode())
}

/// What does not depend on the way to attach.
struct PredictionBasis<'a> {
    settings: RateSettings,
    costs: CostModel,
    watched: &'a Activity,
    own: OwnCostPrior,
    frames: Figure,
    bytes: Figure,
}

impl<'a> PredictionBasis<'a> {
    fn new(settings: RateSettings, costs: CostModel, watched: &'a Activity) -> Self {
        // A depth that was not observed may be 0, or twice the expected one.
        let depth = |seen: Option<Figure>, expected: f64, most: f64| {
            let sound = |f: &Figure| (0.0..=most).contains(&f.mean) && (0.0..=most).contains(&f.se);
            seen.filter(sound).unwrap_or(Figure::new(expected, expected))
        };
        let copies = settings.expected_stack_bytes > 0.0;
        let bytes = depth(watched.stack_bytes, settings.expected_stack_bytes, 65_536.0);
        PredictionBasis {
            frames: depth(watched.frames, settings.expected_frames, 1_024.0),
            bytes: if copies { bytes } else { Figure::default() },
            own: OwnCostPrior::default(),
            settings,
            costs,
            watched,
        }
    }

    fn sample(&self, mode: AttachMode) -> PerSample {
        let non_targets = self.watched.foreign_cpu_ns as f64 / self.watched.target_cpu_ns.max(SEEN_NS) as f64;
        let foreign = if mode == AttachMode::Cpu && self.watched.was_seen() { non_targets } else { 0.0 };
        PerSample { frames: self.frames.mean, bytes: self.bytes.mean, foreign }
    }

    /// o: the error of the costs, and that of the depth that they are multiplied with.
    fn overhead(&self, sample: &PerSample) -> Figure {
        let cost = sample.cost(&Prices::new(self.costs));
        let by_frames = self.frames.se * self.costs.per_frame_ns.mean_ns;
        let by_bytes = self.bytes.se * self.costs.per_byte_ns.mean_ns;
        Figure::new(cost.mean_ns, cost.se_ns.hypot(by_frames).hypot(by_bytes))
    }

    /// Events without a sample, per CPU-second, and their prices (ns).
    fn events(&self, mode: AttachMode) -> [(Figure, Figure); 3] {
        let watched = self.watched;
        let (records, tasks) = (watched.per_cpu_s(watched.side_records), watched.forks_per_cpu_s());
        let (switches, side_records, forks) = match mode {
            AttachMode::Task => (watched.per_cpu_s(watched.switches), records, tasks),
            // Not inherited: a new task costs two records, its start and its end.
            AttachMode::Cpu => (Figure::default(), records.plus(tasks.scaled(2.0)), Figure::default()),
            // An upper bound: how many switches leave the group is not known beforehand.
            AttachMode::Cgroup => {
                let switches = watched.per_cpu_s(watched.switches).scaled(GROUP_SWITCH);
                (switches, records.plus(tasks.scaled(2.0)), Figure::default())
            }
        };
        [
            (switches, self.costs.per_switch_ns.into()),
            (side_records, self.costs.per_side_record_ns.into()),
            (forks, self.costs.per_fork_ns.into()),
        ]
    }

    /// The profiler's own CPU time with time, per CPU-second of the target.
    fn own(&self) -> (Figure, Figure) {
        let seconds = 1.0 / self.watched.utilisation_cpus().max(OWN_COST_FLOOR_CPUS);
        (Figure::exact(seconds), Figure::new(self.own.per_second_ns, self.own.per_second_sd_ns))
    }

    fn predict(&self, mode: AttachMode) -> Prediction {
        let sample = self.sample(mode);
        let (overhead, cost) = (self.overhead(&sample), self.sample_cost(mode));
        let (events, own) = (total(&self.events(mode)), total(&[self.own()]));
        let fixed = events.plus(own);
        let (rate_target, rate_hz) = self.rate(&cost, PRIOR_SPREAD);
        let doubts = [overhead.se, self.own.per_sample_sd_ns, fixed.se * 1e-9, SPREAD_DOUBT * PRIOR_SPREAD];
        Prediction {
            attach_mode: mode,
            overhead_ns: overhead,
            fixed_ratio: fixed.scaled(1e-9),
            events_ratio: events.scaled(1e-9),
            own_ratio: own.scaled(1e-9),
            rate_hz: Figure::new(rate_hz, self.rate_se_hz(&cost, doubts)),
            unbounded_rate_hz: rate_target.unbounded_hz,
            caps: rate_target.caps,
            bound_by: if self.settings.fixed_rate_hz.is_some() {
                BoundBy::Fixed
            } else {
                rate_target.bound_by
            },
            overhead_ratio: self.overhead_at(rate_hz, mode, overhead),
        }
    }

    /// What the controller's meter finds: counts at the upper end of their cost.
    fn sample_cost(&self, mode: AttachMode) -> SampleCost {
        let upper = |(count, price): &(Figure, Figure)| count.mean * (price.mean + 2.0 * price.se);
        let events_ratio = self.events(mode).iter().map(upper).sum::<f64>() * 1e-9;
        let own = Own { per_sample_ns: self.own.per_sample_ns, per_second_ns: self.own.per_second_ns };
        let utilisation_cpus = self.watched.utilisation_cpus();
        SampleCost::new(&Prices::new(self.costs), &self.sample(mode), own, utilisation_cpus, events_ratio)
    }

    fn rate(&self, cost: &SampleCost, spread: f64) -> (RateTarget, f64) {
        let now = Circumstances {
            cost: *cost,
            spread,
            record_bytes: self.sample(AttachMode::Task).record_bytes(),
            utilisation_cpus: self.watched.utilisation_cpus(),
            load: self.load(cost),
            granted_ratio: self.settings.budget_ratio,
            dearest_hz: f64::INFINITY,
            schedule: None,
            threads: threads_held_up(&self.settings, self.watched.utilisation_cpus()),
            replicas: Replicas::ONE,
        };
        let rate_target = RateTarget::new(&self.settings, &now, BUDGET_MARGIN);
        (rate_target, self.settings.fixed_rate_hz.unwrap_or(rate_target.target_hz(&self.settings)))
    }

    fn load(&self, cost: &SampleCost) -> BudgetLoad {
        let utilisation_cpus = self.watched.utilisation_cpus();
        let own_ratio = self.own.per_second_ns * 1e-9 / utilisation_cpus.max(OWN_COST_FLOOR_CPUS);
        BudgetLoad {
            slowdown_fixed_ratio: threads_held_up(&self.settings, utilisation_cpus).count
                * (cost.fixed_ratio - own_ratio).max(0.0),
            own_fixed_cpus: self.own.per_second_ns * 1e-9,
            own_per_hz_cpus: utilisation_cpus * (cost.self_ns + cost.foreign_ns) * 1e-9,
            ..BudgetLoad::default()
        }
    }

    /// Standard error of the rate from the doubts about o, own time per sample, the fixed part and the spread: σ² = Σ
    /// (∂λ/∂x)²·σ²ₓ. The derivatives are replaced by differences over one standard deviation either way, since caps
    /// have corners.
    fn rate_se_hz(&self, cost: &SampleCost, doubts: [f64; 4]) -> f64 {
        let moved = |cause: usize, by: f64| {
            let mut step = [0.0; 4];
            step[cause] = by * doubts[cause];
            let [o, own, fixed, spread] = step;
            let least = |x: f64, by: f64| (x + by).max(LEAST_COST * x);
            let moved = SampleCost {
                target: Cost::new(least(cost.target.mean_ns, o), cost.target.se_ns),
                total_hi_ns: least(cost.total_hi_ns, o + own),
                fixed_ratio: (cost.fixed_ratio + fixed).max(0.0),
                ..*cost
            };
            self.rate(&moved, PRIOR_SPREAD + spread).1
        };
        (0..doubts.len()).map(|cause| 0.5 * (moved(cause, 1.0) - moved(cause, -1.0))).fold(0.0, f64::hypot)
    }

    /// Everything that is spent, per nanosecond of the target.
    fn overhead_at(&self, rate_hz: f64, mode: AttachMode, overhead: Figure) -> Figure {
        let foreign = self.sample(mode).foreign;
        let own = Figure::new(self.own.per_sample_ns, self.own.per_sample_sd_ns);
        let non_target = self.costs.sample(0.0, self.bytes.mean).into();
        let [switches, side_records, forks] = self.events(mode);
        total(&[
            (Figure::exact(rate_hz), overhead),
            (Figure::exact(rate_hz * foreign), non_target),
            (Figure::exact(rate_hz * (1.0 + foreign)), own),
            switches,
            side_records,
            forks,
            self.own(),
        ])
        .scaled(1e-9)
    }

    /// What one second of sampling would show of the attach mode.
    fn observed(&self, mode: AttachMode) -> Observed {
        let predicted = self.predict(mode);
        let (rate_hz, foreign) = (predicted.rate_hz.mean, self.sample(mode).foreign);
        let [(switches, price), ..] = self.events(mode);
        let unseen = 0.5 * self.watched.per_cpu_s(self.watched.unseen_forks).mean;
        let ends = self.watched.per_cpu_s(self.watched.ends).mean + unseen;
        Observed {
            extra_ns: switches.mean * price.mean + rate_hz * foreign * self.costs.per_sample_ns.mean_ns,
            samples_ns: rate_hz * predicted.overhead_ns.mean,
            ends_ns: ends * 0.5e9 / rate_hz,
            target_ns: 1e9,
            wall_ns: 1e9 / self.watched.utilisation_cpus().max(f64::MIN_POSITIVE),
        }
    }
}

/// T = Σ C·P of counts and prices. Its error is that of the prices, σ² = Σ C²·σ²_P (Saavedra-Barrera 1988,
/// 3.5 and section 6.1), and that of the counts, for which the two change their parts.
fn total(terms: &[(Figure, Figure)]) -> Figure {
    let (counts, prices): (Vec<Figure>, Vec<Figure>) = terms.iter().copied().unzip();
    let means = |figures: &[Figure]| figures.iter().map(|figure| figure.mean).collect::<Vec<f64>>();
    let sum = |known: &[Figure], times: &[Figure]| {
        let known: Vec<(f64, f64)> = known.iter().map(|figure| (figure.mean, figure.se)).collect();
        Parameters::independent(&known).predict(&means(times))
    };
    match (sum(&prices, &counts), sum(&counts, &prices)) {
        (Ok(by_price), Ok(by_count)) => {
            Figure::new(by_price.time, by_price.standard_deviation.hypot(by_count.standard_deviation))
        }
        _ => Figure::new(f64::MAX, f64::MAX), // too large to calculate with
    }
}

#[cfg(test)]
mod tests;
