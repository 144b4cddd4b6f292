//! Code that programs make as they run, and programs in file systems of their own: all have their names.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tests::attempts::{attempts, attempts_of};
use tests::folded::Folded;
use tests::guards::is_root;
use tests::measured::cpu_s;
use tests::programs::{find_in_path, program};
use tests::run::{Sweetspot, run, start, wait_until};

/// Leaves the test unless it can profile everything.
macro_rules! needs_root {
    () => {
        if !is_root() {
            eprintln!("skipped: attaching to any process needs root");
            return Ok(());
        }
    };
}

/// Profiles a command.
fn record(words: &[&str]) -> Result<Folded> {
    let sweetspot = Sweetspot::new().options(&["--rate", "1000"]);
    let mut all = sweetspot.outputs();
    all.push("--".to_string());
    all.extend(words.iter().map(ToString::to_string));
    run(&mut sweetspot.command("record", &all))?.expect_status(0)?;
    Folded::parse(&fs::read_to_string(sweetspot.file("profile.folded"))?)
}

fn attach(pid: u32, seconds: f64) -> Result<Folded> {
    Ok(Sweetspot::new().options(&["--rate", "1000"]).attach(pid, seconds)?.folded)
}

fn share(folded: &Folded, name: &str) -> f64 {
    folded.weight_of(|stack| stack.has(name)) / folded.weight_of(|_| true)
}

fn all_named(folded: &Folded) -> Result<()> {
    ensure!(folded.named_ratio() == 1.0, "{} named; not:\n{}", folded.named_ratio(), folded.nameless());
    Ok(())
}

fn near(folded: &Folded, name: &str, expected: f64) -> Result<()> {
    let share = share(folded, name);
    ensure!((share - expected).abs() < 0.06, "{name} has {share}, not {expected}:\n{folded:?}");
    Ok(())
}

/// A third of the time in one function, two thirds in the other; names as they stand in folded stacks.
fn two_thirds(folded: &Folded, short: &str, long: &str) -> Result<()> {
    all_named(folded)?;
    near(folded, short, 1.0 / 3.0)?;
    near(folded, long, 2.0 / 3.0)?;
    ensure!(share(folded, "stale_name") == 0.0, "a name that was replaced");
    let reaches_main = |stack: &tests::folded::Stack| stack.has(long) && stack.has("main");
    let whole = folded.weight_of(reaches_main) / folded.weight_of(|stack| stack.has(long));
    ensure!(whole > 0.98, "only {whole} of the stacks in {long} reach main");
    Ok(())
}

const SHORT: &str = "made_short";
const LONG: &str = "made long\\x3ber";

fn jit() -> Result<String> {
    Ok(program("jit")?.to_string_lossy().into_owned())
}

#[test]
fn a_perf_map_names_what_it_lists() -> Result<()> {
    needs_root!();
    attempts(|| two_thirds(&record(&[&jit()?, "map", "1.5"])?, SHORT, LONG))
}

#[test]
fn a_child_has_the_names_of_its_parents_code() -> Result<()> {
    needs_root!();
    attempts(|| two_thirds(&record(&[&jit()?, "fork", "1.5"])?, SHORT, LONG))
}

/// The address is the same all the time; what lies there changes every few milliseconds.
#[test]
fn a_jitdump_tells_what_lay_at_an_address_when() -> Result<()> {
    needs_root!();
    attempts(|| {
        let folder = tempfile::tempdir()?;
        let folded = record(&[&jit()?, "dump", "1.8", &folder.path().to_string_lossy()])?;
        all_named(&folded)?;
        near(&folded, "made::moved()", 1.0 / 3.0)?;
        near(&folded, "made_short", 2.0 / 9.0)?;
        near(&folded, "made_long", 4.0 / 9.0)
    })
}

/// In memory that is shared under no name, in a file that is no object, and where the program's own file has data.
#[test]
fn code_is_named_wherever_it_was_put() -> Result<()> {
    needs_root!();
    for place in ["memfd", "file", "kept", "data"] {
        two_thirds(&record(&[&jit()?, "map", "1.2", place])?, SHORT, LONG)?;
        let folder = tempfile::tempdir()?;
        let folded = record(&[&jit()?, "dump", "1.2", &folder.path().to_string_lossy(), place])?;
        all_named(&folded)?;
        near(&folded, "made_short", 2.0 / 9.0)?;
    }
    Ok(())
}

/// As programs do that want their code in large pages. The functions have the same names as generated ones elsewhere.
#[test]
fn code_that_was_moved_to_memory_without_a_file_keeps_its_names() -> Result<()> {
    needs_root!();
    two_thirds(&record(&[&jit()?, "move", "1.2"])?, "made_short", "made_long")?;
    let running = start(Command::new(jit()?).args(["move", "60"]))?;
    wait_until("work", || cpu_s(running.id()).unwrap_or(0.0) > 0.2)?;
    let folded = attach(running.id(), 3.0)?;
    all_named(&folded)?;
    near(&folded, "made_short", 1.0)
}

#[test]
fn a_jitdump_tells_lines() -> Result<()> {
    needs_root!();
    attempts(|| {
        let folder = tempfile::tempdir()?;
        let sweetspot = Sweetspot::new().options(&["--rate", "1000"]);
        let profile = sweetspot.file("profile.speedscope.json");
        let target = [&jit()?, "dump", "0.6", &folder.path().to_string_lossy()].map(str::to_string);
        let words = [&["-o".to_string(), profile.clone(), "--".to_string()][..], &target].concat();
        run(&mut sweetspot.command("record", &words))?.expect_status(0)?;
        let text = fs::read_to_string(profile)?;
        ensure!(text.contains("made.src"), "no source file in {text}");
        Ok(())
    })
}

/// A root of its own for a program: everything in it is gone with its last process.
struct Container {
    /// Where the root is mounted, in the container alone.
    root: tempfile::TempDir,
    /// Shell commands that furnish it, with `$root` set.
    furnish: String,
}

/// Words that make a container of a shell command.
const UNSHARE: &[&str] =
    &["unshare", "--mount", "--pid", "--user", "--map-root-user", "--fork", "--kill-child", "sh", "-e", "-c"];

/// Why containers cannot be made here, if so.
fn no_containers() -> Option<&'static str> {
    if find_in_path("unshare").is_none() || find_in_path("chroot").is_none() {
        return Some("making containers needs `unshare` and `chroot`: apt-get install util-linux coreutils");
    }
    let mut command = Command::new(UNSHARE[0]);
    command.args(&UNSHARE[1..]).arg("mount -t tmpfs none /tmp").stderr(Stdio::null());
    let made = command.status().is_ok_and(|status| status.success());
    (!made).then_some("this machine does not let namespaces be made")
}

macro_rules! needs_containers {
    () => {
        needs_root!();
        if let Some(reason) = no_containers() {
            eprintln!("skipped: {reason}");
            return Ok(());
        }
    };
}

impl Container {
    fn new(binary: &Path) -> Result<Container> {
        let furnish = format!("mkdir -p $root/tmp $root/lib; cp {} $root/program; ", binary.display());
        Ok(Container { root: tempfile::tempdir()?, furnish })
    }

    fn furnish(mut self, command: &str) -> Container {
        self.furnish.push_str(command);
        self.furnish.push_str("; ");
        self
    }

    /// The command line of the program in it.
    fn words(&self, arguments: &str) -> Vec<String> {
        let root = self.root.path().display();
        let script = format!(
            "root={root}; mount -t tmpfs none $root; {}exec chroot $root /program {arguments}",
            self.furnish
        );
        UNSHARE.iter().map(ToString::to_string).chain([script]).collect()
    }

    /// Profiles it from its start to its end: names are asked for once it is gone.
    fn record(&self, arguments: &str) -> Result<Folded> {
        let words = self.words(arguments);
        let folded = record(&words.iter().map(String::as_str).collect::<Vec<_>>())?;
        Ok(only(folded, "program"))
    }
}

/// The stacks of one command.
fn only(folded: Folded, comm: &str) -> Folded {
    Folded(folded.0.into_iter().filter(|stack| stack.frames[0] == comm).collect())
}

#[test]
fn a_container_that_is_gone_is_named() -> Result<()> {
    needs_containers!();
    attempts(|| two_thirds(&Container::new(&program("jit")?)?.record("map 1.5")?, SHORT, LONG))
}

#[test]
fn a_container_whose_program_was_deleted_is_named() -> Result<()> {
    needs_containers!();
    attempts(|| two_thirds(&Container::new(&program("jit")?)?.record("map 1.5 delete")?, SHORT, LONG))
}

#[test]
fn a_container_with_a_journal_is_named() -> Result<()> {
    needs_containers!();
    attempts(|| {
        let folded = Container::new(&program("jit")?)?.record("dump 1.5 /tmp")?;
        all_named(&folded)?;
        near(&folded, "made_long", 4.0 / 9.0)
    })
}

#[test]
fn a_container_that_runs_is_named() -> Result<()> {
    needs_containers!();
    attempts(|| {
        let words = Container::new(&program("jit")?)?;
        let words = words.words("map 60");
        let running = start(Command::new(&words[0]).args(&words[1..]))?;
        let child = || Some(fs::read_to_string(children_of(running.id())).ok()?.trim().to_string());
        let is_at_work =
            || child().is_some_and(|child| child.parse().is_ok_and(|pid| cpu_s(pid).unwrap_or(0.0) > 0.3));
        wait_until("work in the container", is_at_work)?;
        let folded = attach(child().context("no child")?.parse()?, 1.0)?;
        all_named(&folded)?;
        near(&folded, SHORT, 1.0)
    })
}

fn children_of(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/task/{pid}/children"))
}

/// A program without symbols, and a file that has them.
struct Stripped {
    folder: tempfile::TempDir,
    /// Of its debug file, by its build id.
    debug_path: String,
}

impl Stripped {
    fn new() -> Result<Stripped> {
        let folder = tempfile::tempdir()?;
        let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        let jit = jit()?;
        for words in
            [["objcopy", "--only-keep-debug", &jit, &at("debug")], ["strip", "-o", &at("program"), &jit]]
        {
            ensure!(Command::new(words[0]).args(&words[1..]).status()?.success(), "{words:?} failed");
        }
        let notes = Command::new("readelf").args(["-n", &jit]).output()?;
        let notes = String::from_utf8(notes.stdout)?;
        let id = notes.split("Build ID: ").nth(1).and_then(|rest| rest.split_whitespace().next());
        let (start, rest) = id.context("no build id")?.split_at(2);
        Ok(Stripped { debug_path: format!("/usr/lib/debug/.build-id/{start}/{rest}.debug"), folder })
    }

    /// Its container, where a command puts the debug file in place from `$debug`.
    fn container(&self, put: &str) -> Result<Container> {
        let folder = self.folder.path();
        let container = Container::new(&folder.join("program"))?;
        let to =
            format!("to=$root{}; debug={}/debug; mkdir -p $(dirname $to)", self.debug_path, folder.display());
        Ok(container.furnish(&to).furnish(put))
    }
}

#[test]
fn debug_files_are_found_inside_a_container_that_is_gone() -> Result<()> {
    needs_containers!();
    attempts(|| {
        let stripped = Stripped::new()?;
        two_thirds(&stripped.container("cp $debug $to")?.record("map 1")?, SHORT, LONG)?;
        let link = "cp $debug $root/lib/debug; ln -s /lib/debug $to";
        two_thirds(&stripped.container(link)?.record("map 1")?, SHORT, LONG)
    })
}

/// What a container puts in place of its files leads to none of ours, and holds nobody up.
#[test]
fn a_hostile_container_has_nothing_of_ours_read() -> Result<()> {
    needs_containers!();
    let stripped = Stripped::new()?;
    for put in [
        "ln -s $debug $to",
        "ln -s ../../../../../../../../../../../../$debug $to",
        "mkfifo $to",
        "mkdir $to",
    ] {
        let folded = || {
            let folded = stripped.container(put)?.record("map 0.5")?;
            ensure!(folded.weight_of(|stack| stack.has("main")) == 0.0, "`{put}` led to a file of ours");
            Ok(folded)
        };
        attempts_of(folded, |folded| {
            ensure!(share(folded, LONG) > 0.5, "`{put}`: {folded:?}");
            Ok(())
        })?;
    }
    Ok(())
}

/// The program's list lies where anyone can put something else before it comes.
#[test]
fn a_list_that_is_no_file_of_its_owner_is_not_read() -> Result<()> {
    needs_containers!();
    let folder = tempfile::tempdir()?;
    let list = folder.path().join("list");
    fs::write(&list, "0 7fffffffffffffff forged\n")?;
    let spins = program("jit")?;
    let links = [
        format!("ln -s {} $root/tmp/perf-1.map", list.display()),
        format!("cp {} $root/lib/list; ln -s /lib/list $root/tmp/perf-1.map", list.display()),
        "mkfifo $root/tmp/perf-1.map".to_string(),
    ];
    for link in links {
        let folded = || {
            let folded = Container::new(&spins)?.furnish(&link).record("dump 0.5 /tmp")?;
            ensure!(folded.weight_of(|stack| stack.has("forged")) == 0.0, "`{link}` was read");
            Ok(folded)
        };
        attempts_of(folded, all_named)?;
    }
    Ok(())
}
