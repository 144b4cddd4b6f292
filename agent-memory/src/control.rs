//! How an agent in a running process is asked for something: by a call of its one function for that, made in one of its threads,
//! and by signals to single threads.

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

/// A request, in the memory of the process that it is made in: what is asked for, what belongs to it, and the
/// answer. Once answered, the signal of the timers is in the place of what belonged to it.
pub type Request = [u64; 3];

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Ask {
    /// Sample this process, by the memory that is open under the number that comes second.
    Attach = 1,
    /// Leave it alone, and take back what was done to it, if the memory still has the identity that comes second.
    Leave = 2,
}

impl Ask {
    /// The request for it.
    pub fn request(self, argument: u64) -> Request {
        [self as u64, argument, 0]
    }

    /// What was asked for.
    pub fn of(request: &Request) -> Option<Self> {
        [Self::Attach, Self::Leave].into_iter().find(|ask| *ask as u64 == request[0])
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Answer {
    /// What was asked for.
    Done = 1,
    /// Somebody else samples the process.
    Busy = 2,
    /// The memory cannot be mapped, or is another version's.
    NoMemory = 3,
    /// The program handles every signal that could be used.
    NoSignal = 4,
    /// A thread is in the handler and does not come out: the memory stays mapped.
    Unfinished = 5,
    /// Nobody knows what was asked for.
    Unknown = 6,
    /// Another call is being made.
    Occupied = 7,
}

impl Answer {
    /// The answer in a request; `None` if there is none.
    pub fn of(request: &Request) -> Option<Self> {
        use Answer::{Busy, Done, NoMemory, NoSignal, Occupied, Unfinished, Unknown};
        let all = [Done, Busy, NoMemory, NoSignal, Unfinished, Unknown, Occupied];
        all.into_iter().find(|answer| *answer as u64 == request[2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_and_answered_is_understood_and_nothing_else() {
        let mut request = Ask::Attach.request(7);
        assert_eq!((Ask::of(&request), request[1], Answer::of(&request)), (Some(Ask::Attach), 7, None));
        request[2] = Answer::Busy as u64;
        assert_eq!(Answer::of(&request), Some(Answer::Busy));
        request[2] = Answer::Occupied as u64;
        assert_eq!(Answer::of(&request), Some(Answer::Occupied));
        assert_eq!((Ask::of(&[9, 0, 0]), Answer::of(&[1, 0, 99])), (None, None));
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
