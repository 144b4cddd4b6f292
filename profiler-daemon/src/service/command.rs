//! Requests from the interface to the loop, and its responses.
//!
//! Requests are served on a thread of their own, so that no client delays a sample. Commands reach the loop
//! through a bounded queue. The status is read without it ([`super::status_snapshot`]), and so are stored profiles,
//! from the store's folder.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use config::TargetSettings;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use super::status_snapshot::{Latest, StatusSnapshot};
use crate::discovery::LookedUp;

/// A published status up to this age counts as current (ns).
const FRESH_NS: u64 = 1_000_000_000;
/// How long a busy loop is waited for, to publish what is newer.
const PATIENCE: Duration = Duration::from_millis(500);
/// Commands that may wait for the loop; it answers within a step.
const QUEUE: usize = 64;

/// Where an answer goes. The requester may have disconnected.
pub(crate) type ReplySender<T> = oneshot::Sender<T>;

/// A command to the loop.
#[derive(Debug)]
pub(crate) enum DaemonCommand {
    /// Publish how everything is.
    Show,
    /// Watch a target that is not in the settings, for the requested time; answered once processes were scanned for it.
    Attach(Box<AttachRequest>, ReplySender<Result<Attached, CommandRefused>>),
    /// Stop watching such a target; what was sampled is kept.
    Detach(String, ReplySender<Result<(), CommandRefused>>),
    /// End the windows that are open, and keep them. Answered once they can be read from the store.
    Flush(Flush, ReplySender<Result<(), CommandRefused>>),
    /// Read the settings again. The text says what is in force now.
    Reload(ReplySender<Result<String, CommandRefused>>),
    /// Remove every event at once, keep the open windows, and end. Answered once the events are removed.
    Stop(ReplySender<()>),
    /// Files of the store that a reader took for damaged.
    Suspect(Vec<PathBuf>),
}

/// Whose windows are to be ended, and why.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flush {
    /// The names of the targets; if empty, all.
    pub(crate) targets: Vec<String>,
    /// Labels that a target must have.
    pub(crate) labels: BTreeMap<String, String>,
    /// Whether this is the beginning of a range that is to come; then a name that no target has is refused at once.
    pub(crate) is_begin: bool,
    /// Whether this is the end of a requested time range; then earlier early ends don't delay it.
    pub(crate) is_end: bool,
    /// How long before the request the range ended (ns): windows that began after that are not needed.
    pub(crate) ended_ago_ns: u64,
}

impl Flush {
    /// Whether the request includes this target.
    pub(crate) fn wants(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        let is_named = self.targets.is_empty() || self.targets.iter().any(|target| target == name);
        is_named && self.labels.iter().all(|(key, text)| labels.get(key) == Some(text))
    }
}

/// A request to watch a target.
#[derive(Clone, Debug)]
pub(crate) struct AttachRequest {
    /// The target. If its name is empty, one is made from its selection.
    pub(crate) target: TargetSettings,
    /// What it refers to.
    pub(crate) looked_up: LookedUp,
    /// For how long it is watched.
    pub(crate) time: Duration,
}

/// The answer to an [`AttachRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Attached {
    /// The target's name in further requests.
    pub(crate) name: String,
    /// Names of targets that its processes belonged to, and will again once it ends.
    pub(crate) takes_from: Vec<String>,
}

/// Why the loop refuses a command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CommandRefused {
    /// There is no such target.
    #[error("no target is called {0}; `sweetspot ctl targets` lists them")]
    Unknown(String),
    /// It stands in the settings, or a target of this name exists.
    #[error("{0}")]
    Conflict(String),
    /// The request is invalid, or the target cannot be sampled.
    #[error("{0}")]
    Invalid(String),
    /// There are too many requests or too many targets.
    #[error("{0}")]
    Busy(String),
    /// The daemon is about to end.
    #[error("sweetspot is about to stop; try again when it runs")]
    Stopping,
}

/// Sends commands to the loop, and reads what it publishes.
#[derive(Clone, Debug)]
pub(crate) struct CommandSender {
    queue: mpsc::Sender<DaemonCommand>,
    latest: watch::Receiver<Latest>,
    /// Whether the loop has been asked to publish and has not done so yet.
    show_is_queued: Arc<AtomicBool>,
}

/// The loop's end of the queue.
#[derive(Debug)]
pub(crate) struct CommandReceiver(pub(crate) mpsc::Receiver<DaemonCommand>);

/// Where the loop publishes how everything is.
#[derive(Debug)]
pub(crate) struct Publisher {
    latest: watch::Sender<Latest>,
    show_is_queued: Arc<AtomicBool>,
}

impl Publisher {
    /// Puts this in place of what was published before.
    pub(crate) fn publish(&self, snapshot: StatusSnapshot) {
        self.show_is_queued.store(false, Ordering::Release);
        self.latest.send_replace(Some(Arc::new(snapshot)));
    }
}

/// A new channel: its two ends, and where the loop publishes the status.
pub(crate) fn channel() -> (CommandSender, CommandReceiver, Publisher) {
    let (queue, commands) = mpsc::channel(QUEUE);
    let (publisher, latest) = watch::channel(None);
    let show_is_queued = Arc::default();
    let publisher = Publisher { latest: publisher, show_is_queued: Arc::clone(&show_is_queued) };
    (CommandSender { queue, latest, show_is_queued }, CommandReceiver(commands), publisher)
}

impl CommandSender {
    /// The latest status: at most a second old, or, if the loop is busy, the one of its last turn.
    ///
    /// # Errors
    ///
    /// If the loop has ended, or has not started.
    pub(crate) async fn latest(&self) -> Result<Arc<StatusSnapshot>, CommandRefused> {
        let mut latest = self.latest.clone();
        let is_fresh = latest.borrow_and_update().as_ref().is_some_and(|last| last.age_ns() <= FRESH_NS);
        if !is_fresh {
            // One in the queue is enough for all who wait; if the queue is full, others wait for the same.
            if !self.show_is_queued.swap(true, Ordering::AcqRel)
                && self.queue.try_send(DaemonCommand::Show).is_err()
            {
                self.show_is_queued.store(false, Ordering::Release);
            }
            let _ = timeout(PATIENCE, latest.changed()).await;
        }
        let is_there = self.latest.has_changed().is_ok();
        let found = latest.borrow().clone().filter(|_| is_there);
        found.ok_or(CommandRefused::Stopping)
    }

    /// How old the status is that was published last (ns), if one was.
    pub(crate) fn age_ns(&self) -> Option<u64> {
        self.latest.borrow().as_ref().map(|last| last.age_ns())
    }

    /// Sends a command without an answer. It is dropped if the queue is full.
    pub(crate) fn send(&self, command: DaemonCommand) {
        let _ = self.queue.try_send(command);
    }

    /// Sends a command and waits for the answer: `commands.request(DaemonCommand::Reload).await`.
    ///
    /// # Errors
    ///
    /// If the loop has ended, or the queue is full.
    pub(crate) async fn request<T>(
        &self,
        command: impl FnOnce(ReplySender<T>) -> DaemonCommand,
    ) -> Result<T, CommandRefused> {
        let (reply, answer) = oneshot::channel();
        self.queue.try_send(command(reply)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                CommandRefused::Busy("too many requests at once; try again".to_owned())
            }
            mpsc::error::TrySendError::Closed(_) => CommandRefused::Stopping,
        })?;
        answer.await.map_err(|_| CommandRefused::Stopping)
    }
}
