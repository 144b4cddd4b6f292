//! Recorded rings come to the stacks that they came to before, and no change of a byte does harm.

use std::sync::OnceLock;

use anyhow::Result;
use proptest::prelude::*;
use tests::replay::{Counts, Recording, Replayed, folded, names};

/// Frames of one sample: the unwinder's limit, and what the kernel adds.
const MOST_FRAMES: usize = 4096 + (1 << 13);

fn recordings() -> &'static [(String, Recording)] {
    static ALL: OnceLock<Vec<(String, Recording)>> = OnceLock::new();
    ALL.get_or_init(|| {
        let read = |name: String| (name.clone(), Recording::read(&name).expect("a recording"));
        names().expect("recordings").into_iter().map(read).collect()
    })
}

#[test]
fn recorded_rings_come_to_the_stacks_they_came_to() {
    assert!(recordings().len() >= 12);
    for (name, recording) in recordings() {
        let whole = recording.replay(&recording.rings, usize::MAX);
        insta::assert_snapshot!(name.as_str(), folded(recording, &whole));
        // Where the ring's end splits the records makes no difference.
        for seam in [0, 1, 100] {
            let split = recording.replay(&recording.rings, seam);
            assert_eq!(folded(recording, &split), folded(recording, &whole), "{name}, split at {seam}");
        }
    }
}

/// What the corpus is there for is in it.
#[test]
fn the_recordings_hold_every_kind_of_record() {
    let sum = |of: fn(&Counts) -> u64| -> u64 {
        let replays =
            recordings().iter().map(|(_, recording)| recording.replay(&recording.rings, usize::MAX));
        replays.map(|replayed| of(&replayed.counts)).sum()
    };
    for (what, count) in [
        ("samples", sum(|counts| counts.samples)),
        ("truncated", sum(|counts| counts.truncated)),
        ("lost", sum(|counts| counts.lost)),
        ("throttled", sum(|counts| counts.throttled)),
        ("mappings", sum(|counts| counts.mappings)),
        ("names", sum(|counts| counts.names)),
        ("forks", sum(|counts| counts.forks)),
        ("exits", sum(|counts| counts.exits)),
    ] {
        assert!(count > 0, "no {what}");
    }
    assert_eq!(sum(|counts| counts.undecodable), 0);
}

/// Where any profiler on the machine asks for build ids, the kernel leaves this mark on the mappings that it tells others
/// of, and nothing else changes in them.
#[test]
fn the_mark_of_another_profiler_changes_nothing() {
    for (name, recording) in recordings() {
        let mut rings = recording.rings.clone();
        let marked: usize = rings.iter_mut().map(|ring| mark_mappings(ring)).sum();
        assert!(marked > 0, "{name} has no mappings");
        let (whole, replayed) =
            (recording.replay(&recording.rings, usize::MAX), recording.replay(&rings, usize::MAX));
        assert_eq!(replayed.counts.undecodable, 0, "{name}");
        assert_eq!(folded(recording, &replayed), folded(recording, &whole), "{name}");
    }
}

/// Marks the records of mappings; returns how many there are.
fn mark_mappings(ring: &mut [u8]) -> usize {
    const PERF_RECORD_MMAP2: u32 = 10;
    let (mut at, mut marked) = (0, 0);
    while let Some(&[k0, k1, k2, k3, _, _, s0, s1]) = ring.get(at..at + 8) {
        if u32::from_le_bytes([k0, k1, k2, k3]) == PERF_RECORD_MMAP2 {
            ring[at + 5] |= 1 << 6; // PERF_RECORD_MISC_MMAP_BUILD_ID
            marked += 1;
        }
        match u16::from_le_bytes([s0, s1]) {
            0..8 => break,
            size => at += usize::from(size),
        }
    }
    marked
}

/// Harm that is done to rings.
#[derive(Clone, Debug)]
enum Harm {
    /// A byte is another.
    Byte(prop::sample::Index, u8),
    /// A byte of a header is another.
    HeaderByte(prop::sample::Index, usize, u8),
    /// A word is an extreme one.
    Word(prop::sample::Index, u64),
    /// The ring ends early.
    Cut(prop::sample::Index),
    /// A record comes twice.
    Double(prop::sample::Index),
    /// A record is missing.
    Drop(prop::sample::Index),
    /// Two records change places.
    Swap(prop::sample::Index, prop::sample::Index),
    /// The rings change places.
    Turn,
}

fn harm() -> impl Strategy<Value = Harm> {
    let at = any::<prop::sample::Index>;
    let extreme =
        prop_oneof![Just(0), Just(u64::MAX), Just(1 << 63), Just(1 << 47), Just(u64::from(u32::MAX))];
    prop_oneof![
        6 => (at(), any::<u8>()).prop_map(|(at, byte)| Harm::Byte(at, byte)),
        4 => (at(), 0usize..8, any::<u8>()).prop_map(|(at, byte, value)| Harm::HeaderByte(at, byte, value)),
        4 => (at(), extreme).prop_map(|(at, word)| Harm::Word(at, word)),
        1 => at().prop_map(Harm::Cut),
        3 => at().prop_map(Harm::Double),
        3 => at().prop_map(Harm::Drop),
        3 => (at(), at()).prop_map(|(one, other)| Harm::Swap(one, other)),
        1 => Just(Harm::Turn),
    ]
}

/// The records of a ring, headers included; what is none is the last.
fn records(ring: &[u8]) -> Vec<Vec<u8>> {
    let (mut rest, mut records) = (ring, Vec::new());
    while let Some(size) = rest.get(6..8).map(|size| usize::from(u16::from_le_bytes([size[0], size[1]]))) {
        let (record, behind) = rest.split_at(if size < 8 { rest.len() } else { size.min(rest.len()) });
        records.push(record.to_vec());
        rest = behind;
    }
    records
}

fn do_harm(rings: &mut [Vec<u8>], harms: &[Harm]) {
    for (harm, turn) in harms.iter().zip(0..) {
        let count = rings.len();
        let ring = &mut rings[turn % count];
        if ring.len() < 8 {
            continue;
        }
        let mut parts = records(ring);
        match harm {
            Harm::Byte(at, byte) => {
                let at = at.index(ring.len());
                ring[at] = *byte;
                continue;
            }
            Harm::Word(at, word) => {
                let at = at.index(ring.len() / 8) * 8;
                ring[at..at + 8].copy_from_slice(&word.to_le_bytes());
                continue;
            }
            Harm::Cut(at) => {
                ring.truncate(at.index(ring.len()));
                continue;
            }
            Harm::Turn => {
                rings.rotate_left(1);
                continue;
            }
            Harm::HeaderByte(at, byte, value) => {
                let record = at.get(&parts).len().min(8);
                let at = at.index(parts.len());
                parts[at][*byte % record] = *value;
            }
            Harm::Double(at) => {
                let again = at.get(&parts).clone();
                parts.insert(at.index(parts.len()), again);
            }
            Harm::Drop(at) => drop(parts.remove(at.index(parts.len()))),
            Harm::Swap(one, other) => {
                let len = parts.len();
                parts.swap(one.index(len), other.index(len));
            }
        }
        *ring = parts.concat();
    }
}

/// Everything was counted as something, and nothing grew beyond what came in.
fn check(rings: &[Vec<u8>], replayed: &Replayed) -> Result<(), TestCaseError> {
    let (counts, aggregate) = (&replayed.counts, &replayed.aggregate);
    let bytes: usize = rings.iter().map(Vec::len).sum();
    prop_assert!(counts.records <= bytes as u64 / 8);
    let tallied: u64 = aggregate.tallies.iter().flatten().map(|(_, tally)| tally.samples).sum();
    prop_assert_eq!(tallied, counts.samples);
    let kinds =
        counts.samples + counts.foreign + counts.mappings + counts.names + counts.forks + counts.exits;
    prop_assert!(kinds + counts.throttled <= counts.records);
    prop_assert!(counts.undecodable <= counts.records + rings.len() as u64);
    prop_assert!(aggregate.stacks.len() as u64 <= counts.samples);
    prop_assert!(aggregate.stacks.iter().all(|stack| stack.frames.len() <= MOST_FRAMES));
    prop_assert!(aggregate.windows.len() <= 240);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_change_of_the_bytes_does_harm(
        which in any::<prop::sample::Index>(),
        harms in prop::collection::vec(harm(), 1..60),
        seam in prop_oneof![Just(usize::MAX), 0usize..300],
    ) {
        let (_, recording) = which.get(recordings());
        let mut rings = recording.rings.clone();
        do_harm(&mut rings, &harms);
        check(&rings, &recording.replay(&rings, seam))?;
    }
}

/// A header of no size ends a ring, and is counted.
#[test]
fn what_is_no_record_is_counted_as_undecodable() {
    for (name, recording) in recordings() {
        let mut rings = recording.rings.clone();
        let before = recording.replay(&rings, usize::MAX).counts.undecodable;
        rings.iter_mut().for_each(|ring| ring.extend([0; 8]));
        let after = recording.replay(&rings, usize::MAX).counts.undecodable;
        assert_eq!(after, before + rings.len() as u64, "{name}");
    }
}
