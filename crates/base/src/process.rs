//! What the system says of this process, and what it allows it: CPU, memory, threads, file descriptors.
//!
//! Linux says all of it in /proc; elsewhere there is only what POSIX has. Figures are read when somebody
//! asks. Knows nothing of what the process does.

use std::time::{Duration, SystemTime};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the process has used, and uses now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProcessUsage {
    /// Time spent on a CPU, in the system too.
    pub cpu: Duration,
    /// Memory that is resident.
    pub resident_bytes: u64,
    /// Addresses that mean something.
    pub virtual_bytes: u64,
    /// Threads.
    pub threads: u64,
    /// When it began, since the epoch.
    pub began: Duration,
}

impl ProcessUsage {
    /// Of this process; `None` where the system doesn't say.
    pub fn now() -> Option<Self> {
        let own = std::fs::read_to_string("/proc/self/stat").ok()?;
        let system = std::fs::read_to_string("/proc/stat").ok()?;
        let ticks = rustix::param::clock_ticks_per_second();
        let page = u64::try_from(rustix::param::page_size()).ok()?;
        Self::read(&own, &system, ticks, page)
    }

    /// What proc_pid_stat(5) and proc_stat(5) say, where a second has so many ticks and a page so many bytes.
    fn read(own: &str, system: &str, ticks: u64, page: u64) -> Option<Self> {
        // The name, in brackets, may hold anything, brackets and spaces too. What follows it is field 3.
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

/// How many file descriptors are open; `None` where the system doesn't say.
pub fn descriptors_open() -> Option<u64> {
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    // One of them is what reads the folder.
    u64::try_from(entries.count()).ok()?.checked_sub(1)
}

/// How many file descriptors may be open at once; `None` where there is no limit.
pub fn descriptors_max() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// The most addresses the process may have; `None` where there is no limit.
pub fn virtual_bytes_max() -> Option<u64> {
    getrlimit(Resource::As).current
}

/// Raises the limit of file descriptors to the highest that we may set. Returns what it was and what it is,
/// where that is another.
///
/// # Errors
/// The system refuses.
pub fn raise_descriptors() -> std::io::Result<Option<(u64, Option<u64>)>> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(before) = current.filter(|current| maximum.is_none_or(|maximum| maximum > *current))
    else {
        return Ok(None);
    };
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    Ok(Some((before, maximum)))
}

/// Since the epoch.
pub fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_behind_a_name_that_may_be_anything() {
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
    fn this_process_has_begun_and_runs() {
        let usage = ProcessUsage::now().expect("Linux says so");
        assert!(usage.resident_bytes > 1 << 20 && usage.virtual_bytes >= usage.resident_bytes);
        let age = since_epoch(SystemTime::now()).checked_sub(usage.began).expect("it has begun");
        assert!(age < Duration::from_secs(24 * 3600), "{age:?}");
        let open = descriptors_open().expect("Linux says so");
        let more = std::fs::File::open("/dev/null").expect("it opens");
        // Other tests open and close some meanwhile, but not only close.
        assert!(open > 2 && descriptors_max().is_none_or(|most| open < most), "{open}");
        drop(more);
    }
}
