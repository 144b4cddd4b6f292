//! Records as agents write them, from this process: told as the kernel would have, and weighed as the handler says.

use agent_memory::{REGISTERS, RecordKind, SAMPLE_HEAD_WORDS, Slot};
use proptest::prelude::*;

use super::*;

const SETTINGS: ClockSettings = ClockSettings {
    period_ns: 10_000_000,
    method: profiler_core::unwind::method::Method::Dwarf,
    stack_bytes: 4096,
    mappings: true,
};

fn sampler(root: u32) -> TimerSampler {
    let mut sampler = TimerSampler::new(SETTINGS, Dither::new(1), 1).unwrap();
    sampler.follow(root);
    sampler
}

fn write(slot: &Slot<'_>, words: &[u64]) -> bool {
    let Some(entry) = slot.ring().unwrap().begin(words.len()) else { return false };
    words.iter().enumerate().for_each(|(index, word)| entry.put(index, *word));
    entry.publish();
    true
}

fn sample_at(time_ns: u64, weight_ns: u64, stack: &[u64]) -> Vec<u64> {
    let head =
        SampleHead { time_ns, weight_ns, handler_ns: 900, requested_bytes: 4096, registers: [7; REGISTERS] };
    [&head.words(SAMPLE_HEAD_WORDS + stack.len()), stack].concat()
}

/// What a drain hands over, in words.
fn told(sampler: &mut TimerSampler, until_ns: u64) -> Vec<String> {
    let mut told = Vec::new();
    sampler.drain(until_ns, &mut |drained| {
        told.push(match drained {
            Drained::Record(Record::Sample(sample), weight_ns) => {
                let stack = sample.stack.map_or(0, |stack| stack.len());
                format!("sample of {} at {} for {weight_ns} with {stack}", sample.tid, sample.time_ns)
            }
            Drained::Record(Record::Fork(task), _) => {
                format!("{} from {} in {}", task.tid, task.parent_pid, task.pid)
            }
            Drained::Record(Record::Comm { pid, name, exec, .. }, _) => format!("{pid} is {name} {exec}"),
            Drained::Record(Record::Mmap(mapped), _) => format!("{} maps {}", mapped.pid, mapped.path),
            Drained::Record(Record::Exit(task), _) => format!("{} ends", task.tid),
            Drained::Record(Record::Lost { count }, _) => format!("{count} lost"),
            Drained::Undecodable => "undecodable".to_owned(),
            other => panic!("{:?}", matches!(other, Drained::Double)),
        });
    });
    told
}

#[test]
fn samples_of_all_threads_come_in_the_order_of_time_and_young_ones_wait() {
    let mut sampler = sampler(70);
    let shared = Arc::clone(&sampler.shared.memory);
    let memory = Memory::open(shared.words()).unwrap();
    let slots = [(70, 70), (70, 71)].map(|(pid, tid)| memory.slot(memory.claim(pid, tid).unwrap()).unwrap());
    assert!(write(&slots[0], &sample_at(10, 100, &[1, 2])) && write(&slots[0], &sample_at(30, 100, &[])));
    assert!(write(&slots[1], &sample_at(20, u64::MAX, &[])) && write(&slots[1], &sample_at(99, 1, &[])));
    slots[1].end();
    let first = [
        "71 from 70 in 70".to_owned(),
        "sample of 70 at 10 for 100 with 16".to_owned(),
        format!("sample of 71 at 20 for {HEAVIEST_NS} with 0"),
        "sample of 70 at 30 for 100 with 0".to_owned(),
    ];
    assert_eq!(told(&mut sampler, 50), first);
    assert!(sampler.has_records() && sampler.clock_count() == 2);
    assert_eq!(told(&mut sampler, 100), ["sample of 71 at 99 for 1 with 0", "71 ends"]);
    assert!(!sampler.has_records() && sampler.clock_count() == 1);
    let times = sampler.take_handler_times();
    assert_eq!((times.len(), times[0].time_ns, times[0].stack_bytes), (4, 900.0, 16));
}

/// A program can write anything into its own ring.
#[test]
fn no_sample_is_later_than_its_reading() {
    let mut sampler = sampler(70);
    let shared = Arc::clone(&sampler.shared.memory);
    let memory = Memory::open(shared.words()).unwrap();
    let slot = memory.slot(memory.claim(70, 70).unwrap()).unwrap();
    assert!(write(&slot, &sample_at(u64::MAX, 1, &[])));
    let mut latest_ns = 0;
    sampler.drain(50, &mut |drained| {
        if let Drained::Record(Record::Sample(sample), _) = drained {
            latest_ns = sample.time_ns;
        }
    });
    assert!(latest_ns > 0 && latest_ns <= clock::monotonic_ns(), "{latest_ns}");
}

#[test]
fn a_handler_s_time_is_a_sample_s_where_it_tells_how_late_it_began() {
    let mut sampler = sampler(70);
    sampler.target.at_tick =
        Some(AtTick { period_ns: 4_000_000, place_ns: 100, share: 0.25, share_se: 0.01 });
    let shared = Arc::clone(&sampler.shared.memory);
    let memory = Memory::open(shared.words()).unwrap();
    let slot = memory.slot(memory.claim(70, 70).unwrap()).unwrap();
    let late_by = [20_000, 40_000, 2_000_000];
    assert!(late_by.iter().zip(0..).all(|(late_ns, tick): (&u64, u64)| {
        write(&slot, &sample_at(4_000_000 * tick + 100 + late_ns, 1, &[]))
    }));
    told(&mut sampler, 50_000_000);
    let times = sampler.take_handler_times();
    assert_eq!(times.iter().map(|time| time.time_ns).collect::<Vec<_>>(), [5_900.0, 10_900.0]);
}

#[test]
fn a_process_tells_of_itself_and_one_without_a_known_parent_is_the_first_ones() {
    // Numbers that no process has: who is there is asked where it comes from.
    const CHILD: u32 = 5_000_080;
    const STRANGER: u32 = 5_000_090;
    let mut sampler = sampler(70);
    let shared = Arc::clone(&sampler.shared.memory);
    let memory = Memory::open(shared.words()).unwrap();
    let slot = |pid| memory.slot(memory.claim(pid, pid).unwrap()).unwrap();
    let (child, stranger) = (slot(CHILD), slot(STRANGER));
    let line = b"1000-2000 r-xp 00000000 fe:01 7 /bin/cat\n";
    let text: Vec<u64> = line
        .chunks(8)
        .map(|part| {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            u64::from_ne_bytes(word)
        })
        .collect();
    assert!(write(
        &child,
        &agent_memory::Begun::words(RecordKind::Forked, 5, 70, *b"cat\0\0\0\0\0\0\0\0\0\0\0\0\0")
    ));
    assert!(write(
        &stranger,
        &agent_memory::Begun::words(RecordKind::Executed, 6, 1, *b"dog\0\0\0\0\0\0\0\0\0\0\0\0\0")
    ));
    let head = [RecordKind::Mappings.heading(3 + text.len()), 7, line.len() as u64];
    assert!(write(&stranger, &[&head[..], &text].concat()));
    let expected = [
        format!("{CHILD} from 70 in {CHILD}"),
        format!("{STRANGER} from 70 in {STRANGER}"),
        format!("{STRANGER} is dog true"),
        format!("{STRANGER} maps /bin/cat"),
    ];
    assert_eq!(told(&mut sampler, 50), expected);
    assert!(write(
        &child,
        &agent_memory::Begun::words(RecordKind::Executed, 8, 70, *b"cow\0\0\0\0\0\0\0\0\0\0\0\0\0")
    ));
    assert_eq!(told(&mut sampler, 50), [format!("{CHILD} is cow true")]);
}

#[test]
fn what_finds_no_room_is_lost_and_counted() {
    let mut sampler = sampler(70);
    let shared = Arc::clone(&sampler.shared.memory);
    let memory = Memory::open(shared.words()).unwrap();
    let slot = memory.slot(memory.claim(70, 70).unwrap()).unwrap();
    let big = sample_at(5, 1, &vec![0; 7_680]); // 60 KiB
    let written = (0..10)
        .filter(|_| {
            write(&slot, &big) || {
                slot.note_dropped();
                false
            }
        })
        .count();
    assert_eq!(written, 4);
    let lines = told(&mut sampler, 50);
    assert_eq!((lines.len(), lines[4].as_str()), (5, "6 lost"));
    slot.note_dropped();
    slot.end();
    assert_eq!(told(&mut sampler, 50), ["1 lost", "70 ends"]);
    assert!(write(&slot, &big), "it is empty again");
}

/// Four thousand rings that are full would be more than a hundred megabytes at once.
#[test]
fn what_is_too_much_for_a_drain_waits_for_the_next() {
    const THREADS: u64 = 300;
    let mut sampler = sampler(70);
    let shared = Arc::clone(&sampler.shared.memory);
    let memory = Memory::open(shared.words()).unwrap();
    for thread in 0..THREADS {
        let index = memory.claim(70, 71 + thread as u32).unwrap();
        let stack = vec![0; ring_words(index) / 64 * 15]; // 60 KiB of a ring that is big
        let slot = memory.slot(index).unwrap();
        assert!((0..4).all(|round| write(&slot, &sample_at(round * THREADS + thread, 1, &stack))));
    }
    let samples = |sampler: &mut TimerSampler| -> Vec<String> {
        let told = told(sampler, 4 * THREADS);
        told.iter().filter_map(|line| line.split_once(" for ")).map(|(sample, _)| sample.to_owned()).collect()
    };
    let (first, second) = (samples(&mut sampler), samples(&mut sampler));
    assert!((500..4 * THREADS as usize).contains(&first.len()), "{}", first.len());
    let expected = (0..4 * THREADS).map(|at| format!("sample of {} at {at}", 71 + at % THREADS));
    assert!([first, second].concat().into_iter().eq(expected));
    assert!(!sampler.has_records());
}

#[test]
fn nobody_who_was_heard_is_told_and_so_are_threads_without_a_timer() {
    let mut sampler = sampler(70);
    told(&mut sampler, 50);
    assert!(sampler.shortfalls()[0].contains("was not sampled"));
    let shared = Arc::clone(&sampler.shared.memory);
    let memory = Memory::open(shared.words()).unwrap();
    memory.claim(70, 70).unwrap();
    memory.note_left_out();
    memory.note_refused();
    told(&mut sampler, 50);
    assert_eq!(sampler.shortfalls().len(), 2);
}

/// However long it took to come to that: agents that hear nothing of us take a sample in a second.
#[test]
fn what_an_agent_is_given_begins_with_a_sign_of_life() {
    let memory = AgentMemory::new().unwrap();
    let attention_ns = 60_000_000_000; // this test may be away for a while before it looks
    begin_memory(
        &memory,
        AgentSettings { period_ns: 4_000_000, now_ns: 0, attention_ns, ..AgentSettings::default() },
    );
    let told = Memory::open(memory.words()).unwrap();
    assert_eq!(told.period_at_ns(clock::monotonic_ns()), 4_000_000);
}

#[test]
fn a_sampler_that_is_dropped_has_agents_stop() {
    let sampler = sampler(70);
    let shared = Arc::clone(&sampler.shared.memory);
    let is_over = || Memory::open(shared.words()).unwrap().is_over(0);
    assert!(!is_over());
    drop(sampler);
    assert!(is_over());
}

proptest! {
    /// An agent that lies, or the program around it, harms the profile and nothing else.
    #[test]
    fn no_memory_harms_its_reader(
        writes in prop::collection::vec((0_usize..3, 0_usize..64, any::<u64>()), 0..40),
        ring in prop::collection::vec(any::<u64>(), 0..64),
        kind in 0_u64..6,
    ) {
        let mut sampler = sampler(70);
        let words = sampler.shared.memory.words().len();
        let shared = Arc::clone(&sampler.shared.memory);
    let memory = Memory::open(shared.words()).unwrap();
        let slot = memory.slot(memory.claim(70, 71).unwrap()).unwrap();
        let mut ring = ring;
        let length = ring.len() as u64;
        if let Some(first) = ring.first_mut() {
            *first = length << 8 | kind;
        }
        write(&slot, &ring);
        told(&mut sampler, 50);
        for (area, word, value) in writes {
            let at = [0, 512, words - 64][area] + word;
            sampler.shared.memory.words()[at].store(value, std::sync::atomic::Ordering::Relaxed);
        }
        for _ in 0..3 {
            told(&mut sampler, u64::MAX);
            sampler.has_records();
            sampler.shortfalls();
        }
    }
}

#[test]
fn a_number_that_is_given_again_is_another_process() {
    const PID: u32 = 5_000_070; // no process has it, so the one that had it has ended
    let mut sampler = sampler(70);
    let shared = Arc::clone(&sampler.shared.memory);
    let memory = Memory::open(shared.words()).unwrap();
    for at_ns in [5, 15] {
        let slot = memory.slot(memory.claim(PID, PID).unwrap()).unwrap();
        let name = *b"cc1\0\0\0\0\0\0\0\0\0\0\0\0\0";
        assert!(write(&slot, &agent_memory::Begun::words(RecordKind::Executed, at_ns, 1, name)));
        slot.end();
        let told = told(&mut sampler, at_ns + 5);
        assert!(told.contains(&format!("{PID} from 70 in {PID}")), "{told:?}");
    }
}

/// Records that are written while rings are read wait for those of other threads, which may be older.
#[test]
fn what_is_written_during_a_reading_waits_for_the_next() {
    let mut sampler = sampler(70);
    let shared = Arc::clone(&sampler.shared.memory);
    let memory = Memory::open(shared.words()).unwrap();
    let slot = memory.slot(memory.claim(70, 70).unwrap()).unwrap();
    let soon_ns = clock::monotonic_ns() + 500_000_000;
    assert!(write(&slot, &sample_at(soon_ns, 1, &[])));
    assert!(told(&mut sampler, 50).iter().all(|told| !told.starts_with("sample")));
    assert!(sampler.has_records());
    assert!(told(&mut sampler, soon_ns)[0].starts_with("sample of 70"));
}
