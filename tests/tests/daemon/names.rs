//! Names in the service, and who reads them.

use anyhow::bail;
use tests::run::finish;

use super::*;

/// Names are shared between targets, but not for what a file says of itself.
#[test]
fn programs_that_say_they_are_of_one_build_have_their_own_names_in_each_target() -> Result<()> {
    privileged!();
    let programs = ["namesake_a", "namesake_b"];
    let mut sections = String::new();
    for name in programs {
        let target = name.replace('_', "-"); // of which windows are found by their files
        sections += &format!("[[target]]\nname = {target:?}\nexecutable = {:?}\n", program(name)?);
    }
    let begin = |name: &str| start(Command::new(program(name)?).arg("300000"));
    let _running = programs.map(begin).into_iter().collect::<Result<Vec<_>>>()?;
    let mut daemon = Daemon::start_ample(2, &sections)?;
    for name in programs {
        let target = name.replace('_', "-");
        daemon.wait_for(&target, "sampled")?;
        wait_for_windows(&daemon, &target, 2)?;
    }
    daemon.stop(Signal::SIGTERM)?;
    for [name, other] in [programs, [programs[1], programs[0]]] {
        ensure_named(&daemon, &name.replace('_', "-"), name, other)?;
    }
    Ok(())
}

/// A target has functions of one of the namesakes, and none of the other.
fn ensure_named(daemon: &Daemon, target: &str, own: &str, other: &str) -> Result<()> {
    let words = ["--from", "-1h", "--target", target, "--format", "json"];
    let profile: Value = serde_json::from_str(&daemon.report(&words)?.expect_status(0)?.stdout)?;
    let functions = profile["functions"].as_array().context("functions")?;
    let has = |name: &str| {
        functions.iter().any(|function| function["name"].as_str() == Some(&format!("{name}_inner")))
    };
    ensure!(has(own) && !has(other), "{target}: {functions:?}");
    Ok(())
}

/// A shell command in a mount namespace of its own.
fn unshared(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]);
    command
}

/// Whether this machine lets that be done.
fn can_unshare(script: &str) -> bool {
    run(&mut unshared(script)).is_ok_and(|ended| ended.status == 0)
}

/// What containers of one image share is named once; a file that was put in the place of such a one is not.
#[test]
fn containers_of_one_image_have_their_own_names() -> Result<()> {
    privileged!();
    let folder = tempfile::tempdir()?;
    let (image, seen) = (folder.path().join("image"), folder.path().join("seen"));
    fs::create_dir(&image)?;
    fs::create_dir(&seen)?;
    copy_program(&program("namesake_a")?, &image.join("prog"))?;
    let mount = |number: usize| {
        let upper = folder.path().join(format!("upper{number}"));
        format!(
            "mkdir -p {upper}/files {upper}/work && mount -t overlay none {seen} \
             -o lowerdir={image},upperdir={upper}/files,workdir={upper}/work",
            upper = upper.display(),
            seen = seen.display(),
            image = image.display()
        )
    };
    if !can_unshare(&mount(0)) {
        eprintln!("skipped: making containers needs `unshare`, and overlayfs");
        return Ok(());
    }
    let begin = |number: usize, replace: &str| {
        let script = format!("{} && {replace} && exec {}/prog 30000{number}", mount(number), seen.display());
        start(&mut unshared(&script))
    };
    let forge =
        format!("cp --remove-destination {} {}/prog", program("namesake_b")?.display(), seen.display());
    let mut running = [(1, "true"), (2, "true"), (3, forge.as_str()), (4, "true")]
        .map(|(number, replace)| begin(number, replace))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    std::thread::sleep(Duration::from_millis(300));
    let has_ended = |program: &mut Running| program.try_wait().is_ok_and(|ended| ended.is_some());
    if let Some(at) = running.iter_mut().position(has_ended) {
        bail!("container {} has ended: {:?}", at + 1, finish(running.remove(at))?);
    }
    let section =
        |number: u32| format!("[[target]]\nname = \"box{number}\"\ncommand = \"prog 30000{number}$\"\n");
    let mut daemon = Daemon::start_ample(2, &(1..=4).map(section).collect::<String>())?;
    for number in 1..=4 {
        let name = format!("box{number}");
        daemon.wait_for(&name, "sampled")?;
        wait_for_windows(&daemon, &name, 2)?;
    }
    daemon.stop(Signal::SIGTERM)?;
    for number in 1..=4 {
        let (own, other) =
            if number == 3 { ("namesake_b", "namesake_a") } else { ("namesake_a", "namesake_b") };
        ensure_named(&daemon, &format!("box{number}"), own, other)?;
    }
    Ok(())
}

/// What a process has open, by what it leads to.
fn open_files(pid: u32) -> Result<Vec<String>> {
    let files = fs::read_dir(format!("/proc/{pid}/fd"))?;
    let leads_to = |file: std::io::Result<fs::DirEntry>| fs::read_link(file.ok()?.path()).ok();
    Ok(files.filter_map(leads_to).map(|path| path.to_string_lossy().into_owned()).collect())
}

/// The process that reads symbols for a daemon, while it runs.
fn symbolizer_of(daemon: &Daemon) -> Result<Option<u32>> {
    let threads = fs::read_dir(format!("/proc/{}/task", daemon.pid()?))?;
    let children = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok());
    let children: String = children.collect();
    let reads_symbols = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"symbolizer")
    };
    Ok(children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(reads_symbols))
}

fn wait_for_symbolizer(daemon: &Daemon) -> Result<u32> {
    wait_until("a process that reads symbols", || symbolizer_of(daemon).is_ok_and(|pid| pid.is_some()))?;
    symbolizer_of(daemon)?.context("it has ended")
}

/// Whether all threads of a process have no capabilities and a filter of system calls.
fn is_shut_in(pid: u32) -> Result<bool> {
    let mut statuses = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        statuses.push(fs::read_to_string(thread?.path().join("status"))?);
    }
    let wanted = ["CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "Seccomp:\t2", "NoNewPrivs:\t1"];
    let has_all = |status: &String| wanted.iter().all(|line| status.lines().any(|found| found == *line));
    Ok(!statuses.is_empty() && statuses.iter().all(has_all))
}

#[test]
fn whoever_reads_symbols_has_no_rights_and_ends_with_the_daemon_and_another_takes_its_place() -> Result<()> {
    privileged!();
    let (busy, later) = (Busy::new()?, Busy::new()?);
    let sections = busy.section("busy", "") + &later.section("later", "");
    let mut daemon = Daemon::start_ample(2, &sections)?;
    let _busy = busy.start()?;
    wait_for_windows(&daemon, "busy", 1)?;
    let first = wait_for_symbolizer(&daemon)?;
    ensure!(is_shut_in(first)?, "it is not shut in");

    nix::sys::signal::kill(nix::unistd::Pid::from_raw(first as i32), Signal::SIGKILL)?;
    let _later = later.start()?;
    wait_for_windows(&daemon, "later", 2)?;
    let (work_s, all_s) = work_and_all_s(&daemon, &later, "later")?;
    ensure!(work_s > 0.5 * all_s, "names for {work_s} s of {all_s} s");
    let second = wait_for_symbolizer(&daemon)?;
    let status = daemon.ctl_json(&["status"])?;
    ensure!(status["symbolizer"]["apart"] == true && status["symbolizer"]["broken"] == 0, "{status:#}");
    ensure!(second != first && status["symbolizer"]["started"] == 2, "{status:#}");

    daemon.stop(Signal::SIGKILL)?;
    let folder = format!("/proc/{second}");
    wait_until("it ends too", || !fs::exists(&folder).unwrap_or(true))
}

/// As long as a mount namespace is held, or a file in it, nothing that is mounted there can go away.
#[test]
fn the_root_of_an_ended_container_is_released_though_its_target_goes_on() -> Result<()> {
    privileged!();
    let (busy, host, seen) = (Busy::new()?, Busy::new()?, tempfile::tempdir()?);
    let mount = format!("mount -t tmpfs none {}", seen.path().display());
    if !can_unshare(&mount) {
        eprintln!("skipped: making containers needs `unshare`, and tmpfs");
        return Ok(());
    }
    // What both map is met here first: libraries that are first met in a container hold it as long as others map them.
    let _host = host.start()?;
    let daemon = Daemon::start_ample(2, "[[target]]\nname = \"all\"\neverything = true\n")?;
    let pid = daemon.pid()?;
    wait_until("the host's program is met", || {
        open_files(pid).is_ok_and(|files| files.iter().any(|file| file.contains(&host.name)))
    })?;
    let script = format!(
        "{mount} && cp {path} {seen}/ && exec {seen}/{name} --cpu 300",
        seen = seen.path().display(),
        path = busy.path().display(),
        name = busy.name,
    );
    let mut running = start(&mut unshared(&script))?;
    let exe = format!("/proc/{}/exe", running.id());
    let is_there = || fs::read_link(&exe).is_ok_and(|path| path.ends_with(&busy.name));
    let mut has_ended = || running.try_wait().is_ok_and(|ended| ended.is_some());
    wait_until("the container", || is_there() || has_ended())?;
    if has_ended() {
        bail!("the container has ended: {:?}", finish(running)?);
    }
    let namespace = fs::read_link(format!("/proc/{}/ns/mnt", running.id()))?;
    let namespace = namespace.to_string_lossy().into_owned();
    let is_held = |file: &String| *file == namespace || file.contains(&busy.name);
    let held = || -> Result<usize> {
        let reader = symbolizer_of(&daemon)?.map_or(Ok(Vec::new()), open_files).unwrap_or_default();
        Ok(open_files(pid)?.iter().chain(&reader).filter(|file| is_held(file)).count())
    };
    wait_until("the container is met", || held().is_ok_and(|held| held >= 2))?;
    running.kill()?;
    running.wait()?;
    wait_until("the container is let go", || held().is_ok_and(|held| held == 0))
}
