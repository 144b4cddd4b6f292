//! Why a process could not be changed, in words.

use std::fs;

use agent_memory::{AgentReply, AgentSettings};

use super::InjectionRefused;
use crate::sys::ptrace::TraceError;

pub(super) const NO_ANSWER: &str = "has an agent that does not answer; start it again";

pub(super) const GONE: &str = "has ended, or has become another program; start it again";

pub(super) const NO_SIGNAL: &str = "handles SIGURG and SIGWINCH itself, blocks or reads them (signalfd, \
                                    sigwait), or has a seccomp filter; use perf events";

/// Why a call did not come to its end.
#[derive(Debug)]
pub(super) enum InjectError {
    /// It may still do so.
    Late,
    /// It will when the process goes on.
    Halted,
    Refused(InjectionRefused),
}

impl From<TraceError> for InjectError {
    fn from(lost: TraceError) -> Self {
        match lost {
            TraceError::Late => Self::Late,
            TraceError::Halted => Self::Halted,
            TraceError::Gone => failed(GONE),
            TraceError::Refused(error) => failed(&format!("could not be changed ({error}); use perf events")),
        }
    }
}

impl From<InjectError> for InjectionRefused {
    fn from(error: InjectError) -> Self {
        let text = match error {
            InjectError::Refused(refused) => return refused,
            InjectError::Late => {
                "did not return from a call in time; it may still return, and then continues as before"
            }
            InjectError::Halted => "was stopped meanwhile; continue it first (`kill -CONT`)",
        };
        Self::Failed(text.to_owned())
    }
}

pub(super) fn failed(text: &str) -> InjectError {
    InjectError::Refused(InjectionRefused::Failed(text.to_owned()))
}

/// What came of a call where nothing came of it.
pub(super) fn refusal(answer: AgentReply) -> InjectError {
    let patience_s = AgentSettings::default().patience_ns / 1_000_000_000;
    let is_busy = format!(
        "is sampled by another sweetspot already; end that, or wait for {patience_s} seconds if it was killed"
    );
    failed(match answer {
        AgentReply::Busy => &is_busy,
        AgentReply::NoSignal => NO_SIGNAL,
        AgentReply::NoMemory => "could not map the memory for the samples (`ulimit -v`?); use perf events",
        AgentReply::Unfinished => {
            "has a thread that does not come out of the library's handler; the memory stays mapped"
        }
        AgentReply::Occupied => "is in use by another sweetspot; try again",
        AgentReply::Done | AgentReply::Unknown => NO_ANSWER,
    })
}

/// Why it may not be traced.
pub(super) fn denied() -> InjectionRefused {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let also = match scope.trim() {
        "" | "0" => "run as its owner or as root, with the capability SYS_PTRACE in a container",
        "3" => "kernel.yama.ptrace_scope is 3, which forbids it until the machine is restarted",
        _ => "kernel.yama.ptrace_scope is not 0: run as root",
    };
    InjectionRefused::NotPermitted(format!("may not be changed: {also}"))
}
