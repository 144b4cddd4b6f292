//! `[fleet]` of the service, with a Prometheus that answers what the test says: a target is sampled as one of as many replicas as that
//! makes it. Live, as root.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::daemon::Daemon;
use tests::guards::Running;
use tests::privileged;
use tests::programs::{copy_program, program};
use tests::run::start;

/// Prometheus is asked half a minute after the start, and then once a minute; a rate follows within seconds.
const PATIENCE: Duration = Duration::from_secs(120);
/// What each service is said to use on all hosts (CPUs).
const FLEET_CPUS: f64 = 100.0;

/// A Prometheus at an address of this machine. Its thread ends with the test's process.
struct Prometheus {
    address: SocketAddr,
    /// The heads of the requests that came.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Prometheus {
    fn start(services: &'static [&'static str]) -> Result<Prometheus> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let requests = Arc::clone(&asked);
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let lines = BufReader::new(&stream).lines().map_while(Result::ok);
                let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
                requests.lock().expect("nobody panics with it").push(head.join("\n"));
                let now_s = SystemTime::UNIX_EPOCH.elapsed().map_or(0.0, |time| time.as_secs_f64());
                let series = |name: &&str| json!({ "metric": { "target": name }, "value": [now_s, FLEET_CPUS.to_string()] });
                let result: Vec<Value> = services.iter().map(series).collect();
                let answer =
                    json!({ "status": "success", "data": { "resultType": "vector", "result": result } });
                let body = answer.to_string();
                let length = body.len();
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
                );
            }
        });
        Ok(Prometheus { address, asked })
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("nobody panics with it").clone()
    }
}

/// A program that is busy, under a path of its own.
fn busy(folder: &TempDir, name: &str) -> Result<(PathBuf, Running)> {
    let path = folder.path().join(name);
    copy_program(&program("mix_nofp")?, &path)?;
    let running = start(Command::new(&path).args(["--cpu", "300"]))?;
    Ok((path, running))
}

fn wait_for(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let started = Instant::now();
    while !holds()? {
        ensure!(started.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
        thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}

fn number(value: &Value, key: &str) -> Result<f64> {
    value[key].as_f64().with_context(|| format!("{key} in {value}"))
}

fn last_decision(daemon: &Daemon, name: &str) -> Result<Value> {
    let decisions = daemon.ctl_json(&["decisions", name])?;
    decisions["decisions"].as_array().and_then(|all| all.last()).cloned().context("a decision")
}

fn replicas(target: &Value) -> Result<f64> {
    number(&target["fleet"], "replicas")
}

/// Waits until a target has the rate of one of as many replicas as are known, and compares it with the law.
fn check_rate(daemon: &Daemon, name: &str) -> Result<()> {
    let known = || replicas(&daemon.target(name)?);
    ensure!(known()? > 50.0, "{name}: {}", known()?);
    wait_for(&format!("the rate of {name}"), || {
        let decision = last_decision(daemon, name)?;
        let (rate_hz, optimum_hz) = (number(&decision, "rate_hz")?, number(&decision, "optimum_rate_hz")?);
        let one_of = number(&decision, "replicas")?;
        eprintln!("{name}: one of {one_of:.0}, {rate_hz:.1}/s, optimum {optimum_hz:.1}/s");
        let is_near =
            |value: f64, expected: f64, factor: f64| (1.0 / factor..factor).contains(&(value / expected));
        Ok(is_near(one_of, known()?, 1.01) && is_near(rate_hz, optimum_hz, 1.35))
    })?;
    // The law for R·W, of what the decision was made of; its r is that of the mean absolute error.
    let decision = last_decision(daemon, name)?;
    let [spread, variance, o_us, w_s, replicas] =
        ["spread_ratio", "variance_ratio", "overhead_us", "horizon_cpu_s", "replicas"]
            .map(|key| number(&decision, key));
    let law_hz =
        (0.657 * spread? * variance?.sqrt() / (o_us? * 1e-6 * (replicas? * w_s?).sqrt())).cbrt().powi(2);
    let asked_hz = number(&decision, "unbounded_rate_hz")?;
    ensure!((asked_hz / law_hz - 1.0).abs() < 0.03, "{asked_hz} is not {law_hz}: {decision}");
    Ok(())
}

#[test]
fn targets_are_sampled_as_one_of_as_many_replicas_as_prometheus_knows() -> Result<()> {
    privileged!();
    let prometheus = Prometheus::start(&["shared", "apart"])?;
    let folder = tempfile::tempdir()?;
    let token = folder.path().join("token");
    fs::write(&token, "s3cret\n")?;
    let (shared, _shared) = busy(&folder, "fleet-shared")?;
    let (apart, _apart) = busy(&folder, "fleet-apart")?;
    let (lonely, _lonely) = busy(&folder, "fleet-lonely")?;
    // Budgets that leave the rate to the law.
    let fleet = format!("[fleet]\nprometheus = \"http://{}\"\ntoken_file = {token:?}\n", prometheus.address);
    let settings = |fleet: &str| {
        format!(
            "[budget]\nhost = \"30%\"\ntarget = \"30%\"\n[sampling]\nhorizon = \"600s\"\n{fleet}\
             [[target]]\nname = \"shared\"\nexecutable = {shared:?}\n\
             [[target]]\nname = \"apart\"\nexecutable = {apart:?}\nhorizon = \"601s\"\n\
             [[target]]\nname = \"lonely\"\nexecutable = {lonely:?}\nhorizon = \"602s\"\n"
        )
    };
    let daemon = Daemon::start(5, &settings(&fleet))?;
    // Before the first answer each is a fleet of one.
    let started = Instant::now();
    let mut before = Vec::new();
    while started.elapsed() < Duration::from_secs(20) {
        before = daemon.targets()?;
        thread::sleep(Duration::from_secs(1));
    }
    ensure!(prometheus.asked().is_empty(), "{:?}", prometheus.asked());
    for target in &before {
        ensure!(replicas(target)? == 1.0 && target["fleet"]["source"] == "none", "{target}");
    }
    let is_known =
        |name: &str| -> Result<bool> { Ok(daemon.target(name)?["fleet"]["source"] == "prometheus") };
    wait_for("Prometheus' answer", || Ok(is_known("shared")? && is_known("apart")?))?;
    let asked = prometheus.asked();
    ensure!(asked.len() == 1 && asked[0].starts_with("GET /api/v1/query?query=sum%20by"), "{asked:?}");
    ensure!(asked[0].to_lowercase().contains("authorization: bearer s3cret"), "{asked:?}");
    check_rate(&daemon, "apart")?;
    check_rate(&daemon, "shared")?;
    // What Prometheus does not know has the whole rate, and that is said.
    let lonely = daemon.target("lonely")?;
    ensure!(
        replicas(&lonely)? == 1.0 && lonely["fleet"]["reason"] == "Prometheus has no CPU time of it",
        "{lonely}"
    );
    let told = daemon.ctl(&["targets"])?.expect_status(0)?.stdout;
    ensure!(told.contains("lonely: a fleet of one: Prometheus has no CPU time of it"), "{told}");
    ensure!(told.contains("of that of one alone, by Prometheus"), "{told}");
    let status = daemon.ctl(&["status"])?.expect_status(0)?.stdout;
    ensure!(
        status.contains("2 of 3 targets have replicas elsewhere that are known, by target at 127.0.0.1"),
        "{status}"
    );
    let decisions = daemon.ctl(&["decisions", "apart"])?.expect_status(0)?.stdout;
    ensure!(decisions.contains("\nnow one of "), "{decisions}");
    // Without a fleet in the settings each is alone again.
    daemon.write_settings(5, &settings(""))?;
    daemon.ctl(&["reload"])?.expect_status(0)?;
    for name in ["apart", "shared"] {
        wait_for(
            &format!("{name} alone"),
            || Ok(number(&last_decision(&daemon, name)?, "replicas")? == 1.0),
        )?;
    }
    Ok(())
}
