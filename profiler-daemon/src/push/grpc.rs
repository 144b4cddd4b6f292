//! OTLP profiles by gRPC: one request at a time, on the calling thread.
//!
//! gRPC has status codes of its own; what each means for a profile is OpenTelemetry's specification of OTLP, with one
//! exception: a backend that is exhausted is asked again, whether or not it says when.

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use anyhow::Result;
use opentelemetry_proto::tonic::collector::profiles::v1development::profiles_service_client::ProfilesServiceClient;
use opentelemetry_proto::tonic::collector::profiles::v1development::{
    ExportProfilesServiceRequest, ExportProfilesServiceResponse,
};
use prost::Message;
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::rustls::RootCertStore;
use tonic::codec::CompressionEncoding;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;
use ureq::http::HeaderMap;
use ureq::tls::Certificate;

use super::answer::{LONGEST_WAIT, Secrets, rejected, too_long};
use super::client::{LONGEST_ANSWER, PushAccess, USER_AGENT};
use super::receiver::Receiver;
use super::trouble::{PushError, not_connected, timed_out};

/// A connection that was not used for so long is not used again: whether the backend has closed it meanwhile would be
/// seen too late.
const LONGEST_IDLE: Duration = Duration::from_secs(20);

/// A backend that is reached by gRPC.
pub(super) struct GrpcClient {
    host: String,
    endpoint: Endpoint,
    metadata: MetadataMap,
    secrets: Secrets,
    timeout: Duration,
    connection: Option<Connection>,
    /// Always there until the end.
    runtime: Option<Runtime>,
}

struct Connection {
    client: ProfilesServiceClient<Channel>,
    used: Instant,
}

/// Why there is no response.
enum Unanswered {
    NotConnected(tonic::transport::Error),
    Status(Box<Status>),
}

impl GrpcClient {
    /// Knows the backend; it is connected to with the first profile.
    ///
    /// # Errors
    ///
    /// If the system or the certificates do not permit it.
    pub(super) fn new(receiver: &Receiver, access: &PushAccess) -> Result<Self> {
        let mut endpoint = Endpoint::from_shared(receiver.url.clone())?.user_agent(USER_AGENT)?;
        if receiver.url.starts_with("https:") {
            let tls = ClientTlsConfig::new();
            endpoint = endpoint.tls_config(match &access.authorities {
                Some(authorities) => tls.trust_anchors(roots(authorities)?.roots),
                None => tls.with_webpki_roots(),
            })?;
        }
        let headers: HeaderMap = access.headers.iter().cloned().collect();
        Ok(Self {
            host: receiver.host.clone(),
            endpoint,
            metadata: MetadataMap::from_headers(headers),
            secrets: Secrets::of(&access.headers),
            timeout: access.timeout,
            connection: None,
            runtime: Some(Builder::new_current_thread().enable_io().enable_time().build()?),
        })
    }

    /// Sends a profile; how many bytes it has, before they are compressed.
    ///
    /// # Errors
    ///
    /// If it was not acknowledged.
    pub(super) fn send(&mut self, message: ExportProfilesServiceRequest) -> Result<usize, PushError> {
        let bytes = message.encoded_len();
        let mut request = Request::new(message);
        *request.metadata_mut() = self.metadata.clone();
        let fresh = self.connection.take().filter(|connection| connection.used.elapsed() < LONGEST_IDLE);
        let exchange = exchange(&self.endpoint, fresh.map(|connection| connection.client), request);
        let within = async { tokio::time::timeout(self.timeout, exchange).await };
        let Some(runtime) = &self.runtime else { return Err(timed_out(&self.host, self.timeout)) };
        let (client, response) = match runtime.block_on(within) {
            Err(_) => return Err(timed_out(&self.host, self.timeout)),
            Ok(Err(Unanswered::NotConnected(error))) => return Err(not_connected(&self.host, &error)),
            Ok(Err(Unanswered::Status(status))) => return Err(self.refused(&status, bytes)),
            Ok(Ok(answered)) => answered,
        };
        self.connection = Some(Connection { client, used: Instant::now() });
        let partial = response.partial_success.unwrap_or_default();
        match partial.rejected_profiles {
            0 => Ok(bytes),
            _ => Err(rejected(&self.host, &self.secrets.shown(&partial.error_message))),
        }
    }

    /// What a status means for a profile of so many bytes.
    fn refused(&self, status: &Status, bytes: usize) -> PushError {
        let host = &self.host;
        let text = self.secrets.shown(status.message().trim());
        let said = if text.is_empty() { String::new() } else { format!(": {text}") };
        let code = status.code();
        if is_of_answer(status.message()) {
            return PushError::Receiver(format!(
                "{host} answers with more than {} KiB; check that --to leads to a backend for profiles",
                LONGEST_ANSWER >> 10
            ));
        }
        if too_long(status.message()) {
            return PushError::TooLong(format!(
                "{host} does not accept a message of {}{said}; raise its limit, or push profiles of shorter time",
                super::size(bytes)
            ));
        }
        match code {
            Code::Unauthenticated => PushError::NotPermitted(format!(
                "{host} asks for a token{said}; give its token with --token-file, or its header with --header"
            )),
            Code::PermissionDenied => PushError::NotPermitted(format!(
                "{host} does not permit it{said}; give a token with --token-file that may write profiles"
            )),
            Code::Unimplemented | Code::NotFound => PushError::Receiver(format!(
                "{host} does not accept profiles by gRPC{said}; check the port in --to, and --format"
            )),
            // A limit that is exhausted for good has no time after which it is not (OTLP's specification).
            Code::ResourceExhausted if after(status).is_some() => PushError::Later {
                text: format!("{host} accepts no more at present{said}"),
                after: after(status),
            },
            Code::Unavailable => {
                PushError::Later { text: format!("{host} is not available{said}"), after: after(status) }
            }
            Code::Cancelled
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::OutOfRange
            | Code::DataLoss
            | Code::Internal
            | Code::Unknown => {
                PushError::Failed { text: format!("{host} failed ({code:?}){said}"), after: after(status) }
            }
            Code::Ok | Code::InvalidArgument | Code::AlreadyExists | Code::FailedPrecondition => {
                PushError::Profile(format!(
                    "{host} refuses it ({code:?}){said}; check --format, and what {host} accepts"
                ))
            }
        }
    }
}

impl Drop for GrpcClient {
    /// Leaves a name that is still looked for to itself: a resolver may take longer than the timeout.
    fn drop(&mut self) {
        self.connection = None;
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// Sends the request on a connection, a new one if there is none; the connection and the response.
async fn exchange(
    endpoint: &Endpoint,
    connected: Option<ProfilesServiceClient<Channel>>,
    request: Request<ExportProfilesServiceRequest>,
) -> Result<(ProfilesServiceClient<Channel>, ExportProfilesServiceResponse), Unanswered> {
    let mut client = match connected {
        Some(client) => client,
        None => {
            let channel = endpoint.connect().await.map_err(Unanswered::NotConnected)?;
            ProfilesServiceClient::new(channel)
                .send_compressed(CompressionEncoding::Gzip)
                .accept_compressed(CompressionEncoding::Gzip)
                .max_decoding_message_size(LONGEST_ANSWER as usize)
        }
    };
    let response = client.export(request).await.map_err(|status| Unanswered::Status(Box::new(status)))?;
    Ok((client, response.into_inner()))
}

/// Whether a status was made here, since the answer is longer than is read: the texts are those of profiles that are too long.
fn is_of_answer(text: &str) -> bool {
    [format!("limit is: {LONGEST_ANSWER} bytes"), format!("limit, of {LONGEST_ANSWER} bytes")]
        .iter()
        .any(|limit| text.contains(limit))
}

/// How long to wait, if the backend says so.
fn after(status: &Status) -> Option<Duration> {
    let delay = status.get_details_retry_info()?.retry_delay?;
    Some(delay.min(Duration::from_secs(LONGEST_WAIT)))
}

fn roots(authorities: &[Certificate<'static>]) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.der().to_vec().into())?;
    }
    Ok(roots)
}
