//! The protocol under every interleaving and every reordering that the memory model allows, and against liars.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use loom::sync::atomic::AtomicU64 as Modelled;
use proptest::prelude::*;

use super::*;

impl Word for Modelled {
    fn load(&self, order: Ordering) -> u64 {
        Modelled::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        Modelled::store(self, value, order);
    }
}

struct Shared {
    head: Modelled,
    tail: Modelled,
    data: [Modelled; 4],
}

impl Shared {
    fn ring(&self) -> Ring<'_, Modelled> {
        Ring::new(&self.head, &self.tail, &self.data).unwrap()
    }
}

/// Records of one to three words: their length, and the number of the record in every other word.
fn write(ring: &Ring<'_, Modelled>, number: u64, words: usize) -> bool {
    let Some(entry) = ring.begin(words) else { return false };
    entry.put(0, words as u64 * 100 + number);
    (1..words).for_each(|index| entry.put(index, number));
    entry.publish();
    true
}

fn read(ring: &Ring<'_, Modelled>, reader: &mut RingReader) -> Option<u64> {
    let waiting = reader.waiting(ring).expect("an honest writer");
    if waiting == 0 {
        return None;
    }
    let head = reader.word(ring, 0);
    let (words, number) = ((head / 100) as usize, head % 100);
    assert!((1..=waiting).contains(&words), "a record of {words} words in {waiting}");
    for index in 1..words {
        assert_eq!(reader.word(ring, index), number, "a torn record");
    }
    reader.advance(ring, words);
    Some(number)
}

/// In a ring of four words, so that every record but the first wraps or waits for room.
#[test]
fn no_interleaving_tears_a_record_or_loses_one_unseen() {
    loom::model(|| {
        let shared = Arc::new(Shared {
            head: Modelled::new(u64::MAX - 1), // positions wrap, too
            tail: Modelled::new(u64::MAX - 1),
            data: std::array::from_fn(|_| Modelled::new(0)),
        });
        let writer = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || {
                [(1, 3), (2, 2), (3, 1)].map(|(number, words)| write(&shared.ring(), number, words))
            })
        };
        let mut reader = RingReader { tail: u64::MAX - 1 };
        let mut seen = Vec::new();
        for _ in 0..2 {
            seen.extend(read(&shared.ring(), &mut reader));
        }
        let written = writer.join().unwrap();
        while let Some(number) = read(&shared.ring(), &mut reader) {
            seen.push(number);
        }
        let expected = (1..).zip(written).filter(|(_, written)| *written).map(|(number, _)| number);
        assert_eq!(seen, expected.collect::<Vec<u64>>(), "all that was not refused, in order");
    });
}

#[test]
fn a_ring_is_refused_unless_it_is_a_power_of_two() {
    let word = AtomicU64::new(0);
    let data: Vec<AtomicU64> = (0..6).map(AtomicU64::new).collect();
    assert!(Ring::new(&word, &word, &data).is_none() && Ring::new(&word, &word, &data[..0]).is_none());
    let ring = Ring::new(&word, &word, &data[..4]).unwrap();
    assert!(ring.begin(5).is_none() && ring.begin(4).is_some());
}

proptest! {
    /// Whatever a liar writes where, the reader ends, and the writer stays inside of its ring.
    #[test]
    fn positions_that_cannot_be_harm_nobody(
        head: u64, tail: u64, mine: u64, ahead in 0_u64..40, words in 0_usize..20,
    ) {
        let data: Vec<AtomicU64> = (0..16).map(AtomicU64::new).collect();
        for head in [head, mine.wrapping_add(ahead)] {
            let (head, tail) = (AtomicU64::new(head), AtomicU64::new(tail));
            let ring = Ring::new(&head, &tail, &data).unwrap();
            let mut reader = RingReader { tail: mine };
            let waiting = reader.waiting(&ring);
            prop_assert!(waiting.is_none_or(|waiting| waiting <= 16));
            prop_assert_eq!(reader.waiting(&ring), Some(waiting.unwrap_or(0)), "what was skipped is skipped");
            reader.word(&ring, words);
            reader.advance(&ring, waiting.unwrap_or(0));
            if let Some(entry) = ring.begin(words) {
                (0..words + 2).for_each(|index| entry.put(index, 7));
                entry.publish();
            }
        }
    }
}
