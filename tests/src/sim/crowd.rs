//! A program with many threads, simulated by counts: how busy it is at each hour, and what happens in a time range.

use std::f64::consts::TAU;

use super::day::Day;

/// Shares of its functions.
const SHARES: [f64; 8] = [0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05, 0.05];
const HOUR_S: f64 = 3600.0;

/// Load of a server of many users: next to nothing at night, a hump over the day, bursts at any hour.
pub(super) struct Crowd {
    rng: fastrand::Rng,
    cpus: f64,
    /// Slow wandering around the hour's load (ratio).
    drift: f64,
    burst_until_s: f64,
    next_burst_s: f64,
}

impl Crowd {
    pub(super) fn new(day: &Day) -> Self {
        let mut rng = fastrand::Rng::with_seed(day.seed);
        let next_burst_s = 600.0 * rng.f64();
        Crowd { rng, cpus: day.cpus as f64, drift: 0.0, burst_until_s: 0.0, next_burst_s }
    }

    /// CPUs kept busy from `at_s` on, for `length_s`.
    pub(super) fn busy_cpus(&mut self, at_s: f64, length_s: f64) -> f64 {
        if at_s >= self.next_burst_s {
            self.burst_until_s = at_s + 0.2 + 60.0 * self.rng.f64().powi(3);
            self.next_burst_s = at_s - 600.0 * (1.0 - self.rng.f64()).ln();
        }
        // A wandering with a memory of five seconds and a standard deviation of about .2.
        let step = 0.2 * (2.0 * length_s / 5.0).sqrt() * 3f64.sqrt() * (2.0 * self.rng.f64() - 1.0);
        self.drift += step - self.drift * length_s / 5.0;
        if at_s < self.burst_until_s {
            return self.cpus;
        }
        let hour = at_s / HOUR_S % 24.0;
        let level =
            if (1.0..6.0).contains(&hour) { 0.001 } else { 0.25 - 0.24 * (TAU * (hour - 2.0) / 24.0).cos() };
        self.cpus * (level * (1.0 + self.drift)).clamp(0.0, 1.0)
    }

    /// Samples by function where `expected` fall.
    pub(super) fn samples(&mut self, expected: f64) -> [u64; 8] {
        SHARES.map(|share| self.poisson(share * expected))
    }

    /// A number with this mean, by a Poisson distribution; by its normal limit where the mean is large.
    pub(super) fn poisson(&mut self, mean: f64) -> u64 {
        if mean > 30.0 {
            // A sum of twelve uniforms is near enough to a normal for counts.
            let normal = (0..12).map(|_| self.rng.f64()).sum::<f64>() - 6.0;
            return (mean + mean.sqrt() * normal).round().max(0.0) as u64;
        }
        let (least, mut product, mut count) = ((-mean).exp(), self.rng.f64(), 0);
        while product > least {
            product *= self.rng.f64();
            count += 1;
        }
        count
    }

    /// Uniform within a ratio around 1.
    pub(super) fn around_one(&mut self, ratio: f64) -> f64 {
        1.0 + ratio * (2.0 * self.rng.f64() - 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_the_mean_and_spread_that_they_should() {
        let mut crowd = Crowd::new(&Day::default());
        for mean in [0.0, 0.3, 8.0, 200.0] {
            let drawn: Vec<f64> = (0..4000).map(|_| crowd.poisson(mean) as f64).collect();
            let found = drawn.iter().sum::<f64>() / 4000.0;
            let variance = drawn.iter().map(|x| (x - found).powi(2)).sum::<f64>() / 4000.0;
            assert!((found - mean).abs() <= 4.0 * (mean / 4000.0).sqrt(), "{found} for {mean}");
            assert!((variance - mean).abs() <= 0.15 * mean, "variance {variance} for {mean}");
        }
    }

    #[test]
    fn nights_are_idle_and_bursts_take_every_cpu() {
        let mut crowd = Crowd::new(&Day::default());
        let seconds: Vec<f64> = (0..86_400).map(|at_s| crowd.busy_cpus(f64::from(at_s), 1.0)).collect();
        let mean = |from: usize, to: usize| seconds[from..to].iter().sum::<f64>() / (to - from) as f64;
        assert!(seconds.iter().all(|busy| (0.0..=64.0).contains(busy)));
        assert!(seconds[3600..6 * 3600].contains(&64.0), "no burst in five hours");
        assert!(mean(3600, 6 * 3600) < 3.0 && mean(12 * 3600, 16 * 3600) > 20.0);
    }
}
