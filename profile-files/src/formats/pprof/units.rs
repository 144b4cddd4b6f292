//! Which of a file's values are samples and which are CPU time, or another time.

use profiler_core::profile::Measure;
use prost::Message;

use super::message::PprofValueType;
use super::read::ReadError;
use super::sections::RawMessages;

/// Where to find the two figures of a sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Values {
    samples: Option<usize>,
    cpu: usize,
    /// Nanoseconds of CPU time for one unit of the value at `cpu`.
    ns_per_unit: f64,
    /// Nanoseconds for one sample, where the file tells; else 0.
    period_ns: f64,
}

impl Values {
    /// Finds them by their units, the default type first, and says what they are.
    pub(super) fn find(sections: &RawMessages<'_>) -> Result<(Self, Measure), ReadError> {
        let mut types = Vec::new();
        for bytes in &sections.sample_types {
            let value_type = PprofValueType::decode(*bytes)?;
            types.push((value_type.kind, sections.text(value_type.kind)?, sections.text(value_type.unit)?));
        }
        let (period_ns, period_kind) = period(sections)?;
        let samples = types.iter().position(|(_, _, unit)| *unit == "count");
        let is_time = |unit: &str| ns_per(unit).is_some();
        let default = i64::try_from(sections.default_sample_type).unwrap_or_default();
        let time = types
            .iter()
            .position(|(kind, _, unit)| default != 0 && *kind == default && is_time(unit))
            .or_else(|| types.iter().position(|(_, name, unit)| is_cpu(name) && is_time(unit)))
            .or_else(|| types.iter().rposition(|(_, _, unit)| is_time(unit)));
        let counted = samples.map_or("samples", |at| types[at].1);
        match (time, samples) {
            (Some(cpu), _) => {
                let ns_per_unit = ns_per(types[cpu].2).unwrap_or(1.0);
                let measure = measure(types[cpu].1, counted);
                // A period says what a sample stands for if it is of the same kind.
                let period_ns = if measure == self::measure(period_kind, counted) { period_ns } else { 0.0 };
                Ok((Self { samples, cpu, ns_per_unit, period_ns }, measure))
            }
            (None, Some(count)) if period_ns > 0.0 => {
                let values = Self { samples, cpu: count, ns_per_unit: period_ns, period_ns };
                Ok((values, measure(period_kind, counted)))
            }
            _ => Err(ReadError::NotCpuTime(no_time(&types))),
        }
    }

    /// The number of samples and the CPU time (ns) of one entry.
    pub(super) fn of(self, values: &[i64]) -> Result<(u64, u64), ReadError> {
        let at = |index: usize| match values.get(index) {
            Some(value) => u64::try_from(*value).map_err(|_| ReadError::Negative),
            None => Err(ReadError::Malformed("a sample without its values")),
        };
        let cpu_ns = at(self.cpu)?;
        // Nanoseconds stay whole numbers: a double would round those above 2^53.
        let cpu_ns = if self.ns_per_unit == 1.0 { cpu_ns } else { (cpu_ns as f64 * self.ns_per_unit) as u64 };
        let samples = match self.samples {
            Some(index) => at(index)?,
            None if self.period_ns > 0.0 => (cpu_ns as f64 / self.period_ns).round() as u64,
            None => 1,
        };
        Ok((samples, cpu_ns))
    }
}

/// Nanoseconds of a period, and of which time.
fn period<'a>(sections: &RawMessages<'a>) -> Result<(f64, &'a str), ReadError> {
    let Some(bytes) = sections.period_type else { return Ok((0.0, "")) };
    let of = PprofValueType::decode(bytes)?;
    let ns = ns_per(sections.text(of.unit)?).map_or(0.0, |ns| ns * sections.period.max(0) as f64);
    Ok((ns, sections.text(of.kind)?))
}

/// Longer names of types are cut: no tool writes them.
const LONGEST_NAME: usize = 40;

/// What a time of this name is. Locks are waited for, and clocks on the wall go on, without any CPU time.
fn measure(name: &str, counted: &str) -> Measure {
    let short = |text: &str| text.chars().take(LONGEST_NAME).collect();
    match is_cpu(name) {
        true => Measure::CpuTime,
        false => Measure::Other { time: short(name), counted: short(counted) },
    }
}

fn is_cpu(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains("cpu") && !name.contains("off")
}

/// What a profile holds that holds no time.
fn no_time(types: &[(i64, &str, &str)]) -> String {
    let mut names: Vec<String> =
        types.iter().map(|(_, name, _)| name.chars().take(LONGEST_NAME).collect()).collect();
    names.retain(|name: &String| !name.is_empty());
    names.truncate(4);
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

fn ns_per(unit: &str) -> Option<f64> {
    match unit {
        "nanoseconds" | "ns" => Some(1.0),
        "microseconds" | "us" => Some(1e3),
        "milliseconds" | "ms" => Some(1e6),
        "seconds" | "s" => Some(1e9),
        _ => None,
    }
}
