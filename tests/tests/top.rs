//! `top`, as a person and a program see it.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::guards::Running;
use tests::programs::program;
use tests::run::{Sweetspot, finish, next_line, run, start};

/// Seconds of wall-clock time that a table is of: `target    NAME: 1.00 s of CPU time in 2.00 s`.
fn seconds_of(target: &str) -> Option<f64> {
    target.rsplit_once("CPU time in ")?.1.split_whitespace().next()?.parse().ok()
}

#[test]
fn top_prints_the_last_seconds_again_and_again() -> Result<()> {
    let target = start(Command::new(program("mix_nofp")?).args(["--cpu", "60", "--out", "/dev/null"]))?;
    let words = ["--every", "500ms", "--window", "1s", &*target.id().to_string()];
    let mut command = Sweetspot::new().command("top", &words);
    let begun = Instant::now();
    let mut top = start(command.env("COLUMNS", "200"))?;
    let (mut tables, mut rows) = (0, 0);
    // On a busy machine naming may take long, and then a table is of a longer time; in the end it is of the last second alone.
    loop {
        let line = next_line(&mut top)?;
        rows += usize::from(line.contains(" work_"));
        if line.starts_with("target ") {
            tables += 1;
            let seconds = seconds_of(&line).with_context(|| line.clone())?;
            if tables >= 3 && rows > 0 && seconds < 0.5 * begun.elapsed().as_secs_f64() {
                break;
            }
        }
    }
    kill(Pid::from_raw(top.id() as i32), Signal::SIGINT)?;
    finish(top)?.expect_status(0)?;
    Ok(())
}

#[test]
fn top_ends_with_its_target_and_with_its_reader() -> Result<()> {
    let sweetspot = Sweetspot::new();
    let brief = start(Command::new(program("mix_nofp")?).args(["--cpu", "1.5", "--out", "/dev/null"]))?;
    let ended = run(&mut sweetspot.command("top", &[brief.id().to_string()]))?.expect_status(0)?;
    ensure!(ended.stdout.contains("work_") && ended.stderr.contains("the target has ended"), "{ended:?}");
    let target = start(Command::new(program("mix_nofp")?).args(["--cpu", "60", "--out", "/dev/null"]))?;
    let top = sweetspot.command("top", &["--every", "500ms", &*target.id().to_string()]);
    let mut piped = Command::new("sh");
    piped.args(["-c", "\"$@\" | head -1", "sh"]).arg(top.get_program()).args(top.get_args());
    piped.envs(top.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let ended = run(&mut piped)?.expect_status(0)?;
    ensure!(ended.stdout.lines().count() == 1 && ended.stderr.is_empty(), "{ended:?}");
    Ok(())
}

/// On a terminal, each table is written over the last one and fits, until a key is pressed; then the terminal is as before.
#[test]
fn top_fits_the_terminal_and_ends_at_a_key() -> Result<()> {
    let target = start(Command::new(program("mix_nofp")?).args(["--cpu", "60", "--out", "/dev/null"]))?;
    let top = Sweetspot::new().command("top", &["--every", "500ms", &*target.id().to_string()]);
    let words: Vec<String> = top.get_args().map(|word| format!("'{}'", word.to_string_lossy())).collect();
    let program = top.get_program().display();
    let line = format!("stty rows 15 cols 70; '{program}' {} && stty -a", words.join(" "));
    let mut terminal = Command::new("script");
    terminal.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    terminal.envs(top.get_envs().filter_map(|(key, value)| Some((key, value?))));
    terminal.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut terminal = Running::start(&mut terminal)?;
    let mut keys = terminal.stdin.take().context("no input")?;
    let (mut screens, mut lines) = (0, 0);
    loop {
        let line = next_line(&mut terminal)?;
        if line.contains("\x1b[H") {
            (screens, lines) = (screens + 1, 0);
            ensure!(screens > 1 || line.contains("q or Ctrl-C"), "{line:?}");
            if screens == 3 {
                break;
            }
        }
        lines += 1;
        let text =
            line.trim_end().trim_end_matches("\x1b[K").rsplit_once("\x1b[H").map_or(&*line, |both| both.1);
        ensure!(lines <= 14 && text.trim_end().trim_end_matches("\x1b[K").chars().count() <= 70, "{line:?}");
    }
    keys.write_all(b"q")?;
    let ended = finish(terminal)?.expect_status(0)?;
    let is_on = |word: &str| ended.stdout.split_whitespace().any(|found| found == word);
    ensure!(is_on("icanon") && is_on("echo"), "{ended:?}");
    Ok(())
}
