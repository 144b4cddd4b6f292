//! How many bytes of stack to copy: enough for the deepest stacks, and not more, since each byte costs the
//! target.
//!
//! The first copy is the largest (60 KiB), so that the first stacks are complete and show what is needed. No
//! copy shrinks in the first second: the first twenty stacks of a compiler are those of the dynamic linker.
//!
//! A copy ends at a page that is not in memory, because the kernel does not wait for one in an interrupt, and
//! where the thread's stack does: for a signal handler on an alternate stack, the interrupted function is known
//! and its callers are not.

/// The largest copy: a record's length has 16 bits, and it has other fields, too.
pub const MAX_COPY_BYTES: u32 = 60 << 10;
/// The smallest copy; smaller differences do not matter.
const MIN_COPY_BYTES: u32 = 1 << 10;
/// How many stacks are needed to decide for a smaller copy, and the factor of room for deeper ones: first early and
/// generous, since the largest copy costs more than everything else and may leave no budget for many stacks; later
/// tight.
const FIRST_LOOK: (u32, f64) = (20, 3.0);
const SECOND_LOOK: (u32, f64) = (200, 1.25);
/// A program that has just begun is far from its usual depth: for this time after the first stack, no copy shrinks
/// (ns). A shorter command is copied generously throughout.
const SETTLING_NS: u64 = 1_000_000_000;
/// A smaller copy is worth reopening the events only if it is that much smaller.
const WORTH_SHRINKING: f64 = 0.75;
/// Truncated stacks since the last decision that call for a bigger copy.
const TRUNCATED_TO_GROW: u32 = 2;

/// Watches how deep stacks are and proposes a size for the copy.
#[derive(Clone, Debug)]
pub struct CopySize {
    bytes: u32,
    seen: u32,
    truncated: u32,
    deepest: u64,
    /// Time of the first stack since the last decision (ns).
    since_ns: Option<u64>,
    /// How often the copy had to grow; each time, shrinking waits for twice as many stacks.
    grown: u32,
}

impl Default for CopySize {
    /// The biggest copy: the first stacks are complete, and tell what is needed.
    fn default() -> Self {
        Self { bytes: MAX_COPY_BYTES, seen: 0, truncated: 0, deepest: 0, since_ns: None, grown: 0 }
    }
}

impl CopySize {
    /// The size in force (bytes).
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Notes a stack of `depth_bytes`, and whether the copy was too short for it.
    pub fn observe(&mut self, depth_bytes: u64, too_short: bool) {
        self.seen += 1;
        self.truncated += u32::from(too_short);
        self.deepest = self.deepest.max(depth_bytes.min(u64::from(MAX_COPY_BYTES)));
    }

    /// Returns a better size if there is one, and puts it in force. `now_ns` is from any monotonic clock.
    pub fn revise(&mut self, now_ns: u64) -> Option<u32> {
        if self.seen == 0 {
            return None;
        }
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        if self.truncated >= TRUNCATED_TO_GROW && self.bytes < MAX_COPY_BYTES {
            self.grown += 1;
            return self.take(MAX_COPY_BYTES);
        }
        if now_ns.saturating_sub(since_ns) < SETTLING_NS {
            return None;
        }
        let is_over = |(stacks, _): (u32, f64)| self.seen >= stacks << self.grown.min(10);
        let headroom = match (is_over(SECOND_LOOK), self.bytes == MAX_COPY_BYTES && is_over(FIRST_LOOK)) {
            (true, _) => SECOND_LOOK.1,
            (false, true) => FIRST_LOOK.1,
            (false, false) => return None,
        };
        let needed = ((self.deepest as f64 * headroom) as u32).next_multiple_of(MIN_COPY_BYTES);
        let needed = needed.clamp(MIN_COPY_BYTES, MAX_COPY_BYTES);
        if self.truncated == 0 && f64::from(needed) <= f64::from(self.bytes) * WORTH_SHRINKING {
            return self.take(needed);
        }
        if is_over(SECOND_LOOK) {
            (self.seen, self.truncated, self.deepest) = (0, 0, 0);
        }
        None
    }

    /// A process has executed another program, which may have deeper stacks.
    pub fn program_changed(&mut self) -> Option<u32> {
        let has_shrunk = self.bytes < MAX_COPY_BYTES;
        let bytes = self.take(MAX_COPY_BYTES);
        bytes.filter(|_| has_shrunk)
    }

    fn take(&mut self, bytes: u32) -> Option<u32> {
        *self = Self { bytes, grown: self.grown, ..Self::default() };
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Long after the beginning.
    const LATER_NS: u64 = 10 * SETTLING_NS;

    fn feed(size: &mut CopySize, stacks: u32, depth: u64) -> Option<u32> {
        (0..stacks).find_map(|_| {
            let too_short = depth > u64::from(size.bytes());
            size.observe(depth.min(u64::from(size.bytes())), too_short);
            size.since_ns.get_or_insert(0);
            size.revise(LATER_NS)
        })
    }

    #[test]
    fn no_copy_shrinks_while_a_program_begins() {
        let mut size = CopySize::default();
        let mut at = |ms: u64| {
            size.observe(3000, false);
            size.revise(ms * 1_000_000)
        };
        assert!((500..1500).all(|ms| at(ms).is_none()));
        assert_eq!(at(1500), Some(4096));
    }

    #[test]
    fn another_program_has_the_biggest_copy_again() {
        let mut size = CopySize::default();
        assert_eq!(size.program_changed(), None);
        feed(&mut size, 20, 3000);
        assert_eq!(size.program_changed(), Some(MAX_COPY_BYTES));
        assert_eq!(size.bytes(), MAX_COPY_BYTES);
    }

    #[test]
    fn the_copy_shrinks_to_what_the_stacks_need() {
        let mut size = CopySize::default();
        assert_eq!(feed(&mut size, 19, 3000), None);
        assert_eq!(feed(&mut size, 1, 3000), Some(9 << 10));
        assert_eq!(feed(&mut size, 199, 3000), None);
        assert_eq!(feed(&mut size, 1, 3000), Some(4096));
        assert_eq!(feed(&mut size, 5000, 3000), None);
    }

    #[test]
    fn a_deeper_phase_costs_two_truncated_stacks_and_shrinks_later_than_before() {
        let mut size = CopySize::default();
        feed(&mut size, 20, 3000);
        feed(&mut size, 200, 3000);
        assert_eq!(size.bytes(), 4096);
        assert_eq!(feed(&mut size, 2, 30_000), Some(MAX_COPY_BYTES));
        assert_eq!(feed(&mut size, 39, 3000), None);
        assert_eq!(feed(&mut size, 1, 3000), Some(9 << 10));
        assert_eq!(feed(&mut size, 399, 3000), None);
        assert_eq!(feed(&mut size, 1, 3000), Some(4096));
    }

    #[test]
    fn stacks_too_deep_for_the_first_look_are_judged_by_the_second() {
        let mut size = CopySize::default();
        assert_eq!(feed(&mut size, 199, 20_000), None);
        assert_eq!(feed(&mut size, 1, 20_000), Some(25 << 10));
    }

    #[test]
    fn stacks_beyond_the_limit_leave_the_biggest_copy() {
        let mut size = CopySize::default();
        assert_eq!(feed(&mut size, 1000, 1 << 20), None);
        assert_eq!(size.bytes(), MAX_COPY_BYTES);
    }

    proptest! {
        #[test]
        fn any_stacks_leave_a_size_that_can_be_asked_for(
            stacks in prop::collection::vec((prop_oneof![0u64..70_000, any::<u64>()], any::<bool>(), 1usize..300), 0..40),
        ) {
            let (mut size, mut now_ns) = (CopySize::default(), 0);
            for (depth, too_short, times) in stacks {
                for _ in 0..times {
                    let before = size.bytes();
                    size.observe(depth, too_short);
                    now_ns += SETTLING_NS / 20;
                    let revised = size.revise(now_ns);
                    prop_assert_eq!(revised.unwrap_or(before), size.bytes());
                    prop_assert_ne!(revised, Some(before));
                    prop_assert!((MIN_COPY_BYTES..=MAX_COPY_BYTES).contains(&size.bytes()));
                    prop_assert!(size.bytes().is_multiple_of(8));
                    // A copy shrinks only to what held every stack since the last change.
                    let grows = revised.is_some_and(|bytes| bytes > before);
                    prop_assert!(!grows || size.bytes() == MAX_COPY_BYTES);
                    if revised.is_some_and(|bytes| bytes < before) {
                        prop_assert!(!too_short && depth <= u64::from(size.bytes()));
                    }
                }
            }
        }
    }

    #[test]
    fn a_wild_depth_does_not_shrink_the_copy() {
        let mut size = CopySize::default();
        assert_eq!(feed_raw(&mut size, 400, u64::MAX), None);
        assert_eq!(size.bytes(), MAX_COPY_BYTES);
    }

    fn feed_raw(size: &mut CopySize, stacks: u32, depth: u64) -> Option<u32> {
        (0..stacks).find_map(|_| {
            size.observe(depth, false);
            size.since_ns.get_or_insert(0);
            size.revise(LATER_NS)
        })
    }
}
