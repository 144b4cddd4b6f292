//! A profile for Pyroscope's `push.v1.PusherService/Push`: a unary call of the Connect protocol with the pprof file in its message.
//!
//! <https://connectrpc.com/docs/protocol>, and `api/push/v1/push.proto` of Pyroscope.

#[cfg(test)]
pub(super) mod tests;

use profiler_core::profile::Measure;
use prost::Message;
use ring::digest::{Context, SHA256};
use ureq::http::{HeaderName, HeaderValue};

use super::client::Post;
use super::naming::PushIdentity;
use super::pyroscope;
use super::source::PushSource;

/// The header that every call has.
pub(super) const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("connect-protocol-version");
/// What messages are sent and acknowledged as.
pub(super) const CONTENT_TYPE: &str = "application/proto";

/// `push.v1.PushRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct PushRequest {
    #[prost(message, repeated, tag = "1")]
    series: Vec<RawProfileSeries>,
}

/// `push.v1.RawProfileSeries`.
#[derive(Clone, PartialEq, prost::Message)]
struct RawProfileSeries {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<LabelPair>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<RawSample>,
}

/// `types.v1.LabelPair`.
#[derive(Clone, PartialEq, prost::Message)]
struct LabelPair {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// `push.v1.RawSample`.
#[derive(Clone, PartialEq, prost::Message)]
struct RawSample {
    /// A pprof file.
    #[prost(bytes = "vec", tag = "1")]
    raw_profile: Vec<u8>,
    #[prost(string, tag = "2")]
    id: String,
}

/// The request for a profile.
pub(super) fn post(source: &PushSource, identity: &PushIdentity) -> Post {
    let labels = labels(&source.profile.run.measure, identity);
    let sample = RawSample { id: id(&labels, &source.pprof), raw_profile: source.pprof.clone() };
    let series = RawProfileSeries { labels, samples: vec![sample] };
    Post {
        query: None,
        content_type: CONTENT_TYPE,
        header: Some((PROTOCOL_VERSION, HeaderValue::from_static("1"))),
        is_compressed: false, // the file in the message is
        body: PushRequest { series: vec![series] }.encode_to_vec(),
    }
}

/// The labels of the series in the order of their names. Those that `/ingest` adds are added here, so that a series goes on if
/// the format changes.
fn labels(measure: &Measure, identity: &PushIdentity) -> Vec<LabelPair> {
    let name = match measure {
        Measure::CpuTime => "process_cpu".to_owned(),
        Measure::Other { time, .. } => pyroscope::label_name(time),
    };
    let mut labels = pyroscope::labels(identity);
    labels.retain(|name, _| !name.starts_with("__")); // names that Pyroscope keeps for itself
    for (key, value) in [
        ("__name__", name),
        ("__delta__", "false".to_owned()), // each profile is of its own time, and not since the start
        ("pyroscope_spy", "sweetspot".to_owned()),
        ("service_name", pyroscope::service(identity)),
    ] {
        labels.insert(key.to_owned(), value);
    }
    labels.into_iter().map(|(name, value)| LabelPair { name, value }).collect()
}

/// A UUID (version 8 of RFC 9562) from the contents: sent again, a profile has the same, and each part of one has another.
/// Pyroscope makes one from labels and time if there is none, and all parts would share it.
fn id(labels: &[LabelPair], pprof: &[u8]) -> String {
    let mut context = Context::new(&SHA256);
    for text in labels.iter().flat_map(|label| [&label.name, &label.value]) {
        context.update(text.as_bytes());
        context.update(&[0]);
    }
    context.update(pprof);
    let digest = context.finish();
    let number =
        digest.as_ref().iter().take(16).fold(0, |number: u128, byte| (number << 8) | u128::from(*byte));
    let (version, variant) = (0x8 << 76, 0b10 << 62);
    let digits = format!("{:032x}", (number & !((0xf << 76) | (0b11 << 62))) | version | variant);
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}
