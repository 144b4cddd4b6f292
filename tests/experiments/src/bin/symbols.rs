//! Checks names: for random code addresses of real programs, compares the function, the inlined calls, and each file and line with
//! `llvm-symbolizer` (for the kernel: with its symbol list, read as for its own messages). Where the two differ, a third reader
//! decides: binutils' `addr2line`, `objdump` for stubs, the crate `blazesym` for the kernel. Differences are printed by kind: how
//! often, which reader is right and by what evidence, and an example. Fails if less than 99.9% of a program's addresses agree or are
//! shown to be right, or if a difference has no explanation or shows an error of sweetspot.
//!
//! Linkage names are compared, so that no style of demangling matters. A matter of style, and counted as agreement, is:
//! which of several names of one symbol is used; `.cold`, `.isra.0` and their like, which the symbol has and the debug
//! information does not; lines in the padding between functions, which has no name; versions of symbols
//! (`@@GLIBC_2.14`); `.` and `..` in paths; and a file without a line, for which the others use the symbol table's.
//!
//! Options: `--addresses 10000` (of each program), `--seed 1`, `--only NAME`, `--show 1` (so many examples of each
//! difference), `--program FILE` (another program instead of these).

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use serde::Serialize;
use tests::experiment::{option, percent, print, progress, row};
use tests::symbols::compare::{Verdict, compare};
use tests::symbols::explain::{Class, Classes, Right, Said, explain};
use tests::symbols::subjects::{BUILT, FOUND, Subject, build, find};
use tests::symbols::{Chain, readers};

/// The share that has to agree.
const GOAL: f64 = 0.999;

#[derive(Serialize)]
struct Found {
    program: String,
    addresses: usize,
    named: usize,
    inlined: usize,
    same: usize,
    style: usize,
    ours_right: usize,
    theirs_right: usize,
    open: usize,
    agree_ratio: f64,
    holds: bool,
    differences: Vec<Class>,
    #[serde(skip)]
    remarks: Vec<String>,
}

struct Options {
    addresses: usize,
    seed: u64,
    show: usize,
}

fn main() -> Result<()> {
    let options = Options {
        addresses: option("--addresses", 10_000)?,
        seed: option("--seed", 1)?,
        show: option("--show", 1)?,
    };
    let only: String = option("--only", String::new())?;
    let wanted = |name: &str| only.is_empty() || only == name;
    let mut found = Vec::new();
    let mut missing = Vec::new();
    let mut try_one =
        |name: &str, path: Result<PathBuf>| match path.and_then(|path| examine(name, path, &options)) {
            Ok(one) => found.push(one),
            Err(error) => missing.push(format!("{name}: not compared: {error:#}")),
        };
    let program: PathBuf = option("--program", PathBuf::new().display().to_string())?.into();
    if !program.as_os_str().is_empty() {
        try_one("program", Ok(program));
    } else {
        let folder = tempfile::tempdir()?;
        for (name, patterns) in FOUND.into_iter().filter(|(name, _)| wanted(name)) {
            try_one(name, find(patterns).ok_or_else(|| anyhow::anyhow!("there is none")));
        }
        if wanted("sweetspot") {
            try_one("sweetspot", Ok(std::env::current_exe()?));
        }
        for (name, file, commands) in BUILT.into_iter().filter(|(name, ..)| wanted(name)) {
            try_one(name, build(folder.path(), name, file, commands));
        }
        if wanted("kernel") {
            match examine_kernel(&options) {
                Ok(one) => found.push(one),
                Err(error) => missing.push(format!("kernel: not compared: {error:#}")),
            }
        }
    }
    report(&found, missing)
}

fn examine(name: &str, path: PathBuf, options: &Options) -> Result<Found> {
    progress(&format!("{name}: {}", path.display()));
    let subject = Subject::read(&path)?;
    let addresses = subject.addresses(options.addresses, options.seed);
    let ours = readers::ours(&subject.path, &addresses)?;
    let theirs = readers::llvm(&subject.path, &addresses)?;
    let third = |addresses: &[u64]| {
        let chains = readers::binutils(&subject.path, addresses)?;
        let stubs = readers::stubs(&subject.path, addresses)?;
        let pick = |((&address, chain), stub)| if subject.is_stub(address) { stub } else { chain };
        Ok(addresses.iter().zip(chains).zip(stubs).map(pick).collect())
    };
    judge(name, &subject, &addresses, [&ours, &theirs], third, options)
}

fn examine_kernel(options: &Options) -> Result<Found> {
    progress("kernel: /proc/kallsyms");
    let list = std::fs::read_to_string("/proc/kallsyms")?;
    let subject = Subject::kernel(&list)?;
    let addresses = subject.addresses(options.addresses, options.seed);
    let ours = readers::our_kernel(list.as_bytes(), &addresses)?;
    let theirs = readers::system_map(&list, &addresses);
    judge("kernel", &subject, &addresses, [&ours, &theirs], readers::blazesym_kernel, options)
}

fn judge(
    name: &str,
    subject: &Subject,
    addresses: &[u64],
    [ours, theirs]: [&[Chain]; 2],
    third: impl Fn(&[u64]) -> Result<Vec<Chain>>,
    options: &Options,
) -> Result<Found> {
    ensure!(addresses.len() == ours.len() && ours.len() == theirs.len(), "a reader left some addresses out");
    let verdict = |at: usize| compare(&subject.names, subject.is_stub(addresses[at]), &ours[at], &theirs[at]);
    let verdicts: Vec<Verdict> = (0..ours.len()).map(verdict).collect();
    let differing = |at: &usize| matches!(verdicts[*at], Verdict::Differs(_));
    let differing: Vec<usize> = (0..ours.len()).filter(differing).collect();
    let asked: Vec<u64> = differing.iter().map(|&at| addresses[at]).collect();
    let thirds = if asked.is_empty() { Vec::new() } else { third(&asked)? };
    ensure!(thirds.len() == asked.len(), "the third reader left some addresses out");
    let mut classes = Classes::default();
    for (&at, third) in differing.iter().zip(&thirds) {
        let Verdict::Differs(what) = verdicts[at] else { continue };
        let said = Said { ours: &ours[at], theirs: &theirs[at], third };
        classes.add(explain(subject, addresses[at], what, said), addresses[at], options.show);
    }
    let mut remarks = styles(name, &verdicts);
    for class in classes.iter() {
        remarks.push(format!("{name}: {}: {}", class.class, class.addresses));
        let right = match class.right {
            Right::Ours => "ours is right",
            Right::Theirs => "OURS IS WRONG",
            Right::Open => "NOT EXPLAINED",
        };
        remarks.push(format!("  {right}; evidence: {}", class.evidence));
        for address in &class.examples {
            let Some(at) = differing.iter().position(|&at| addresses[at] == *address) else { continue };
            let [our, their] = [&ours[differing[at]], &theirs[differing[at]]].map(text);
            let third = text(&thirds[at]);
            remarks.push(format!("  {address:#x}\n    ours   {our}\n    theirs {their}\n    third  {third}"));
        }
    }
    let style = verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Style(_))).count();
    let agree = addresses.len() - differing.len();
    let [ours_right, theirs_right, open] =
        [Right::Ours, Right::Theirs, Right::Open].map(|r| classes.count(r));
    Ok(Found {
        program: name.to_owned(),
        addresses: addresses.len(),
        named: ours.iter().filter(|chain| !chain.is_empty()).count(),
        inlined: ours.iter().filter(|chain| chain.len() > 1).count(),
        same: agree - style,
        style,
        ours_right,
        theirs_right,
        open,
        agree_ratio: agree as f64 / addresses.len() as f64,
        holds: (agree + ours_right) as f64 >= GOAL * addresses.len() as f64 && theirs_right + open == 0,
        differences: classes.iter().cloned().collect(),
        remarks,
    })
}

/// How often each matter of style occurred.
fn styles(name: &str, verdicts: &[Verdict]) -> Vec<String> {
    let mut counts = BTreeMap::<&str, usize>::new();
    for verdict in verdicts {
        if let Verdict::Style(what) = verdict {
            *counts.entry(what).or_default() += 1;
        }
    }
    counts.into_iter().map(|(what, count)| format!("{name}: style: {what}: {count}")).collect()
}

fn text(chain: &Chain) -> String {
    let frames = chain.iter().map(|frame| format!("{} {}:{}", frame.name, frame.file, frame.line));
    frames.collect::<Vec<_>>().join(" < ")
}

fn report(found: &[Found], missing: Vec<String>) -> Result<()> {
    let heads =
        ["program", "addresses", "named", "inlined", "same", "style", "agree", "differ", "ours right"];
    let heads = heads.into_iter().chain(["theirs right", "open", ""]);
    let mut rows = vec![heads.map(str::to_string).collect()];
    rows.extend(found.iter().map(|one| {
        row([
            &one.program,
            &one.addresses,
            &one.named,
            &one.inlined,
            &one.same,
            &one.style,
            &percent(one.agree_ratio),
            &(one.addresses - one.same - one.style),
            &one.ours_right,
            &one.theirs_right,
            &one.open,
            &if one.holds { "holds" } else { "OFF" },
        ])
    }));
    let remarks: Vec<String> = found.iter().flat_map(|one| one.remarks.clone()).chain(missing).collect();
    print(&rows, &remarks, &found)?;
    let off = found.iter().filter(|one| !one.holds).count();
    ensure!(off == 0, "{off} of {} programs are off", found.len());
    Ok(())
}
