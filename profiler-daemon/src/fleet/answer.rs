//! What Prometheus answers: the CPU time of each service, as far as it can be understood.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Clocks of two hosts differ by less, and figures are no older (s).
const MOST_APART_S: f64 = 300.0;
/// Most services that are kept of an answer.
const MAX_SERVICES: usize = 100_000;
/// Longest name of one that is kept (bytes): no target or label is longer.
const LONGEST_NAME: usize = 1024;

/// CPU time of each service on all hosts (CPU-seconds per second); none where the answer holds a service twice, or no number.
pub(super) type Services = BTreeMap<String, Option<f64>>;

#[derive(Deserialize)]
struct PrometheusReply {
    status: String,
    #[serde(default)]
    data: Option<Data>,
}

#[derive(Deserialize)]
struct Data {
    #[serde(rename = "resultType")]
    kind: String,
    result: Vec<PrometheusSeries>,
}

#[derive(Deserialize)]
struct PrometheusSeries {
    metric: BTreeMap<String, String>,
    /// When it was worked out (s since the epoch), and the figure.
    value: (f64, String),
}

/// An answer that is none, from Prometheus itself.
#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    error: String,
}

/// The services of an answer, whose names are in the label `key`.
///
/// # Errors
///
/// What is wrong with it, for a person.
pub(super) fn services(body: &[u8], key: &str, now_unix_s: f64) -> Result<Services, String> {
    let reply: PrometheusReply = serde_json::from_slice(body).map_err(|_| NO_PROMETHEUS.to_owned())?;
    let data = reply.data.filter(|data| reply.status == "success" && data.kind == "vector");
    let data = data.ok_or_else(|| NO_PROMETHEUS.to_owned())?;
    let mut services = Services::new();
    for PrometheusSeries { mut metric, value: (at_unix_s, text) } in data.result {
        let apart_s = at_unix_s - now_unix_s;
        if apart_s.is_nan() || apart_s.abs() > MOST_APART_S {
            return Err(format!(
                "its figures are {:.0} s old by the clock of this host; check both clocks, and any proxy or cache before it",
                -apart_s
            ));
        }
        let Some(name) = metric.remove(key).filter(|name| !name.is_empty() && name.len() <= LONGEST_NAME)
        else {
            continue;
        };
        let cpus = text.parse().ok().filter(|cpus: &f64| cpus.is_finite() && *cpus >= 0.0);
        if let Some(twice) = services.get_mut(&name) {
            *twice = None;
        } else if services.len() < MAX_SERVICES {
            services.insert(name, cpus);
        }
    }
    Ok(services)
}

const NO_PROMETHEUS: &str = "its answer is not in Prometheus' format; check the address";

/// What it says of a query that it does not answer.
pub(super) fn refusal(body: &[u8]) -> Option<String> {
    let refusal: Refusal = serde_json::from_slice(body).ok()?;
    (!refusal.error.is_empty()).then_some(refusal.error)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW_S: f64 = 1_760_000_000.0;

    fn answer(series: &str) -> Result<Services, String> {
        let text = format!(
            r#"{{"status":"success","data":{{"resultType":"vector","result":[{series}],"stats":{{}}}},"warnings":["w"]}}"#
        );
        services(text.as_bytes(), "target", NOW_S)
    }

    fn one(name: &str, cpus: &str) -> String {
        format!(r#"{{"metric":{{"target":"{name}"}},"value":[1760000000.123,"{cpus}"]}}"#)
    }

    #[test]
    fn each_service_has_a_figure() {
        let found = answer(&[one("web", "12.5"), one("db", "0")].join(",")).unwrap();
        assert_eq!(found, Services::from([("db".to_owned(), Some(0.0)), ("web".to_owned(), Some(12.5))]));
        assert_eq!(answer("").unwrap(), Services::new());
        let without = r#"{"metric":{"job":"sweetspot"},"value":[1760000000,"3"]}"#;
        assert_eq!(answer(without).unwrap(), Services::new());
    }

    #[test]
    fn what_is_no_amount_or_stands_twice_is_no_figure() {
        for text in ["NaN", "+Inf", "-Inf", "-0.5", "", "12 CPUs"] {
            assert_eq!(answer(&one("web", text)).unwrap()["web"], None, "{text}");
        }
        assert_eq!(answer(&[one("web", "1"), one("web", "1")].join(",")).unwrap()["web"], None);
    }

    #[test]
    fn figures_of_another_hour_are_none() {
        let at = |at: &str| answer(&format!(r#"{{"metric":{{"target":"a"}},"value":[{at},"1"]}}"#));
        at("1759999701").unwrap();
        let old = at("1759999600").unwrap_err();
        assert!(old.starts_with("its figures are 400 s old"), "{old}");
        at("1760000400").unwrap_err();
        at("1e308").unwrap_err();
    }

    #[test]
    fn what_is_no_answer_is_told() {
        for text in [
            "",
            "<html>",
            "[]",
            "{}",
            r#"{"status":"error","errorType":"bad_data","error":"no"}"#,
            r#"{"status":"success","data":{"resultType":"matrix","result":[]}}"#,
            r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{"target":"a"},"value":[1]}]}}"#,
        ] {
            assert_eq!(services(text.as_bytes(), "target", NOW_S), Err(NO_PROMETHEUS.to_owned()), "{text}");
        }
        assert_eq!(refusal(br#"{"status":"error","error":"parse error"}"#), Some("parse error".to_owned()));
        assert_eq!((refusal(b"{}"), refusal(b"<html>")), (None, None));
    }

    proptest! {
        #[test]
        fn no_answer_panics(bytes: Vec<u8>, text in "\\PC*", at: f64, name in "\\PC*", figure in "\\PC*") {
            let _ = (services(&bytes, "target", NOW_S), refusal(&bytes));
            let _ = services(text.as_bytes(), "target", NOW_S);
            let series = serde_json::json!({
                "status": "success",
                "data": { "resultType": "vector", "result": [{ "metric": { "target": name }, "value": [at, figure] }] },
            });
            let _ = services(series.to_string().as_bytes(), "target", NOW_S);
        }
    }
}
