//! How often the statistics' claims hold, over simulated runs of programs whose shares are known.

use profiler_core::stats::proportion::wilson;
use std::collections::BTreeMap;

use profiler_core::stats::{Confidence, Goal, Interval, IntervalTable, Part, Row};

use crate::bouts::{Program, Run, Sampling};

/// What is simulated: a program, how long it runs under which sampler, and how often.
#[derive(Clone, Debug)]
pub struct Case {
    /// What it is called.
    pub name: String,
    /// The program.
    pub program: Program,
    /// How it is sampled.
    pub sampling: Sampling,
    /// The precision goal of the simulated watcher.
    pub goal: Goal,
}

/// Results of the runs of a case. Shares are of the runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    /// Runs.
    pub runs: usize,
    /// All intervals of the table hold the share of this run.
    pub this_run: f64,
    /// The table makes a statement about other runs.
    pub long_run_told: f64,
    /// All intervals of the table hold the long-run share, of the runs where that is so.
    pub long_run: f64,
    /// The same for this run and total times: sums of functions, as nested callers have them.
    pub totals_this_run: f64,
    /// The same for the long run and total times.
    pub totals_long_run: f64,
    /// Width of the interval of this run over that of Wilson's pointwise one, in the mean over the functions by share.
    pub this_run_width: f64,
    /// The same of the long-run interval.
    pub long_run_width: f64,
    /// A function is called resolved from the next one although its long-run share is not larger.
    pub misordered: f64,
    /// At some check a top function's long-run share was outside of the reported ratio.
    pub peeked_wrong: f64,
    /// The watcher stopped because the goal was reached, and a top function's share was outside of it.
    pub stopped_wrong: f64,
    /// The watcher stopped before the end.
    pub stopped: f64,
}

/// Share of the shapes' names, and the shares.
pub fn shapes() -> [(&'static str, Vec<f64>); 4] {
    let zipf = (1..=20).map(|rank| 1.0 / f64::from(rank)).collect();
    [
        ("4 equal", vec![1.0; 4]),
        ("8", vec![30.0, 20.0, 15.0, 10.0, 10.0, 5.0, 5.0, 5.0]),
        ("20 by rank", zipf),
        ("50 equal", vec![1.0; 50]),
    ]
}

impl Case {
    /// Simulates `runs` runs at 95%.
    pub fn simulate(&self, runs: usize, seed: u64) -> Found {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut found = Found { runs, ..Found::default() };
        for _ in 0..runs {
            let run = self.program.run(self.sampling, &mut rng);
            self.table(&run, &mut found);
            self.watch(&run, &mut found);
        }
        let n = runs as f64;
        for figure in [
            &mut found.this_run,
            &mut found.long_run_told,
            &mut found.totals_this_run,
            &mut found.this_run_width,
            &mut found.long_run_width,
            &mut found.misordered,
            &mut found.peeked_wrong,
            &mut found.stopped_wrong,
            &mut found.stopped,
        ] {
            *figure /= n;
        }
        let of_told = |sum: f64| if found.long_run_told > 0.0 { sum / n / found.long_run_told } else { 1.0 };
        (found.long_run, found.totals_long_run) = (of_told(found.long_run), of_told(found.totals_long_run));
        found
    }

    /// The table at the end of the run.
    fn table(&self, run: &Run, found: &mut Found) {
        let table = IntervalTable::new(&run.windows, &run.functions, Confidence::default());
        found.this_run += holds(&table, |row| row.this_run, &run.realised);
        let is_told = f64::from(u8::from(table.inflation_is_known()));
        found.long_run_told += is_told;
        found.long_run += is_told * holds(&table, |row| row.long_run, &self.program.shares);
        self.totals(run, is_told, found);
        let samples = table.samples() as f64;
        for row in table.rows() {
            let plain = width(wilson(row.share * samples, samples, Confidence::default()));
            found.this_run_width += row.share * width(row.this_run) / plain;
            found.long_run_width += row.share * width(row.long_run) / plain;
        }
        found.misordered += f64::from(u8::from(self.is_misordered(&table)));
    }

    /// The table of functions that call each other in a row: each has its own time and that of all that come after it.
    fn totals(&self, run: &Run, is_told: f64, found: &mut Found) {
        let (mut sum, mut totals) = (BTreeMap::<u32, Part>::new(), Vec::new());
        for parts in run.functions.iter().rev() {
            for part in parts {
                let total = sum.entry(part.window).or_insert(Part { window: part.window, ..Part::default() });
                total.weight_ns += part.weight_ns;
                total.samples += part.samples;
            }
            totals.push(sum.values().copied().collect::<Vec<Part>>());
        }
        totals.reverse();
        let table = IntervalTable::new(&run.windows, &totals, Confidence::default());
        let summed = |shares: &[f64]| -> Vec<f64> {
            (0..shares.len()).map(|from| shares[from..].iter().sum::<f64>().min(1.0)).collect()
        };
        found.totals_this_run += holds(&table, |row| row.this_run, &summed(&run.realised));
        found.totals_long_run += is_told * holds(&table, |row| row.long_run, &summed(&self.program.shares));
    }

    fn is_misordered(&self, table: &IntervalTable) -> bool {
        table.order().windows(2).any(|pair| {
            let [above, below] = [pair[0], pair[1]];
            let wrong = self.program.shares[above] <= self.program.shares[below];
            wrong && !table.rows()[above].tied_with_next && table.rows()[below].samples > 0
        })
    }

    /// Simulates a watcher who checks once a second and stops when the goal is reached.
    fn watch(&self, run: &Run, found: &mut Found) {
        let per_second = (run.windows.len() as f64 / self.sampling.run_s).round().max(1.0) as usize;
        let (mut wrong, mut stopped) = (false, None);
        for windows in (per_second..=run.windows.len()).step_by(per_second) {
            let seen = run.until(windows);
            let table = IntervalTable::new(&seen.windows, &seen.functions, Confidence::default());
            let judged = self.goal.judge(&table);
            wrong |= judged.ratio < 1.0 && self.is_outside(&table, judged.ratio);
            if judged.converged && stopped.is_none() {
                stopped = Some(self.is_outside(&table, judged.ratio));
            }
        }
        found.peeked_wrong += f64::from(u8::from(wrong));
        found.stopped += f64::from(u8::from(stopped.is_some()));
        found.stopped_wrong += f64::from(u8::from(stopped == Some(true)));
    }

    fn is_outside(&self, table: &IntervalTable, ratio: f64) -> bool {
        let top =
            table.order().iter().take(self.goal.top).filter(|index| table.rows()[**index].share >= 0.01);
        top.into_iter().any(|index| {
            let seen = table.rows()[*index].share;
            (self.program.shares[*index] - seen).abs() > ratio * seen
        })
    }
}

impl Found {
    /// The standard error of a share of the runs.
    pub fn error(&self, share: f64) -> f64 {
        (share * (1.0 - share) / self.runs as f64).sqrt()
    }
}

/// 1 where all intervals of a table hold the truth, else 0.
fn holds(table: &IntervalTable, interval: fn(&Row) -> Interval, truth: &[f64]) -> f64 {
    let mut rows = table.rows().iter().zip(truth).filter(|(row, _)| row.samples > 0);
    f64::from(u8::from(rows.all(|(row, share)| interval(row).contains(*share))))
}

fn width(interval: Interval) -> f64 {
    interval.high - interval.low
}
