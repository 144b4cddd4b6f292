//! The thread of an export: it sends the windows that wait, one after the other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use profile_files::store::{
    Cursor, Damage, NotRead, OutboxFile, Outboxes, PartsLeft, SendFault, SendOutcome, read_file,
};

use super::plan::{ExportPlan, in_settings};
use super::schedule::{ExportSchedule, Talk, Unsent};
use crate::push::{PushClient, PushError, PushSource};
use crate::sys::{clock, priority};

/// A sender's instructions.
pub(super) struct SenderOrders {
    pub(super) plan: ExportPlan,
    pub(super) outboxes: Outboxes,
    /// The store's folder.
    pub(super) folder: PathBuf,
}

/// Why nothing is sent at present.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Trouble {
    pub(super) text: String,
    /// Time of the next attempt (ns).
    pub(super) next_ns: u64,
}

/// The loop's handle to a sender: instructions, and the sender's state.
pub(super) struct Control {
    orders: Mutex<Arc<SenderOrders>>,
    is_over: AtomicBool,
    /// CPUs that it may use; bits of a float.
    cpus: Arc<AtomicU64>,
    trouble: Mutex<Option<Trouble>>,
}

impl Control {
    pub(super) fn new(orders: SenderOrders, cpus: Arc<AtomicU64>) -> Self {
        let orders = Mutex::new(Arc::new(orders));
        Self { orders, is_over: AtomicBool::new(false), cpus, trouble: Mutex::default() }
    }

    /// Other orders are in force; those before.
    pub(super) fn obey(&self, orders: SenderOrders) -> Arc<SenderOrders> {
        let before = std::mem::replace(&mut *self.lock(), Arc::new(orders));
        before.outboxes.wake();
        before
    }

    /// Tells the sender to begin no other window.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.orders().outboxes.wake();
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Why nothing is sent; `None` while sending works.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        self.trouble.try_lock().ok()?.clone()
    }

    fn orders(&self) -> Arc<SenderOrders> {
        Arc::clone(&self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Arc<SenderOrders>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, trouble: Option<Trouble>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }
}

impl Unsent {
    /// An error that is not the window's fault.
    fn beside(text: String) -> Self {
        Self::Failed { text, after: None, most_fault: SendFault::None }
    }
}

impl From<PushError> for Unsent {
    fn from(error: PushError) -> Self {
        match error {
            PushError::Profile(text) | PushError::TooLong(text) => Self::Refused(in_settings(&text)),
            PushError::NotPermitted(text) => Self::beside(in_settings(&text)),
            // Also a window beside which the connection breaks, or the time runs out.
            PushError::Receiver(text) => {
                Self::Failed { text: in_settings(&text), after: None, most_fault: SendFault::Blamed }
            }
            PushError::Failed { text, after } => Self::Failed {
                text: format!("{text}; look at its log"),
                after,
                most_fault: SendFault::Blamed,
            },
            // It may be the window's own size that a limit on the rate has no room for: others go first.
            PushError::Later { text, after } => Self::Failed { text, after, most_fault: SendFault::Possible },
        }
    }
}

/// The thread's side.
pub(super) struct Sender {
    name: String,
    control: Arc<Control>,
    orders: Arc<SenderOrders>,
    /// Created anew after a failure: its certificate or token files may have changed.
    client: Option<PushClient>,
    cursor: Cursor,
    /// Whether the cursor lacks something that was acknowledged, since the disk did not take it.
    is_behind: bool,
    schedule: ExportSchedule,
    talk: Talk,
}

impl Sender {
    pub(super) fn new(name: String, control: Arc<Control>) -> Self {
        let orders = control.orders();
        let cursor = Cursor::of(&orders.folder, &name);
        Self {
            name,
            control,
            orders,
            client: None,
            cursor,
            is_behind: false,
            schedule: ExportSchedule::default(),
            talk: Talk::default(),
        }
    }

    pub(super) fn run(mut self) {
        priority::come_later();
        self.log_orders();
        while !self.control.is_over() {
            let orders = self.control.orders();
            if !Arc::ptr_eq(&orders, &self.orders) {
                self.obey(orders);
            }
            if let Some(file_to_send) = self.next() {
                self.deliver(&file_to_send);
            }
        }
        self.catch_up();
    }

    fn obey(&mut self, orders: Arc<SenderOrders>) {
        if orders.folder != self.orders.folder {
            self.catch_up();
            self.is_behind = false; // the other folder has a cursor of its own
        }
        let are_same =
            orders.plan.settings == self.orders.plan.settings && orders.folder == self.orders.folder;
        self.orders = orders;
        self.client = None;
        self.cursor = Cursor::of(&self.orders.folder, &self.name);
        if are_same {
            self.schedule.try_at_once();
        } else {
            self.schedule.begin_anew();
        }
        self.log_orders();
    }

    /// The next window, once it is time for it; nothing if there is something else to do.
    fn next(&self) -> Option<OutboxFile> {
        let (control, orders, due_ns) = (&self.control, &self.orders, self.schedule.due_ns());
        orders.outboxes.take(&self.name, self.schedule.is_well(), || {
            let goes_on = !control.is_over() && Arc::ptr_eq(&control.orders(), orders);
            let now_ns = clock::monotonic_ns();
            goes_on.then(|| (now_ns, Duration::from_nanos(due_ns.saturating_sub(now_ns))))
        })
    }

    fn deliver(&mut self, file_to_send: &OutboxFile) {
        let before_ns = clock::thread_cpu_ns();
        // Nothing that a file or a backend holds may end this thread.
        let sent = catch_unwind(AssertUnwindSafe(|| self.send(file_to_send)));
        let error = || Err(Unsent::Refused("internal error; see sweetspot's log".to_owned()));
        let fate = match sent.unwrap_or_else(|_| error()) {
            Ok(bytes) => self.took(bytes),
            Err(unsent) => self.took_not(file_to_send, &unsent),
        };
        let outboxes = self.orders.outboxes.clone();
        let recording = outboxes.recording();
        if fate.settles() {
            self.record(file_to_send);
        }
        outboxes.finish(&self.name, clock::monotonic_ns(), file_to_send, fate);
        drop(recording);
        let spent_ns = clock::thread_cpu_ns().saturating_sub(before_ns);
        let cpus = f64::from_bits(self.control.cpus.load(Ordering::Relaxed));
        self.schedule.charge(clock::monotonic_ns(), spent_ns, cpus);
    }

    /// Sends a window; how many bytes it took.
    fn send(&mut self, file_to_send: &OutboxFile) -> Result<usize, Unsent> {
        let (pprof, stamp, profile) =
            read_file(&self.orders.folder, &file_to_send.path).map_err(|error| match error {
                NotRead::Gone => Unsent::Lost(None),
                NotRead::Damaged(damage) => Unsent::Lost(Some(damage)),
                NotRead::Refused(cause) => Unsent::Unreadable(format!(
                    "{} cannot be read ({cause}); look at the disk",
                    file_to_send.path.display()
                )),
            })?;
        let plan = &self.orders.plan;
        let identity = plan.identity(&profile, &stamp).ok_or(Unsent::LeftOut)?;
        let mut client = match self.client.take() {
            Some(client) => client,
            None => plan.client().map_err(|error| Unsent::beside(in_settings(&format!("{error:#}"))))?,
        };
        let stacks = profile.stacks.len();
        let begun = self.orders.outboxes.parts_left(&self.name, &file_to_send.path);
        let mut left = begun.filter(|left| left.fits(stacks)).unwrap_or_else(|| PartsLeft::all_of(stacks));
        let source = PushSource { profile, pprof, stamp: Some(stamp) };
        let bytes =
            client.send(&source, &identity, &mut left, |left| self.keep_parts(&file_to_send.path, left))?;
        self.client = Some(client);
        Ok(bytes)
    }

    /// Has the disk know which parts of a window were acknowledged, before the next one is sent.
    fn keep_parts(&mut self, path: &Path, left: &PartsLeft) {
        let outboxes = self.orders.outboxes.clone();
        let _recording = outboxes.recording();
        outboxes.leave(&self.name, path, left.clone());
        self.is_behind |= self.cursor.leave(path, left).is_err();
        self.rewrite_cursor(None);
    }

    fn took(&mut self, bytes: usize) -> SendOutcome {
        self.schedule.taken();
        self.works();
        SendOutcome::Sent(bytes as u64)
    }

    fn took_not(&mut self, file_to_send: &OutboxFile, unsent: &Unsent) -> SendOutcome {
        let now_ns = clock::monotonic_ns();
        let fate = self.schedule.judge(now_ns, file_to_send, unsent, fastrand::f64());
        match unsent {
            Unsent::Lost(None) | Unsent::LeftOut => {}
            Unsent::Lost(Some(damage)) => self.drop_damaged(file_to_send, damage),
            Unsent::Refused(reason) => self.tell_refused(file_to_send, reason),
            Unsent::Unreadable(text) => self.tell_unreadable(file_to_send, text),
            Unsent::Failed { text, .. } if fate == SendOutcome::Refused => {
                self.tell_refused(
                    file_to_send,
                    &format!("{text}; it keeps failing with this window, and accepts others"),
                );
            }
            Unsent::Failed { text, .. } => self.tell_failed(now_ns, text),
        }
        fate
    }

    /// Has the store's owner set a file aside.
    fn drop_damaged(&mut self, file_to_send: &OutboxFile, damage: &Damage) {
        if self.talk.unreadable(&file_to_send.path) {
            let (name, path) = (&self.name, file_to_send.path.display());
            tracing::warn!(
                export = name,
                "export {name}: {path} is damaged ({damage}) and cannot be sent; look at the disk"
            );
        }
        self.orders.outboxes.suspect(&file_to_send.path);
    }

    fn tell_failed(&mut self, now_ns: u64, text: &str) {
        if self.talk.failed(now_ns) {
            let name = &self.name;
            tracing::warn!(export = name, reason = text, "export {name}: windows wait in the store: {text}");
        }
        self.control.tell(Some(Trouble { text: text.to_owned(), next_ns: self.schedule.due_ns() }));
    }

    fn tell_unreadable(&mut self, file_to_send: &OutboxFile, text: &str) {
        if self.talk.unreadable(&file_to_send.path) {
            let name = &self.name;
            tracing::warn!(
                export = name,
                reason = text,
                "export {name}: a window waits in the store: {text}"
            );
        }
        self.control.tell(Some(Trouble { text: text.to_owned(), next_ns: self.schedule.due_ns() }));
    }

    fn tell_refused(&mut self, file_to_send: &OutboxFile, reason: &str) {
        self.works();
        if self.talk.refused(reason) {
            let (name, target) = (&self.name, &file_to_send.target);
            tracing::warn!(
                export = name,
                target,
                reason,
                "export {name}: a window of {target} is refused: {reason}"
            );
        }
    }

    fn works(&mut self) {
        self.control.tell(None);
        if self.talk.works() {
            let name = &self.name;
            tracing::info!(export = name, "export {name}: the backend answers again");
        }
    }

    /// Has the disk know what is settled, before anything else is done with it.
    fn record(&mut self, file_to_send: &OutboxFile) {
        self.is_behind |= self.cursor.add(file_to_send).is_err();
        self.rewrite_cursor(Some(file_to_send));
    }

    /// Has the cursor say all that was acknowledged, before this sender ends or leaves its folder.
    fn catch_up(&mut self) {
        let outboxes = self.orders.outboxes.clone();
        let _recording = outboxes.recording();
        self.rewrite_cursor(None);
    }

    /// Writes the whole cursor anew where it is long, or lacks what could not be added; with `settled`, which the position does
    /// not have yet.
    fn rewrite_cursor(&mut self, settled: Option<&OutboxFile>) {
        if !self.is_behind && !self.cursor.is_long() {
            return;
        }
        let Some(mut position) = self.orders.outboxes.position(&self.name) else { return };
        settled.iter().for_each(|file| position.settle(&file.target, &file.time_ranges));
        match self.cursor.write(&position) {
            Ok(()) => self.is_behind = false,
            Err(cause) if self.is_behind => self.tell_unrecorded(&cause),
            Err(_) => {} // its lines are all there
        }
    }

    fn tell_unrecorded(&mut self, cause: &std::io::Error) {
        if self.talk.unrecorded(clock::monotonic_ns()) {
            let name = &self.name;
            tracing::warn!(
                export = name,
                "export {name}: its cursor cannot be written ({cause}): what is sent meanwhile is sent again after a restart, unless it can be written before"
            );
        }
    }

    fn log_orders(&self) {
        let (name, receiver) = (&self.name, &self.orders.plan.receiver);
        let to = &receiver.host;
        tracing::info!(export = name, to, "export {name}: windows go to {to}");
    }
}

#[cfg(test)]
mod tests;
