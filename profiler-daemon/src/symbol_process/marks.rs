//! Files that have ended the symbolizer process.

use rustc_hash::FxHashMap;

/// After so long a file is read as any other again (ns): what ended the process may have been something else.
const HOUR_NS: u64 = 3_600_000_000_000;
/// Files that are remembered; the oldest goes first.
const MOST: usize = 1_024;

/// What is read of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// All that tells names.
    All,
    /// Its own symbol table, since reading more has ended the process.
    Symbols,
    /// Nothing, since that has ended it too; how it ended.
    Nothing(String),
}

struct FileMark {
    /// Times that it ended the process, without a first one that may have been another's doing.
    times: u32,
    how: String,
    at_ns: u64,
}

/// What tells a file from others, and what it did.
#[derive(Default)]
pub(super) struct Marks(FxHashMap<String, FileMark>);

impl Marks {
    pub(super) fn extent(&self, file: &str, now_ns: u64) -> Extent {
        let mark = self.0.get(file).filter(|mark| now_ns < mark.at_ns.saturating_add(HOUR_NS));
        match mark {
            None => Extent::All,
            Some(mark) if mark.times == 0 => Extent::All,
            Some(mark) if mark.times == 1 => Extent::Symbols,
            Some(mark) => Extent::Nothing(mark.how.clone()),
        }
    }

    /// Reading a file has ended the process, by its own doing or perhaps by that of others. What may be read of it from now on.
    pub(super) fn note(&mut self, file: &str, (how, is_its_doing): (&str, bool), now_ns: u64) -> Extent {
        let is_known = self.0.get(file).is_some_and(|mark| now_ns < mark.at_ns.saturating_add(HOUR_NS));
        let times = match self.extent(file, now_ns) {
            Extent::All => u32::from(is_its_doing || is_known),
            Extent::Symbols | Extent::Nothing(_) => 2,
        };
        if self.0.len() >= MOST && !self.0.contains_key(file) {
            let oldest = self.0.iter().min_by_key(|(_, mark)| mark.at_ns).map(|(file, _)| file.clone());
            oldest.and_then(|file| self.0.remove(&file));
        }
        self.0.insert(file.to_owned(), FileMark { times, how: how.to_owned(), at_ns: now_ns });
        self.extent(file, now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_less_each_time_and_wholly_after_an_hour() {
        let mut marks = Marks::default();
        assert_eq!(marks.extent("a", 0), Extent::All);
        assert_eq!(marks.note("a", ("it was killed", true), 5), Extent::Symbols);
        assert_eq!(marks.extent("b", 6), Extent::All);
        assert_eq!(marks.note("a", ("again", false), 7), Extent::Nothing("again".to_owned()));
        assert_eq!(marks.note("a", ("more", true), 8), Extent::Nothing("more".to_owned()));
        assert_eq!(marks.extent("a", HOUR_NS + 7), Extent::Nothing("more".to_owned()));
        assert_eq!(marks.extent("a", HOUR_NS + 8), Extent::All);
        assert_eq!(marks.note("a", ("it was killed", true), HOUR_NS + 9), Extent::Symbols);
    }

    #[test]
    fn a_file_beside_which_the_process_ended_is_read_whole_once_more() {
        let mut marks = Marks::default();
        assert_eq!(marks.note("a", ("it was killed", false), 5), Extent::All);
        assert_eq!(marks.note("a", ("it was killed", false), 6), Extent::Symbols, "it is read no third time");
        assert_eq!(marks.note("b", ("it was killed", false), 7), Extent::All);
        assert_eq!(marks.note("b", ("it was killed", false), HOUR_NS + 7), Extent::All);
    }

    #[test]
    fn of_many_files_the_oldest_is_forgotten() {
        let mut marks = Marks::default();
        (0..MOST as u64 + 3).for_each(|at| drop(marks.note(&at.to_string(), ("", true), at)));
        assert_eq!(marks.0.len(), MOST);
        assert_eq!((marks.extent("2", 5), marks.extent("3", 5)), (Extent::All, Extent::Symbols));
    }
}
