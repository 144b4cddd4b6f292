//! `--until-precision`: when sampling may stop, and how the command goes on without it.

use std::time::Duration;

use anyhow::Result;
use config::SamplingSettings;
use profiler_core::stack::{Frame, ObjectId};
use profiler_core::stats::{Confidence, Goal, IntervalTable};
use symbolizer::KernelSymbols;

use super::Signals;
use super::follow::{Requests, Stop};
use crate::sampler::session::Session;
use crate::sys::spawn::RunningCommand;
use crate::terminal::Terminal;

/// Samples before the first look; no goal is reached with fewer.
const FIRST_LOOK_SAMPLES: u64 = 100;
/// The next look comes when there are this many times the samples: the cost of looks then grows more slowly than the
/// run.
const GROWTH: f64 = 1.1;
/// Time between two looks at a command that is no longer sampled; its end wakes us anyway.
const IDLE: Duration = Duration::from_secs(1);

/// Looks from time to time whether the largest functions are known well enough.
///
/// Functions are those of the code as it lies: what the compiler inlined counts with the function that it was inlined
/// into, since names are not looked up before the end.
pub(crate) struct Precise {
    goal: Goal,
    confidence: Confidence,
    next_look_samples: u64,
    /// Distinguishes the kernel's functions.
    kernel: Option<KernelSymbols>,
}

/// What counts as one function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum PreciseFunction {
    Code(Frame),
    Kernel(String),
}

impl Precise {
    /// Set up if `sampling` asks for it.
    pub(crate) fn new(sampling: &SamplingSettings) -> Option<Self> {
        let goal = Goal { relative: sampling.until_precision?.get(), ..Goal::default() };
        let list = std::fs::read("/proc/kallsyms").unwrap_or_default();
        Some(Self {
            goal,
            confidence: Confidence::new(sampling.confidence.get()),
            next_look_samples: FIRST_LOOK_SAMPLES,
            kernel: KernelSymbols::parse(&list).ok(),
        })
    }

    /// Whether the goal is reached. Cheap to ask: most of the time it is not yet time to look again.
    pub(crate) fn is_reached(&mut self, session: &Session) -> bool {
        if !self.is_due(session.counts.samples) {
            return false;
        }
        let (windows, functions) = session.function_parts(|frame| self.function(frame));
        let table = IntervalTable::new(&windows, &functions, self.confidence);
        self.goal.judge(&table).converged
    }

    fn is_due(&mut self, samples: u64) -> bool {
        let is_due = samples >= self.next_look_samples;
        if is_due {
            self.next_look_samples = (samples as f64 * GROWTH).ceil() as u64;
        }
        is_due
    }

    fn function(&self, frame: Frame) -> PreciseFunction {
        let symbols = self.kernel.as_ref().filter(|_| frame.object == ObjectId::KERNEL);
        let symbol = symbols.and_then(|symbols| symbols.symbolize(frame.address));
        symbol.map_or(PreciseFunction::Code(frame), |symbol| PreciseFunction::Kernel(symbol.name))
    }
}

/// Waits for a command that is no longer sampled. Signals are passed on to it, as while it was sampled; at the second
/// one it is left alone.
pub(super) async fn outlast(
    signals: &mut Signals,
    command: &RunningCommand,
    terminal: Terminal,
) -> Result<Stop> {
    let mut requests = Requests::default();
    loop {
        if let Some(ended) = command.try_wait()? {
            return Ok(Stop::Exit(ended));
        }
        if let Some(signal) = signals.wait(IDLE).await
            && let Some(stop) = requests.pass_on(signal, command, terminal)
        {
            return Ok(stop);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn precise() -> Precise {
        let asked = SamplingSettings { until_precision: Some("5%".parse().unwrap()), ..Default::default() };
        Precise::new(&asked).unwrap()
    }

    #[test]
    fn nothing_asked_nothing_watched() {
        assert!(Precise::new(&SamplingSettings::default()).is_none());
        assert_eq!(precise().goal.relative, 0.05);
    }

    #[test]
    fn looks_get_rarer_as_samples_gather() {
        let mut precise = precise();
        assert_eq!((0..100).filter(|&samples| precise.is_due(samples)).count(), 0);
        assert!(precise.is_due(100));
        let looks = (100..1_000_000).filter(|&samples| precise.is_due(samples)).count();
        assert!((80..110).contains(&looks), "{looks} looks");
    }

    #[test]
    fn code_of_the_kernel_is_told_apart_by_function() {
        let list = b"ffffffff81000000 T first\nffffffff81000100 T second\nffffffff81000200 T end\n";
        let precise = Precise { kernel: KernelSymbols::parse(list).ok(), ..precise() };
        let kernel = |address| precise.function(Frame { object: ObjectId::KERNEL, address });
        assert_eq!(kernel(0xffff_ffff_8100_0010), PreciseFunction::Kernel("first".to_owned()));
        assert_eq!(kernel(0xffff_ffff_8100_0110), PreciseFunction::Kernel("second".to_owned()));
        assert_eq!(
            kernel(0),
            PreciseFunction::Code(Frame { object: ObjectId::KERNEL, address: 0 }),
            "no stack"
        );
        let user = Frame { object: ObjectId::UNKNOWN, address: 0xffff_ffff_8100_0010 };
        assert_eq!(precise.function(user), PreciseFunction::Code(user));
    }
}
