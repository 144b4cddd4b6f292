//! The messages of profile.proto. Strings are indices into the string table, whose first entry is empty; ids
//! start at 1.

/// The whole file.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PprofProfile {
    #[prost(message, repeated, tag = "1")]
    pub(super) sample_type: Vec<PprofValueType>,
    #[prost(message, repeated, tag = "2")]
    pub(super) sample: Vec<PprofSample>,
    #[prost(message, repeated, tag = "3")]
    pub(super) mapping: Vec<PprofMapping>,
    #[prost(message, repeated, tag = "4")]
    pub(super) location: Vec<PprofLocation>,
    #[prost(message, repeated, tag = "5")]
    pub(super) function: Vec<PprofFunction>,
    #[prost(string, repeated, tag = "6")]
    pub(super) string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    pub(super) time_nanos: i64,
    #[prost(int64, tag = "10")]
    pub(super) duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    pub(super) period_type: Option<PprofValueType>,
    #[prost(int64, tag = "12")]
    pub(super) period: i64,
    #[prost(int64, repeated, tag = "13")]
    pub(super) comment: Vec<i64>,
    #[prost(int64, tag = "14")]
    pub(super) default_sample_type: i64,
    /// See [`super::windows`]; the tag is [`super::WINDOWS_FIELD`].
    #[prost(bytes = "vec", tag = "5117")]
    pub(super) windows: Vec<u8>,
}

/// What a value means and its unit.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct PprofValueType {
    #[prost(int64, tag = "1")]
    pub(super) kind: i64,
    #[prost(int64, tag = "2")]
    pub(super) unit: i64,
}

/// A stack, innermost first, with one value for each sample type.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PprofSample {
    #[prost(uint64, repeated, tag = "1")]
    pub(super) location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    pub(super) value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub(super) label: Vec<PprofLabel>,
}

/// A property of a sample: a text or a number.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct PprofLabel {
    #[prost(int64, tag = "1")]
    pub(super) key: i64,
    #[prost(int64, tag = "2")]
    pub(super) text: i64,
    #[prost(int64, tag = "3")]
    pub(super) number: i64,
}

/// A module.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct PprofMapping {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(uint64, tag = "2")]
    pub(super) memory_start: u64,
    #[prost(uint64, tag = "3")]
    pub(super) memory_limit: u64,
    #[prost(uint64, tag = "4")]
    pub(super) file_offset: u64,
    #[prost(int64, tag = "5")]
    pub(super) filename: i64,
    #[prost(int64, tag = "6")]
    pub(super) build_id: i64,
    #[prost(bool, tag = "7")]
    pub(super) has_functions: bool,
    #[prost(bool, tag = "8")]
    pub(super) has_filenames: bool,
    #[prost(bool, tag = "9")]
    pub(super) has_line_numbers: bool,
    #[prost(bool, tag = "10")]
    pub(super) has_inline_frames: bool,
}

/// An address.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PprofLocation {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(uint64, tag = "2")]
    pub(super) mapping_id: u64,
    #[prost(uint64, tag = "3")]
    pub(super) address: u64,
    #[prost(message, repeated, tag = "4")]
    pub(super) line: Vec<PprofLine>,
}

/// A function at an address, innermost inlined one first.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct PprofLine {
    #[prost(uint64, tag = "1")]
    pub(super) function_id: u64,
    #[prost(int64, tag = "2")]
    pub(super) line: i64,
}

/// A function.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct PprofFunction {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(int64, tag = "2")]
    pub(super) name: i64,
    #[prost(int64, tag = "3")]
    pub(super) system_name: i64,
    #[prost(int64, tag = "4")]
    pub(super) filename: i64,
}
