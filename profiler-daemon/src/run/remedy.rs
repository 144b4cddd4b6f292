//! Why an address has no name, and what would give it one. This is decided where the reason is known and stored
//! in the profile, so that a report needs no access to the machine.

use profiler_core::profile::Unknown;
use symbolizer::Reason;

use crate::objects::Missing;
use crate::symbol_process::ObjectFacts;

/// Where distributions install their packages.
const PACKAGED: [&str; 3] = ["/usr/", "/lib", "/opt/"];

/// How to make a run-time compiler report its names: the start of a process' name, and the advice.
const RUNTIMES: [(&str, &str); 5] = [
    ("node", "run node with --perf-basic-prof"),
    ("python", "run python (3.12 or later) with -X perf"),
    ("java", "have the JVM write a perf map (`jcmd PID Compiler.perfmap`)"),
    ("dotnet", "set DOTNET_PerfMapEnabled=1"),
    ("ruby", "run ruby with --yjit-perf"),
];

fn unknown(reason: impl ToString, remedy: impl Into<String>) -> Unknown {
    Unknown { reason: reason.to_string(), remedy: remedy.into() }
}

/// For an address in an object that could be read. `path` is the object's; `asks_servers`: debug files were also
/// requested from servers.
pub(super) fn nameless(reason: &Reason, facts: &ObjectFacts, path: &str, asks_servers: bool) -> Unknown {
    match reason {
        Reason::Stripped | Reason::NoSymbol => {
            stripped(reason, &Sought { asks_servers, ..Sought::of(facts) }, path)
        }
        _ => unreadable(reason),
    }
}

/// The debug file that could name an object's addresses.
struct Sought<'a> {
    build_id: Option<&'a str>,
    debug_link: Option<&'a str>,
    /// The build of a debug file that was found but does not match.
    other_build: Option<String>,
    /// Servers were asked for it.
    asks_servers: bool,
}

impl<'a> Sought<'a> {
    fn of(facts: &'a ObjectFacts) -> Self {
        let other_build = facts.warnings.iter().find(|reason| matches!(reason, Reason::OtherBuild(_)));
        Self {
            build_id: facts.build_id.as_deref(),
            debug_link: facts.debug_link.as_deref(),
            other_build: other_build.map(Reason::to_string),
            asks_servers: false,
        }
    }
}

fn stripped(reason: &Reason, sought: &Sought<'_>, path: &str) -> Unknown {
    let mut why = reason.to_string();
    if let Some(other) = &sought.other_build {
        why = format!("{why}, and {other}");
    } else if let Some(link) = sought.debug_link {
        why = format!("{why}, and its debug file {link} is missing");
    }
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let by_id = sought.build_id.and_then(build_id_path);
    let place = match (by_id, sought.debug_link) {
        (Some(file), _) => file,
        (None, Some(link)) => format!("{folder}/.debug/{link}"),
        (None, None) if *reason == Reason::NoSymbol => return unknown(why, ""),
        (None, None) => {
            return unknown(why, "it has no build id and no debug link: profile a build with its symbols");
        }
    };
    let packaged = PACKAGED.iter().any(|folder| path.starts_with(folder));
    let mut remedy = if packaged {
        format!("install the package with the debug symbols of {path}, which brings {place}")
    } else {
        format!("profile a build with its symbols, or put its debug file at {place}")
    };
    if sought.build_id.is_some() && !sought.asks_servers {
        remedy.push_str(", or fetch it from servers (--debuginfod)");
    }
    unknown(why, remedy)
}

/// Where the debug file of a build lies.
fn build_id_path(id: &str) -> Option<String> {
    let (start, rest) = id.split_at_checked(2).filter(|(_, rest)| !rest.is_empty())?;
    Some(format!("/usr/lib/debug/.build-id/{start}/{rest}.debug"))
}

/// For any address in an object that cannot be read, or only in part.
pub(super) fn unreadable(reason: &Reason) -> Unknown {
    let remedy = match reason {
        Reason::Unreadable(_) => "profile as a user who may read it",
        Reason::OtherElf => "32-bit programs are not read: profile a 64-bit build",
        Reason::NotElf => "",
        Reason::CorruptElf(_) | Reason::CorruptDebugInfo => "reinstall or rebuild it",
        Reason::TooLarge { .. } => RAISE,
        _ => "profile a build with less debug information (-g1)",
    };
    unknown(reason, remedy)
}

/// For any address in a file that crashed the symbolizer process, even with only its symbol table; `how` describes the
/// crash.
pub(super) fn given_up(how: &str) -> Unknown {
    unknown(
        format!("the file could not be read: the symbolizer process gave it up ({how})"),
        "reinstall or rebuild it",
    )
}

/// For any address in a file that was read while the symbolizer process was not available.
pub(super) fn no_process(why: &str) -> Unknown {
    unknown(
        format!("the file could not be read: there was no symbolizer process ({why})"),
        "it is tried again later",
    )
}

/// How to make room for a larger table.
const RAISE: &str = "raise --symbol-memory, or profile a build with less debug information (-g1)";

/// Of an address whose name was found and could not be kept.
pub(super) fn no_room() -> Unknown {
    unknown("there was no room left for its name", RAISE)
}

/// For an address that was not looked up before the profiler ended.
pub(super) fn no_time() -> Unknown {
    unknown("the profiler was stopped before its name was looked for", "stop it less often, or give it time")
}

/// For any address in a file that did not exist.
pub(super) fn missing(missing: &Missing) -> Unknown {
    let remedy = match missing {
        Missing::Deleted => {
            "profile while the file is there, or with CAP_CHECKPOINT_RESTORE (as root): the kernel then hands out libraries, too"
        }
        Missing::Replaced | Missing::Overwritten => {
            "start the program again, so that it runs the file that is there"
        }
        Missing::Lost => "leave the files in place until the profile is written",
        Missing::OtherMachine => "profile on the machine that the file was made for",
        Missing::NoAnswer(_) => {
            "mount it again or unmount it (its number is in /proc/PID/mountinfo of the program); a file that answers later is read then"
        }
        Missing::NotOpened(_) => "profile as a user who may read it",
        Missing::NoVdso | Missing::Restarted => "",
    };
    unknown(missing, remedy)
}

/// For generated code, in a process of this name.
pub(super) fn generated(reason: &str, program: Option<&str>) -> Unknown {
    let known = program.and_then(|program| RUNTIMES.iter().find(|(name, _)| program.starts_with(name)));
    let usual = "have whatever wrote the code at run time write a perf map (/tmp/perf-PID.map)";
    unknown(reason, known.map_or(usual, |(_, remedy)| remedy))
}

/// Of any address of the kernel.
pub(super) fn kernel(reason: &Reason) -> Unknown {
    let remedy = match reason {
        Reason::KernelHidden => "profile with CAP_SYSLOG (as root), or `sudo sysctl kernel.kptr_restrict=0`",
        _ => "a kernel with CONFIG_KALLSYMS lists its functions in /proc/kallsyms",
    };
    unknown(reason, remedy)
}

/// Of an address of the kernel that is looked up with the next ones.
pub(super) fn later() -> Unknown {
    unknown("the kernel's list of functions is not read for each window", "")
}

/// Of an address that the kernel's list does not cover.
pub(super) fn unlisted() -> Unknown {
    unknown("no kernel symbol covers it", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sought<'a>(build_id: Option<&'a str>, debug_link: Option<&'a str>) -> Sought<'a> {
        Sought { build_id, debug_link, other_build: None, asks_servers: false }
    }

    #[test]
    fn a_stripped_object_says_where_its_debug_file_belongs() {
        let with_id = stripped(&Reason::Stripped, &sought(Some("abcdef"), None), "/usr/lib/libc.so.6");
        assert!(with_id.remedy.contains("install the package with the debug symbols of /usr/lib/libc.so.6"));
        assert!(with_id.remedy.contains("/usr/lib/debug/.build-id/ab/cdef.debug"), "{with_id:?}");
        assert!(with_id.remedy.ends_with("(--debuginfod)"));
        let asked = Sought { asks_servers: true, ..sought(Some("abcdef"), None) };
        assert!(!stripped(&Reason::Stripped, &asked, "/a").remedy.contains("--debuginfod"));
        let linked = stripped(&Reason::Stripped, &sought(None, Some("a.debug")), "/home/me/a");
        assert!(linked.reason.contains("its debug file a.debug is missing"));
        assert!(linked.remedy.ends_with("put its debug file at /home/me/.debug/a.debug"), "{linked:?}");
        let neither = stripped(&Reason::Stripped, &sought(None, None), "/home/me/a");
        assert!(neither.remedy.contains("no build id"));
        let other =
            Sought { other_build: Some("X belongs to another build".into()), ..sought(None, Some("X")) };
        assert!(stripped(&Reason::Stripped, &other, "/a").reason.ends_with("and X belongs to another build"));
        assert_eq!(stripped(&Reason::NoSymbol, &sought(None, None), "/a").remedy, "");
    }

    #[test]
    fn a_runtime_is_told_its_option() {
        let remedy = |program| generated("no list", Some(program)).remedy;
        assert_eq!(remedy("node"), "run node with --perf-basic-prof");
        assert!(remedy("python3.12").ends_with("-X perf"));
        assert!(remedy("server").contains("/tmp/perf-PID.map"));
    }

    #[test]
    fn what_is_hidden_or_gone_says_what_opens_it() {
        assert!(kernel(&Reason::KernelHidden).remedy.contains("kernel.kptr_restrict"));
        assert!(missing(&Missing::Deleted).remedy.contains("while the file is there"));
        assert!(unreadable(&Reason::Unreadable("no".into())).remedy.contains("may read"));
    }
}
