//! The intervals of a whole profile: every function's share, joint over the table, for two questions.
//!
//! *This run*: what did the target do while it was watched? Samples at nearly equal distances know that better than as
//! many independent ones ([`super::successive_difference`]), never worse; as far as the windows show it, the interval
//! is narrower for it. *Long run*: what would another run show? There samples in bouts know less
//! ([`super::batch`]); n of them count as n/VIF.
//!
//! **Joint.** The error α is split over the functions, so that *all* intervals of the table hold together
//! (Bonferroni): one half of it by share, one half evenly. By share alone would be narrowest where the time is, and
//! hardly wider for the rest; but a function that was seen in few bouts may look large by chance, and would be given
//! more error just then. So the first half counts only as far as ten or more effective samples vouch for the share.
//!
//! **Uneven weights.** Samples of targets at different rates weigh differently. What a share of few heavy samples knows is
//! far less than Kish's count of all samples says, so each function's count is its own: n with p(1−p)/n =
//! ((1−2p)·Σ(own w²) + p²·Σw²)/W².
//!
//! **Few bouts.** The inflation of a function that was seen in few bouts is drawn towards that of all functions
//! together, and Student's score says how sure the inflation itself is. The interval is that of Clopper and Pearson on
//! effective counts, since Wilson's lower end fails where less than one is expected: with fifty functions, 10 s and
//! bouts of 500 ms it holds in 30% of the tables, this one in 98%. Visits are longer than they look in just those runs that seem to have
//! enough of them by chance; so of few visits the interval is up to √3 times as wide.
//!
//! **Regular programs.** One that goes through its functions in rounds does the same in each window, and what its samples scatter there is
//! their own error. So the interval of *this run* is as wide as that of the long run where the scatter is small, and systematic where it is
//! that of long bouts.
//!
//! **Limits.** Measured by `just coverage`. Functions that were not seen have no row. What a run cannot show, see [`super::batch`]: of fewer
//! than six windows or some thirty visits, or where no function comes and goes in five windows, it shows nothing of other runs, and nothing
//! is said of them. Intervals are for one look at the
//! table: see [`super::precision`] for many.

mod pool;

use pool::{Pool, PooledProfile, SeenFunction};

use super::batch::effective_samples;
use super::confidence::Confidence;
use super::interval::Interval;
use super::order::is_resolved;
use super::proportion::count_interval;
use super::successive_difference::realised_variance;

/// What was sampled in a span of the run, all functions together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WindowSums {
    /// Sum of the weights: CPU time (ns).
    pub weight_ns: f64,
    /// Samples.
    pub samples: u64,
    /// Sum of the squares of the samples' weights (ns²) where these differ much, as those of targets at different rates do; 0
    /// where all samples of the window weigh the same.
    pub squares_ns2: f64,
}

impl WindowSums {
    /// Σw² (ns²), never less than samples of equal weight have.
    pub(super) fn known_squares_ns2(&self) -> f64 {
        (self.weight_ns * self.weight_ns / self.samples as f64).max(self.squares_ns2)
    }
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
    /// As in [`WindowSums`], of the function's samples alone (ns²).
    pub squares_ns2: f64,
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
    /// Where the share of a *long run* lies: what another run would show. Unknown where this one does not show how much others differ from it.
    pub long_run: Interval,
    /// How much more the share varies from run to run than with independent samples (VIF); at least 1.
    pub inflation: f64,
    /// Whether nobody can say that this function's long-run share is above that of the next smaller one in the
    /// table; false for the smallest, and for functions without samples.
    pub tied_with_next: bool,
    /// Degrees of freedom of `inflation`.
    pub(super) freedom: f64,
    /// The function's part of the error α.
    pub(super) part: f64,
    /// Samples of equal weight that would know as much of this share, if they were independent.
    pub(super) independent: f64,
    /// Independent samples that know as much of the long run, the doubt about the inflation included.
    known: f64,
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
    inflation_is_known: bool,
}

impl IntervalTable {
    /// The table of the functions' parts in the windows; each function's parts sorted by window, each window at
    /// most once.
    ///
    /// Windows without samples, or whose weight is not a finite number above zero, are left out, and so are parts that
    /// contradict their window (negative, not finite, above it, out of order, of no window). A function without samples
    /// has [`Interval::UNKNOWN`].
    pub fn new<F: AsRef<[Part]>>(windows: &[WindowSums], functions: &[F], confidence: Confidence) -> Self {
        let profile = PooledProfile::new(windows, functions);
        let pool = Pool::of(&profile);
        let rows: Vec<Row> = profile.seen.iter().map(|seen| row(&profile, &pool, seen, confidence)).collect();
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by(|a, b| rows[*b].share.total_cmp(&rows[*a].share));
        let mut table = IntervalTable {
            rows,
            order,
            confidence,
            weight_ns: profile.weight_ns,
            samples: profile.windows.iter().map(|window| window.samples).fold(0, u64::saturating_add),
            inflation_is_known: !pool.is_unknown,
        };
        if !table.inflation_is_known {
            table.rows.iter_mut().for_each(|row| row.long_run = Interval::UNKNOWN);
        }
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

    /// Whether the run shows how much others differ from it: it has enough windows, and its bouts are short against it.
    pub fn inflation_is_known(&self) -> bool {
        self.inflation_is_known
    }

    /// Neighbours of which nobody can say which is above: a test on their effective counts, at half of both one's error. All of them,
    /// where it is not known how much other runs differ.
    fn mark_ties(&mut self) {
        for pair in self.order.windows(2) {
            let (above, below) = (self.rows[pair[0]], self.rows[pair[1]]);
            let confidence = self.confidence.part((above.part + below.part) / 2.0);
            let known = above.known.min(below.known);
            let resolved = is_resolved(above.share * known, below.share * known, confidence);
            self.rows[pair[0]].tied_with_next =
                above.samples > 0 && below.samples > 0 && !(self.inflation_is_known && resolved);
        }
    }
}

impl Row {
    const NOTHING: Row = Row {
        share: 0.0,
        samples: 0,
        this_run: Interval::UNKNOWN,
        long_run: Interval::UNKNOWN,
        inflation: 1.0,
        tied_with_next: false,
        freedom: 1.0,
        part: 0.0,
        independent: 0.0,
        known: 0.0,
    };

    /// The inflation as it enters an interval: the part above 1 is uncertain itself, hence Student's score over the
    /// normal one.
    fn widened(&self, confidence: Confidence) -> f64 {
        if self.inflation <= 1.0 {
            return 1.0;
        }
        let wider = confidence.student_score(self.freedom) / confidence.normal_score();
        1.0 + (self.inflation - 1.0) * wider * wider
    }
}

fn row(profile: &PooledProfile, pool: &Pool, seen: &SeenFunction, confidence: Confidence) -> Row {
    let (p, n) = (seen.share, profile.knows(seen));
    if seen.samples == 0 || !n.is_finite() || p <= 0.0 {
        return Row { samples: seen.samples, ..Row::NOTHING };
    }
    let (inflation, freedom) = pool.inflation(profile, seen);
    let part = pool.part(p, n);
    let mut row =
        Row { share: p, samples: seen.samples, inflation, freedom, part, independent: n, ..Row::NOTHING };
    let own = confidence.part(part);
    let realised = realised_variance(&profile.windows, profile.weight_ns, n, &seen.parts, &seen.squares_ns2);
    row.known = effective_samples(n, pool.caution * row.widened(own));
    let systematic = (p * (1.0 - p) / realised).max(n); // NaN where nothing else was seen: n
    let knows = systematic * (row.known.min(systematic) / systematic).powf(pool.regularity());
    Row { this_run: count_interval(p, knows, own), long_run: count_interval(p, row.known, own), ..row }
}

#[cfg(test)]
mod tests;
