//! Settings that are one word of a few.

/// Why a word was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChoiceError {
    /// Not one of the words.
    #[error("expected {expected}, not `{found}`")]
    Unknown {
        /// The words that would have been understood.
        expected: &'static str,
        /// What was written.
        found: String,
    },
    /// A word that is reserved for a later version.
    #[error("`{found}` is not available in this version; use {expected}")]
    NotAvailable {
        /// The words that are available.
        expected: &'static str,
        /// What was written.
        found: String,
    },
}

/// A closed set of words: an enum, its parser and its printer from one list.
macro_rules! choice {
    (
        $(#[$meta:meta])*
        $name:ident, $words:literal, later: [$($later:literal),*],
        $($(#[$doc:meta])* $variant:ident = $word:literal,)*
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $(Self::$variant => $word,)* })
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::ChoiceError;

            fn from_str(text: &str) -> Result<Self, $crate::ChoiceError> {
                const LATER: &[&str] = &[$($later),*];
                let found = text.to_owned();
                match text {
                    $($word => Ok(Self::$variant),)*
                    _ if LATER.contains(&text) => Err($crate::ChoiceError::NotAvailable { expected: $words, found }),
                    _ => Err($crate::ChoiceError::Unknown { expected: $words, found }),
                }
            }
        }
    };
}
pub(crate) use choice;

choice! {
    /// How stacks are unwound.
    Unwind, "auto, fp or dwarf", later: [],
    /// Whichever costs less and is complete for this target.
    Auto = "auto",
    /// By frame pointers, in the kernel.
    FramePointers = "fp",
    /// By unwind tables, over a copy of the stack.
    Dwarf = "dwarf",
}

choice! {
    /// Which threads a sample delays.
    Threads, "independent or coupled", later: [],
    /// The thread that is sampled, and no other.
    Independent = "independent",
    /// All threads of the target that run: they wait for each other at barriers.
    Coupled = "coupled",
}

choice! {
    /// How events are attached to the target.
    AttachMode, "auto, task, cpu or cgroup", later: [],
    /// Whichever costs less for this target.
    Auto = "auto",
    /// One event for each thread and CPU.
    Task = "task",
    /// One event for each CPU; samples of other processes are dropped.
    Cpu = "cpu",
    /// One event for each CPU, of a control group alone.
    Cgroup = "cgroup",
}

choice! {
    /// What parts the processes of a section into targets.
    Each, "process, unit, container, pod, workload, cgroup or user", later: [],
    /// The name of the program that it runs.
    Process = "process",
    /// Its systemd unit.
    Unit = "unit",
    /// Its container.
    Container = "container",
    /// Its Kubernetes pod.
    Pod = "pod",
    /// What its Kubernetes pod is one of: a deployment, say.
    Workload = "workload",
    /// Its control group.
    Cgroup = "cgroup",
    /// Its user.
    User = "user",
}

choice! {
    /// What a backend takes.
    ExportFormat, "pyroscope, pyroscope-push, otlp or otlp-grpc", later: [],
    /// pprof, by Pyroscope's `/ingest`.
    Pyroscope = "pyroscope",
    /// The same by Pyroscope's Connect call `push.v1.PusherService/Push`.
    PyroscopePush = "pyroscope-push",
    /// OpenTelemetry's profiles over HTTP.
    Otlp = "otlp",
    /// The same by gRPC.
    OtlpGrpc = "otlp-grpc",
}

choice! {
    /// What a rule for labels does.
    RelabelAction, "replace, keep, drop, labeldrop, labelkeep, labelmap, lowercase or uppercase",
    later: ["hashmod", "keepequal", "dropequal"],
    /// Sets a label where the regular expression matches.
    Replace = "replace",
    /// Drops what it does not match.
    Keep = "keep",
    /// Drops what it matches.
    Drop = "drop",
    /// Removes each label with a name that it matches.
    LabelDrop = "labeldrop",
    /// Removes all others.
    LabelKeep = "labelkeep",
    /// Copies each label with a name that it matches to another name.
    LabelMap = "labelmap",
    /// Sets a label to the texts in lower case.
    Lowercase = "lowercase",
    /// Sets a label to the texts in upper case.
    Uppercase = "uppercase",
}
