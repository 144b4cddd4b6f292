//! The daemon's interface: HTTP on a Unix socket and, if the settings want it, on the network.
//!
//! **It never delays a sample.** Everything here runs on a thread of its own and reaches the loop through a
//! bounded queue; profiles are read from the store's folder past it, on threads of which there are few.
//!
//! **Profiles are secrets.** Only `/healthz` and `/readyz` answer without authorization: on the socket that
//! is its mode and the peer's groups, on the network a token. Browser pages are refused everywhere, by
//! `Origin` and by the host name in the request (`guard`).
//!
//! **Nothing a client does costs more than its share** (`bounds`, `serve`): heads, bodies, connections,
//! requests at a time, ranges, and the time for each of them are bounded; a client that disconnects is
//! dropped.
//!
//! **One table** (`routes`) makes the router, reads the parameters and writes the OpenAPI document.

mod answers;
mod bounds;
mod connection_slots;
mod guard;
mod listen;
mod metrics;
mod observe;
mod openapi;
mod pace;
mod params;
mod problem;
mod reading_time;
mod routes;
mod serve;
#[cfg(test)]
mod tests;

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use config::DaemonSettings;
use tokio::sync::{Semaphore, mpsc};

pub(crate) use answers::attach::AttachBody;

use crate::service::command::CommandSender;
use bounds::ApiBounds;
use listen::socket::{self, SocketPlace};
use listen::{AccessRules, tcp};
use observe::ApiCounters;
use pace::{AnswerPace, Paces};
use reading_time::ReadingTime;
use serve::ListenerChange;

/// What the thread that answers takes at most to let go of a listener.
const AT_ONCE: Duration = Duration::from_millis(if cfg!(test) { 20_000 } else { 500 });

/// What every request may look at.
struct Api {
    commands: CommandSender,
    bounds: ApiBounds,
    counters: ApiCounters,
    force: RwLock<Arc<Force>>,
    renderings: Arc<Semaphore>,
    /// A permit for each MiB of profiles that wait for their clients.
    answers_mib: Arc<Semaphore>,
    reading_time: ReadingTime,
    unasked: Unasked,
}

/// Answers to those who have shown no right to one, by where they come from: one does not delay the other.
#[derive(Default)]
struct Unasked {
    network: Paces,
    socket: AnswerPace,
}

/// What the settings say, replaced as a whole.
struct Force {
    settings: DaemonSettings,
    rules: AccessRules,
    slots: RequestSlots,
}

/// Permits of the requests that are handled at a time, `limits.requests` of each kind: those that may wait do not lock out
/// those that say how the daemon is, or stop it.
#[derive(Clone)]
struct RequestSlots {
    /// Of requests that may take minutes.
    long: Arc<Semaphore>,
    /// Of all others.
    short: Arc<Semaphore>,
}

impl RequestSlots {
    fn new(each: u32) -> Self {
        let slots = || Arc::new(Semaphore::new(each as usize));
        Self { long: slots(), short: slots() }
    }

    /// Those for requests of this path.
    fn of(&self, path: &str) -> &Arc<Semaphore> {
        if routes::is_long(path) { &self.long } else { &self.short }
    }
}

impl Api {
    fn force(&self) -> Arc<Force> {
        Arc::clone(&self.force.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads tokens and certificates again if their files have changed.
    ///
    /// # Errors
    ///
    /// What of them cannot be used, and what to do. Those from before stay in force then.
    fn renew_secrets(&self) -> Result<()> {
        let old = self.force();
        let listen = &old.settings.listen;
        if !old.rules.are_outdated(listen) {
            return Ok(());
        }
        let rules = old.rules.renewed(listen)?;
        let (settings, slots) = (old.settings.clone(), old.slots.clone());
        let mut force = self.force.write().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&force, &old) {
            *force = Arc::new(Force { settings, rules, slots }); // no other settings have come meanwhile
        }
        Ok(())
    }
}

/// What new settings need, made before they are in force: files are read and groups asked for, which may take its time.
pub(crate) struct PreparedInterface(Force);

/// Makes what new settings need.
///
/// # Errors
///
/// What of them cannot be carried out, and what to do.
pub(crate) fn prepare(settings: &DaemonSettings) -> Result<PreparedInterface> {
    Force::new(settings).map(PreparedInterface)
}

/// What of these settings a server would refuse, and what a person should know of the rest, in lines.
pub(crate) fn problems(settings: &DaemonSettings) -> (Vec<anyhow::Error>, Vec<String>) {
    listen::problems(&settings.listen)
}

impl Force {
    fn new(settings: &DaemonSettings) -> Result<Self> {
        let slots = RequestSlots::new(settings.limits.requests);
        Ok(Self { settings: settings.clone(), rules: AccessRules::read(&settings.listen)?, slots })
    }
}

/// The interface while it is there. Dropped, it ends.
pub(crate) struct Server {
    api: Arc<Api>,
    place: SocketPlace,
    address: Option<SocketAddr>,
    changes: Option<mpsc::UnboundedSender<ListenerChange>>,
    thread: Option<JoinHandle<()>>,
}

/// Begins to answer.
///
/// # Errors
///
/// What of the settings cannot be carried out, and what to do; nothing is left of it then.
pub(crate) fn start(settings: &DaemonSettings, commands: CommandSender) -> Result<Server> {
    start_within(settings, commands, ApiBounds::default())
}

fn start_within(settings: &DaemonSettings, commands: CommandSender, bounds: ApiBounds) -> Result<Server> {
    let force = Force::new(settings)?;
    let network = settings.listen.tcp.map(tcp).transpose()?;
    let (unix, place) = socket::listen(&settings.listen.socket, &force.rules.peers)?;
    let api = Arc::new(Api {
        commands,
        bounds,
        counters: ApiCounters::default(),
        force: RwLock::new(Arc::new(force)),
        renderings: Arc::new(Semaphore::new(bounds.renderings)),
        answers_mib: Arc::new(Semaphore::new(bounds.answers_mib)),
        reading_time: ReadingTime::default(),
        unasked: Unasked::default(),
    });
    let (changes, changed) = mpsc::unbounded_channel();
    let address = address_of(network.as_ref());
    let _ = changes.send(ListenerChange::Unix(unix));
    let _ = changes.send(ListenerChange::Tcp(network));
    let thread = spawn(Arc::clone(&api), changed)?;
    Ok(Server { api, place, address, changes: Some(changes), thread: Some(thread) })
}

fn address_of(network: Option<&TcpListener>) -> Option<SocketAddr> {
    network.and_then(|listener| listener.local_addr().ok())
}

fn spawn(api: Arc<Api>, changes: mpsc::UnboundedReceiver<ListenerChange>) -> Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(api.bounds.renderings + 2) // one more looks up users for `attach`, and one reads renewed tokens
        .thread_name("sweetspot-profile")
        .build()
        .map_err(|error| anyhow!("the interface cannot start ({error}); raise the limit of open files"))?;
    std::thread::Builder::new()
        .name("sweetspot-api".to_owned())
        .spawn(move || {
            runtime.block_on(serve::run(api, changes));
            runtime.shutdown_background(); // a profile that is being read is read for nobody now
        })
        .map_err(|error| anyhow!("the interface cannot start ({error}); raise the limit of threads"))
}

impl Server {
    /// What is not as the settings want it, in lines for a person.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.api.force().rules.peers.note.iter().cloned().collect()
    }

    /// CPU time of reading profiles for requests (ns).
    pub(crate) fn reading_ns(&self) -> u64 {
        self.api.reading_time.spent_ns()
    }

    /// Where it listens on the network: with the port that the system chose, if the settings leave that to it.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Takes new settings: tokens and certificates as they were read for them, and listeners replaced where they changed. Requests
    /// that have begun go on.
    ///
    /// # Errors
    ///
    /// What cannot be carried out; everything is as it was then.
    pub(crate) fn adopt(&mut self, prepared: PreparedInterface) -> Result<()> {
        let (old, PreparedInterface(new)) = (self.api.force(), prepared);
        let listen = &new.settings.listen;
        let socket = if listen.socket == self.place.path() {
            self.place.set_rights(&new.rules.peers)?;
            None
        } else {
            Some(socket::listen(&listen.socket, &new.rules.peers)?)
        };
        // The last: the place of the old one may be needed for the new one.
        let network = self.network(old.settings.listen.tcp, listen.tcp).inspect_err(|_| {
            let _ = self.place.set_rights(&old.rules.peers); // as they could be set before
        })?;
        *self.api.force.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
        if let Some((listener, place)) = socket {
            self.send(ListenerChange::Unix(listener));
            self.place = place;
        }
        if let Some(listener) = network {
            self.address = address_of(listener.as_ref());
            self.send(ListenerChange::Tcp(listener));
        }
        Ok(())
    }

    /// The listener that takes the place of the one on the network, where that changes.
    fn network(
        &mut self,
        old: Option<SocketAddr>,
        new: Option<SocketAddr>,
    ) -> Result<Option<Option<TcpListener>>> {
        let Some(address) = new.filter(|_| new != old) else {
            return Ok((new != old).then_some(None));
        };
        let ours = self.address.filter(|ours| ours.port() == address.port());
        match (tcp(address), ours) {
            (Ok(listener), _) => Ok(Some(Some(listener))),
            (Err(error), None) => Err(error),
            // Our own may be in its way, as 0.0.0.0 is in that of each address.
            (Err(_), Some(ours)) => {
                self.close_network();
                tcp(address).map(|listener| Some(Some(listener))).inspect_err(|_| match tcp(ours) {
                    Ok(listener) => self.send(ListenerChange::Tcp(Some(listener))),
                    Err(error) => {
                        tracing::error!("{error:#}; requests over the network are not served now");
                        self.address = None;
                    }
                })
            }
        }
    }

    /// Nobody listens on the network once this returns, if the thread does its part at all.
    fn close_network(&self) {
        let (closed, is_closed) = std::sync::mpsc::sync_channel(1);
        self.send(ListenerChange::Close(closed));
        let _ = is_closed.recv_timeout(AT_ONCE);
    }

    /// The same for settings that are read at once.
    #[cfg(test)]
    pub(crate) fn reload(&mut self, settings: &DaemonSettings) -> Result<()> {
        self.adopt(prepare(settings)?)
    }

    fn send(&self, change: ListenerChange) {
        if let Some(changes) = &self.changes {
            let _ = changes.send(change); // the thread ends with us alone
        }
    }

    /// Begins to end: answers that have begun have most of a second.
    pub(crate) fn end(&mut self) {
        drop(self.changes.take());
    }

    /// Waits until it has ended, but no longer than `until`. The socket is removed.
    pub(crate) fn join(mut self, until: Instant) {
        self.end();
        if let Some(thread) = self.thread.take() {
            while !thread.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
