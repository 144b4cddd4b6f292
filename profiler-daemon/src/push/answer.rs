//! A backend's response to a profile.

use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceResponse;
use profile_files::names::visible;
use prost::Message;
use ureq::http::header::{CONTENT_TYPE, LOCATION, RETRY_AFTER};
use ureq::http::{HeaderName, HeaderValue, Response};

use super::pyroscope_push;
use super::receiver::Receiver;
use super::trouble::PushError;
use config::ExportFormat;

/// Characters of what it says that are shown.
const SHOWN: usize = 200;
/// Longest time to wait that is believed (s).
pub(super) const LONGEST_WAIT: u64 = 86_400;

/// What backends say of a profile that is longer than they take, beside the status 413: OpenTelemetry's collector, gRPC's
/// libraries, proxies in front of gRPC, Connect's library, and Pyroscope of its limits on bytes and on stacks.
const TOO_LONG: [&str; 13] = [
    "request body too large",
    "maximum configured message size",
    "HTTP status code 413",
    "with status: 413",
    "larger than max",
    "length too large",
    "exceeds maximum size",
    "exceeded while decompressing",
    "is larger than configured max",
    "http.MaxBytesReader limit",
    "profile payload size exceeds limit of",
    "(max_profile_size_byte",
    "(max_profile_stacktrace_samples",
];

/// Values of a request's headers, which an answer may repeat.
pub(super) struct Secrets(Vec<String>);

/// The answer to a request, read to its end.
pub(super) struct PushAnswer {
    pub(super) status: u16,
    pub(super) content_type: String,
    /// Where it redirects to.
    pub(super) location: Option<String>,
    pub(super) retry_after: Option<Duration>,
    pub(super) body: Vec<u8>,
    /// What of it is not shown.
    pub(super) secrets: Secrets,
}

/// What goes along with an error over HTTP (`google.rpc.Status`).
#[derive(Clone, PartialEq, prost::Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
}

/// The same as the acknowledgement, from backends that answer with JSON.
#[derive(Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct JsonResponse {
    partial_success: JsonPartialSuccess,
}

#[derive(Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct JsonPartialSuccess {
    /// A number, or one as a text.
    rejected_profiles: serde_json::Value,
    error_message: String,
}

/// An error of the Connect protocol.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct ConnectError {
    code: String,
    message: String,
}

/// Connect's codes of a call that may succeed another time, although its status is one of the 4xx.
const UNFINISHED: [&str; 2] = ["aborted", "canceled"];

impl PushAnswer {
    /// An answer to a request with these headers.
    pub(super) fn new(head: &Response<()>, body: Vec<u8>, sent: &[(HeaderName, HeaderValue)]) -> Self {
        let header = |name| head.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Self {
            status: head.status().as_u16(),
            content_type: header(CONTENT_TYPE).unwrap_or_default(),
            location: header(LOCATION),
            retry_after: header(RETRY_AFTER).and_then(|text| asked_wait(text.trim(), Timestamp::now())),
            body,
            secrets: Secrets::of(sent),
        }
    }

    /// Whether it acknowledges a body of `bytes` that was sent to `receiver`.
    ///
    /// # Errors
    ///
    /// If it does not.
    pub(super) fn check(&self, receiver: &Receiver, bytes: usize) -> Result<(), PushError> {
        let host = &receiver.host;
        let status = self.status;
        let said = self.said();
        let (text, of_pyroscope) =
            (String::from_utf8_lossy(&self.body), receiver.format == ExportFormat::Pyroscope);
        let later = || PushError::Later {
            text: format!("{host} accepts no more at present ({status}){said}"),
            after: self.retry_after,
        };
        let failed =
            || PushError::Failed { text: format!("{host} failed ({status}){said}"), after: self.retry_after };
        let is_long = too_long(&text);
        let by_connect = receiver.format == ExportFormat::PyroscopePush;
        let is_unfinished = || {
            let error = self.connect_error();
            by_connect && error.is_some_and(|error| UNFINISHED.contains(&error.code.as_str()))
        };
        match status {
            200..=299 if receiver.format == ExportFormat::Otlp => self.check_otlp(host),
            200..=299 if by_connect => self.check_connect(host),
            200..=299 if self.content_type.starts_with("text/html") => Err(PushError::Receiver(format!(
                "{host} answers {status} with a page; check that --to leads to Pyroscope"
            ))),
            200..=299 => Ok(()),
            300..=399 => {
                let to = self
                    .location
                    .as_deref()
                    .map_or("another address".to_owned(), |to| self.secrets.shown(to));
                Err(PushError::Receiver(format!(
                    "{host} redirects to {to} ({status}); give that address with --to if it is right"
                )))
            }
            401 => Err(PushError::NotPermitted(format!(
                "{host} asks for a token (401){said}; give its token with --token-file, or its header with --header"
            ))),
            403 => Err(PushError::NotPermitted(format!(
                "{host} does not permit it (403){said}; give a token with --token-file that may write profiles"
            ))),
            404 | 405 | 501 if by_connect || status != 501 => Err(PushError::Receiver(format!(
                "{host} does not accept profiles at {} ({status}){said}; check the path in --to, and --format",
                path(&receiver.url)
            ))),
            413 => Err(PushError::TooLong(format!(
                "{host} does not accept a body of {} (413){said}; raise its limit, or push profiles of shorter time",
                size(bytes)
            ))),
            // Connect has one code for a limit on the size and for one on the rate.
            429 if !is_long => Err(later()),
            503 => Err(later()),
            _ if is_long => Err(PushError::TooLong(format!(
                "{host} does not accept a profile of {} ({status}){said}; raise its limit, or push profiles of shorter time",
                size(bytes)
            ))),
            // Pyroscope's status for what failed behind it, too: a limit on the rate, a restart.
            422 if of_pyroscope && text.contains("resource_exhausted") => Err(later()),
            422 if of_pyroscope && !text.contains("invalid_argument") => Err(failed()),
            408 | 500.. => Err(failed()),
            _ if is_unfinished() => Err(failed()),
            _ => Err(PushError::Profile(format!(
                "{host} refuses it ({status}){said}; check --format, and what {host} accepts"
            ))),
        }
    }

    /// A proxy may say 200 as well, with a page.
    fn check_otlp(&self, host: &str) -> Result<(), PushError> {
        let Some((is_rejected, message)) = self.partial_success() else {
            return Err(PushError::Receiver(format!(
                "{host} answers {} without acknowledging a profile; check that --to leads to a receiver of OTLP \
                 profiles",
                self.status
            )));
        };
        if is_rejected { Err(rejected(host, &self.secrets.shown(&message))) } else { Ok(()) }
    }

    /// A response has the type of the request, and a message without fields.
    fn check_connect(&self, host: &str) -> Result<(), PushError> {
        if self.content_type.starts_with(pyroscope_push::CONTENT_TYPE)
            && <()>::decode(self.body.as_slice()).is_ok()
        {
            return Ok(());
        }
        Err(PushError::Receiver(format!(
            "{host} answers {} without acknowledging a profile; check that --to leads to Pyroscope, and --format",
            self.status
        )))
    }

    /// The error of a Connect call, if it is one.
    fn connect_error(&self) -> Option<ConnectError> {
        let is_json = self.content_type.starts_with("application/json");
        let error: ConnectError = serde_json::from_slice(&self.body).ok().filter(|_| is_json)?;
        (!error.code.is_empty()).then_some(error)
    }

    /// Whether something was rejected, and why.
    fn partial_success(&self) -> Option<(bool, String)> {
        if self.content_type.starts_with("application/json") {
            let partial = serde_json::from_slice::<JsonResponse>(&self.body).ok()?.partial_success;
            let count = &partial.rejected_profiles;
            let is_zero = count.is_null() || count == 0 || count == "0";
            return Some((!is_zero, partial.error_message));
        }
        let response = ExportProfilesServiceResponse::decode(self.body.as_slice()).ok()?;
        let partial = response.partial_success.unwrap_or_default();
        Some((partial.rejected_profiles != 0, partial.error_message))
    }

    /// What it says for a person, if it does.
    fn said(&self) -> String {
        let text = if self.content_type.contains("protobuf") {
            Status::decode(self.body.as_slice()).map(|status| status.message).unwrap_or_default()
        } else if let Some(ConnectError { code, message }) = self.connect_error() {
            if message.is_empty() { code } else { message }
        } else {
            String::from_utf8_lossy(&self.body).into_owned()
        };
        let text = self.secrets.shown(text.trim());
        if text.is_empty() || text.starts_with('<') { String::new() } else { format!(": {text}") }
    }
}

impl Secrets {
    /// Those of a request with these headers.
    pub(super) fn of(headers: &[(HeaderName, HeaderValue)]) -> Self {
        let mut found: Vec<String> = headers.iter().flat_map(|(_, value)| secrets(value)).collect();
        found.sort_by_key(|secret| std::cmp::Reverse(secret.len())); // one may be a part of another
        Self(found)
    }

    /// The beginning of a text of the backend's, without the secrets that it may repeat.
    pub(super) fn shown(&self, text: &str) -> String {
        let hidden = |text: String, secret: &String| text.replace(secret.as_str(), "…");
        let visible = visible(&self.0.iter().fold(text.to_owned(), hidden));
        match visible.char_indices().nth(SHOWN) {
            Some((end, _)) => format!("{}…", &visible[..end]),
            None => visible,
        }
    }
}

/// How long a backend asks to wait: in seconds, or until a date (RFC 9110, 10.2.3).
fn asked_wait(text: &str, now: Timestamp) -> Option<Duration> {
    let until = || Some(rfc2822::parse(text).ok()?.timestamp().duration_since(now).as_secs());
    let seconds = text.parse().ok().or_else(|| Some(u64::try_from(until()?).unwrap_or(0)))?;
    Some(Duration::from_secs(seconds.min(LONGEST_WAIT)))
}

/// Whether a backend says by this text that a profile is longer than it takes.
pub(super) fn too_long(text: &str) -> bool {
    TOO_LONG.iter().any(|words| text.contains(words))
}

/// A profile that was rejected by an acknowledgement, for the reason that the backend gives (which may be empty).
pub(super) fn rejected(host: &str, reason: &str) -> PushError {
    let said = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    PushError::Profile(format!("{host} rejected it{said}; look at its log"))
}

/// Schemes of an authorization, which are no secrets.
const SCHEMES: [&str; 3] = ["Basic", "Bearer", "Token"];
/// Shorter words of a value tell nothing by themselves, and are parts of many others.
const SHORTEST_SECRET: usize = 4;

/// What of a header's value is secret: all of it, and each of its words.
fn secrets(value: &HeaderValue) -> Vec<String> {
    let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
    let words = value.split([' ', ';', ',']).filter(|word| word.len() >= SHORTEST_SECRET);
    let mut found: Vec<String> =
        words.filter(|word| !SCHEMES.contains(word)).chain([value.as_str()]).map(str::to_owned).collect();
    found.retain(|word| !word.is_empty());
    found
}

fn path(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.find('/').map_or("/", |at| &rest[at..])
}

/// Bytes for a person.
pub(super) fn size(bytes: usize) -> String {
    match bytes.div_ceil(1024) {
        kib if kib < 1024 => format!("{kib} KiB"),
        kib => format!("{:.1} MiB", kib as f64 / 1024.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receiver(format: ExportFormat) -> Receiver {
        Receiver::new("http://backend:4040", Some(format)).unwrap()
    }

    fn answer(status: u16, content_type: &str, body: &[u8]) -> PushAnswer {
        let (location, retry_after) = (Some("http://elsewhere/".to_owned()), None);
        let secrets = Secrets(vec!["s3cret".to_owned()]);
        PushAnswer {
            status,
            content_type: content_type.to_owned(),
            location,
            retry_after,
            body: body.to_vec(),
            secrets,
        }
    }

    fn error(format: ExportFormat, answer: &PushAnswer) -> String {
        answer.check(&receiver(format), 18_000).unwrap_err().to_string()
    }

    #[test]
    fn an_error_says_what_the_backend_said_and_no_secret() {
        let said = |body: &[u8]| error(ExportFormat::Pyroscope, &answer(400, "text/plain", body));
        assert!(
            said(b"no\nlabels\x1b[1m").contains("refuses it (400): no labels"),
            "{}",
            said(b"no\nlabels")
        );
        assert!(!said(b"\x1b[1m").contains('\x1b'));
        assert!(!said(b"bad token s3cret").contains("s3cret"));
        assert!(!said(b"<html>").contains('<'));
        let long = said(&[b'x'; 1000]);
        assert!(long.contains(&"x".repeat(SHOWN)) && !long.contains(&"x".repeat(SHOWN + 1)), "{long}");
        let status = Status { message: "no dictionary".to_owned() }.encode_to_vec();
        let said = error(ExportFormat::Otlp, &answer(400, "application/x-protobuf", &status));
        assert!(said.contains("(400): no dictionary"), "{said}");
    }

    #[test]
    fn otlp_acknowledges_by_its_message_alone() {
        use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesPartialSuccess;
        let check = |kind: &str, body: &[u8]| answer(200, kind, body).check(&receiver(ExportFormat::Otlp), 1);
        let partial = |rejected_profiles| {
            let partial =
                ExportProfilesPartialSuccess { rejected_profiles, error_message: "too old".to_owned() };
            ExportProfilesServiceResponse { partial_success: Some(partial) }.encode_to_vec()
        };
        assert_eq!(check("application/x-protobuf", b""), Ok(()));
        assert_eq!(check("application/x-protobuf", &partial(0)), Ok(()), "a warning");
        assert_eq!(check("application/json", b"{}"), Ok(()));
        assert_eq!(check("application/json", br#"{"partialSuccess":{"rejectedProfiles":"0"}}"#), Ok(()));
        let refused = check("application/x-protobuf", &partial(2)).unwrap_err();
        assert!(refused.to_string().contains("rejected it: too old"), "{refused}");
        let json = br#"{"partialSuccess":{"rejectedProfiles":"2","errorMessage":"too old"}}"#;
        assert_eq!(check("application/json", json).unwrap_err(), refused);
        for page in [&b"<html>log in</html>"[..], b"{}", b"ok"] {
            let refused = check("text/html", page).unwrap_err();
            assert!(refused.to_string().contains("without acknowledging a profile"), "{refused}");
        }
    }

    fn by_connect(status: u16, kind: &str, body: &str) -> Result<(), PushError> {
        answer(status, kind, body.as_bytes()).check(&receiver(ExportFormat::PyroscopePush), 9_000_000)
    }

    fn connect_error(status: u16, body: &str) -> PushError {
        by_connect(status, "application/json", body).unwrap_err()
    }

    #[test]
    fn connect_acknowledges_by_its_own_type_alone() {
        assert_eq!(by_connect(200, "application/proto", ""), Ok(()));
        assert_eq!(by_connect(200, "application/proto", "\x0a\x01x"), Ok(()), "a field of a later version");
        for (kind, body) in [
            ("text/html; charset=utf-8", "<html>log in</html>"),
            ("text/plain", "ok"),
            ("application/json", "{}"),
            ("", ""),
            ("application/proto", "no message"),
        ] {
            let refused = by_connect(200, kind, body).unwrap_err();
            let is_told = refused.to_string().contains("without acknowledging a profile");
            assert!(is_told && matches!(refused, PushError::Receiver(_)), "{kind}: {refused:?}");
        }
    }

    #[test]
    fn an_error_of_connect_shows_its_message_in_a_line() {
        let said = |body: &str| connect_error(400, body).to_string();
        let whole =
            r#"{"code":"invalid_argument","message":"no\nlabels s3cret\u001b[1m","details":[{"type":"x"}]}"#;
        let text = said(whole);
        assert!(text.contains("refuses it (400): no labels …") && !text.contains('\x1b'), "{text}");
        assert!(!text.contains("invalid_argument") && !text.contains('{'), "{text}");
        assert!(said(r#"{"code":"invalid_argument"}"#).contains("(400): invalid_argument;"));
        assert!(said(r#"{"error":"of a proxy"}"#).contains(r#"(400): {"error":"of a proxy"}"#));
        let long = said(&format!(r#"{{"code":"x","message":"{}"}}"#, "x".repeat(1000)));
        assert!(long.contains(&"x".repeat(SHOWN)) && !long.contains(&"x".repeat(SHOWN + 1)), "{long}");
    }

    /// The statuses of codes in the protocol of today and before 2024.
    #[test]
    fn a_code_of_connect_says_whether_to_try_again() {
        let error =
            |status, code: &str| connect_error(status, &format!(r#"{{"code":"{code}","message":"no"}}"#));
        for (status, code) in
            [(400, "invalid_argument"), (400, "failed_precondition"), (409, "already_exists")]
        {
            assert!(matches!(error(status, code), PushError::Profile(_)), "{code}");
        }
        for (status, code) in [
            (408, "canceled"),
            (408, "deadline_exceeded"),
            (409, "aborted"),
            (499, "canceled"),
            (500, "internal"),
            (500, "unknown"),
            (504, "deadline_exceeded"),
        ] {
            assert!(matches!(error(status, code), PushError::Failed { .. }), "{status} {code}");
        }
        for (status, code) in [(429, "resource_exhausted"), (503, "unavailable")] {
            assert!(matches!(error(status, code), PushError::Later { .. }), "{code}");
        }
        for (status, code) in [(404, "unimplemented"), (501, "unimplemented")] {
            let wrong = error(status, code);
            let is_told = wrong.to_string().contains("profiles at /push.v1.PusherService/Push");
            assert!(is_told && matches!(wrong, PushError::Receiver(_)), "{wrong:?}");
        }
        for (status, code) in [(401, "unauthenticated"), (403, "permission_denied")] {
            assert!(matches!(error(status, code), PushError::NotPermitted(_)), "{code}");
        }
        let mut waits = answer(429, "application/json", br#"{"code":"resource_exhausted"}"#);
        waits.retry_after = Some(Duration::from_secs(7));
        let later = waits.check(&receiver(ExportFormat::PyroscopePush), 1).unwrap_err();
        assert!(
            matches!(later, PushError::Later { after: Some(wait), .. } if wait.as_secs() == 7),
            "{later:?}"
        );
    }

    /// A limit on the size has the status of a limit on the rate, or of a wrong profile.
    #[test]
    fn a_profile_that_is_too_long_by_connect_is_sent_in_parts() {
        for (status, message) in [
            (400, "uncompressed batched profile payload size exceeds limit of 1.0 MB"),
            (
                400,
                "the profile with labels '{}' exceeds the size limit (max_profile_size_byte, actual: 9, limit: 4)",
            ),
            (413, "no"),
            (429, "message size 9000000 is larger than configured max 4000000"),
            (429, "read message: exceeded 4000000 byte http.MaxBytesReader limit"),
        ] {
            let error = connect_error(status, &format!(r#"{{"code":"x","message":"{message}"}}"#));
            assert!(matches!(&error, PushError::TooLong(text) if text.contains("of 8.6 MiB")), "{error:?}");
        }
    }

    #[test]
    fn a_profile_that_is_too_long_is_told_from_one_that_is_wrong() {
        let check = |status: u16, body: &str| {
            answer(status, "text/plain", body.as_bytes()).check(&receiver(ExportFormat::Pyroscope), 9_000_000)
        };
        for (status, body) in [
            (413, "no"),
            (400, "http: request body too large"),
            (
                400,
                "the profile with labels '{}' exceeds the size limit (max_profile_size_byte, actual: 9, limit: 4)",
            ),
            (
                422,
                "… exceeds the samples count limit (max_profile_stacktrace_samples, actual: 20000, limit: 16000)",
            ),
        ] {
            let error = check(status, body).unwrap_err();
            assert!(matches!(&error, PushError::TooLong(text) if text.contains("of 8.6 MiB")), "{error:?}");
        }
        let wrong = check(400, "profile with labels '{}' has label name too long: 'x'").unwrap_err();
        assert!(matches!(wrong, PushError::Profile(_)), "{wrong:?}");
    }

    /// Pyroscope answers 422 to nearly all that fails behind it.
    #[test]
    fn what_failed_behind_pyroscope_is_no_fault_of_the_window() {
        let check = |status: u16, kind: &str, body: &str| {
            answer(status, kind, body.as_bytes()).check(&receiver(ExportFormat::Pyroscope), 1)
        };
        let limit = "rpc error: code = resource_exhausted: push rate limit (0 B) exceeded";
        assert!(matches!(check(422, "text/plain", limit), Err(PushError::Later { .. })));
        for (status, body) in [(422, "rpc error: connection refused"), (408, "i/o timeout"), (500, "no")] {
            assert!(matches!(check(status, "text/plain", body), Err(PushError::Failed { .. })), "{status}");
        }
        let wrong = check(422, "text/plain", "invalid_argument: profile with no labels");
        assert!(matches!(wrong, Err(PushError::Profile(_))), "{wrong:?}");
        // Its limits on size come with 500 by OTLP.
        let long = "failed to push: exceeds the size limit (max_profile_size_byte, actual: 9, limit: 4)";
        let by_otlp = answer(500, "text/plain", long.as_bytes()).check(&receiver(ExportFormat::Otlp), 1);
        assert!(matches!(by_otlp, Err(PushError::TooLong(_))), "{by_otlp:?}");
        assert_eq!(check(200, "text/plain", ""), Ok(()));
        assert!(matches!(check(200, "text/html; charset=utf-8", "<html>"), Err(PushError::Receiver(_))));
    }

    #[test]
    fn a_backend_asks_to_wait_for_seconds_or_until_a_date() {
        let now = "2026-11-28T12:00:00Z".parse().unwrap();
        let seconds = |text| asked_wait(text, now).map(|wait| wait.as_secs());
        assert_eq!(seconds("30"), Some(30));
        assert_eq!(seconds("Sat, 28 Nov 2026 12:01:30 GMT"), Some(90));
        assert_eq!(seconds("Fri, 27 Nov 2026 12:00:00 GMT"), Some(0), "it is over");
        assert_eq!(
            [seconds("99999999999"), seconds("Sat, 28 Nov 2099 12:00:00 GMT")],
            [Some(LONGEST_WAIT); 2]
        );
        assert_eq!([seconds("-1"), seconds("soon"), seconds("")], [None; 3]);
    }

    #[test]
    fn every_word_of_a_secret_header_is_hidden() {
        let header = |value: &str| (ureq::http::header::COOKIE, HeaderValue::from_str(value).unwrap());
        let sent = [header("session=s3cret; lang=english"), header("Bearer prod-9f31"), header("prod")];
        let shown = Secrets::of(&sent).shown("bad cookie session=s3cret, or token prod-9f31 of prod");
        assert_eq!(shown, "bad cookie …, or token … of …");
    }

    #[test]
    fn a_size_is_in_the_unit_that_fits() {
        assert_eq!(
            (size(1), size(18_000), size(3 << 20)),
            ("1 KiB".into(), "18 KiB".into(), "3.0 MiB".into())
        );
    }
}
