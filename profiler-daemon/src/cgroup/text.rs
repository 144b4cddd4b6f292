//! The kernel's texts about control groups and where they are mounted. Any process that may mount or create a
//! group chooses its name.

use std::path::PathBuf;

/// The first mount of the whole hierarchy in a `mountinfo`; what the process may see of it counts as the whole.
pub(crate) fn mounted(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        (system.starts_with("cgroup2 ") && root == "/").then(|| PathBuf::from(unescaped(point)))
    })
}

/// Blanks and the like stand as octal numbers.
fn unescaped(field: &str) -> String {
    ["\\040", "\\011", "\\012", "\\134"]
        .into_iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(field.to_owned(), |text, (escape, character)| text.replace(escape, character))
}

/// The path of a process in the hierarchy, by its `cgroup`; `None` where that is outside of what we may see.
pub(crate) fn path_in(cgroups: &str) -> Option<PathBuf> {
    named_in(cgroups).filter(|path| !is_outside(path)).map(PathBuf::from)
}

/// What the kernel calls the group of a process, by its `cgroup`. In a namespace of control groups, such as a container's, the paths of other
/// groups lead up from its root: `/../../system.slice/web.service`.
pub(crate) fn named_in(cgroups: &str) -> Option<&str> {
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    path.starts_with('/').then_some(path)
}

/// Whether a group so called is outside of the namespace that we are in: it has a name, and no folder.
pub(crate) fn is_outside(path: &str) -> bool {
    path.starts_with("/..")
}

/// The processes in a `cgroup.procs`. 0 stands for one that this process cannot see.
pub(crate) fn listed_in(procs: &str) -> impl Iterator<Item = u32> {
    procs.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid != 0)
}

/// `usage_usec` of a `cpu.stat`.
pub(crate) fn usage_ns(text: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    value.trim().parse::<u64>().ok()?.checked_mul(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_is_found_wherever_it_stands() {
        assert_eq!(usage_ns("usage_usec 1234\nuser_usec 1000\n"), Some(1_234_000));
        assert_eq!(usage_ns("nr_periods 0\nusage_usec 7"), Some(7_000));
        for text in ["", "usage_usec", "usage_usec x", "usage_usec -1", "usage_usec 18446744073709551615"] {
            assert_eq!(usage_ns(text), None, "{text}");
        }
    }

    #[test]
    fn the_hierarchy_is_found_among_all_mounts() {
        let own = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let hybrid = "31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      32 30 0:28 / /sys/fs/cgroup/my\\040own rw - cgroup2 cgroup2 rw\n";
        let part = "33 30 0:28 /system.slice /mnt rw - cgroup2 none rw\n";
        assert_eq!(mounted(own), Some("/sys/fs/cgroup".into()));
        assert_eq!(mounted(&format!("{part}{hybrid}")), Some("/sys/fs/cgroup/my own".into()));
        for none in ["", "garbage", "1 2 3 - cgroup2", part, " - cgroup2 x"] {
            assert_eq!(mounted(none), None, "{none}");
        }
    }

    #[test]
    fn a_process_is_found_beside_the_old_hierarchies() {
        assert_eq!(path_in("3:cpu:/old\n0::/a.slice/b.service\n"), Some("/a.slice/b.service".into()));
        assert_eq!(path_in("0::/gone (deleted)"), Some("/gone".into()));
        for none in ["", "3:cpu:/old", "0::", "0::/../outside"] {
            assert_eq!(path_in(none), None, "{none}");
        }
        assert_eq!(named_in("0::/../outside"), Some("/../outside"));
        assert!(is_outside("/../outside") && !is_outside("/inside"));
    }
}
