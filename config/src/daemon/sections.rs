//! The sections of the daemon's file but for the targets. What is written above each key here is what the commented file
//! says of it.

use std::net::SocketAddr;
use std::path::PathBuf;

use profiler_core::rate::Criterion;

use crate::section::section;
use crate::{AttachMode, Backend, Bytes, Hertz, Mode, Ratio, SamplingSettings, Span, Threads, Unwind};

section! {
    /// What profiling may cost.
    pub struct BudgetSettings {
        /// Bound on everything together, as a share of the CPU time of all CPUs: what it takes from targets
        /// and the profiler's own CPU time. Set-up counts over the minutes that follow. If this is less than
        /// the targets need, it goes where a sample gains most.
        host: Ratio = Ratio::constant(0.01);
        /// Bound on the slowdown of a target, as a share of its CPU time: its samples, context switches and mapping records.
        /// It may be above the host's. A target may have a budget of its own.
        target: Ratio = Ratio::constant(0.01);
    }
}

section! {
    /// How targets are sampled. The defaults choose by measurement, target by target.
    pub struct HowToSample {
        /// CPU time of a target that one profile covers: the longer, the lower the rate it needs.
        horizon: Span = Span::from_secs(60);
        /// Fixed rate in samples per CPU-second. This turns the controller off.
        rate: Option<Hertz> = None, such as "\"99Hz\"";
        /// The error that the rate minimises: mae, mse, p95 or z=SCORE.
        criterion: Criterion = SamplingSettings::default().criterion;
        /// Which threads a sample delays: independent (only the one it hits) or coupled (all running threads,
        /// because they wait for each other at barriers).
        threads: Threads = SamplingSettings::default().threads;
        /// How to unwind stacks: auto, fp (frame pointers) or dwarf (unwind tables over a copy of the stack).
        unwind: Unwind = SamplingSettings::default().unwind;
        /// What takes the samples: auto or perf.
        backend: Backend = SamplingSettings::default().backend;
        /// How to attach events: auto, task (for each thread), cpu (for each CPU) or cgroup (for a control
        /// group on each CPU).
        attach_mode: AttachMode = SamplingSettings::default().attach_mode;
        /// Confidence level of the intervals in reports.
        confidence: Ratio = SamplingSettings::default().confidence;
    }
}

section! {
    /// Where profiles are kept, and for how long. Both bounds hold, whichever is reached first; the oldest go first.
    pub struct StoreSettings {
        /// The folder. Only the profiler writes to it; any reader of pprof files opens what is in it.
        folder: PathBuf = PathBuf::from("/var/lib/sweetspot");
        /// How long a profile is kept.
        age: Span = Span::from_secs(7 * 24 * 3600);
        /// Room for all of them together.
        bytes: Bytes = Bytes::new(2 << 30);
        /// Time that one profile of a target covers. It is lost in a crash; a power failure takes half a minute
        /// more. Up to six times as long if naming and storing so many would take more than 15% of the host's
        /// budget. Where more than eight targets began together, some windows are up to 1.75 times as long: they
        /// end in turn. The first of each of up to 32 targets covers 15 s at most, so that it can be seen soon.
        window: Span = Span::from_secs(60);
        /// Age at which windows are merged into one file for each hour, with a time resolution of a minute.
        hourly_after: Span = Span::from_secs(5 * 60);
        /// Age at which hours are merged into one file for each day, with a time resolution of ten minutes.
        daily_after: Span = Span::from_secs(24 * 3600);
    }
}

section! {
    /// Who may request profiles, and where. Profiles are secrets: they show what a program does.
    pub struct ListenSettings {
        /// The Unix socket. Anyone who can open it sees every profile.
        socket: PathBuf = PathBuf::from("/run/sweetspot/sweetspot.sock");
        /// Mode of the socket.
        mode: Mode = Mode::constant(0o660);
        /// Group of the socket: its members may use it.
        group: String = "sweetspot".to_owned();
        /// Address and port for requests over the network. They need the token below.
        tcp: Option<SocketAddr> = None, such as "\"127.0.0.1:7117\"";
        /// File that holds the token, at least 32 characters in one line, readable by the profiler alone.
        token_file: Option<PathBuf> = None, such as "\"/etc/sweetspot/token\"";
        /// File with a second token, for Prometheus: it opens /metrics and nothing else. The first one opens all, profiles and `ctl stop`
        /// included.
        metrics_token_file: Option<PathBuf> = None, such as "\"/etc/sweetspot/metrics.token\"";
        /// Certificates in PEM: with this and the key, TCP is encrypted. Without them, the token is sent in
        /// the clear.
        tls_certificate: Option<PathBuf> = None, such as "\"/etc/sweetspot/tls.crt\"";
        /// The key of the first certificate, in PEM.
        tls_key: Option<PathBuf> = None, such as "\"/etc/sweetspot/tls.key\"";
    }
}

section! {
    /// Where names of functions come from.
    pub struct SymbolSettings {
        /// Memory for unwind tables, symbol tables and names, shared by all targets. What is used least is
        /// dropped first.
        memory: Bytes = SamplingSettings::default().symbol_memory;
        /// Servers for debug files that this machine lacks, tried in this order.
        debuginfod: Vec<String> = Vec::new(), such as "[\"https://debuginfod.debian.net/\"]";
    }
}

/// Where container runtimes listen by default.
const RUNTIME_SOCKETS: [&str; 5] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/docker.sock",
    "/run/podman/podman.sock",
];

section! {
    /// Where names of containers and Kubernetes pods come from. Container runtimes are only queried if a
    /// target selects or divides processes by container or pod, if pod_labels below is set, or if a rule for
    /// labels reads their names.
    pub struct ContainerSettings {
        /// Sockets of container runtimes: CRI (containerd, CRI-O) or the API of Docker and Podman. Of the
        /// defaults, those that exist are queried. Anyone who can open such a socket controls the runtime; by
        /// default only root can.
        sockets: Vec<PathBuf> = RUNTIME_SOCKETS.map(PathBuf::from).to_vec();
        /// Labels of pods that become labels of profiles and metrics, as k8s.pod.label.KEY.
        pod_labels: Vec<String> = Vec::new(), such as "[\"app\", \"app.kubernetes.io/version\"]";
    }
}

section! {
    /// One optimum for all replicas of a service. If all hosts together use R times the CPU time for a service that this host uses,
    /// each samples it R^(-1/3) times as often, and the error of their summed profiles is R^(-1/3) times that of one. R comes once a
    /// minute from a Prometheus that scrapes the profilers of all hosts, or from `replicas` of a target.
    pub struct FleetSettings {
        /// Address of the Prometheus. Without it, each host samples for itself.
        prometheus: Option<String> = None, such as "\"http://prometheus.example:9090\"";
        /// What replicas of a service have in common: target (the name of the target), or a label that targets have, such as
        /// k8s.deployment.name.
        label: String = "target".to_owned();
        /// File with a token, sent as `Authorization: Bearer TOKEN`. It needs https, unless the Prometheus is on this machine.
        token_file: Option<PathBuf> = None, such as "\"/etc/sweetspot/prometheus.token\"";
        /// File with the certificates (PEM) to trust instead of the public authorities.
        ca_file: Option<PathBuf> = None, such as "\"/etc/sweetspot/ca.pem\"";
        /// Longest time for an answer, from the connection to its end.
        timeout: Span = Span::from_secs(10);
    }
}

section! {
    /// What the profiler never exceeds, whatever the targets do.
    pub struct LimitSettings {
        /// Most targets that are sampled at a time. Beyond it, the least active are left out and counted.
        targets: u32 = 200;
        /// Memory of the whole process, `symbols.memory` and the rings of events included: at the limit, caches shrink and targets
        /// are left out.
        memory: Bytes = Bytes::new(512 << 20);
        /// Profiles that wait for their names or a slow disk, in memory; and as much again in the store's
        /// folder, beside `store.bytes`, where they outlive a crash. Beyond it, the newest are dropped and
        /// counted.
        queue: Bytes = Bytes::new(64 << 20);
        /// Most requests for profiles, `attach` and `reload` that are handled at a time, and most of all others together;
        /// more of either have to try again.
        requests: u32 = 16;
    }
}
