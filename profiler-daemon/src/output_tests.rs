use std::fs;

use profile_files::{Format, pprof, testing};

use super::*;

fn file(path: PathBuf) -> OutputFile {
    let format = Format::of(&path).unwrap();
    OutputFile { path, format }
}

fn job(folder: &Path, names: &[&str]) -> OutputJob {
    let files = names.iter().map(|name| file(folder.join(name))).collect();
    OutputJob { files, stats: Some(folder.join("stats.jsonl")), quiet: true, ..OutputJob::default() }
}

#[test]
fn every_format_and_the_statistics_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let names: Vec<String> = Format::written().map(|format| format!("a.{format}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let outputs = Outputs::prepare(&job(folder.path(), &names)).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing but the statistics before the end");
    outputs.deliver(&testing::profile()).unwrap();
    for name in names.into_iter().chain(["stats.jsonl"]) {
        assert!(fs::metadata(folder.path().join(name)).unwrap().len() > 0, "{name}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), Format::written().count() + 1);
}

#[test]
fn a_missing_folder_is_found_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let message = |job: &OutputJob| format!("{:#}", Outputs::prepare(job).unwrap_err());
    let missing = message(&job(folder.path(), &["missing/a.svg"]));
    assert!(missing.contains("create its folder first"), "{missing}");
    assert!(!missing.contains('\n'));
    let stats = OutputJob { stats: Some(folder.path().join("missing/s")), ..OutputJob::default() };
    assert!(message(&stats).contains("--stats"));
}

#[test]
fn a_profile_whose_folder_vanished_is_rescued() {
    let folder = tempfile::tempdir().unwrap();
    let gone = folder.path().join("gone");
    fs::create_dir(&gone).unwrap();
    let only_files = OutputJob { stats: None, ..job(&gone, &["a.svg"]) };
    let outputs = Outputs::prepare(&only_files).unwrap();
    fs::remove_dir(&gone).unwrap();
    let message = format!("{:#}", outputs.deliver(&testing::profile()).unwrap_err());
    let (_, rescued) = message.split_once("the profile is in ").unwrap();
    let profile = pprof::read(fs::File::open(rescued).unwrap()).unwrap();
    fs::remove_file(rescued).unwrap();
    assert_eq!(profile.stacks, testing::profile().stacks);
}

#[test]
fn a_profile_that_is_kept_needs_no_rescue() {
    let folder = tempfile::tempdir().unwrap();
    let gone = folder.path().join("gone");
    fs::create_dir(&gone).unwrap();
    let outputs = Outputs::prepare(&job(folder.path(), &["gone/a.svg", "a.pb.gz"])).unwrap();
    fs::remove_dir(&gone).unwrap();
    let message = format!("{:#}", outputs.deliver(&testing::profile()).unwrap_err());
    assert!(!message.contains("the profile is in"), "{message}");
    assert!(folder.path().join("a.pb.gz").exists());
}
