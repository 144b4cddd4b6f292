//! Debug files fetched by build id from debuginfod servers, on request.
//!
//! Servers are queried after a run or a window, for objects without debug information on this machine. Its
//! time and its bytes are bounded; a server that does not answer is left alone for some minutes; and no
//! failure is more than a note.

mod cache;
mod settings;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustc_hash::FxHashMap;

use self::cache::{Cache, CachedFile};
pub(crate) use self::settings::DebuginfodSettings;

/// What its notes begin with.
pub(crate) const NOTE: &str = "debuginfod: ";
/// For a connection to be made.
const CONNECT: Duration = Duration::from_secs(10);
const MOST_REDIRECTS: u32 = 5;
/// A build id is a hash; the longest have 64 bytes.
const LONGEST_BUILD_ID: usize = 128;
const CHUNK: usize = 64 << 10;
/// More would not be read.
const MOST_NOTES: usize = 5;
/// How often the cache is cleaned (elfutils' `cache_clean_interval_s`).
const CLEAN_EVERY: Duration = Duration::from_secs(86_400);
/// A server that does not work is not asked for so long.
const REST: Duration = Duration::from_secs(600);

/// The servers, for run after run. Clones are the same.
#[derive(Clone)]
pub(crate) struct Servers(Arc<SharedDebuginfod>);

struct SharedDebuginfod {
    settings: DebuginfodSettings,
    agent: ureq::Agent,
    /// Those that do not work, by their place among the settings: until when they are left alone, and what was wrong.
    resting: Mutex<FxHashMap<usize, (Instant, String)>>,
    /// When unused files were last removed from the cache.
    cleaned: Mutex<Option<Instant>>,
}

/// What a run may still ask of the servers.
pub(crate) struct Debuginfod {
    servers: Servers,
    state: Mutex<FetchState>,
}

#[derive(Default)]
struct FetchState {
    /// Servers that are not asked any more, by their place among the settings.
    gone: Vec<usize>,
    spent: Duration,
    fetched: u32,
    bytes: u64,
    /// Objects whose debug files no server has.
    nowhere: u32,
    notes: Vec<String>,
}

/// Why a server gave no file.
enum Miss {
    /// It has none.
    NotThere,
    /// What it has is a file of another build.
    OtherBuild(String),
    /// It has one that is larger than what is fetched.
    TooLarge(String),
    /// The cache does not take it.
    NotKept(String),
    /// It does not work.
    Broken(String),
    /// This run had no time for it, or not enough.
    Late(String),
}

impl Servers {
    /// Knows the servers; nothing is asked yet.
    pub(crate) fn new(settings: DebuginfodSettings) -> Self {
        let agent = ureq::Agent::config_builder()
            .timeout_connect(Some(CONNECT.min(settings.answer)))
            .timeout_recv_response(Some(settings.answer))
            .max_redirects(MOST_REDIRECTS)
            .http_status_as_error(false)
            .proxy(settings.proxy.clone())
            .user_agent(concat!("sweetspot/", env!("CARGO_PKG_VERSION")))
            .build();
        let (agent, resting, cleaned) = (agent.into(), Mutex::default(), Mutex::default());
        Self(Arc::new(SharedDebuginfod { settings, agent, resting, cleaned }))
    }

    fn settings(&self) -> &DebuginfodSettings {
        &self.0.settings
    }

    /// Why a server is left alone at this moment.
    fn why_resting(&self, server: usize, now: Instant) -> Option<String> {
        let mut resting = self.resting();
        resting.retain(|_, (until, _)| now < *until);
        resting.get(&server).map(|(_, why)| why.clone())
    }

    /// Removes unused files from the cache, once a day.
    fn clean(&self, cache: &Cache, now: Instant) {
        let mut cleaned = self.0.cleaned.lock().unwrap_or_else(PoisonError::into_inner);
        if cleaned.is_none_or(|last| now.duration_since(last) >= CLEAN_EVERY) {
            *cleaned = Some(now);
            cache.remove_unused(SystemTime::now());
        }
    }

    fn rest(&self, server: usize, now: Instant, why: String) {
        self.resting().insert(server, (now + REST, why));
    }

    fn resting(&self) -> MutexGuard<'_, FxHashMap<usize, (Instant, String)>> {
        self.0.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Debuginfod {
    /// For another run.
    pub(crate) fn new(servers: &Servers) -> Self {
        Self { servers: servers.clone(), state: Mutex::default() }
    }

    /// The debug file of a build, from the cache or else from a server.
    pub(crate) fn debug_file(&self, build_id: &str) -> Option<File> {
        // It becomes part of a path and of an address.
        let is_id = build_id.len() <= LONGEST_BUILD_ID && build_id.bytes().all(|b| b.is_ascii_hexdigit());
        if !is_id || build_id.is_empty() {
            return None;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let settings = self.servers.settings();
        let cache = Cache::new(settings.cache.clone());
        match cache.find(build_id) {
            CachedFile::File(file) => return Some(file),
            CachedFile::Nowhere => {
                state.nowhere += 1;
                return None;
            }
            CachedFile::Nothing => {}
        }
        self.servers.clean(&cache, Instant::now());
        let mut is_nowhere = true;
        for server in 0..settings.servers.len() {
            let began = Instant::now();
            if let Some(why) = self.servers.why_resting(server, began) {
                state.note(why);
                is_nowhere = false;
                continue;
            }
            if state.gone.contains(&server) {
                is_nowhere = false;
                continue;
            }
            let left = settings.run.saturating_sub(state.spent).min(settings.file);
            let fetched = self.fetch(server, build_id, &cache, left);
            state.spent += began.elapsed();
            match fetched {
                Ok(bytes) => {
                    state.fetched += 1;
                    state.bytes += bytes;
                    return File::open(cache.path(build_id)).ok();
                }
                Err(Miss::NotThere) => {}
                Err(Miss::OtherBuild(why)) => state.note(why),
                Err(Miss::TooLarge(why)) => {
                    is_nowhere = false;
                    state.note(why);
                }
                // Nor would it take it from another server.
                Err(Miss::NotKept(why)) => {
                    state.note(why);
                    return None;
                }
                Err(Miss::Broken(why)) => {
                    is_nowhere = false;
                    self.servers.rest(server, Instant::now(), why.clone());
                    state.note(why);
                }
                Err(Miss::Late(why)) => {
                    is_nowhere = false;
                    state.gone.push(server);
                    state.note(why);
                }
            }
        }
        if is_nowhere {
            state.nowhere += 1;
            let _ = cache.note_miss(build_id); // it will be asked for again, no more
        }
        None
    }

    /// What the person should know: what was fetched, and what went wrong.
    pub(crate) fn notes(&self) -> Vec<String> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut notes = state.notes.clone();
        if state.fetched > 0 {
            let megabytes = state.bytes as f64 * 1e-6;
            notes.push(format!("{NOTE}{} debug files fetched, {megabytes:.1} MB", state.fetched));
        }
        if state.nowhere > 0 {
            let objects = if state.nowhere == 1 { "object" } else { "objects" };
            notes.push(format!("{NOTE}no server has the debug file of {} {objects}", state.nowhere));
        }
        notes
    }

    /// Fetches a file into the cache; how many bytes it has.
    fn fetch(&self, server: usize, build_id: &str, cache: &Cache, left: Duration) -> Result<u64, Miss> {
        let settings = self.servers.settings();
        let server = &settings.servers[server];
        let broken = |why: &dyn std::fmt::Display| Miss::Broken(format!("{NOTE}{server}: {why}"));
        if left.is_zero() {
            return Err(Miss::Late(format!("{NOTE}the time for a run is used up")));
        }
        let request = self.servers.0.agent.get(format!("{server}/buildid/{build_id}/debuginfo"));
        let request = request.config().timeout_global(Some(left)).build();
        let response = request.call().map_err(|error| match error {
            // It had less time than a file may take, and works as far as is known.
            ureq::Error::Timeout(ureq::Timeout::Global) if left < settings.file => {
                Miss::Late(format!("{NOTE}{server} had not answered when the time for a run was used up"))
            }
            error => broken(&error),
        })?;
        match response.status().as_u16() {
            200 => {}
            404 => return Err(Miss::NotThere),
            status => return Err(broken(&format_args!("it answers with status {status}"))),
        }
        let too_large = || {
            let most = settings.bytes;
            Miss::TooLarge(format!("{NOTE}{server}: a file of more than {most} bytes"))
        };
        if response.body().content_length().is_some_and(|bytes| bytes > settings.bytes) {
            return Err(too_large());
        }
        let local = |error: io::Error| {
            let folder = settings.cache.display();
            let advice = "free space there, or set DEBUGINFOD_CACHE_PATH to another folder";
            Miss::NotKept(format!("{NOTE}{folder} cannot be written ({error}); {advice}"))
        };
        let mut aside = cache.begin(build_id).map_err(local)?;
        let mut body = response.into_body().into_reader();
        let mut chunk = vec![0; CHUNK];
        let mut bytes = 0;
        loop {
            // It has the file, and may have time for others.
            let read = body.read(&mut chunk);
            let read = read.map_err(|error| Miss::Late(format!("{NOTE}{server}: {error}")))?;
            bytes += read as u64;
            if bytes > settings.bytes {
                return Err(too_large());
            }
            if read == 0 {
                break;
            }
            aside.write_all(&chunk[..read]).map_err(local)?;
        }
        if !is_of_build(&aside.reopen().map_err(local)?, build_id) {
            return Err(Miss::OtherBuild(format!("{NOTE}{server}: a file of another build")));
        }
        aside.commit().map_err(local)?;
        Ok(bytes)
    }
}

impl FetchState {
    fn note(&mut self, note: String) {
        if self.notes.len() < MOST_NOTES && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

/// Whether an object says that it is of this build.
fn is_of_build(object: &File, build_id: &str) -> bool {
    symbolizer::build_id(object).is_some_and(|found| found == build_id)
}
