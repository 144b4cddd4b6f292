//! Sweetspot: a sampling profiler that chooses its own rate.

mod aside;
mod calibrate;
mod cli;
mod doctor;
mod export;
mod failure;
mod law;
mod objects;
mod output;
mod plan;
mod report;
mod run;
mod sampler;
mod settings;
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
        Err(asked) => {
            let _ = asked.print(); // help and the version too; whoever closed the pipe has seen enough
            return u8::try_from(asked.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
        }
    };
    log_to_stderr();
    Job::new(cli.command).and_then(run).unwrap_or_else(|error| {
        Terminal::default().fail(&error);
        failure::exit_code(&error)
    })
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
        Job::Report(job) => report::run(&job, terminal, law::share_interval)?,
        Job::Plan(job) => terminal.print(&plan::render(&job, &law::plan(&job)?))?,
        Job::Doctor(job) => return doctor::run(job, terminal, run::try_open),
    }
    Ok(ExitCode::SUCCESS)
}
