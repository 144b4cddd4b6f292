//! Much inlined code of the standard library, for comparing names: what it computes does not matter.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

fn words(text: &str) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for word in text.split_whitespace().filter(|word| word.chars().all(char::is_alphabetic)) {
        *found.entry(word.to_lowercase()).or_insert(0) += 1;
    }
    found
}

fn grouped<T: Ord + Clone>(items: &[T], key: impl Fn(&T) -> u64) -> HashMap<u64, Vec<T>> {
    let mut groups: HashMap<u64, Vec<T>> = HashMap::new();
    for item in items {
        groups.entry(key(item)).or_default().push(item.clone());
    }
    groups.values_mut().for_each(|group| group.sort());
    groups
}

fn main() {
    let text: String = std::env::args().collect::<Vec<_>>().join(" ");
    let mut out = String::new();
    for (word, count) in words(&text) {
        let _ = writeln!(out, "{word:>10} {count:.3e}", count = count as f64);
    }
    let numbers: Vec<u32> = (0..1000).map(|n: u32| n.wrapping_mul(2654435761) >> 7).collect();
    let groups = grouped(&numbers, |&n| u64::from(n % 7));
    let names = grouped(&out.lines().map(str::to_owned).collect::<Vec<_>>(), |line| line.len() as u64);
    let threads: Vec<_> =
        groups.into_values().map(|group| std::thread::spawn(move || group.iter().map(|&n| u64::from(n)).sum::<u64>())).collect();
    let sum: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    println!("{out}{sum} {names:?}");
}
