//! Profiles: a range of time of what is kept, or the next seconds.

use std::time::Duration;

use axum::http::header::{CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY};
use axum::http::{HeaderValue, StatusCode};
use jiff::{Timestamp, Zoned};
use profile_files::store::Query;
use profile_files::{Format, JSON, PPROF};
use profiler_core::merge::Range;
use tokio::time::timeout;

use super::reading::render;
use super::{Answer, Call, content, no_answer_within};
use crate::api::observe::AnswerRoom;
use crate::api::problem::Problem;
use crate::api::routes::{FORMAT, FROM, LABEL, SECONDS, TARGET, TO};
use crate::service::command::{DaemonCommand, Flush};
use crate::sys::clock::unix_ns;

/// What is at `/debug/pprof/`.
pub(super) const INDEX: &str = "\
/debug/pprof/profile?seconds=30    CPU time of the next seconds, in pprof's format
    &target=NAME                   of one target
    &label=KEY=TEXT                of targets with this label

/v1/profile?from=-1h               what was sampled before; /v1/openapi.json says more
";

/// What Go takes where nothing is said.
const GO_SECONDS: Duration = Duration::from_secs(30);

/// A document's own script and style, and nothing else; it cannot reach anything of where it is shown. A flame graph asks in a
/// dialog for what to search.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
    sandbox allow-scripts allow-modals";

pub(super) async fn profile(call: &Call<'_>) -> Answer {
    let format = call.params.format(&FORMAT)?.unwrap_or(&JSON);
    let now = Zoned::now();
    let from = call.params.moment(&FROM, &now)?;
    let to = call.params.moment(&TO, &now)?;
    let range = match (call.params.seconds(&SECONDS, call.api.bounds.seconds)?, from) {
        (Some(_), _) if from.is_some() || to.is_some() => {
            return Err(Problem::bad(
                "seconds selects the next seconds, from and to a stored time range; give one or the other",
            ));
        }
        (Some(time), _) => ProfileTime::Next(time),
        (None, Some(from_unix_ns)) => {
            let now_unix_ns = u64::try_from(now.timestamp().as_nanosecond()).unwrap_or_default();
            ProfileTime::Kept(kept(call, from_unix_ns, to.unwrap_or(now_unix_ns), now_unix_ns)?)
        }
        (None, None) => return Err(Problem::bad("from or seconds is required; write one, such as from=-1h")),
    };
    answer(call, range, format).await
}

pub(super) async fn go(call: &Call<'_>) -> Answer {
    let time = call.params.seconds(&SECONDS, call.api.bounds.seconds)?.unwrap_or(GO_SECONDS);
    answer(call, ProfileTime::Next(time), &PPROF).await
}

/// Which time is asked for.
enum ProfileTime {
    Next(Duration),
    Kept(Range),
}

fn kept(call: &Call<'_>, from_unix_ns: u64, to_unix_ns: u64, now_unix_ns: u64) -> Result<Range, Problem> {
    // What is to come is not kept.
    let to_unix_ns = to_unix_ns.min(now_unix_ns);
    if from_unix_ns >= to_unix_ns {
        return Err(Problem::bad(
            "from is not before to, or not before now; write an earlier time such as -1h",
        ));
    }
    let most = call.api.bounds.range;
    if u128::from(to_unix_ns - from_unix_ns) > most.as_nanos() {
        let days = most.as_secs() / 86_400;
        return Err(Problem::bad(format!(
            "a range has at most {days} days; write a later from or an earlier to"
        )));
    }
    Ok(Range { from_unix_ns, to_unix_ns })
}

async fn answer(call: &Call<'_>, time: ProfileTime, format: &'static Format) -> Answer {
    let (targets, labels) = (call.params.targets(&TARGET), call.params.labels(&LABEL)?);
    let flush = Flush { targets: targets.clone(), labels: labels.clone(), ..Flush::default() };
    let range = match time {
        ProfileTime::Next(time) => next(call, time, flush).await?,
        ProfileTime::Kept(range) => {
            let now_ns = unix_ns();
            let window_ns = call.latest().await?.status.store.window_s * 1e9; // in force, which may be longer than asked for
            let ended_ago_ns = now_ns.saturating_sub(range.to_unix_ns);
            // Windows that end in turn may be longer, and it is looked for those that are over about once a second.
            if (ended_ago_ns as f64) < 2.0 * window_ns + 2e9 {
                keep_open_windows(call, Flush { ended_ago_ns, ..flush }, range).await?;
            }
            range
        }
    };
    let query = Query { range, targets, labels };
    call.allow(call.api.bounds.rendering);
    let body = render(call.api, query, format).await?;
    let room = AnswerRoom::of(&call.api.answers_mib, body.len())?;
    let mut response = content(format.media_type, body);
    response.extensions_mut().insert(room);
    let headers = response.headers_mut();
    if format.has_script {
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    }
    if format.is_binary() {
        let name = HeaderValue::from_str(&format!("attachment; filename=\"profile.{format}\""));
        headers.extend(name.ok().map(|name| (CONTENT_DISPOSITION, name)));
    }
    Ok(response)
}

/// Waits between two ends of windows: what lies between them are windows of their own.
async fn next(call: &Call<'_>, time: Duration, flush: Flush) -> Result<Range, Problem> {
    call.allow(time);
    let begin = Flush { is_begin: true, ..flush.clone() };
    call.command(|reply| DaemonCommand::Flush(begin, reply)).await??;
    let from_unix_ns = unix_ns();
    tokio::time::sleep(time).await;
    let so_far = Range { from_unix_ns, to_unix_ns: unix_ns().max(from_unix_ns + 1) };
    keep_open_windows(call, Flush { is_end: true, ..flush }, so_far).await?;
    Ok(Range { from_unix_ns, to_unix_ns: unix_ns().max(from_unix_ns + 1) })
}

/// Has the open windows of `range` ended, and waits until they can be read from the store.
async fn keep_open_windows(call: &Call<'_>, flush: Flush, range: Range) -> Result<(), Problem> {
    let time = call.api.bounds.naming;
    call.allow(time);
    let kept = call.api.commands.request(|reply| DaemonCommand::Flush(flush, reply));
    let Ok(kept) = timeout(time, kept).await else {
        let is_silent = |age_ns: u64| u128::from(age_ns) > call.api.bounds.answer.as_nanos();
        if call.api.commands.age_ns().is_some_and(is_silent) {
            return Err(no_answer_within(time));
        }
        let detail = format!(
            "its windows are still being named after {} s; ask in a minute for from={} and to={}",
            time.as_secs_f64(),
            written(range.from_unix_ns),
            written(range.to_unix_ns)
        );
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail));
    };
    Ok(kept??)
}

/// A time as a request may give it.
fn written(unix_ns: u64) -> String {
    Timestamp::from_nanosecond(unix_ns.into()).map_or_else(|_| unix_ns.to_string(), |time| time.to_string())
}
