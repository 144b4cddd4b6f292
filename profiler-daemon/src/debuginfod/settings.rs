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
pub(crate) struct DebuginfodSettings {
    /// The servers, asked in turn. `DEBUGINFOD_URLS`, separated by white space.
    pub(super) servers: Vec<String>,
    /// Where they are kept. `DEBUGINFOD_CACHE_PATH`, else `debuginfod_client` in the user's cache.
    pub(super) cache: PathBuf,
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

/// Why nothing can be fetched as the environment has it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unusable {
    /// Nobody to ask.
    #[error(
        "--debuginfod needs servers; name some, such as DEBUGINFOD_URLS=https://debuginfod.elfutils.org/"
    )]
    NoServer,
    /// A word that is no address.
    #[error(
        "DEBUGINFOD_URLS has `{0}` in it; give http or https addresses, such as https://debuginfod.elfutils.org/"
    )]
    Server(String),
    /// A limit that is no number.
    #[error("{name}={value} is not understood; give a whole number of {unit}")]
    Limit {
        /// Of the variable.
        name: &'static str,
        /// What it says.
        value: String,
        /// What it counts.
        unit: &'static str,
    },
    /// Nowhere to keep a file.
    #[error(
        "--debuginfod needs a folder for what it fetches; set DEBUGINFOD_CACHE_PATH or HOME to a full path"
    )]
    NoFolder,
}

impl DebuginfodSettings {
    /// As the environment has it.
    ///
    /// # Errors
    ///
    /// What in it cannot be used.
    pub(crate) fn from_env() -> Result<Self, Unusable> {
        Self::read(|name| std::env::var(name).ok())
    }

    /// These servers, and all else as the environment has it or by default. `None` if there is no folder to keep files in.
    pub(crate) fn of_servers(servers: &[String]) -> Option<Self> {
        let servers = servers.join(" ");
        let variable = |name: &str| match name {
            "DEBUGINFOD_URLS" => Some(servers.clone()),
            _ => std::env::var(name).ok(),
        };
        Self::read(variable).ok()
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Unusable> {
        let servers = servers(&variable("DEBUGINFOD_URLS").unwrap_or_default())?;
        // Zero asks for no limit; ours stay.
        let number = |name, unit| match variable(name).map(|value| value.trim().to_owned()) {
            Some(value) if !value.is_empty() => {
                let parsed = value.parse::<u64>();
                let number = parsed.map_err(|_| Unusable::Limit { name, value, unit })?;
                Ok(Some(number).filter(|&number| number > 0))
            }
            _ => Ok(None),
        };
        let seconds = |name| Ok(number(name, "seconds")?.map(Duration::from_secs));
        let file = seconds("DEBUGINFOD_MAXTIME")?.unwrap_or(MOST_TIME).min(MOST_TIME);
        Ok(Self {
            servers,
            cache: cache(&variable).ok_or(Unusable::NoFolder)?,
            answer: seconds("DEBUGINFOD_TIMEOUT")?.unwrap_or(TIMEOUT).min(file),
            file,
            run: MOST_TIME,
            bytes: number("DEBUGINFOD_MAXSIZE", "bytes")?.unwrap_or(MOST_BYTES).min(MOST_BYTES),
            proxy: ureq::Proxy::try_from_env(),
        })
    }
}

/// Between the addresses there may be words on how signatures are checked (`ima:enforcing`).
fn servers(urls: &str) -> Result<Vec<String>, Unusable> {
    let words = urls.split_whitespace().filter(|word| !word.starts_with("ima:"));
    let servers: Vec<String> = words.map(|word| word.trim_end_matches('/').to_owned()).collect();
    let has_host = |server: &str| {
        let rest = server.strip_prefix("http://").or_else(|| server.strip_prefix("https://"));
        rest.is_some_and(|rest| !rest.is_empty())
    };
    if let Some(other) = servers.iter().find(|server| !has_host(server)) {
        return Err(Unusable::Server(other.clone()));
    }
    if servers.is_empty() { Err(Unusable::NoServer) } else { Ok(servers) }
}

fn cache(variable: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let own = || absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    absolute("DEBUGINFOD_CACHE_PATH").or_else(|| Some(own()?.join("debuginfod_client")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<DebuginfodSettings, Unusable> {
        DebuginfodSettings::read(|name| {
            variables.iter().find(|(each, _)| *each == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn without_servers_there_is_nothing_to_ask() {
        assert_eq!(read(&[]).unwrap_err(), Unusable::NoServer);
        assert_eq!(read(&[("DEBUGINFOD_URLS", " \n")]).unwrap_err(), Unusable::NoServer);
    }

    #[test]
    fn what_is_not_understood_is_told_before_a_run() {
        for urls in ["not a server", "ftp://one.example", "https://", "https://one.example two.example"] {
            let said = read(&[("DEBUGINFOD_URLS", urls), ("HOME", "/h")]).unwrap_err();
            assert!(matches!(said, Unusable::Server(_)), "{urls}: {said}");
        }
        for name in ["DEBUGINFOD_TIMEOUT", "DEBUGINFOD_MAXTIME", "DEBUGINFOD_MAXSIZE"] {
            for value in ["abc", "-3", "1.5", "10k"] {
                let said =
                    read(&[("DEBUGINFOD_URLS", "http://a"), ("HOME", "/h"), (name, value)]).unwrap_err();
                assert!(said.to_string().starts_with(&format!("{name}={value}")), "{said}");
            }
            assert!(read(&[("DEBUGINFOD_URLS", "http://a"), ("HOME", "/h"), (name, " ")]).is_ok());
        }
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
        assert_eq!(settings.cache.to_str(), Some("/home/u/.cache/debuginfod_client"));
        assert_eq!((settings.answer.as_secs(), settings.file.as_secs(), settings.bytes), (5, 7, 1000));
    }

    #[test]
    fn the_cache_is_where_it_is_said_to_be() {
        let urls = ("DEBUGINFOD_URLS", "http://a");
        let cache = |more: &[_]| read(&[&[urls][..], more].concat()).map(|settings| settings.cache);
        assert_eq!(cache(&[]), Err(Unusable::NoFolder));
        let xdg = ("XDG_CACHE_HOME", "/c");
        assert_eq!(cache(&[xdg]), Ok("/c/debuginfod_client".into()));
        assert_eq!(cache(&[xdg, ("DEBUGINFOD_CACHE_PATH", "/d")]), Ok("/d".into()));
        assert_eq!(cache(&[xdg, ("DEBUGINFOD_CACHE_PATH", "d")]), Ok("/c/debuginfod_client".into()));
    }

    #[test]
    fn no_limit_is_ours() {
        let variables = [("DEBUGINFOD_URLS", "http://a"), ("HOME", "/h"), ("DEBUGINFOD_MAXTIME", "0")];
        let settings = read(&variables).unwrap();
        assert_eq!((settings.file, settings.bytes), (MOST_TIME, MOST_BYTES));
    }
}
