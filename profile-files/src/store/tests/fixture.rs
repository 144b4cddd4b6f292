//! Files as this version writes them: later ones have to read them, and the tests of the command line do.

use super::*;

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/store");
/// 2026-11-16, 09:00 (UTC).
const NINE: u64 = MIDNIGHT + 9 * HOUR;

/// Twenty minutes of two targets from nine o'clock on, but for the tenth to the fourteenth; the first ten of each merged.
fn write(folder: &Path) {
    let settings =
        StoreTerms { age_ns: u64::MAX, hourly_after_ns: 0, daily_after_ns: u64::MAX, ..settings() };
    let mut store = Store::open(folder, settings, RealDisk).unwrap();
    for minute in (0..20).filter(|minute| !(10..14).contains(minute)) {
        for (target, pid) in [("web", 1), ("db", 2)] {
            let begin = NINE + minute * MINUTE;
            let labels = BTreeMap::from([("tier".to_owned(), target.len().to_string())]);
            let window = TargetWindow { labels, ..window(target, begin) };
            store.write(&now(begin + MINUTE), window, &minute_of(target, pid, begin)).unwrap();
        }
        if minute == 9 {
            settle(&mut store, NINE + HOUR);
        }
    }
}

/// One second in `work`.
fn minute_of(target: &str, pid: u32, start_unix_ns: u64) -> SymbolizedProfile {
    use profiler_core::profile::{
        CpuTimes, Function, FunctionIndex, HowSampled, Line, Location, LocationIndex, ModuleIndex,
        ModuleInfo, ProcessIndex, ProcessInfo, Run, SampleCounts, StackWindow, WeightedStack, Window as Span,
    };
    let name = || "work".to_owned();
    SymbolizedProfile {
        processes: vec![ProcessInfo { pid, comm: target.to_owned() }],
        modules: vec![ModuleInfo {
            name: target.to_owned(),
            path: format!("/bin/{target}"),
            build_id: None,
            end: 0,
        }],
        functions: vec![Function { name: name(), system_name: name(), module: ModuleIndex(0), file: None }],
        locations: vec![Location {
            module: ModuleIndex(0),
            address: 16,
            lines: vec![Line { function: FunctionIndex(0), line: 1 }],
            unknown: None,
        }],
        stacks: vec![WeightedStack {
            process: ProcessIndex(0),
            frames: vec![LocationIndex(0)],
            outcome: Outcome::Complete,
            samples: 100,
            cpu_ns: SECOND,
            windows: vec![StackWindow { window: 0, cpu_ns: SECOND, samples: 100 }],
        }],
        windows: vec![Span { start_ns: 0, end_ns: 60 * SECOND }],
        run: Run {
            target: target.to_owned(),
            start_unix_ns,
            duration_s: 60.0,
            counts: SampleCounts { samples: 100, ..SampleCounts::default() },
            cpu: CpuTimes { target_cpu_s: 1.0, ..CpuTimes::default() },
            how: HowSampled { confidence: 0.95, ..HowSampled::default() },
            ..Run::default()
        },
    }
}

/// `just bless` writes it anew.
#[test]
fn files_of_this_version_are_read() {
    let folder = TempDir::new().unwrap();
    write(folder.path());
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        let _ = fs::remove_dir_all(FIXTURE);
        for file in files(folder.path()) {
            let to = Path::new(FIXTURE).join(&file);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(folder.path().join(&file), to).unwrap();
        }
    }
    let told = |folder: &Path| {
        let reading = read(folder, &range(NINE, NINE + 20 * MINUTE)).unwrap();
        assert!(reading.damaged.is_empty(), "{:?}", reading.damaged);
        let mut text = Vec::new();
        crate::formats::folded::write(&reading.profile, &mut text).unwrap();
        (String::from_utf8(text).unwrap(), reading.targets, reading.gaps, files(folder).len())
    };
    let fixture = told(Path::new(FIXTURE));
    assert_eq!(fixture, told(folder.path()));
    assert_eq!(fixture.0, "db;work 16000000\nweb;work 16000000\n");
    assert_eq!((fixture.2.len(), fixture.3), (1, 14));
}
