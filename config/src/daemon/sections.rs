//! The sections of the daemon's file but for the targets. What is written above each key here is what the commented file
//! says of it.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::section::section;
use crate::{
    AttachMode, Backend, Bytes, Criterion, Hertz, Mode, Ratio, SamplingSettings, Span, Threads, Unwind,
};

section! {
    /// What profiling may cost.
    pub struct BudgetSettings {
        /// Bound on everything together, as a share of the CPU time of all CPUs: what it takes from targets and the profiler's
        /// own CPU time. Set-up counts over the minutes that follow. Where this is less than targets need, it goes where a
        /// sample still tells most.
        host: Ratio = Ratio::constant(0.01);
        /// Bound on the slowdown of a target, as a share of its CPU time: its samples, context switches and mapping records.
        /// It may be above the host's. A target may have a budget of its own.
        target: Ratio = Ratio::constant(0.01);
    }
}

section! {
    /// How targets are sampled. The defaults choose by measurement, target by target.
    pub struct HowToSample {
        /// CPU time of a target that one profile sums up: the longer, the lower the rate it needs.
        horizon: Span = Span::from_secs(60);
        /// Samples per CPU-second, with the controller off.
        rate: Option<Hertz> = None, such as "\"99Hz\"";
        /// The error that the rate makes smallest: mae, mse, p95 or z=SCORE.
        criterion: Criterion = SamplingSettings::default().criterion;
        /// Which threads a sample delays: independent (the one that it hits) or coupled (all that run, because they wait for each other at barriers).
        threads: Threads = SamplingSettings::default().threads;
        /// How stacks are unwound: auto, fp (frame pointers) or dwarf (unwind tables over a copy of the stack).
        unwind: Unwind = SamplingSettings::default().unwind;
        /// What takes the samples: auto or perf.
        backend: Backend = SamplingSettings::default().backend;
        /// How events are attached: auto, task (for each thread), cpu (for each CPU) or cgroup (for a control group on
        /// each CPU).
        attach_mode: AttachMode = SamplingSettings::default().attach_mode;
        /// Level of the intervals in reports.
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
        /// Time that one profile of a target covers: what is lost if the power fails. Up to six times as long where naming and
        /// keeping so many would take more than 15% of the host's budget.
        window: Span = Span::from_secs(60);
        /// Windows that ended so long ago are merged into one file for each hour, which keeps the time to a minute.
        hourly_after: Span = Span::from_secs(5 * 60);
        /// Hours that ended so long ago are merged into one file for each day, which keeps the time to ten minutes.
        daily_after: Span = Span::from_secs(24 * 3600);
    }
}

section! {
    /// Who may ask for profiles, and where. A profile tells what a program does: it is a secret.
    pub struct ListenSettings {
        /// The Unix socket. Whoever may open it sees every profile.
        socket: PathBuf = PathBuf::from("/run/sweetspot/sweetspot.sock");
        /// Mode of the socket.
        mode: Mode = Mode::constant(0o660);
        /// Group of the socket: its members may use it.
        group: String = "sweetspot".to_owned();
        /// Address and port for requests over the network. They need the token below.
        tcp: Option<SocketAddr> = None, such as "\"127.0.0.1:7117\"";
        /// File that holds the token, at least 32 characters in one line, readable by the profiler alone.
        token_file: Option<PathBuf> = None, such as "\"/etc/sweetspot/token\"";
        /// Certificates in PEM: with this and the key, TCP is encrypted. Without, the token crosses the network readably.
        tls_certificate: Option<PathBuf> = None, such as "\"/etc/sweetspot/tls.crt\"";
        /// The key of the first certificate, in PEM.
        tls_key: Option<PathBuf> = None, such as "\"/etc/sweetspot/tls.key\"";
    }
}

section! {
    /// Where names of functions come from.
    pub struct SymbolSettings {
        /// Memory for unwind tables, symbol tables and names, which all targets share; what is used least gives way.
        memory: Bytes = SamplingSettings::default().symbol_memory;
        /// Servers of debug files, asked in turn for what this machine lacks.
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
    /// Where containers and Kubernetes pods have their names from. Container runtimes are asked only if a target selects or parts
    /// processes by container or pod, or pod_labels below names some.
    pub struct ContainerSettings {
        /// Sockets of container runtimes: CRI (containerd, CRI-O) or the API of Docker and Podman. Of these defaults those that
        /// are there are asked. Whoever may open such a socket controls the runtime: only root can, unless it was configured
        /// otherwise.
        sockets: Vec<PathBuf> = RUNTIME_SOCKETS.map(PathBuf::from).to_vec();
        /// Labels of pods that become labels of profiles and metrics, as k8s.pod.label.KEY.
        pod_labels: Vec<String> = Vec::new(), such as "[\"app\", \"app.kubernetes.io/version\"]";
    }
}

section! {
    /// What the profiler never exceeds, whatever the targets do.
    pub struct LimitSettings {
        /// Targets that are sampled at a time. Over it, the least active are left out and counted.
        targets: u32 = 200;
        /// Memory of the whole process, `symbols.memory` and the rings of events included: at the limit, caches shrink and targets
        /// are left out.
        memory: Bytes = Bytes::new(512 << 20);
        /// Profiles that wait for their names or a slow disk, in memory; and as much again in the store's folder, beside
        /// `store.bytes`, where they outlive a crash. Over it, the newest are dropped and counted.
        queue: Bytes = Bytes::new(64 << 20);
        /// Requests that are answered at a time; others are told to come back.
        requests: u32 = 16;
    }
}
