//! Programs that are locked to the kernel's tick, and others, sampled by tick and clock in simulation: what the audit finds, and when.

use std::collections::BTreeMap;

use profiler_core::audit::{Audit, AuditSettings, Both, Disagreement, Finding, agree};
use profiler_core::rate::Dither;
use profiler_core::stats::{Beside, Confidence, IntervalTable, Part, Row, Window};

/// Ticks a second, and how often the audit is told.
pub const HZ: f64 = 250.0;
const TICK_NS: f64 = 1e9 / HZ;
const TOLD_NS: f64 = 100e6;
/// Samples of a clock between two draws of its period.
const REDRAW_SAMPLES: u32 = 10;

/// How often samples are taken.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// By the clock (samples per CPU-second).
    pub clock_hz: f64,
    /// One in so many ticks, on average.
    pub every: f64,
}

/// At every tick, and so often by the clock.
impl From<f64> for Rates {
    fn from(clock_hz: f64) -> Self {
        Rates { clock_hz, every: 1.0 }
    }
}

/// What a thread does.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// Wakes at a fixed time, runs through its functions (number, ns) and sleeps again.
    Periodic {
        /// From one wake-up to the next (ns).
        period_ns: f64,
        /// The first wake-up, after a tick (ns).
        phase_ns: f64,
        /// How much later each wake-up comes at most, at random (ns).
        jitter_ns: f64,
        /// Functions in turn, and how long each runs (ns).
        work: Vec<(u64, f64)>,
    },
    /// Runs through bouts of random functions and lengths, and sleeps between two for a random while.
    Random {
        /// Share of each function.
        shares: Vec<f64>,
        /// Mean length of a bout (ns).
        bout_ns: f64,
        /// Mean length of a sleep (ns); 0 for none.
        sleep_ns: f64,
    },
}

/// Threads, each with what it does from which second on: in the order of time.
#[derive(Clone, Debug)]
pub struct Program {
    /// For people.
    pub name: &'static str,
    /// Whether all threads draw alike: they run the same functions at the same times.
    pub in_step: bool,
    /// One list a thread.
    pub threads: Vec<Vec<(f64, Pattern)>>,
}

/// What both sources saw of a function, and how long it ran (ns).
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Ticks that hit it.
    pub ticks: u64,
    /// Samples of the clock that did.
    pub clock: u64,
    /// CPU time.
    pub cpu_ns: f64,
}

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What was found, if anything.
    pub finding: Option<Finding>,
    /// CPU time of the target (s), and of the thread that was found at fault where it was one, until then.
    pub cpu_s: f64,
    /// CPU time since the threads took up what they do last (s), until the finding or the end: of all, and of the last one, which changes.
    since_change_cpu_s: f64,
    last_since_change_cpu_s: f64,
    /// By function, in each second.
    pub seconds: Vec<BTreeMap<u64, Seen>>,
}

impl Outcome {
    /// After how much CPU time a lock was found (s): of the program, or, where a thread is found to be at fault, of that thread.
    pub fn late_s(&self) -> f64 {
        match self.finding {
            Some(Finding { what: Disagreement::Thread(_), .. }) => self.last_since_change_cpu_s,
            _ => self.since_change_cpu_s,
        }
    }

    /// By function.
    pub fn functions(&self) -> BTreeMap<u64, Seen> {
        let mut functions: BTreeMap<u64, Seen> = BTreeMap::new();
        for (function, seen) in self.seconds.iter().flatten() {
            let sum = functions.entry(*function).or_default();
            sum.ticks += seen.ticks;
            sum.clock += seen.clock;
            sum.cpu_ns += seen.cpu_ns;
        }
        functions
    }

    /// Whether each function's share of the CPU time lies in its interval, all of them together; and whether ticks are in the
    /// profile: nothing was found, and at the end they agree with the clock.
    pub fn covers(&self, confidence: Confidence) -> (bool, bool) {
        let functions = self.functions();
        let both: Vec<(u64, Both)> = functions
            .iter()
            .map(|(function, seen)| (*function, Both { ticks: seen.ticks, clock: seen.clock }))
            .collect();
        let has_ticks = self.finding.is_none() && agree(&[both]);
        let clock = |seen: &Seen| (seen.clock as f64, seen.clock);
        let windows: Vec<Window> = self
            .seconds
            .iter()
            .map(|second| {
                let samples: u64 = second.values().map(|seen| seen.clock).sum();
                Window { weight_ns: samples as f64, samples, ..Window::default() }
            })
            .collect();
        let parts = |function: &u64| -> Vec<Part> {
            let had =
                self.seconds.iter().zip(0..).filter_map(|(second, at)| Some((at, second.get(function)?)));
            had.map(|(window, seen)| (window, clock(seen)))
                .map(|(window, (weight_ns, samples))| Part { window, weight_ns, samples, ..Part::default() })
                .collect()
        };
        let parts: Vec<Vec<Part>> = functions.keys().map(parts).collect();
        let all: u64 = functions.values().map(|seen| seen.ticks + seen.clock).sum();
        let beside = |seen: &Seen| Beside {
            share: (seen.ticks + seen.clock) as f64 / all.max(1) as f64,
            samples: seen.ticks,
        };
        let beside: Vec<Beside> = functions.values().map(beside).collect();
        let table =
            IntervalTable::with_beside(&windows, &parts, if has_ticks { &beside } else { &[] }, confidence);
        let cpu_ns: f64 = functions.values().map(|seen| seen.cpu_ns).sum();
        let holds = |(row, seen): (&Row, &Seen)| {
            // What no sample hit is not in the table.
            let is_told = seen.clock > 0 || has_ticks && seen.ticks > 0;
            !is_told || (row.this_run.low..=row.this_run.high).contains(&(seen.cpu_ns / cpu_ns))
        };
        (table.rows().iter().zip(functions.values()).all(holds), has_ticks)
    }
}

struct Thread<'a> {
    script: &'a [(f64, Pattern)],
    rng: fastrand::Rng,
    dither: Dither,
    clock_rng: fastrand::Rng,
    /// Until when it sleeps or has run (ns).
    now_ns: f64,
    wake_ns: f64,
    step: usize,
    /// What is left of the present run: function, ns.
    run: (u64, f64),
    /// CPU time until the clock fires, its period and the samples left until that is drawn anew.
    left_ns: f64,
    period_ns: f64,
    samples_left: u32,
    /// Ticks until one is sampled, one in how many is, and samples until that is drawn anew.
    ticks_left: u64,
    every: u64,
    tick_samples_left: u32,
    cpu_ns: f64,
}

impl<'a> Thread<'a> {
    /// A thread that does what `seed` draws, sampled as `clock_seed` draws.
    fn new(script: &'a [(f64, Pattern)], seed: u64, clock_seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let wake_ns = match &script[0].1 {
            Pattern::Periodic { phase_ns, .. } => *phase_ns,
            Pattern::Random { .. } => rng.f64() * TICK_NS,
        };
        Thread {
            script,
            dither: Dither::new(clock_seed ^ 0x5eed),
            clock_rng: fastrand::Rng::with_seed(clock_seed ^ 0xc10c),
            now_ns: wake_ns,
            wake_ns,
            step: 0,
            run: (0, 0.0),
            left_ns: f64::NAN,
            period_ns: 0.0,
            samples_left: 0,
            ticks_left: 1,
            every: 1,
            tick_samples_left: 0,
            cpu_ns: 0.0,
            rng,
        }
    }

    fn pattern(&self) -> &'a Pattern {
        let now_s = self.now_ns * 1e-9;
        let begun = self.script.iter().rev().find(|(from_s, _)| *from_s <= now_s);
        &begun.unwrap_or(&self.script[0]).1
    }

    /// The next function to run, after a sleep where one is due.
    fn next(&mut self) {
        match self.pattern() {
            Pattern::Periodic { period_ns, phase_ns, jitter_ns, work } => {
                self.step += 1;
                if self.step >= work.len() {
                    self.step = 0;
                    // Wake-ups that were missed are left out, as those of a timer are.
                    let due = ((self.now_ns - phase_ns) / period_ns).floor() + 1.0;
                    self.wake_ns = (phase_ns + due * period_ns).max(self.now_ns);
                    self.now_ns = self.wake_ns + self.rng.f64() * jitter_ns;
                }
                self.run = work[self.step];
            }
            Pattern::Random { shares, bout_ns, sleep_ns } => {
                let exponential = |rng: &mut fastrand::Rng| -(1.0 - rng.f64()).ln();
                if *sleep_ns > 0.0 {
                    self.now_ns += sleep_ns * exponential(&mut self.rng);
                }
                let mut left = self.rng.f64() * shares.iter().sum::<f64>();
                let function = shares.iter().position(|share| {
                    left -= share;
                    left < 0.0
                });
                self.run = (function.unwrap_or(0) as u64, bout_ns * exponential(&mut self.rng));
            }
        }
    }

    /// Runs until `end_ns`; `hit` is told of each sample: its function, and when it was taken where it is the tick's (ns).
    fn run(
        &mut self,
        end_ns: f64,
        Rates { clock_hz, every }: Rates,
        functions: &mut BTreeMap<u64, Seen>,
        mut hit: impl FnMut(u64, Option<u64>),
    ) {
        if self.left_ns.is_nan() {
            self.period_ns = 1e9 / clock_hz;
            self.left_ns = self.clock_rng.f64() * self.period_ns;
        }
        while self.now_ns < end_ns {
            if self.run.1 <= 0.0 {
                self.next();
                continue;
            }
            let (function, ns) = (self.run.0, self.run.1.min(end_ns - self.now_ns).max(1.0));
            let seen = functions.entry(function).or_default();
            let (first, end) =
                ((self.now_ns / TICK_NS).ceil() as u64, ((self.now_ns + ns) / TICK_NS).ceil() as u64);
            for tick in first..end {
                self.ticks_left -= 1;
                if self.ticks_left == 0 {
                    hit(function, Some(tick * TICK_NS as u64));
                    seen.ticks += 1;
                    self.ticks_left = self.every;
                    if self.tick_samples_left == 0 {
                        // What has passed of the period is lost, and the next tick is sampled.
                        self.ticks_left = 1 + self.clock_rng.u64(0..self.every);
                        self.every = self.dither.draw_count(every, TICK_NS as u64);
                        self.tick_samples_left = REDRAW_SAMPLES;
                    }
                    self.tick_samples_left -= 1;
                }
            }
            self.left_ns -= ns;
            while self.left_ns <= 0.0 {
                hit(function, None);
                seen.clock += 1;
                if self.samples_left == 0 {
                    self.period_ns = self.dither.draw((1e9 / clock_hz) as u64) as f64;
                    self.samples_left = REDRAW_SAMPLES;
                }
                self.samples_left -= 1;
                self.left_ns += self.period_ns;
            }
            seen.cpu_ns += ns;
            self.cpu_ns += ns;
            self.now_ns += ns;
            self.run.1 -= ns;
        }
    }
}

/// Runs `program` until something is found, or its threads have used `most_cpu_s`.
pub fn run(program: &Program, rates: impl Into<Rates>, most_cpu_s: f64, seed: u64) -> Outcome {
    run_on(program, rates.into(), most_cpu_s, seed, |finding| finding.is_some())
}

/// The same until the CPU time is used, whatever is found.
pub fn run_whole(program: &Program, rates: impl Into<Rates>, cpu_s: f64, seed: u64) -> Outcome {
    run_on(program, rates.into(), cpu_s, seed, |_| false)
}

fn run_on(
    program: &Program,
    rates: Rates,
    most_cpu_s: f64,
    seed: u64,
    ends: impl Fn(Option<Finding>) -> bool,
) -> Outcome {
    let mut audit = Audit::new(AuditSettings { hz: HZ, ..AuditSettings::default() });
    audit.thin(rates.every);
    let seeds = |i: usize| seed.wrapping_mul(0x9e37_79b9).wrapping_add(i as u64);
    let work_seed = |i| seeds(if program.in_step { 0 } else { i });
    let scripts = program.threads.iter().enumerate();
    let mut threads: Vec<Thread<'_>> =
        scripts.map(|(i, script)| Thread::new(script, work_seed(i), seeds(i))).collect();
    let changed_s = program.threads.iter().flatten().map(|(from_s, _)| *from_s).fold(0.0, f64::max);
    let (mut outcome, mut now_ns) = (Outcome::default(), 0.0);
    (0..threads.len()).for_each(|i| audit.charge_thread(i as u32, 0));
    while !ends(outcome.finding) && outcome.cpu_s < most_cpu_s {
        outcome.seconds.resize_with((now_ns * 1e-9) as usize + 1, BTreeMap::new);
        let Some(functions) = outcome.seconds.last_mut() else { break };
        now_ns += TOLD_NS;
        let mut cpu_ns = 0.0;
        let mut used = vec![0.0; threads.len()];
        let mut ticks: Vec<(u64, u32, u64)> = Vec::new();
        for (i, thread) in threads.iter_mut().enumerate() {
            let before_ns = thread.cpu_ns;
            thread.run(now_ns, rates, functions, |function, tick_at_ns| match tick_at_ns {
                Some(at_ns) => ticks.push((at_ns, i as u32, function)),
                None => audit.clock(function),
            });
            used[i] = thread.cpu_ns - before_ns;
            audit.charge_thread(i as u32, used[i].round() as u64);
            cpu_ns += used[i];
        }
        ticks.sort_unstable();
        ticks
            .iter()
            .for_each(|&(at_ns, thread, function)| audit.tick(thread, Some(function), (thread, at_ns)));
        outcome.cpu_s += cpu_ns * 1e-9;
        outcome.finding = audit.charge(cpu_ns.round() as u64);
        if now_ns > changed_s * 1e9 {
            outcome.since_change_cpu_s += cpu_ns * 1e-9;
            outcome.last_since_change_cpu_s += used.last().copied().unwrap_or(0.0) * 1e-9;
        }
    }
    outcome
}

/// One thread that wakes each `period_ms`, `phase_ms` after a tick at first, and does this work (function, ms).
pub fn periodic(period_ms: f64, phase_ms: f64, work_ms: &[(u64, f64)]) -> Pattern {
    let work = work_ms.iter().map(|&(function, ms)| (function, ms * 1e6)).collect();
    Pattern::Periodic { period_ns: period_ms * 1e6, phase_ns: phase_ms * 1e6, jitter_ns: 0.0, work }
}

/// A thread that is always busy with five functions in bouts of this length.
pub fn busy(bout_ms: f64) -> Pattern {
    Pattern::Random { shares: vec![0.3, 0.25, 0.2, 0.15, 0.1], bout_ns: bout_ms * 1e6, sleep_ns: 0.0 }
}

/// The programs that are locked to the tick.
pub fn locked() -> Vec<Program> {
    let one = |name, pattern: Pattern| Program { name, in_step: false, threads: vec![vec![(0.0, pattern)]] };
    let work = [(1, 0.25), (2, 0.60)];
    let mut among_eight: Vec<Vec<(f64, Pattern)>> = (0..7).map(|_| vec![(0.0, busy(3.0))]).collect();
    among_eight.push(vec![(0.0, periodic(4.0, 1.0, &work))]);
    vec![
        one("4 ms, never hit", periodic(4.0, 1.0, &work)),
        one("4 ms, always hit", periodic(4.0, 3.5, &work)),
        one("4 ms, drifting by 20 ppm", periodic(4.000_08, 1.0, &work)),
        one("8 ms, never hit", periodic(8.0, 0.5, &[(1, 1.0), (2, 2.0)])),
        one("8 ms, hit in one function", periodic(8.0, 0.5, &[(1, 2.0), (2, 2.0), (3, 1.9), (4, 2.0)])),
        one("1 ms, never hit", periodic(1.0, 0.1, &[(1, 0.3), (2, 0.2)])),
        one("1 ms, always hit", periodic(1.0, 0.8, &[(1, 0.3), (2, 0.2)])),
        one("1 ms, busy", periodic(1.0, 0.7, &[(1, 0.5), (2, 0.499)])),
        Program { name: "one thread among eight", in_step: false, threads: among_eight },
        Program {
            name: "from the tenth second on",
            in_step: false,
            threads: vec![vec![(0.0, busy(3.0)), (10.0, periodic(4.0, 3.5, &work))]],
        },
    ]
}

/// Programs with a lock that is too small for the audit: of one thread among many, which is hit as often as it should be but always in the
/// same of its two functions.
pub fn hardly_locked() -> Vec<Program> {
    let among = |name, others: usize| {
        let mut threads: Vec<Vec<(f64, Pattern)>> = (0..others).map(|_| vec![(0.0, busy(3.0))]).collect();
        threads.push(vec![(0.0, periodic(8.0, 1.0, &[(11, 2.0), (12, 2.0)]))]);
        Program { name, in_step: false, threads }
    };
    vec![
        among("one of eight in one of two functions", 7),
        among("one of sixteen in one of two functions", 15),
    ]
}

/// Programs that are not, however regular they may look.
pub fn unlocked() -> Vec<Program> {
    let one = |name, pattern: Pattern| Program { name, in_step: false, threads: vec![vec![(0.0, pattern)]] };
    let jittery =
        |period_ms: f64, jitter_ms: f64, work_ms: &[(u64, f64)]| match periodic(period_ms, 0.0, work_ms) {
            Pattern::Periodic { period_ns, phase_ns, work, .. } => {
                Pattern::Periodic { period_ns, phase_ns, jitter_ns: jitter_ms * 1e6, work }
            }
            random @ Pattern::Random { .. } => random,
        };
    let shares = || vec![0.4, 0.3, 0.2, 0.1];
    let in_step = |name, threads, pattern: Pattern| Program {
        name,
        in_step: true,
        threads: vec![vec![(0.0, pattern)]; threads],
    };
    vec![
        one("busy, bouts of 2 ms", busy(2.0)),
        one("busy, bouts of 20 ms", busy(20.0)),
        one("busy, bouts of 300 ms", busy(300.0)),
        one("bursts of 2 ms", Pattern::Random { shares: shares(), bout_ns: 2e6, sleep_ns: 5e6 }),
        one("bursts of 30 ms", Pattern::Random { shares: shares(), bout_ns: 30e6, sleep_ns: 90e6 }),
        one("each 7.3 ms", periodic(7.3, 0.0, &[(1, 1.0), (2, 2.0), (3, 0.5)])),
        one("each 10 ms, late by 4 ms at most", jittery(10.0, 4.0, &[(1, 2.0), (2, 3.0)])),
        in_step("eight threads in step, bouts of 1 ms", 8, busy(1.0)),
        in_step(
            "sixteen threads in step, bursts of 2 ms",
            16,
            Pattern::Random { shares: shares(), bout_ns: 2e6, sleep_ns: 5e6 },
        ),
        Program {
            name: "four threads",
            in_step: false,
            threads: vec![
                vec![(0.0, busy(4.0))],
                vec![(0.0, busy(40.0))],
                vec![(0.0, jittery(20.0, 8.0, &[(6, 2.0), (7, 6.0)]))],
                vec![(0.0, Pattern::Random { shares: shares(), bout_ns: 10e6, sleep_ns: 10e6 })],
            ],
        },
    ]
}
