//! Stacks that are known beforehand, by every kind of unwind information: each is whole. `just cases` has them all,
//! beside other profilers.

use anyhow::{Context, Result, bail, ensure};
use tests::attempts::attempts;
use tests::cases::{by_sweetspot, rows};
use tests::guards::is_root;
use tests::programs::{program, why_not};

/// CPU time of a program (s), and samples of each second of it.
const CPU_S: f64 = 0.6;
const RATE_HZ: u32 = 999;

/// Profiles these rows; those whose compiler is missing are skipped with a line.
#[allow(clippy::print_stderr, reason = "a test that is skipped says so")]
fn whole(names: &[&str]) -> Result<()> {
    if !is_root() {
        eprintln!("skipped: profiling needs root here");
        return Ok(());
    }
    for name in names {
        let case = rows().find(|case| case.name == *name).with_context(|| format!("no row {name}"))?;
        let target = match case.prepare(CPU_S)? {
            Ok(target) => target,
            Err(reason) => {
                eprintln!("{name}: skipped, {reason}");
                continue;
            }
        };
        attempts(|| {
            let recording = by_sweetspot(&target.words, RATE_HZ, &[])?;
            let failures = case.judge(&case.look_at(&recording), &recording.truncated_by);
            if failures.is_empty() {
                return Ok(());
            }
            bail!("{name}: {} ({:?})", failures.join("; "), recording.truncated_by)
        })?;
    }
    Ok(())
}

#[test]
fn by_any_table_and_by_frame_pointers() -> Result<()> {
    whole(&[
        ".eh_frame without its index",
        ".debug_frame alone",
        ".debug_frame, compressed",
        "frame pointers, no tables",
    ])
}

#[test]
fn between_functions() -> Result<()> {
    whole(&["prologues and epilogues", "the same, not optimized", "tail calls", "vDSO"])
}

#[test]
fn through_signals() -> Result<()> {
    whole(&["signal", "signal, static", "signal, musl", "signal on a stack of its own"])
}

#[test]
fn through_frames_that_only_all_registers_lead_out_of() -> Result<()> {
    whole(&["realigned frames", "fiber"])
}

#[test]
fn through_the_linkage_table() -> Result<()> {
    whole(&["linkage table", "linkage table, lazy"])
}

#[test]
fn through_assembly_without_tables() -> Result<()> {
    whole(&["assembly that calls back", "assembly with a frame", "assembly without a frame"])
}

#[test]
fn of_libraries_loaded_in_turn() -> Result<()> {
    whole(&["libraries loaded in turn"])
}

#[test]
fn amid_the_languages_own_unwinding() -> Result<()> {
    whole(&["C++, in a handler", "C++, in a destructor", "C++, in a coroutine"])
}

/// Go's runtime does its own work on a stack of its own. The tables read on in the words that another thread left there, and
/// frame pointers lead across.
#[test]
#[allow(clippy::print_stderr, reason = "a test that is skipped says so")]
fn across_a_change_of_stacks() -> Result<()> {
    if let Some(reason) = why_not("chain_go").or_else(|| (!is_root()).then(|| "it needs root".to_owned())) {
        eprintln!("skipped: {reason}");
        return Ok(());
    }
    let words = [program("chain_go")?.to_string_lossy().into_owned(), "system".to_owned(), CPU_S.to_string()];
    let stacks = by_sweetspot(&words, RATE_HZ, &[])?.stacks;
    let whole = stacks.weight_of(|stack| stack.has("main.level1")) / stacks.weight_of(|_| true);
    ensure!(whole > 0.9, "only {whole} of the stacks hold their outer frames");
    Ok(())
}

/// The rest is in the memory of the process.
#[test]
fn deeper_than_any_copy() -> Result<()> {
    whole(&["160 KiB of frames"])
}

#[test]
fn deeper_than_is_followed_says_so() -> Result<()> {
    whole(&["5000 frames"])
}

/// The kernel's copy ends there; the rest is read as beyond a copy that is too short.
#[test]
fn behind_a_page_that_is_not_in_memory() -> Result<()> {
    whole(&["a page never written to"])
}
