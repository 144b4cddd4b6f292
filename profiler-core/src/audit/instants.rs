//! Ticks that come at once.
//!
//! CPUs tick together, and where the threads of a program run in step, all their CPUs are hit in the same function, or none
//! is: that many hits are as good as one. So of the hits at one instant one at most counts, each with the same probability,
//! one over the most that come together. What counts then has on average that part of all hits, and is 0 or 1 at each instant.
//! A CPU is hit once at an instant: a tick that comes late, as where a host has taken the CPU away, joins no other instant's.

/// Seed of the choice: any will do, nothing else is drawn from it.
const SEED: u64 = 0x71c5;

/// Which hits count.
#[derive(Clone, Debug)]
pub(super) struct Instants {
    rng: fastrand::Rng,
    /// One of so many counts.
    one_in: u32,
    at_ns: Option<u64>,
    /// CPUs that were hit at the present instant, and when.
    cpus: Vec<(u32, u64)>,
    /// Hits at the present instant so far, and which of them counts.
    hits: u32,
    chosen: u32,
    /// The most that came together.
    most: u32,
}

impl Default for Instants {
    fn default() -> Self {
        let rng = fastrand::Rng::with_seed(SEED);
        Self { rng, one_in: 1, at_ns: None, cpus: Vec::new(), hits: 0, chosen: 0, most: 1 }
    }
}

impl Instants {
    /// Whether a hit of `cpu` counts; hits come in the order of time, and those of one instant within half of `tick_ns`. What is told
    /// twice counts once.
    pub(super) fn counts(&mut self, cpu: u32, at_ns: u64, tick_ns: f64) -> bool {
        let is_far = self.at_ns.is_none_or(|begun_ns| at_ns.abs_diff(begun_ns) as f64 > tick_ns / 2.0);
        let of_cpu = self.cpus.iter().find(|hit| hit.0 == cpu).copied();
        if of_cpu == Some((cpu, at_ns)) {
            return false;
        }
        if is_far || of_cpu.is_some() {
            self.at_ns = Some(at_ns);
            self.cpus.clear();
            self.hits = 0;
            self.chosen = self.rng.u32(0..self.one_in);
        }
        self.cpus.push((cpu, at_ns));
        let counts = self.hits == self.chosen;
        self.hits = self.hits.saturating_add(1);
        self.most = self.most.max(self.hits);
        counts
    }

    /// Of how many hits one counts.
    pub(super) fn one_in(&self) -> f64 {
        f64::from(self.one_in)
    }

    /// Takes note of how many came together. Returns whether they were more than one was chosen from, so that what was counted
    /// says nothing: from now on one is chosen from as many.
    pub(super) fn are_more(&mut self) -> bool {
        let are_more = self.most > self.one_in;
        self.one_in = self.most;
        are_more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK_NS: f64 = 4e6;

    #[test]
    fn one_of_those_at_an_instant_counts_and_each_as_often() {
        let mut instants = Instants::default();
        (0..3).for_each(|cpu| _ = instants.counts(cpu, 1_000 + u64::from(cpu), TICK_NS));
        assert!(instants.are_more() && !instants.are_more());
        let mut counted = [0; 3];
        for tick in 1..3_001 {
            for cpu in 0..3 {
                // Skewed a little, and in whatever order their rings were read.
                let at_ns = tick * 4_000_000 + [100_000, 0, 40_000][cpu];
                counted[cpu] += u32::from(instants.counts(cpu as u32, at_ns, TICK_NS));
            }
        }
        assert_eq!(counted.iter().sum::<u32>(), 3_000);
        assert!(counted.iter().all(|count| count.abs_diff(1_000) < 120), "{counted:?}");
    }

    #[test]
    fn alone_every_hit_counts_whatever_its_time() {
        let mut instants = Instants::default();
        assert!(
            [4_000_000, 8_000_000, 16_000_000, 0, u64::MAX].iter().all(|&at| instants.counts(0, at, TICK_NS))
        );
        assert!(!instants.are_more());
    }

    /// Every hundredth tick is late by more than half of the time to the next.
    #[test]
    fn a_tick_that_comes_late_is_an_instant_of_its_own() {
        let mut instants = Instants::default();
        for tick in 1..1_000 {
            let late_ns = if tick % 100 == 0 { 2_400_000 } else { 0 };
            assert!(instants.counts(0, tick * 4_000_000 + late_ns, TICK_NS), "{tick}");
        }
        assert!(!instants.are_more(), "of one CPU");
        assert!(!instants.counts(0, 999 * 4_000_000, TICK_NS), "what is told twice counts once");
    }
}
