//! The string table being written: each text once.

use std::borrow::Cow;

use rustc_hash::FxHashMap;

/// Texts and their indices; index 0 is the empty text.
pub(super) struct Strings<'a> {
    indices: FxHashMap<Cow<'a, str>, i64>,
    texts: Vec<Cow<'a, str>>,
}

impl<'a> Strings<'a> {
    pub(super) fn new() -> Self {
        let mut strings = Self { indices: FxHashMap::default(), texts: Vec::new() };
        strings.add("");
        strings
    }

    /// The index of `text`.
    pub(super) fn add(&mut self, text: impl Into<Cow<'a, str>>) -> i64 {
        let text = text.into();
        if let Some(index) = self.indices.get(&text) {
            return *index;
        }
        let index = self.texts.len() as i64;
        self.indices.insert(text.clone(), index);
        self.texts.push(text);
        index
    }

    /// The table.
    pub(super) fn into_table(self) -> Vec<String> {
        self.texts.into_iter().map(Cow::into_owned).collect()
    }
}
