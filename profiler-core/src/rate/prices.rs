//! What samples are charged at: as the machine was calibrated, and with the handler as the field shows it.
//!
//! A sample's cost is an interrupt and, inside it, the kernel's handler that writes the record. The handler
//! walks the target's stack and finds the target's caches. So does the rest, which is not timed: it follows
//! the handler, as the calibration found ([`CacheSensitivity`]), or stays as calibrated where that did not look.
//!
//! For stacks of a kind that no burst has timed, the calibration's own errors are used: the regression starts
//! from it with wide priors, and a prior that is left quickly is no measure of doubt.

use std::collections::VecDeque;

use super::cache_sensitivity::CacheSensitivity;
use super::cost::{Cost, CostModel};
use super::interrupts::Interrupts;
use super::modes::{CostMode, clear_modes};
use crate::stats::characterise::Parameters;
use crate::stats::regression::{Prior, RegressionSettings, RobustRegression};

/// By how much the field may differ from the calibration, as a multiple of its costs: what the priors leave open. Wide, so
/// that a burst is enough to leave them.
const FIELD_SPREAD: f64 = 2.0;
/// Outliers in one burst, and most of its times, that show a step of the costs: at least this many.
const STEP_TIMES: u64 = 10;
/// Standard deviations from the estimate beyond which a time counts as such an outlier.
const STEP_DEVIATIONS: f64 = 3.0;
/// Most recent times that modes are searched in.
const RECENT_TIMES: usize = 400;
/// Fewest times that can show modes.
const FEWEST_TIMES: usize = 50;
/// Longest time that is believed (ns): a handler that took a second is none.
const LONGEST_NS: f64 = 1e9;

/// What the kernel's handler took for one sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HandlerTime {
    /// From the tracepoint at its beginning to the one at its end (ns).
    pub time_ns: f64,
    /// Frames it walked.
    pub frames: u64,
    /// Bytes of stack it copied.
    pub stack_bytes: u64,
}

/// Figures of the handler in this target.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldFigures {
    /// What it takes for the usual sample.
    pub time: Cost,
    /// Samples that it was timed for.
    pub samples: u64,
    /// Costs of a sample of the usual stack, if there are two clear ones or more; else none.
    pub modes: Vec<CostMode>,
}

/// What a sample costs the task that it interrupts.
#[derive(Clone, Debug)]
pub(super) struct Prices {
    calibrated: CostModel,
    field: Option<Field>,
    interrupts: Interrupts,
}

/// The estimate of the handler's costs.
#[derive(Clone, Debug)]
struct Field {
    /// The part of a sample that no handler sees, as calibrated for a program that nothing is known of.
    outside: Cost,
    cache_sensitivity: Option<CacheSensitivity>,
    /// The calibration with the handler alone for a sample.
    calibrated: CostModel,
    regression: RobustRegression,
    parameters: Parameters,
    samples: u64,
    samples_since_step: u64,
    recent: VecDeque<HandlerTime>,
    modes: KnownModes,
}

/// The modes of the cost as they were found last. To look for them takes milliseconds.
#[derive(Clone, Debug, Default)]
struct KnownModes {
    found: Vec<CostMode>,
    /// What a usual sample cost then (ns).
    usual_ns: f64,
    /// From how many times on they are looked for again.
    until_samples: u64,
}

impl Prices {
    /// Prices by a calibration.
    pub(super) fn new(calibrated: CostModel) -> Self {
        Prices {
            calibrated,
            field: calibrated.per_handler_ns.map(|handler| Field::new(&calibrated, handler)),
            interrupts: Interrupts::new(calibrated.per_interrupt_ns),
        }
    }

    /// Takes in handler times. Without a calibrated handler to compare with, they are ignored.
    pub(super) fn observe(&mut self, times: &[HandlerTime]) {
        if !times.is_empty()
            && let Some(field) = &mut self.field
        {
            field.observe(times);
        }
    }

    /// Takes in for how long single samples held up a thread of ours (ns).
    pub(super) fn observe_interrupts(&mut self, times_ns: &[f64]) {
        self.interrupts.observe(times_ns);
    }

    /// The present cost of an interrupt for such a thread; `None` before it was measured.
    pub(super) fn interrupt(&self) -> Option<Cost> {
        self.interrupts.now()
    }

    /// [`Self::interrupt`] over the cost at the calibration; 1 if the two agree.
    pub(super) fn interrupt_ratio(&self) -> f64 {
        self.interrupts.change().factor
    }

    /// What one sample with `frames` walked and `bytes` copied costs.
    pub(super) fn sample(&self, frames: f64, bytes: f64) -> Cost {
        let in_field = self.known().and_then(|field| field.sample(frames, bytes));
        let sample = in_field.unwrap_or_else(|| self.calibrated.sample(frames, bytes));
        let more = self.since_calibration(frames, bytes);
        Cost::new(sample.mean_ns + more.mean_ns, sample.se_ns.hypot(more.se_ns))
    }

    /// The change in the cost of such a sample's interrupt since the calibration. If the handler is timed in this
    /// target, its own change is known already and does not count twice.
    fn since_calibration(&self, frames: f64, bytes: f64) -> Cost {
        let change = self.interrupts.change();
        let bare_ns = self.calibrated.per_sample_ns.mean_ns;
        let in_field = self.known().and_then(|field| Some((field, field.parts(frames, bytes)?)));
        let (calibrated_ns, now_ns) = match in_field {
            Some((field, (handler, sample))) => {
                (field.calibrated_outside_ns(), sample.mean_ns - handler.mean_ns)
            }
            None => (bare_ns, bare_ns),
        };
        let changed_ns = match change.factor {
            factor if factor > 1.0 => now_ns.max(factor * calibrated_ns),
            factor => factor * now_ns,
        };
        Cost::new(changed_ns - now_ns, change.se * calibrated_ns)
    }

    /// The parts of the mean cost of a sample with `frames` walked and `bytes` copied (ns): without its stack, a frame, a
    /// byte.
    pub(super) fn parts_ns(&self, frames: f64, bytes: f64) -> [f64; 3] {
        let CostModel { per_sample_ns, per_frame_ns, per_byte_ns, .. } = self.calibrated;
        let in_field =
            self.known().and_then(|field| Some((field.parts(frames, bytes)?, field.parameters.values())));
        let more_ns = self.since_calibration(frames, bytes).mean_ns;
        match in_field {
            Some(((handler, sample), &[handler_ns, frame_ns, byte_ns])) => {
                [sample.mean_ns - handler.mean_ns + handler_ns + more_ns, frame_ns, byte_ns]
            }
            _ => [per_sample_ns.mean_ns + more_ns, per_frame_ns.mean_ns, per_byte_ns.mean_ns],
        }
    }

    /// The handler in the field for samples with `frames` and `bytes`; `None` before it was timed.
    pub(super) fn field(&mut self, frames: f64, bytes: f64) -> Option<FieldFigures> {
        let field = self.field.as_mut().filter(|field| field.samples > 0)?;
        let (time, sample) = field.parts(frames, bytes)?;
        Some(FieldFigures { time, samples: field.samples, modes: field.modes(sample.mean_ns) })
    }

    fn known(&self) -> Option<&Field> {
        self.field.as_ref().filter(|field| field.samples > 0)
    }
}

impl Field {
    fn new(calibrated: &CostModel, handler: Cost) -> Self {
        let sample = calibrated.per_sample_ns;
        let outside_ns = (sample.mean_ns - handler.mean_ns).max(0.0);
        let calibrated = CostModel { per_sample_ns: handler, ..*calibrated };
        let regression = from_priors(&calibrated);
        Field {
            outside: Cost::new(outside_ns, sample.se_ns.hypot(handler.se_ns)),
            cache_sensitivity: calibrated.cache_sensitivity,
            calibrated,
            parameters: regression.parameters(),
            regression,
            samples: 0,
            samples_since_step: 0,
            recent: VecDeque::with_capacity(RECENT_TIMES),
            modes: KnownModes::default(),
        }
    }

    fn observe(&mut self, times: &[HandlerTime]) {
        let times: Vec<&HandlerTime> = times.iter().filter(|time| is_believed(time)).collect();
        if self.shows_step(&times) {
            self.regression = from_priors(&self.calibrated);
            self.samples_since_step = 0;
            self.recent.clear();
            self.modes = KnownModes::default();
        }
        for time in times {
            let counts = [1.0, time.frames as f64, time.stack_bytes as f64];
            if self.regression.observe(&counts, time.time_ns).is_none() {
                continue;
            }
            self.samples = self.samples.saturating_add(1);
            self.samples_since_step = self.samples_since_step.saturating_add(1);
            if self.recent.len() == RECENT_TIMES {
                self.recent.pop_front();
            }
            self.recent.push_back(*time);
        }
        self.parameters = self.regression.parameters();
    }

    /// Whether most times of a burst are outliers. Then the handler has changed, for instance because the program's
    /// data no longer fit into the caches, and what was learnt would only delay the estimate.
    fn shows_step(&self, times: &[&HandlerTime]) -> bool {
        let bound_ns = STEP_DEVIATIONS * self.regression.noise();
        let is_off = |time: &&&HandlerTime| {
            let expected = self.handler(time.frames as f64, time.stack_bytes as f64);
            expected.is_some_and(|expected| (time.time_ns - expected.mean_ns).abs() > bound_ns)
        };
        let off = times.iter().filter(is_off).count() as u64;
        off >= STEP_TIMES && self.samples_since_step >= STEP_TIMES && 2 * off > times.len() as u64
    }

    /// The handler's cost for this stack. The priors are wider than the errors of the calibration, so that they are
    /// outweighed quickly. For kinds of stacks that were not seen, the calibration's errors are used, with those of
    /// what was seen.
    fn handler(&self, frames: f64, bytes: f64) -> Option<Cost> {
        let predicted = self.parameters.predict(&[1.0, frames, bytes]).ok()?;
        let seen_ns = self.regression.noise() / (self.samples_since_step.max(1) as f64).sqrt();
        let unseen_ns = self.calibrated.sample(frames, bytes).se_ns.hypot(seen_ns);
        Some(Cost::new(predicted.time, predicted.standard_deviation.min(unseen_ns)))
    }

    fn sample(&self, frames: f64, bytes: f64) -> Option<Cost> {
        self.parts(frames, bytes).map(|(_, sample)| sample)
    }

    /// The part of a sample that no handler sees, as it was at the calibration (ns).
    fn calibrated_outside_ns(&self) -> f64 {
        self.cache_sensitivity.map_or(self.outside.mean_ns, |measured| measured.outside_ns.mean_ns)
    }

    /// The handler, and the sample that it is a part of. Where the rest does not follow it, the two were measured at
    /// different times by different means: their errors are independent.
    fn parts(&self, frames: f64, bytes: f64) -> Option<(Cost, Cost)> {
        let handler = self.handler(frames, bytes)?;
        let sample = match &self.cache_sensitivity {
            Some(cache_sensitivity) => cache_sensitivity.sample(handler, frames, bytes),
            None => {
                let mean_ns = self.outside.mean_ns + handler.mean_ns;
                Cost::new(mean_ns, self.outside.se_ns.hypot(handler.se_ns))
            }
        };
        Some((handler, sample))
    }

    /// The cost modes of samples, with each time scaled to the usual stack, for which a sample costs `usual_ns`. They are those of
    /// before until a quarter of the times are new.
    fn modes(&mut self, usual_ns: f64) -> Vec<CostMode> {
        if self.recent.len() < FEWEST_TIMES {
            return Vec::new();
        }
        if self.samples >= self.modes.until_samples {
            let new_times = self.recent.len() as u64 / 4;
            let until_samples = self.samples.saturating_add(new_times);
            self.modes = KnownModes { found: self.find_modes(usual_ns), usual_ns, until_samples };
        }
        let change_us = (usual_ns - self.modes.usual_ns) * 1e-3;
        let now = |mode: &CostMode| CostMode { overhead_us: mode.overhead_us + change_us, ..*mode };
        self.modes.found.iter().map(now).collect()
    }

    fn find_modes(&self, usual_ns: f64) -> Vec<CostMode> {
        let beyond_expected = |time: &HandlerTime| {
            let expected = self.handler(time.frames as f64, time.stack_bytes as f64)?;
            Some(usual_ns + time.time_ns - expected.mean_ns)
        };
        let costs_ns: Vec<f64> = self.recent.iter().filter_map(beyond_expected).collect();
        if costs_ns.len() < FEWEST_TIMES { Vec::new() } else { clear_modes(&costs_ns) }
    }
}

/// What the handler takes for a sample without its stack, per frame and per byte, estimated only from these times;
/// `None` if there are too few.
///
/// For calibrations. It is the same estimate as in a target: costs of samples have a skewed distribution, for which
/// another estimate would give another figure.
pub fn handler_costs(times: &[HandlerTime]) -> Option<[Cost; 3]> {
    let believed: Vec<&HandlerTime> = times.iter().filter(|time| is_believed(time)).collect();
    let (count, sum_ns) = (believed.len(), believed.iter().map(|time| time.time_ns).sum::<f64>());
    if count < FEWEST_TIMES {
        return None;
    }
    let usual = CostModel::default();
    let mean = Cost::new(sum_ns / count as f64, 0.0);
    let priors = [
        prior(mean, mean),
        prior(usual.per_frame_ns, usual.per_frame_ns),
        prior(usual.per_byte_ns, usual.per_byte_ns),
    ];
    let mut regression =
        RobustRegression::new(&priors, RegressionSettings { forgetting: 1.0, ..Default::default() });
    for time in believed {
        regression.observe(&[1.0, time.frames as f64, time.stack_bytes as f64], time.time_ns)?;
    }
    let parameters = regression.parameters();
    let cost = |counts: [f64; 3]| {
        parameters.predict(&counts).ok().map(|told| Cost::new(told.time, told.standard_deviation))
    };
    Some([cost([1.0, 0.0, 0.0])?, cost([0.0, 1.0, 0.0])?, cost([0.0, 0.0, 1.0])?])
}

fn is_believed(time: &HandlerTime) -> bool {
    (0.0..=LONGEST_NS).contains(&time.time_ns)
}

/// A regression of handler times that knows the calibration alone.
fn from_priors(calibrated: &CostModel) -> RobustRegression {
    let default = CostModel::default();
    let priors = [
        prior(calibrated.per_sample_ns, calibrated.per_sample_ns),
        prior(calibrated.per_frame_ns, default.per_frame_ns),
        prior(calibrated.per_byte_ns, default.per_byte_ns),
    ];
    RobustRegression::new(&priors, RegressionSettings::default())
}

/// The calibrated cost, with the range that the target may have. A cost that the calibration found to be zero may still
/// exist: then `usual` gives the range.
fn prior(cost: Cost, usual: Cost) -> Prior {
    let spread_ns = FIELD_SPREAD * cost.mean_ns.max(usual.mean_ns);
    Prior { mean: cost.mean_ns, standard_deviation: cost.se_ns.hypot(spread_ns) }
}

#[cfg(test)]
mod tests;
