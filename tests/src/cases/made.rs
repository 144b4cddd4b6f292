//! Targets that are made for one run: compiled, stripped and packed by the commands that distributions use.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tempfile::{TempDir, TempPath};

use crate::programs::{find_in_path, source};
use crate::runtimes::perf_python;

/// Shell commands that make a target in a new folder, and the command that runs there.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// Commands that must be installed, and Debian's packages that have them.
    pub needs: &'static [(&'static str, &'static str)],
    /// Run in the new folder; `$programs` is the folder of the sources, `$python` a Python that tells of its functions.
    /// What it prints are files that it has put elsewhere, a line each.
    pub make: &'static str,
    /// What is profiled, a shell's words: `$folder` is the folder and `$seconds` how long it is to work.
    pub run: &'static str,
}

/// A target that is ready to run. The files made for it are removed when it is dropped.
#[derive(Debug, Default)]
pub struct Prepared {
    /// The command line.
    pub words: Vec<String>,
    _made: Option<(TempDir, Vec<TempPath>)>,
}

impl Prepared {
    /// A command line for which nothing was made.
    pub fn of(words: Vec<String>) -> Self {
        Self { words, _made: None }
    }
}

impl Made {
    /// Makes it, or reports what is missing.
    pub fn prepare(&self, cpu_s: f64) -> Result<Result<Prepared, String>> {
        for (command, package) in self.needs {
            if find_in_path(command).is_none() {
                return Ok(Err(format!("there is no {command} (apt-get install {package})")));
            }
        }
        let python = perf_python();
        if self.run.contains("$python") && python.is_none() {
            return Ok(Err("there is no Python of 3.12 or later with its perf support".to_string()));
        }
        let folder = tempfile::tempdir()?;
        let elsewhere = self.make(&folder)?;
        let seconds = cpu_s.to_string();
        let programs = programs();
        // What a run-time system leaves goes with the folder.
        let run = format!("cd $folder; {}", self.run);
        let mut run = run.replace("$folder", &folder.path().to_string_lossy());
        for (name, value) in
            [("$seconds", &*seconds), ("$programs", &*programs), ("$python", &text(python.as_ref()))]
        {
            run = run.replace(name, value);
        }
        let words = ["sh", "-e", "-c", &run].map(str::to_string).to_vec();
        Ok(Ok(Prepared { words, _made: Some((folder, elsewhere)) }))
    }

    fn make(&self, folder: &TempDir) -> Result<Vec<TempPath>> {
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", self.make]).current_dir(folder.path()).env("programs", programs());
        let output = shell.output().context("cannot run sh")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "`{}` failed: {said}", self.make);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        printed.lines().map(|line| Ok(TempPath::try_from_path(line)?)).collect()
    }
}

fn programs() -> String {
    source("").to_string_lossy().into_owned()
}

fn text(path: Option<&PathBuf>) -> String {
    path.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default()
}
