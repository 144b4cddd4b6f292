//! Metrics for Prometheus: what [`crate::service::state`] holds, as counters and gauges.

mod daemon;
mod target;
mod text;

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::observe::ApiCounters;
use crate::service::state::{Status, TargetStatus};

/// A form that Prometheus reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `text/plain; version=0.0.4`, which everything reads.
    Text,
    /// OpenMetrics.
    OpenMetrics,
}

impl Form {
    /// Its media type.
    pub(super) fn media_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// What a figure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MetricKind {
    /// It grows; its name gets `_total`.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// A figure of something.
struct MetricFigure<T> {
    /// The name of its metric, with its unit.
    name: &'static str,
    kind: MetricKind,
    help: &'static str,
    /// Its value; none where it is not known.
    value: fn(&T) -> Option<f64>,
}

const fn gauge<T>(name: &'static str, help: &'static str, value: fn(&T) -> Option<f64>) -> MetricFigure<T> {
    MetricFigure { name, kind: MetricKind::Gauge, help, value }
}

const fn counter<T>(name: &'static str, help: &'static str, value: fn(&T) -> Option<f64>) -> MetricFigure<T> {
    MetricFigure { name, kind: MetricKind::Counter, help, value }
}

/// Labels of a series.
type SeriesLabels<'a> = Vec<(&'a str, String)>;

/// All of it at a moment.
#[derive(Debug)]
struct Snapshot {
    status: Status,
    targets: Vec<TargetStatus>,
    answers: BTreeMap<u16, u64>,
    panics: u64,
    connections_failed: u64,
    profiles_abandoned: u64,
}

/// Writes everything.
///
/// # Errors
///
/// None that is known: the writer writes to memory.
pub(super) fn write(
    status: Status,
    targets: Vec<TargetStatus>,
    own: &ApiCounters,
    form: Form,
) -> Result<String, fmt::Error> {
    let snapshot = Snapshot {
        status,
        targets,
        answers: own.answers(),
        panics: own.panics(),
        connections_failed: own.connections_failed(),
        profiles_abandoned: own.profiles_abandoned(),
    };
    let mut registry = Registry::with_prefix("sweetspot");
    registry.register_collector(Box::new(snapshot));
    let mut out = String::new();
    prometheus_client::encoding::text::encode(&mut out, &registry)?;
    Ok(match form {
        Form::OpenMetrics => out,
        Form::Text => text::from_openmetrics(&out),
    })
}

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out(encoder);
        daemon::encode(&self.status, &mut out)?;
        target::encode(&self.targets, &mut out)?;
        let answers =
            self.answers.iter().map(|(code, count)| (vec![("code", code.to_string())], *count as f64));
        out.series("http_requests", MetricKind::Counter, "Requests that were answered, by status.", answers)?;
        out.one(
            "http_panics",
            MetricKind::Counter,
            "Requests that ended in an internal error.",
            self.panics as f64,
        )?;
        let help = "Connections that ended before their request was answered.";
        out.one("http_connections_failed", MetricKind::Counter, help, self.connections_failed as f64)?;
        let help = "Profiles that were read no further since the client had left.";
        out.one("http_profiles_abandoned", MetricKind::Counter, help, self.profiles_abandoned as f64)
    }
}

/// Where metrics are written to.
struct Out<'a>(DescriptorEncoder<'a>);

impl Out<'_> {
    /// A metric of one series.
    fn one(&mut self, name: &str, kind: MetricKind, help: &str, value: f64) -> fmt::Result {
        if !value.is_finite() {
            return Ok(());
        }
        encode(self.describe(name, kind, help)?, kind, value)
    }

    fn describe<'s>(
        &'s mut self,
        name: &'s str,
        kind: MetricKind,
        help: &str,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        let help = help.trim_end_matches('.'); // the writer ends the sentence
        let metric_type = match kind {
            MetricKind::Counter => MetricType::Counter,
            MetricKind::Gauge => MetricType::Gauge,
        };
        self.0.encode_descriptor(name, help, None, metric_type)
    }

    /// A metric with a series for each of some labels. One without any series is left out.
    fn series<'l>(
        &mut self,
        name: &str,
        kind: MetricKind,
        help: &str,
        series: impl IntoIterator<Item = (SeriesLabels<'l>, f64)>,
    ) -> fmt::Result {
        let mut series = series.into_iter().filter(|(_, value)| value.is_finite()).peekable();
        if series.peek().is_none() {
            return Ok(());
        }
        let mut metric = self.describe(name, kind, help)?;
        for (labels, value) in series {
            // The writer puts the text between quotes as it is.
            let labels: SeriesLabels<'_> =
                labels.into_iter().map(|(name, text)| (name, escaped(&text))).collect();
            encode(metric.encode_family(&labels)?, kind, value)?;
        }
        Ok(())
    }
}

fn encode(series: MetricEncoder<'_>, kind: MetricKind, value: f64) -> fmt::Result {
    match kind {
        MetricKind::Counter => ConstCounter::new(value).encode(series),
        MetricKind::Gauge => ConstGauge::new(value).encode(series),
    }
}

/// The text of a label as it stands between quotes.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
