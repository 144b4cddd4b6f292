//! Notes of runs that are added up.
//!
//! Notes of single windows may contradict each other, so that a note which holds for a part of the windows says for how many of
//! them. Counts at the beginning of a note add up; of shares there, the largest is shown.

/// Notes that a sum has at most: those of the most windows.
const MOST_SHOWN: usize = 20;
/// Different notes that are counted.
const MOST_COUNTED: usize = 200;

/// Notes, and the windows that they are about.
#[derive(Default)]
pub(super) struct MergedNotes {
    all: Vec<Note>,
    windows: u64,
}

struct Note {
    amount: Amount,
    /// What follows the amount.
    text: String,
    /// Windows that it holds for.
    windows: u64,
}

/// What a note begins with.
#[derive(Clone)]
enum Amount {
    None,
    /// `12 samples …`
    Count(u64),
    /// `5.1% of …`, and whether there were smaller ones.
    Share {
        percent: f64,
        is_largest: bool,
    },
}

impl Amount {
    /// Splits a note into its amount and the rest.
    fn parse(note: &str) -> (Self, &str) {
        let (is_largest, rest) = note.strip_prefix("up to ").map_or((false, note), |rest| (true, rest));
        let end = rest.find(' ').unwrap_or(rest.len());
        let (word, text) = rest.split_at(end);
        let percent = word.strip_suffix('%').and_then(|figure| figure.parse().ok());
        match (percent, word.parse()) {
            (Some(percent), _) => (Self::Share { percent, is_largest }, text),
            (None, Ok(count)) if !is_largest => (Self::Count(count), text),
            _ => (Self::None, note),
        }
    }

    /// What of it a part of a run has.
    fn part(self, part: f64) -> Self {
        match self {
            Self::Count(count) => Self::Count(super::runs::part_of(count, part)),
            other => other,
        }
    }

    /// Takes in another of the same kind.
    fn take_in(&mut self, other: &Self) {
        match (self, other) {
            (Self::Count(sum), Self::Count(count)) => *sum = sum.saturating_add(*count),
            (Self::Share { percent, is_largest }, Self::Share { percent: other, is_largest: also }) => {
                *is_largest |= *also || percent != other;
                *percent = percent.max(*other);
            }
            _ => {}
        }
    }

    fn in_words(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Count(count) => count.to_string(),
            Self::Share { percent, is_largest: false } => format!("{percent}%"),
            Self::Share { percent, is_largest: true } => format!("up to {percent}%"),
        }
    }
}

/// A note without ` (in 3 of 60 windows)`, and the first of these numbers.
fn without_windows(note: &str) -> (&str, Option<u64>) {
    let parsed = note.rsplit_once(" (in ").and_then(|(note, of)| {
        let (windows, all) = of.strip_suffix(" windows)")?.split_once(" of ")?;
        all.parse::<u64>().ok()?;
        Some((note, Some(windows.parse().ok()?)))
    });
    parsed.unwrap_or((note, None))
}

impl MergedNotes {
    /// Adds the notes of a run over so many windows, of which a `part` (0 to 1) counts.
    pub(super) fn add(&mut self, notes: &[String], windows: u64, part: f64) {
        let all = windows.max(1);
        let counted = |windows: u64| super::runs::part_of(windows, part).max(1);
        self.windows = self.windows.saturating_add(counted(all));
        for note in notes {
            let (note, windows) = without_windows(note);
            let windows = counted(windows.unwrap_or(all).min(all));
            let (amount, text) = Amount::parse(note);
            let amount = amount.part(part);
            let is_same = |known: &&mut Note| {
                known.text == text && std::mem::discriminant(&known.amount) == std::mem::discriminant(&amount)
            };
            if let Some(known) = self.all.iter_mut().find(is_same) {
                known.amount.take_in(&amount);
                known.windows = known.windows.saturating_add(windows);
            } else if self.all.len() < MOST_COUNTED {
                self.all.push(Note { amount, text: text.to_owned(), windows });
            }
        }
    }

    /// The notes of the sum, those of the most windows first, and its windows.
    pub(super) fn finish(mut self) -> (Vec<String>, u64) {
        self.all.sort_by_key(|note| std::cmp::Reverse(note.windows)); // stable
        self.all.truncate(MOST_SHOWN);
        let in_words = |note: &Note| {
            let (text, windows) = (format!("{}{}", note.amount.in_words(), note.text), note.windows);
            match windows < self.windows {
                true => format!("{text} (in {windows} of {} windows)", self.windows),
                false => text,
            }
        };
        (self.all.iter().map(in_words).collect(), self.windows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(runs: &[(&[&str], u64)]) -> (Vec<String>, u64) {
        let mut notes = MergedNotes::default();
        for (of_run, windows) in runs {
            let of_run: Vec<String> = of_run.iter().map(|note| (*note).to_owned()).collect();
            notes.add(&of_run, *windows, 1.0);
        }
        notes.finish()
    }

    #[test]
    fn a_note_of_some_windows_says_of_how_many() {
        let (notes, windows) =
            sum(&[(&["dearer", "always"], 0), (&["cheaper", "always"], 0), (&["always"], 0)]);
        assert_eq!(notes, ["always", "dearer (in 1 of 3 windows)", "cheaper (in 1 of 3 windows)"]);
        assert_eq!(windows, 3);
        let first: Vec<&str> = notes.iter().map(String::as_str).collect();
        let (notes, windows) = sum(&[(&first, 3), (&["dearer"], 2), (&[], 1)]);
        assert_eq!(
            notes,
            ["always (in 3 of 6 windows)", "dearer (in 3 of 6 windows)", "cheaper (in 1 of 6 windows)"]
        );
        assert_eq!(windows, 6);
    }

    #[test]
    fn counts_add_up_and_of_shares_the_largest_is_shown() {
        let (notes, _) = sum(&[(&["3 records were lost"], 1), (&["4 records were lost"], 1)]);
        assert_eq!(notes, ["7 records were lost"]);
        let (notes, _) = sum(&[(&["5.1% of it"], 1), (&["12% of it"], 1), (&["up to 7% of it"], 1)]);
        assert_eq!(notes, ["up to 12% of it"]);
        assert_eq!(sum(&[(&["5.1% of it"], 1)]).0, ["5.1% of it"]);
        // What only looks like a number, or like windows, stays as it is.
        for odd in
            ["", "up to you", "up to 3 of them", "% of it", "x (in 3 of y windows)", "99999999999999999999 x"]
        {
            assert_eq!(sum(&[(&[odd], 1)]).0, [odd], "{odd}");
        }
    }

    #[test]
    fn a_sum_has_few_notes_those_of_most_windows() {
        let many: Vec<String> = (0..300).map(|at| format!("note {at}")).collect();
        let mut notes = MergedNotes::default();
        notes.add(&many, 1, 1.0);
        notes.add(&many[150..151], 1, 1.0);
        let (notes, _) = notes.finish();
        assert_eq!(notes.len(), MOST_SHOWN);
        assert_eq!(notes[0], "note 150");
    }
}
