use super::*;
use crate::process::ProcessTable;
use proptest::prelude::*;

fn process() -> Process {
    let mut table = ProcessTable::default();
    table.adopt(1, "a");
    table.get(1).unwrap().clone()
}

fn chain<'a>(kernel: &'a [u64], user: &'a [u64]) -> Chain<'a> {
    Chain { kernel, user, outcome: Outcome::Complete }
}

#[test]
fn equal_stacks_are_counted_together_and_kernel_frames_stay_kernel_frames() {
    let mut aggregator = Aggregator::default();
    let process = process();
    aggregator.add(&process, chain(&[], &[1, 2]), 100);
    aggregator.add(&process, chain(&[], &[1, 2]), 50);
    aggregator.add(&process, chain(&[1], &[2]), 10);
    let aggregate = aggregator.finish(1000);
    assert_eq!(aggregate.stacks.len(), 2);
    assert_eq!(aggregate.tallies[0], [(0, Tally { samples: 2, weight_ns: 150.0 })]);
    let objects: Vec<ObjectId> =
        aggregate.stacks[1].frames.iter().map(|&id| aggregate.frames.get(id).object).collect();
    assert_eq!(objects, [ObjectId::KERNEL, ObjectId::generated_by(process.index)]);
}

#[test]
fn windows_stay_few_and_lose_no_weight() {
    let mut aggregator = Aggregator::default();
    let process = process();
    for second in 0..10_000u64 {
        aggregator.add(&process, chain(&[], &[second % 7]), 1000);
        aggregator.close_window(second + 1, 1.0);
    }
    assert_eq!(aggregator.weight_ns(), 1e7);
    let aggregate = aggregator.finish(10_000);
    assert!((MAX_WINDOWS..2 * MAX_WINDOWS).contains(&aggregate.windows.len()));
    assert!(aggregate.windows.windows(2).all(|pair| pair[0].end_ns == pair[1].start_ns));
    let samples: u64 = aggregate.tallies.iter().flatten().map(|(_, tally)| tally.samples).sum();
    assert_eq!(samples, 10_000);
}

#[test]
fn lost_samples_weigh_on_those_of_their_window() {
    let mut aggregator = Aggregator::default();
    let process = process();
    aggregator.add(&process, chain(&[], &[1]), 100);
    aggregator.close_window(1, 2.0);
    aggregator.add(&process, chain(&[], &[1]), 100);
    assert_eq!(aggregator.weight_ns(), 300.0);
}

/// Samples of a process are counted by themselves until it is known whose it is.
#[test]
fn what_another_counted_is_as_if_it_had_been_counted_here() {
    let (process, stacks) = (process(), [[1, 2], [1, 3], [4, 2]]);
    let (mut whole, mut here, mut elsewhere) =
        (Aggregator::default(), Aggregator::default(), Aggregator::default());
    for (at, user) in stacks.iter().cycle().take(30).enumerate() {
        let part = if at % 4 == 0 { &mut elsewhere } else { &mut here };
        part.add(&process, chain(&[], user), 100 + at as u64);
        whole.add(&process, chain(&[], user), 100 + at as u64);
        if at == 10 {
            elsewhere.close_window(1, 1.0); // its windows are one here
        }
    }
    assert!(!here.is_quiet());
    here.absorb(elsewhere);
    assert_eq!(here.take_function_counts(), whole.take_function_counts());
    assert_eq!(here.processes(), whole.processes());
    let by_stack = |aggregator: Aggregator| {
        let aggregate = aggregator.finish(2);
        let address = |frame: &FrameId| aggregate.frames.get(*frame).address;
        let mut tallies: Vec<_> = aggregate
            .stacks
            .iter()
            .zip(&aggregate.tallies)
            .map(|(stack, tallies)| (stack.frames.iter().map(address).collect::<Vec<u64>>(), tallies.clone()))
            .collect();
        tallies.sort_by(|one, other| one.0.cmp(&other.0));
        tallies
    };
    assert_eq!(by_stack(here), by_stack(whole));
}

#[test]
fn what_another_counted_beyond_the_bounds_keeps_its_weight() {
    let mut here = Aggregator::with_most(Most { stacks: 1, depths: 8, frames: 8 });
    let (process, mut elsewhere) = (process(), Aggregator::default());
    here.add(&process, chain(&[], &[1]), 100);
    (2..9).for_each(|address| {
        elsewhere.add(&process, chain(&[], &[address]), 100);
    });
    here.absorb(elsewhere);
    assert_eq!(here.weight_ns(), 800.0);
    let aggregate = here.finish(1);
    assert_eq!(
        aggregate.stacks.iter().map(|stack| stack.outcome).collect::<Vec<_>>(),
        [Outcome::Complete, Outcome::NotKept]
    );
}

#[test]
fn functions_have_their_parts_of_closed_windows() {
    let mut aggregator = Aggregator::default();
    let process = process();
    aggregator.add(&process, chain(&[], &[1, 5]), 100);
    aggregator.add(&process, chain(&[], &[1, 6]), 50);
    aggregator.add(&process, chain(&[8], &[1]), 10);
    aggregator.add(&process, chain(&[9], &[1]), 20);
    aggregator.close_window(1, 2.0);
    aggregator.close_window(2, 1.0);
    aggregator.add(&process, chain(&[], &[1, 5]), 7);
    aggregator.close_window(3, 1.0);
    aggregator.add(&process, chain(&[], &[1, 5]), 1_000_000); // not closed
    let (windows, functions) = aggregator.function_parts(|frame| frame);
    let window =
        |weight_ns, samples| stats::WindowSums { weight_ns, samples, ..stats::WindowSums::default() };
    assert_eq!(windows, [window(360.0, 4), window(0.0, 0), window(7.0, 1)]);
    let part = |window, weight_ns, samples| Part { window, weight_ns, samples, ..Part::default() };
    assert_eq!(
        functions,
        [vec![part(0, 300.0, 2), part(2, 7.0, 1)], vec![part(0, 20.0, 1)], vec![part(0, 40.0, 1)]]
    );
    let (_, merged) = aggregator.function_parts(|frame| frame.object);
    assert_eq!(merged[1], [part(0, 60.0, 2)]);
}

#[test]
fn raw_stacks_of_processes_that_are_not_seen_any_more_are_forgotten() {
    let mut aggregator = Aggregator::default();
    let mut table = ProcessTable::default();
    for pid in 1..1000 {
        table.adopt(pid, "a");
        aggregator.add(table.get(pid).unwrap(), chain(&[], &[1, 2]), 1);
        aggregator.close_window(u64::from(pid), 1.0);
        assert!(aggregator.raw.len() <= 1);
    }
    aggregator.close_window(1000, 1.0);
    assert!(aggregator.raw.is_empty());
    let process = table.get(1).unwrap();
    for address in 0..2 * MAX_RAW_STACKS as u64 {
        aggregator.add(process, chain(&[], &[address]), 1);
    }
    assert!(aggregator.raw[&process.index].ids.len() <= MAX_RAW_STACKS);
}

#[test]
fn the_entry_of_a_sampled_process_is_given_to_no_other() {
    let mut aggregator = Aggregator::default();
    let mut table = ProcessTable::default();
    table.adopt(1, "a");
    aggregator.add(table.get(1).unwrap(), chain(&[], &[1]), 1);
    table.forget(1);
    table.adopt(2, "b");
    let stacks = aggregator.finish(1).stacks;
    assert_eq!(table.infos()[stacks[0].process.0 as usize].comm, "a");
}

#[test]
fn what_there_is_no_room_for_keeps_its_innermost_frame_and_its_weight() {
    let mut aggregator = Aggregator::with_most(Most { stacks: 10, depths: 1000, frames: 1000 });
    let process = process();
    for caller in 0..100 {
        let (outcome, _) = aggregator.add(&process, chain(&[], &[caller % 3, 1000 + caller]), 1);
        assert_eq!(outcome, if caller < 10 { Outcome::Complete } else { Outcome::NotKept });
    }
    assert_eq!(aggregator.add(&process, chain(&[], &[0, 1000]), 1).0, Outcome::Complete, "it was there");
    assert_eq!(aggregator.add(&process, chain(&[7, 8], &[1]), 1).0, Outcome::NotKept);
    assert_eq!(aggregator.object_weights()[&ObjectId::KERNEL], 1.0);
    assert_eq!(aggregator.weight_ns(), 102.0);
    let aggregate = aggregator.finish(1);
    assert_eq!(aggregate.stacks.len(), 10 + 3 + 1);
    assert!(aggregate.stacks[10..].iter().all(|stack| stack.frames.len() == 1));
    assert_eq!(aggregate.object_weights()[&ObjectId::generated_by(process.index)], 101.0);
}

#[test]
fn frames_are_bounded_too() {
    let process = process();
    for most in
        [Most { stacks: 1000, depths: 20, frames: 1000 }, Most { stacks: 1000, depths: 1000, frames: 9 }]
    {
        let mut aggregator = Aggregator::with_most(most);
        for caller in 0..100 {
            aggregator.add(&process, chain(&[], &[5, 1000 + caller, 5000 + caller]), 1);
        }
        assert!(
            aggregator.depths <= most.depths + 1 && aggregator.frames().frames().len() <= most.frames + 1
        );
        assert_eq!(aggregator.weight_ns(), 100.0);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Add { pid: u32, outcome: Outcome, kernel: Vec<u64>, user: Vec<u64>, weight_ns: u64 },
    Close,
    Map(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let outcome = prop_oneof![Just(Outcome::Complete), Just(Outcome::Broken)];
    let addresses = || prop::collection::vec(0u64..4, 0..3);
    let add = (1u32..4, outcome, addresses(), addresses(), 0u64..1 << 40);
    let step = prop_oneof![
        6 => add.prop_map(|(pid, outcome, kernel, user, weight_ns)| Step::Add {
            pid, outcome, kernel, user, weight_ns
        }),
        4 => Just(Step::Close),
        1 => (1u32..4).prop_map(Step::Map),
    ];
    prop::collection::vec(step, 0..1500)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn weights_and_samples_are_conserved_however_time_is_cut(steps in steps()) {
        let mut table = ProcessTable::default();
        (1..4).for_each(|pid| table.adopt(pid, "a"));
        let mut aggregator = Aggregator::default();
        let mut expected: FxHashMap<(ProcessIndex, Outcome), Tally> = FxHashMap::default();
        let mut now_ns = 0;
        for step in steps {
            now_ns += 1;
            match step {
                Step::Close => aggregator.close_window(now_ns, 1.0),
                Step::Map(pid) => {
                    let (file, path) = (crate::record::FileId::default(), String::new());
                    let start = now_ns << 12;
                    let mapped = crate::record::Mapped { pid, start, len: 4096, file_offset: 0, file, path };
                    table.mapped(&mapped, |_| crate::process::LoadedObject::UNKNOWN);
                }
                Step::Add { pid, outcome, kernel, user, weight_ns } => {
                    let process = table.get(pid).unwrap();
                    aggregator.add(process, Chain { kernel: &kernel, user: &user, outcome }, weight_ns);
                    let tally = Tally { samples: 1, weight_ns: weight_ns as f64 };
                    expected.entry((process.index, outcome)).or_default().add(tally);
                }
            }
            prop_assert!(aggregator.windows.len() <= 2 * MAX_WINDOWS);
        }
        let weight_ns = aggregator.weight_ns();
        let (totals, functions) = aggregator.function_parts(|frame| frame);
        prop_assert!(functions.iter().all(|parts| parts.windows(2).all(|pair| pair[0].window < pair[1].window)));
        for (total, at) in totals.iter().zip(0..) {
            let parts = functions.iter().flatten().filter(|part| part.window == at);
            let sum = parts.fold((0.0, 0), |sum, part| (sum.0 + part.weight_ns, sum.1 + part.samples));
            prop_assert_eq!(sum, (total.weight_ns, total.samples));
        }
        let aggregate = aggregator.finish(now_ns + 1);
        prop_assert_eq!(aggregate.stacks.len(), aggregate.tallies.len());
        let mut found: FxHashMap<(ProcessIndex, Outcome), Tally> = FxHashMap::default();
        for (stack, tallies) in aggregate.stacks.iter().zip(&aggregate.tallies) {
            prop_assert!(table.infos().get(stack.process.0 as usize).is_some());
            prop_assert!(stack.frames.iter().all(|id| aggregate.frames.frames().get(id.0 as usize).is_some()));
            prop_assert!(tallies.windows(2).all(|pair| pair[0].0 < pair[1].0));
            for &(window, tally) in tallies {
                prop_assert!(aggregate.windows.get(window as usize).is_some());
                found.entry((stack.process, stack.outcome)).or_default().add(tally);
            }
        }
        prop_assert!(aggregate.windows.windows(2).all(|pair| pair[0].end_ns == pair[1].start_ns));
        // Sums of whole nanoseconds below 2^53 are exact.
        prop_assert_eq!(weight_ns, expected.values().map(|tally| tally.weight_ns).sum::<f64>());
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn cuts_add_up_to_the_whole_and_each_counts_from_zero() {
    let (mut whole, mut cut) = (Aggregator::default(), Aggregator::default());
    let process = process();
    let mut parts = Vec::new();
    for second in 0..40u64 {
        for address in 0..second % 7 {
            let user = [address, 100 + second % 3];
            let sample = chain(&[], &user);
            whole.add(&process, sample, 1000 + address);
            cut.add(&process, sample, 1000 + address);
        }
        whole.close_window(second + 1, 1.0);
        cut.close_window(second % 10 + 1, 1.0);
        if second % 10 == 9 {
            parts.push(cut.cut().finish(10));
        }
    }
    assert!(parts.iter().all(|part| part.windows.len() == 10 && part.windows[0].start_ns == 0));
    assert!(cut.windows.is_empty() && cut.stacks.is_empty() && cut.raw.is_empty());
    assert_eq!(cut.take_function_counts(), whole.take_function_counts(), "these are the controller's");
    let sums = |parts: &[Aggregate]| {
        let mut sums: FxHashMap<Vec<Frame>, (u64, f64)> = FxHashMap::default();
        for part in parts {
            for (stack, tallies) in part.stacks.iter().zip(&part.tallies) {
                let frames = stack.frames.iter().map(|&frame| part.frames.get(frame)).collect();
                let sum = sums.entry(frames).or_default();
                tallies.iter().for_each(|(_, t)| *sum = (sum.0 + t.samples, sum.1 + t.weight_ns));
            }
        }
        sums
    };
    assert_eq!(sums(&parts), sums(&[whole.finish(40)]));
}
