//! What the interface asks of the loop, and how the loop answers.
//!
//! Requests are served on a thread of their own, so that no client delays a sample. They reach the loop through a queue
//! that is bounded; ranges of stored profiles are read past it, from the store's folder.

use std::time::Duration;

use config::TargetSettings;
use tokio::sync::{mpsc, oneshot};

use super::state::{DecisionEntry, Status, TargetStatus};

/// Questions that may wait for the loop; it answers within a tick.
const QUEUE: usize = 64;

/// Where an answer goes. Whoever asked may have left.
pub(crate) type Reply<T> = oneshot::Sender<T>;

/// A question.
#[derive(Debug)]
pub(crate) enum Ask {
    /// How the daemon is.
    Status(Reply<Status>),
    /// Every target: sampled, waiting and left out.
    Targets(Reply<Vec<TargetStatus>>),
    /// The controller's last decisions for a target, oldest first.
    Decisions(String, Reply<Result<Vec<DecisionEntry>, Refused>>),
    /// Watch a target that no file names, for so long; answered with its name once its events are open.
    Attach(Box<Wanted>, Reply<Result<String, Refused>>),
    /// Watch such a target no more; what was sampled is kept.
    Detach(String, Reply<Result<(), Refused>>),
    /// End the windows that are open, and keep them. Answered once they can be read from the store. Asked for more than once
    /// a second, it is answered for all at once.
    Flush(Reply<Result<(), Refused>>),
    /// Read the settings again. The text says what is in force now.
    Reload(Reply<Result<String, Refused>>),
    /// Remove every event at once, keep the open windows, and end.
    Stop(Reply<()>),
}

/// A target that somebody asks for.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// What it is; its name may be empty, and is then made from what it is.
    pub(crate) target: TargetSettings,
    /// For how long it is watched.
    pub(crate) time: Duration,
}

/// Why the loop does not do what it is asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    /// There is no such target.
    #[error("no target is called {0}; `sweetspot ctl targets` lists them")]
    Unknown(String),
    /// It stands in the settings, or a target of this name exists.
    #[error("{0}")]
    Conflict(String),
    /// It cannot mean anything, or cannot be sampled.
    #[error("{0}")]
    Invalid(String),
    /// Too many ask, or there are too many targets.
    #[error("{0}")]
    Busy(String),
    /// The daemon is about to end.
    #[error("sweetspot is about to stop; ask again once it runs")]
    Stopping,
}

/// Asks the loop.
#[derive(Clone, Debug)]
pub(crate) struct Asker(mpsc::Sender<Ask>);

/// The loop's end of the queue.
#[derive(Debug)]
pub(crate) struct Asked(pub(crate) mpsc::Receiver<Ask>);

/// The two ends.
pub(crate) fn channel() -> (Asker, Asked) {
    let (asker, asked) = mpsc::channel(QUEUE);
    (Asker(asker), Asked(asked))
}

impl Asker {
    /// Asks, and waits for the answer: `asker.ask(Ask::Status).await`.
    ///
    /// # Errors
    ///
    /// If the loop is not there any more, or has more to answer than it can.
    pub(crate) async fn ask<T>(&self, question: impl FnOnce(Reply<T>) -> Ask) -> Result<T, Refused> {
        let (reply, answer) = oneshot::channel();
        self.0.try_send(question(reply)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                Refused::Busy("too many requests at once; ask again".to_owned())
            }
            mpsc::error::TrySendError::Closed(_) => Refused::Stopping,
        })?;
        answer.await.map_err(|_| Refused::Stopping)
    }
}
