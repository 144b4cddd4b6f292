use profiler_core::aggregate::{Aggregator, Chain};
use profiler_core::process::ProcessTable;
use profiler_core::profile::Outcome;

use super::*;
use crate::export::functions::functions;
use crate::export::pprof;
use crate::objects::{ObjectStore, Symbols};

/// Ten stacks in twenty windows, of weights that no factor leaves whole.
fn collected() -> Collected {
    let mut processes = ProcessTable::default();
    processes.adopt(1, "a");
    let mut aggregator = Aggregator::default();
    for window in 1..=20 {
        for address in 1..=10 {
            let chain = Chain { kernel: &[], user: &[address], outcome: Outcome::Complete };
            aggregator.add(processes.get(1).unwrap(), chain, 1_000_003 * address + window);
        }
        aggregator.close_window(window * 500_000_000, 1.07);
    }
    Collected {
        counted: aggregator,
        processes: processes.infos().to_vec(),
        objects: ObjectStore::new(&Symbols::new(1 << 28)).snapshot(),
        generated: Generated::default(),
        span: 0..10_000_000_000,
        is_last: true,
    }
}

#[test]
fn the_windows_of_a_run_survive_its_file() {
    let run = Run { samples: 200, confidence: 0.95, ..Run::default() };
    let profile = symbolize(collected(), 0.987_654_321, run, None, &Hurry::default());
    let mut file = Vec::new();
    pprof::write(&profile, &mut file).unwrap();
    let read = pprof::read(file.as_slice()).unwrap();
    assert_eq!(read.windows.len(), 20);
    assert_eq!(read.stacks, profile.stacks);
    let sum_ns: u64 = profile.stacks.iter().map(|stack| stack.cpu_ns).sum();
    assert!((sum_ns as f64 / (collected().weight_ns() * 0.987_654_321) - 1.0).abs() < 1e-6);
    assert_eq!(functions(&read), functions(&profile));
}
