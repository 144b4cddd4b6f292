use super::*;
use proptest::prelude::*;

const SLICE_NS: u64 = 100_000;
const PERIOD_NS: u64 = 1_000_000;

/// An event of one task, as the kernel has it: a countdown in CPU time.
struct Event {
    event: u64,
    stream: u64,
    tid: u32,
    period_ns: u64,
    left_ns: i64,
}

/// A CPU whose one parent creates child after child, and the clocks of both.
struct Machine {
    now_ns: u64,
    events: Vec<Event>,
    streams: u64,
    /// The last task created; 1 is the parent, which works when it has no child.
    tid: u32,
    /// CPU time that the child has yet to use (ns).
    child_ns: u64,
    book: ClockBook,
    dither: Dither,
    rng: fastrand::Rng,
    weight_ns: u64,
    cpu_ns: u64,
}

impl Machine {
    fn new(seed: u64) -> Self {
        let mut machine = Machine {
            now_ns: 1,
            events: Vec::new(),
            streams: 0,
            tid: 1,
            child_ns: 0,
            book: ClockBook::default(),
            dither: Dither::new(seed),
            rng: fastrand::Rng::with_seed(seed),
            weight_ns: 0,
            cpu_ns: 0,
        };
        machine.open(1);
        machine.book.hand_over(0, []);
        machine
    }

    fn tasks(&self) -> Vec<u32> {
        if self.child_ns > 0 { vec![1, self.tid] } else { vec![1] }
    }

    fn open(&mut self, tid: u32) {
        self.streams += 1;
        let (event, period_ns) = (self.streams, self.dither.draw(PERIOD_NS));
        self.events.push(Event { event, stream: event, tid, period_ns, left_ns: period_ns as i64 });
        self.book.started(event, ClockSlot { tid: Some(tid), cpu: 0 }, self.now_ns, period_ns, PERIOD_NS);
    }

    fn fork(&mut self, child_ns: u64) {
        (self.tid, self.child_ns) = (self.tid + 1, child_ns);
        for i in 0..self.events.len() {
            let Event { event, tid, period_ns, .. } = self.events[i];
            if tid == 1 {
                self.streams += 1;
                let (stream, tid) = (self.streams, self.tid);
                self.events.push(Event { event, stream, tid, period_ns, left_ns: period_ns as i64 });
            }
        }
    }

    /// The task whose turn it is runs for a slice.
    fn slice(&mut self) {
        if self.child_ns == 0 && self.rng.u8(..) < 16 {
            let child_ns = self.rng.u64(1..=1_000) * SLICE_NS;
            self.fork(child_ns);
        }
        let tid = if self.child_ns > 0 { self.tid } else { 1 };
        self.now_ns += SLICE_NS;
        self.cpu_ns += SLICE_NS;
        for event in self.events.iter_mut().filter(|event| event.tid == tid) {
            event.left_ns -= SLICE_NS as i64;
            if event.left_ns <= 0 {
                event.left_ns += event.period_ns as i64;
                let Event { event, stream, period_ns: opened_period_ns, .. } = *event;
                let hit = Hit { event, stream, tid, cpu: 0, time_ns: self.now_ns, opened_period_ns };
                self.weight_ns += self.book.weigh(&hit).unwrap_or(0);
            }
        }
        if tid != 1 {
            self.child_ns -= SLICE_NS;
        }
        if tid != 1 && self.child_ns == 0 {
            self.events.retain(|event| event.tid != tid);
            self.book.ended(tid);
        }
    }

    /// As the sampler does it, while the tasks run on.
    fn renew(&mut self) {
        let outgoing: FxHashSet<u64> = self.events.iter().map(|event| event.event).collect();
        let mut attached = Vec::new();
        loop {
            let listed = self.tasks();
            let new: Vec<u32> = listed.into_iter().filter(|tid| !attached.contains(tid)).collect();
            if new.is_empty() {
                break;
            }
            for tid in new {
                attached.push(tid);
                self.slice();
                if self.tasks().contains(&tid) {
                    self.open(tid);
                }
            }
            (0..20).for_each(|_| self.slice());
        }
        self.book.hand_over(self.now_ns, outgoing.iter().copied());
        self.slice();
        self.events.retain(|event| !outgoing.contains(&event.event));
        self.book.forget(self.now_ns);
    }
}

fn relative_error(renew_every_ms: u64, seed: u64) -> f64 {
    let mut machine = Machine::new(seed);
    let slices = renew_every_ms * 1_000_000 / SLICE_NS;
    while machine.cpu_ns < 40_000_000_000 {
        (0..slices).for_each(|_| machine.slice());
        machine.renew();
    }
    machine.weight_ns as f64 / machine.cpu_ns as f64 - 1.0
}

#[test]
fn weights_of_short_lived_children_add_up() {
    let error = relative_error(40_000, 1);
    assert!(error.abs() < 0.003, "{error:+.4}");
}

#[test]
fn weights_add_up_while_clocks_are_renewed() {
    for (every_ms, seed) in [(1_000, 1), (100, 2), (50, 3)] {
        let error = relative_error(every_ms, seed);
        assert!(error.abs() < 0.01, "renewed every {every_ms} ms: {error:+.4}");
    }
}

fn hit(event: u64, stream: u64, tid: u32, time_ns: u64) -> Hit {
    Hit { event, stream, tid, cpu: 0, time_ns, opened_period_ns: 1_000 }
}

fn slot(tid: u32) -> ClockSlot {
    ClockSlot { tid: Some(tid), cpu: 0 }
}

/// The clock of thread 7 is renewed, and thread 8 is given one of its own meanwhile.
fn renewed() -> ClockBook {
    let mut book = ClockBook::default();
    book.started(1, slot(7), 0, 1_000, 1_000);
    book.hand_over(0, []);
    book.started(2, slot(7), 5_000, 1_000, 1_000);
    book.started(3, slot(8), 6_000, 1_000, 1_000);
    book.hand_over(9_000, [1]);
    book
}

#[test]
fn of_two_clocks_exactly_one_counts_at_any_time() {
    let mut book = renewed();
    // A thread with clocks of its own; a child that got one in between; one that only inherits both.
    for (tid, changes_ns, new) in [(7, 5_000, (2, 2)), (8, 6_000, (3, 3)), (9, 9_000, (2, 40))] {
        let before = changes_ns - 1;
        assert!(book.weigh(&hit(1, 20 + u64::from(tid), tid, before)).is_some(), "{tid}");
        assert!(book.weigh(&hit(new.0, new.1, tid, before)).is_none(), "{tid}");
        assert!(book.weigh(&hit(1, 20 + u64::from(tid), tid, changes_ns)).is_none(), "{tid}");
        assert!(book.weigh(&hit(new.0, new.1, tid, changes_ns)).is_some(), "{tid}");
    }
    assert!(book.weigh(&hit(2, 50, 8, 10_000)).is_none()); // what it inherited beside its own
}

/// A thread that is born while clocks are renewed inherits a new one and is given one of its own; its children inherit both.
#[test]
fn of_two_clocks_of_one_set_one_counts_and_the_other_is_told() {
    let mut book = renewed();
    assert_eq!(book.weigh(&hit(3, 40, 9, 10_000)), Some(1_500));
    assert_eq!((book.weigh(&hit(2, 41, 9, 10_100)), book.twice_ns()), (None, 1_000));
    assert_eq!((book.weigh(&hit(2, 41, 9, 11_100)), book.twice_ns()), (None, 2_000));
    assert_eq!(book.weigh(&hit(3, 40, 9, 11_500)), Some(1_000));
    assert_eq!((book.weigh(&hit(2, 42, 8, 12_000)), book.twice_ns()), (None, 3_000));
    // What another set samples meanwhile is no such thing: it is known when that began and ended.
    book.started(4, slot(7), 13_000, 1_000, 1_000);
    assert_eq!((book.weigh(&hit(4, 50, 9, 14_000)), book.twice_ns()), (None, 3_000));
    book.hand_over(15_000, [2, 3]);
    assert_eq!(book.weigh(&hit(4, 50, 9, 15_000)), Some(1_500));
    assert_eq!((book.weigh(&hit(3, 40, 9, 15_100)), book.twice_ns()), (None, 3_000));
}

#[test]
fn clocks_of_whole_cpus_take_over_from_those_of_threads_and_back() {
    let mut book = ClockBook::default();
    book.started(1, ClockSlot { tid: Some(7), cpu: 0 }, 0, 1_000, 1_000);
    book.hand_over(0, []);
    book.started(2, ClockSlot { tid: None, cpu: 0 }, 5_000, 1_000, 1_000);
    book.hand_over(6_000, [1]);
    assert!(book.weigh(&hit(2, 2, 7, 4_999)).is_none() && book.weigh(&hit(1, 1, 7, 4_999)).is_some());
    assert!(book.weigh(&hit(2, 2, 7, 5_000)).is_some() && book.weigh(&hit(1, 1, 7, 5_000)).is_none());
    book.started(3, ClockSlot { tid: Some(7), cpu: 0 }, 8_000, 1_000, 1_000);
    book.hand_over(9_000, [2]);
    assert!(book.weigh(&hit(2, 2, 7, 8_500)).is_none() && book.weigh(&hit(3, 3, 7, 8_500)).is_some());
    assert!(book.weigh(&hit(2, 2, 6, 8_500)).is_some() && book.weigh(&hit(3, 9, 6, 8_500)).is_none());
    assert!(book.weigh(&hit(2, 2, 6, 9_500)).is_none() && book.weigh(&hit(3, 9, 6, 9_500)).is_some());
}

#[test]
fn the_number_of_an_ended_thread_is_free() {
    let mut book = ClockBook::default();
    book.started(1, ClockSlot { tid: Some(7), cpu: 0 }, 0, 1_000, 1_000);
    book.started(2, ClockSlot { tid: Some(8), cpu: 0 }, 0, 1_000, 1_000);
    book.hand_over(0, []);
    assert_eq!(book.weigh(&hit(1, 30, 8, 2_000)), None);
    book.ended(8);
    assert_eq!(book.weigh(&hit(1, 30, 8, 3_000)), Some(1_500));
    assert_eq!(book.weigh(&hit(1, 30, 8, 4_000)), Some(1_000));
}

#[test]
fn retired_clocks_are_forgotten() {
    let mut book = ClockBook::default();
    for event in 0..100 {
        let at_ns = event * 1_000_000_000;
        book.started(event, ClockSlot { tid: Some(event as u32), cpu: 0 }, at_ns, 1_000, 1_000);
        book.hand_over(at_ns, event.checked_sub(1));
        book.weigh(&hit(event, 1_000 + event, 5_000, at_ns));
        book.forget(at_ns);
    }
    assert!(book.knows(99) && !book.knows(90));
    let sizes = [book.clocks.len(), book.events.len(), book.timelines.len(), book.inherited.len()];
    assert!(sizes.iter().all(|size| *size <= 7), "{sizes:?}");
}

proptest! {
    #[test]
    fn hostile_samples_do_no_harm(x in prop::collection::vec(prop_oneof![0..4u64, any::<u64>()], 60)) {
        let mut book = ClockBook::default();
        for x in x.chunks_exact(6) {
            let slot = ClockSlot { tid: (x[0] != 0).then_some(x[0] as u32), cpu: x[1] as u32 };
            book.started(x[2], slot, x[3], x[4], x[5]);
            book.hand_over(x[4], [x[5]]);
            book.set(slot, x[0], x[1], x[2]);
            let (event, stream, tid, cpu) = (x[2], x[3], x[0] as u32, x[1] as u32);
            book.weigh(&Hit { event, stream, tid, cpu, time_ns: x[4], opened_period_ns: x[5] });
            book.ended(x[5] as u32);
            book.forget(x[1]);
        }
    }
}
