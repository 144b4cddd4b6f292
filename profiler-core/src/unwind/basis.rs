//! Which processes' stacks the method and the size of the copy were learnt from.
//!
//! A process that executes another program has other stacks from then on. If it had a good share of all stacks, what
//! was learnt from them is forgotten. If not, it still holds for the others: a shell starts programs all the time, and
//! stacks that no longer fit are noticed one by one.

use rustc_hash::FxHashMap;

/// Share of the stacks that counts as a good one.
const GOOD_SHARE: f64 = 0.25;
/// Stacks that are remembered. At twice as many, all counts are halved.
const REMEMBERED: u32 = 1_000;

/// Counts stacks by process.
#[derive(Clone, Debug, Default)]
pub struct Basis {
    by_process: FxHashMap<u32, u32>,
    all: u32,
}

impl Basis {
    /// Counts a stack of process `pid`.
    pub fn observe(&mut self, pid: u32) {
        *self.by_process.entry(pid).or_default() += 1;
        self.all += 1;
        if self.all >= 2 * REMEMBERED {
            self.by_process.retain(|_, stacks| {
                *stacks /= 2;
                *stacks > 0
            });
            self.all = self.by_process.values().sum();
        }
    }

    /// Process `pid` has executed another program; `is_only`: it is the target's only process. Returns whether what was
    /// learnt has to be forgotten; if so, the counts are reset, too.
    pub fn program_changed(&mut self, pid: u32, is_only: bool) -> bool {
        let its = self.by_process.remove(&pid).unwrap_or(0);
        let is_lost = is_only || f64::from(its) > GOOD_SHARE * f64::from(self.all);
        self.all -= its;
        if is_lost {
            *self = Self::default();
        }
        is_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learnt(stacks: &[(u32, u32)]) -> Basis {
        let mut basis = Basis::default();
        for &(pid, count) in stacks {
            (0..count).for_each(|_| basis.observe(pid));
        }
        basis
    }

    #[test]
    fn programs_that_a_shell_begins_leave_what_was_learnt_and_a_server_that_begins_anew_does_not() {
        let mut basis = learnt(&[(1, 10), (2, 500), (3, 490)]);
        for child in 100..200 {
            assert!(!basis.program_changed(child, false));
        }
        assert!(!basis.program_changed(1, false));
        assert!(basis.program_changed(2, false));
        assert!(!basis.program_changed(3, false), "of what was learnt since then nothing is its");
    }

    #[test]
    fn the_only_process_takes_everything_with_it() {
        assert!(Basis::default().program_changed(7, true));
        assert!(!Basis::default().program_changed(7, false));
    }

    /// Each child is sampled, begins a program, and is sampled again.
    #[test]
    fn those_that_are_gone_stay_a_part_of_it_for_a_while() {
        let mut basis = learnt(&[(1, 10_000)]);
        for child in 2..10_000 {
            assert!(!basis.program_changed(child, false));
            (0..3).for_each(|_| basis.observe(child));
        }
        assert!(basis.by_process.len() <= 2 * REMEMBERED as usize, "{}", basis.by_process.len());
        assert!(!basis.program_changed(1, false), "it has not been sampled for long");
    }
}
