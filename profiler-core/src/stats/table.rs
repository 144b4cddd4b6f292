//! The intervals of a whole profile: every function's share, joint over the table.

use super::confidence::Confidence;
use super::interval::{Interval, share_interval};

/// What was sampled in a span of the run, all functions together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Window {
    /// Sum of the weights: CPU time (ns).
    pub weight_ns: f64,
    /// Samples.
    pub samples: u64,
}

/// What a function has of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Part {
    /// Index of the window.
    pub window: u32,
    /// Sum of the function's weights in it (ns).
    pub weight_ns: f64,
    /// The function's samples in it.
    pub samples: u64,
}

/// How sure the share of one function is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// The share that was seen: weight over all weight; 0 where there is none.
    pub share: f64,
    /// The function's samples.
    pub samples: u64,
    /// Where the share of *this run* lies: what the target really did while it was watched.
    pub this_run: Interval,
    /// Where the share of a *long run* lies: what another run would show.
    pub long_run: Interval,
    /// How much more the share varies from run to run than with independent samples (VIF); at least 1.
    pub inflation: f64,
    /// Whether nobody can say that this function's long-run share is above that of the next smaller one in the
    /// table; false for the smallest.
    pub tied_with_next: bool,
}

/// The intervals of all functions of a profile: with the given confidence *all* of them hold, for each of the
/// two questions.
#[derive(Clone, Debug, PartialEq)]
pub struct IntervalTable {
    rows: Vec<Row>,
    order: Vec<usize>,
    confidence: Confidence,
    weight_ns: f64,
    samples: u64,
}

impl IntervalTable {
    /// The table of the functions' parts in the windows; each function's parts sorted by window, each window at
    /// most once.
    ///
    /// Parts that contradict their window (negative, not finite, above it, of no window) are left out.
    pub fn new<F: AsRef<[Part]>>(windows: &[Window], functions: &[F], confidence: Confidence) -> Self {
        let weight_ns: f64 = windows.iter().map(|window| window.weight_ns).sum();
        let samples = windows.iter().map(|window| window.samples).fold(0, u64::saturating_add);
        let rows: Vec<Row> =
            functions.iter().map(|parts| row(windows, parts.as_ref(), samples, confidence)).collect();
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by(|a, b| rows[*b].share.total_cmp(&rows[*a].share));
        let mut table = IntervalTable { rows, order, confidence, weight_ns, samples };
        table.mark_ties();
        table
    }

    /// A row for each function, in the order in which the functions were given.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The functions' indices, the largest share first; equal ones in the order given.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// The level at which all intervals hold together.
    pub fn confidence(&self) -> Confidence {
        self.confidence
    }

    /// All samples of the windows.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// All weight of the windows: CPU time (ns).
    pub fn weight_ns(&self) -> f64 {
        self.weight_ns
    }

    fn mark_ties(&mut self) {
        for pair in self.order.windows(2) {
            let (above, below) = (self.rows[pair[0]].long_run, self.rows[pair[1]].long_run);
            self.rows[pair[0]].tied_with_next = above.low <= below.high;
        }
    }
}

fn row(windows: &[Window], parts: &[Part], samples: u64, confidence: Confidence) -> Row {
    let mut pairs: Vec<(f64, f64)> = windows.iter().map(|window| (0.0, window.weight_ns)).collect();
    for part in parts {
        if let Some(pair) = pairs.get_mut(part.window as usize) {
            pair.0 = part.weight_ns;
        }
    }
    let (x, total) = pairs.iter().fold((0.0, 0.0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
    let share = if total > 0.0 { (x / total).clamp(0.0, 1.0) } else { 0.0 };
    let level = confidence.part(share.max(0.001)).level();
    Row {
        share,
        samples: parts.iter().map(|part| part.samples).fold(0, u64::saturating_add),
        this_run: share_interval(&[(x, total)], samples, level),
        long_run: share_interval(&pairs, samples, level),
        inflation: super::interval::variance_inflation(&pairs, samples),
        tied_with_next: false,
    }
}
