//! Are the names right? Random addresses of the code of real programs: the function, the whole chain of what was inlined
//! there, and each file and line, compared with what `llvm-symbolizer` says (of the kernel: the crate `blazesym`). Where
//! the two differ, binutils' `addr2line` is asked as well, of stubs `objdump`: `seconded` are the addresses at which it
//! agrees with us. Fails
//! if less than 99.9% of a program's addresses agree or are seconded.
//!
//! Linkage names are compared, so that no style of demangling matters. A matter of style, and counted as agreement, is:
//! which of several names of one symbol is used; `.cold`, `.isra.0` and their like, which the symbol has and the debug
//! information does not; lines in the padding between functions, where nobody has a name; versions of symbols (`@@GLIBC_2.14`); `.` and `..` in paths; and a file that is told without a
//! line, for which they take the symbol table's.
//!
//! Options: `--addresses 10000` (of each program), `--seed 1`, `--only NAME`, `--show 0` (so many examples of each
//! difference), `--program FILE` (another program instead of these).

use std::path::PathBuf;

use anyhow::{Result, ensure};
use serde::Serialize;
use tests::experiment::{option, percent, print, progress, row};
use tests::symbols::compare::{Counts, Names, Verdict, compare};
use tests::symbols::subjects::{BUILT, FOUND, Subject, build, find, kernel};
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
    seconded: usize,
    agree_ratio: f64,
    holds: bool,
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
        show: option("--show", 0)?,
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
    let second = |addresses: &[u64]| {
        let chains = readers::binutils(&subject.path, addresses)?;
        let stubs = readers::stubs(&subject.path, addresses)?;
        let pick = |((&address, chain), stub)| if subject.is_stub(address) { stub } else { chain };
        Ok(Some(addresses.iter().zip(chains).zip(stubs).map(pick).collect()))
    };
    let is_stub = |address| subject.is_stub(address);
    judge(name, &subject.names, is_stub, &addresses, [&ours, &theirs], second, options)
}

fn examine_kernel(options: &Options) -> Result<Found> {
    progress("kernel: /proc/kallsyms");
    let list = std::fs::read_to_string("/proc/kallsyms")?;
    let (addresses, names) = kernel(&list, options.addresses, options.seed)?;
    let ours = readers::our_kernel(list.as_bytes(), &addresses)?;
    let theirs = readers::blazesym_kernel(&addresses)?;
    let second = |_: &[u64]| Ok(None);
    judge("kernel", &names, |_| false, &addresses, [&ours, &theirs], second, options)
}

fn judge(
    name: &str,
    names: &Names,
    is_stub: impl Fn(u64) -> bool,
    addresses: &[u64],
    [ours, theirs]: [&[Chain]; 2],
    second: impl Fn(&[u64]) -> Result<Option<Vec<Chain>>>,
    options: &Options,
) -> Result<Found> {
    ensure!(addresses.len() == ours.len() && ours.len() == theirs.len(), "a reader left some addresses out");
    let verdicts: Vec<Verdict> =
        (0..ours.len()).map(|at| compare(names, is_stub(addresses[at]), &ours[at], &theirs[at])).collect();
    let differing: Vec<usize> =
        (0..ours.len()).filter(|&at| matches!(verdicts[at], Verdict::Differs(_))).collect();
    let asked: Vec<u64> = differing.iter().map(|&at| addresses[at]).collect();
    let asked_second = if asked.is_empty() { None } else { second(&asked)? };
    let has_second = asked_second.is_some();
    let seconds = asked_second.unwrap_or_else(|| vec![Chain::new(); asked.len()]);
    ensure!(seconds.len() == asked.len(), "the second reader left some addresses out");
    let (mut styles, mut differences) = (Counts::default(), Counts::default());
    let mut remarks = Vec::new();
    for (at, verdict) in verdicts.iter().enumerate() {
        if let Verdict::Style(what) = *verdict {
            styles.add(what, addresses[at], false, options.show);
        }
    }
    for (&at, second) in differing.iter().zip(&seconds) {
        let Verdict::Differs(what) = verdicts[at] else { continue };
        let stub = is_stub(addresses[at]);
        // A stub that both call by its name agrees, whatever the other reader made of it.
        let same_stub = stub && ours[at] == *second;
        let agrees = same_stub || !matches!(compare(names, stub, &ours[at], second), Verdict::Differs(_));
        differences.add(what, addresses[at], has_second && agrees, options.show);
    }
    for (what, count) in styles.iter() {
        remarks.push(format!("{name}: style: {what}: {}", count.addresses));
    }
    for (what, count) in differences.iter() {
        remarks.push(format!("{name}: {what}: {} ({} seconded)", count.addresses, count.seconded));
        for address in &count.examples {
            let at = addresses.iter().position(|each| each == address).unwrap_or(0);
            let second = asked.iter().position(|each| each == address).map(|at| &seconds[at]);
            remarks.push(format!("  {address:#x}\n    ours   {}", text(&ours[at])));
            remarks.push(format!(
                "    theirs {}\n    second {}",
                text(&theirs[at]),
                second.map(text).unwrap_or_default()
            ));
        }
    }
    let agree = addresses.len() - differences.total();
    let seconded = differences.seconded();
    Ok(Found {
        program: name.to_owned(),
        addresses: addresses.len(),
        named: ours.iter().filter(|chain| !chain.is_empty()).count(),
        inlined: ours.iter().filter(|chain| chain.len() > 1).count(),
        same: agree - styles.total(),
        style: styles.total(),
        seconded,
        agree_ratio: agree as f64 / addresses.len() as f64,
        holds: (agree + seconded) as f64 >= GOAL * addresses.len() as f64,
        remarks,
    })
}

fn text(chain: &Chain) -> String {
    let frames = chain.iter().map(|frame| format!("{} {}:{}", frame.name, frame.file, frame.line));
    frames.collect::<Vec<_>>().join(" < ")
}

fn report(found: &[Found], missing: Vec<String>) -> Result<()> {
    let heads =
        ["program", "addresses", "named", "inlined", "same", "style", "differ", "seconded", "agree", ""];
    let mut rows = vec![heads.map(str::to_string).to_vec()];
    rows.extend(found.iter().map(|one| {
        row([
            &one.program,
            &one.addresses,
            &one.named,
            &one.inlined,
            &one.same,
            &one.style,
            &(one.addresses - one.same - one.style),
            &one.seconded,
            &percent(one.agree_ratio),
            &if one.holds { "holds" } else { "OFF" },
        ])
    }));
    let remarks: Vec<String> = found.iter().flat_map(|one| one.remarks.clone()).chain(missing).collect();
    print(&rows, &remarks, &found)?;
    let off = found.iter().filter(|one| !one.holds).count();
    ensure!(off == 0, "{off} of {} programs are off", found.len());
    Ok(())
}
