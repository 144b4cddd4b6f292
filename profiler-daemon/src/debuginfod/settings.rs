//! What elfutils' variables say about debuginfod: the same ones mean the same here.

use std::path::PathBuf;
use std::time::Duration;

/// A server that has sent no answer after this time will not (elfutils' default).
const TIMEOUT: Duration = Duration::from_secs(90);
/// All files of a run together: nobody waits longer for names.
const MOST_TIME: Duration = Duration::from_secs(120);
/// One file: the largest known to us, a browser's, has 2 GB.
const MOST_BYTES: u64 = 4 << 30;

/// Where debug files are fetched from, and at what expense.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The servers, asked in turn. `DEBUGINFOD_URLS`, separated by white space.
    pub(super) servers: Vec<String>,
    /// Where they are kept. `DEBUGINFOD_CACHE_PATH`, else `debuginfod_client` in the user's cache.
    pub(super) cache: Option<PathBuf>,
    /// For a server's answer to begin. `DEBUGINFOD_TIMEOUT` (s).
    pub(super) answer: Duration,
    /// For one file. `DEBUGINFOD_MAXTIME` (s).
    pub(super) file: Duration,
    /// For all files of a run.
    pub(super) run: Duration,
    /// For one file. `DEBUGINFOD_MAXSIZE`.
    pub(super) bytes: u64,
    /// Through what the servers are reached, from the environment.
    pub(super) proxy: Option<ureq::Proxy>,
}

impl Settings {
    /// As the environment has it; none if it names no server.
    pub(crate) fn from_env() -> Option<Self> {
        Self::read(|name| std::env::var(name).ok())
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let servers = servers(&variable("DEBUGINFOD_URLS")?);
        // Zero asks for no limit; ours stay.
        let number = |name| variable(name)?.trim().parse::<u64>().ok().filter(|&number| number > 0);
        let seconds = |name| number(name).map(Duration::from_secs);
        let file = seconds("DEBUGINFOD_MAXTIME").unwrap_or(MOST_TIME).min(MOST_TIME);
        let settings = Self {
            cache: cache(&variable),
            answer: seconds("DEBUGINFOD_TIMEOUT").unwrap_or(TIMEOUT).min(file),
            file,
            run: MOST_TIME,
            bytes: number("DEBUGINFOD_MAXSIZE").unwrap_or(MOST_BYTES).min(MOST_BYTES),
            proxy: ureq::Proxy::try_from_env(),
            servers,
        };
        (!settings.servers.is_empty()).then_some(settings)
    }
}

/// Between the addresses there may be words on how signatures are checked (`ima:enforcing`).
fn servers(urls: &str) -> Vec<String> {
    let words = urls.split_whitespace().filter(|word| !word.starts_with("ima:"));
    words.map(|word| word.trim_end_matches('/').to_owned()).collect()
}

fn cache(variable: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let own = || absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    absolute("DEBUGINFOD_CACHE_PATH").or_else(|| Some(own()?.join("debuginfod_client")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Option<Settings> {
        Settings::read(|name| {
            variables.iter().find(|(each, _)| *each == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn without_servers_there_is_nothing_to_ask() {
        assert!(read(&[]).is_none());
        assert!(read(&[("DEBUGINFOD_URLS", " \n")]).is_none());
    }

    #[test]
    fn the_variables_mean_what_elfutils_documents() {
        let settings = read(&[
            ("DEBUGINFOD_URLS", "https://one.example/ ima:enforcing  http://two.example:8002"),
            ("HOME", "/home/u"),
            ("DEBUGINFOD_TIMEOUT", "5"),
            ("DEBUGINFOD_MAXTIME", "7"),
            ("DEBUGINFOD_MAXSIZE", "1000"),
        ])
        .unwrap();
        assert_eq!(settings.servers, ["https://one.example", "http://two.example:8002"]);
        assert_eq!(settings.cache.as_deref(), Some("/home/u/.cache/debuginfod_client".as_ref()));
        assert_eq!((settings.answer.as_secs(), settings.file.as_secs(), settings.bytes), (5, 7, 1000));
    }

    #[test]
    fn the_cache_is_where_it_is_said_to_be() {
        let urls = ("DEBUGINFOD_URLS", "http://a");
        let cache = |more: &[_]| read(&[&[urls][..], more].concat()).unwrap().cache;
        assert_eq!(cache(&[]), None);
        let xdg = ("XDG_CACHE_HOME", "/c");
        assert_eq!(cache(&[xdg]), Some("/c/debuginfod_client".into()));
        assert_eq!(cache(&[xdg, ("DEBUGINFOD_CACHE_PATH", "/d")]), Some("/d".into()));
        assert_eq!(cache(&[xdg, ("DEBUGINFOD_CACHE_PATH", "d")]), Some("/c/debuginfod_client".into()));
    }

    #[test]
    fn no_limit_is_ours() {
        let settings = read(&[("DEBUGINFOD_URLS", "http://a"), ("DEBUGINFOD_MAXTIME", "0")]).unwrap();
        assert_eq!((settings.file, settings.bytes), (MOST_TIME, MOST_BYTES));
    }
}
