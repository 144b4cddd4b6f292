//! `--stats`: one JSON object a line for each control decision, and a last one for the run.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use profiler_core::profile::Run;
use serde::Serialize;

use crate::functions::{FunctionCost, FunctionTable, KernelShare};
use crate::intervals::Reached;

/// Why the file of decisions is not whole.
#[derive(Debug, thiserror::Error)]
pub enum StatsError {
    /// It cannot be created.
    #[error("{} cannot be written; give --stats a file in a folder that you may write to", .0.display())]
    Unwritable(PathBuf, #[source] io::Error),
    /// A line was not written, and none after it.
    #[error("{} is incomplete; free space there and run again", .0.display())]
    Incomplete(PathBuf, #[source] io::Error),
}

/// The file of decisions. It is written under its final name and to the end of each line, so that it can be
/// followed while the run lasts and tells how far the run came if it is killed.
#[derive(Debug)]
pub struct StatsWriter {
    path: PathBuf,
    file: File,
    failed: Option<io::Error>,
}

#[derive(Serialize)]
struct Tagged<T> {
    r#type: &'static str,
    #[serde(flatten)]
    body: T,
}

/// The run and its functions: the last line of the file, and `report --format json`.
#[derive(Serialize)]
struct Summary<'a> {
    #[serde(flatten)]
    run: &'a Run,
    #[serde(flatten)]
    reached: Option<Reached>,
    #[serde(flatten)]
    kernel: KernelShare,
    functions: &'a [FunctionCost],
}

impl<'a> Summary<'a> {
    fn line(run: &'a Run, table: &'a FunctionTable) -> Tagged<Self> {
        let body = Summary { run, reached: table.reached, kernel: table.kernel, functions: &table.functions };
        Tagged { r#type: "summary", body }
    }
}

impl StatsWriter {
    /// Creates the file, or empties it.
    ///
    /// # Errors
    ///
    /// If it cannot be written to.
    pub fn create(path: &Path) -> Result<Self, StatsError> {
        let file = File::create(path).map_err(|cause| StatsError::Unwritable(path.to_owned(), cause))?;
        Ok(Self { path: path.to_owned(), file, failed: None })
    }

    /// Adds a line for a control decision. A failure stops the file, not the run: [`Self::finish`] tells it.
    pub fn decision(&mut self, decision: &impl Serialize) {
        self.line(&Tagged { r#type: "decision", body: decision });
    }

    /// Adds the last line.
    ///
    /// # Errors
    ///
    /// If any line was not written.
    pub fn finish(mut self, run: &Run, table: &FunctionTable) -> Result<(), StatsError> {
        self.line(&Summary::line(run, table));
        match self.failed {
            Some(cause) => Err(StatsError::Incomplete(self.path, cause)),
            None => Ok(()),
        }
    }

    fn line(&mut self, object: &impl Serialize) {
        if self.failed.is_none() {
            self.failed = write_line(&mut self.file, object).err();
        }
    }
}

/// The summary line, as text.
///
/// # Errors
///
/// As of [`serde_json::to_string`]; none is known that a run could cause.
pub(super) fn summary(run: &Run, table: &FunctionTable) -> serde_json::Result<String> {
    Ok(serde_json::to_string(&Summary::line(run, table))? + "\n")
}

fn write_line(file: &mut File, object: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(object)?;
    line.push(b'\n');
    file.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{functions::functions, testing};

    #[derive(Serialize)]
    struct Decision {
        period_ns: u64,
    }

    #[test]
    fn lines_are_objects_and_the_last_is_the_summary() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stats.jsonl");
        let profile = testing::profile();
        let mut stats = StatsWriter::create(&path).unwrap();
        stats.decision(&Decision { period_ns: 7 });
        let so_far = std::fs::read_to_string(&path).unwrap();
        assert_eq!(so_far, "{\"type\":\"decision\",\"period_ns\":7}\n");
        stats.finish(&profile.run, &functions(&profile)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        for key in [
            "samples",
            "lost",
            "truncated",
            "truncated_by",
            "complete_ratio",
            "outer_frames_from_earlier",
            "target_cpu_s",
            "not_sampled_cpu_s",
            "overhead_us",
            "objects",
            "files_lost",
            "symbol_bytes_peak",
            "symbol_evictions",
            "symbol_rereads",
            "maps_reread",
            "mappings_dropped",
            "handler_time",
            "handler_us",
            "handler_se_us",
            "handler_samples",
            "overhead_modes",
            "overhead_ratio",
            "budget_ratio",
            "rate_hz",
            "optimum_rate_hz",
            "retunes",
            "functions",
        ] {
            assert!(last.get(key).is_some(), "{key}");
        }
        for key in ["precision_ratio", "cpu_s_to_converge", "sampling_cpu_s", "sampling_cpu_se_s"] {
            assert!(last[key].is_number(), "{key}");
        }
        assert!(last["converged"].is_boolean());
        let ends = ["cpu_s_low", "cpu_s_high", "long_run_cpu_s_low", "long_run_cpu_s_high"];
        for key in ["name", "module", "cpu_s", "share", "tied"].into_iter().chain(ends) {
            assert!(!last["functions"][0][key].is_null(), "{key}");
        }
    }

    #[test]
    fn a_full_disk_is_told_at_the_end() {
        let mut stats = StatsWriter::create(Path::new("/dev/full")).unwrap();
        stats.decision(&Decision { period_ns: 7 });
        let error = stats.finish(&Run::default(), &FunctionTable::default()).unwrap_err();
        assert!(error.to_string().contains("/dev/full is incomplete"));
    }
}
