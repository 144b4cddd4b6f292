use clap::{CommandFactory, Parser};
use config::{SamplingSettings, Unwind};
use profile_files::{FOLDED, FORMATS, Format, TABLE};

use super::*;
use crate::cli::Cli;
use crate::ctl::CtlQuery;
use crate::failure::Failure;
use crate::report::ReportSource;

fn typed(line: &str) -> Result<Job> {
    let cli = Cli::try_parse_from(std::iter::once("sweetspot").chain(line.split_whitespace()))?;
    Job::new(cli.command)
}

fn message(line: &str) -> String {
    format!("{:#}", typed(line).unwrap_err())
}

fn is_usage(line: &str) -> bool {
    let error = typed(line).unwrap_err();
    let by_clap = error.downcast_ref::<clap::Error>().is_some_and(|error| error.exit_code() == 2);
    by_clap || matches!(error.downcast_ref::<Failure>(), Some(Failure::Usage(_)))
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn without_flags_the_settings_are_the_defaults() {
    let Job::Record(job) = typed("record -- ./server --port 80").unwrap() else { panic!() };
    assert_eq!(job.sampling, SamplingSettings::default());
    assert_eq!(job.command, ["./server", "--port", "80"]);
    assert!(job.output.files.is_empty());
}

#[test]
fn help_shows_the_defaults() {
    let help = Cli::command().find_subcommand_mut("record").unwrap().render_help().to_string();
    for text in ["[default: 5%]", "[default: mae]", "[default: 95%]"] {
        assert!(help.contains(text), "{text} is missing in {help}");
    }
}

#[test]
fn every_flag_arrives() {
    let line = "attach 7 5 7 --duration 30s --budget 2% --horizon 5m --rate 99 --criterion z=1.96 --unwind fp \
                --backend perf --attach-mode cpu --seed 3 --confidence 99% --until-precision 2% -q -o a.pb.gz -o b.svg \
                --stats s.jsonl";
    let Job::Attach(job) = typed(line).unwrap() else { panic!() };
    assert!(matches!(job.target, Target::Pids(ref pids) if *pids == [5, 7]));
    assert_eq!(job.duration, Some(Duration::from_secs(30)));
    assert_eq!(job.sampling.rate.unwrap().get(), 99.0);
    assert_eq!(job.sampling.confidence.get(), 0.99);
    assert_eq!(job.sampling.until_precision.unwrap().get(), 0.02);
    assert_eq!(job.sampling.seed, Some(3));
    assert_eq!(job.output.files.len(), 2);
    assert!(job.output.quiet);
}

#[test]
fn what_cannot_be_meant_is_a_usage_error() {
    for line in [
        "record",
        "record --",
        "record --budget 60% -- true",
        "record --budget 0 -- true",
        "record --rate 0 -- true",
        "record --horizon 60 -- true",
        "record --unwind lbr -- true",
        "record -o out.txt -- true",
        "record -o .svg -- true",
        "record -o a.svg -o a.svg -- true",
        "record -o a.svg --stats a.svg -- true",
        "record --confidence 100% -- true",
        "record --until-precision 0 -- true",
        "attach 1 --until-precision 60%",
        "attach",
        "attach 0",
        "attach -5",
        "attach 1 --name x",
        "attach --name (",
        "attach 1 --duration 0s",
        "plan --horizon 0s --share 0.2 --overhead 1us",
        "plan --horizon 1s --share 0 --overhead 1us",
        "plan --horizon 1s --share 100% --overhead 1us",
        "plan --horizon 1s --share 0.2 --overhead 1s",
        "plan --horizon 1s --share 0.2 --overhead 1us --z nan",
        "plan --horizon 1s --share 1 --overhead 1us",
        "plan --horizon 1s --share 1.5 --overhead 1us",
        "plan --horizon 1s --share nan --overhead 1us",
        "plan --horizon nan --share 0.2 --overhead 1us",
        "plan --horizon 1s --share 0.2 --overhead 0",
        "plan --horizon 1s --share 0.2 --overhead 1us --z 1.5 --criterion mse",
        "plan --horizon 1s --share 0.2 --overhead 1us --criterion median",
        "plan --horizon 1s --share 0.2 --overhead 1us --budget 0",
        "plan --horizon 1s --share 0.2 --overhead 1us -o plan.png",
        "plan",
        "plan --horizon 1s --share 0.2",
        "plan --horizon 1s --share 0.2 --overhead 1us --duration 2s",
        "plan --horizon 1s --share 0.2 --overhead 1us --rate 99",
        "plan --pid x",
        "plan --pid 0",
        "plan --pid 7 --share 0.2",
        "plan --pid 7 --overhead 1us",
        "plan --pid 7 --z 1.96",
        "plan --pid 7 --duration 0s",
        "plan --pid 7 --budget 60%",
        "plan --pid 7 --horizon 0s",
        "plan --pid 7 --rate 0",
        "plan --pid 7 --unwind magic",
        "plan --pid 7 -o plan.png",
        "evaluate -o a.png",
        "evaluate -o a.svg -o a.svg",
        "evaluate --rounds 0",
        "evaluate --cpu 0s",
        "evaluate --unwind magic",
        "workload --shape odd --calls 1 --seed 1",
        "report",
        "frobnicate",
    ] {
        assert!(is_usage(line), "{line}");
    }
    assert!(is_usage(&format!("attach {}", std::process::id())));
    assert!(is_usage(&format!("plan --pid {}", std::process::id())));
}

#[test]
fn a_process_is_predicted_for_as_it_would_be_sampled() {
    let Job::PlanProcess(job) = typed("plan --pid 7").unwrap() else { panic!() };
    assert_eq!((job.pid, job.duration, job.file), (7, Duration::from_secs(2), None));
    assert_eq!(job.sampling, SamplingSettings::default());
    let line = "plan --pid 7 --duration 5s --budget 2% --horizon 5m --criterion mse --unwind fp --attach-mode cpu \
                --rate 99 --json -o a.svg";
    let Job::PlanProcess(job) = typed(line).unwrap() else { panic!() };
    assert!(job.json && job.file.is_some());
    assert_eq!((job.duration, job.sampling.budget.get()), (Duration::from_secs(5), 0.02));
    assert_eq!((job.sampling.horizon.unwrap().seconds(), job.sampling.rate.unwrap().get()), (300.0, 99.0));
    assert_eq!(job.sampling.criterion, Criterion::MeanSquared);
    assert_eq!(job.sampling.unwind, Unwind::FramePointers);
    assert_eq!(job.sampling.attach_mode, config::AttachMode::Cpu);
}

#[test]
fn timers_sample_commands_by_their_threads() {
    assert!(typed("record --backend timer-signal --unwind dwarf --attach-mode task -- true").is_ok());
    assert!(typed("attach --backend timer-signal 1").is_ok());
    for line in [
        "record --backend timer-signal --unwind fp -- true",
        "record --backend timer-signal --attach-mode cpu -- true",
    ] {
        assert!(is_usage(line) && message(line).contains("use "), "{}", message(line));
    }
}

#[test]
fn a_group_is_a_target_of_its_own() {
    let target = |line: &str| {
        let Job::Attach(job) = typed(line).unwrap() else { panic!() };
        job.target
    };
    assert!(matches!(target("attach --cgroup /a/b"), Target::Cgroup(path) if path.as_os_str() == "/a/b"));
    assert!(matches!(target("attach --unit x.service"), Target::Unit(name) if name == "x.service"));
    let twice = ["attach --cgroup /a 7", "attach --cgroup /a --name x", "attach --cgroup /a --unit x"];
    for line in twice.into_iter().chain(["attach --unit a/b", "attach --cgroup"]) {
        assert!(is_usage(line), "{line}");
    }
}

#[test]
fn top_shows_the_last_seconds_of_whatever_is_named_or_of_everything() {
    let job = |line: &str| {
        let Job::Top(job) = typed(line).unwrap() else { panic!() };
        job
    };
    let everything = job("top");
    assert!(matches!(everything.run.target, Target::Everything) && everything.rows.is_none());
    assert_eq!((everything.every, everything.window), (Duration::from_secs(2), Duration::from_secs(10)));
    // What is shown is a profile of that length, however long the run is.
    assert_eq!(everything.run.sampling.horizon.unwrap().seconds(), 10.0);
    assert!(matches!(job("top 7 5").run.target, Target::Pids(pids) if pids == [5, 7]));
    assert!(matches!(job("top --name x").run.target, Target::Name(_)));
    assert!(matches!(job("top --unit x.service").run.target, Target::Unit(_)));
    let asked = job("top --cgroup /a --every 500ms --window 3s --duration 1m --top 5 --budget 1% --rate 99");
    assert_eq!((asked.every, asked.window), (Duration::from_millis(500), Duration::from_secs(3)));
    assert_eq!((asked.run.duration, asked.rows), (Some(Duration::from_secs(60)), "5".parse().ok()));
    for rest in [
        "0",
        "--every 0s",
        "--every 400ms",
        "--window 5m",
        "--every 20s",
        "--duration 0s",
        "7 --name x",
        "--attach-mode task",
        "-o a.svg",
        "--until-precision 5%",
        "--horizon 5m",
    ] {
        assert!(is_usage(&format!("top {rest}")), "{rest}");
    }
}

#[test]
fn everything_is_a_target_that_goes_with_no_other() {
    let Job::Attach(job) = typed("attach --all --attach-mode cpu").unwrap() else { panic!() };
    assert!(matches!(job.target, Target::Everything));
    for line in
        ["attach --all 7", "attach --all --name x", "attach --all --unit x", "attach --all --cgroup /a"]
    {
        assert!(is_usage(line), "{line}");
    }
    assert!(message("attach --all --attach-mode task").contains("leave out --attach-mode task"));
    let asked = |line: &str| {
        let Job::Ctl(job) = typed(line).unwrap() else { panic!() };
        let CtlQuery::Attach(attach) = job.query else { panic!() };
        (attach.everything, attach.each)
    };
    assert_eq!(asked("ctl attach --all --duration 1m"), (true, None));
    let parted = asked("ctl attach --cgroup / --each unit --duration 1m");
    assert_eq!(parted, (false, Some("unit".to_owned())));
    for rest in ["--all 7", "--all --user x", "--each none --all", "--each unit"] {
        assert!(is_usage(&format!("ctl attach {rest} --duration 1m")), "{rest}");
    }
}

#[test]
fn an_unknown_ending_names_the_endings() {
    let message = message("record -o profile.txt -- true");
    for format in Format::written() {
        assert!(message.contains(&format!(".{format}")), "{message}");
    }
}

#[test]
fn every_format_that_is_printed_can_be_asked_for_and_no_other() {
    for format in FORMATS {
        for line in ["report a.pb.gz --format", "ctl profile --format"] {
            let parsed = typed(&format!("{line} {format}"));
            assert_eq!(parsed.is_ok(), format.is_printed, "{line} {format}");
        }
    }
    let Job::Report(job) = typed("report a.pb.gz").unwrap() else { panic!() };
    assert_eq!(job.format, &TABLE);
    let Job::Report(job) = typed("report a.pb.gz --format folded").unwrap() else { panic!() };
    assert_eq!(job.format, &FOLDED);
    assert!(is_usage("report a.pb.gz --unknown --format folded"));
    assert!(typed("report a.pb.gz --unknown --format json").is_ok());
}

#[test]
fn help_lists_every_format() {
    for command in ["record", "attach", "report", "ctl profile"] {
        let words = ["sweetspot"].into_iter().chain(command.split(' ')).chain(["--help"]);
        let help = Cli::try_parse_from(words).unwrap_err().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for format in Format::written() {
            assert!(help.contains(&format!(".{format} ({})", format.about)), "{command}: {format}: {help}");
        }
        let printed = Format::printed().filter(|_| !["record", "attach"].contains(&command));
        for format in printed {
            let line = format!("{format}: {}", format.about).to_lowercase();
            assert!(help.to_lowercase().contains(&line), "{command}: {format}: {help}");
        }
    }
}

#[test]
fn what_shapes_a_text_is_refused_with_json_wherever_that_is_typed() {
    for rest in [
        "profile --format folded",
        "profile -o a.svg",
        "targets --top 3",
        "targets --labels",
        "targets --sort name",
    ] {
        for line in [format!("ctl --json {rest}"), format!("ctl {rest} --json")] {
            assert!(is_usage(&line) && message(&line).contains("--json"), "{line}: {}", message(&line));
        }
    }
    assert!(typed("ctl --json targets").is_ok() && typed("ctl --json profile --from -1h").is_ok());
}

#[test]
fn tables_have_20_rows_and_with_top_0_all() {
    let report = |line: &str| {
        let Job::Report(job) = typed(line).unwrap() else { panic!() };
        job.top.get()
    };
    assert_eq!([report("report a.pb.gz"), report("report a.pb.gz --top 3")], [20, 3]);
    assert_eq!(report("report a.pb.gz --top 0"), usize::MAX);
    assert!(is_usage("report a.pb.gz --top all"));
    for line in [
        "report a.pb.gz --format json --top 3",
        "report a.pb.gz --format folded --top 20",
        "report a.pb.gz --unknown --format json --top 3",
        "ctl profile --format json --top 3",
        "ctl profile --format folded --top 0",
        "ctl --json profile --top 3",
        "ctl profile --json --top 3",
    ] {
        let said = message(line);
        assert!(is_usage(line) && said.contains("--top") && !said.contains('\n'), "{line}: {said}");
    }
    assert!(typed("report a.pb.gz --unknown --top 3").is_ok() && typed("ctl profile --top 3").is_ok());
    assert!(typed("ctl --json profile").is_ok() && typed("report a.pb.gz --format json").is_ok());
    assert!(typed("report a.pb.gz --format md --top 3").is_ok());
    let Job::Report(ReportJob { source: ReportSource::Files(files), .. }) =
        typed("report a.pb.gz b.pb.gz c.pb.gz").unwrap()
    else {
        panic!()
    };
    assert_eq!(files.len(), 3);
    assert!(is_usage("report a.pb.gz b.pb.gz a.pb.gz"), "it would count twice");
    assert!(is_usage("report a.pb.gz b.pb.gz --from -1h"));
    let targets = |line: &str| match typed(line).unwrap() {
        Job::Ctl(CtlJob { query: CtlQuery::Targets(list), .. }) => (list.top, list.labels),
        _ => panic!(),
    };
    assert_eq!(targets("ctl targets"), (usize::MAX, false));
    assert_eq!(targets("ctl targets --sort own --top 5 --labels"), (5, true));
    assert!(is_usage("ctl targets --sort size") && is_usage("ctl targets --json --top 5"));
    assert!(typed("ctl targets --json").is_ok());
}

#[test]
fn a_range_of_no_time_is_refused_with_what_is_wrong() {
    for command in ["ctl profile", "report --store s"] {
        for range in ["--from -1h --to -2h", "--from -1h --to -1h"] {
            let line = format!("{command} {range}");
            assert!(is_usage(&line) && message(&line).starts_with("--to is not after --from"), "{line}");
        }
        let line = format!("{command} --from now");
        assert!(is_usage(&line) && message(&line).starts_with("--from is not before now"), "{line}");
    }
}

#[test]
fn a_process_to_watch_is_written_either_way() {
    let pid = |line: &str| match typed(line).unwrap() {
        Job::Ctl(CtlJob { query: CtlQuery::Attach(attach), .. }) => attach.pid,
        _ => panic!(),
    };
    assert_eq!([pid("ctl attach 7 --duration 1s"), pid("ctl attach --pid 7 --duration 1s")], [Some(7); 2]);
    assert_eq!(pid("ctl attach --name x --duration 1s"), None);
    for line in [
        "ctl attach --duration 1s",
        "ctl attach 7 --pid 7 --duration 1s",
        "ctl attach --pid 7 --all --duration 1s",
    ] {
        assert!(is_usage(line), "{line}");
    }
}
