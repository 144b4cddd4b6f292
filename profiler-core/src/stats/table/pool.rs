//! What the functions of a profile know together about how its samples hang together.

use super::super::batch::Batches;
use super::{Part, WindowSums};

/// Degrees of freedom that the inflation of all functions weighs against that of one.
const POOL_FREEDOM: f64 = 8.0;
/// Visits that an effective sample is worth: exponential visits of mean length b inflate by 2b·rate.
const VISITS_PER_SAMPLE: f64 = 2.0;
/// A run of fewer visits does not show how long they are, and so nothing of another run.
const FEWEST_VISITS: f64 = 32.0;
/// Nor does one in which no function comes and goes in so many windows: that may be one visit after another, and a short one so far.
const FEWEST_APPEARANCES: f64 = 5.0;
/// Where there seem to be just [`FEWEST_VISITS`], they may well be fewer: other runs may scatter so much more than this one shows. Where
/// there are twice as many, no more.
const FEW_MISLEAD: f64 = 3.0;
/// A program is regular that scatters by less than the first more than independent samples do, and none that does by the second.
const REGULAR: (f64, f64) = (3.0, 5.0);
/// Functions are of different kinds: their inflation in common is worth so much of the freedom it would have.
const COMMON: f64 = 0.5;
/// Effective samples that vouch for a share.
const VOUCHERS: f64 = 10.0;

/// The windows and functions of a run, as far as they make sense.
pub(super) struct PooledProfile {
    pub(super) windows: Vec<WindowSums>,
    pub(super) batches: Batches,
    /// Sum of all windows (ns).
    pub(super) weight_ns: f64,
    /// Samples of equal weight that would know as much (Kish): where the rate was low, a sample stands for more.
    pub(super) effective: f64,
    pub(super) seen: Vec<SeenFunction>,
}

/// A function as it was seen.
pub(super) struct SeenFunction {
    pub(super) samples: u64,
    pub(super) share: f64,
    /// Windows and weights (ns).
    pub(super) parts: Vec<(usize, f64)>,
    /// Sums of the squares of its samples' weights (ns²), for each of these; 0 where they are the window's share of its own.
    pub(super) squares_ns2: Vec<f64>,
    /// Variance of the share by length of the batches.
    variances: Vec<f64>,
}

impl PooledProfile {
    pub(super) fn new<F: AsRef<[Part]>>(windows: &[WindowSums], functions: &[F]) -> Self {
        let sound =
            |window: &WindowSums| window.weight_ns > 0.0 && window.weight_ns < 1e100 && window.samples > 0;
        let mut sound_windows = Vec::with_capacity(windows.len());
        let places: Vec<Option<usize>> = windows
            .iter()
            .map(|window| {
                let place = sound(window).then_some(sound_windows.len());
                sound_windows.extend(place.map(|_| *window));
                place
            })
            .collect();
        let weight_ns: f64 = sound_windows.iter().map(|window| window.weight_ns).sum();
        let squares: f64 = sound_windows.iter().map(WindowSums::known_squares_ns2).sum();
        let mut profile = PooledProfile {
            batches: Batches::new(&sound_windows),
            windows: sound_windows,
            weight_ns,
            effective: weight_ns * weight_ns / squares,
            seen: Vec::new(),
        };
        profile.seen = functions.iter().map(|parts| profile.seen(parts.as_ref(), &places)).collect();
        profile
    }

    fn seen(&self, parts: &[Part], places: &[Option<usize>]) -> SeenFunction {
        let (mut samples, mut weight_ns, mut kept) = (0u64, 0.0, Vec::with_capacity(parts.len()));
        let mut squares_ns2 = Vec::with_capacity(parts.len());
        for part in parts {
            let Some(Some(place)) = places.get(part.window as usize) else { continue };
            let follows = kept.last().is_none_or(|(last, _)| last < place);
            // Sums of the same weights in another order may differ in the last digits.
            let fits =
                part.weight_ns >= 0.0 && part.weight_ns <= self.windows[*place].weight_ns * (1.0 + 1e-9);
            if follows && fits && part.samples > 0 {
                samples = samples.saturating_add(part.samples);
                weight_ns += part.weight_ns;
                kept.push((*place, part.weight_ns));
                squares_ns2.push(own_squares_ns2(&self.windows[*place], part));
            }
        }
        let share = if weight_ns > 0.0 { (weight_ns / self.weight_ns).min(1.0) } else { 0.0 };
        let variances = self.batches.variances(&kept);
        SeenFunction { samples, share, variances, parts: kept, squares_ns2 }
    }

    /// Samples of equal weight that would know as much of this function's share, if they were independent; never more than know
    /// as much of the whole.
    pub(super) fn knows(&self, seen: &SeenFunction) -> f64 {
        let (p, own_ns2): (f64, f64) = (seen.share, seen.squares_ns2.iter().sum());
        let all_ns2 = self.weight_ns * self.weight_ns / self.effective;
        // (1−2p)·own + p²·all, without the difference of large numbers where p is nearly 1.
        let variance_ns2 = (1.0 - p).powi(2) * own_ns2 + p * p * (all_ns2 - own_ns2).max(0.0);
        let own = p * (1.0 - p) * self.weight_ns * self.weight_ns / variance_ns2;
        if own.is_finite() && own > 0.0 { own.min(self.effective) } else { self.effective }
    }

    /// In how many windows a function was seen, or others where it has more than half of the time; windows with little of that count for
    /// less (Kish).
    fn appearances(&self, seen: &SeenFunction) -> f64 {
        let (mut sum, mut squares, mut product) = (0.0, 0.0, 0.0);
        for (place, weight_ns) in &seen.parts {
            sum += weight_ns;
            squares += weight_ns * weight_ns;
            product += weight_ns * self.windows[*place].weight_ns;
        }
        if seen.share > 0.5 {
            let all: f64 = self.windows.iter().map(|window| window.weight_ns * window.weight_ns).sum();
            sum = self.weight_ns - sum;
            squares += all - 2.0 * product;
        }
        if sum > 0.0 && squares > 0.0 { sum * sum / squares } else { 0.0 }
    }

    /// The variance of a function's share if samples were independent.
    fn binomial(&self, seen: &SeenFunction) -> f64 {
        seen.share * (1.0 - seen.share) / self.knows(seen)
    }
}

/// The sum of the squares of a function's weights in a window (ns²): as if its samples were like all others where nobody says that
/// they are not.
fn own_squares_ns2(window: &WindowSums, part: &Part) -> f64 {
    if part.squares_ns2 > 0.0 && part.squares_ns2.is_finite() {
        part.squares_ns2
    } else {
        window.known_squares_ns2() * part.weight_ns / window.weight_ns
    }
}

/// What is common to all functions.
pub(super) struct Pool {
    inflation: f64,
    freedom: f64,
    /// Functions that were seen.
    functions: f64,
    /// The sum of their shares: above 1 where they hold each other, as those on one stack do.
    shares: f64,
    /// By how much more the shares of another run may vary than the inflation says, as visits were few: 1 to [`FEW_MISLEAD`].
    pub(super) caution: f64,
    /// Whether other runs may differ by more than this one can show.
    pub(super) is_unknown: bool,
}

impl Pool {
    pub(super) fn of(profile: &PooledProfile) -> Self {
        let batches = &profile.batches;
        let mut variances = Vec::new();
        for seen in &profile.seen {
            variances.resize(seen.variances.len(), 0.0);
            variances.iter_mut().zip(&seen.variances).for_each(|(sum, variance)| *sum += variance);
        }
        let binomial: f64 = profile.seen.iter().map(|seen| profile.binomial(seen)).sum();
        let inflation = batches.pooled(&variances, binomial);
        let concentration: f64 = profile.seen.iter().map(|seen| seen.share * seen.share).sum();
        let comparisons = (1.0 / concentration - 1.0).max(1.0) * batches.most().saturating_sub(1) as f64;
        let visits = VISITS_PER_SAMPLE * profile.effective / inflation;
        let functions = profile.seen.iter().filter(|seen| seen.share > 0.0).count();
        let appearances = profile.seen.iter().map(|seen| profile.appearances(seen)).fold(0.0, f64::max);
        let is_long = batches.most() > 0
            && functions > 1
            && visits >= FEWEST_VISITS
            && appearances >= FEWEST_APPEARANCES;
        Pool {
            inflation,
            freedom: (COMMON * comparisons.min(visits)).max(1.0),
            functions: functions as f64,
            shares: profile.seen.iter().map(|seen| seen.share).sum::<f64>().max(1.0),
            caution: (FEW_MISLEAD - (FEW_MISLEAD - 1.0) * (visits / FEWEST_VISITS - 1.0))
                .clamp(1.0, FEW_MISLEAD),
            is_unknown: !is_long || batches.still_grow(&variances, binomial),
        }
    }

    /// A function's inflation, the mean of its own and the common one by what each is worth, and the degrees of freedom of
    /// that mean (Satterthwaite).
    pub(super) fn inflation(&self, profile: &PooledProfile, seen: &SeenFunction) -> (f64, f64) {
        let own = profile.batches.inflation(&seen.variances, profile.binomial(seen));
        let rarer = seen.share.min(1.0 - seen.share);
        let visits = VISITS_PER_SAMPLE * profile.effective / own.factor * rarer;
        let freedom = visits.min(own.batches.saturating_sub(1) as f64);
        let weight = freedom / (freedom + POOL_FREEDOM);
        let mean = weight * own.factor + (1.0 - weight) * self.inflation;
        let doubt = weight / (freedom + POOL_FREEDOM) + (1.0 - weight).powi(2) / self.freedom; // w²/f = w/(f+8)
        (mean.max(1.0), (1.0 / doubt).max(1.0))
    }

    /// From 0 to 1: how likely it is that the program does the same in each window, so that all scatter between windows is the samples' own
    /// and makes *this run* as unsure as another.
    ///
    /// A program that goes through its functions in rounds does. Rounds that nearly meet the sampling period raise the scatter, up to twice. A
    /// program that stays in its functions for long scatters by more, and by itself.
    pub(super) fn regularity(&self) -> f64 {
        ((REGULAR.1 - self.inflation) / (REGULAR.1 - REGULAR.0)).clamp(0.0, 1.0)
    }

    /// A function's part of the error: one half by share, as far as effective samples vouch for it, one half evenly.
    pub(super) fn part(&self, share: f64, samples: f64) -> f64 {
        let known = share * samples / self.inflation / VOUCHERS;
        let vouched = if known.is_finite() { known * known / (1.0 + known * known) } else { 1.0 };
        0.5 / self.functions + 0.5 * share / self.shares * vouched
    }
}
