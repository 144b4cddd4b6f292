//! One query of Prometheus, bounded in time and in the size of its answer. No text shows the token.

use std::fmt;
use std::io::Read;
use std::time::Duration;

use anyhow::{Result, anyhow};
use config::FleetSettings;
use ureq::http::header::AUTHORIZATION;
use ureq::http::{HeaderValue, StatusCode, Uri};
use ureq::{Agent, Body};

use super::answer::{self, Services};
use crate::failure::Failure;
use crate::push::{agent, is_this_machine};
use crate::push::{certificates, token};
use crate::sys::clock;
use profile_files::names::visible;

/// Longest answer that is read: a hundred bytes for each service.
const LONGEST_ANSWER: u64 = 8 << 20;
/// What is shown of a server's own words (characters).
const SHOWN: usize = 200;

/// A Prometheus, and how it is reached.
pub(crate) struct PrometheusClient {
    settings: FleetSettings,
    url: String,
    host: String,
    /// Whether the connection is unencrypted and leaves this machine.
    is_exposed: bool,
    token: Option<HeaderValue>,
    agent: Agent,
}

impl fmt::Debug for PrometheusClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrometheusClient").field("host", &self.host).finish_non_exhaustive()
    }
}

impl PrometheusClient {
    /// The Prometheus of the settings, if there is one; its files are read now.
    ///
    /// # Errors
    ///
    /// What cannot be meant, or a file that cannot be used.
    pub(crate) fn new(settings: &FleetSettings) -> Result<Option<Self>> {
        let Some(address) = &settings.prometheus else { return Ok(None) };
        let told = |error: anyhow::Error| {
            let text = format!("fleet: {error:#}");
            match error.downcast_ref() {
                Some(Failure::NotPermitted(_)) => Failure::NotPermitted(text).into(),
                _ => anyhow!(text),
            }
        };
        Self::at(address, settings).map(Some).map_err(told)
    }

    fn at(address: &str, settings: &FleetSettings) -> Result<Self> {
        let uri: Option<Uri> = address.parse().ok();
        let parts = uri.as_ref().and_then(|uri| Some((uri.scheme_str()?, uri.authority()?)));
        let Some((scheme @ ("http" | "https"), authority)) = parts else {
            return Err(anyhow!(
                "prometheus is not an http or https address; write one such as http://prometheus.example:9090"
            ));
        };
        let host = authority.to_string();
        if host.contains('@') {
            return Err(anyhow!(
                "prometheus holds a user or a password; give a token with token_file instead"
            ));
        }
        let is_exposed = scheme == "http" && !is_this_machine(authority.host());
        if is_exposed && settings.token_file.is_some() {
            return Err(anyhow!(
                "the token would go to {host} without encryption, where others can read it; write an https address"
            ));
        }
        let token = settings.token_file.as_deref().map(token).transpose()?;
        let authorities = settings.ca_file.as_deref().map(certificates).transpose()?;
        let agent = agent(settings.timeout.duration(), authorities.as_deref());
        let path = uri.as_ref().map_or("", |uri| uri.path()).trim_end_matches('/');
        let base = path.strip_suffix("/api/v1/query").unwrap_or(path);
        let url = format!("{scheme}://{host}{base}/api/v1/query");
        Ok(Self { settings: settings.clone(), url, host, is_exposed, token, agent })
    }

    /// Host and port.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// The settings that it was made from.
    pub(super) fn settings(&self) -> &FleetSettings {
        &self.settings
    }

    /// A warning for a person.
    pub(crate) fn remark(&self) -> Option<String> {
        let host = &self.host;
        self.is_exposed.then(|| {
            format!("fleet: {host} is queried over the network without encryption, and others can change its answers; write an https address")
        })
    }

    /// [`Self::ask`] with the token and the certificates as they are in their files now: they are renewed while the service runs.
    ///
    /// # Errors
    ///
    /// Why there is no answer, for a person.
    pub(super) fn ask_with_present_files(&self, range: Duration) -> Result<Services, String> {
        if self.settings.token_file.is_none() && self.settings.ca_file.is_none() {
            return self.ask(range);
        }
        let address = self.settings.prometheus.as_deref().unwrap_or_default();
        Self::at(address, &self.settings).map_err(|error| format!("{error:#}"))?.ask(range)
    }

    /// The CPU time of each service on all hosts over the last `range`.
    ///
    /// # Errors
    ///
    /// Why there is no answer, for a person.
    pub(super) fn ask(&self, range: Duration) -> Result<Services, String> {
        let query = query(&self.settings.label, range);
        let mut request = self.agent.get(&self.url).query("query", &query);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        let response = request.call().map_err(|error| self.unreached(&error))?;
        let status = response.status();
        let body = self.read(response.into_body())?;
        if status != StatusCode::OK {
            return Err(self.refused(status, &body));
        }
        let now_unix_s = clock::unix_ns() as f64 * 1e-9;
        answer::services(&body, &metric_label(&self.settings.label), now_unix_s)
            .map_err(|why| format!("{}: {why}", self.host))
    }

    fn read(&self, body: Body) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let read = body.into_reader().take(LONGEST_ANSWER + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.unreached(&error.into()))?;
        if bytes.len() as u64 > LONGEST_ANSWER {
            let most = LONGEST_ANSWER >> 20;
            return Err(format!(
                "{} answers with more than {most} MiB; set fleet.label to a label that fewer services have",
                self.host
            ));
        }
        Ok(bytes)
    }

    fn refused(&self, status: StatusCode, body: &[u8]) -> String {
        let host = &self.host;
        let what_to_do = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "check fleet.token_file",
            status if status.is_redirection() => "write the address that it redirects to",
            StatusCode::NOT_FOUND => "check the path in fleet.prometheus",
            _ => "look at its log",
        };
        let said = answer::refusal(body).map(|said| self.harmless(&said)).filter(|said| !said.is_empty());
        let said = said.map_or_else(String::new, |said| format!(" ({said})"));
        format!("{host} answers with status {}{said}; {what_to_do}", status.as_u16())
    }

    fn unreached(&self, error: &ureq::Error) -> String {
        let host = &self.host;
        match error {
            ureq::Error::Timeout(_) => {
                format!("{host} did not answer in full within {}; check that it runs", self.settings.timeout)
            }
            ureq::Error::HostNotFound => {
                format!("{host} is not found; check the name in fleet.prometheus")
            }
            other => {
                let why = self.harmless(&other.to_string());
                format!(
                    "{host} cannot be queried ({why}); check fleet.prometheus, its certificate and the network"
                )
            }
        }
    }

    /// A text of others, short and without the token.
    fn harmless(&self, text: &str) -> String {
        let secret = self.token.as_ref().and_then(|token| token.to_str().ok()?.strip_prefix("Bearer "));
        if secret.is_some_and(|secret| text.contains(secret)) {
            return String::new();
        }
        visible(text).chars().take(SHOWN).collect()
    }
}

/// The CPU time per service over all hosts, each host once however many scrape it.
fn query(label: &str, range: Duration) -> String {
    let (label, range_s) = (metric_label(label), range.as_secs().max(1));
    let cpus = format!("rate(sweetspot_target_cpu_seconds_total[{range_s}s])");
    if label == TARGET {
        return format!("sum by (target) (max by (instance, target) ({cpus}))");
    }
    let labels = format!("max by (instance, target, {label}) (sweetspot_target_labels{{{label}!=\"\"}})");
    format!(
        "sum by ({label}) (max by (instance, target) ({cpus}) * on (instance, target) group_left ({label}) {labels})"
    )
}

/// The name of a target, as a label.
const TARGET: &str = "target";

/// What a label of targets is called in metrics.
fn metric_label(label: &str) -> String {
    if label == TARGET {
        return TARGET.to_owned();
    }
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    "label_".chars().chain(label.chars().map(plain)).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

    fn client(settings: &FleetSettings) -> PrometheusClient {
        PrometheusClient::new(settings).unwrap().expect("an address")
    }

    fn settings(address: &str) -> FleetSettings {
        FleetSettings {
            prometheus: Some(address.to_owned()),
            timeout: "60s".parse().unwrap(), // a busy machine may take its time
            ..FleetSettings::default()
        }
    }

    #[test]
    fn an_address_that_holds_a_password_or_would_give_the_token_away_is_refused() {
        let mut exposed = settings("http://127.example:9090");
        exposed.token_file = Some("/nowhere".into());
        for (settings, said) in [(settings("http://me:secret@p:9090"), "token_file"), (exposed, "encryption")]
        {
            let error = format!("{:#}", PrometheusClient::new(&settings).unwrap_err());
            assert!(error.contains(said) && !error.contains("secret"), "{error}");
        }
    }

    /// A Prometheus that answers once, with this, and what it was asked.
    fn answers(answer: String) -> (String, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut asked, mut chunk) = (Vec::new(), [0; 4096]);
            while !asked.ends_with(b"\r\n\r\n") {
                let read = stream.read(&mut chunk).unwrap();
                if read == 0 {
                    break;
                }
                asked.extend(&chunk[..read]);
            }
            let _ = stream.write_all(answer.as_bytes()); // it may have hung up
            String::from_utf8(asked).unwrap()
        });
        (address, asked)
    }

    fn http(status: &str, body: &str) -> String {
        format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
    }

    fn asked_of(status: &str, body: &str) -> (Result<Services, String>, String) {
        let (address, asked) = answers(http(status, body));
        let said = client(&settings(&address)).ask(Duration::from_secs(300));
        (said, asked.join().unwrap())
    }

    #[test]
    fn each_host_is_counted_once_and_each_service_over_all_hosts() {
        assert_eq!(
            query("target", Duration::from_secs(300)),
            "sum by (target) (max by (instance, target) (rate(sweetspot_target_cpu_seconds_total[300s])))"
        );
        let joined = query("k8s.deployment.name", Duration::from_secs(60));
        assert_eq!(
            joined,
            "sum by (label_k8s_deployment_name) (max by (instance, target) (rate(sweetspot_target_cpu_seconds_total[60s])) \
             * on (instance, target) group_left (label_k8s_deployment_name) max by (instance, target, \
             label_k8s_deployment_name) (sweetspot_target_labels{label_k8s_deployment_name!=\"\"}))"
        );
    }

    #[test]
    fn it_is_asked_at_its_path_and_its_answer_understood() {
        let now_s = clock::unix_ns() / 1_000_000_000;
        let body = format!(
            r#"{{"status":"success","data":{{"resultType":"vector","result":[{{"metric":{{"target":"web"}},"value":[{now_s},"12.5"]}}]}}}}"#
        );
        let (said, asked) = asked_of("200 OK", &body);
        assert_eq!(said.unwrap()["web"], Some(12.5));
        assert!(asked.starts_with("GET /api/v1/query?query=sum%20by%20"), "{asked}");
        for (address, url) in [
            ("http://p:9090/", "http://p:9090/api/v1/query"),
            ("https://p/prometheus", "https://p/prometheus/api/v1/query"),
            ("https://p/a/api/v1/query", "https://p/a/api/v1/query"),
        ] {
            assert_eq!(client(&settings(address)).url, url);
        }
    }

    #[test]
    fn what_is_no_answer_is_told_with_what_to_do() {
        for (status, body, words) in [
            ("401 Unauthorized", "", "status 401; check fleet.token_file"),
            ("302 Found", "", "status 302; write the address"),
            ("404 Not Found", "nothing", "status 404; check the path"),
            ("422 Unprocessable", r#"{"status":"error","error":"too\nmany"}"#, "status 422 (too"),
            ("200 OK", "<html>", "not in Prometheus' format"),
        ] {
            let error = asked_of(status, body).0.unwrap_err();
            assert!(error.contains(words) && !error.contains('\n'), "{status}: {error}");
        }
        let (address, asked) = answers(String::new());
        let error = client(&settings(&address)).ask(Duration::from_secs(300)).unwrap_err();
        assert!(error.contains("cannot be queried"), "{error}");
        asked.join().unwrap();
        let long = "x".repeat((LONGEST_ANSWER + 1) as usize);
        let error = asked_of("200 OK", &long).0.unwrap_err();
        assert!(error.contains("more than 8 MiB"), "{error}");
    }

    #[test]
    fn one_that_never_answers_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let settings = FleetSettings { timeout: "1s".parse().unwrap(), ..settings(&address) };
        let error = client(&settings).ask(Duration::from_secs(300)).unwrap_err();
        assert!(error.contains("did not answer in full within 1s"), "{error}");
    }

    #[test]
    fn a_token_that_was_renewed_is_sent() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "first\n").unwrap();
        let (address, asked) = answers(http("403 Forbidden", ""));
        let client = client(&FleetSettings { token_file: Some(file.clone()), ..settings(&address) });
        std::fs::write(&file, "second\n").unwrap();
        let _ = client.ask_with_present_files(Duration::from_secs(300));
        assert!(asked.join().unwrap().to_lowercase().contains("authorization: bearer second\r\n"));
        std::fs::remove_file(&file).unwrap();
        let error = client.ask_with_present_files(Duration::from_secs(300)).unwrap_err();
        assert!(error.contains("token cannot be read"), "{error}");
        assert!(!error.starts_with("fleet: "), "the log says that in front of it: {error}");
    }

    #[test]
    fn a_token_goes_to_prometheus_and_into_no_text() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "s3cret\n").unwrap();
        let with_token =
            |address: &str| FleetSettings { token_file: Some(file.clone()), ..settings(address) };
        let (address, asked) = answers(http("403 Forbidden", r#"{"error":"no s3cret"}"#));
        let client = client(&with_token(&address));
        let error = client.ask(Duration::from_secs(300)).unwrap_err();
        assert!(asked.join().unwrap().to_lowercase().contains("authorization: bearer s3cret\r\n"));
        assert!(
            error.contains("status 403; check") && !format!("{error}{client:?}").contains("s3cret"),
            "{error}"
        );
        let refused = PrometheusClient::new(&with_token("http://p:9090")).unwrap_err().to_string();
        assert!(refused.starts_with("fleet: ") && refused.contains("without encryption"), "{refused}");
        PrometheusClient::new(&with_token("https://p:9090")).unwrap();
        let missing = FleetSettings { ca_file: Some("/nowhere/ca.pem".into()), ..settings("https://p") };
        let refused = PrometheusClient::new(&missing).unwrap_err().to_string();
        assert!(refused.contains("/nowhere/ca.pem cannot be read"), "{refused}");
        assert!(PrometheusClient::new(&FleetSettings::default()).unwrap().is_none());
    }
}
