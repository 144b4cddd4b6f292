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
        choice.compare(chain, &STACK, Outcome::Complete, in_place);
        choice.revise(0)
    });
    (choice, decided)
}

#[test]
fn agreeing_chains_are_trusted_and_their_outermost_frame_is_the_mark_of_a_complete_one() {
    let (mut choice, decided) = trial(&STACK[..4], TRIAL_SAMPLES);
    assert_eq!(decided, Some(Method::Fp));
    assert_eq!(choice.judge(&[1, 2, 40], false, in_place), Outcome::Complete);
    assert_eq!(choice.judge(&[1, 2, 41], false, in_place), Outcome::Broken);
    assert_eq!(choice.judge(&[1, 2, 40], true, in_place), Outcome::ChainTooLong);
    assert_eq!(choice.judge(&[], false, in_place), Outcome::NoUserStack);
}

/// The next process of a program has it mapped elsewhere.
#[test]
fn how_stacks_end_holds_for_whoever_runs_the_same_code() {
    let (mut choice, _) = trial(&STACK, TRIAL_SAMPLES);
    let elsewhere = |address: u64| in_place(address - 1_000);
    assert_eq!(choice.judge(&[1_010, 1_060], false, elsewhere), Outcome::Complete);
    assert_eq!(choice.judge(&[10, 1_060], false, in_place), Outcome::Broken);
}

#[test]
fn a_chain_that_skips_a_caller_or_ends_early_is_not_trusted() {
    assert_eq!(trial(&[10, 30, 40, 50, 60], FIRST_STACKS + 2).1, Some(Method::Dwarf));
    assert_eq!(trial(&STACK[..2], FIRST_STACKS + 2).1, Some(Method::Dwarf));
}

#[test]
fn trust_ends_with_unknown_ends_and_is_renewed_by_audits() {
    let (mut choice, _) = trial(&STACK, TRIAL_SAMPLES);
    assert_eq!(choice.revise(AUDIT_AFTER_NS - 1), None);
    assert_eq!(choice.clone().revise(AUDIT_AFTER_NS), Some(Method::Trial));
    for _ in 0..BROKEN_TO_REVERT {
        choice.judge(&[7], false, in_place);
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
    choice.compare(&STACK[..2], &STACK, Outcome::Complete, in_place);
    let decided = (1..).find_map(|samples| {
        choice.compare(&STACK, &STACK, Outcome::Complete, in_place);
        Some((samples, choice.revise(0)?))
    });
    assert_eq!(decided, Some((LONGER_TRIAL * TRIAL_SAMPLES - 1, Method::Fp)));
}

#[test]
fn a_chain_that_leads_into_data_is_not_whole_whatever_the_user_chose() {
    let mut choice = MethodChoice::fixed(Method::Fp);
    assert_eq!(choice.judge(&[1, 2], false, in_place), Outcome::Complete);
    let nowhere = |address| Frame { object: ObjectId::UNKNOWN, address };
    assert_eq!(choice.judge(&[1, 2], false, nowhere), Outcome::Broken);
}

/// They are the dynamic linker's.
#[test]
fn the_first_stacks_of_a_program_do_not_decide() {
    let mut choice = MethodChoice::auto();
    for _ in 0..FIRST_STACKS {
        choice.compare(&STACK[..2], &STACK, Outcome::Complete, in_place);
        assert_eq!(choice.revise(0), None);
    }
    let decided = (1..).find_map(|samples| {
        choice.compare(&STACK, &STACK, Outcome::Complete, in_place);
        Some((samples, choice.revise(0)?))
    });
    assert_eq!(decided, Some((TRIAL_SAMPLES, Method::Fp)));
    // An audit comes amid the program.
    assert_eq!(choice.revise(AUDIT_AFTER_NS), Some(Method::Trial));
    (0..2).for_each(|_| _ = choice.compare(&STACK[..2], &STACK, Outcome::Complete, in_place));
    assert_eq!(choice.revise(AUDIT_AFTER_NS), Some(Method::Dwarf));
}

/// Frame pointers lead on where a copy ends.
#[test]
fn a_cut_stack_is_completed_by_a_chain_that_ends_as_complete_ones_do() {
    for cut in [Outcome::CopyTooShort, Outcome::StackAbsent] {
        let mut choice = MethodChoice::auto();
        assert!(!choice.compare(&STACK, &STACK[..2], cut, in_place), "nobody knows how stacks end");
        assert!(!choice.compare(&STACK, &STACK, Outcome::Complete, in_place));
        assert!(choice.compare(&STACK, &STACK[..2], cut, in_place));
        assert!(!choice.compare(&STACK[..5], &STACK[..2], cut, in_place), "that is no end");
        let decided = (0..TRIAL_SAMPLES).find_map(|_| {
            choice.compare(&STACK, &STACK[..2], cut, in_place);
            choice.revise(0)
        });
        assert_eq!(decided, Some(Method::Fp));
    }
}

#[test]
fn a_chain_that_leaves_out_a_caller_of_a_cut_stack_is_not_trusted() {
    let mut choice = MethodChoice::auto();
    let decided = (0..FIRST_STACKS + 2).find_map(|_| {
        choice.compare(&[10, 30, 40, 50, 60], &STACK[..3], Outcome::CopyTooShort, in_place);
        choice.revise(0)
    });
    assert_eq!(decided, Some(Method::Dwarf));
}

#[test]
fn a_comparison_that_no_complete_stack_allows_is_given_up() {
    let mut choice = MethodChoice::auto();
    let decided = (1..=TRIAL_LIMIT).find_map(|samples| {
        choice.compare(&STACK, &STACK[..2], Outcome::CopyTooShort, in_place);
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
                        choice.compare(if *agrees { &STACK[..5] } else { &STACK[..1] }, &STACK, *outcome, in_place);
                        agreed += u32::from(*agrees && *outcome == Outcome::Complete);
                    }
                    Step::Compare { .. } => {}
                    Step::Judge { chain, limit_reached } => {
                        let outcome = choice.judge(chain, *limit_reached, in_place);
                        prop_assert_eq!(outcome == Outcome::NoUserStack, chain.is_empty());
                        // Without a comparison, only the user's word makes a chain complete.
                        let trusted = fixed.is_some() || agreed > 0;
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
