//! A week in seconds, with everything that may happen, against a list of what was kept.

use proptest::prelude::*;

use super::*;

/// Something that happens.
#[derive(Clone, Debug)]
enum Event {
    /// Minutes pass in which targets are watched.
    Minutes(u64),
    /// Hours pass in which nothing is.
    Pause(u64),
    /// The wall clock is set by so many minutes.
    Jump(i64),
    /// The machine starts anew.
    Reboot,
    /// The daemon starts anew.
    Restart,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        6 => (1..40_u64).prop_map(Event::Minutes),
        2 => (1..30_u64).prop_map(Event::Pause),
        1 => (-90..90_i64).prop_map(Event::Jump),
        1 => Just(Event::Reboot),
        1 => Just(Event::Restart),
    ];
    prop::collection::vec(event, 1..12)
}

struct World {
    folder: TempDir,
    store: Option<Store>,
    now: Now,
    /// Wall-clock begin and weight of each window that was kept.
    kept: Vec<(u64, u64)>,
}

impl World {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let store = Some(store(folder.path()));
        Self { folder, store, now: now(MIDNIGHT), kept: Vec::new() }
    }

    fn pass(&mut self, ns: u64) {
        self.now.unix_ns += ns;
        self.now.monotonic_ns += ns;
    }

    fn step(&mut self, event: &Event) {
        match event {
            Event::Minutes(minutes) => (0..*minutes).for_each(|_| self.minute()),
            Event::Pause(hours) => self.pass(hours * HOUR),
            Event::Jump(minutes) => {
                self.now.unix_ns = self.now.unix_ns.saturating_add_signed(minutes * MINUTE as i64);
            }
            Event::Reboot => {
                self.now.boot = format!("boot {}", self.kept.len());
                self.now.monotonic_ns = 1;
                self.restart();
            }
            Event::Restart => self.restart(),
        }
        let store = self.store.as_mut().unwrap();
        while store.maintain(&self.now, &|| true) {}
    }

    fn restart(&mut self) {
        drop(self.store.take());
        self.store = Some(store(self.folder.path()));
        assert_eq!(self.store.as_ref().unwrap().counters(), Counters::default());
    }

    fn minute(&mut self) {
        let (begin, from_ns) = (self.now.unix_ns, self.now.monotonic_ns);
        self.pass(MINUTE);
        let cpu_ns = 1 + self.kept.len() as u64;
        let (boot, to_ns) = (self.now.boot.clone(), self.now.monotonic_ns);
        let window = TargetWindow { boot, from_ns, to_ns, begin_unix_ns: begin, ..window("web", MIDNIGHT) };
        self.store.as_mut().unwrap().write(&self.now, window, &profile(begin, cpu_ns)).unwrap();
        self.kept.push((begin, cpu_ns));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn whatever_happens_every_window_counts_once(events in events(), hour in 0..60_u64) {
        let mut world = World::new();
        for event in &events {
            world.step(event);
            let all: u64 = world.kept.iter().map(|(_, weight)| weight).sum();
            prop_assert_eq!(cpu_ns(world.folder.path(), &ever()), all);
        }
        // Cut at a day, left and right are all: what a day keeps to ten minutes lies on one side of it.
        let cut = MIDNIGHT + hour / 24 * DAY;
        let sides = cpu_ns(world.folder.path(), &range(0, cut)) + cpu_ns(world.folder.path(), &range(cut, u64::MAX));
        prop_assert_eq!(sides, cpu_ns(world.folder.path(), &ever()));
        let counters = world.store.as_ref().unwrap().counters();
        prop_assert_eq!((counters.unmerged, counters.unsynced, counters.damaged), (0, 0, 0));
    }
}
