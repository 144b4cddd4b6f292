//! Every path, what it takes and what it answers: the one list that the router, the readers of parameters and the OpenAPI
//! document are made from.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::IntoResponse;
use axum::routing::{MethodFilter, MethodRouter, on};
use profile_files::FORMATS;

use super::guard::Needs;
use super::params::{Parameter, ParameterKind};
use super::problem::Problem;
use super::{Api, answers, observe};

/// Something that can be asked for.
#[derive(Debug)]
pub(super) struct Route {
    /// How.
    pub(super) method: RouteMethod,
    /// Where; `{name}` is a target's.
    pub(super) path: &'static str,
    /// Who answers.
    pub(super) operation: Operation,
    /// What it does, in a line.
    pub(super) summary: &'static str,
    /// What it takes.
    pub(super) parameters: &'static [&'static Parameter],
    /// The schema of the body it takes.
    pub(super) body: Option<&'static str>,
    /// What it answers.
    pub(super) answer: Answered,
    /// Statuses of problems of its own, beside [`ALWAYS`] and, where it needs a right, [`SECRET`].
    pub(super) problems: &'static [u16],
}

/// How it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RouteMethod {
    Get,
    Post,
    Delete,
}

impl RouteMethod {
    /// Its name in lower case.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Post => "post",
            Self::Delete => "delete",
        }
    }

    fn filter(self) -> MethodFilter {
        match self {
            Self::Get => MethodFilter::GET,
            Self::Post => MethodFilter::POST,
            Self::Delete => MethodFilter::DELETE,
        }
    }
}

/// An answer that is no problem.
#[derive(Debug)]
pub(super) struct Answered {
    /// Its status.
    pub(super) status: u16,
    /// Media types, each with the schema of JSON; with those of all formats where one can be asked for.
    pub(super) contents: &'static [(&'static str, Option<&'static str>)],
}

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Health,
    Ready,
    Status,
    Targets,
    Target,
    Decisions,
    Profile,
    Attach,
    Detach,
    Reload,
    Stop,
    Metrics,
    Document,
    PprofIndex,
    PprofProfile,
}

/// Problems that anything may meet: a request that cannot be meant, a page of a browser, a wrong name, an error of ours, and
/// a loop that does not answer.
pub(super) const ALWAYS: [u16; 5] = [400, 403, 421, 500, 503];
/// Problems of what needs a right: no token, and too many requests.
pub(super) const SECRET: [u16; 2] = [401, 429];

pub(super) static FROM: Parameter = Parameter {
    name: "from",
    kind: ParameterKind::Moment,
    doc: "Start: Unix seconds, an age (-1h), a time of day (09:30, the most recent one) or a date and time \
          (2026-11-22T09:30 in the daemon's time zone, or 2026-11-22T09:30Z).",
};
pub(super) static TO: Parameter =
    Parameter { name: "to", kind: ParameterKind::Moment, doc: "End, in the same form; now by default." };
pub(super) static SECONDS: Parameter = Parameter {
    name: "seconds",
    kind: ParameterKind::Seconds,
    doc: "Wait this long and return what was sampled meanwhile, instead of `from` and `to`.",
};
pub(super) static TARGET: Parameter = Parameter {
    name: "target",
    kind: ParameterKind::Target,
    doc: "Only this target; may be repeated. Default: all targets.",
};
pub(super) static LABEL: Parameter = Parameter {
    name: "label",
    kind: ParameterKind::Label,
    doc: "Only targets with this label, as KEY=TEXT; may be repeated, and all have to match.",
};
pub(super) static FORMAT: Parameter =
    Parameter { name: "format", kind: ParameterKind::Format, doc: "The format; json by default." };

const fn json(schema: &'static str) -> (&'static str, Option<&'static str>) {
    ("application/json", Some(schema))
}

const fn plain(kind: &'static str) -> (&'static str, Option<&'static str>) {
    (kind, None)
}

const fn get(
    path: &'static str,
    operation: Operation,
    summary: &'static str,
    contents: &'static [(&'static str, Option<&'static str>)],
) -> Route {
    let answer = Answered { status: 200, contents };
    Route {
        method: RouteMethod::Get,
        path,
        operation,
        summary,
        parameters: &[],
        body: None,
        answer,
        problems: &[],
    }
}

/// All of them.
pub(super) static ROUTES: [Route; 15] = [
    get(
        "/healthz",
        Operation::Health,
        "Whether the daemon's loop responds. Needs no authorization.",
        &[json("Word")],
    ),
    get(
        "/readyz",
        Operation::Ready,
        "Whether the daemon samples what it can and keeps what it samples: not if the store has a problem, or if targets \
         failed and none is sampled. Needs no authorization.",
        &[json("Word")],
    ),
    get("/v1/status", Operation::Status, "The state of the daemon.", &[json("Status")]),
    get("/v1/targets", Operation::Targets, "All targets: sampled, waiting and left out.", &[json("Targets")]),
    Route {
        problems: &[404],
        ..get("/v1/targets/{name}", Operation::Target, "One target.", &[json("Target")])
    },
    Route {
        problems: &[404],
        ..get(
            "/v1/targets/{name}/decisions",
            Operation::Decisions,
            "The controller's latest decisions for a target, oldest first.",
            &[json("Decisions")],
        )
    },
    Route {
        parameters: &[&FROM, &TO, &SECONDS, &TARGET, &LABEL, &FORMAT],
        problems: &[404],
        ..get(
            "/v1/profile",
            Operation::Profile,
            "A profile of a stored time range, or of the next seconds.",
            &[json("Profile")],
        )
    },
    Route {
        method: RouteMethod::Post,
        body: Some("Attach"),
        answer: Answered { status: 201, contents: &[json("Named")] },
        problems: &[408, 409, 413, 415, 422],
        ..get("/v1/attach", Operation::Attach, "Profile another target for some time.", &[])
    },
    Route {
        method: RouteMethod::Delete,
        answer: Answered { status: 204, contents: &[] },
        problems: &[404, 409],
        ..get("/v1/targets/{name}", Operation::Detach, "Remove a target that was added by a request.", &[])
    },
    Route {
        method: RouteMethod::Post,
        problems: &[409, 422],
        ..get("/v1/reload", Operation::Reload, "Reload the settings.", &[json("Message")])
    },
    Route {
        method: RouteMethod::Post,
        ..get(
            "/v1/stop",
            Operation::Stop,
            "Stop sampling at once, store what was sampled, and stop the daemon.",
            &[json("Message")],
        )
    },
    get(
        "/metrics",
        Operation::Metrics,
        "Metrics for Prometheus.",
        &[plain("text/plain"), plain("application/openmetrics-text")],
    ),
    get("/v1/openapi.json", Operation::Document, "This document.", &[json("Any")]),
    get(
        "/debug/pprof/",
        Operation::PprofIndex,
        "The available profiles, as Go's net/http/pprof lists them.",
        &[plain("text/plain")],
    ),
    Route {
        parameters: &[&SECONDS, &TARGET, &LABEL],
        problems: &[404],
        ..get(
            "/debug/pprof/profile",
            Operation::PprofProfile,
            "The next seconds (default 30) in pprof format, like Go's net/http/pprof.",
            &[plain("application/octet-stream")],
        )
    },
];

/// What a request for this path has to show over the network.
pub(super) fn needs(path: &str) -> Needs {
    ROUTES.iter().find(|route| route.path == path).map_or(Needs::Token, Route::needs)
}

/// Whether requests for this path may take minutes: they wait for samples, names, the store or other settings.
pub(super) fn is_long(path: &str) -> bool {
    ROUTES.iter().any(|route| route.path == path && route.is_long())
}

impl Route {
    fn is_long(&self) -> bool {
        use Operation::{Attach, PprofProfile, Profile, Reload};
        matches!(self.operation, Profile | PprofProfile | Attach | Reload)
    }

    /// What a request over the network has to show.
    pub(super) fn needs(&self) -> Needs {
        match self.operation {
            Operation::Health | Operation::Ready => Needs::Nothing,
            Operation::Metrics => Needs::MetricsToken,
            _ => Needs::Token,
        }
    }

    /// Media types of its answer, each with the schema of JSON.
    pub(super) fn contents(&self) -> BTreeMap<&'static str, Option<&'static str>> {
        let formats = if self.parameters.contains(&&FORMAT) { &FORMATS[..] } else { &[] };
        let kinds = formats.iter().map(|format| format.media_type.split(';').next().unwrap_or_default());
        kinds.map(|kind| (kind, None)).chain(self.answer.contents.iter().copied()).collect()
    }

    /// Every status that it answers with.
    pub(super) fn statuses(&self) -> Vec<u16> {
        let mut statuses = vec![self.answer.status];
        statuses.extend(self.problems.iter().chain(&ALWAYS));
        if self.needs() != Needs::Nothing {
            statuses.extend(SECRET);
        }
        statuses.sort_unstable();
        statuses
    }
}

/// The router.
pub(super) fn router(api: &Arc<Api>) -> Router {
    let routes =
        ROUTES.iter().fold(Router::new(), |router, route| router.route(route.path, answering(route)));
    routes
        .fallback(|| async { Problem::no_such_path().into_response() })
        .method_not_allowed_fallback(|request: Request| async move {
            not_allowed(request.uri().path()).into_response()
        })
        .layer(from_fn_with_state(Arc::clone(api), observe::observe))
        .with_state(Arc::clone(api))
}

fn answering(route: &'static Route) -> MethodRouter<Arc<Api>> {
    let answer = move |axum::extract::State(api): axum::extract::State<Arc<Api>>, request: Request| async move {
        answers::answer(&api, route, request).await.unwrap_or_else(Problem::into_response).into_response()
    };
    on(route.method.filter(), answer)
}

/// The router knows that the path is one of ours.
fn not_allowed(path: &str) -> Problem {
    let parts = |path: &'_ str| path.split('/').map(str::to_owned).collect::<Vec<_>>();
    let asked = parts(path);
    let fits = |route: &&Route| {
        let ours = parts(route.path);
        ours.len() == asked.len()
            && ours.iter().zip(&asked).all(|(ours, asked)| ours == asked || ours == "{name}")
    };
    let mut methods: Vec<String> =
        ROUTES.iter().filter(fits).map(|route| route.method.as_str().to_ascii_uppercase()).collect();
    if methods.iter().any(|method| method == "GET") {
        methods.push("HEAD".to_owned());
    }
    let allow = methods.join(", ");
    let detail = format!("this path does not take this method; use {allow}");
    Problem { allow: Some(allow), ..Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail) }
}
