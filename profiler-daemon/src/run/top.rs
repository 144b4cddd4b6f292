//! `top`: where CPU time goes at present, drawn again and again.
//!
//! Every two seconds, what was sampled since is cut off, named and added to the cuts before it, ten seconds in all. A thread of its own
//! does that and draws: neither a big program's debug information nor a slow terminal delays a sample. While it is busy,
//! nothing is cut off; the next cut is of a longer time.
//!
//! What naming costs is set-up, as with `attach`, and does not lower the rate. Drawing counts against `--own-cpu` and takes
//! five percent of a CPU at most. The horizon of the law is the CPU time of one window, which follows the target's load.

use std::collections::VecDeque;
use std::io::Read;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use config::SamplingSettings;
use nix::unistd::gettid;
use profile_files::functions::functions;
use profile_files::table::{View, render, render_brief};
use profile_files::when;
use profiler_core::merge::{Merger, Range};
use profiler_core::profile::{Run, SymbolizedProfile};

use super::attach::{self, AttachedRun};
use super::engine::{Engine, RunFigures};
use super::follow::{RunDisplay, Stop};
use super::jobs::TopJob;
use super::names::{self, CancelFlag};
use super::signals::CancelBySignal;
use super::{Setup, summary};
use crate::output::{Outputs, Top};
use crate::sampler::session::Collected;
use crate::sys::terminal::SingleKeys;
use crate::sys::{clock, family};
use crate::terminal::Terminal;

/// Clears what is right of the cursor; clears what is below it; moves it to the top left.
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";
const HOME: &str = "\x1b[H";
/// Clears the whole terminal.
const CLEAR: &str = "\x1b[2J";

/// Drawing takes at most one of so many parts of a CPU: with many functions, tables come more rarely.
const DRAWING_PART: u32 = 20;
/// By how much the CPU time of a window changes (as a logarithm) before the law is given the new one: a rate goes with the cube root.
const WORTH_A_NEW_HORIZON: f64 = 0.3;
/// The least CPU time that the law is given for a window (s): an idle target may wake up.
const LEAST_HORIZON_S: f64 = 0.1;

/// Shows where CPU time goes until the processes end, the duration is over or the user stops it.
pub(crate) fn top(job: &TopJob) -> Result<ExitCode> {
    let run = attach::begin(&job.run)?;
    let terminal = run.engine.log.terminal();
    // In a pipe the keys are for the program that reads the tables.
    let keys = terminal.screen().and_then(|_| SingleKeys::begin());
    let screen = Screen {
        terminal,
        rows: job.rows,
        how_to_end: if keys.is_some() { "q or Ctrl-C ends" } else { "Ctrl-C ends" },
        is_drawn: false,
    };
    let mut live = LiveView::start(job, &run, screen)?;
    if keys.is_some() {
        live.end_at_key();
    }
    let (AttachedRun { engine, .. }, stop) = attach::sample(run, &job.run, &mut live)?;
    drop(keys); // a second Ctrl-C ends the process at once, and would leave the terminal as it is
    live.finish(engine, stop)?;
    if stop == Stop::TargetGone {
        terminal.say("the target has ended");
    }
    Ok(ExitCode::SUCCESS)
}

/// A part of the run, to be named and shown.
struct TopPart {
    cut: names::Cut,
    /// Converts the weights to CPU time.
    scale: f64,
    run: Run,
}

/// What the threads share.
#[derive(Default)]
struct LiveState {
    /// Whether a part is being named or drawn.
    is_busy: AtomicBool,
    /// Whether the key to end was pressed.
    is_ended: AtomicBool,
    /// CPU time that all drawing and the last table took (ns).
    drawing_ns: AtomicU64,
    last_drawing_ns: AtomicU64,
    /// Set to skip names that are not known yet.
    cancel: CancelFlag,
}

/// Cuts the run into parts, and hands them to the thread that names and draws.
struct LiveView {
    setup: Setup,
    sampling: SamplingSettings,
    target: String,
    every: Duration,
    window: Duration,
    cut_at: Instant,
    parts: SyncSender<TopPart>,
    state: Arc<LiveState>,
    thread: JoinHandle<Result<()>>,
    /// The thread's number, to read its CPU clock.
    thread_id: i32,
    /// CPU time of naming that is charged (ns).
    charged_ns: u64,
    /// CPU time that the law was given for a window (s).
    horizon_s: f64,
    /// Whether there was a part, which shows what was spent before sampling began.
    has_parts: bool,
}

impl LiveView {
    /// Starts the thread that names and draws.
    fn start(job: &TopJob, run: &AttachedRun, mut screen: Screen) -> Result<Self> {
        let (parts, queue) = mpsc::sync_channel(1);
        let (id_sender, id) = mpsc::channel();
        let (state, window) = (Arc::new(LiveState::default()), job.window);
        let shared = Arc::clone(&state);
        let body = move || {
            let _ = id_sender.send(gettid().as_raw());
            draw_all(&queue, window, &mut screen, &shared)
        };
        let thread = std::thread::Builder::new().name("top".to_owned()).spawn(body);
        Ok(Self {
            setup: run.setup.clone(),
            sampling: job.run.sampling.clone(),
            target: run.name.clone(),
            every: job.every,
            window,
            cut_at: Instant::now(),
            parts,
            state,
            thread: thread.context("a thread could not be started")?,
            thread_id: id.recv().context("a thread did not start")?,
            charged_ns: family::readers_cpu_ns(),
            horizon_s: job.window.as_secs_f64(),
            has_parts: false,
        })
    }

    /// Reads keys until the program ends; `q` ends the run.
    fn end_at_key(&self) {
        let state = Arc::clone(&self.state);
        let read = move || {
            let mut keys = std::io::stdin().lock().bytes().map_while(Result::ok);
            if keys.any(|key| key.eq_ignore_ascii_case(&b'q')) {
                state.is_ended.store(true, Ordering::Relaxed);
                state.cancel.set();
            }
        };
        // If the thread cannot be started, Ctrl-C still ends the run.
        let _ = std::thread::Builder::new().name("keys".to_owned()).spawn(read);
    }

    fn part(&mut self, collected: Collected, figures: RunFigures) -> TopPart {
        let setup_cpu_ns = if self.has_parts { 0 } else { figures.setup_cpu_ns };
        self.has_parts = true;
        let figures = RunFigures { setup_cpu_ns, ..figures };
        let target = self.target.clone();
        let (run, scale) = summary::run(&figures, &collected, &self.setup, &self.sampling, target);
        TopPart { cut: names::Cut::new(collected), scale, run }
    }

    /// Names and draws the rest of the run; only by names that are known, if the user has stopped it.
    fn finish(mut self, engine: Engine<Outputs>, stop: Stop) -> Result<()> {
        let _cancelled = CancelBySignal::new(&self.state.cancel).context("signals could not be caught")?;
        if stop == Stop::Signal {
            self.state.cancel.set();
        }
        let (collected, figures, _) = engine.end();
        let last = self.part(collected, figures);
        let _ = self.parts.send(last); // fails if the thread that draws has ended
        drop(self.parts);
        self.thread.join().unwrap_or_else(|_| Err(anyhow!("internal error in the thread that draws")))
    }

    /// Charges what naming took since the last call as set-up; drawing counts like sampling itself.
    fn charge_naming(&mut self, engine: &mut Engine<Outputs>) {
        let all_ns = clock::cpu_of_thread_ns(self.thread_id).unwrap_or(0) + family::readers_cpu_ns();
        let naming_ns = all_ns.saturating_sub(self.state.drawing_ns.load(Ordering::Relaxed));
        let new_ns = naming_ns.saturating_sub(self.charged_ns);
        engine.session.spent_on_names(new_ns);
        self.charged_ns += new_ns;
    }

    /// The law goes by CPU time: that of a window, if the target uses as much as in the last part.
    fn follow_load(&mut self, engine: &mut Engine<Outputs>, figures: &RunFigures) {
        let cpus = figures.part.target_cpu_ns as f64 / figures.part.duration_ns.max(1) as f64;
        let horizon_s = (self.window.as_secs_f64() * cpus).max(LEAST_HORIZON_S);
        if (horizon_s / self.horizon_s).ln().abs() > WORTH_A_NEW_HORIZON {
            self.horizon_s = horizon_s;
            engine.set_horizon(&self.sampling, horizon_s);
        }
    }
}

impl RunDisplay for LiveView {
    fn show(&mut self, engine: &mut Engine<Outputs>) -> bool {
        self.charge_naming(engine);
        if self.state.is_ended.load(Ordering::Relaxed) || self.thread.is_finished() {
            return true;
        }
        let drawing = Duration::from_nanos(self.state.last_drawing_ns.load(Ordering::Relaxed));
        let is_due = self.cut_at.elapsed() >= self.every.max(DRAWING_PART * drawing);
        if is_due && !self.state.is_busy.swap(true, Ordering::AcqRel) {
            self.cut_at = Instant::now();
            let (collected, figures) = engine.cut();
            self.follow_load(engine, &figures);
            let part = self.part(collected, figures);
            let _ = self.parts.try_send(part); // fails if the thread that draws has ended
        }
        false
    }
}

/// Names parts and draws the sum of the last ones, until there are no more or the program that reads the output has ended.
fn draw_all(
    parts: &Receiver<TopPart>,
    window: Duration,
    screen: &mut Screen,
    state: &LiveState,
) -> Result<()> {
    let mut recent = VecDeque::new();
    for TopPart { cut, scale, run } in parts {
        recent.push_back(names::symbolize_cut(cut, scale, run, None, &state.cancel, &mut || ()));
        let named_ns = clock::thread_cpu_ns();
        let is_read = screen.draw(&sum_of_recent(&mut recent, window))?;
        let drawing_ns = clock::thread_cpu_ns().saturating_sub(named_ns);
        state.drawing_ns.fetch_add(drawing_ns, Ordering::Relaxed);
        state.last_drawing_ns.store(drawing_ns, Ordering::Relaxed);
        if !is_read {
            return Ok(());
        }
        state.is_busy.store(false, Ordering::Release);
    }
    Ok(())
}

/// The sum of the last parts, `window` long together. Older ones are dropped.
fn sum_of_recent(parts: &mut VecDeque<SymbolizedProfile>, window: Duration) -> SymbolizedProfile {
    let seconds = |part: &SymbolizedProfile| part.run.duration_s;
    while let Some(oldest) = parts.front() {
        let others_s: f64 = parts.iter().skip(1).map(seconds).sum();
        // A cut comes a little late: half of a part beyond the window still belongs to it.
        if others_s < window.as_secs_f64() - 0.5 * seconds(oldest) || parts.len() == 1 {
            break;
        }
        parts.pop_front();
    }
    let range = Range::of_all(parts.make_contiguous());
    let mut merger = Merger::new(range, range.bin_ns());
    for part in parts.iter() {
        merger.add(part);
    }
    merger.finish()
}

/// Where profiles are drawn.
struct Screen {
    terminal: Terminal,
    /// Functions to list; by default as many as fit.
    rows: Option<Top>,
    how_to_end: &'static str,
    is_drawn: bool,
}

impl Screen {
    /// Draws a profile in place of the last one, or below it if standard output is no terminal. Returns whether the output still has a
    /// reader.
    fn draw(&mut self, profile: &SymbolizedProfile) -> Result<bool> {
        let width = self.terminal.columns();
        let end_unix_ns = profile.run.start_unix_ns + (profile.run.duration_s * 1e9) as u64;
        let title = format!("{}, the last {:.0} s", when::in_words(end_unix_ns), profile.run.duration_s);
        let functions = functions(profile);
        let text = match self.terminal.screen() {
            Some(size) => {
                let table = |top: usize| render_brief(profile, &functions, View { width, top });
                let mut lines = vec![format!("{title}; {}", self.how_to_end)];
                lines.extend(fitted(table, self.rows, functions.functions.len(), size.rows));
                on_screen(&lines, size.columns, self.is_drawn)
            }
            None => {
                let top = self.rows.unwrap_or_default().get();
                format!("{title}\n{}\n", render(profile, &functions, View { width, top }))
            }
        };
        self.is_drawn = true;
        self.terminal.print_if_read(&text)
    }
}

/// The lines of a table for a terminal of `height` lines; a title and the cursor take one line each. If `rows` does not say how many of
/// the `most` functions to list, all that fit are listed. The summary above them gets half of the lines at most.
fn fitted(table: impl Fn(usize) -> String, rows: Option<Top>, most: usize, height: usize) -> Vec<String> {
    let room = height.saturating_sub(2);
    let lines = |top: usize| -> Vec<String> {
        let mut lines: Vec<String> = table(top).lines().map(str::to_owned).collect();
        let summary = lines.iter().position(String::is_empty).unwrap_or(0);
        lines.drain((room / 2).min(summary)..summary);
        lines
    };
    let top = rows.map_or(most.min(room), Top::get);
    let mut fitted = lines(top);
    if rows.is_none() && fitted.len() > room {
        let hidden_line = usize::from(top == most); // says how many functions are hidden, as soon as some are
        fitted = lines(top.saturating_sub(fitted.len() - room + hidden_line).max(1));
    }
    fitted.truncate(room);
    fitted
}

/// Lines in place of those that were drawn before, none longer than the terminal is wide.
fn on_screen(lines: &[String], width: usize, is_drawn: bool) -> String {
    let clear = if is_drawn { "" } else { CLEAR };
    let line = |line: &String| line.chars().take(width).chain(CLEAR_LINE.chars()).chain(['\n']).collect();
    let lines: Vec<String> = lines.iter().map(line).collect();
    format!("{clear}{HOME}{}{CLEAR_BELOW}", lines.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(functions: usize, top: usize) -> String {
        let rows: String = (0..top.min(functions)).map(|row| format!("{row}\n")).collect();
        let hidden = if top < functions { "and more\n" } else { "" };
        format!("target\nrate\n\n{rows}{hidden}")
    }

    fn part(start_s: u64, duration_s: u64) -> SymbolizedProfile {
        let start_unix_ns = 1_000_000_000_000 + start_s * 1_000_000_000;
        let run = Run { start_unix_ns, duration_s: duration_s as f64, ..Run::default() };
        SymbolizedProfile { run, ..SymbolizedProfile::default() }
    }

    #[test]
    fn as_many_functions_as_the_terminal_has_room_for() {
        for (functions, height, lines) in
            [(3, 24, 6), (100, 24, 22), (19, 24, 22), (20, 24, 22), (100, 4, 2), (5, 1, 0)]
        {
            let fitted = fitted(|top| numbered(functions, top), None, functions, height);
            assert_eq!(fitted.len(), lines, "{functions} {height}: {fitted:?}");
        }
        let asked = fitted(|top| numbered(100, top), "5".parse().ok(), 100, 24);
        assert_eq!(asked.last().map(String::as_str), Some("and more"));
        assert_eq!(asked.len(), 9);
    }

    #[test]
    fn a_long_summary_leaves_room_for_functions() {
        let table = |top: usize| format!("{}\n{}", "note\n".repeat(20), numbered(100, top));
        let fitted = fitted(table, None, 100, 24);
        let notes = fitted.iter().filter(|line| *line == "note").count();
        assert_eq!((notes, fitted.len()), (11, 22), "{fitted:?}");
    }

    #[test]
    fn what_was_drawn_before_is_written_over() {
        let lines = ["title".to_owned(), "ab".to_owned()];
        let (first, second) = (on_screen(&lines, 4, false), on_screen(&lines, 4, true));
        assert!(first.starts_with("\x1b[2J\x1b[Htitl\x1b[K\nab\x1b[K\n"), "{first:?}");
        assert_eq!(first.strip_prefix(CLEAR), Some(second.as_str()));
    }

    #[test]
    fn the_sum_is_of_the_last_parts_alone() {
        let mut parts = VecDeque::new();
        let seconds: Vec<f64> = (0..8)
            .map(|at| {
                parts.push_back(part(2 * at, 2));
                sum_of_recent(&mut parts, Duration::from_secs(10)).run.duration_s
            })
            .collect();
        assert_eq!(seconds, [2.0, 4.0, 6.0, 8.0, 10.0, 10.0, 10.0, 10.0]);
        // One that took longer than what is shown is shown whole.
        parts.push_back(part(16, 30));
        let sum = sum_of_recent(&mut parts, Duration::from_secs(10));
        assert_eq!(sum.run.duration_s.round(), 30.0);
    }
}
