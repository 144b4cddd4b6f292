//! Control of an agent in a running process: calls of its one control function, made in one of the process'
//! threads, and signals to single threads.

/// The name of the function: it takes a [`Request`]'s address, and never fails to come back.
pub const CONTROL: &str = "sweetspot_agent_control";

/// Marks what a signal of ours carries that asks the thread it comes to to have itself sampled.
const ENTER: u64 = 0x5357_4546 << 32;
const ENTER_MASK: u64 = u64::MAX << 32;

/// What such a signal carries where the memory has this identity.
pub fn enter(identity: u64) -> u64 {
    ENTER | identity & !ENTER_MASK
}

/// Whether a signal that carries this is such a one, of whatever memory.
pub fn is_enter(value: u64) -> bool {
    value & ENTER_MASK == ENTER
}

/// A request, in the memory of the process that it is made in: what is asked for, what belongs to it, which signals there
/// are for it, and the answer. Once answered, the signal of the timers is in the place of what belonged to it.
pub type Request = [u64; 4];

/// What may be done with signals in a process, as is seen from outside alone: a signal that nobody handles may be blocked, and
/// be read from a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsableSignals {
    /// A byte each, in order; 0 at the end.
    usable: [u8; 4],
    /// A bit each.
    kept: u32,
}

impl UsableSignals {
    /// Those that timers may send, the best first, of which four are kept; and those (of the first 32) whose handler stays, since
    /// the program would lose one that waits for it if it were taken away.
    pub fn new(usable: impl IntoIterator<Item = i32>, kept: impl IntoIterator<Item = i32>) -> Self {
        let mut signals = Self::default();
        let usable = usable.into_iter().filter_map(|signal| u8::try_from(signal).ok());
        signals.usable.iter_mut().zip(usable).for_each(|(place, signal)| *place = signal);
        signals.kept = kept.into_iter().fold(0, |kept, signal| kept | Self::bit(signal));
        signals
    }

    fn bit(signal: i32) -> u32 {
        let shift = u32::try_from(signal).ok().and_then(|signal| signal.checked_sub(1));
        shift.and_then(|shift| 1_u32.checked_shl(shift)).unwrap_or(0)
    }

    /// Those that timers may send, the best first.
    pub fn usable(self) -> impl Iterator<Item = i32> {
        self.usable.into_iter().take_while(|&signal| signal != 0).map(i32::from)
    }

    /// Whether what handles this one stays.
    pub fn keeps(self, signal: i32) -> bool {
        self.kept & Self::bit(signal) != 0
    }

    /// The same, and what handles these stays as well.
    #[must_use]
    pub fn keeping(self, also: impl IntoIterator<Item = i32>) -> Self {
        Self { kept: also.into_iter().fold(self.kept, |kept, signal| kept | Self::bit(signal)), ..self }
    }

    fn word(self) -> u64 {
        u64::from(self.kept) << 32 | u64::from(u32::from_le_bytes(self.usable))
    }

    /// Those of a request.
    pub fn of(request: &Request) -> Self {
        Self { usable: (request[2] as u32).to_le_bytes(), kept: (request[2] >> 32) as u32 }
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum AgentCommand {
    /// Sample this process, by the memory that is open under the number that comes second.
    Attach = 1,
    /// Leave it alone, and take back what was done to it, if the memory still has the identity that comes second.
    Leave = 2,
}

impl AgentCommand {
    /// The request for it.
    pub fn request(self, argument: u64, signals: UsableSignals) -> Request {
        [self as u64, argument, signals.word(), 0]
    }

    /// What was asked for.
    pub fn of(request: &Request) -> Option<Self> {
        [Self::Attach, Self::Leave].into_iter().find(|command| *command as u64 == request[0])
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum AgentReply {
    /// What was asked for.
    Done = 1,
    /// Somebody else samples the process.
    Busy = 2,
    /// The memory cannot be mapped, or is another version's.
    NoMemory = 3,
    /// The program handles, blocks or reads every signal that could be used.
    NoSignal = 4,
    /// A thread is in the handler and does not come out: the memory stays mapped.
    Unfinished = 5,
    /// Nobody knows what was asked for.
    Unknown = 6,
    /// Another call is being made.
    Occupied = 7,
}

impl AgentReply {
    /// The answer in a request; `None` if there is none.
    pub fn of(request: &Request) -> Option<Self> {
        use AgentReply::{Busy, Done, NoMemory, NoSignal, Occupied, Unfinished, Unknown};
        let all = [Done, Busy, NoMemory, NoSignal, Unfinished, Unknown, Occupied];
        all.into_iter().find(|reply| *reply as u64 == request[3])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_and_answered_is_understood_and_nothing_else() {
        let mut request = AgentCommand::Attach.request(7, UsableSignals::default());
        assert_eq!(
            (AgentCommand::of(&request), request[1], AgentReply::of(&request)),
            (Some(AgentCommand::Attach), 7, None)
        );
        request[3] = AgentReply::Busy as u64;
        assert_eq!(AgentReply::of(&request), Some(AgentReply::Busy));
        request[3] = AgentReply::Occupied as u64;
        assert_eq!(AgentReply::of(&request), Some(AgentReply::Occupied));
        assert_eq!((AgentCommand::of(&[9, 0, 0, 0]), AgentReply::of(&[1, 0, 0, 99])), (None, None));
    }

    #[test]
    fn signals_are_passed_on_in_their_order_and_nonsense_names_none() {
        let signals = UsableSignals::new([28, 23], [23]).keeping([9]);
        let there = UsableSignals::of(&AgentCommand::Leave.request(7, signals));
        assert_eq!((there, there.usable().collect::<Vec<_>>()), (signals, vec![28, 23]));
        assert!(there.keeps(23) && there.keeps(9) && !there.keeps(28));
        let nonsense = UsableSignals::new([-1, 300], [0, -1, 33, i32::MIN, i32::MAX]);
        assert_eq!(nonsense, UsableSignals::default());
        assert!(!UsableSignals::of(&[u64::MAX; 4]).keeps(0) && !UsableSignals::of(&[u64::MAX; 4]).keeps(34));
        assert_eq!(UsableSignals::new(1..9, []).usable().count(), 4);
    }

    #[test]
    fn a_signal_says_whose_memory_it_is_about() {
        for identity in [0, 7, u64::MAX, 1 << 32] {
            assert!(is_enter(enter(identity)));
        }
        assert_eq!(enter(7), enter(7 | 9 << 32), "half of it is enough");
        assert!(enter(7) != enter(8) && !is_enter(7) && !is_enter(0x5357_4545 << 32));
    }
}
