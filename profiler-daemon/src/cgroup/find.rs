//! Where the hierarchy is, and where a process is in it.

use std::fs;
use std::path::PathBuf;

/// Where cgroup v2 is mounted, at its own place or beside the hierarchies of version 1.
pub(crate) fn hierarchy() -> Option<PathBuf> {
    mounted(&fs::read_to_string("/proc/self/mountinfo").ok()?)
}

/// The first mount of the whole hierarchy in a `mountinfo`; what the process may see of it counts as the whole.
fn mounted(mountinfo: &str) -> Option<PathBuf> {
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

/// The path of a process in the hierarchy; `None` where it is gone, or outside of what we may see.
pub(super) fn path_of(pid: u32) -> Option<PathBuf> {
    path_in(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

fn path_in(cgroups: &str) -> Option<PathBuf> {
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    (path.starts_with('/') && !path.starts_with("/..")).then(|| PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
