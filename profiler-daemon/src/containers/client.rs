//! One round of questions to a runtime, over its Unix socket: unary gRPC over HTTP/2, or HTTP/1.1. Time and bytes are bounded,
//! and nothing of the answer is believed.

use std::io;
use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, TE};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use percent_encoding::percent_decode;
use prost::Message;
use tokio::net::UnixStream;

use super::cri::{self, Containers, Images, ListAll, Pods};
use super::frame::{framed, unframed};
use super::names::{ContainerNames, text};
use super::{Protocol, RuntimeTrouble, engine};

/// For a connection, and again for each answer.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 10 } else { 2 });
/// Longest answer: ten thousand containers take a third of it.
const MAX_BYTES: usize = 16 << 20;
/// Longest head of an answer.
const MAX_HEAD_BYTES: u32 = 64 << 10;
/// gRPC's status for what a server does not have.
const UNIMPLEMENTED: &str = "12";
const NO_ANSWER: &str = "it does not answer within 2 s";

type Body = Full<Bytes>;

/// All containers of a runtime, asked by this protocol.
pub(super) async fn ask(socket: &Path, protocol: Protocol) -> Result<ContainerNames, RuntimeTrouble> {
    let stream = in_time(connect(socket)).await?;
    match protocol {
        Protocol::Cri => ask_cri(stream).await,
        Protocol::Engine => ask_engine(stream).await,
    }
}

async fn in_time<T>(work: impl Future<Output = Result<T, RuntimeTrouble>>) -> Result<T, RuntimeTrouble> {
    tokio::time::timeout(PATIENCE, work)
        .await
        .unwrap_or_else(|_| Err(RuntimeTrouble::Silent(NO_ANSWER.to_owned())))
}

async fn connect(socket: &Path) -> Result<UnixStream, RuntimeTrouble> {
    UnixStream::connect(socket).await.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => RuntimeTrouble::Missing,
        io::ErrorKind::PermissionDenied => RuntimeTrouble::Denied,
        io::ErrorKind::ConnectionRefused => RuntimeTrouble::Silent("no program listens there".to_owned()),
        _ => RuntimeTrouble::Silent(format!("it cannot be connected to ({error})")),
    })
}

async fn ask_cri(stream: UnixStream) -> Result<ContainerNames, RuntimeTrouble> {
    let mut runtime = in_time(Grpc::begin(stream)).await?;
    let containers = runtime.ask(cri::CONTAINERS).await?;
    let containers = Containers::decode(&containers).map_err(not_understood)?;
    let pods = Pods::decode(&runtime.ask(cri::PODS).await?).map_err(not_understood)?;
    let mut images = Images::default();
    if containers.need_images() {
        // Without them, containers have all their other names.
        let listed = runtime.ask(cri::IMAGES).await;
        images = listed.ok().and_then(|listed| Images::decode(&listed).ok()).unwrap_or_default();
    }
    Ok(cri::names(&containers, &pods, &images))
}

/// A connection to a server of gRPC.
struct Grpc(http2::SendRequest<Body>);

impl Grpc {
    async fn begin(stream: UnixStream) -> Result<Self, RuntimeTrouble> {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.max_header_list_size(MAX_HEAD_BYTES);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(other_protocol)?;
        tokio::spawn(connection); // ends with the runtime of this round
        Ok(Self(sender))
    }

    /// The message that answers a request for everything.
    async fn ask(&mut self, path: &str) -> Result<Vec<u8>, RuntimeTrouble> {
        in_time(self.call(path)).await
    }

    async fn call(&mut self, path: &str) -> Result<Vec<u8>, RuntimeTrouble> {
        let message = framed(&ListAll {}.encode_to_vec());
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("http://localhost{path}"))
            .header(CONTENT_TYPE, "application/grpc")
            .header(TE, "trailers")
            .body(Body::from(message))
            .map_err(|error| RuntimeTrouble::Failed(error.to_string()))?;
        self.0.ready().await.map_err(other_protocol)?;
        let response = self.0.send_request(request).await.map_err(other_protocol)?;
        let is_grpc = response
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        if response.status() != StatusCode::OK || !is_grpc {
            return Err(RuntimeTrouble::OtherProtocol("it does not speak gRPC".to_owned()));
        }
        judge(response.headers())?; // an error may come without a body
        let (bytes, trailers) = body(response).await?;
        let trailers = trailers.ok_or_else(|| RuntimeTrouble::Failed("its answer has no end".to_owned()))?;
        judge(&trailers)?;
        unframed(&bytes).map(<[u8]>::to_vec).map_err(|why| RuntimeTrouble::Failed(why.to_owned()))
    }
}

/// What the status of an answer says, where there is one.
fn judge(headers: &HeaderMap) -> Result<(), RuntimeTrouble> {
    let header = |name: &str| headers.get(name).map(|value| value.as_bytes());
    let Some(status) = header("grpc-status").filter(|status| *status != b"0") else { return Ok(()) };
    let message = percent_decode(header("grpc-message").unwrap_or_default()).collect::<Vec<u8>>();
    let message = text(&message).unwrap_or_default();
    match status == UNIMPLEMENTED.as_bytes() {
        true => Err(RuntimeTrouble::NotServed(message)),
        false => {
            let status = text(status).unwrap_or_default();
            Err(RuntimeTrouble::Failed(format!("it refused the request (status {status}): {message}")))
        }
    }
}

async fn ask_engine(stream: UnixStream) -> Result<ContainerNames, RuntimeTrouble> {
    let body = in_time(list(stream)).await?;
    engine::names(&body).map_err(not_understood)
}

async fn list(stream: UnixStream) -> Result<Vec<u8>, RuntimeTrouble> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(other_protocol)?;
    tokio::spawn(connection);
    let request = Request::builder()
        .uri(engine::LIST)
        .header(HOST, "localhost")
        .body(Body::default())
        .map_err(|error| RuntimeTrouble::Failed(error.to_string()))?;
    let response = sender.send_request(request).await.map_err(other_protocol)?;
    match response.status() {
        StatusCode::OK => Ok(body(response).await?.0),
        StatusCode::NOT_FOUND => {
            Err(RuntimeTrouble::OtherProtocol("it has no list of containers".to_owned()))
        }
        status => Err(RuntimeTrouble::Failed(format!("it answers with status {}", status.as_u16()))),
    }
}

/// The whole body, and the headers after it.
async fn body(response: Response<Incoming>) -> Result<(Vec<u8>, Option<HeaderMap>), RuntimeTrouble> {
    let body = Limited::new(response.into_body(), MAX_BYTES).collect().await.map_err(|error| {
        match error.is::<http_body_util::LengthLimitError>() {
            true => RuntimeTrouble::Failed(format!("its answer has more than {} MiB", MAX_BYTES >> 20)),
            false => RuntimeTrouble::Failed(format!("its answer breaks off ({error})")),
        }
    })?;
    let trailers = body.trailers().cloned();
    Ok((body.to_bytes().to_vec(), trailers))
}

fn other_protocol(error: hyper::Error) -> RuntimeTrouble {
    RuntimeTrouble::OtherProtocol(format!("it does not speak this protocol ({error})"))
}

fn not_understood(error: impl std::fmt::Display) -> RuntimeTrouble {
    let error = text(error.to_string().as_bytes()).unwrap_or_default();
    RuntimeTrouble::Failed(format!("its answer is not understood ({error})"))
}
