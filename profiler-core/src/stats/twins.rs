//! A stopwatch for noisy machines: two processes take short turns at the same work on one CPU, and one of them is
//! sampled. What else happens happens to both, so their difference is what sampling costs.
//!
//! Runs one after the other differ by percents on a shared machine; of twins the difference is known to hundredths of
//! a percent after some seconds.
//!
//! It can only judge events of threads: those of whole CPUs interrupt both twins (`just steps` judges these).

/// Turns whose sum is one observation.
pub const BLOCK_TURNS: usize = 25;
/// Fewest blocks that tell how much they scatter.
const FEWEST_BLOCKS: usize = 10;
/// A turn that takes so many times what those around it took was disturbed by something else than samples.
const DISTURBED: f64 = 1.25;
/// How many turns before and after a turn are those around it.
const AROUND: usize = 5;

/// One turn of each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Turn {
    /// CPU time of the twin that nobody samples (s).
    pub twin_s: f64,
    /// CPU time of the other, for the same work (s).
    pub process_s: f64,
}

/// What the process took more than its twin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Excess {
    /// As a ratio to the twin's time.
    pub ratio: f64,
    /// Its standard error.
    pub se: f64,
}

/// What the process took more than its twin. `None` of too few turns.
///
/// The error is that of the differences between blocks of turns that follow one another: a sampler that starts or ends
/// within is no noise.
pub fn excess(turns: &[Turn]) -> Option<Excess> {
    let calm: Vec<Turn> = undisturbed(turns).into_iter().map(|at| turns[at]).collect();
    let blocks: Vec<f64> = calm.chunks_exact(BLOCK_TURNS).map(beyond).collect();
    if blocks.len() < FEWEST_BLOCKS {
        return None;
    }
    let squares: f64 = blocks.windows(2).map(|pair| (pair[1] - pair[0]).powi(2)).sum();
    let variance = squares / (2 * (blocks.len() - 1)) as f64;
    let se = (variance / blocks.len() as f64).sqrt();
    let ratio = beyond(&calm);
    (ratio.is_finite() && se.is_finite()).then_some(Excess { ratio, se })
}

fn beyond(turns: &[Turn]) -> f64 {
    let sum_s = |time: fn(&Turn) -> f64| turns.iter().map(time).sum::<f64>();
    sum_s(|turn| turn.process_s) / sum_s(|turn| turn.twin_s) - 1.0
}

/// Which turns were disturbed by nothing but samples, in either process, in order.
pub fn undisturbed(turns: &[Turn]) -> Vec<usize> {
    let is_calm = |at: usize, time: fn(&Turn) -> f64| {
        let around = &turns[at.saturating_sub(AROUND)..(at + AROUND + 1).min(turns.len())];
        time(&turns[at]) < DISTURBED * median(around.iter().map(time).collect())
    };
    let both = |at: &usize| is_calm(*at, |turn| turn.twin_s) && is_calm(*at, |turn| turn.process_s);
    (0..turns.len()).filter(both).collect()
}

fn median(mut times_s: Vec<f64>) -> f64 {
    times_s.sort_by(f64::total_cmp);
    let n = times_s.len();
    0.5 * (times_s[n / 2] + times_s[(n - 1) / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns of 4 ms; the process takes `excess` more, and either is disturbed now and then.
    fn turns(n: usize, excess: f64) -> Vec<Turn> {
        let mut random = fastrand::Rng::with_seed(5);
        let mut took = |excess: f64| {
            let disturbed = if random.f64() < 0.002 { 1.0 + random.f64() } else { 1.0 };
            0.004 * disturbed * (1.0 + excess) * (1.0 + 0.01 * (random.f64() - 0.5))
        };
        (0..n).map(|_| Turn { twin_s: took(0.0), process_s: took(excess) }).collect()
    }

    #[test]
    fn a_small_excess_is_seen_beneath_disturbances() {
        for wanted in [0.0, 0.01, 0.1] {
            let found = excess(&turns(2_500, wanted)).unwrap();
            assert!((found.ratio - wanted).abs() < 4.0 * found.se && found.se < 0.002, "{found:?}");
        }
    }

    #[test]
    fn of_too_little_or_of_no_numbers_nothing_is_said() {
        assert_eq!(excess(&turns(9 * BLOCK_TURNS, 0.01)), None);
        assert_eq!(excess(&[]), None);
        assert_eq!(excess(&[Turn { twin_s: f64::NAN, process_s: 1.0 }; 1_000]), None);
        assert_eq!(excess(&[Turn { twin_s: 0.0, process_s: 0.0 }; 1_000]), None);
    }
}
