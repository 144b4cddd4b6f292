//! What takes the samples, and what each backend cannot do.

use crate::choices::choice;
use crate::{AttachMode, SamplingSettings, Unwind};

choice! {
    /// What takes the samples.
    Backend, "auto, perf or timer-signal", later: [],
    /// The best that this machine permits.
    Auto = "auto",
    /// The kernel's perf events.
    Perf = "perf",
    /// Timers in the threads of a command, where perf events are not permitted.
    TimerSignal = "timer-signal",
}

impl Backend {
    /// For `--help` of what samples.
    pub const HELP: &str = "What takes the samples: auto, perf or timer-signal. Where perf events are not permitted, `auto` \
                            uses timer signals for a command. For a running process, timer-signal loads a library into it";
    /// For `--help` of `plan`.
    pub const PLAN_HELP: &str =
        "What takes the samples. With timer-signal, the kernel's tick limits the rate";

    /// Of several running processes, where they have to be sampled one by one.
    pub const TIMERS_ONE_AT_A_TIME: &str =
        "--backend timer-signal samples one process at a time; give its id";

    /// Why it cannot sample under these settings, and what to do.
    pub fn refuses(self, settings: &SamplingSettings) -> Option<String> {
        let refused =
            |option: String| Some(format!("{option} needs perf events; leave it out, or use --backend perf"));
        match (self, settings.unwind, settings.attach_mode) {
            (Self::Auto | Self::Perf, _, _) => None,
            // Agents do not follow frame pointers, and timers belong to threads.
            (Self::TimerSignal, Unwind::FramePointers, _) => refused("--unwind fp".to_owned()),
            (Self::TimerSignal, _, mode @ (AttachMode::Cpu | AttachMode::Cgroup)) => {
                refused(format!("--attach-mode {mode}"))
            }
            (Self::TimerSignal, Unwind::Auto | Unwind::Dwarf, AttachMode::Auto | AttachMode::Task) => None,
        }
    }

    /// Why it cannot attach to more than one running process at a time, and what to do.
    pub fn refuses_many(self) -> Option<&'static str> {
        match self {
            Self::Auto | Self::Perf => None,
            Self::TimerSignal => Some(Self::TIMERS_ONE_AT_A_TIME),
        }
    }

    /// Why the service cannot use it, and what to do.
    pub fn refused_by_service(self) -> Option<&'static str> {
        match self {
            Self::Auto | Self::Perf => None,
            Self::TimerSignal => {
                Some("timer-signal samples what is recorded or attached to, one process at a time: use perf")
            }
        }
    }
}
