//! Control groups that are none, or nobody's.

use std::fs;

use anyhow::Result;
use tests::groups::{Group, mount_of};
use tests::run::{Sweetspot, run};

use crate::{refused, sweetspot};

fn attach(group: &str) -> Result<tests::run::Ended> {
    sweetspot("attach", &["--duration", "1s", "--cgroup", group])
}

#[test]
fn no_such_group() -> Result<()> {
    for group in ["no/such/group", "/sys/fs/cgroup/no-such-group", ".."] {
        refused(attach(group)?, 1, &["not a cgroup", "no cgroup", "not mounted", "mounted here"])?;
    }
    let ended = sweetspot("attach", &["--unit", "no-such-unit"])?;
    refused(ended, 1, &["no unit", "no cgroup"])
}

#[test]
fn a_folder_that_is_no_group() -> Result<()> {
    let folder = tempfile::tempdir()?;
    refused(attach(&folder.path().to_string_lossy())?, 1, &["not a cgroup"])?;
    let file = folder.path().join("file");
    fs::write(&file, "")?;
    refused(attach(&file.to_string_lossy())?, 1, &["not a cgroup"])
}

#[test]
fn a_group_of_version_1() -> Result<()> {
    let Some(old) = mount_of("cgroup") else {
        eprintln!("skipped: no cgroup of version 1 is mounted");
        return Ok(());
    };
    refused(attach(&old.to_string_lossy())?, 1, &["version 1", "no cgroup v2"])
}

#[test]
fn an_empty_group() -> Result<()> {
    let Some(group) = Group::new() else {
        eprintln!("skipped: control groups need root, and cgroup v2 mounted for writing");
        return Ok(());
    };
    refused(attach(&group.argument())?, 1, &["no process"])
}

#[test]
fn a_group_without_privilege() -> Result<()> {
    let Some(group) = Group::new() else {
        eprintln!("skipped: control groups need root, and cgroup v2 mounted for writing");
        return Ok(());
    };
    let _sleeper = tests::run::start(&mut group.command("", "sleep".as_ref(), &["60"])?)?;
    tests::run::wait_until("the sleeper", || !group.processes().is_empty())?;
    let nobody = Sweetspot::new().unprivileged()?;
    let words = ["--duration", "1s", "--cgroup", &group.argument()];
    refused(run(&mut nobody.command("attach", &words))?, 77, &["not permitted", "permission"])
}
