//! A host's budget, shared between its targets by the benefit of another sample for each.
//!
//! What all of it costs, in the targets and in the profiler, is a share of the host's CPU time; each target's controller is
//! granted a part. The error of target i's profile at λ samples per CPU-second is, as the law has it,
//!
//! ```text
//! loss(λ) = w·(o·λ + A/√λ)        A = 2·r·S/√W        (w: how much the target matters)
//! ```
//!
//! and its samples take q·c·λ of the host: q is the full cost of a sample, c the CPUs that the target keeps busy. A
//! target that is one of R replicas of a service has 2·r·S/√(R·W) and the same w: see the module of
//! [`Replicas`](super::Replicas) for its part in the error of their common profile.
//!
//! The sum of the losses is smallest if one more CPU-second would reduce each of them equally. That price μ gives every
//! rate,
//!
//! ```text
//! λ(μ) = ( w·A/2 / (w·o + μ·q·c) )^(2/3),    held between a floor and what its slowdown and the law allow
//! ```
//!
//! and the rates fall with it: μ is the one number at which they spend exactly what is available. Each target's rate is
//! also capped by the bound on its slowdown. So a target that needs less leaves the rest to the others, and a larger
//! budget never lowers a rate. No target is starved: the floor is a tenth of what it would have alone, or, if the
//! budget is too small for that, the same part of it for all.
//!
//! ```
//! use profiler_core::rate::budget_division::{Demand, divide};
//!
//! let busy = Demand { busy_cpus: 1.0, sample_s: 20e-6, target_s: 15e-6, error: 0.4, ..Demand::default() };
//! let shares = divide(&[busy, Demand { busy_cpus: 8.0, ..busy }], 0.04);
//! assert!((shares.spent_cpus - 0.04).abs() < 1e-6);
//! // A sample of the one that keeps eight CPUs busy takes eight times as much of the host.
//! assert!(shares.of[0].granted_ratio > shares.of[1].granted_ratio);
//! ```

/// Part of the rate that a target would have alone that it keeps, whatever the others need.
const FLOOR: f64 = 0.1;
/// How much a grant may exceed what the law and the slowdown ask for now, where the budget has room: load and costs change from second to
/// second, and a grant that is only just enough would limit the rate whenever they grow.
const MOST_HEADROOM: f64 = 4.0;
/// Ages in whole seconds that an unfinished ten-second window can have: 1 to 9.
pub const AGES: usize = 9;
/// Steps of the search: each halves the interval of the price's logarithm, which is 100 wide at most.
const STEPS: usize = 40;

/// What a target would do with its share. Invalid values count as 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// Bound on its slowdown: share of its CPU time that may be taken from it.
    pub slowdown_ratio: f64,
    /// c: CPUs that it keeps busy, over the ten seconds in which it is busiest.
    pub busy_cpus: f64,
    /// CPUs that its costs are set against: `busy_cpus`, or the tenth of one that an idle target is granted.
    pub counted_cpus: f64,
    /// q: CPU time that a sample takes, everything included (s).
    pub sample_s: f64,
    /// o: the part of it that is charged to the target and perturbs its profile (s).
    pub target_s: f64,
    /// f: CPU time spent on it at any rate (s per s).
    pub fixed_cpus: f64,
    /// A: the relative error of its profile at one sample per CPU-second, 2·r·S/√(R·W).
    pub error: f64,
    /// w: how much its error matters beside the others'; only ratios count.
    pub weight: f64,
    /// The highest rate that anything else allows (samples per CPU-second).
    pub cap_hz: f64,
    /// How busy it will be in the rest of a ten-second window that is 1, 2, … 9 s old, over `busy_cpus`: 1 where its
    /// load is steady. The shares themselves do not depend on it; see [`HostBudget`](super::HostBudget).
    pub pace: [f64; AGES],
}

impl Demand {
    /// What is spent at any rate, as a ratio of `counted_cpus`.
    fn fixed_ratio(&self) -> f64 {
        let counted_cpus = amount(self.counted_cpus).max(amount(self.busy_cpus));
        if counted_cpus > 0.0 { amount(self.fixed_cpus) / counted_cpus } else { 0.0 }
    }
}

impl Default for Demand {
    /// An idle target with the default's budget.
    fn default() -> Self {
        Demand {
            slowdown_ratio: 0.01,
            busy_cpus: 0.0,
            counted_cpus: 0.1,
            sample_s: 0.0,
            target_s: 0.0,
            fixed_cpus: 0.0,
            error: 0.0,
            weight: 1.0,
            cap_hz: f64::INFINITY,
            pace: [1.0; AGES],
        }
    }
}

/// A target's share.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Share {
    /// The rate that it is for (samples per CPU-second).
    pub rate_hz: f64,
    /// What everything that it costs may take (share of its CPU time): more than that rate does, where the budget has room.
    pub granted_ratio: f64,
}

/// The division of the host's budget.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Division {
    /// A share for each target, in the order of the demands.
    pub of: Vec<Share>,
    /// The sum that the shares spend (CPUs).
    pub spent_cpus: f64,
    /// By how much the total error would fall for one CPU more; 0 where everyone has enough.
    pub price: f64,
    /// Whether the budget is below the sum of the floors: there are too many targets for it.
    pub is_short: bool,
}

/// A demand as numbers that can be counted with.
#[derive(Clone, Copy, Debug)]
struct DemandTerms {
    /// w·A/2 and w·o.
    gain: f64,
    bias: f64,
    /// q·c: what a rate of 1 takes of the host.
    per_hz_cpus: f64,
    floor_hz: f64,
    most_hz: f64,
}

impl DemandTerms {
    fn new(demand: &Demand) -> Self {
        let sample_s = amount(demand.sample_s);
        let bias_s = amount(demand.target_s);
        let (gain, bias) = (0.5 * amount(demand.weight * demand.error), amount(demand.weight) * bias_s);
        let optimum_hz = if bias > 0.0 { two_thirds_power(gain / bias) } else { f64::INFINITY };
        let most_hz = (amount(demand.slowdown_ratio) / bias_s.max(f64::MIN_POSITIVE))
            .min(optimum_hz)
            .min(if demand.cap_hz.is_nan() { f64::INFINITY } else { demand.cap_hz.max(0.0) })
            .min(f64::MAX);
        let per_hz_cpus = sample_s * amount(demand.busy_cpus);
        DemandTerms { gain, bias, per_hz_cpus, floor_hz: FLOOR * most_hz, most_hz }
    }

    /// λ(μ) (samples per CPU-second).
    fn rate_hz(&self, price: f64) -> f64 {
        let costs = self.bias + price * self.per_hz_cpus;
        if price == 0.0 || costs == 0.0 {
            return self.most_hz;
        }
        two_thirds_power(self.gain / costs).clamp(self.floor_hz, self.most_hz)
    }
}

/// A finite number that is not negative; anything else is 0.
fn amount(value: f64) -> f64 {
    if value.is_finite() { value.max(0.0) } else { 0.0 }
}

fn two_thirds_power(value: f64) -> f64 {
    value.cbrt().powi(2)
}

/// Shares `host_cpus` (CPU-seconds per second for all targets together, without what is spent on none of them).
///
/// Linear in the number of targets, and the same for the same demands.
pub fn divide(demands: &[Demand], host_cpus: f64) -> Division {
    let claims: Vec<DemandTerms> = demands.iter().map(DemandTerms::new).collect();
    let fixed: f64 = demands.iter().map(|demand| amount(demand.fixed_cpus)).sum();
    let left = amount(amount(host_cpus) - fixed);
    let floors = spent(&claims, |claim| claim.floor_hz);
    if floors > left || fixed > amount(host_cpus) {
        let part = if floors > 0.0 { (left / floors).min(1.0) } else { 0.0 };
        return shares(demands, &claims, fixed, f64::INFINITY, |claim| part * claim.floor_hz);
    }
    let price = price(&claims, left);
    let mut shares = shares(demands, &claims, fixed, price, |claim| claim.rate_hz(price));
    if price == 0.0 {
        let headroom =
            (amount(host_cpus) / shares.spent_cpus.max(f64::MIN_POSITIVE)).clamp(1.0, MOST_HEADROOM);
        shares
            .of
            .iter_mut()
            .for_each(|share| share.granted_ratio = (headroom * share.granted_ratio).min(f64::MAX));
    }
    shares
}

fn spent(claims: &[DemandTerms], rate_hz: impl Fn(&DemandTerms) -> f64) -> f64 {
    claims.iter().map(|claim| claim.per_hz_cpus * rate_hz(claim)).sum()
}

/// The lowest price at which no more than `left` is spent; at the highest, all are at their floors.
fn price(claims: &[DemandTerms], left: f64) -> f64 {
    if spent(claims, |claim| claim.rate_hz(0.0)) <= left {
        return 0.0;
    }
    // Above the first price, every target is at its floor; below the second, none is.
    let dear = |claim: &DemandTerms| claim.gain / (claim.floor_hz.powf(1.5) * claim.per_hz_cpus);
    let takes = || claims.iter().filter(|claim| claim.per_hz_cpus > 0.0 && claim.floor_hz > 0.0);
    let highest = takes().map(dear).filter(|price| price.is_finite()).fold(f64::MIN_POSITIVE, f64::max);
    let (mut low, mut high) = (highest.ln() - 100.0, highest.ln());
    for _ in 0..STEPS {
        let middle = 0.5 * (low + high);
        let dear_enough = spent(claims, |claim| claim.rate_hz(middle.exp())) <= left;
        if dear_enough { high = middle } else { low = middle }
    }
    high.exp()
}

fn shares(
    demands: &[Demand],
    claims: &[DemandTerms],
    fixed: f64,
    price: f64,
    rate_hz: impl Fn(&DemandTerms) -> f64,
) -> Division {
    let of = |(demand, claim): (&Demand, &DemandTerms)| {
        let rate_hz = rate_hz(claim);
        let needed = demand.fixed_ratio() + rate_hz * amount(demand.sample_s);
        Share { rate_hz, granted_ratio: needed.min(f64::MAX) }
    };
    Division {
        of: demands.iter().zip(claims).map(of).collect(),
        spent_cpus: fixed + spent(claims, &rate_hz),
        price,
        is_short: price.is_infinite(),
    }
}

#[cfg(test)]
mod tests;
