//! The calibration that is kept between runs, and which one is worth keeping.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use profile_files::AtomicFile;
use profiler_core::rate::{CacheSensitivity, Cost, CostModel};
use serde::{Deserialize, Serialize};

use super::load::LOADED_FROM;
use super::quick::SYSTEMATIC;
use crate::sampler::access::Access;
use crate::sampler::handler_tracer::HandlerTracer;
use crate::sys::limits;

/// A longer file is none of ours.
const MAX_BYTES: u64 = 64 << 10;

/// The way to measure. To be raised with every change of it: what was kept before is another figure.
const METHOD: u32 = 6;

/// So many quick calibrations are kept: the host is busier in one second than in another.
const MOST_QUICK: usize = 7;

/// Measurements from which on their distance says how sure the median is.
const LEAST_SPREAD: usize = 4;

/// How thorough a calibration was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Thoroughness {
    /// In less than a second, before another command.
    Quick,
    /// By `sweetspot calibrate`.
    Full,
}

/// A calibration and what it is valid for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StoredCalibration {
    /// Everything that changes what a sample costs: a calibration for another machine is none.
    pub(super) machine: String,
    /// Wall clock (ns since the epoch), for the person; nothing depends on it.
    pub(super) taken_unix_ns: u64,
    /// How it was taken.
    pub(super) thoroughness: Thoroughness,
    /// Share of the machine that was busy with something else meanwhile, or of the time that the work had to wait.
    pub(super) load_ratio: f64,
    /// What sampling costs.
    pub(super) model: CostModel,
    /// All that were measured quickly while the machine was quiet, of which `model` has the medians.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) quick: Vec<CostModel>,
}

impl StoredCalibration {
    /// Whether it was taken while the machine had other work to do.
    pub(super) fn is_loaded(&self) -> bool {
        self.load_ratio.is_nan() || self.load_ratio >= LOADED_FROM
    }

    /// Whether another run shall measure again.
    pub(super) fn is_settled(&self) -> bool {
        !self.is_loaded() && (self.thoroughness == Thoroughness::Full || self.quick.len() >= MOST_QUICK)
    }

    /// A quick calibration together with those before, if there are any. What was kept stays where it is better than this one.
    pub(super) fn after(mut self, kept: Option<Self>) -> Self {
        if let Some(kept) = kept {
            if !self.supersedes(&kept) {
                return kept;
            }
            self.quick = kept.quick;
        }
        if self.thoroughness == Thoroughness::Full || self.is_loaded() {
            return Self { quick: Vec::new(), ..self };
        }
        if self.quick.len() >= MOST_QUICK {
            self.quick.remove(0);
        }
        self.quick.push(self.model);
        self.model = pooled(&self.quick).unwrap_or(self.model);
        self
    }

    /// Whether it takes the place of `old`: quiet counts for more than thorough, and of two alike the new one is kept.
    pub(super) fn supersedes(&self, old: &Self) -> bool {
        let rank = |kept: &Self| (!kept.is_loaded(), kept.thoroughness);
        rank(self) >= rank(old)
    }
}

/// The median of each figure; `None` without a model. A quick calibration is off by as much in one figure as in another, and not in the
/// same direction: all figures of the model with the median cost of a sample made samples a sixth dearer than they were.
fn pooled(quick: &[CostModel]) -> Option<CostModel> {
    let last = quick.last()?;
    let found =
        |figure: fn(&CostModel) -> Option<Cost>| quick.iter().filter_map(figure).collect::<Vec<Cost>>();
    // What could not be measured is a guess each time, or near it: that these agree makes them no surer.
    let guessed = |figure: fn(&CostModel) -> Cost| {
        let pooled = median(quick.iter().map(figure).collect(), SYSTEMATIC)?;
        Some(Cost::new(pooled.mean_ns, pooled.se_ns.max(figure(last).se_ns)))
    };
    let sensitivities: Vec<CacheSensitivity> =
        quick.iter().filter_map(|model| model.cache_sensitivity).collect();
    let of_caches = |figure: fn(&CacheSensitivity) -> Cost| {
        median(sensitivities.iter().map(figure).collect(), SYSTEMATIC)
    };
    let per_sample_ns = median(found(|model| Some(model.per_sample_ns)), SYSTEMATIC)?;
    let most_ns = per_sample_ns.mean_ns / 3.0; // a model that is less sure is not kept: see `is_plausible`
    Some(CostModel {
        per_sample_ns: Cost::new(per_sample_ns.mean_ns, per_sample_ns.se_ns.min(most_ns)),
        per_frame_ns: guessed(|model| model.per_frame_ns)?,
        per_byte_ns: guessed(|model| model.per_byte_ns)?,
        per_switch_ns: guessed(|model| model.per_switch_ns)?,
        per_handler_ns: median(found(|model| model.per_handler_ns), SYSTEMATIC),
        // It is compared with what is measured in the same way later.
        per_interrupt_ns: median(found(|model| model.per_interrupt_ns), 0.0),
        cache_sensitivity: sensitivities.last().and_then(|latest| {
            Some(CacheSensitivity {
                handler_ns: of_caches(|caches| caches.handler_ns)?,
                frame_ns: of_caches(|caches| caches.frame_ns)?,
                byte_ns: of_caches(|caches| caches.byte_ns)?,
                outside_ns: of_caches(|caches| caches.outside_ns)?,
                ..*latest // one kind of samples alone does not show how the rest grows
            })
        }),
        ..*last
    })
}

/// The median. Its error is the part that is common to all (as a share), and how far they lie from each other; of few, what they say of
/// themselves.
fn median(mut costs: Vec<Cost>, systematic: f64) -> Option<Cost> {
    costs.sort_by(|a, b| a.mean_ns.total_cmp(&b.mean_ns));
    let last = costs.len().checked_sub(1)?;
    let (below, above) = (costs[last / 2], costs[last.div_ceil(2)]);
    let median_ns = f64::midpoint(below.mean_ns, above.mean_ns);
    if costs.len() < LEAST_SPREAD {
        return Some(Cost::new(median_ns, f64::midpoint(below.se_ns, above.se_ns)));
    }
    let count = costs.len() as f64;
    let mean_ns = costs.iter().map(|cost| cost.mean_ns).sum::<f64>() / count;
    let squares = costs.iter().map(|cost| (cost.mean_ns - mean_ns).powi(2)).sum::<f64>();
    // The variance of a median is π/2 times that of a mean.
    let se_ns = (std::f64::consts::FRAC_PI_2 * squares / (count - 1.0) / count).sqrt();
    Some(Cost::new(median_ns, se_ns.hypot(systematic * median_ns)))
}

/// What this machine is called in the cache: everything that changes what a sample costs.
pub(super) fn machine(access: Access) -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let cpus = limits::online_cpus().len();
    let rights = if access.kernel { "kernel" } else { "user" };
    let timed = access.cpu_wide && HandlerTracer::find().is_ok();
    let prior = CostModel::default(); // stands for what a quick calibration does not measure
    let unmeasured = prior.per_side_record_ns.mean_ns + prior.per_fork_ns.mean_ns;
    [
        read("/proc/sys/kernel/osrelease"),
        cpu_model(&read("/proc/cpuinfo")),
        format!("{cpus} CPUs"),
        read("/etc/machine-id"),
        rights.to_owned(),
        if timed { "handler timed" } else { "handler untimed" }.to_owned(),
        env!("CARGO_PKG_VERSION").to_owned(),
        format!("{unmeasured}"),
        format!("method {METHOD}"),
    ]
    .join(" · ")
}

/// What `/proc/cpuinfo` calls the first CPU.
pub(super) fn cpu_model(cpuinfo: &str) -> String {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name")).unwrap_or_default();
    line.split_once(':').map_or("", |(_, model)| model).trim().to_owned()
}

/// Where the calibration is kept.
pub(crate) fn cache_path() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(folder.join("sweetspot").join("calibration.json"))
}

/// The calibration kept at `path`, if it is one of this machine.
pub(super) fn read(path: &Path, machine: &str) -> Option<StoredCalibration> {
    if !fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() <= MAX_BYTES) {
        return None;
    }
    let kept: StoredCalibration = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    (kept.machine == machine && kept.model.is_plausible()).then_some(kept)
}

/// Keeps a calibration, whole or not at all. Whether it did: a better one stays.
pub(super) fn write(path: &Path, kept: &StoredCalibration) -> io::Result<bool> {
    if read(path, &kept.machine).is_some_and(|old| !kept.supersedes(&old)) {
        return Ok(false);
    }
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    let mut aside = AtomicFile::create(path)?;
    aside.write_all(&serde_json::to_vec(kept)?)?;
    aside.commit()?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(thoroughness: Thoroughness, load_ratio: f64, mean_ns: f64) -> StoredCalibration {
        let per_sample_ns = Cost::new(mean_ns, 100.0);
        let model = CostModel { per_sample_ns, ..CostModel::default() };
        let (machine, quick) = ("here".to_owned(), Vec::new());
        StoredCalibration { machine, taken_unix_ns: 1, thoroughness, load_ratio, model, quick }
    }

    #[test]
    fn quiet_counts_for_more_than_thorough() {
        use Thoroughness::{Full, Quick};
        let order = [(Quick, 0.5), (Full, 0.5), (Quick, 0.01), (Full, 0.01)];
        for (i, &(new, load)) in order.iter().enumerate() {
            for (j, &(old, old_load)) in order.iter().enumerate() {
                let supersedes = kept(new, load, 1e4).supersedes(&kept(old, old_load, 1e4));
                assert_eq!(supersedes, i >= j, "{new:?} at {load} against {old:?} at {old_load}");
            }
        }
        assert!(kept(Full, f64::NAN, 1e4).is_loaded());
    }

    /// One in ten of them is half off.
    #[test]
    fn the_median_of_quick_ones_is_kept_until_they_are_enough() {
        use Thoroughness::{Full, Quick};
        let mut all = kept(Quick, 0.5, 9e4); // of a busy hour: it counts for nothing later
        let mut settled = Vec::new();
        for mean_ns in [3e4, 2.1e4, 5e4, 2.2e4, 2.3e4, 2.4e4, 2.2e4] {
            settled.push(all.is_settled());
            all = kept(Quick, 0.0, mean_ns).after(Some(all));
            assert!(all.model.is_plausible(), "{mean_ns}: else it would not be kept");
        }
        assert_eq!((settled, all.is_settled()), (vec![false; 7], true));
        assert_eq!((all.quick.len(), all.model.per_sample_ns.mean_ns), (7, 2.3e4));
        let loaded = kept(Quick, 0.5, 9e4).after(Some(all.clone()));
        assert_eq!(loaded, all);
        let full = kept(Full, 0.0, 2.5e4).after(Some(all.clone()));
        assert!(full.is_settled() && full.model.per_sample_ns.mean_ns == 2.5e4);
        assert_eq!(kept(Quick, 0.0, 2e4).after(Some(full.clone())), full);
        assert_eq!(
            kept(Quick, 0.0, 2e4).after(Some(kept(Quick, 0.0, 3e4))).quick.len(),
            1,
            "of an older version"
        );
    }

    /// Each is off in something else.
    #[test]
    fn each_figure_is_the_median_of_that_figure() {
        let mut all = None;
        for at in 0..7_u32 {
            let off = |figure: u32| if at == figure { 2.0 } else { 1.0 + 0.01 * f64::from(at % 3) };
            let mut one = kept(Thoroughness::Quick, 0.0, 2e4 * off(0));
            one.model.per_handler_ns = Some(Cost::new(3e3 * off(1), 10.0));
            one.model.per_interrupt_ns = Some(Cost::new(1.5e4 * off(2), 10.0));
            one.model.cache_sensitivity = Some(CacheSensitivity {
                handler_ns: Cost::new(2e3 * off(3), 10.0),
                frame_ns: Cost::new(80.0, 10.0),
                byte_ns: Cost::new(0.2, 0.1),
                outside_ns: Cost::new(1.6e4 * off(4), 10.0),
                growth: 0.55,
                growth_se: 0.25,
            });
            all = Some(one.after(all));
        }
        let model = all.unwrap().model;
        let cache_sensitivity = model.cache_sensitivity.unwrap();
        let near = |cost: Cost, mean_ns: f64| {
            assert!((cost.mean_ns / mean_ns - 1.0).abs() < 0.03 && cost.se_ns > 0.1 * mean_ns, "{cost:?}");
        };
        near(model.per_sample_ns, 2e4);
        near(model.per_handler_ns.unwrap(), 3e3);
        near(model.per_interrupt_ns.unwrap(), 1.5e4);
        near(cache_sensitivity.handler_ns, 2e3);
        near(cache_sensitivity.outside_ns, 1.6e4);
        assert!(model.is_plausible());
    }

    #[test]
    fn the_better_calibration_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/down/calibration.json");
        let (quick, loaded) = (kept(Thoroughness::Quick, 0.0, 2e4), kept(Thoroughness::Full, 0.5, 3e4));
        assert!(write(&path, &quick).unwrap());
        assert!(!write(&path, &loaded).unwrap());
        assert_eq!(read(&path, "here"), Some(quick));
        let full = kept(Thoroughness::Full, 0.0, 4e4);
        assert!(write(&path, &full).unwrap());
        assert_eq!(read(&path, "here"), Some(full));
    }

    #[test]
    fn a_file_of_another_machine_or_of_nonsense_is_none_and_makes_room() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("calibration.json");
        let full = kept(Thoroughness::Full, 0.0, 4e4);
        write(&path, &full).unwrap();
        assert_eq!(read(&path, "elsewhere"), None);
        let nonsense = serde_json::to_string(&full).unwrap().replace("40000.0", "-1.0");
        for text in ["", "{}", "null", "[1, 2", &nonsense, &"x".repeat(1 << 20)] {
            fs::write(&path, text).unwrap();
            assert_eq!(read(&path, "here"), None, "{text:.40}");
        }
        assert!(write(&path, &kept(Thoroughness::Quick, 0.9, 2e4)).unwrap());
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_an_error_and_not_a_panic() {
        let kept = kept(Thoroughness::Full, 0.0, 4e4);
        assert!(write(Path::new("/proc/no/such/calibration.json"), &kept).is_err());
        assert!(write(Path::new("/dev/null"), &kept).is_err());
    }

    #[test]
    fn the_cpu_is_called_what_the_kernel_calls_it() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: A CPU: fast\n"), "A CPU: fast");
        assert_eq!(cpu_model(""), "");
    }
}
