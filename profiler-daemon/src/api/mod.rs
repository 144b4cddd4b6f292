//! The daemon's interface: HTTP on a Unix socket and, if the settings want it, on the network.
//!
//! **It never delays a sample.** Everything here runs on a thread of its own and asks the loop through a bounded queue;
//! profiles are read from the store's folder past it, on threads of which there are few.
//!
//! **Profiles are secrets.** Only `/healthz` and `/readyz` answer without a right to ask: on the socket that is its mode and
//! the peer's groups, on the network a token. Pages of a browser are refused everywhere, by `Origin` and by the name that
//! they ask for (`guard`).
//!
//! **Nothing a client does costs more than its share** (`bounds`, `serve`): heads, bodies, connections, requests at a time,
//! ranges, and the time for each of them are bounded; who leaves is forgotten.
//!
//! **One table** (`routes`) makes the router, reads the parameters and writes the OpenAPI document.

mod answers;
mod bounds;
mod guard;
mod listen;
mod metrics;
mod observe;
mod openapi;
mod params;
mod problem;
mod routes;
mod serve;
#[cfg(test)]
mod tests;

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;

use anyhow::{Result, anyhow};
use config::DaemonSettings;
use tokio::sync::{Semaphore, mpsc};

pub(crate) use answers::attach::{Attach, Named};

use crate::daemon::ask::Asker;
use bounds::Bounds;
use listen::socket::{self, Place};
use listen::{Rules, tcp};
use observe::Counters;
use serve::Change;

/// What every request may look at.
struct Api {
    asker: Asker,
    bounds: Bounds,
    counters: Counters,
    force: RwLock<Arc<Force>>,
    renderings: Arc<Semaphore>,
}

/// What the settings say, replaced as a whole.
struct Force {
    settings: DaemonSettings,
    rules: Rules,
    requests: Arc<Semaphore>,
}

impl Api {
    fn force(&self) -> Arc<Force> {
        Arc::clone(&self.force.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Force {
    fn new(settings: &DaemonSettings) -> Result<Self> {
        let requests = Arc::new(Semaphore::new(settings.limits.requests as usize));
        Ok(Self { settings: settings.clone(), rules: Rules::read(&settings.listen)?, requests })
    }
}

/// The interface while it is there. Dropped, it ends.
pub(crate) struct Server {
    api: Arc<Api>,
    place: Place,
    address: Option<SocketAddr>,
    changes: Option<mpsc::UnboundedSender<Change>>,
    thread: Option<JoinHandle<()>>,
}

/// Begins to answer.
///
/// # Errors
///
/// What of the settings cannot be carried out, and what to do; nothing is left of it then.
pub(crate) fn start(settings: &DaemonSettings, asker: Asker) -> Result<Server> {
    start_within(settings, asker, Bounds::default())
}

fn start_within(settings: &DaemonSettings, asker: Asker, bounds: Bounds) -> Result<Server> {
    let force = Force::new(settings)?;
    let network = settings.listen.tcp.map(tcp).transpose()?;
    let (unix, place) = socket::listen(&settings.listen.socket, &force.rules.peers)?;
    let api = Arc::new(Api {
        asker,
        bounds,
        counters: Counters::default(),
        force: RwLock::new(Arc::new(force)),
        renderings: Arc::new(Semaphore::new(bounds.renderings)),
    });
    let (changes, changed) = mpsc::unbounded_channel();
    let address = address_of(network.as_ref());
    let _ = changes.send(Change::Unix(unix));
    let _ = changes.send(Change::Tcp(network));
    let thread = spawn(Arc::clone(&api), changed)?;
    Ok(Server { api, place, address, changes: Some(changes), thread: Some(thread) })
}

fn address_of(network: Option<&TcpListener>) -> Option<SocketAddr> {
    network.and_then(|listener| listener.local_addr().ok())
}

fn spawn(api: Arc<Api>, changes: mpsc::UnboundedReceiver<Change>) -> Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(api.bounds.renderings + 1)
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

    /// Where it listens on the network: with the port that the system chose, if the settings leave that to it.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Takes new settings: tokens and certificates are read again, and listeners replaced where they changed. Requests that
    /// have begun go on.
    ///
    /// # Errors
    ///
    /// What cannot be carried out; everything is as it was then.
    pub(crate) fn reload(&mut self, settings: &DaemonSettings) -> Result<()> {
        let old = self.api.force();
        let new = Force::new(settings)?;
        let network = match settings.listen.tcp {
            same if same == old.settings.listen.tcp => None,
            address => Some(address.map(tcp).transpose()?),
        };
        let socket = if settings.listen.socket == self.place.path() {
            self.place.set_rights(&new.rules.peers)?;
            None
        } else {
            Some(socket::listen(&settings.listen.socket, &new.rules.peers)?)
        };
        *self.api.force.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
        if let Some((listener, place)) = socket {
            self.send(Change::Unix(listener));
            self.place = place;
        }
        if let Some(listener) = network {
            self.address = address_of(listener.as_ref());
            self.send(Change::Tcp(listener));
        }
        Ok(())
    }

    fn send(&self, change: Change) {
        if let Some(changes) = &self.changes {
            let _ = changes.send(change); // the thread ends with us alone
        }
    }

    /// Ends within a second: answers that have begun have most of it, and the socket is removed.
    pub(crate) fn stop(self) {}
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.changes.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
