//! The law for two sources of samples: a cheap one of a given rate, and one that is dearer and as fast as one likes.
//!
//! The kernel's own tick brings up to HZ samples a CPU-second that interrupt nobody anew, for o_t each; a clock brings any
//! number, for o_c > o_t each. Of the clock's, a samples a CPU-second audit the tick, and are not given up. For λ samples in
//! all, the least bias takes the ticks first:
//!
//! ```text
//! λ_c = a + max(0, λ − a − HZ)        λ_t = min(HZ, λ − a)
//! bias(λ) = κc·(λ_t·o_t + λ_c·o_c)    deviation(λ) = S / √(λ·R·W)
//! ```
//!
//! The bias consists of two straight pieces, of slope m = o_t up to a + HZ and m = o_c beyond. Every criterion is an error
//! sd·g(u) with u = bias/sd, g being that of N(u, 1); so on each piece it is least where
//!
//! ```text
//! 2·m·λ·g′(u) = sd·(g(u) − u·g′(u))
//! ```
//!
//! whose left side grows with λ and whose right side falls. With one source u is m·λ/sd, and the root is u = r of the
//! [`Criterion`]. With two, the line of the second piece does not pass through the origin: the ticks were cheaper than
//! its slope says. For the upper curve g′ is 1 and g − u·g′ is z, whatever u is, so that
//!
//! ```text
//! λ_t = min(HZ, λ*(o_t))              λ_c = max(0, λ*(o_c) − HZ)        (a = 0)
//! ```
//!
//! exactly. The other criteria take more of the clock than that: what the ticks left of the bias weighs less beside the
//! deviation. Between λ*(o_c) and λ*(o_t), where HZ lies, is a corner: all ticks, and no sample of the clock beyond a.
//!
//! The caps cut the same path: a sample of the tick is cheaper for the budget, too. Where the caps or a long horizon leave
//! the audit as dear as what the ticks bring, the clock alone does better, and is taken ([`Mix::tick_hz`] is 0).

use statrs::distribution::{Continuous, ContinuousCDF, Normal};

use super::caps::BoundBy;
use super::criterion::Criterion;
use super::error::ModelError;
use super::law::Law;

/// Halvings of an interval of rates: more than a double has bits.
const HALVINGS: usize = 80;
/// No path leads beyond (samples per CPU-second): a sample each nanosecond.
const END_HZ: f64 = 1e9;

/// The cheap source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tick {
    /// HZ: samples per CPU-second that it brings at most.
    pub hz: f64,
    /// o_t: what a sample of it charges to the target (s).
    pub overhead_s: f64,
    /// Standard error of `overhead_s` (s); it matters to a law that compensates.
    pub overhead_se_s: f64,
    /// a: samples of the clock per CPU-second that audit it.
    pub audit_hz: f64,
}

/// What two sources may cost and bring, all per CPU-second of the target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MixCaps {
    /// What the samples of both may cost together (ratio of CPU time).
    pub budget_ratio: f64,
    /// What a sample of the tick takes of it (s).
    pub tick_s: f64,
    /// What a sample of the clock takes of it (s).
    pub clock_s: f64,
    /// The shortest period of the clock that the kernel is asked for, as a rate.
    pub kernel_hz: f64,
    /// Samples that rings and unwinder can take.
    pub bytes_hz: f64,
}

/// How often to sample with each of two sources (samples per CPU-second of the target).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// λ_t; 0 where the tick is not worth its audit.
    pub tick_hz: f64,
    /// λ_c.
    pub clock_hz: f64,
    /// λ_t + λ_c without caps.
    pub unbounded_hz: f64,
    /// What sets the sum.
    pub bound_by: BoundBy,
}

/// Bias and deviation by the number of samples, along the path that takes the cheapest first.
struct Path {
    criterion: Criterion,
    tick_hz: f64,
    audit_hz: f64,
    /// Bias that a sample of each adds per unit of rate (s).
    tick_s: f64,
    clock_s: f64,
    /// Deviation of a profile of one sample a CPU-second.
    deviation: f64,
}

impl Law {
    /// The best rates of two sources within the caps; this law's o is the clock's. A tick that costs as much as the
    /// clock, or brings nothing, is not used.
    ///
    /// # Errors
    /// As [`Law::rate_hz`].
    pub fn mix(&self, tick: &Tick, caps: &MixCaps) -> Result<Mix, ModelError> {
        let alone = Path::new(self, &Tick { hz: 0.0, audit_hz: 0.0, ..*tick })?;
        let both = Path::new(self, tick)?;
        let (alone_hz, both_hz) = (alone.best_hz(), both.best_hz());
        let (clock, with_tick) = (alone.within(alone_hz, caps), both.within(both_hz, caps));
        let gains = both.tick_hz > 0.0 && both.error(&with_tick) < alone.error(&clock);
        Ok(if gains { with_tick } else { clock })
    }

    /// The error of the criterion at these rates, relative to a function's CPU time.
    ///
    /// # Errors
    /// As [`Law::rate_hz`].
    #[cfg(test)]
    fn error_at(&self, tick: &Tick, tick_hz: f64, clock_hz: f64) -> Result<f64, ModelError> {
        let path = Path::new(self, tick)?;
        Ok(path.error(&Mix { tick_hz, clock_hz, unbounded_hz: 0.0, bound_by: BoundBy::Law }))
    }
}

impl Path {
    fn new(law: &Law, tick: &Tick) -> Result<Path, ModelError> {
        let clock_s = law.bias_s()?;
        let rate_hz = |hz: f64| if hz.is_finite() { hz.clamp(0.0, END_HZ) } else { 0.0 };
        let tick_s = law.bias_of_s(tick.overhead_s, tick.overhead_se_s);
        let is_cheaper = tick_s.as_ref().is_ok_and(|tick_s| *tick_s < clock_s);
        Ok(Path {
            criterion: law.effective_criterion(),
            tick_hz: if is_cheaper { rate_hz(tick.hz) } else { 0.0 },
            audit_hz: rate_hz(tick.audit_hz),
            tick_s: tick_s.unwrap_or(clock_s),
            clock_s,
            deviation: law.deviation_at_one()?,
        })
    }

    fn split(&self, rate_hz: f64) -> (f64, f64) {
        let tick_hz = (rate_hz - self.audit_hz).clamp(0.0, self.tick_hz);
        (tick_hz, rate_hz - tick_hz)
    }

    fn bias(&self, rate_hz: f64) -> f64 {
        let (tick_hz, clock_hz) = self.split(rate_hz);
        tick_hz * self.tick_s + clock_hz * self.clock_s
    }

    fn error(&self, mix: &Mix) -> f64 {
        let bias = mix.tick_hz * self.tick_s + mix.clock_hz * self.clock_s;
        self.criterion.error(bias, self.deviation / (mix.tick_hz + mix.clock_hz).sqrt())
    }

    /// Whether one sample more than `rate_hz`, at `slope_s` each, makes the profile worse.
    fn is_enough(&self, rate_hz: f64, slope_s: f64) -> bool {
        let sd = self.deviation / rate_hz.sqrt();
        let (g, g1) = error_and_slope(self.criterion, self.bias(rate_hz) / sd);
        2.0 * slope_s * rate_hz * g1 >= sd * (g - self.bias(rate_hz) / sd * g1)
    }

    /// The rate of least error, without caps.
    fn best_hz(&self) -> f64 {
        if self.deviation == 0.0 {
            return self.audit_hz; // no sample can teach anything
        }
        let (floor_hz, corner_hz) = (self.audit_hz.max(1.0 / END_HZ), self.audit_hz + self.tick_hz);
        if self.tick_hz > 0.0 && self.is_enough(corner_hz, self.tick_s) {
            return self.crossing(floor_hz, corner_hz, self.tick_s);
        }
        self.crossing(corner_hz.max(floor_hz), END_HZ, self.clock_s)
    }

    /// Where samples cease to be worth `slope_s` between the two rates, or the one of them that is nearest.
    fn crossing(&self, mut low: f64, mut high: f64, slope_s: f64) -> f64 {
        if self.is_enough(low, slope_s) {
            return low;
        }
        for _ in 0..HALVINGS {
            let middle = (low * high).sqrt(); // rates range over many powers of ten
            if self.is_enough(middle, slope_s) { high = middle } else { low = middle }
        }
        high
    }

    /// `rate_hz` along the path, as far as the caps let it go.
    fn within(&self, rate_hz: f64, caps: &MixCaps) -> Mix {
        let caps_hz = [
            (self.affordable_hz(caps), BoundBy::Budget),
            (self.tick_hz + caps.kernel_hz, BoundBy::Kernel),
            (caps.bytes_hz, BoundBy::Bytes),
        ];
        let least = |least: (f64, BoundBy), cap: (f64, BoundBy)| if cap.0 < least.0 { cap } else { least };
        let (bounded_hz, bound_by) = caps_hz.into_iter().fold((rate_hz, BoundBy::Law), least);
        let (tick_hz, clock_hz) = self.split(bounded_hz.max(0.0));
        Mix { tick_hz, clock_hz, unbounded_hz: rate_hz, bound_by }
    }

    /// The sum of rates that uses up the budget: the audit first, then ticks, then the clock.
    fn affordable_hz(&self, caps: &MixCaps) -> f64 {
        let (mut left, mut rate_hz) = (caps.budget_ratio.max(0.0), 0.0);
        for (most_hz, each_s) in
            [(self.audit_hz, caps.clock_s), (self.tick_hz, caps.tick_s), (END_HZ, caps.clock_s)]
        {
            let taken_hz = (left / each_s.max(1e-12)).min(most_hz);
            (left, rate_hz) = (left - taken_hz * each_s, rate_hz + taken_hz);
            if taken_hz < most_hz {
                break;
            }
        }
        rate_hz
    }
}

/// g(u) and g′(u): the error of an estimate that is off by u and scatters with deviation 1.
fn error_and_slope(criterion: Criterion, u: f64) -> (f64, f64) {
    let (g, normal) = (criterion.error(u, 1.0), Normal::standard());
    let slope = match criterion {
        Criterion::UpperCurve { .. } => 1.0,
        Criterion::MeanSquared => u / g,
        Criterion::MeanAbsolute => 2.0 * normal.cdf(u) - 1.0,
        // From Φ(q − u) − Φ(−q − u) = .95, differentiated.
        Criterion::P95 => {
            let (near, far) = (normal.pdf(g - u), normal.pdf(g + u));
            (near - far) / (near + far)
        }
    };
    (g, slope)
}

#[cfg(test)]
mod tests;
