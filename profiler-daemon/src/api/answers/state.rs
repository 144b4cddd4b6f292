//! The state of the daemon and its targets, and commands.

use axum::body::Body;
use axum::http::header::ACCEPT;
use axum::http::{Response, StatusCode};
use serde_json::json as object;

use super::{Answer, Call, content, json};
use crate::api::metrics::{self, Form};
use crate::api::problem::Problem;
use crate::service::command::{CommandRefused, DaemonCommand};

/// Whether the loop turns. Says nothing of why it does not: anyone may ask.
pub(super) async fn health(call: &Call<'_>) -> Answer {
    match call.latest().await {
        Ok(latest) if call.is_alive(&latest) => json(StatusCode::OK, &object!({ "status": "ok" })),
        _ => {
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the daemon does not answer; look at its log"))
        }
    }
}

/// Whether it does what it is there for.
pub(super) async fn ready(call: &Call<'_>) -> Answer {
    match call.latest().await {
        Ok(latest) if call.is_alive(&latest) && latest.status.ready => {
            json(StatusCode::OK, &object!({ "status": "ready" }))
        }
        _ => {
            let detail = "the daemon is not ready; `sweetspot ctl status` says why";
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail))
        }
    }
}

pub(super) async fn status(call: &Call<'_>) -> Answer {
    json(StatusCode::OK, &call.latest().await?.status())
}

pub(super) async fn targets(call: &Call<'_>) -> Answer {
    let targets = call.latest().await?.targets();
    json(StatusCode::OK, &object!({ "targets": targets }))
}

pub(super) async fn target(call: &Call<'_>) -> Answer {
    let targets = call.latest().await?.targets();
    let found = targets.into_iter().find(|target| target.name == call.name);
    json(StatusCode::OK, &found.ok_or_else(|| CommandRefused::Unknown(call.name.clone()))?)
}

pub(super) async fn decisions(call: &Call<'_>) -> Answer {
    let latest = call.latest().await?;
    let found = latest.decisions(&call.name).ok_or_else(|| CommandRefused::Unknown(call.name.clone()))?;
    let decisions = found.log.list();
    json(
        StatusCode::OK,
        &object!({ "target": call.name, "shared_by": found.shared_by, "decisions": decisions }),
    )
}

pub(super) async fn detach(call: &Call<'_>) -> Answer {
    call.command(|reply| DaemonCommand::Detach(call.name.clone(), reply)).await??;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}

pub(super) async fn reload(call: &Call<'_>) -> Answer {
    let text = call.command(DaemonCommand::Reload).await??;
    json(StatusCode::OK, &object!({ "message": text }))
}

pub(super) async fn stop(call: &Call<'_>) -> Answer {
    call.command(DaemonCommand::Stop).await?;
    json(
        StatusCode::OK,
        &object!({ "message": "every event is removed; sweetspot ends once what was sampled is kept, in two seconds at most" }),
    )
}

pub(super) async fn metrics(call: &Call<'_>) -> Answer {
    let latest = call.latest().await?;
    let accepted = call.parts.headers.get_all(ACCEPT).iter();
    let form = if accepted
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.contains("application/openmetrics-text"))
    {
        Form::OpenMetrics
    } else {
        Form::Text
    };
    let text = metrics::write(latest.status(), latest.targets(), &call.api.counters, form)
        .map_err(|_| Problem::internal("internal error: the metrics cannot be written"))?;
    Ok(content(form.media_type(), text))
}
