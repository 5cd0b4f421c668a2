//! Locks the pages of the program's files in memory (mlock(2)).

use std::io;

/// The result of [`lock_program`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockedProgram {
    /// The number of bytes that are locked now.
    pub bytes: u64,
}

/// The system refused to lock the program's pages.
#[derive(Debug)]
pub struct LockRefusal {
    /// The number of bytes of the program.
    pub bytes: u64,
    /// The limit of locked memory of this process in bytes (RLIMIT_MEMLOCK), or `None` if there is no limit.
    pub limit: Option<u64>,
    /// The answer of the system.
    pub error: io::Error,
}

/// Reads all mapped pages of the program and its libraries into memory and locks them, so that the system does not
/// reclaim them while the program is idle. Only pages of files are locked, not the heap. Pages stay locked until the
/// process ends.
///
/// # Errors
/// If the process may not lock so much memory, or the system cannot tell its mappings. Some pages may be locked then.
pub fn lock_program() -> Result<LockedProgram, LockRefusal> {
    let refusal = |bytes, error| LockRefusal { bytes, limit: limit(), error };
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|error| refusal(0, error))?;
    let pieces: Vec<(usize, usize)> = maps.lines().filter_map(mapped_file).collect();
    let bytes = pieces.iter().map(|(_, length)| *length as u64).sum();
    for (start, length) in pieces {
        lock(start, length).map_err(|error| refusal(bytes, error))?;
    }
    Ok(LockedProgram { bytes })
}

/// Returns the start and the length of a mapping of a file that the program reads or executes, from a line of
/// /proc/PID/maps (proc_pid_maps(5)).
fn mapped_file(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (range, permissions) = (fields.next()?, fields.next()?);
    let (start, end) = range.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let length = usize::from_str_radix(end, 16).ok()?.checked_sub(start)?;
    // The other fields: offset, device, inode, path.
    let is_file = fields.nth(3).is_some_and(|path| path.starts_with('/'));
    let is_code_or_constants = permissions.starts_with("r-");
    (is_file && is_code_or_constants).then_some((start, length))
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn lock(start: usize, length: usize) -> io::Result<()> {
    // SAFETY: mlock(2) neither reads nor writes through the pointer. For a range that is no longer mapped it fails.
    match unsafe { libc::mlock(std::ptr::without_provenance(start), length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is valid, and the call writes nothing else.
    let found = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (found == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn lock(_: usize, _: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn limit() -> Option<u64> {
    None
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::{lock_program, mapped_file};

    #[test]
    fn code_and_constants_of_files_are_mapped_files() {
        let mapped = |line| mapped_file(line);
        assert_eq!(
            mapped("55d0c0400000-55d0c0600000 r-xp 00200000 fe:00 1234    /usr/bin/strait"),
            Some((0x55d0_c040_0000, 0x0020_0000))
        );
        assert!(mapped("1000-3000 r--p 00000000 fe:00 1234 /usr/bin/strait").is_some());
        for other in [
            "1000-3000 rw-p 00000000 fe:00 1234 /usr/bin/strait",
            "1000-3000 r--p 00000000 00:00 0 [vvar]",
            "1000-3000 r-xp 00000000 00:00 0",
            "1000-3000 ---p 00000000 fe:00 1234 /usr/lib/libc.so.6",
            "",
        ] {
            assert_eq!(mapped(other), None, "{other}");
        }
    }

    /// Returns the locked memory of this process in bytes, from /proc (proc_pid_status(5)).
    fn locked() -> u64 {
        let text = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
        let line = text.lines().find_map(|line| line.strip_prefix("VmLck:"));
        let kib = line.and_then(|line| line.split_whitespace().next());
        1024 * kib.expect("a size").parse::<u64>().expect("a number")
    }

    #[test]
    fn locked_pages_are_those_of_the_program() {
        match lock_program() {
            Ok(program) => {
                assert!(program.bytes > 1 << 20, "a test program is larger: {program:?}");
                assert!(locked() >= program.bytes, "{} of {program:?}", locked());
            }
            // Without the right, the limit explains the refusal.
            Err(refusal) => {
                assert!(refusal.limit.is_some_and(|limit| limit < refusal.bytes), "{refusal:?}")
            }
        }
    }
}
