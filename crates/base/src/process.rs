//! Resource usage and limits of this process: CPU, memory, threads, file descriptors.
//!
//! On Linux, the values come from /proc; other systems only have POSIX interfaces. Values are read
//! on request.

use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process_group, setrlimit};

/// The resource usage of the process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProcessUsage {
    /// CPU time, in user and system mode.
    pub cpu: Duration,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Size of the virtual address space.
    pub virtual_bytes: u64,
    /// Number of threads.
    pub threads: u64,
    /// The start time, since the epoch.
    pub began: Duration,
}

impl ProcessUsage {
    /// Returns the usage of this process, or `None` if the system does not report it.
    pub fn now() -> Option<Self> {
        let own = std::fs::read_to_string("/proc/self/stat").ok()?;
        let system = std::fs::read_to_string("/proc/stat").ok()?;
        let ticks = rustix::param::clock_ticks_per_second();
        let page = u64::try_from(rustix::param::page_size()).ok()?;
        Self::read(&own, &system, ticks, page)
    }

    /// Parses proc_pid_stat(5) and proc_stat(5), given the ticks per second and the bytes per page.
    fn read(own: &str, system: &str, ticks: u64, page: u64) -> Option<Self> {
        // The name in brackets may contain any character, including brackets and spaces. The next
        // field is number 3.
        let (_, rest) = own.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field = |number: usize| fields.get(number.checked_sub(3)?)?.parse::<u64>().ok();
        let time =
            |count: u64| (ticks > 0).then(|| Duration::from_secs_f64(count as f64 / ticks as f64));
        let boot = system.lines().find_map(|line| line.strip_prefix("btime "))?;
        let boot = Duration::from_secs(boot.trim().parse().ok()?);
        Some(Self {
            cpu: time(field(14)?.checked_add(field(15)?)?)?,
            threads: field(20)?,
            began: boot.checked_add(time(field(22)?)?)?,
            virtual_bytes: field(23)?,
            resident_bytes: field(24)?.checked_mul(page)?,
        })
    }
}

/// Returns the number of open file descriptors, or `None` if the system does not report it.
pub fn descriptors_open() -> Option<u64> {
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    // One descriptor is open for reading the directory.
    u64::try_from(entries.count()).ok()?.checked_sub(1)
}

/// Returns the maximum number of open file descriptors, or `None` if unlimited.
pub fn descriptors_max() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Returns the maximum size of the address space in bytes, or `None` if unlimited.
pub fn virtual_bytes_max() -> Option<u64> {
    getrlimit(Resource::As).current
}

/// Raises the limit of file descriptors to the maximum that the process may set. Returns the old
/// and the new limit if it changed.
///
/// # Errors
/// Returns an error if the system refuses.
pub fn raise_descriptors() -> std::io::Result<Option<(u64, Option<u64>)>> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(before) = current.filter(|current| maximum.is_none_or(|maximum| maximum > *current))
    else {
        return Ok(None);
    };
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    Ok(Some((before, maximum)))
}

/// Kills the processes of the group that a child of this process leads. The caller has not waited for
/// that child yet, so the number belongs to no other process.
pub fn kill_group(leader: u32) {
    if let Some(leader) = i32::try_from(leader).ok().and_then(Pid::from_raw) {
        // The only possible error is that all of them have ended.
        let _ = kill_process_group(leader, Signal::KILL);
    }
}

/// Returns the time since the epoch.
pub fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_parsed_after_any_process_name() {
        let own = "42 (a) b (c) S 1 42 42 0 -1 4194560 9 0 0 0 150 50 0 0 20 0 7 0 3000 4096000 25 \
                   18446744073709551615 1 1 0";
        let system = "cpu 1 2 3\nbtime 1700000000\nprocesses 5\n";
        let usage = ProcessUsage::read(own, system, 100, 4096).expect("figures");
        assert_eq!(usage.cpu, Duration::from_secs(2));
        assert_eq!((usage.threads, usage.virtual_bytes), (7, 4_096_000));
        assert_eq!(usage.resident_bytes, 25 * 4096);
        assert_eq!(usage.began, Duration::from_secs(1_700_000_030));
        for (own, system) in [("", system), ("42 (a) S 1 2", system), (own, "cpu 1\n")] {
            assert_eq!(ProcessUsage::read(own, system, 100, 4096), None);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn usage_of_this_process_is_reported() {
        let usage = ProcessUsage::now().expect("Linux reports it");
        assert!(usage.resident_bytes > 1 << 20 && usage.virtual_bytes >= usage.resident_bytes);
        let age = since_epoch(SystemTime::now()).checked_sub(usage.began).expect("it has begun");
        assert!(age < Duration::from_secs(24 * 3600), "{age:?}");
        let open = descriptors_open().expect("Linux reports it");
        let more = std::fs::File::open("/dev/null").expect("it opens");
        // Other tests open and close descriptors meanwhile, but do not only close them.
        assert!(open > 2 && descriptors_max().is_none_or(|most| open < most), "{open}");
        drop(more);
    }
}
