//! What the first samples decide.

use super::*;
use crate::stack::ObjectId;
use proptest::prelude::*;

const STACK: [u64; 6] = [10, 20, 30, 40, 50, 60];

fn in_place(address: u64) -> Frame {
    Frame { object: ObjectId(0), address }
}

fn trial(chain: &[u64], samples: u32) -> (MethodChoice, Option<Method>) {
    let mut choice = MethodChoice::auto();
    let decided = (0..samples).find_map(|_| {
        choice.compare(chain, &STACK, Outcome::Complete, StackEnd::Inner, in_place);
        choice.revise(0)
    });
    (choice, decided)
}

#[test]
fn agreeing_chains_are_trusted_and_their_outermost_frame_is_the_mark_of_a_complete_one() {
    let (mut choice, decided) = trial(&STACK[..4], TRIAL_SAMPLES);
    assert_eq!(decided, Some(Method::Fp));
    assert_eq!(choice.judge(&[1, 2, 40], false, StackEnd::Inner, in_place), Outcome::Complete);
    assert_eq!(choice.judge(&[1, 2, 41], false, StackEnd::Inner, in_place), Outcome::Broken);
    assert_eq!(choice.judge(&[1, 2, 40], true, StackEnd::Inner, in_place), Outcome::ChainTooLong);
    assert_eq!(choice.judge(&[], false, StackEnd::Inner, in_place), Outcome::NoUserStack);
}

/// The next process of a program has it mapped elsewhere.
#[test]
fn how_stacks_end_holds_for_whoever_runs_the_same_code() {
    let (mut choice, _) = trial(&STACK, TRIAL_SAMPLES);
    let elsewhere = |address: u64| in_place(address - 1_000);
    assert_eq!(choice.judge(&[1_010, 1_060], false, StackEnd::Inner, elsewhere), Outcome::Complete);
    assert_eq!(choice.judge(&[10, 1_060], false, StackEnd::Inner, in_place), Outcome::Broken);
}

#[test]
fn a_chain_that_skips_a_caller_or_ends_early_is_not_trusted() {
    assert_eq!(trial(&[10, 30, 40, 50, 60], FIRST_STACKS + 2).1, Some(Method::Dwarf));
    assert_eq!(trial(&STACK[..2], FIRST_STACKS + 2).1, Some(Method::Dwarf));
}

/// As in a program without frame pointers whose threads begin with zero in that register (musl).
#[test]
fn a_chain_without_any_caller_is_not_trusted_however_short_the_stack() {
    let mut choice = MethodChoice::auto();
    let compare = |choice: &mut MethodChoice, stack| {
        choice.compare(&[10], stack, Outcome::Complete, StackEnd::Inner, in_place);
        choice.revise(0)
    };
    let stacks: [&[u64]; 2] = [&[10, 20, 60], &[10, 30, 60]];
    let decided = (0..2 * FIRST_STACKS).find_map(|at| compare(&mut choice, stacks[at as usize % 2]));
    assert_eq!(decided, Some(Method::Dwarf));
    assert_eq!(choice.judge(&[10], false, StackEnd::Inner, in_place), Outcome::Broken);
    // A function without a caller has no other chain.
    let mut choice = MethodChoice::auto();
    assert_eq!((0..TRIAL_SAMPLES).find_map(|_| compare(&mut choice, &[10])), Some(Method::Fp));
}

#[test]
fn trust_ends_with_unknown_ends_and_is_renewed_by_audits() {
    let (mut choice, _) = trial(&STACK, TRIAL_SAMPLES);
    assert_eq!(choice.revise(AUDIT_AFTER_NS - 1), None);
    assert_eq!(choice.clone().revise(AUDIT_AFTER_NS), Some(Method::Trial));
    for _ in 0..BROKEN_TO_REVERT {
        choice.judge(&[7], false, StackEnd::Inner, in_place);
    }
    assert_eq!(choice.revise(0), Some(Method::Dwarf));
}

#[test]
fn another_program_is_compared_anew() {
    let (mut choice, _) = trial(&STACK, TRIAL_SAMPLES);
    assert_eq!(choice.program_changed(), Some(Method::Trial));
    assert_eq!(MethodChoice::fixed(Method::Fp).program_changed(), None);
}

#[test]
fn one_disagreement_takes_more_comparisons() {
    let mut choice = MethodChoice::auto();
    choice.compare(&STACK[..2], &STACK, Outcome::Complete, StackEnd::Inner, in_place);
    let decided = (1..).find_map(|samples| {
        choice.compare(&STACK, &STACK, Outcome::Complete, StackEnd::Inner, in_place);
        Some((samples, choice.revise(0)?))
    });
    assert_eq!(decided, Some((LONGER_TRIAL * TRIAL_SAMPLES - 1, Method::Fp)));
}

#[test]
fn a_chain_is_judged_by_its_end_whatever_the_user_chose() {
    let judge = |mut choice: MethodChoice, end| choice.judge(&[1, 2], false, end, in_place);
    let fp = || MethodChoice::fixed(Method::Fp);
    for end in [StackEnd::Outermost, StackEnd::OutermostBeginning] {
        assert_eq!(judge(fp(), end), Outcome::Complete);
        assert_eq!(judge(MethodChoice::auto(), end), Outcome::Complete);
    }
    assert_eq!(judge(fp(), StackEnd::Inner), Outcome::Broken, "callers are missing");
    assert_eq!(judge(fp(), StackEnd::NoCode), Outcome::Broken);
    // Of what nothing is known the user may know more.
    assert_eq!(judge(fp(), StackEnd::Unknown), Outcome::Complete);
    assert_eq!(judge(MethodChoice::auto(), StackEnd::Unknown), Outcome::Broken);
    let nowhere = |address| Frame { object: ObjectId::UNKNOWN, address };
    assert_eq!(fp().judge(&[1, 2], false, StackEnd::Unknown, nowhere), Outcome::Broken);
}

/// What both together give of a stack, if that is whole.
fn whole(
    choice: &mut MethodChoice,
    chain: &[u64],
    stack: &[u64],
    outcome: Outcome,
    end: StackEnd,
) -> Option<Vec<u64>> {
    let continued = choice.compare(chain, stack, outcome, end, in_place)?;
    let mut stack = stack.to_vec();
    continued.apply(chain, &mut stack);
    Some(stack)
}

/// As in a runtime that changes stacks for its own work: the tables read on in the words that another thread left there.
#[test]
fn a_stack_goes_on_by_frame_pointers_where_its_thread_has_changed_stacks() {
    let goes_on = |chain: &[u64], stack: &[u64], outcome, end| {
        whole(&mut MethodChoice::auto(), chain, stack, outcome, end)
    };
    let outermost = StackEnd::Outermost;
    for outcome in [Outcome::Broken, Outcome::NoTables, Outcome::OtherStack, Outcome::Complete] {
        let found = goes_on(&STACK, &[10, 20, 30], outcome, outermost);
        assert_eq!(
            found.is_some(),
            outcome != Outcome::Complete,
            "a coroutine ends where it began: {outcome:?}"
        );
        assert_eq!(goes_on(&STACK, &[10, 20, 7], outcome, outermost), Some(STACK.to_vec()), "7 is made up");
        // The innermost function has no frame, and its caller is in the tables alone.
        let skipping = [&[1][..], &STACK[2..]].concat();
        let found = goes_on(&skipping, &[1, 20, 30, 7], outcome, outermost);
        assert_eq!(found, Some([&[1, 20], &STACK[2..]].concat()));
        assert_eq!(goes_on(&STACK, &[10, 20, 7], outcome, StackEnd::Inner), None, "nor is it whole");
        assert_eq!(goes_on(&STACK, &[10, 7, 8], outcome, outermost), None, "one frame may agree by chance");
        assert_eq!(goes_on(&[10, 20, 60], &[10, 20, 7, 8], outcome, outermost), None, "callers are left out");
        assert_eq!(goes_on(&STACK, &[10, 20, 7, 8, 9], outcome, outermost), None);
    }
    assert_eq!(goes_on(&[], &[], Outcome::Broken, outermost), None);
}

#[test]
fn frame_pointers_are_taken_where_tables_never_reach_the_end() {
    let mut choice = MethodChoice::auto();
    let decided = (1..).find_map(|samples| {
        choice.compare(&STACK, &[10, 20, 7], Outcome::Broken, StackEnd::Outermost, in_place);
        Some((samples, choice.revise(0)?))
    });
    assert_eq!(decided, Some((TRIAL_SAMPLES, Method::Fp)));
}

#[test]
fn both_are_taken_for_as_long_as_both_are_needed() {
    let mut choice = MethodChoice::auto();
    // Functions without a frame, and one stack in ten that the tables lose.
    let mut phase = |lost: usize, samples: usize| {
        (0..samples).find_map(|sample| {
            match sample % 10 < lost {
                true => choice.compare(&STACK, &[10, 20, 7], Outcome::Broken, StackEnd::Outermost, in_place),
                false => choice.compare(
                    &[10, 30, 40, 50, 60],
                    &STACK,
                    Outcome::Complete,
                    StackEnd::Outermost,
                    in_place,
                ),
            };
            choice.revise(0)
        })
    };
    assert_eq!(phase(1, 10_000), None);
    assert_eq!(phase(0, 10_000), Some(Method::Dwarf), "the tables lose none any more");
}

#[test]
fn what_the_tables_lose_is_compared_again_and_ever_more_rarely() {
    let mut choice = trial(&STACK[..2], FIRST_STACKS + 2).0;
    let mut now_ns = 0;
    let mut begins_after = |choice: &mut MethodChoice, lost: u32| {
        (0..500u64).find(|_| {
            now_ns += 1_000_000_000;
            let outcome = |sample| if sample < lost { Outcome::Broken } else { Outcome::Complete };
            (0..TRIAL_SAMPLES).for_each(|sample| choice.note_unwound(outcome(sample)));
            choice.revise(now_ns) == Some(Method::Trial)
        })
    };
    let give_up = |choice: &mut MethodChoice| {
        let decided = (1..).find_map(|samples| {
            choice.compare(&STACK[..2], &STACK, Outcome::Complete, StackEnd::Inner, in_place);
            Some((samples, choice.revise(0)?))
        });
        assert_eq!(decided, Some((TRIAL_SAMPLES, Method::Dwarf)));
    };
    assert_eq!(begins_after(&mut choice, TRIAL_SAMPLES / LOST_ONE_IN - 1), None);
    assert_eq!(begins_after(&mut choice, TRIAL_SAMPLES / LOST_ONE_IN), Some(0));
    give_up(&mut choice);
    assert_eq!(begins_after(&mut choice, TRIAL_SAMPLES), Some(29));
    give_up(&mut choice);
    assert_eq!(begins_after(&mut choice, TRIAL_SAMPLES), Some(59));
    let mut fixed = MethodChoice::fixed(Method::Dwarf);
    assert_eq!(begins_after(&mut fixed, TRIAL_SAMPLES), None);
}

/// They are the dynamic linker's.
#[test]
fn the_first_stacks_of_a_program_do_not_decide() {
    let mut choice = MethodChoice::auto();
    for _ in 0..FIRST_STACKS {
        choice.compare(&STACK[..2], &STACK, Outcome::Complete, StackEnd::Inner, in_place);
        assert_eq!(choice.revise(0), None);
    }
    let decided = (1..).find_map(|samples| {
        choice.compare(&STACK, &STACK, Outcome::Complete, StackEnd::Inner, in_place);
        Some((samples, choice.revise(0)?))
    });
    assert_eq!(decided, Some((TRIAL_SAMPLES, Method::Fp)));
    // An audit comes amid the program.
    assert_eq!(choice.revise(AUDIT_AFTER_NS), Some(Method::Trial));
    (0..2)
        .for_each(|_| _ = choice.compare(&STACK[..2], &STACK, Outcome::Complete, StackEnd::Inner, in_place));
    assert_eq!(choice.revise(AUDIT_AFTER_NS), Some(Method::Dwarf));
}

/// Frame pointers lead on where a copy ends.
#[test]
fn a_cut_stack_is_completed_by_a_chain_that_ends_as_complete_ones_do() {
    for cut in [Outcome::CopyTooShort, Outcome::StackAbsent] {
        let mut choice = MethodChoice::auto();
        assert_eq!(
            choice.compare(&STACK, &STACK[..2], cut, StackEnd::Inner, in_place),
            None,
            "nobody knows how stacks end"
        );
        assert_eq!(choice.compare(&STACK, &STACK, Outcome::Complete, StackEnd::Inner, in_place), None);
        assert_eq!(whole(&mut choice, &STACK, &STACK[..2], cut, StackEnd::Inner), Some(STACK.to_vec()));
        assert_eq!(
            choice.compare(&STACK[..5], &STACK[..2], cut, StackEnd::Inner, in_place),
            None,
            "that is no end"
        );
        let decided = (0..TRIAL_SAMPLES).find_map(|_| {
            choice.compare(&STACK, &STACK[..2], cut, StackEnd::Inner, in_place);
            choice.revise(0)
        });
        assert_eq!(decided, Some(Method::Fp));
    }
}

#[test]
fn a_chain_that_leaves_out_a_caller_of_a_cut_stack_is_not_trusted() {
    let mut choice = MethodChoice::auto();
    let decided = (0..FIRST_STACKS + 2).find_map(|_| {
        choice.compare(&[10, 30, 40, 50, 60], &STACK[..3], Outcome::CopyTooShort, StackEnd::Inner, in_place);
        choice.revise(0)
    });
    assert_eq!(decided, Some(Method::Dwarf));
}

#[test]
fn a_comparison_that_no_complete_stack_allows_is_given_up() {
    let mut choice = MethodChoice::auto();
    let decided = (1..=TRIAL_LIMIT).find_map(|samples| {
        choice.compare(&STACK, &STACK[..2], Outcome::CopyTooShort, StackEnd::Inner, in_place);
        Some((samples, choice.revise(0)?))
    });
    assert_eq!(decided, Some((TRIAL_LIMIT, Method::Dwarf)));
}

#[derive(Clone, Debug)]
enum Step {
    Compare { agrees: bool, outcome: Outcome },
    Judge { chain: Vec<u64>, limit_reached: bool },
    Pass(u64),
    Program,
}

fn step() -> impl Strategy<Value = Step> {
    let outcome = prop_oneof![Just(Outcome::Complete), Just(Outcome::Broken), Just(Outcome::CopyTooShort)];
    let compare = (prop::bool::weighted(0.99), outcome);
    let chain = prop::collection::vec(prop_oneof![Just(50u64), Just(60), Just(7)], 0..3);
    prop_oneof![
        20 => compare.prop_map(|(agrees, outcome)| Step::Compare { agrees, outcome }),
        20 => (chain, any::<bool>()).prop_map(|(chain, limit_reached)| Step::Judge { chain, limit_reached }),
        2 => (0u64..40_000_000_000).prop_map(Step::Pass),
        1 => Just(Step::Program),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_history_ends_in_a_method_that_was_announced(
        steps in prop::collection::vec((step(), 1usize..120), 0..80),
        fixed in prop::option::of(prop_oneof![Just(Method::Fp), Just(Method::Dwarf)]),
    ) {
        let mut choice = fixed.map_or_else(MethodChoice::auto, MethodChoice::fixed);
        let (mut method, mut now_ns, mut agreed) = (choice.method(), 0u64, 0);
        for (step, times) in steps {
            for _ in 0..times {
                let mut announced = None;
                match &step {
                    Step::Compare { agrees, outcome } if method == Method::Trial => {
                        choice.compare(if *agrees { &STACK[..5] } else { &STACK[..1] }, &STACK, *outcome, StackEnd::Inner, in_place);
                        agreed += u32::from(*agrees && *outcome == Outcome::Complete);
                    }
                    Step::Compare { .. } => {}
                    Step::Judge { chain, limit_reached } => {
                        let outcome = choice.judge(chain, *limit_reached, StackEnd::Inner, in_place);
                        prop_assert_eq!(outcome == Outcome::NoUserStack, chain.is_empty());
                        // Without a comparison, nothing makes a chain complete that ends in a function like others.
                        let trusted = agreed > 0;
                        prop_assert!(outcome != Outcome::Complete || trusted);
                    }
                    Step::Pass(ns) => now_ns += ns / 100,
                    Step::Program => announced = choice.program_changed(),
                }
                announced = choice.revise(now_ns).or(announced);
                prop_assert_eq!(announced.unwrap_or(method), choice.method());
                prop_assert!(fixed.is_none_or(|fixed| fixed == choice.method()));
                // Frame pointers alone are taken after a trial, and only then.
                let from_trial = method == Method::Trial && agreed > 0;
                prop_assert!(announced != Some(Method::Fp) || from_trial);
                method = choice.method();
            }
        }
    }
}
