//! What was typed after `report`, checked.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Result;
use config::StoreSettings;
use jiff::Zoned;
use profile_files::store::Query;
use profile_files::when::When;
use profile_files::{Format, JSON, TABLE};
use profiler_core::merge::Range;

use super::{distinct, empty_range};
use crate::cli;
use crate::failure::usage;
use crate::output::Top;
use crate::report::{ReportJob, ReportSource};

/// What was typed, checked.
///
/// # Errors
///
/// A usage error for options that do not go together, and for a range of time that is none.
pub(super) fn job(args: cli::ReportArgs) -> Result<ReportJob> {
    if args.unknown && ![&TABLE, &JSON].contains(&args.format) {
        return Err(usage("--unknown is a list and no profile; give --format table or json with it"));
    }
    distinct(args.output.iter().map(|file| &file.path))?;
    let source = match args.files {
        files if files.is_empty() => stored(args.stored)?,
        files => ReportSource::Files(once(files)?),
    };
    let top = top(args.top, args.format)?;
    let cli::ReportArgs { output: files, format, unknown, .. } = args;
    Ok(ReportJob { source, files, format, unknown, top })
}

/// How many functions are listed; not every format lists them.
pub(super) fn top(top: Option<Top>, format: &Format) -> Result<Top> {
    let tables: Vec<&str> =
        Format::printed().filter(|format| format.lists_functions).map(|format| format.name).collect();
    match top {
        Some(_) if !format.lists_functions => Err(usage(format!(
            "--top does not work with {format}; leave it out, or use --format {}",
            tables.join(" or ")
        ))),
        top => Ok(top.unwrap_or_default()),
    }
}

/// Files of which none counts twice.
fn once(files: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
    let mut seen = BTreeSet::new();
    match files.iter().find(|file| !seen.insert(*file)) {
        Some(twice) => {
            Err(usage(format!("{} is given twice, and would count twice; give each once", twice.display())))
        }
        None => Ok(files),
    }
}

fn stored(args: cli::StoredArgs) -> Result<ReportSource> {
    let now = Zoned::now();
    let moment = |option: &str, when: When| {
        when.unix_ns(&now)
            .ok_or_else(|| usage(format!("{option} is not a time since 1970; give one such as -1h")))
    };
    let from =
        args.from.ok_or_else(|| usage("--store needs --from, the time to begin with, such as --from -1h"))?;
    let from_unix_ns = moment("--from", from)?;
    let has_end = args.to.is_some();
    let to_unix_ns =
        args.to.map_or_else(|| moment("--to", When::At(now.timestamp())), |to| moment("--to", to))?;
    if from_unix_ns >= to_unix_ns {
        return Err(empty_range(has_end));
    }
    let query = Query {
        range: Range { from_unix_ns, to_unix_ns },
        targets: args.target,
        labels: args.label.into_iter().collect(),
    };
    Ok(ReportSource::Store { folder: args.store.unwrap_or_else(|| StoreSettings::default().folder), query })
}
