//! Predicts what a run will cost: before its clocks run, or, for a command, after its first second, since
//! there is nothing to watch before.

use profiler_core::attach::AttachChoice;
use profiler_core::rate::{Activity, CostModel, Figure, Prediction, RateSettings, Reading, predict};

/// The first part of a command's run, from which the rest is predicted (ns).
const BEGINNING_NS: u64 = 1_000_000_000;
/// How far the mean depth of the first stacks may be off that of all, as a share of it.
const DEPTH_DOUBT: f64 = 0.1;

/// The prediction, and the state to update it.
pub(crate) struct CostPrediction {
    settings: RateSettings,
    costs: CostModel,
    choice: AttachChoice,
    prediction: Prediction,
    /// What was read during the first part of the run.
    beginning: Option<Reading>,
}

impl CostPrediction {
    /// From what was `seen` while the target was watched; `None` for a command, which has not begun yet.
    pub(crate) fn new(
        settings: RateSettings,
        costs: CostModel,
        choice: AttachChoice,
        seen: Option<&Activity>,
    ) -> Self {
        let watched = seen.copied().unwrap_or_default();
        let prediction = predict(settings.clone(), costs, &watched, choice.clone());
        let beginning = seen.is_none().then(Reading::default);
        Self { settings, costs, choice, prediction, beginning }
    }

    /// The present prediction. For a command that ended within its first second, it only contains what is expected of
    /// any command.
    pub(crate) fn prediction(&self) -> &Prediction {
        &self.prediction
    }

    /// Takes in a reading of the run, `elapsed_ns` after its beginning.
    pub(crate) fn observe(&mut self, reading: &Reading, elapsed_ns: u64) {
        let Some(sum) = &mut self.beginning else { return };
        add(sum, reading);
        if elapsed_ns >= BEGINNING_NS {
            let watched = watched(sum, elapsed_ns);
            self.prediction = predict(self.settings.clone(), self.costs, &watched, self.choice.clone());
            self.beginning = None;
        }
    }
}

fn add(sum: &mut Reading, new: &Reading) {
    sum.target_cpu_ns += new.target_cpu_ns;
    sum.samples += new.samples;
    sum.foreign_samples += new.foreign_samples;
    sum.frames += new.frames;
    sum.stack_bytes += new.stack_bytes;
    sum.switches += new.switches;
    sum.side_records += new.side_records;
    sum.forks += new.forks;
}

fn watched(sum: &Reading, wall_ns: u64) -> Activity {
    let per_sample = |count: u64| count as f64 / sum.samples.max(1) as f64;
    let depth = |count: u64| {
        (sum.samples > 0).then(|| Figure::new(per_sample(count), DEPTH_DOUBT * per_sample(count)))
    };
    Activity {
        wall_ns,
        target_cpu_ns: sum.target_cpu_ns,
        foreign_cpu_ns: (sum.target_cpu_ns as f64 * per_sample(sum.foreign_samples)) as u64,
        switches: sum.switches,
        past_switches_per_s: 0.0, // a new command has no past
        side_records: sum.side_records,
        forks: sum.forks,
        unseen_forks: 0,
        ends: 0, // of a command's threads, only whole CPUs would tell
        frames: depth(sum.frames),
        stack_bytes: depth(sum.stack_bytes),
    }
}

#[cfg(test)]
mod tests {
    use profiler_core::attach::AttachMode;

    use super::*;

    fn cost_prediction(seen: Option<&Activity>) -> CostPrediction {
        let settings = RateSettings { expected_stack_bytes: 8192.0, ..RateSettings::default() };
        let choice = AttachChoice::new(Some(AttachMode::Task), true, 1, 2, 0.0);
        CostPrediction::new(settings, CostModel::default(), choice, seen)
    }

    fn step() -> Reading {
        Reading {
            target_cpu_ns: 100_000_000,
            samples: 10,
            frames: 1_000,
            stack_bytes: 20_000,
            switches: 300,
            ..Reading::default()
        }
    }

    #[test]
    fn a_command_is_predicted_from_its_first_second_and_not_again() {
        let mut command = cost_prediction(None);
        let blind = *command.prediction();
        (1..10).for_each(|at| command.observe(&step(), at * 100_000_000));
        assert_eq!(*command.prediction(), blind);
        command.observe(&step(), 1_000_000_000);
        let informed = *command.prediction();
        // 20 µs, a hundred frames at 50 ns and 2000 bytes at 0.2 ns; 3000 switches a second at 0.5 µs.
        assert!((informed.overhead_ns.mean - 25_400.0).abs() < 1e-6, "{informed:?}");
        assert!((informed.events_ratio.mean - 0.0015).abs() < 1e-9, "{informed:?}");
        (11..40).for_each(|at| command.observe(&Reading::default(), at * 100_000_000));
        assert_eq!(*command.prediction(), informed);
    }

    #[test]
    fn what_was_watched_is_not_predicted_anew() {
        let watched = Activity { wall_ns: 30_000_000, target_cpu_ns: 30_000_000, ..Activity::default() };
        let mut attached = cost_prediction(Some(&watched));
        let before = *attached.prediction();
        (1..20).for_each(|at| attached.observe(&step(), at * 100_000_000));
        assert_eq!(*attached.prediction(), before);
    }
}
