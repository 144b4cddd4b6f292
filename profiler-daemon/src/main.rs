//! Sweetspot: a sampling profiler that chooses its own rate.

mod api;
mod calibrate;
mod cgroup;
mod check_config;
mod cli;
mod compare;
mod containers;
mod ctl;
mod daemon;
mod debuginfod;
mod discovery;
mod docs;
mod doctor;
mod evaluate;
mod explain;
mod failure;
mod fleet;
mod inject;
mod jit;
mod objects;
mod opener;
mod output;
mod plan;
mod plot;
mod push;
mod report;
mod roots;
mod run;
mod sampler;
mod service;
mod settings;
mod standstill;
mod symbol_process;
mod sys;
mod targets;
mod terminal;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use cli::Cli;
use settings::Job;
use terminal::Terminal;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(asked) => return answer(&asked),
    };
    sys::signal::take_errors_for_big_files();
    if !matches!(cli.command, cli::Command::Daemon(_)) {
        log_to_stderr(); // the daemon has a log of its own
    }
    Job::new(cli.command).and_then(run).unwrap_or_else(|error| {
        Terminal::default().fail(&error);
        failure::exit_code(&error)
    })
}

/// Help and the version as they are; what was typed wrong in one line.
fn answer(asked: &clap::Error) -> ExitCode {
    let wants_help = asked.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if asked.use_stderr() && !wants_help {
        let text = asked.render().to_string();
        let what = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
        let what = what.split_whitespace().collect::<Vec<_>>().join(" ");
        let words: Vec<String> =
            std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        let more = cli::hint(&words, asked).unwrap_or_else(|| cli::where_to_look(&words, asked));
        Terminal::default().fail(&failure::usage(format!("{what}; {more}")));
    } else {
        let _ = asked.print(); // whoever closed the pipe has seen enough
    }
    u8::try_from(asked.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// What the developers of this program want to see: `SWEETSPOT_LOG=debug`. Nothing by default.
fn log_to_stderr() {
    if let Ok(filter) = tracing_subscriber::EnvFilter::try_from_env("SWEETSPOT_LOG") {
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
}

fn run(job: Job) -> Result<ExitCode> {
    let terminal = Terminal::default();
    match job {
        Job::Record(job) => return run::record(&job),
        Job::Attach(job) => return run::attach(&job),
        Job::Top(job) => return run::top(&job),
        Job::Report(job) => report::run(&job, terminal)?,
        Job::Compare(job) => compare::run(&job, terminal)?,
        Job::Push(job) => return push::run(&job, terminal),
        Job::Plan(job) => plan::run(&job, terminal)?,
        Job::PlanProcess(job) => plan::process::run(&job, terminal)?,
        Job::Evaluate(job) => evaluate::run(&job)?,
        Job::Workload(job) => evaluate::workload::run(&job)?,
        Job::Calibrate(job) => calibrate::run(job, terminal)?,
        Job::Symbolizer => symbol_process::run()?,
        Job::CalibrateWorkload(cpu) => calibrate::serve(cpu)?,
        Job::Daemon(job) => return daemon::run(job),
        Job::CheckConfig(file) => return check_config::run(file.as_deref(), terminal),
        Job::GenerateDocs(folder) => docs::write(&folder)?,
        Job::Ctl(job) => ctl::run(&job, terminal)?,
        Job::Doctor(job) => return doctor::run(job, terminal, run::try_open),
    }
    Ok(ExitCode::SUCCESS)
}
