//! The thread that serves requests: connections, their deadlines, and how they end.
//!
//! A response is sent in pieces, and what a request holds is held until the client has taken nearly all of it.
//! Each request moves the deadline of its connection: one mechanism for slow heads, bodies, readers and idle
//! connections.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::rustls::server::Acceptor;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor};

use super::connection_slots::{ConnectionSlot, ConnectionSlots};
use super::guard::Requester;
use super::{Api, routes};
use crate::sys::peer::Peer;

/// How long nobody is let in after the system could not open another file.
const PAUSE: Duration = Duration::from_millis(100);

/// Until when a connection may go on as it is. Its requests move it.
#[derive(Clone, Debug)]
pub(super) struct Deadline(Arc<watch::Sender<Until>>);

#[derive(Clone, Copy, Debug)]
struct Until {
    at: Instant,
    /// Whether nothing is asked meanwhile: its end is no failure then.
    is_rest: bool,
}

impl Deadline {
    /// What has begun may take so long from now.
    pub(super) fn allow(&self, time: Duration) {
        self.0.send_replace(Until { at: Instant::now() + time, is_rest: false });
    }

    /// Nothing is asked any more; the next request has to come within this time.
    pub(super) fn rest(&self, time: Duration) {
        self.0.send_replace(Until { at: Instant::now() + time, is_rest: true });
    }
}

/// What a thread that answers is told.
pub(super) enum ListenerChange {
    /// Listen here from now on, and nowhere else.
    Unix(std::os::unix::net::UnixListener),
    /// The same for the network; or not at all.
    Tcp(Option<std::net::TcpListener>),
    /// Listen on the network no more, and say when that is so.
    Close(std::sync::mpsc::SyncSender<()>),
}

/// Answers until the other end of `changes` is dropped, then lets what has begun end.
pub(super) async fn run(api: Arc<Api>, mut changes: mpsc::UnboundedReceiver<ListenerChange>) {
    let (ending, end) = watch::channel(());
    let seats = ConnectionSlots::new(api.bounds.connections, api.bounds.connections_each);
    let mut tasks = Tasks { router: routes::router(&api), api, end, seats, connections: JoinSet::new() };
    let (mut unix, mut tcp) = (None, None);
    let slots = Arc::new(Semaphore::new(tasks.api.bounds.connections));
    tasks.connections.spawn(renew_secrets(Arc::clone(&tasks.api), tasks.end.clone()));
    loop {
        tokio::select! {
            change = changes.recv() => match change {
                Some(ListenerChange::Unix(listener)) => unix = UnixListener::from_std(listener).ok(),
                Some(ListenerChange::Tcp(listener)) => tcp = listener.and_then(|tcp| TcpListener::from_std(tcp).ok()),
                Some(ListenerChange::Close(closed)) => {
                    tcp = None;
                    let _ = closed.try_send(()); // who waits has room for it
                }
                None => break,
            },
            (socket, slot) = next_unix(unix.as_ref(), &slots) => tasks.unix(socket, slot),
            socket = next_tcp(tcp.as_ref()) => tasks.tcp(socket),
            _ = tasks.connections.join_next(), if !tasks.connections.is_empty() => {}
        }
    }
    drop((unix, tcp));
    drop(ending);
    let stopping = tasks.api.bounds.stopping;
    // What is not done by then is cut off.
    let _ = timeout(stopping, async { while tasks.connections.join_next().await.is_some() {} }).await;
}

/// Looks at the files of tokens and certificates now and then until `end`. A file that cannot be used is logged once.
async fn renew_secrets(api: Arc<Api>, mut end: watch::Receiver<()>) {
    let mut logged = String::new();
    while timeout(api.bounds.renewal, end.changed()).await.is_err() {
        let renewing = Arc::clone(&api);
        // The files may be on a disk that does not answer.
        let renewed = tokio::task::spawn_blocking(move || renewing.renew_secrets()).await;
        let problem = match renewed {
            Ok(Err(error)) => format!("{error:#}; what was read before stays in force"),
            _ => String::new(),
        };
        if !problem.is_empty() && problem != logged {
            tracing::warn!("a token or certificate has changed: {problem}");
        }
        logged = problem;
    }
}

/// The next connection. Never, where nobody listens.
async fn next<S>(accept: Option<impl AsyncFn() -> io::Result<S>>) -> S {
    let Some(accept) = accept else { return std::future::pending().await };
    loop {
        match accept().await {
            Ok(socket) => return socket,
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// The next one on the socket, once there is room for it.
async fn next_unix(
    listener: Option<&UnixListener>,
    slots: &Arc<Semaphore>,
) -> (UnixStream, OwnedSemaphorePermit) {
    let slot = free(slots).await;
    (next(listener.map(|listener| async || Ok(listener.accept().await?.0))).await, slot)
}

/// The next one on the network, which takes another's place where there is none.
async fn next_tcp(listener: Option<&TcpListener>) -> TcpStream {
    next(listener.map(|listener| async || Ok(listener.accept().await?.0))).await
}

async fn free(slots: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    match Arc::clone(slots).acquire_owned().await {
        Ok(slot) => slot,
        Err(_) => std::future::pending().await, // it is never closed
    }
}

struct Tasks {
    api: Arc<Api>,
    router: Router,
    end: watch::Receiver<()>,
    seats: Arc<ConnectionSlots>,
    connections: JoinSet<()>,
}

impl Tasks {
    fn unix(&mut self, socket: UnixStream, slot: OwnedSemaphorePermit) {
        let peer = socket.peer_cred().and_then(|peer| Peer::of(socket.as_fd(), peer.uid(), peer.gid()));
        let caller = match peer {
            Ok(peer) => Requester::Peer(Arc::new(peer)),
            Err(_) => return self.api.counters.connection_failed(),
        };
        let connection = self.connection();
        self.connections.spawn(async move {
            connection.serve(socket, caller).await;
            drop(slot);
        });
    }

    fn tcp(&mut self, socket: TcpStream) {
        let ends = socket.local_addr().and_then(|here| Ok((here.ip(), socket.peer_addr()?.ip())));
        let Ok((here, from)) = ends else { return self.api.counters.connection_failed() };
        let _ = socket.set_nodelay(true); // an answer in one piece gains nothing by waiting
        let tls = self.api.force().rules.network.as_ref().and_then(|network| network.tls.clone());
        let (connection, seat) = (self.connection(), Arc::new(self.seats.take(from)));
        let connection = Connection { seat: Some(Arc::clone(&seat)), ..connection };
        let api = Arc::clone(&self.api);
        self.connections.spawn(async move {
            let served = async {
                match tls {
                    None => connection.serve(socket, Requester::Network { here, from, name: None }).await,
                    Some(tls) => match connection.shake_hands(socket, &tls, from).await {
                        Some(stream) => {
                            let name = stream.get_ref().1.server_name().map(str::to_owned);
                            connection.serve(stream, Requester::Network { here, from, name }).await;
                        }
                        None => connection.api.counters.connection_failed(),
                    },
                }
            };
            tokio::select! {
                () = served => {}
                () = seat.lost() => api.counters.connection_failed(),
            }
        });
    }

    fn connection(&self) -> Connection {
        let (api, router, end) = (Arc::clone(&self.api), self.router.clone(), self.end.clone());
        Connection { api, router, end, seat: None }
    }
}

struct Connection {
    api: Arc<Api>,
    router: Router,
    end: watch::Receiver<()>,
    /// Its place, on the network.
    seat: Option<Arc<ConnectionSlot>>,
}

impl Connection {
    /// Encrypts what follows, once the client has begun to: a handshake is dear, and nothing of who wants it is known.
    async fn shake_hands(
        &self,
        socket: TcpStream,
        tls: &TlsAcceptor,
        from: IpAddr,
    ) -> Option<TlsStream<TcpStream>> {
        let head = self.api.bounds.head;
        let begin = timeout(head, LazyConfigAcceptor::new(Acceptor::default(), socket)).await.ok()?.ok()?;
        self.api.unasked.network.wait(from).await;
        timeout(head, begin.into_stream(Arc::clone(tls.config()))).await.ok()?.ok()
    }

    async fn serve<S: AsyncRead + AsyncWrite + Unpin>(self, stream: S, caller: Requester) {
        let Self { api, router, mut end, seat } = self;
        let first = Until { at: Instant::now() + api.bounds.head, is_rest: false };
        let (until, mut until_when) = watch::channel(first);
        let deadline = Deadline(Arc::new(until));
        let service = service_fn(|request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(caller.clone());
            request.extensions_mut().insert(deadline.clone());
            if let Some(seat) = &seat {
                request.extensions_mut().insert(Arc::clone(seat));
            }
            let mut router = router.clone();
            async move { tower_service::Service::call(&mut router, request).await }
        });
        let http = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(None) // the deadline bounds it, and a rest between requests
            .max_buf_size(api.bounds.head_bytes)
            .max_header_size(api.bounds.head_bytes)
            .serve_connection(TokioIo::new(stream), service);
        let mut http = pin!(http);
        let mut is_ending = false;
        loop {
            tokio::select! {
                ended = http.as_mut() => {
                    if ended.is_err() {
                        api.counters.connection_failed();
                    }
                    return;
                }
                is_rest = passed(&mut until_when) => {
                    if !is_rest {
                        api.counters.connection_failed();
                    }
                    return;
                }
                _ = end.changed(), if !is_ending => {
                    is_ending = true;
                    http.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

/// Ends once the deadline has passed that is in force by then; whether nothing was asked meanwhile.
async fn passed(until: &mut watch::Receiver<Until>) -> bool {
    loop {
        let Until { at, is_rest } = *until.borrow_and_update();
        tokio::select! {
            () = sleep_until(at) => return is_rest,
            changed = until.changed() => if changed.is_err() { return std::future::pending().await },
        }
    }
}
