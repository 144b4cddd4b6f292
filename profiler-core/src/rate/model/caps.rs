//! What bounds the rate besides the law.

use serde::Serialize;

/// What one of the caps on the rate allows, all in samples per CPU-second of the target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Caps {
    /// The budget of the target's slowdown.
    pub budget_hz: f64,
    /// The budget of the profiler's own CPU time, or what the host's budget leaves for everything that sampling costs.
    pub own_hz: f64,
    /// The shortest period the kernel is asked for.
    pub kernel_hz: f64,
    /// The rate of bytes that the rings and the unwinder can take.
    pub bytes_hz: f64,
}

impl Caps {
    /// The least of the law's rate and the caps, and which one it is. A NaN among them never binds.
    pub fn bound(&self, law_hz: f64) -> (f64, BoundBy) {
        let caps = [
            (self.budget_hz, BoundBy::Budget),
            (self.own_hz, BoundBy::OwnCpu),
            (self.kernel_hz, BoundBy::Kernel),
            (self.bytes_hz, BoundBy::Bytes),
        ];
        caps.into_iter().fold((law_hz, BoundBy::Law), |least, cap| if cap.0 < least.0 { cap } else { least })
    }
}

/// What set the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BoundBy {
    /// The law: more samples would make the profile worse.
    Law,
    /// The budget of the target's slowdown.
    Budget,
    /// The budget of the profiler's own CPU time.
    OwnCpu,
    /// The host's budget for everything that sampling costs.
    Host,
    /// The shortest period the kernel is asked for.
    Kernel,
    /// The kernel's tick: timers on CPU time expire at ticks alone.
    Tick,
    /// The bytes that samples bring.
    Bytes,
    /// The token bucket: more was spent of late than the budget allows.
    Bucket,
    /// The lowest rate that still yields a profile.
    Floor,
    /// The user, who fixed it.
    Fixed,
}

impl BoundBy {
    /// The name in JSON and in a profile's summary.
    pub fn as_str(self) -> &'static str {
        match self {
            BoundBy::Law => "law",
            BoundBy::Budget => "budget",
            BoundBy::OwnCpu => "own_cpu",
            BoundBy::Host => "host",
            BoundBy::Kernel => "kernel",
            BoundBy::Tick => "tick",
            BoundBy::Bytes => "bytes",
            BoundBy::Bucket => "bucket",
            BoundBy::Floor => "floor",
            BoundBy::Fixed => "fixed",
        }
    }
}
