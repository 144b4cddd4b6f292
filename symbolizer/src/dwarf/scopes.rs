//! What a function is declared in (namespaces, classes, other functions), for names that the linker does not have: of
//! functions that are inlined everywhere, and of those within others.

use super::kept::Unit;

/// Deeper entries are not looked at: compilers nest a few dozen.
const MOST_DEPTH: usize = 256;
/// Scopes of a unit. The largest known have some ten thousand.
const MOST_SCOPES: usize = 1 << 20;

/// The entries of a unit that functions are declared in, in the order of their offsets. The rest is left out.
#[derive(Default)]
pub(super) struct Scopes(Vec<Scope>);

struct Scope {
    start: u32,
    end: u32,
    /// The index of the one around it.
    parent: Option<u32>,
}

/// An entry that is not at its end.
struct Open {
    /// Its index, if functions can be declared in it.
    scope: Option<usize>,
    holds_functions: bool,
}

impl Scopes {
    /// Reads the unit once, without its attributes.
    pub(super) fn read(unit: &Unit<'_>) -> Self {
        let mut scopes = Self::default();
        // A corrupt unit has none: which entries are around others is not known.
        if scopes.read_entries(unit).is_none() || scopes.0.iter().any(|scope| scope.end <= scope.start) {
            scopes.0.clear();
        }
        scopes.0.shrink_to_fit();
        scopes
    }

    fn read_entries(&mut self, unit: &Unit<'_>) -> Option<()> {
        let mut entries = unit.entries_raw(None).ok()?;
        let mut open: Vec<Open> = Vec::new();
        while !entries.is_empty() {
            let offset = u32::try_from(entries.next_offset().0).ok()?;
            let Some(abbreviation) = entries.read_abbreviation().ok()? else {
                let end = u32::try_from(entries.next_offset().0).ok()?;
                self.close(&mut open, end);
                if open.is_empty() {
                    break; // the root's end
                }
                continue;
            };
            entries.skip_attributes(abbreviation.attributes()).ok()?;
            let tag = abbreviation.tag();
            if tag == gimli::DW_TAG_subprogram {
                // Around one that is noted, all are.
                let unnoted = open.iter_mut().rev().take_while(|around| !around.holds_functions);
                unnoted.for_each(|around| around.holds_functions = true);
            }
            if abbreviation.has_children() {
                let scope = if is_scope(tag) { Some(self.open(&open, offset)?) } else { None };
                open.push(Open { scope, holds_functions: false });
                (open.len() <= MOST_DEPTH).then_some(())?;
            }
        }
        Some(())
    }

    fn open(&mut self, open: &[Open], start: u32) -> Option<usize> {
        let parent = open.iter().rev().find_map(|around| around.scope).and_then(|at| u32::try_from(at).ok());
        (self.0.len() < MOST_SCOPES).then_some(())?;
        self.0.push(Scope { start, end: start, parent });
        Some(self.0.len() - 1)
    }

    fn close(&mut self, open: &mut Vec<Open>, end: u32) {
        let Some(Open { scope: Some(index), holds_functions }) = open.pop() else { return };
        if holds_functions {
            self.0[index].end = end;
        } else {
            // No scope within it has functions, so that none is kept behind it.
            self.0.truncate(index);
        }
    }

    /// The entry that the one at `offset` is declared in.
    pub(super) fn around(&self, offset: usize) -> Option<usize> {
        let offset = u32::try_from(offset).ok()?;
        let mut at = self.0.partition_point(|scope| scope.start < offset).checked_sub(1)?;
        while self.0[at].end <= offset {
            at = self.0[at].parent? as usize;
        }
        Some(self.0[at].start as usize)
    }

    /// What it takes of memory.
    pub(super) fn held_bytes(&self) -> u64 {
        (self.0.len() * size_of::<Scope>()) as u64
    }
}

fn is_scope(tag: gimli::DwTag) -> bool {
    matches!(
        tag,
        gimli::DW_TAG_namespace
            | gimli::DW_TAG_module
            | gimli::DW_TAG_class_type
            | gimli::DW_TAG_structure_type
            | gimli::DW_TAG_union_type
            | gimli::DW_TAG_interface_type
            | gimli::DW_TAG_subprogram
    )
}
