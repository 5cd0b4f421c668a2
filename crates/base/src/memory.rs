//! The memory limit and usage of the process: of the control group that limits it (version 1 or 2),
//! otherwise of the machine.
//!
//! Page cache that the system would reclaim first does not count as used: the system reclaims it
//! before it kills a process.

use std::fs;
use std::path::{Path, PathBuf};

/// A control group of version 1 without a limit reports a number near 2^63.
const UNLIMITED: u64 = 1 << 60;

/// The memory limit of the process, and the location of the current usage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLimit {
    limit: u64,
    /// The control group with the limit; `None` for the machine's limit.
    group: Option<CgroupFiles>,
}

/// The files of a control group.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CgroupFiles {
    used: PathBuf,
    stat: PathBuf,
    /// The prefix of the line of `stat` with the reclaimable memory.
    inactive: &'static str,
}

impl MemoryLimit {
    /// Returns the limit of this process.
    pub fn of_process() -> Self {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let vm = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self::find(Path::new("/sys/fs/cgroup"), &groups, &vm)
    }

    /// Finds the limit, given the root of the control groups and the contents of
    /// `/proc/self/cgroup` and `/proc/meminfo`.
    fn find(root: &Path, groups: &str, vm: &str) -> Self {
        let kilobytes = vm.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let total = kilobytes.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse().ok());
        let limit = total.unwrap_or(u64::MAX >> 10) << 10;
        let of_line = |line: &str| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let unified = controllers.is_empty();
            (unified || controllers.split(',').any(|one| one == "memory"))
                .then(|| Self::of_group(root, path, unified))?
        };
        let bounded = groups.lines().filter_map(of_line).filter(|one| one.limit < limit);
        bounded.min_by_key(|one| one.limit).unwrap_or(Self { limit, group: None })
    }

    /// Returns the lowest limit of a control group and its ancestors. Inside of a container the
    /// path may be the one outside, which does not exist; then the root is the group.
    fn of_group(root: &Path, path: &str, unified: bool) -> Option<Self> {
        let (root, limit, used, inactive) = if unified {
            (root.to_owned(), "memory.max", "memory.current", "inactive_file ")
        } else {
            let names = ("memory.limit_in_bytes", "memory.usage_in_bytes");
            (root.join("memory"), names.0, names.1, "total_inactive_file ")
        };
        let own = root.join(path.trim_start_matches('/'));
        let folders = own.ancestors().take_while(|folder| folder.starts_with(&root));
        let bounded = folders.filter_map(|folder| {
            let limit = number(&folder.join(limit)).filter(|limit| *limit < UNLIMITED)?;
            let (used, stat) = (folder.join(used), folder.join("memory.stat"));
            Some(Self { limit, group: Some(CgroupFiles { used, stat, inactive }) })
        });
        bounded.min_by_key(|one| one.limit)
    }

    /// Returns the maximum memory of the process, in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the used memory in bytes, if a control group limits it.
    pub fn used(&self) -> Option<u64> {
        let group = self.group.as_ref()?;
        let stat = fs::read_to_string(&group.stat).unwrap_or_default();
        let inactive = stat.lines().find_map(|line| line.strip_prefix(group.inactive));
        let inactive = inactive.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        Some(number(&group.used)?.saturating_sub(inactive))
    }
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: &str = "MemTotal:       24000000 kB\nMemFree:  1 kB\n";

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let file = root.join(path);
            fs::create_dir_all(file.parent().expect("a folder")).expect("made");
            fs::write(file, text).expect("written");
        }
    }

    #[test]
    fn lowest_limit_applies_in_either_version() {
        for (files, groups, limit, used) in [
            (
                &[
                    ("kubepods/memory.max", "209715200\n"),
                    ("kubepods/memory.current", "150000000\n"),
                    ("kubepods/memory.stat", "anon 1\ninactive_file 50000000\n"),
                    ("kubepods/pod/memory.max", "max\n"),
                ][..],
                "0::/kubepods/pod\n",
                209_715_200,
                Some(100_000_000),
            ),
            (
                // A container sees its own group as the root, whatever its name outside is.
                &[("memory.max", "1000\n"), ("memory.current", "700\n")],
                "0::/../kubepods/pod\n",
                1000,
                Some(700),
            ),
            (
                &[
                    ("memory/docker/memory.limit_in_bytes", "5000\n"),
                    ("memory/docker/memory.usage_in_bytes", "4000\n"),
                    ("memory/docker/memory.stat", "total_inactive_file 500\n"),
                    ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ],
                "3:cpu:/docker\n2:hugetlb,memory:/docker\n",
                5000,
                Some(3500),
            ),
            (&[("memory.max", "max\n")], "0::/\n", 24_000_000 << 10, None),
            (&[], "", 24_000_000 << 10, None),
        ] {
            let root = tempfile::tempdir().expect("a folder");
            write(root.path(), files);
            let memory = MemoryLimit::find(root.path(), groups, MACHINE);
            assert_eq!((memory.limit(), memory.used()), (limit, used), "{groups}");
        }
    }

    #[test]
    fn limit_of_this_process_is_found() {
        assert!(MemoryLimit::of_process().limit() > 1 << 20);
    }
}
