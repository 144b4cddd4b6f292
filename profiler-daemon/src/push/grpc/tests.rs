//! Against a server of gRPC's own library, in this process.

#![allow(clippy::print_stdout, reason = "a test that skips says why")]

use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesPartialSuccess;
use opentelemetry_proto::tonic::collector::profiles::v1development::profiles_service_server::{
    ProfilesService, ProfilesServiceServer,
};
use profile_files::store::PartsLeft;
use profile_files::testing;
use profiler_core::profile::SymbolizedProfile;
use tonic::Response;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic_types::ErrorDetails;
use ureq::http::{HeaderName, HeaderValue};

use super::super::tests::{certificate, large};
use super::super::{PushClient, PushNaming, PushSource};
use super::*;
use config::ExportFormat;

/// What it answers.
type Answer = Result<ExportProfilesServiceResponse, Status>;

#[derive(Clone)]
struct Backend {
    answer: Answer,
    /// The messages that came, with their `authorization`.
    came: Arc<Mutex<Vec<(ExportProfilesServiceRequest, String)>>>,
}

#[tonic::async_trait]
impl ProfilesService for Backend {
    async fn export(
        &self,
        request: Request<ExportProfilesServiceRequest>,
    ) -> Result<Response<ExportProfilesServiceResponse>, Status> {
        let token = request.metadata().get("authorization").map(|value| value.to_str().unwrap().to_owned());
        self.came.lock().unwrap().push((request.into_inner(), token.unwrap_or_default()));
        self.answer.clone().map(Response::new)
    }
}

impl Backend {
    fn answering(answer: Answer) -> Self {
        Self { answer, came: Arc::default() }
    }

    /// Its address. It takes messages of so many bytes at most; its thread ends with the test's process.
    fn start(&self, most_bytes: usize, tls: Option<&Path>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url =
            format!("http{}://{}", if tls.is_some() { "s" } else { "" }, listener.local_addr().unwrap());
        let identity = tls.map(|folder| {
            let read = |name| std::fs::read(folder.join(name)).unwrap();
            Identity::from_pem(read("certificate.pem"), read("key.pem"))
        });
        let service = ProfilesServiceServer::new(self.clone())
            .accept_compressed(CompressionEncoding::Gzip)
            .max_decoding_message_size(most_bytes);
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let incoming = TcpIncoming::from(tokio::net::TcpListener::from_std(listener).unwrap());
                let mut server = Server::builder();
                if let Some(identity) = identity {
                    server = server.tls_config(ServerTlsConfig::new().identity(identity)).unwrap();
                }
                server.add_service(service).serve_with_incoming(incoming).await.unwrap();
            });
        });
        url
    }
}

fn taken() -> Answer {
    Ok(ExportProfilesServiceResponse::default())
}

fn client(url: &str, token: Option<&str>, authority: Option<&Path>, timeout: Duration) -> PushClient {
    let receiver = Receiver::new(url, Some(ExportFormat::OtlpGrpc)).unwrap();
    let header = |token| (HeaderName::from_static("authorization"), HeaderValue::from_str(token).unwrap());
    let authorities = authority.map(|folder| {
        vec![Certificate::from_pem(&std::fs::read(folder.join("certificate.pem")).unwrap()).unwrap()]
    });
    let access = PushAccess { headers: token.map(header).into_iter().collect(), authorities, timeout };
    PushClient::new(&receiver, &access).unwrap()
}

fn send(client: &mut PushClient, profile: SymbolizedProfile) -> Result<usize, PushError> {
    let identity = PushNaming::default().identity(&profile, None);
    let mut left = PartsLeft::all_of(profile.stacks.len());
    client.send(&PushSource { profile, pprof: Vec::new(), stamp: None }, &identity, &mut left, |_| {})
}

const LONG: Duration = Duration::from_secs(60);
const ANY_BYTES: usize = 1 << 20;

fn error(url: &str) -> PushError {
    send(&mut client(url, Some("Bearer s3cret"), None, LONG), testing::profile()).unwrap_err()
}

#[test]
fn a_profile_arrives_with_its_token_and_a_connection_is_used_again() {
    let backend = Backend::answering(taken());
    let mut client = client(&backend.start(ANY_BYTES, None), Some("Bearer s3cret"), None, LONG);
    let bytes = send(&mut client, testing::profile()).unwrap();
    send(&mut client, testing::profile()).unwrap();
    let came = backend.came.lock().unwrap();
    assert_eq!(came.len(), 2);
    let identity = PushNaming::default().identity(&testing::profile(), None);
    let expected = super::super::otlp::message(&testing::profile(), &identity, false);
    assert_eq!((&came[0].0, came[0].1.as_str()), (&expected, "Bearer s3cret"));
    assert_eq!(bytes, expected.encoded_len());
}

#[test]
fn a_status_says_whether_and_when_to_try_again() {
    let of = |status: Status| error(&Backend::answering(Err(status)).start(ANY_BYTES, None));
    let said = |error: &PushError| error.to_string();
    let token = of(Status::unauthenticated("bad token s3cret"));
    assert!(matches!(token, PushError::NotPermitted(_)) && !said(&token).contains("s3cret"), "{token:?}");
    assert!(matches!(of(Status::permission_denied("")), PushError::NotPermitted(_)));
    assert!(matches!(of(Status::unimplemented("unknown service")), PushError::Receiver(_)));
    let wrong = of(Status::invalid_argument("no\nservice"));
    assert!(
        matches!(wrong, PushError::Profile(_)) && said(&wrong).contains("InvalidArgument): no"),
        "{wrong:?}"
    );
    assert!(matches!(of(Status::internal("")), PushError::Failed { after: None, .. }));
    assert!(matches!(of(Status::resource_exhausted("quota")), PushError::Failed { after: None, .. }));
    let wait = |seconds| ErrorDetails::with_retry_info(Some(Duration::from_secs(seconds)));
    let later = Status::with_error_details(Code::Unavailable, "full", wait(7));
    assert!(matches!(of(later), PushError::Later { after: Some(after), .. } if after.as_secs() == 7));
    let limited = Status::with_error_details(Code::ResourceExhausted, "rate", wait(7));
    assert!(matches!(of(limited), PushError::Later { after: Some(_), .. }));
    let never = Status::with_error_details(Code::Unavailable, "full", wait(u32::MAX.into()));
    assert!(
        matches!(of(never), PushError::Later { after: Some(after), .. } if after.as_secs() == LONGEST_WAIT)
    );
}

#[test]
fn what_is_acknowledged_in_part_is_rejected() {
    let partial = ExportProfilesPartialSuccess { rejected_profiles: 1, error_message: "too old".to_owned() };
    let answer = Ok(ExportProfilesServiceResponse { partial_success: Some(partial) });
    let rejected = error(&Backend::answering(answer).start(ANY_BYTES, None));
    assert!(
        matches!(&rejected, PushError::Profile(text) if text.contains("rejected it: too old")),
        "{rejected:?}"
    );
}

#[test]
fn a_profile_longer_than_the_backend_takes_arrives_in_parts() {
    let profile = large(2_000).profile;
    let backend = Backend::answering(taken());
    let url = backend.start(20_000, None);
    let bytes = send(&mut client(&url, None, None, LONG), profile.clone()).unwrap();
    let came = backend.came.lock().unwrap();
    assert!((4..40).contains(&came.len()), "{}", came.len());
    assert_eq!(bytes, came.iter().map(|(message, _)| message.encoded_len()).sum::<usize>());
    let sum = |message: &ExportProfilesServiceRequest| -> i64 {
        let time = &message.resource_profiles[0].scope_profiles[0].profiles[0];
        time.samples.iter().flat_map(|sample| &sample.values).sum()
    };
    let expected: u64 = profile.stacks.iter().map(|stack| stack.cpu_ns).sum();
    assert_eq!(came.iter().map(|(message, _)| sum(message)).sum::<i64>(), expected as i64);
    // One that takes nothing at all is not asked for ever.
    let refused = send(&mut client(&Backend::answering(taken()).start(10, None), None, None, LONG), profile);
    assert!(
        matches!(&refused, Err(PushError::TooLong(text)) if text.contains("does not accept a message of")),
        "{refused:?}"
    );
}

#[test]
fn a_backend_that_is_none_is_told_by_what_is_wrong() {
    let refused = error("http://127.0.0.1:1").to_string();
    assert!(refused.contains("refuses the connection") && refused.contains("port in --to"), "{refused}");
    let unknown = error("http://nowhere.invalid:4317").to_string();
    assert!(unknown.contains("nowhere.invalid:4317 is not found"), "{unknown}");
    // One that talks HTTP/1, and one that says nothing.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = std::io::Write::write_all(
                &mut stream,
                b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n",
            );
        }
    });
    let old = error(&url);
    assert!(!matches!(old, PushError::Profile(_)) && old.to_string().contains("127.0.0.1"), "{old:?}");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let late =
        send(&mut client(&url, None, None, Duration::from_millis(200)), testing::profile()).unwrap_err();
    assert!(late.to_string().contains("did not answer in full within 0.2 s"), "{late}");
}

#[test]
fn only_a_certificate_that_is_trusted_gets_a_profile() {
    let folder = tempfile::tempdir().unwrap();
    if certificate(folder.path(), "2").is_none() {
        println!("skipped: this needs openssl");
        return;
    }
    let url = Backend::answering(taken()).start(ANY_BYTES, Some(folder.path()));
    assert!(send(&mut client(&url, None, Some(folder.path()), LONG), testing::profile()).unwrap() > 0);
    let unknown = error(&url).to_string();
    assert!(
        unknown.contains("not signed by a known authority") && unknown.contains("--ca-file"),
        "{unknown}"
    );
    let plain = error(&url.replace("https", "http")).to_string();
    assert!(plain.contains("127.0.0.1"), "{plain}");
}
