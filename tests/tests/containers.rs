//! Containers and pods that a runtime names: the service asks it over its socket, as gRPC of Kubernetes' Container Runtime
//! Interface. Live, as root.

#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::convert::Infallible;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tempfile::TempDir;
use tests::daemon::Daemon;
use tests::groups::Group;
use tests::guards::Running;
use tests::programs::program;
use tests::run::{start, wait_until, wait_until_told};

const UID: &str = "1f0c8c2e-0000-4000-8000-00000000000";

/// A group that the tests may make others in; leaves the test where there is none.
macro_rules! group {
    () => {
        match Group::new() {
            Some(group) => Node(group),
            None => {
                eprintln!("skipped: this needs root and cgroup v2");
                return Ok(());
            }
        }
    };
}

/// A group with groups of pods, which hold those of containers.
struct Node(Group);

impl Drop for Node {
    fn drop(&mut self) {
        let folders = |path: &Path| -> Vec<PathBuf> {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
        };
        for pod in folders(self.0.path()) {
            for container in folders(&pod) {
                let _ = wait_until("an empty group", || fs::remove_dir(&container).is_ok());
            }
        }
    }
}

/// A container of a pod of the same number.
#[derive(Clone)]
struct Made {
    number: u32,
    pod: String,
    app: &'static str,
}

impl Made {
    fn id(&self) -> String {
        format!("{:064x}", self.number + 0x1000)
    }

    fn sandbox(&self) -> String {
        format!("{:064x}", self.number + 0x90_0000)
    }

    /// Its group, as containerd calls it under systemd.
    fn below(&self) -> String {
        let uid = format!("{UID}{}", self.number).replace('-', "_");
        format!("kubepods-pod{uid}.slice/cri-containerd-{}.scope", self.id())
    }

    fn in_list_of_containers(&self) -> Vec<u8> {
        let image = field(1, b"registry:5000/shop:1.2");
        field(
            1,
            &[
                field(1, self.id().as_bytes()),
                field(2, self.sandbox().as_bytes()),
                field(3, &field(1, b"server")),
                field(4, &image),
                vec![6 << 3, 1],
            ]
            .concat(),
        )
    }

    fn in_list_of_pods(&self) -> Vec<u8> {
        let uid = format!("{UID}{}", self.number);
        let metadata = [field(1, self.pod.as_bytes()), field(2, uid.as_bytes()), field(3, b"shop")].concat();
        let label = [field(1, b"app"), field(2, self.app.as_bytes())].concat();
        field(1, &[field(1, self.sandbox().as_bytes()), field(2, &metadata), field(5, &label)].concat())
    }
}

/// A field of a message whose content has a length.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut length = content.len();
    while length > 127 {
        bytes.push((length & 127) as u8 | 128);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend(content);
    bytes
}

/// A runtime on a socket of its own, until the test's process ends.
struct Runtime {
    socket: PathBuf,
    containers: Arc<Mutex<Vec<Made>>>,
    asked: Arc<Mutex<Vec<(Instant, String)>>>,
}

impl Runtime {
    fn start(folder: &Path) -> Result<Runtime> {
        let socket = folder.join("runtime.sock");
        let listener = UnixListener::bind(&socket)?;
        listener.set_nonblocking(true)?;
        let runtime = Runtime { socket, containers: Arc::default(), asked: Arc::default() };
        let (containers, asked) = (Arc::clone(&runtime.containers), Arc::clone(&runtime.asked));
        let event_loop = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::spawn(move || event_loop.block_on(serve(listener, containers, asked)));
        Ok(runtime)
    }

    fn holds(&self, containers: &[Made]) {
        *self.containers.lock().unwrap() = containers.to_vec();
    }

    fn settings(&self) -> String {
        format!("[containers]\nsockets = [{:?}]\npod_labels = [\"app\"]\n", self.socket)
    }
}

async fn serve(
    listener: UnixListener,
    containers: Arc<Mutex<Vec<Made>>>,
    asked: Arc<Mutex<Vec<(Instant, String)>>>,
) -> Result<()> {
    let listener = tokio::net::UnixListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        let (containers, asked) = (Arc::clone(&containers), Arc::clone(&asked));
        let answer = service_fn(move |request: Request<Incoming>| {
            let path = request.uri().path().to_owned();
            let containers = containers.lock().unwrap().clone();
            let message: Vec<u8> = match path.as_str() {
                "/runtime.v1.RuntimeService/ListContainers" => {
                    containers.iter().flat_map(Made::in_list_of_containers).collect()
                }
                "/runtime.v1.RuntimeService/ListPodSandbox" => {
                    containers.iter().flat_map(Made::in_list_of_pods).collect()
                }
                _ => Vec::new(),
            };
            asked.lock().unwrap().push((Instant::now(), path));
            async move { Ok::<_, Infallible>(grpc(&message)) }
        });
        let builder = http2::Builder::new(TokioExecutor::new());
        tokio::spawn(builder.serve_connection(TokioIo::new(stream), answer));
    }
}

fn grpc(message: &[u8]) -> Response<impl Body<Data = Bytes, Error = Infallible> + use<>> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    let frame = [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat();
    let body = Full::new(Bytes::from(frame)).with_trailers(std::future::ready(Some(Ok(trailers))));
    Response::builder().header("content-type", "application/grpc").body(body).unwrap()
}

fn spinning(node: &Node, made: &Made) -> Result<Running> {
    start(&mut node.0.command(&made.below(), &program("mix_nofp")?, &["--cpu", "600"])?)
}

fn two() -> [Made; 2] {
    [
        Made { number: 1, pod: "cart-7d9f8b6c5-x2v4k".to_owned(), app: "cart" },
        Made { number: 2, pod: "db-0".to_owned(), app: "db" },
    ]
}

/// The label of a target.
fn label(daemon: &Daemon, target: &str, key: &str) -> Result<String> {
    let target = daemon.target(target)?;
    target["labels"][key].as_str().map(str::to_owned).with_context(|| format!("no {key}: {target}"))
}

const EACH_POD: &str = "[[target]]\nname = \"pods\"\neverything = true\neach = \"pod\"\n";

#[test]
fn pods_are_targets_of_their_names_with_the_labels_that_their_runtime_says() -> Result<()> {
    let (group, folder) = (group!(), TempDir::new()?);
    let runtime = Runtime::start(folder.path())?;
    let pods = two();
    runtime.holds(&pods);
    let _spinning = [spinning(&group, &pods[0])?, spinning(&group, &pods[1])?];
    let daemon = Daemon::start_ample(2, &(runtime.settings() + EACH_POD))?;
    daemon.wait_for("pods:shop:cart-7d9f8b6c5-x2v4k", "sampled")?;
    daemon.wait_for("pods:shop:db-0", "sampled")?;
    for (key, text) in [
        ("k8s.namespace.name", "shop"),
        ("k8s.pod.name", "db-0"),
        ("k8s.pod.label.app", "db"),
        ("k8s.container.name", "server"),
        ("container.image.name", "registry:5000/shop"),
        ("container.image.tags", "1.2"),
    ] {
        ensure!(label(&daemon, "pods:shop:db-0", key)? == text, "{key}");
    }
    wait_until_told("a window of the pod", || {
        let query = ["profile", "--from", "-1m", "--label", "k8s.pod.name=db-0"];
        daemon.ctl(&query).is_ok_and(|ended| ended.status == 0 && ended.stdout.contains("mix_nofp"))
    })?;
    // Another pod comes: it has its name soon, and not before the next half minute.
    let late = Made { number: 3, pod: "late".to_owned(), app: "late" };
    runtime.holds(&[&pods[..], std::slice::from_ref(&late)].concat());
    let _late = spinning(&group, &late)?;
    let began = Instant::now();
    daemon.wait_for("pods:shop:late", "sampled")?;
    ensure!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    Ok(())
}

#[test]
fn a_runtime_that_hangs_or_is_missing_delays_nothing_and_is_reported() -> Result<()> {
    let (group, folder) = (group!(), TempDir::new()?);
    let hanging = folder.path().join("hanging.sock");
    let _listener = UnixListener::bind(&hanging)?;
    let pods = two();
    let _spinning = spinning(&group, &pods[0])?;
    let sockets = format!("[containers]\nsockets = [{hanging:?}, {:?}]\n", folder.path().join("missing"));
    let daemon = Daemon::start_ample(2, &(sockets + EACH_POD))?;
    daemon.wait_for("pods", "sampled")?;
    wait_until_told("the runtimes' trouble", || {
        daemon.ctl(&["status"]).is_ok_and(|ended| {
            ended.stdout.contains("does not answer within") && ended.stdout.contains("no such socket")
        })
    })?;
    let before = daemon.target("pods")?["samples"].as_u64().unwrap_or_default();
    wait_until_told("more samples", || {
        daemon.target("pods").is_ok_and(|target| target["samples"].as_u64() > Some(before))
    })?;
    Ok(())
}

#[test]
fn five_hundred_containers_come_and_go() -> Result<()> {
    let (group, folder) = (group!(), TempDir::new()?);
    let runtime = Runtime::start(folder.path())?;
    let many: Vec<Made> =
        (1..=500).map(|number| Made { number, pod: format!("pod-{number}"), app: "many" }).collect();
    runtime.holds(&many);
    let one_target = "[[target]]\nname = \"many\"\npod_labels = { app = \"many\" }\n";
    let daemon = Daemon::start_ample(2, &(runtime.settings() + one_target))?;
    let running: Vec<Running> = many
        .iter()
        .map(|made| start(&mut group.0.command(&made.below(), Path::new("/bin/sleep"), &["600"])?))
        .collect::<Result<_>>()?;
    let processes = || daemon.target("many").ok().and_then(|target| target["processes"].as_u64());
    wait_until_told("all of them", || processes() == Some(500))?;
    drop(running);
    wait_until_told("none of them", || processes() == Some(0))?;
    // Somebody in an unknown container hurries the runtime every two seconds at most.
    let unknown = Made { number: 501, pod: "unknown".to_owned(), app: "unknown" };
    let _unknown = start(&mut group.0.command(&unknown.below(), Path::new("/bin/sleep"), &["600"])?)?;
    let lists = || -> Vec<Instant> {
        let asked = runtime.asked.lock().unwrap();
        asked.iter().filter(|(_, path)| path.ends_with("ListContainers")).map(|(at, _)| *at).collect()
    };
    wait_until("more questions", || lists().len() >= 4)?;
    let lists = lists();
    let apart = lists.windows(2).map(|two| two[1] - two[0]).min().context("it was asked once at most")?;
    ensure!(apart > Duration::from_millis(1900), "{apart:?}");
    Ok(())
}
