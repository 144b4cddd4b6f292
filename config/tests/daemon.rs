//! The daemon's file: what it may say, and that all that is wrong with it is said, where it is.

use config::{DaemonSettings, Each, SettingsProblem, TargetSettings};

const SHIPPED: &str = include_str!("../../systemd/sweetspot.toml");

fn problems(text: &str) -> Vec<String> {
    let found = DaemonSettings::parse(text.as_bytes()).expect_err("a problem");
    found.iter().map(SettingsProblem::to_string).collect()
}

fn parsed(text: &str) -> DaemonSettings {
    DaemonSettings::parse(text.as_bytes()).unwrap_or_else(|problems| panic!("{problems:#?}"))
}

#[test]
fn the_shipped_file_is_made_from_the_settings() {
    let made = DaemonSettings::default_file();
    assert!(
        made == SHIPPED,
        "`sweetspot check-config --default >systemd/sweetspot.toml` makes it anew:\n{made}"
    );
}

#[test]
fn the_shipped_file_changes_nothing() {
    assert_eq!(parsed(SHIPPED), DaemonSettings::default());
    assert_eq!(parsed(""), DaemonSettings::default());
}

/// What is commented out in the shipped file is meant to be uncommented.
fn uncommented() -> String {
    let key = |line: &str| {
        line.strip_prefix('#').filter(|rest| !rest.is_empty() && !rest.starts_with(' ')).map(String::from)
    };
    SHIPPED.lines().map(|line| key(line).unwrap_or_else(|| line.to_owned()) + "\n").collect()
}

#[test]
fn every_commented_key_can_be_uncommented() {
    let settings = parsed(&uncommented());
    assert_eq!(settings.targets.len(), 1);
    let target = &settings.targets[0];
    assert_eq!((target.name.as_str(), target.pid, target.everything), ("web", Some(4711), false));
    assert_eq!(target.labels["team"], "search");
    assert!(settings.listen.tcp.is_some() && settings.listen.tls_key.is_some());
    assert!(!settings.symbols.debuginfod.is_empty() && settings.sampling.rate.is_some());
    // What has a default is shown with it.
    let default = DaemonSettings::default();
    assert_eq!(
        (settings.store, settings.limits, settings.budget),
        (default.store, default.limits, default.budget)
    );
}

/// Each key, given a value of another kind, is found where it stands.
#[test]
fn every_key_refuses_what_it_cannot_be() {
    let text = uncommented();
    let lines: Vec<&str> = text.lines().collect();
    let mut keys = 0;
    for (at, line) in lines.iter().enumerate() {
        let Some((key, _)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) else { continue };
        let mut changed = lines.clone();
        let wrong = format!("{key} = 1979-05-27");
        changed[at] = &wrong;
        let found = problems(&changed.join("\n"));
        let place = format!("{}:{}: ", at + 1, key.len() + 4);
        assert!(found.iter().any(|problem| problem.starts_with(&place)), "{wrong}: {found:?}");
        keys += 1;
    }
    assert!(keys > 40, "{keys}");
}

#[test]
fn all_problems_are_told_at_once() {
    let text = "\
[budget]
host = \"1%%\"
targget = \"1%\"

[store]
folder = \"var\"
age = 60

[[target]]
name = \"web\"
process = \"a(b\"

[[target]]
unti = \"x.service\"
";
    assert_eq!(
        problems(text),
        [
            "2:8: budget.host: expected a share such as 1% or 0.01, from 0 to 100%, not `1%%`",
            "3:1: there is no key budget.targget; did you mean target?",
            "6:1: store.folder: `var` is not an absolute path; write one that begins with / and has no ..",
            "7:7: store.age: `60` has no unit: expected a time with its unit such as 250us, 60s, 5m, 1h or 7d, at most \
             1000h",
            "11:11: target[0].process: `a(b` is not a regular expression: unclosed group",
            "13:1: target[1].name: a target needs a name; write one such as name = \"web\"",
            "14:1: there is no key target[1].unti; did you mean unit?",
        ]
    );
    assert_eq!(
        problems("[[target]]\nname = \"a\"\n"),
        [
            "2:1: target[0].name: nothing says which processes these are; write one of pid, executable, command, process, \
          user, unit, cgroup, container, container_name, image, namespace, pod, pod_labels or everything = true"
        ]
    );
}

#[test]
fn what_cannot_be_parsed_is_told_beside_the_rest() {
    let text = "[store]\nage = 7d\nbytes = \"2GiB\"\nbytes = \"3GiB\"\nfoldr = \"/a\"\n[store\n[limits]\ntargets = \"many\"\n";
    let found = problems(text);
    for (line, word) in [
        ("2:", ""),
        ("4:", "duplicate"),
        ("5:1: ", "did you mean folder"),
        ("6:", ""),
        ("8:", "whole number"),
    ] {
        let told = found.iter().any(|problem| problem.starts_with(line) && problem.contains(word));
        assert!(told, "{line} {word}: {found:#?}");
    }
    let lines: std::collections::BTreeSet<&str> = found.iter().filter_map(|p| p.split(':').next()).collect();
    assert_eq!(lines.len(), found.len(), "one for each line: {found:#?}");
}

/// What is sound in itself and cannot be meant: the text, where the problem is, and what is said of it.
const COMBINATIONS: &[(&str, &str, &str)] = &[
    ("[budget]\nhost = \"0%\"\ntarget = \"0.1%\"", "2:1", "more than 0"),
    ("[budget]\ntarget = \"60%\"", "2:1", "at most 50%"),
    ("[[target]]\nname = \"a\"\npid = 1\nbudget = \"0%\"", "4:1", "more than 0"),
    ("[[target]]\nname = \"a\"\npid = 1\nhorizon = \"0s\"", "4:1", "too short"),
    ("[sampling]\nhorizon = \"0s\"\nrate = \"60kHz\"\nconfidence = \"10%\"", "2:1", "too short"),
    ("[sampling]\nrate = \"60kHz\"", "2:1", "cannot be sampled"),
    ("[sampling]\nconfidence = \"10%\"", "2:1", "no interval"),
    ("[store]\nage = \"0s\"", "2:1", "shorter than a window"),
    ("[store]\nwindow = \"0s\"", "2:1", "1s to 1h"),
    ("[store]\nwindow = \"2h\"", "2:1", "1s to 1h"),
    ("[store]\nbytes = \"1MiB\"", "2:1", "at least 16MiB"),
    ("[store]\nfolder = \"/\"", "2:1", "not an absolute path"),
    ("[store]\nfolder = \"/a/../b\"", "2:1", "not an absolute path"),
    ("[store]\nfolder = \"/a\\u0000b\"", "2:1", "zero byte"),
    ("[store]\nhourly_after = \"2d\"", "1:2", "days are merged from hours"),
    ("[listen]\nsocket = \"run.sock\"", "2:1", "not an absolute path"),
    ("[listen]\nmode = \"0666\"", "2:1", "profiles are confidential"),
    ("[listen]\ngroup = \"\"", "2:1", "not a valid group name"),
    ("[listen]\ntoken_file = \"/t\"", "2:1", "there is no listen.tcp"),
    ("[listen]\ntls_key = \"/t\"", "2:1", "there is no listen.tcp"),
    ("[listen]\ntcp = \"127.0.0.1:80\"", "2:1", "TCP needs a token"),
    ("[listen]\ntcp = \"[::1]:80\"\ntoken_file = \"t\"", "3:1", "not an absolute path"),
    (
        "[listen]\ntcp = \"[::1]:80\"\ntoken_file = \"/t\"\ntls_key = \"/k\"",
        "4:1",
        "needs listen.tls_certificate",
    ),
    (
        "[listen]\ntcp = \"[::1]:80\"\ntoken_file = \"/t\"\ntls_certificate = \"/k\"",
        "4:1",
        "needs listen.tls_key",
    ),
    ("[symbols]\ndebuginfod = [\"ftp://a\"]", "2:1", "not a server address"),
    ("[symbols]\nmemory = \"1MiB\"", "2:1", "too little"),
    ("[symbols]\nmemory = \"1GiB\"", "2:1", "leave nothing"),
    ("[limits]\nmemory = \"63MiB\"", "2:1", "too little"),
    ("[limits]\nmemory = \"300MiB\"", "2:1", "leave nothing"),
    ("[limits]\nqueue = \"1KiB\"", "2:1", "too little"),
    ("[limits]\ntargets = 0", "2:1", "out of range"),
    ("[limits]\nrequests = 100000", "2:1", "out of range"),
    ("[[target]]\nname = \"a b\"\npid = 1", "2:1", "is not a valid name"),
    ("[[target]]\nname = \"a\"\npid = 0", "3:1", "not a process id"),
    ("[[target]]\nname = \"a\"\npid = 1\n[[target]]\nname = \"a\"\npid = 2", "5:1", "called `a` too"),
    ("[[target]]\nname = \"a\"\npid = 1\neverything = true", "4:1", "contradicts pid 1"),
    (
        "[[target]]\nname = \"a\"\neverything = true\n[[target]]\nname = \"b\"\npid = 2",
        "3:1",
        "write it last",
    ),
    ("[[target]]\nname = \"a\"\nexecutable = \"nginx\"", "3:1", "not an absolute path"),
    ("[[target]]\nname = \"a\"\nunit = \"nginx\"", "3:1", "not a valid unit name"),
    ("[[target]]\nname = \"a\"\ncgroup = \"../x\"", "3:1", "control group"),
    ("[[target]]\nname = \"a\"\ncgroup = \"/sys/fs/cgroup/x\"", "3:1", "the part after"),
    ("[[target]]\nname = \"a\"\ncontainer = \"web\"", "3:1", "not a container id"),
    ("[[target]]\nname = \"a\"\nuser = \"\"", "3:1", "is not a valid user"),
    ("[[target]]\nname = \"a\"\nuser = \"b\"\neach = \"user\"", "4:1", "of one user already"),
    (
        "[[target]]\nname = \"a\"\ncontainer = \"3f4e5d6c7b8a\"\neach = \"container\"",
        "4:1",
        "of one container already",
    ),
    (
        "[[target]]\nname = \"a12345678901234567890123456789012345678901\"\neverything = true\neach = \"unit\"",
        "2:1",
        "leave room",
    ),
    ("[[target]]\nname = \"a\"\neach = \"unit\"", "2:1", "nothing says which processes"),
    ("[[target]]\nname = \"a\"\npid = 1\neach = \"thread\"", "4:8", "expected process, unit"),
    ("[[target]]\nname = \"a\"\npid = 1\nlabels = { \"a b\" = \"c\" }", "4:1", "not a valid label name"),
    ("[[target]]\nname = \"a\"\npid = 1\nlabels = { pid = \"c\" }", "4:12", "gives the label pid itself"),
    ("[[target]]\nname = \"a\"\npid = 1\nlabels = { a = \"\\n\" }", "4:12", "one line"),
    ("[export]\nto = \"x\"", "1:1", "is a list of sections"),
    ("[[export]]\nname = \"a b\"\nto = \"http://p\"", "2:1", "is not a valid name"),
    ("[[export]]\nto = \"http://p\"", "1:1", "an export needs a name"),
    ("[[export]]\nname = \"a\"", "1:1", "an export needs an address"),
    ("[[export]]\nname = \"a\"\nto = \"p:4040\"", "3:1", "is not an http or https address"),
    ("[[export]]\nname = \"a\"\nurl = \"http://p\"", "3:1", "there is no key export[0].url"),
    (
        "[[export]]\nname = \"a\"\nto = \"http://p\"\nformat = \"jaeger\"",
        "4:10",
        "expected pyroscope, pyroscope-push, otlp or otlp-grpc",
    ),
    ("[[export]]\nname = \"a\"\nto = \"http://p\"\ntargets = [\"(\"]", "4:12", "is not a regular expression"),
    ("[[export]]\nname = \"a\"\nto = \"http://p\"\ntimeout = \"0s\"", "4:1", "write 1s to 10m"),
    ("[[export]]\nname = \"a\"\nto = \"http://p\"\ntoken_file = \"t\"", "4:1", "is not an absolute path"),
    (
        "[[export]]\nname = \"a\"\nto = \"http://p\"\nlabels = { \"a b\" = \"c\" }",
        "4:1",
        "not a valid label name",
    ),
    (
        "[[export]]\nname = \"a\"\nto = \"http://p\"\n[[export]]\nname = \"a\"\nto = \"http://q\"",
        "5:1",
        "is called `a` too",
    ),
    ("[containers]\nsockets = [\"run/a.sock\"]", "2:1", "is not an absolute path"),
    ("[containers]\npod_labels = [\"a b\"]", "2:1", "`a b` is not a valid key of a pod label"),
    ("[containers]\npod_labels = [\"a/b/c\"]", "2:1", "is not a valid key of a pod label"),
    ("[[target]]\nname = \"a\"\npod = \"(\"", "3:7", "is not a regular expression"),
    (
        "[[target]]\nname = \"a\"\npod_labels = { \"-a\" = \"b\" }",
        "3:1",
        "`-a` is not a valid key of a pod label",
    ),
    ("[[target]]\nname = \"a\"\npod_label = { a = \"b\" }", "3:1", "did you mean pod_labels?"),
    ("[[target]]\nname = \"a\"\neach = \"pods\"", "3:8", "expected process, unit, container, pod, workload"),
    (
        "[containers]\nsockets = []\n[[target]]\nname = \"a\"\neverything = true\neach = \"pod\"",
        "2:1",
        "target[0] needs a container runtime",
    ),
    ("[fleet]\nprometheus = \"prometheus:9090\"", "2:1", "is not an http or https address"),
    ("[fleet]\nprometheus = \"http://p/?a=b\"", "2:1", "more than an address"),
    ("[fleet]\nprometheus = \"http://\"", "2:1", "is not an http or https address"),
    ("[fleet]\nprometheus = \"http://p\"\ntoken_file = \"t\"", "3:1", "is not an absolute path"),
    ("[fleet]\nca_file = \"/t\"", "2:1", "write fleet.prometheus too"),
    ("[fleet]\nprometheus = \"http://p\"\ntimeout = \"5m\"", "3:1", "write 1s to 1m"),
    ("[fleet]\nlabel = \"a b\"", "2:1", "not a valid label name"),
    ("[fleet]\nreplicas = 3", "2:1", "there is no key fleet.replicas"),
    ("[[target]]\nname = \"a\"\npid = 1\nreplicas = 0", "4:1", "write 1 to 1000000"),
    ("store = 1", "1:9", "is a section"),
    ("target = 1", "1:10", "is a list of sections"),
    ("target = [1]", "1:11", "is a list of sections"),
];

#[test]
fn settings_that_cannot_be_meant_are_told_where_they_stand() {
    for (text, place, word) in COMBINATIONS {
        let found = problems(text);
        let told = |problem: &String| problem.starts_with(&format!("{place}: ")) && problem.contains(word);
        assert!(found.iter().any(told), "{text}\n{place}: {word}\n{found:#?}");
    }
}

#[test]
fn a_socket_s_path_is_short() {
    let text = format!("[listen]\nsocket = \"/{}\"", "a".repeat(107));
    assert!(problems(&text)[0].contains("at most 107 bytes"));
    let labels: Vec<String> = (0..17).map(|at| format!("a{at} = \"\"")).collect();
    let text = format!("[[target]]\nname = \"a\"\npid = 1\nlabels = {{ {} }}", labels.join(", "));
    assert!(problems(&text)[0].contains("at most 16 labels"));
}

#[test]
fn bytes_that_are_no_text_have_a_place() {
    let found = DaemonSettings::parse(b"[store]\nage = \"\xff\"").unwrap_err();
    assert!(found.iter().any(|problem| (problem.line, problem.column) == (2, 8)), "{found:?}");
    let huge = DaemonSettings::parse(&vec![b'#'; 5 << 20]).unwrap_err();
    assert!(huge[0].text.contains("more than 4 MiB"));
}

#[test]
fn a_target_has_what_it_says_and_else_what_all_have() {
    let settings = parsed(
        "[budget]\ntarget = \"0.5%\"\n[sampling]\nhorizon = \"30s\"\n\
         [[target]]\nname = \"a\"\nunit = \"a.service\"\nuser = \"www\"\nbudget = 0.01\n[[target]]\nname = \"b\"\npid = 2\nhorizon = \"2m\"\n",
    );
    let [a, b] = settings.targets.as_slice() else { panic!() };
    assert_eq!(settings.sampling_of(a).budget.to_string(), "1%");
    assert_eq!(settings.sampling_of(a).horizon.unwrap().to_string(), "30s");
    assert_eq!(settings.sampling_of(b).budget.to_string(), "0.5%");
    assert_eq!(settings.sampling_of(b).horizon.unwrap().to_string(), "2m");
    assert_eq!(a.in_words(), "user www and unit a.service");
}

#[test]
fn a_section_may_stand_for_many_targets() {
    let settings = parsed(
        "[[target]]\nname = \"a\"\nunit = \"user.slice\"\neach = \"unit\"\n\
         [[target]]\nname = \"all\"\neverything = true\neach = \"container\"\n",
    );
    assert_eq!(settings.targets[0].each, Some(Each::Unit));
    assert_eq!(settings.targets[0].in_words(), "unit user.slice, each unit separately");
    let words = settings.in_words();
    assert!(
        words.contains("all (everything, each container separately, slowed down by at most 1%)"),
        "{words}"
    );
    for each in [Each::Process, Each::Unit, Each::Container, Each::Cgroup, Each::User] {
        let text = format!("[[target]]\nname = \"a\"\npid = 1\neach = \"{each}\"\n");
        assert_eq!(parsed(&text).targets[0].each, Some(each));
    }
    assert_eq!(DaemonSettings::default().targets[0].each, None);
}

#[test]
fn exports_are_as_many_as_are_written() {
    assert_eq!(parsed("").exports, []);
    let one = |at: usize| format!("[[export]]\nname = \"e{at}\"\nto = \"http://p\"\n");
    let settings = parsed(
        &(one(0) + "targets = [\"^web$\", \"^services:\"]\nheaders = { X-Key = \"s3cret\" }\n" + &one(1)),
    );
    let [first, second] = settings.exports.as_slice() else { panic!() };
    let wants = |name: &str| first.targets.iter().any(|pattern| pattern.matches(name.as_bytes()));
    assert!(wants("web") && wants("services:nginx.service") && !wants("web2"));
    assert!(second.targets.is_empty() && second.timeout.to_string() == "30s");
    assert!(settings.in_words().ends_with("; sends to e0, e1"), "{}", settings.in_words());
    let many: String = (0..17).map(one).collect();
    assert!(problems(&many)[0].contains("at most 16 exports"));
}

#[test]
fn a_fleet_is_asked_for_where_it_is_written() {
    let fleet = parsed("").fleet;
    assert_eq!((fleet.prometheus, fleet.label.as_str()), (None, "target"));
    let settings = parsed(
        "[fleet]\nprometheus = \"https://p/prometheus\"\nlabel = \"k8s.deployment.name\"\n\
         [[target]]\nname = \"a\"\npid = 1\nreplicas = 12\n[[target]]\nname = \"b\"\npid = 2\n",
    );
    assert_eq!(settings.fleet.label, "k8s.deployment.name");
    let replicas: Vec<Option<u32>> = settings.targets.iter().map(|target| target.replicas).collect();
    assert_eq!(replicas, [Some(12), None]);
    let found = problems("[fleet]\nprometheus = \"http://me:s3cret@p\"\n");
    assert!(found[0].contains("fleet.token_file") && !found[0].contains("s3cret"), "{found:?}");
}

#[test]
fn no_problem_shows_a_header_or_a_password() {
    let export = "[[export]]\nname = \"a\"\n";
    for lines in ["to = \"ftp://me:s3cret@p\"", "to = \"http://p\"\nheaders = { s = { s3cret = 1 } }"] {
        let found = problems(&format!("{export}{lines}"));
        assert!(found.iter().all(|problem| !problem.contains("s3cret")), "{found:?}");
    }
}

#[test]
fn a_line_says_what_is_watched_and_what_it_costs() {
    assert_eq!(
        DaemonSettings::default().in_words(),
        "watches everything (everything, slowed down by at most 1%); costs at most 1% of the host's CPU time; keeps 7d \
         and at most 2GiB in /var/lib/sweetspot; answers at /run/sweetspot/sweetspot.sock"
    );
    assert!(parsed("target = []").in_words().starts_with("watches nothing until a request adds a target; "));
    let many: String = (1..8).map(|pid| format!("[[target]]\nname = \"t{pid}\"\npid = {pid}\n")).collect();
    let words = parsed(&many).in_words();
    assert!(words.contains("t5 (pid 5, slowed down by at most 1%), 2 more; "), "{words}");
    assert_eq!(parsed("target = []").targets, Vec::<TargetSettings>::new());
}
