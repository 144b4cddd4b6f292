//! The processes that a target stands for.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, bail};
use regex_lite::Regex;

use crate::cgroup::{Cgroup, CgroupError};
use crate::explain;
use crate::sys::family;

/// Which processes to attach to.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// These.
    Pids(Vec<u32>),
    /// Processes whose command name or program file name matches.
    Name(Regex),
    /// Those in a control group, by its path or its folder's.
    Cgroup(PathBuf),
    /// Those in the control group of a systemd unit.
    Unit(String),
    /// Every process but this one; none is known beforehand.
    Everything,
}

/// What a target turned out to be.
#[derive(Debug)]
pub(crate) struct TargetMembers {
    /// The ids of its processes, in ascending order and never our own.
    pub(crate) pids: Vec<u32>,
    /// The control group that it is, or has to itself.
    pub(crate) group: Option<Arc<Cgroup>>,
}

impl Target {
    /// Its processes, and its group if it is one.
    ///
    /// # Errors
    ///
    /// If a process or a group does not exist, nothing matches or nobody is in the group.
    pub(crate) fn resolve(&self) -> Result<TargetMembers> {
        let group = match self {
            Self::Pids(pids) => return Ok(TargetMembers { pids: existing(pids)?, group: None }),
            Self::Name(regex) => return Ok(TargetMembers { pids: matching(regex)?, group: None }),
            Self::Everything => return Ok(TargetMembers { pids: Vec::new(), group: None }),
            Self::Cgroup(path) => Cgroup::find(path),
            Self::Unit(name) => Cgroup::of_unit(name),
        };
        group.and_then(inhabited).map_err(explain::cgroup)
    }
}

fn inhabited(group: Arc<Cgroup>) -> Result<TargetMembers, CgroupError> {
    let unreadable = |cause| CgroupError::Unreadable { name: group.name().to_owned(), cause };
    let mut pids = group.processes().map_err(unreadable)?;
    pids.retain(|pid| !family::is_ours(*pid));
    if pids.is_empty() {
        return Err(CgroupError::Empty(group.name().to_owned()));
    }
    Ok(TargetMembers { pids, group: Some(group) })
}

fn existing(pids: &[u32]) -> Result<Vec<u32>> {
    for pid in pids {
        if !Path::new(&format!("/proc/{pid}")).exists() {
            bail!("no process has the id {pid}; `pgrep NAME` lists the ids of a program");
        }
        explain::thread(*pid)?;
    }
    Ok(pids.to_vec())
}

fn matching(regex: &Regex) -> Result<Vec<u32>> {
    let mut pids: Vec<u32> = fs::read_dir("/proc")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| !family::is_ours(*pid) && names(*pid).iter().any(|name| regex.is_match(name)))
        .collect();
    if pids.is_empty() {
        bail!("no process has a name that matches `{regex}`; `ps -eo pid,comm` lists the names");
    }
    pids.sort_unstable();
    Ok(pids)
}

/// The command name (which the kernel cuts at 15 bytes) and the file name of the program as it was called.
/// A process that has gone has neither, and neither has a zombie.
fn names(pid: u32) -> Vec<String> {
    let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let command_line = read("cmdline");
    let program = command_line.split(|byte| *byte == 0).next().unwrap_or_default();
    let program = program.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    [text(&read("comm")), text(program)].into_iter().filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_by_name_and_never_ourselves() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        // A process is its parent's to see a little before the kernel has given it its name.
        while !names(child.id()).contains(&"sleep".to_owned()) && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        let found = Target::Name(Regex::new("^sleep$").unwrap()).resolve();
        let everything = Target::Name(Regex::new(".").unwrap()).resolve();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.unwrap().pids.contains(&child.id()));
        assert!(!everything.unwrap().pids.contains(&std::process::id()));
    }

    /// `/proc` has a folder for each thread, which it does not list.
    #[test]
    fn the_id_of_a_thread_is_refused_with_that_of_its_process() {
        let (ids, threads) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            ids.send(nix::unistd::gettid().as_raw() as u32).unwrap();
            let _ = ended.recv();
        });
        let (tid, pid) = (threads.recv().unwrap(), std::process::id());
        let refused = Target::Pids(vec![tid]).resolve().unwrap_err().to_string();
        let taken = Target::Pids(vec![pid]).resolve();
        drop(end);
        thread.join().unwrap();
        assert!(refused.contains(&format!("{tid} is a thread of process {pid}")), "{refused}");
        assert_eq!(taken.unwrap().pids, [pid]);
    }

    #[test]
    fn a_process_that_does_not_exist_is_an_error() {
        let error = Target::Pids(vec![u32::MAX]).resolve().unwrap_err();
        assert!(error.to_string().contains("no process has the id"));
        assert!(Target::Name(Regex::new("^no such process name$").unwrap()).resolve().is_err());
    }
}
