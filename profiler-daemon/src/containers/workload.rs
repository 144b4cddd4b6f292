//! The workload of a pod: its deployment, stateful set, daemon set, job or cron job. The runtime only knows
//! the pod; the workload follows from labels that controllers set and from the form of the name, without
//! querying Kubernetes.

use std::collections::BTreeMap;

/// Characters of the suffixes that Kubernetes makes up.
const RANDOM: &str = "bcdfghjklmnpqrstvwxz2456789";
/// Of them, a pod's own suffix has so many.
const POD_SUFFIX: std::ops::RangeInclusive<usize> = 5..=5;
/// Of them, the hash of a replica set's template has so many.
const TEMPLATE_HASH: std::ops::RangeInclusive<usize> = 6..=10;
/// A cron job's jobs end in the minute that they were due, counted since 1970: in the years 2015 to 2084. Dates such as
/// 20261122 are less.
const CRON_MINUTES: std::ops::RangeInclusive<u64> = 24_000_000..=60_000_000;

/// What kind of controller a workload has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkloadKind {
    Deployment,
    StatefulSet,
    DaemonSet,
    Job,
    CronJob,
    /// No label says it.
    Unknown,
}

impl WorkloadKind {
    /// The key of its name in OpenTelemetry's semantic conventions.
    pub(crate) fn label(self) -> Option<&'static str> {
        Some(match self {
            Self::Deployment => "k8s.deployment.name",
            Self::StatefulSet => "k8s.statefulset.name",
            Self::DaemonSet => "k8s.daemonset.name",
            Self::Job => "k8s.job.name",
            Self::CronJob => "k8s.cronjob.name",
            Self::Unknown => return None,
        })
    }
}

/// What a pod is one of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodWorkload {
    pub(crate) kind: WorkloadKind,
    pub(crate) name: String,
}

impl PodWorkload {
    /// The workload of a pod of this name and these labels.
    pub(super) fn of(pod: &str, labels: &BTreeMap<String, String>) -> Self {
        let label = |key: &str| labels.get(key).filter(|value| !value.is_empty());
        let found = |kind: WorkloadKind, name: &str| Self { kind, name: name.to_owned() };
        if let Some(name) = label("pod-template-hash").and_then(|hash| of_deployment(pod, hash)) {
            return found(WorkloadKind::Deployment, name);
        }
        if let Some(job) = label("batch.kubernetes.io/job-name").or_else(|| label("job-name")) {
            return cut_minute(job)
                .map_or_else(|| found(WorkloadKind::Job, job), |name| found(WorkloadKind::CronJob, name));
        }
        let is_numbered = labels.contains_key("statefulset.kubernetes.io/pod-name")
            || labels.contains_key("apps.kubernetes.io/pod-index");
        if let Some(name) = cut_digits(pod).filter(|_| is_numbered) {
            return found(WorkloadKind::StatefulSet, name);
        }
        let is_of_daemon_set = label("controller-revision-hash").is_some();
        if let Some(name) = cut_random(pod, POD_SUFFIX).filter(|_| is_of_daemon_set) {
            return found(WorkloadKind::DaemonSet, name);
        }
        found(WorkloadKind::Unknown, by_name(pod))
    }
}

/// A deployment's pod is called by it, the hash of its template and five characters.
fn of_deployment<'p>(pod: &'p str, hash: &str) -> Option<&'p str> {
    let of_set = cut_random(pod, POD_SUFFIX)?;
    let name = of_set.strip_suffix(hash)?.strip_suffix('-')?;
    Some(name).filter(|name| !name.is_empty())
}

/// What the form of a name alone suggests.
fn by_name(pod: &str) -> &str {
    match cut_random(pod, POD_SUFFIX) {
        Some(name) => cut_random(name, TEMPLATE_HASH).unwrap_or(name),
        None => cut_digits(pod).unwrap_or(pod),
    }
}

fn cut_random(name: &str, lengths: std::ops::RangeInclusive<usize>) -> Option<&str> {
    let (begin, suffix) = name.rsplit_once('-')?;
    let is_random = lengths.contains(&suffix.len()) && suffix.chars().all(|c| RANDOM.contains(c));
    (is_random && !begin.is_empty()).then_some(begin)
}

fn cut_digits(name: &str) -> Option<&str> {
    let (begin, suffix) = name.rsplit_once('-')?;
    let is_number = !suffix.is_empty() && suffix.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && !begin.is_empty()).then_some(begin)
}

fn cut_minute(job: &str) -> Option<&str> {
    let begin = cut_digits(job)?;
    let minute: u64 = job.rsplit_once('-')?.1.parse().ok()?;
    CRON_MINUTES.contains(&minute).then_some(begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pod: &str, labels: &[(&str, &str)]) -> (WorkloadKind, String) {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let PodWorkload { kind, name } = PodWorkload::of(pod, &labels);
        (kind, name)
    }

    #[test]
    fn labels_of_controllers_tell_the_kind() {
        let hash = [("pod-template-hash", "7d9f8b6c5")];
        assert_eq!(of("cart-7d9f8b6c5-x2v4k", &hash), (WorkloadKind::Deployment, "cart".to_owned()));
        let revision = ("controller-revision-hash", "db-5f6c8");
        for numbered in
            [("statefulset.kubernetes.io/pod-name", "db-12"), ("apps.kubernetes.io/pod-index", "12")]
        {
            assert_eq!(of("db-12", &[revision, numbered]), (WorkloadKind::StatefulSet, "db".to_owned()));
        }
        assert_eq!(of("log-agent-x2v4k", &[revision]), (WorkloadKind::DaemonSet, "log-agent".to_owned()));
        assert_eq!(of("import-x2v4k", &[("job-name", "import")]), (WorkloadKind::Job, "import".to_owned()));
        let due = [("batch.kubernetes.io/job-name", "backup-29384750")];
        assert_eq!(of("backup-29384750-x2v4k", &due), (WorkloadKind::CronJob, "backup".to_owned()));
    }

    #[test]
    fn a_job_that_ends_in_a_date_or_another_number_is_no_cron_job() {
        for job in
            ["import-20261122", "import-202611220930", "import-99999999999999999999999", "import-60000001"]
        {
            let pod = format!("{job}-x2v4k");
            assert_eq!(of(&pod, &[("job-name", job)]), (WorkloadKind::Job, job.to_owned()));
        }
        for due in ["24000000", "60000000"] {
            let job = format!("import-{due}");
            assert_eq!(of("a", &[("job-name", &job)]), (WorkloadKind::CronJob, "import".to_owned()));
        }
    }

    #[test]
    fn without_labels_the_name_alone_tells() {
        for (pod, workload) in [
            ("cart-7d9f8b6c5-x2v4k", "cart"),
            ("log-agent-x2v4k", "log-agent"),
            ("db-12", "db"),
            ("debug", "debug"),
            ("kube-proxy-node1", "kube-proxy-node1"),
            ("my-cart-again", "my-cart-again"), // vowels are in no suffix
            ("-12", "-12"),
            ("-x2v4k", "-x2v4k"),
            ("", ""),
        ] {
            assert_eq!(of(pod, &[]), (WorkloadKind::Unknown, workload.to_owned()), "{pod}");
        }
    }

    #[test]
    fn labels_that_contradict_the_name_are_not_believed() {
        assert_eq!(
            of("cart-1", &[("pod-template-hash", "7d9f8b6c5")]),
            (WorkloadKind::Unknown, "cart".to_owned())
        );
        assert_eq!(
            of("cart", &[("apps.kubernetes.io/pod-index", "0")]),
            (WorkloadKind::Unknown, "cart".to_owned())
        );
        assert_eq!(of("cart-x2v4k", &[("job-name", "")]), (WorkloadKind::Unknown, "cart".to_owned()));
    }
}
