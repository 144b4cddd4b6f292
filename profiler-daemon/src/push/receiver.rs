//! Where profiles go, by its address.

use std::net::IpAddr;

use anyhow::Result;
use ureq::http::Uri;

use crate::failure::usage;
use config::ExportFormat;

/// Where OTLP profiles are posted to. The version is that of protocol 1.10, which numbers fields anew.
const OTLP_PATH: &str = "/v1development/profiles";
const PYROSCOPE_PATH: &str = "/ingest";
/// A call of the Connect protocol has the names of its service and method as its path.
const PYROSCOPE_PUSH_PATH: &str = "/push.v1.PusherService/Push";

/// A backend that takes profiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Receiver {
    /// What it takes.
    pub(crate) format: ExportFormat,
    /// The address that is posted to, without a query.
    pub(crate) url: String,
    /// Host and port, for a person.
    pub(crate) host: String,
    /// Whether anyone on the way can read what is sent.
    pub(crate) is_exposed: bool,
}

impl Receiver {
    /// The receiver at an address.
    ///
    /// # Errors
    ///
    /// A usage error if it is no address of one. The address is not shown: it may hold a password.
    pub(crate) fn new(url: &str, format: Option<ExportFormat>) -> Result<Self> {
        const GIVE: &str = "give one such as http://localhost:4040";
        let uri: Uri = url.parse().map_err(|_| usage(format!("--to is not an address; {GIVE}")))?;
        let authority = uri.authority().filter(|authority| !authority.host().is_empty());
        let (Some("http" | "https"), Some(authority)) = (uri.scheme_str(), authority) else {
            return Err(usage(format!("--to is not an http or https address; {GIVE}")));
        };
        if authority.as_str().contains('@') {
            return Err(usage("--to holds a user or a password; give a token with --token-file instead"));
        }
        if uri.query().is_some() {
            return Err(usage("--to holds a query (?); leave it out, and give labels with --label"));
        }
        let path = uri.path().trim_end_matches('/');
        let format = format.unwrap_or(if path.ends_with(OTLP_PATH) {
            ExportFormat::Otlp
        } else if path.ends_with(PYROSCOPE_PUSH_PATH) {
            ExportFormat::PyroscopePush
        } else {
            ExportFormat::Pyroscope
        });
        let end = match format {
            ExportFormat::Otlp => OTLP_PATH,
            ExportFormat::OtlpGrpc if path.is_empty() => "",
            ExportFormat::OtlpGrpc => {
                return Err(usage(
                    "--to holds a path, and gRPC has none; give one such as http://localhost:4317",
                ));
            }
            ExportFormat::Pyroscope => PYROSCOPE_PATH,
            ExportFormat::PyroscopePush => PYROSCOPE_PUSH_PATH,
        };
        let base = path.strip_suffix(end).unwrap_or(path);
        let is_plain = uri.scheme_str() == Some("http");
        Ok(Self {
            format,
            url: format!("{}://{authority}{base}{end}", if is_plain { "http" } else { "https" }),
            host: authority.to_string(),
            is_exposed: is_plain && !is_this_machine(authority.host()),
        })
    }
}

/// Whether what is sent to this host stays on this machine. A name may begin with `127.` and be another's.
pub(crate) fn is_this_machine(host: &str) -> bool {
    let address: Option<IpAddr> = host.trim_start_matches('[').trim_end_matches(']').parse().ok();
    host == "localhost" || address.is_some_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(to: &str, format: Option<ExportFormat>) -> String {
        Receiver::new(to, format).unwrap().url
    }

    #[test]
    fn the_path_says_the_format_and_is_added_where_it_is_missing() {
        let (otlp, pyroscope) = (Some(ExportFormat::Otlp), Some(ExportFormat::Pyroscope));
        let push = Some(ExportFormat::PyroscopePush);
        for (to, format, expected) in [
            ("http://p:4040", None, "http://p:4040/ingest"),
            ("http://p:4040/", pyroscope, "http://p:4040/ingest"),
            ("https://p/pyroscope/ingest", None, "https://p/pyroscope/ingest"),
            ("https://p/tenant/", None, "https://p/tenant/ingest"),
            ("http://p:4040", push, "http://p:4040/push.v1.PusherService/Push"),
            ("https://p/tenant/", push, "https://p/tenant/push.v1.PusherService/Push"),
            ("http://p:4040/push.v1.PusherService/Push", push, "http://p:4040/push.v1.PusherService/Push"),
            ("https://p/a/push.v1.PusherService/Push/", None, "https://p/a/push.v1.PusherService/Push"),
            ("http://c:4318", otlp, "http://c:4318/v1development/profiles"),
            ("http://c:4318/v1development/profiles", None, "http://c:4318/v1development/profiles"),
            ("http://c:4317/", Some(ExportFormat::OtlpGrpc), "http://c:4317"),
            ("https://c/otlp", otlp, "https://c/otlp/v1development/profiles"),
            ("http://[::1]:4318/v1development/profiles/", None, "http://[::1]:4318/v1development/profiles"),
        ] {
            assert_eq!(url(to, format), expected);
        }
        let format = |to: &str| Receiver::new(to, None).unwrap().format;
        assert_eq!(format("http://c/v1development/profiles"), ExportFormat::Otlp);
        assert_eq!(format("http://p/push.v1.PusherService/Push"), ExportFormat::PyroscopePush);
        assert_eq!(format("http://p/push.v1.PusherService"), ExportFormat::Pyroscope);
    }

    #[test]
    fn what_leaves_the_machine_without_encryption_is_exposed() {
        let is_exposed = |to: &str| Receiver::new(to, None).unwrap().is_exposed;
        assert!(
            is_exposed("http://p:4040")
                && is_exposed("http://127.example:4040")
                && !is_exposed("http://[::1]:4040")
                && !is_exposed("https://p")
                && !is_exposed("http://127.0.0.1:4040")
        );
    }

    #[test]
    fn what_is_no_address_is_a_usage_error() {
        for to in
            ["", "p:4040", "/ingest", "file:///x", "http://", "http://p?x=y", "http://u@p", "http://p q"]
        {
            Receiver::new(to, None).unwrap_err();
        }
        Receiver::new("http://c:4317/v1development/profiles", Some(ExportFormat::OtlpGrpc)).unwrap_err();
    }
}
