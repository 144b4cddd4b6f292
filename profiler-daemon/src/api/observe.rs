//! What every request passes through: counted, bounded in time and number, with the headers that every answer has, and
//! never ended by a panic without a word.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, CONNECTION, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, Response, StatusCode};
use axum::middleware::Next;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connection_slots::ConnectionSlot;
use super::guard::{self, Needs, Requester};
use super::problem::Problem;
use super::serve::Deadline;
use super::{Api, routes};

/// What happened since the interface began.
#[derive(Debug, Default)]
pub(super) struct ApiCounters {
    answers: Mutex<BTreeMap<u16, u64>>,
    panics: AtomicU64,
    connections_failed: AtomicU64,
    profiles_abandoned: AtomicU64,
}

impl ApiCounters {
    /// A request was answered.
    fn answered(&self, status: StatusCode) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        *answers.entry(status.as_u16()).or_default() += 1;
    }

    /// Something panicked.
    pub(super) fn panicked(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection ended before what was asked on it could be answered, or before anything was asked.
    pub(super) fn connection_failed(&self) {
        self.connections_failed.fetch_add(1, Ordering::Relaxed);
    }

    /// A client left before its profile was read.
    pub(super) fn profile_abandoned(&self) {
        self.profiles_abandoned.fetch_add(1, Ordering::Relaxed);
    }

    /// Profiles whose clients left.
    pub(super) fn profiles_abandoned(&self) -> u64 {
        self.profiles_abandoned.load(Ordering::Relaxed)
    }

    /// Answers by status.
    pub(super) fn answers(&self) -> BTreeMap<u16, u64> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Panics.
    pub(super) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Connections that failed.
    pub(super) fn connections_failed(&self) -> u64 {
        self.connections_failed.load(Ordering::Relaxed)
    }
}

/// Answers a request by `next`, if it may be.
pub(super) async fn observe(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response<Body> {
    let deadline = request.extensions().get::<Deadline>().cloned();
    if let Some(deadline) = &deadline {
        deadline.allow(api.bounds.body + api.bounds.answer);
    }
    let from = match request.extensions().get() {
        Some(Requester::Network { from, .. }) => Some(*from),
        _ => None,
    };
    let unasked = async || match from {
        Some(from) => api.unasked.network.wait(from).await,
        None => api.unasked.socket.wait().await,
    };
    let seat = request.extensions().get::<Arc<ConnectionSlot>>().cloned();
    let (mut response, permit) = match admit(&api, &request) {
        Ok(permit) => {
            match &permit {
                Some(_) => seat.iter().for_each(|seat| seat.prove()),
                None if from.is_some() => unasked().await,
                None => {}
            }
            (unpanicked(&api.counters, next.run(request)).await, permit)
        }
        Err(problem) => {
            let is_refused = problem.status != StatusCode::TOO_MANY_REQUESTS;
            let mut response = problem.into_response();
            if is_refused {
                unasked().await;
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            (response, None)
        }
    };
    api.counters.answered(response.status());
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(deadline) = &deadline {
        deadline.allow(api.bounds.taking);
    }
    let held = Held {
        _permit: permit,
        _room: response.extensions_mut().remove(),
        rest: deadline.map(|deadline| (deadline, api.bounds.rest)),
    };
    response.map(|body| Body::new(HeldBody { body, left: Bytes::new(), _held: held }))
}

/// Whether it may be answered, and the permit to be one of those that are at a time. Health needs none: whoever asks for
/// it should not learn that others are busy.
fn admit(api: &Api, request: &Request) -> Result<Option<OwnedSemaphorePermit>, Problem> {
    let force = api.force();
    let needs = routes::needs(request.uri().path());
    let caller = request.extensions().get::<Requester>();
    let caller = caller.ok_or_else(|| Problem::internal("internal error: the caller is unknown"))?;
    guard::admit(&force.rules, caller, request.uri(), request.headers(), needs)?;
    if needs == Needs::Nothing {
        return Ok(None);
    }
    let permit = Arc::clone(force.slots.of(request.uri().path())).try_acquire_owned();
    permit.map(Some).map_err(|_| {
        let most = force.settings.limits.requests;
        Problem::busy(format!("{most} requests are in progress; try again, or raise limits.requests"))
    })
}

/// The answer of `answer`, or a problem if it panics.
async fn unpanicked(counters: &ApiCounters, answer: impl Future<Output = Response<Body>>) -> Response<Body> {
    let mut answer = pin!(answer);
    let caught = poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(context))) {
        Ok(polled) => polled.map(Some),
        Err(_) => Poll::Ready(None),
    });
    if let Some(response) = caught.await {
        return response;
    }
    counters.panicked();
    tracing::error!("a request panicked");
    Problem::internal("internal error while the request was handled; see sweetspot's log").into_response()
}

/// The room of an answer in memory, until its client has taken it. Dropped, it is free again.
#[derive(Clone, Debug)]
pub(super) struct AnswerRoom {
    /// None of an answer of less than a MiB.
    _permits: Option<Arc<OwnedSemaphorePermit>>,
}

impl AnswerRoom {
    /// Room for an answer of this length (bytes); each permit is for a MiB.
    ///
    /// # Errors
    ///
    /// If those that wait for their clients leave none.
    pub(super) fn of(all_mib: &Arc<Semaphore>, length: usize) -> Result<Self, Problem> {
        let mib = u32::try_from(length >> 20).unwrap_or(u32::MAX);
        if mib == 0 {
            return Ok(Self { _permits: None });
        }
        let permits = Arc::clone(all_mib).try_acquire_many_owned(mib).map_err(|_| {
            Problem::busy(format!(
                "other clients have not taken their profiles yet, and this one has {mib} MiB; try again, or request a shorter range"
            ))
        })?;
        Ok(Self { _permits: Some(Arc::new(permits)) })
    }
}

/// What an answer holds until the client has taken it.
struct Held {
    _permit: Option<OwnedSemaphorePermit>,
    _room: Option<AnswerRoom>,
    rest: Option<(Deadline, std::time::Duration)>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some((deadline, time)) = &self.rest {
            deadline.rest(*time);
        }
    }
}

/// What of an answer is written at a time: so much of it is in the connection's buffers when the rest is let go.
const PIECE: usize = 64 << 10;

/// A body that is handed out in pieces, so that it ends when the client has taken nearly all of it.
struct HeldBody {
    body: Body,
    /// What is left of the last frame.
    left: Bytes,
    _held: Held,
}

impl HttpBody for HeldBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.left.is_empty() {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                other => return Poll::Ready(other),
            };
            match frame.into_data() {
                Ok(data) => self.left = data,
                Err(other) => return Poll::Ready(Some(Ok(other))),
            }
        }
        let length = self.left.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.left.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (hint, left) = (self.body.size_hint(), self.left.len() as u64);
        match hint.exact() {
            Some(length) => SizeHint::with_exact(length.saturating_add(left)),
            None => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polled<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn a_panic_is_an_answer_and_counted() {
        let counters = ApiCounters::default();
        let response = polled(unpanicked(&counters, async { panic!("as a test") }));
        assert_eq!((response.status(), counters.panics()), (StatusCode::INTERNAL_SERVER_ERROR, 1));
    }

    #[test]
    fn a_long_answer_goes_out_in_pieces() {
        let text: Vec<u8> = (0..3 * PIECE + 5).map(|at| at as u8).collect();
        let held = Held { _permit: None, _room: None, rest: None };
        let mut body = HeldBody { body: Body::from(text.clone()), left: Bytes::new(), _held: held };
        let (mut whole, mut pieces) = (Vec::new(), 0);
        while !body.is_end_stream() {
            assert_eq!(body.size_hint().exact(), Some((text.len() - whole.len()) as u64));
            let frame = polled(poll_fn(|context| Pin::new(&mut body).poll_frame(context))).unwrap().unwrap();
            whole.extend(frame.into_data().unwrap());
            pieces += 1;
        }
        assert_eq!((whole, pieces), (text, 4));
    }
}
