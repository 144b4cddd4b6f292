//! `ctl`: sends a request to the daemon over its socket, and prints the response as text or as JSON.

mod client;
mod jobs;
mod profile;
mod shown;
mod tables;
mod targets;
#[cfg(test)]
mod tests;

use std::time::Duration;

use anyhow::{Result, anyhow};
use serde::de::DeserializeOwned;

pub(crate) use self::jobs::{CtlJob, CtlProfile, CtlQuery, CtlTime, TargetList, TargetOrder};
use crate::terminal::Terminal;
use client::{Client, RequestMethod};

/// For most questions: the daemon answers within a tick, and gives up after half a minute itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks what `job` says, and prints the answer.
///
/// # Errors
///
/// If nobody answers, it is not permitted, or the daemon refuses.
pub(crate) fn run(job: &CtlJob, terminal: Terminal) -> Result<()> {
    let client = Client { socket: &job.socket };
    let get = |path: &str| client.ask(RequestMethod::Get, path, None, PATIENCE);
    let post = |path: &str| client.ask(RequestMethod::Post, path, None, PATIENCE);
    match &job.query {
        CtlQuery::Status => show(job, terminal, &get("/v1/status")?, tables::status),
        CtlQuery::Targets(list) => {
            show(job, terminal, &get("/v1/targets")?, |answer| targets::table(answer, *list))
        }
        CtlQuery::Decisions(target) => {
            let path = format!("/v1/targets/{}/decisions", client::quoted(target));
            show(job, terminal, &get(&path)?, tables::decisions)
        }
        CtlQuery::Profile(asked) => profile::run(&client, asked, job.json, terminal),
        CtlQuery::Attach(attach) => {
            let body = serde_json::to_vec(attach)?;
            let answer = client.ask(RequestMethod::Post, "/v1/attach", Some(body), PATIENCE)?;
            show(job, terminal, &answer, tables::attached)
        }
        CtlQuery::Detach(target) => {
            let path = format!("/v1/targets/{}", client::quoted(target));
            client.ask(RequestMethod::Delete, &path, None, PATIENCE)?;
            let said = format!(
                "{} is no longer profiled; what was sampled is stored\n",
                profile_files::names::visible(target)
            );
            terminal.print(if job.json { "{}\n" } else { &said })
        }
        CtlQuery::Reload => show(job, terminal, &post("/v1/reload")?, tables::message),
        CtlQuery::Stop => show(job, terminal, &post("/v1/stop")?, tables::message),
    }
}

/// Prints an answer: as it is, or as a text for a person.
fn show<T: DeserializeOwned>(
    job: &CtlJob,
    terminal: Terminal,
    answer: &[u8],
    text: impl FnOnce(&T) -> String,
) -> Result<()> {
    if job.json {
        return terminal.print(&format!("{}\n", String::from_utf8_lossy(answer).trim_end()));
    }
    let understood = serde_json::from_slice(answer).map_err(|error| {
        anyhow!("the daemon's answer is not understood ({error}); does it have another version?")
    })?;
    terminal.print(&text(&understood))
}
