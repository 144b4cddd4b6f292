//! Attaching a requested target.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::header::LOCATION;
use axum::http::{HeaderValue, StatusCode};
use config::{Pattern, Ratio, Span, TargetSettings};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{Answer, Call, json};
use crate::api::problem::Problem;
use crate::discovery::LookedUp;
use crate::service::command::{AttachRequest, DaemonCommand};

/// What is sent: the keys of a `[[target]]`, with units in the names.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AttachBody {
    /// For how long (s).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) duration_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) executable: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) process: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unit: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cgroup: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) container: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) container_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pod: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) pod_labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) everything: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) each: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) budget_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) horizon_cpu_s: Option<f64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) labels: BTreeMap<String, String>,
}

/// Lookups that may be under way: a directory of users that hangs holds no more of the threads that read profiles.
static LOOKUPS: Semaphore = Semaphore::const_new(1);

/// Looks up what a target refers to, on a thread that may wait for it.
async fn look_up(target: TargetSettings) -> Option<(LookedUp, TargetSettings)> {
    let permit = LOOKUPS.acquire().await.ok()?;
    let looking_up = tokio::task::spawn_blocking(move || {
        let found = LookedUp::of(&target);
        drop(permit);
        (found, target)
    });
    looking_up.await.ok()
}

pub(super) async fn attach(call: &Call<'_>, body: &[u8]) -> Answer {
    let asked: AttachBody = serde_json::from_slice(body).map_err(|error| {
        Problem::bad(format!("the body is not understood ({error}); see /v1/openapi.json"))
    })?;
    let time = duration(asked.duration_s, call.api.bounds.seconds)?;
    let target = asked.into_target().map_err(Problem::bad)?;
    let problems = call.api.force().settings.problems_of(&target);
    if !problems.is_empty() {
        return Err(Problem::bad(problems.join("; ")));
    }
    call.allow(Duration::ZERO);
    let (looked_up, target) = match target.user.is_some() || target.executable.is_some() {
        true => timeout(call.api.bounds.answer, look_up(target)).await.ok().flatten().ok_or_else(|| {
            let detail =
                "its user or executable cannot be looked up; check the directory of users and the disk";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail.to_owned())
        })?,
        false => (LookedUp::default(), target),
    };
    let wanted = Box::new(AttachRequest { target, looked_up, time });
    let attached = call.command(|reply| DaemonCommand::Attach(wanted, reply)).await??;
    let location = HeaderValue::try_from(format!("/v1/targets/{}", attached.name));
    let mut response = json(StatusCode::CREATED, &attached)?;
    if let Ok(location) = location {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

fn duration(seconds: Option<f64>, most: Duration) -> Result<Duration, Problem> {
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.filter(|time| !time.is_zero() && *time <= most).ok_or_else(|| {
        let most = most.as_secs();
        Problem::bad(format!(
            "duration_s, the time to profile the target, is required; write more than 0 and at most {most}"
        ))
    })
}

impl AttachBody {
    fn into_target(self) -> Result<TargetSettings, String> {
        let pattern = |key: &str, text: Option<String>| {
            text.map(|text| text.parse::<Pattern>().map_err(|error| format!("{key}: {error}"))).transpose()
        };
        let budget = |ratio: f64| Ratio::new(ratio).map_err(|error| format!("budget_ratio: {error}"));
        let horizon = |seconds: f64| {
            let span = Duration::try_from_secs_f64(seconds).ok().and_then(|time| Span::try_from(time).ok());
            span.ok_or_else(|| {
                format!("horizon_cpu_s: {seconds} is not a valid time; write seconds such as 60")
            })
        };
        Ok(TargetSettings {
            name: self.name.unwrap_or_default(),
            pid: self.pid,
            executable: self.executable,
            command: pattern("command", self.command)?,
            process: pattern("process", self.process)?,
            user: self.user,
            unit: self.unit,
            cgroup: self.cgroup,
            container: self.container,
            container_name: pattern("container_name", self.container_name)?,
            image: pattern("image", self.image)?,
            namespace: pattern("namespace", self.namespace)?,
            pod: pattern("pod", self.pod)?,
            pod_labels: self.pod_labels,
            everything: self.everything,
            each: self.each.map(|each| each.parse().map_err(|error| format!("each: {error}"))).transpose()?,
            budget: self.budget_ratio.map(budget).transpose()?,
            horizon: self.horizon_cpu_s.map(horizon).transpose()?,
            replicas: None, // what is asked for is watched here alone
            labels: self.labels,
        })
    }
}
