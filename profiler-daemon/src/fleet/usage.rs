//! What targets of this host used of late, by name.

use std::collections::{BTreeMap, VecDeque};

use profiler_core::rate::Usage;

/// How far back it is known (ns): the longest time that a fleet's figure is of, and a reading more.
const KEPT_NS: u64 = 330_000_000_000;
/// How often it is noted (ns).
const EVERY_NS: u64 = 10_000_000_000;

/// CPU time of one that was read at some moments.
#[derive(Debug, Default)]
struct History {
    /// When, and the CPU time until then (ns).
    readings: VecDeque<(u64, u64)>,
    /// What the counter said last; it begins anew where the target does.
    counter_ns: u64,
    sum_ns: u64,
    /// Whether there was nothing of it before the first reading that is kept.
    is_whole: bool,
}

/// CPU time of all targets.
#[derive(Debug, Default)]
pub(super) struct Usages {
    of: BTreeMap<String, History>,
    next_ns: u64,
}

impl History {
    /// Of a target with this counter. If it is new, all of that was used just now; else it is unknown when.
    fn new(counter_ns: u64, is_new: bool) -> Self {
        Self { counter_ns: if is_new { 0 } else { counter_ns }, is_whole: is_new, ..Self::default() }
    }

    fn read(&mut self, counter_ns: u64) {
        let new_ns = match counter_ns >= self.counter_ns {
            true => counter_ns - self.counter_ns,
            false => counter_ns,
        };
        (self.counter_ns, self.sum_ns) = (counter_ns, self.sum_ns.saturating_add(new_ns));
    }

    fn keep(&mut self, now_ns: u64) {
        self.readings.push_back((now_ns, self.sum_ns));
        while self.readings.get(1).is_some_and(|(at_ns, _)| now_ns.saturating_sub(*at_ns) >= KEPT_NS) {
            self.readings.pop_front();
            self.is_whole = false;
        }
    }

    /// CPU time until a moment, between the readings around it (ns).
    fn until_ns(&self, at_ns: u64) -> u64 {
        let later = self.readings.iter().position(|(read_ns, _)| *read_ns > at_ns);
        let at = later.unwrap_or(self.readings.len());
        let before = at.checked_sub(1).and_then(|at| self.readings.get(at)).copied();
        match (before, self.readings.get(at).copied()) {
            (Some((from_ns, from)), Some((to_ns, to))) => {
                let part = (at_ns - from_ns) as f64 / (to_ns - from_ns).max(1) as f64;
                from + ((to - from) as f64 * part) as u64
            }
            (Some((_, before)), None) => before,
            (None, Some((_, first))) if !self.is_whole => first,
            _ => 0,
        }
    }

    fn usage(&self, now_ns: u64, range_ns: u64) -> Usage {
        let from_ns = now_ns.saturating_sub(range_ns);
        let used_ns = self.sum_ns.saturating_sub(self.until_ns(from_ns)) as f64;
        let began_ns = self.readings.front().map_or(now_ns, |(at_ns, _)| *at_ns);
        let present_ns = now_ns.saturating_sub(from_ns.max(began_ns)).max(EVERY_NS).min(range_ns.max(1));
        // What it used before the first reading, if it is unknown, is taken to be as much as since.
        let is_known = self.is_whole || began_ns <= from_ns;
        let counted_ns = if is_known { range_ns.max(1) } else { present_ns };
        Usage { counted_cpus: used_ns / counted_ns as f64, present_cpus: used_ns / present_ns as f64 }
    }
}

impl Usages {
    /// Takes in what each has used until now (ns), and forgets all others.
    pub(super) fn observe<'t>(&mut self, now_ns: u64, targets: impl Iterator<Item = (&'t str, u64)>) {
        let is_noted = now_ns >= self.next_ns;
        let is_first = self.next_ns == 0;
        if is_noted {
            self.next_ns = now_ns.saturating_add(EVERY_NS);
        }
        let mut before = std::mem::take(&mut self.of);
        for (name, cpu_ns) in targets {
            let known = before.remove_entry(name);
            let is_new = known.is_none();
            let (name, mut history) =
                known.unwrap_or_else(|| (name.to_owned(), History::new(cpu_ns, !is_first)));
            history.read(cpu_ns);
            if is_noted || is_new {
                history.keep(now_ns);
            }
            self.of.insert(name, history);
        }
    }

    /// Whether a target has been there for so long (ns).
    pub(super) fn has_known(&self, name: &str, now_ns: u64, long_ns: u64) -> bool {
        let first = self.of.get(name).and_then(|history| history.readings.front());
        first.is_some_and(|(at_ns, _)| now_ns.saturating_sub(*at_ns) >= long_ns)
    }

    /// What a target used of the CPUs in so long until now.
    pub(super) fn of(&self, name: &str, now_ns: u64, range_ns: u64) -> Usage {
        self.of.get(name).map_or_else(Usage::default, |history| history.usage(now_ns, range_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Plays seconds in which a target's counter stands where `counter_s` says.
    fn played(usages: &mut Usages, seconds: std::ops::Range<u64>, counter_s: impl Fn(u64) -> f64) -> u64 {
        for at in seconds.clone() {
            usages.observe(at * SECOND_NS, [("web", (counter_s(at) * 1e9) as u64)].into_iter());
        }
        (seconds.end - 1) * SECOND_NS
    }

    fn near(usage: Usage, counted_cpus: f64, present_cpus: f64) {
        let is_near = |value: f64, expected: f64| (value - expected).abs() < 0.011;
        assert!(
            is_near(usage.counted_cpus, counted_cpus) && is_near(usage.present_cpus, present_cpus),
            "{usage:?} is not {counted_cpus}, {present_cpus}"
        );
    }

    #[test]
    fn it_is_what_was_used_in_the_time_that_is_asked_for() {
        let mut usages = Usages::default();
        // One CPU for ten minutes, then two.
        let now_ns = played(&mut usages, 0..751, |at| at as f64 + at.saturating_sub(600) as f64);
        near(usages.of("web", now_ns, 100 * SECOND_NS), 2.0, 2.0);
        near(usages.of("web", now_ns, 300 * SECOND_NS), 1.5, 1.5);
        assert!(usages.of["web"].readings.len() <= 35);
        near(usages.of("db", now_ns, 300 * SECOND_NS), 0.0, 0.0);
    }

    #[test]
    fn one_that_has_just_begun_used_it_since_then() {
        let mut usages = Usages::default();
        played(&mut usages, 0..1, |_| 0.0);
        usages.observe(0, std::iter::empty());
        let now_ns = played(&mut usages, 1_000..1_061, |at| (at - 1_000) as f64);
        near(usages.of("web", now_ns, 300 * SECOND_NS), 0.2, 1.0);
    }

    #[test]
    fn one_that_ran_long_before_the_first_reading_is_taken_to_have_used_as_much_then() {
        let mut usages = Usages::default();
        // Two CPUs for ten minutes; it is read from then on, and uses one.
        let now_ns = played(&mut usages, 600..661, |at| 1_200.0 + (at - 600) as f64);
        near(usages.of("web", now_ns, 300 * SECOND_NS), 1.0, 1.0);
        let now_ns = played(&mut usages, 661..1_001, |at| 1_200.0 + (at - 600) as f64);
        near(usages.of("web", now_ns, 300 * SECOND_NS), 1.0, 1.0);
    }

    #[test]
    fn a_counter_that_begins_anew_takes_nothing_away() {
        let mut usages = Usages::default();
        let now_ns = played(&mut usages, 0..301, |at| (at % 150) as f64);
        near(usages.of("web", now_ns, 300 * SECOND_NS), 298.0 / 300.0, 298.0 / 300.0);
    }

    #[test]
    fn a_clock_that_stands_still_divides_nothing() {
        let mut usages = Usages::default();
        for _ in 0..5 {
            usages.observe(0, [("web", u64::MAX)].into_iter());
        }
        for range_ns in [0, 1, u64::MAX] {
            let usage = usages.of("web", 0, range_ns);
            assert!(usage.counted_cpus.is_finite() && usage.present_cpus.is_finite());
        }
    }
}
