//! What a sample costs besides the kernel's handler, estimated from the handler's time: the interrupt, the
//! handler and the program after them find the same caches. Where samples are rare or the program uses the
//! caches itself, all of them take longer.
//!
//! On a virtual machine, measured in turns of some milliseconds, with a sample every .1 to 1 ms, the rest took
//! 6.5 to 7.9 times as long as the handler, whether the program computed or waited for memory, and whether the
//! host was idle (2.8 µs of handler) or busy (5.8 µs). Samples every 4 to 10 ms found the handler's code out of
//! the caches: it took 9 to 12 µs, and the rest 3.6 to 6.5 times as much. So the rest grows by .8 of the share by
//! which the handler does, up to somewhat more than twice the time.
//!
//! Calibration and field use the same estimate of the handler's time, because these times are skewed.

use serde::{Deserialize, Serialize};

use super::cost::Cost;

/// Expected growth of the rest of a sample, relative to the growth of its handler, with its standard deviation.
const GROWTH: f64 = 0.8;
const GROWTH_SE: f64 = 0.25;
/// Share by which programs' samples scatter around the line.
const UNEXPLAINED: f64 = 0.04;
/// Range of handler times, relative to the warm handler, in which the rest follows the handler; outside of it the rest is
/// assumed constant.
const MET: (f64, f64) = (0.5, 2.3);

/// How the rest of a sample follows its handler.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CacheSensitivity {
    /// The handler in a program that leaves the caches to the kernel, for a sample without its stack.
    pub handler_ns: Cost,
    /// The handler's time for each frame walked.
    pub frame_ns: Cost,
    /// The handler's time for each byte of stack copied.
    pub byte_ns: Cost,
    /// The part of such a sample outside of the handler.
    pub outside_ns: Cost,
    /// Relative growth of the rest over relative growth of the handler: 1 if both grow alike.
    pub growth: f64,
    /// Its standard error.
    pub growth_se: f64,
}

/// Samples of one kind, as measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleKind {
    /// What one costs.
    pub sample: Cost,
    /// The part of it that the handler takes.
    pub handler: Cost,
    /// Frames walked in it.
    pub frames: f64,
}

impl SampleKind {
    fn outside(&self) -> Cost {
        let outside_ns = self.sample.mean_ns - self.handler.mean_ns;
        Cost::new(outside_ns.max(0.0), self.sample.se_ns.hypot(self.handler.se_ns))
    }
}

impl CacheSensitivity {
    /// From samples of several kinds, and the handler's costs for a sample, a frame and a byte in the warmest kind. No
    /// kind copies stacks. `None` without a kind that costs something.
    ///
    /// A line through the kinds, by least squares; its slope has a prior, so that one kind is enough.
    pub fn fit(kinds: &[SampleKind], [handler_ns, frame_ns, byte_ns]: [Cost; 3]) -> Option<CacheSensitivity> {
        let start = CacheSensitivity {
            handler_ns,
            frame_ns,
            byte_ns,
            outside_ns: Cost::default(),
            growth: GROWTH,
            growth_se: GROWTH_SE,
        };
        let known = kinds.iter().filter(|kind| kind.handler.mean_ns > 0.0 && kind.outside().mean_ns > 0.0);
        let points: Vec<Point> = known.map(|kind| start.point(kind)).collect();
        let warm_ns = mean(&points, |point| point.outside_ns / (1.0 + GROWTH * point.colder))?;
        // a + b·x, where b is expected to be GROWTH·a.
        let prior = (GROWTH_SE * warm_ns).powi(-2);
        let mut sums = [0.0, 0.0, prior, 0.0, prior * GROWTH * warm_ns];
        for point in &points {
            let (w, x, y) = (point.weight(), point.colder, point.outside_ns);
            for (sum, term) in sums.iter_mut().zip([w, w * x, w * x * x, w * y, w * x * y]) {
                *sum += term;
            }
        }
        let [w, wx, wxx, wy, wxy] = sums;
        let determinant = w * wxx - wx * wx;
        let (a, b) = ((wy * wxx - wxy * wx) / determinant, (w * wxy - wx * wy) / determinant);
        let fitted = CacheSensitivity {
            outside_ns: Cost::new(a, (wxx / determinant).sqrt()),
            growth: (b / a).max(0.0),
            growth_se: (w / determinant).sqrt() / a,
            ..start
        };
        fitted.is_plausible().then_some(fitted)
    }

    /// What a sample costs whose handler takes `handler`, with `frames` walked and `bytes` copied.
    pub(super) fn sample(&self, handler: Cost, frames: f64, bytes: f64) -> Cost {
        let (warm, colder) = (self.warm(frames, bytes), self.colder(handler.mean_ns, frames, bytes));
        let warm_ns = warm.mean_ns.max(1.0);
        let outside_ns = self.outside_ns.mean_ns * (1.0 + self.growth * colder).max(0.0);
        let per_handler = self.outside_ns.mean_ns * self.growth / warm_ns;
        let errors = [
            self.outside_ns.se_ns,
            self.outside_ns.mean_ns * colder * self.growth_se,
            UNEXPLAINED * outside_ns,
            per_handler * warm.se_ns,
            (1.0 + per_handler) * handler.se_ns, // what the handler is off by, the rest is off by with it
        ];
        let se_ns = errors.iter().map(|error| error * error).sum::<f64>().sqrt();
        Cost::new(outside_ns + handler.mean_ns, se_ns)
    }

    /// Whether these figures are possible for a machine.
    pub(super) fn is_plausible(&self) -> bool {
        let costs = [self.handler_ns, self.frame_ns, self.byte_ns, self.outside_ns];
        costs.iter().all(|cost| cost.is_valid())
            && self.handler_ns.mean_ns > 0.0
            && self.outside_ns.mean_ns > 0.0
            && (0.0..10.0).contains(&self.growth)
            && (0.0..10.0).contains(&self.growth_se)
    }

    fn warm(&self, frames: f64, bytes: f64) -> Cost {
        self.handler_ns.plus(frames, self.frame_ns).plus(bytes, self.byte_ns)
    }

    /// By what share a handler takes more than the warm one.
    fn colder(&self, handler_ns: f64, frames: f64, bytes: f64) -> f64 {
        let warm_ns = self.warm(frames, bytes).mean_ns.max(1.0);
        (handler_ns / warm_ns).clamp(MET.0, MET.1) - 1.0
    }

    fn point(&self, kind: &SampleKind) -> Point {
        let outside = kind.outside();
        let warm_ns = self.warm(kind.frames, 0.0).mean_ns.max(1.0);
        let by_handler_ns = GROWTH * outside.mean_ns * kind.handler.se_ns / warm_ns;
        let se_ns = outside.se_ns.hypot(by_handler_ns).hypot(UNEXPLAINED * outside.mean_ns);
        Point {
            colder: self.colder(kind.handler.mean_ns, kind.frames, 0.0),
            outside_ns: outside.mean_ns,
            se_ns,
        }
    }
}

/// Samples of one kind: by how much they are colder than the warmest, and their cost outside of the handler.
struct Point {
    colder: f64,
    outside_ns: f64,
    se_ns: f64,
}

impl Point {
    fn weight(&self) -> f64 {
        self.se_ns.max(1.0).powi(-2)
    }
}

fn mean(points: &[Point], of: impl Fn(&Point) -> f64) -> Option<f64> {
    let weights: f64 = points.iter().map(Point::weight).sum();
    let sum: f64 = points.iter().map(|point| point.weight() * of(point)).sum();
    (weights > 0.0).then(|| sum / weights).filter(|mean| *mean > 0.0 && mean.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WARM: [Cost; 3] = [Cost::new(2_500.0, 10.0), Cost::new(50.0, 1.0), Cost::new(0.1, 0.01)];

    fn kind(colder: f64, growth: f64, se_ns: f64) -> SampleKind {
        let (handler_ns, frames) = ((2_500.0 + 5.0 * 50.0) * (1.0 + colder), 5.0);
        let outside_ns = 12_500.0 * (1.0 + growth * colder);
        SampleKind {
            sample: Cost::new(outside_ns + handler_ns, se_ns),
            handler: Cost::new(handler_ns, 10.0),
            frames,
        }
    }

    #[test]
    fn kinds_that_are_known_well_decide_and_one_alone_leaves_the_prior() {
        for growth in [0.3, 0.55, 0.9] {
            let kinds = [0.0, 0.1, 0.3, 0.6].map(|colder| kind(colder, growth, 100.0));
            let fitted = CacheSensitivity::fit(&kinds, WARM).unwrap();
            assert!((fitted.outside_ns.mean_ns / 12_500.0 - 1.0).abs() < 0.02, "{fitted:?}");
            assert!((fitted.growth - growth).abs() < 1.5 * fitted.growth_se, "{fitted:?}");
            assert!(fitted.growth_se < 0.6 * GROWTH_SE, "{fitted:?}");
        }
        let alone = CacheSensitivity::fit(&[kind(0.0, 3.0, 300.0)], WARM).unwrap();
        assert!((alone.outside_ns.mean_ns - 12_500.0).abs() < 1.0, "{alone:?}");
        assert!((alone.growth - GROWTH).abs() < 1e-6 && alone.growth_se >= 0.99 * GROWTH_SE, "{alone:?}");
        assert_eq!(CacheSensitivity::fit(&[], WARM), None);
    }

    #[test]
    fn a_colder_handler_is_a_dearer_sample_as_far_as_was_met() {
        let cold =
            CacheSensitivity::fit(&[kind(0.0, GROWTH, 100.0), kind(0.4, GROWTH, 100.0)], WARM).unwrap();
        let at = |factor: f64| cold.sample(Cost::new(factor * 4_000.0, 20.0), 10.0, 10_000.0);
        assert!((at(1.0).mean_ns / 16_500.0 - 1.0).abs() < 0.01, "{:?}", at(1.0));
        let expected_ns = 12_500.0 * (1.0 + 0.3 * GROWTH) + 1.3 * 4_000.0;
        assert!((at(1.3).mean_ns / expected_ns - 1.0).abs() < 0.01, "{:?}", at(1.3));
        assert!((at(9.0).mean_ns - at(MET.1).mean_ns - (9.0 - MET.1) * 4_000.0).abs() < 1e-6);
        assert!(at(1.8).se_ns > at(1.0).se_ns && at(1.0).se_ns > UNEXPLAINED * 12_000.0);
        // Where nothing is known of the handler, nothing is known of the rest.
        assert!(cold.sample(Cost::new(4_000.0, 1_000.0), 10.0, 10_000.0).se_ns > 2_000.0);
    }

    #[test]
    fn what_cannot_be_is_none() {
        let no_number = SampleKind { sample: Cost::new(f64::NAN, 1.0), ..kind(0.0, 1.0, 1.0) };
        assert_eq!(CacheSensitivity::fit(&[no_number], WARM), None);
        let cheaper = SampleKind { sample: Cost::new(100.0, 1.0), ..kind(0.0, 1.0, 1.0) };
        assert_eq!(CacheSensitivity::fit(&[cheaper], WARM), None);
        let fitted = CacheSensitivity::fit(&[kind(0.0, 1.0, 1.0)], WARM).unwrap();
        assert!(fitted.is_plausible());
        assert!(!CacheSensitivity { growth: f64::NAN, ..fitted }.is_plausible());
        assert!(!CacheSensitivity { outside_ns: Cost::new(-1.0, 1.0), ..fitted }.is_plausible());
    }
}
