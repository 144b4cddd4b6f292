//! The list of the kernel this runs on.
#![allow(clippy::print_stderr, reason = "a test that cannot run says why")]

use std::collections::BTreeMap;
use std::time::Instant;

use symbolizer::{KernelSymbols, Object};

#[test]
fn every_listed_function_is_found() {
    let list = std::fs::read("/proc/kallsyms").unwrap_or_default();
    let started = Instant::now();
    let symbols = match KernelSymbols::parse(&list) {
        Ok(symbols) => symbols,
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    let parsed = started.elapsed();
    let mut functions: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for line in std::str::from_utf8(&list).expect("text").lines() {
        let mut words = line.split_whitespace();
        let (Some(address), Some("t" | "T"), Some(name)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let address = u64::from_str_radix(address, 16).expect("a hexadecimal number");
        functions.entry(address).or_default().push(name);
    }
    let is_end = |name: &&str| matches!(*name, "_etext" | "_einittext");
    functions.retain(|&address, names| address != 0 && !names.iter().any(is_end));
    for (address, names) in &functions {
        let found = symbols.symbolize(*address).expect("a listed function");
        assert!(names.iter().any(|name| symbolizer::demangle(name) == found.name), "{found:?} of {names:?}");
    }
    eprintln!("{} functions, parsed in {parsed:?}", functions.len());
}

#[test]
fn an_object_can_move_to_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<Object>();
    is_send::<KernelSymbols>();
}
