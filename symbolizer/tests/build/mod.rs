//! Programs compiled for a test, and what binutils say about them.
#![allow(dead_code, reason = "each test uses some of it")]
#![allow(clippy::print_stderr, reason = "a test that cannot run says why")]

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A program compiled from source, deleted with this value.
pub(crate) struct Program {
    directory: TempDir,
    path: PathBuf,
}

impl Program {
    pub(crate) fn c(source: &str, options: &[&str]) -> Option<Self> {
        Self::compile("cc", "program.c", source, options)
    }

    pub(crate) fn cpp(source: &str, options: &[&str]) -> Option<Self> {
        Self::compile("g++", "program.cc", source, options)
    }

    pub(crate) fn assembly(source: &str, options: &[&str]) -> Option<Self> {
        Self::compile("cc", "program.s", source, options)
    }

    pub(crate) fn fortran(source: &str, options: &[&str]) -> Option<Self> {
        Self::compile("gfortran", "program.f90", source, options)
    }

    pub(crate) fn rust(source: &str, options: &[&str]) -> Option<Self> {
        Self::compile("rustc", "program.rs", source, options)
    }

    /// A program compiled and linked in two steps, in its own directory, as build systems do it.
    pub(crate) fn in_steps(compiler: &str, name: &str, source: &str, options: &[&str]) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(directory.path().join(name), source).expect("a source file");
        let program = Self { path: directory.path().join("program"), directory };
        program.build(compiler, name, "program", options)?;
        Some(program)
    }

    /// Compiles and links a source file of the directory; where the program is.
    pub(crate) fn build(&self, compiler: &str, name: &str, out: &str, options: &[&str]) -> Option<PathBuf> {
        let object = format!("{out}.o");
        let here = || {
            let mut command = Command::new(compiler);
            command.current_dir(self.directory.path());
            command
        };
        run(here().args(options).args(["-c", name, "-o", &object]))?;
        run(here().args([&object, "-o", out]))?;
        Some(self.directory.path().join(out))
    }

    fn compile(compiler: &str, name: &str, source: &str, options: &[&str]) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join(name);
        std::fs::write(&file, source).expect("a source file");
        let path = directory.path().join("program");
        let mut command = Command::new(compiler);
        // Some write more than is asked for.
        command.current_dir(directory.path());
        run(command.args(options).arg("-o").arg(&path).arg(&file))?;
        Some(Self { directory, path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Start and size of the function whose linkage name is the one asked for, as `nm` sees it.
    pub(crate) fn symbol(&self, is_it: impl Fn(&str) -> bool) -> (u64, u64) {
        let listed = run(Command::new("nm").arg("-S").arg(&self.path)).expect("nm comes with the compiler");
        let number = |word: &str| u64::from_str_radix(word, 16).expect("a hexadecimal number");
        let found = listed.lines().find_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
            [start, size, "t" | "T" | "W", name] if is_it(name) => Some((number(start), number(size))),
            _ => None,
        });
        found.expect("the function is in the program")
    }

    /// The addresses of the sections of stubs.
    pub(crate) fn stubs(&self) -> impl Iterator<Item = u64> {
        let listed =
            run(Command::new("objdump").arg("-h").arg(&self.path)).expect("objdump comes with the compiler");
        let ranges: Vec<_> = listed
            .lines()
            .filter_map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
                [_, name, size, address, ..] if name.starts_with(".plt") || name == ".iplt" => {
                    Some((u64::from_str_radix(address, 16).ok()?, u64::from_str_radix(size, 16).ok()?))
                }
                _ => None,
            })
            .collect();
        ranges.into_iter().flat_map(|(start, size)| start..start + size)
    }

    /// A copy without symbols and debug information.
    pub(crate) fn stripped(&self) -> Option<PathBuf> {
        let stripped = self.directory.path().join("stripped");
        run(Command::new("strip").arg("-o").arg(&stripped).arg(&self.path))?;
        Some(stripped)
    }

    /// A copy without debug information, linked to a file that has it.
    pub(crate) fn split(&self) -> Option<(PathBuf, PathBuf)> {
        let debug = self.directory.path().join("program.debug");
        run(Command::new("objcopy").arg("--only-keep-debug").arg(&self.path).arg(&debug))?;
        let stripped = self.stripped()?;
        let link = format!("--add-gnu-debuglink={}", debug.display());
        run(Command::new("objcopy").arg(link).arg(&stripped))?;
        Some((stripped, debug))
    }
}

/// What a command prints, or nothing and a line about it if it cannot be run.
pub(crate) fn run(command: &mut Command) -> Option<String> {
    let output = command.output();
    match output {
        Ok(output) if output.status.success() => Some(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            eprintln!("skipped: {:?}: {}", command.get_program(), said.lines().next().unwrap_or_default());
            None
        }
        Err(error) => {
            eprintln!("skipped: {:?}: {error}", command.get_program());
            None
        }
    }
}
