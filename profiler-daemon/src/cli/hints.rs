//! What to type instead, for those who come from perf, samply, py-spy or strace.

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Flags of other profilers: the commands that they were typed for (any, if none is named), and what to type.
const FLAGS: &[(&[&str], &[&str], &str)] = &[
    (&["-p", "--pid"], &["attach"], "give the process id without -p: `sweetspot attach PID`"),
    (&["-p", "--pid"], &["top"], "give the process id without -p: `sweetspot top PID`"),
    (&["-p", "--pid"], &["record"], "to profile a running process, type `sweetspot attach PID`"),
    (&["-p", "--pid"], &["report"], "give the profile's file: `sweetspot report FILE`"),
    (
        &["-t", "--tid"],
        &["record", "attach"],
        "threads are profiled with their process: `sweetspot attach PID`",
    ),
    (
        &["-F", "--freq", "--frequency", "-r", "-c", "--count", "--hz"],
        &["record", "attach", "top"],
        "the rate is chosen for you; `--rate 99` fixes it",
    ),
    (
        &["-g", "--call-graph"],
        &["record", "attach", "top"],
        "stacks are always recorded: leave it out (`--unwind dwarf` or `fp` says how)",
    ),
    (
        &["-a", "--all-cpus"],
        &["record", "attach"],
        "to profile the whole machine, type `sweetspot attach --all`",
    ),
    (&["-a", "--all-cpus", "--all"], &["top"], "leave it out: `sweetspot top` shows the whole machine"),
    (&["-d"], &["attach"], "type `--duration 10s`"),
    (&["-d", "--delay"], &["top"], "type `--every 2s`"),
    (&["-n"], &["top"], "type `--duration 10s`"),
    (&["-t", "--tid"], &["top"], "threads are shown with their process: `sweetspot top PID`"),
    (&["-o", "--output"], &["top"], "to write a profile, type `sweetspot attach PID -o FILE.pb.gz`"),
    (
        &["-d", "--duration"],
        &["record"],
        "a command is profiled until it exits; `sweetspot attach PID --duration 10s` stops earlier",
    ),
    (&["-n"], &["attach"], "type `--name REGEX`"),
    (&["-u", "--uid"], &["attach", "top"], "type `--name REGEX`, `--unit NAME` or process ids"),
    (&["-G"], &["attach", "top"], "type `--cgroup PATH`"),
    (&["-e", "--event"], &["record", "attach", "top"], "sweetspot samples CPU time: leave it out"),
    (&["-f", "--format"], &["record", "attach"], "the ending of the file picks the format: `-o FILE.svg`"),
    (
        &["--save-only", "-s", "--subprocesses", "--native", "-n"],
        &["record"],
        "leave it out: child processes and native code are always profiled",
    ),
    (&["-i", "--input"], &["report"], "give the file alone: `sweetspot report FILE.pb.gz`"),
];

/// Subcommands of other profilers.
const COMMANDS: &[(&[&str], &str)] = &[
    (&["stat"], "type `sweetspot record -- COMMAND`, which also prints totals"),
    (
        &["load", "view", "script", "annotate", "import"],
        "to print a profile, type `sweetspot report FILE.pb.gz`",
    ),
    (&["dump"], "type `sweetspot attach PID --duration 1s -o FILE.folded`"),
    (&["run", "exec", "trace"], "to profile a command, type `sweetspot record -- COMMAND`"),
];

/// What may be typed where a command lacks what it is about; the parser names one of several ways only.
const MISSING: &[(&str, &str)] = &[
    ("record", "the command comes after `--`: `sweetspot record -- COMMAND`"),
    (
        "attach",
        "name what to profile: `sweetspot attach PID`, or by `--name`, `--cgroup` or `--unit`, or everything by `--all`",
    ),
    (
        "plan",
        "predict for a process, `sweetspot plan --pid PID`, or for a function, `sweetspot plan --horizon 60s --share 10% --overhead 15us`",
    ),
    (
        "report",
        "give a file, `sweetspot report FILE`, or a time range of the daemon's store, `sweetspot report --from -1h`",
    ),
];

/// What to type instead of `words`, which the command line's parser has refused.
pub(crate) fn hint(words: &[String], refused: &clap::Error) -> Option<String> {
    let command = words.get(1)?.as_str();
    match refused.kind() {
        ErrorKind::UnknownArgument => {
            let argument = context(refused, ContextKind::InvalidArg)?;
            let flag = argument.split('=').next().unwrap_or(argument);
            match (command, flag.starts_with('-')) {
                ("record", false) => behind_dashes(words, argument),
                (_, true) => {
                    negative_value(words, flag).or_else(|| for_flag(command, flag).map(str::to_owned))
                }
                _ => None,
            }
        }
        ErrorKind::InvalidSubcommand => for_command(context(refused, ContextKind::InvalidSubcommand)?, words),
        ErrorKind::ValueValidation if ["attach", "top"].contains(&command) => {
            let is_pid = context(refused, ContextKind::InvalidArg)?.contains("PID");
            is_pid.then(|| for_pid(command, context(refused, ContextKind::InvalidValue).unwrap_or_default()))
        }
        ErrorKind::MissingRequiredArgument => {
            MISSING.iter().find(|(of, _)| *of == command).map(|(_, hint)| (*hint).to_owned())
        }
        _ => None,
    }
}

/// What is like that which was refused, if anything is, and where more is said about the command that was typed.
pub(crate) fn where_to_look(words: &[String], refused: &clap::Error) -> String {
    let kinds = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    let similar = kinds.into_iter().find_map(|kind| context(refused, kind));
    let (mut known, mut help) = (super::Cli::command(), "sweetspot".to_owned());
    for word in words.iter().skip(1) {
        let Some(next) = known.find_subcommand(word).cloned() else { break };
        help = format!("{help} {word}");
        known = next;
    }
    let similar = similar.map(|similar| format!("did you mean `{similar}`? "));
    format!("{}`{help} --help` says more", similar.unwrap_or_default())
}

fn context(refused: &clap::Error, kind: ContextKind) -> Option<&str> {
    match refused.get(kind)? {
        ContextValue::String(text) => Some(text),
        ContextValue::Strings(texts) => texts.first().map(String::as_str),
        _ => None,
    }
}

/// `record` takes its command after `--`, so that no option of the command is taken for one of ours.
fn behind_dashes(words: &[String], first: &str) -> Option<String> {
    let at = words.iter().position(|word| word == first)?;
    let (ours, command) = words.split_at(at);
    let command = command.iter().filter(|word| *word != "--");
    let all = ["sweetspot"].into_iter().chain(ours.iter().skip(1).map(String::as_str)).chain(["--"]);
    let line = all.chain(command.map(String::as_str)).map(quoted).collect::<Vec<_>>().join(" ");
    Some(format!("the command comes after `--`: `{line}`"))
}

/// No number that an option takes is negative. `flag` is all of it that the parser names.
fn negative_value(words: &[String], flag: &str) -> Option<String> {
    let is_negative = flag.as_bytes().get(1).is_some_and(u8::is_ascii_digit);
    let at = words.iter().position(|word| is_negative && word.starts_with(flag))?;
    let option = words.get(at.checked_sub(1)?).filter(|word| word.starts_with("--"))?;
    Some(format!("`{option}` takes no negative value"))
}

/// As a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+%@".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

fn for_flag(command: &str, flag: &str) -> Option<&'static str> {
    let fits = |(flags, commands, _): &&(&[&str], &[&str], &str)| {
        flags.contains(&flag) && commands.contains(&command)
    };
    FLAGS.iter().find(fits).map(|(_, _, hint)| *hint)
}

fn for_command(typed: &str, words: &[String]) -> Option<String> {
    if let Some((_, hint)) = COMMANDS.iter().find(|(names, _)| names.contains(&typed)) {
        return Some((*hint).to_owned());
    }
    if typed.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(format!("to profile a running process, type `sweetspot attach {typed}`"));
    }
    let line = words.iter().skip(1).map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
    typed.contains('/').then(|| format!("to profile a command, type `sweetspot record -- {line}`"))
}

fn for_pid(command: &str, typed: &str) -> String {
    let ids: Vec<&str> = typed.split([',', ' ']).filter(|id| !id.is_empty()).collect();
    let are_ids = !ids.is_empty() && ids.iter().all(|id| id.parse::<u32>().is_ok());
    match are_ids {
        true => format!("put spaces between process ids: `sweetspot {command} {}`", ids.join(" ")),
        false => format!("give process ids, or a name by `sweetspot {command} --name {}`", quoted(typed)),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::Cli;
    use super::*;

    fn hinted(line: &str) -> Option<String> {
        let words: Vec<String> =
            ["sweetspot"].into_iter().chain(line.split(' ')).map(str::to_owned).collect();
        hint(&words, &Cli::try_parse_from(&words).unwrap_err())
    }

    #[test]
    fn a_command_without_dashes_is_repeated_with_them() {
        let line = |line: &str| hinted(line).unwrap();
        assert!(line("record ./prog --port 1").ends_with("`sweetspot record -- ./prog --port 1`"));
        assert!(line("record --rate 99 ls -l").ends_with("`sweetspot record --rate 99 -- ls -l`"));
        assert!(line("record -o a.svg sh -c a;b").ends_with("`sweetspot record -o a.svg -- sh -c 'a;b'`"));
        assert!(line("record ls -- -l").ends_with("`sweetspot record -- ls -l`"));
        assert!(line("record --quiet").contains("record -- COMMAND"));
        assert!(line("./prog --port 1").ends_with("`sweetspot record -- ./prog --port 1`"));
    }

    #[test]
    fn a_negative_value_is_named() {
        for (option, value) in [("--budget", "-1%"), ("--rate", "-50"), ("--horizon", "-5s")] {
            let said = hinted(&format!("record {option} {value} -- ls"));
            assert_eq!(said, Some(format!("`{option}` takes no negative value")));
        }
        assert_eq!(hinted("record -1 -- ls"), None);
    }

    #[test]
    fn what_is_mistyped_is_answered_with_what_is_like_it() {
        let answered = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            where_to_look(&words, &Cli::try_parse_from(&words).unwrap_err())
        };
        let budget = "did you mean `--budget`? `sweetspot record --help` says more";
        assert_eq!(answered("sweetspot record --bugdet 1% -- ls"), budget);
        assert_eq!(answered("sweetspot ctl status --nope"), "`sweetspot ctl status --help` says more");
        assert_eq!(answered("sweetspot recrod ls"), "did you mean `record`? `sweetspot --help` says more");
        assert_eq!(answered("sweetspot plan --cost 5us"), "`sweetspot plan --help` says more");
    }

    #[test]
    fn process_ids_are_given_one_by_one() {
        assert!(hinted("attach 1234,1235").unwrap().ends_with("`sweetspot attach 1234 1235`"));
        assert!(hinted("attach nginx").unwrap().ends_with("`sweetspot attach --name nginx`"));
        assert!(hinted("1234").unwrap().ends_with("`sweetspot attach 1234`"));
    }

    #[test]
    fn habits_of_other_profilers_are_answered() {
        let habits = [
            ("attach -p 1234", "attach PID"),
            ("attach --pid=1234", "attach PID"),
            ("record -p 1234", "attach PID"),
            ("record -F 99 -- ls", "--rate 99"),
            ("record -F99 -- ls", "--rate 99"),
            ("record -g -- ls", "leave it out"),
            ("attach -a", "attach --all"),
            ("attach 12 -d 10", "--duration 10s"),
            ("record -f speedscope -- ls", "ending of the file"),
            ("report -i perf.data", "report FILE.pb.gz"),
            ("top -p 1234", "top PID"),
            ("top -a", "leave it out"),
            ("top -d 5", "--every 2s"),
            ("top nginx", "top --name nginx"),
            ("stat ls", "record -- COMMAND"),
            ("load profile.json", "report FILE"),
        ];
        for (line, words) in habits {
            let said = hinted(line).unwrap_or_default();
            assert!(said.contains(words), "{line}: {said}");
        }
        assert_eq!(hinted("record --bugdet 1% -- ls"), None);
        assert_eq!(hinted("attach 12 --rate fast"), None);
    }

    /// What is said to be typed can be.
    #[test]
    fn what_is_to_be_typed_is_understood() {
        let texts = FLAGS.iter().map(|(_, _, hint)| *hint);
        let texts = texts.chain(COMMANDS.iter().map(|(_, hint)| *hint));
        let texts = texts.chain(MISSING.iter().map(|(_, hint)| *hint));
        let lines = texts.flat_map(|text| text.split('`').skip(1).step_by(2));
        for line in lines.filter(|line| line.starts_with("sweetspot")) {
            let line = line.replace("PID", "12").replace("COMMAND", "ls");
            assert!(Cli::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
    }
}
