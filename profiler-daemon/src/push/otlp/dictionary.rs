//! The tables of a message.

use std::hash::Hash;

use opentelemetry_proto::tonic::common::v1::{AnyValue, any_value::Value};
use opentelemetry_proto::tonic::profiles::v1development::{
    Function, KeyValueAndUnit, Line, Link, Location, Mapping, ProfilesDictionary, Stack,
};
use profiler_core::profile::{self, LocationIndex, ModuleInfo, SymbolizedProfile};
use prost::Message;
use rustc_hash::FxHashMap;

/// Where a mapping ends of which nobody knows the end, as that of the kernel.
const EVERYTHING: u64 = !0xfff;

/// The tables in the making. Functions, locations and modules of the profile are entries of theirs, one further on.
pub(super) struct Dictionary {
    tables: ProfilesDictionary,
    texts: FxHashMap<String, i32>,
    /// By key, unit and the encoded value.
    attributes: FxHashMap<(i32, i32, Vec<u8>), i32>,
    stacks: FxHashMap<Vec<LocationIndex>, i32>,
}

impl Dictionary {
    /// With the profile's functions, locations and modules.
    pub(super) fn new(profile: &SymbolizedProfile) -> Self {
        let mut dictionary = Self {
            tables: ProfilesDictionary {
                mapping_table: vec![Mapping::default()],
                location_table: vec![Location::default()],
                function_table: vec![Function::default()],
                link_table: vec![Link::default()],
                string_table: vec![String::new()],
                attribute_table: vec![KeyValueAndUnit::default()],
                stack_table: vec![Stack::default()],
            },
            texts: FxHashMap::from_iter([(String::new(), 0)]),
            attributes: FxHashMap::default(),
            stacks: FxHashMap::from_iter([(Vec::new(), 0)]),
        };
        profile.functions.iter().for_each(|function| dictionary.function(function));
        profile.modules.iter().for_each(|module| dictionary.module(module));
        profile.locations.iter().for_each(|location| dictionary.location(location, profile));
        dictionary
    }

    /// The finished tables.
    pub(super) fn finish(self) -> ProfilesDictionary {
        self.tables
    }

    /// The index of a text.
    pub(super) fn text(&mut self, text: &str) -> i32 {
        // Most are there.
        match self.texts.get(text) {
            Some(at) => *at,
            None => entry(&mut self.texts, &mut self.tables.string_table, text.to_owned(), text.to_owned()),
        }
    }

    /// The index of an attribute; `unit` may be empty.
    pub(super) fn attribute(&mut self, key: &str, value: Value, unit: &str) -> i32 {
        let (key_strindex, unit_strindex) = (self.text(key), self.text(unit));
        let value = AnyValue { value: Some(value) };
        let known_by = (key_strindex, unit_strindex, value.encode_to_vec());
        let attribute = KeyValueAndUnit { key_strindex, value: Some(value), unit_strindex };
        entry(&mut self.attributes, &mut self.tables.attribute_table, known_by, attribute)
    }

    /// The index of a stack, innermost frame first.
    pub(super) fn stack(&mut self, frames: &[LocationIndex]) -> i32 {
        let location_indices = frames.iter().map(|location| after_none(location.0)).collect();
        entry(&mut self.stacks, &mut self.tables.stack_table, frames.to_vec(), Stack { location_indices })
    }

    fn function(&mut self, function: &profile::Function) {
        let function = Function {
            name_strindex: self.text(&function.name),
            system_name_strindex: self.text(&function.system_name),
            filename_strindex: self.text(function.file.as_deref().unwrap_or_default()),
            start_line: 0, // unknown
        };
        self.tables.function_table.push(function);
    }

    /// A module lies at 0, as if it were mapped where it was linked: addresses are those that its file states.
    fn module(&mut self, module: &ModuleInfo) {
        let build_id = module
            .build_id
            .as_ref()
            .map(|id| self.attribute("process.executable.build_id.gnu", Value::StringValue(id.clone()), ""));
        let mapping = Mapping {
            memory_limit: if module.end == 0 { EVERYTHING } else { module.end },
            filename_strindex: self.text(if module.path.is_empty() { &module.name } else { &module.path }),
            attribute_indices: build_id.into_iter().collect(),
            ..Mapping::default()
        };
        self.tables.mapping_table.push(mapping);
    }

    fn location(&mut self, location: &profile::Location, profile: &SymbolizedProfile) {
        let module = profile.modules.get(location.module.0 as usize);
        let kind = module
            .and_then(frame_type)
            .map(|kind| self.attribute("profile.frame.type", Value::StringValue(kind.to_owned()), ""));
        let line = |line: &profile::Line| Line {
            function_index: after_none(line.function.0),
            line: i64::from(line.line),
            column: 0, // unknown
        };
        let mapping_index = after_none(location.module.0);
        if let Some(mapping) = self.tables.mapping_table.get_mut(mapping_index as usize) {
            mapping.memory_limit = mapping.memory_limit.max(location.address.saturating_add(1));
        }
        self.tables.location_table.push(Location {
            mapping_index,
            address: location.address,
            lines: location.lines.iter().map(line).collect(),
            attribute_indices: kind.into_iter().collect(),
        });
    }
}

/// What code in a module is, where that is certain: what is in no file may be of any language.
fn frame_type(module: &ModuleInfo) -> Option<&'static str> {
    match module.name.as_str() {
        "[kernel]" => Some("kernel"),
        _ => (!module.path.is_empty()).then_some("native"),
    }
}

/// The index of `new` in a table, where it is added unless it is known.
fn entry<K: Eq + Hash, T>(known: &mut FxHashMap<K, i32>, table: &mut Vec<T>, known_by: K, new: T) -> i32 {
    *known.entry(known_by).or_insert_with(|| {
        table.push(new);
        index(table.len() - 1)
    })
}

fn after_none(at: u32) -> i32 {
    index(at as usize + 1)
}

/// A profile has a few million entries at most.
fn index(at: usize) -> i32 {
    i32::try_from(at).unwrap_or_default()
}
