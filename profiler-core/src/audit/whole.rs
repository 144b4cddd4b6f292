//! A whole profile's ticks against its clock samples, before they are added up.
//!
//! The audit as it goes hardly ever alarms falsely, so it leaves what shows over a whole profile alone. Here a false alarm costs
//! some precision and nothing else, so more is asked.

/// False alarms per profile, at most.
const ALPHA: f64 = 0.01;
/// Shares may differ by so much, as they may in the audit: the tick does not see the work that it causes itself, and the clock, held up
/// by it, sees the more.
const TOLERANCE: f64 = 0.02;

/// What a function has of the samples of both.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Both {
    /// Ticks that hit it.
    pub ticks: u64,
    /// Samples of the clock that did.
    pub clock: u64,
}

/// Whether both hit the same functions as often, by all that can be said at the end.
///
/// Of n samples of the rarer source, k hits of a function with a share p of both together are too many, or too few, where the
/// probability is below exp(−n·KL(k/n, p)) (Chernoff) and that below α over twice the number of functions. Draws
/// without replacement, and samples that are spread more evenly than at random, are covered by the same bound.
pub fn agree(functions: &[Both]) -> bool {
    let sum = |of: fn(&Both) -> u64| functions.iter().map(of).sum::<u64>();
    let (ticks, clock) = (sum(|both| both.ticks), sum(|both| both.clock));
    if ticks == 0 || clock == 0 {
        return ticks == 0;
    }
    let limit = (2.0 * functions.len() as f64 / ALPHA).ln();
    functions.iter().all(|both| {
        let (k, n) = if clock <= ticks { (both.clock, clock) } else { (both.ticks, ticks) };
        let (seen, n) = (k as f64 / n as f64, n as f64);
        let share = (both.ticks + both.clock) as f64 / (ticks + clock) as f64;
        let expected = seen.clamp((share - TOLERANCE).max(0.0), (share + TOLERANCE).min(1.0));
        n * divergence(seen, expected) <= limit
    })
}

/// Kullback and Leibler's divergence of a coin of `p` from one of `q` (nats).
fn divergence(p: f64, q: f64) -> f64 {
    let term = |p: f64, q: f64| if p > 0.0 { p * (p / q).ln() } else { 0.0 };
    term(p, q) + term(1.0 - p, 1.0 - q)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(ticks: u64, clock: u64) -> Both {
        Both { ticks, clock }
    }

    #[test]
    fn equal_shares_agree_and_others_do_not() {
        assert!(agree(&[both(1_500, 180), both(1_000, 120)]));
        assert!(agree(&[both(1_500, 165), both(1_000, 135)]), "one and a half deviations");
        assert!(!agree(&[both(1_500, 120), both(1_000, 180)]));
        assert!(!agree(&[both(1_000, 1_200), both(0, 300)]), "the clock may be the faster one");
        assert!(agree(&[both(250_000, 30_000), both(0, 40)]), "what the tick causes itself");
    }

    #[test]
    fn without_the_clock_no_tick_is_believed() {
        assert!(!agree(&[both(100, 0)]));
        assert!(agree(&[both(0, 10)]) && agree(&[both(0, 0)]) && agree(&[]));
    }

    /// Fair draws, a thousand profiles: one in a hundred may be refused, and by Chernoff's bound fewer are.
    #[test]
    fn fair_profiles_are_refused_once_in_a_hundred_times_at_most() {
        let mut rng = fastrand::Rng::with_seed(8);
        let shares = [0.4, 0.25, 0.2, 0.1, 0.04, 0.01];
        let mut draw = |functions: &mut [Both], of: fn(&mut Both) -> &mut u64| {
            let mut left = rng.f64();
            let at = shares.iter().position(|share| {
                left -= share;
                left < 0.0
            });
            *of(&mut functions[at.unwrap_or(0)]) += 1;
        };
        let refused = (0..1_000)
            .filter(|_| {
                let mut functions = [Both::default(); 6];
                (0..1_250).for_each(|_| draw(&mut functions, |both| &mut both.ticks));
                (0..150).for_each(|_| draw(&mut functions, |both| &mut both.clock));
                !agree(&functions)
            })
            .count();
        assert!(refused <= 10, "{refused}");
    }
}
