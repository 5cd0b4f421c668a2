//! Control of the process's memory: the C library's free memory, and pages that stay in memory. This is a separate crate
//! so that all others can forbid unsafe code.

#![warn(missing_docs)]

mod lock;

pub use lock::{LockRefusal, LockedProgram, lock_program};

/// Returns unused pages inside the C library's heaps to the system, not only those at their ends
/// (malloc_trim(3)). Returns whether any were released. Locks each heap in turn, and takes some milliseconds for
/// 100 MB. Does nothing with C libraries other than glibc.
pub fn give_back() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: passes only a number and takes the library's locks; any thread may call it at any time.
        unsafe { libc::malloc_trim(0) == 1 }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    false
}

/// Makes the C library keep freed memory for later allocations instead of returning it to the system at once, so
/// that new pages need not be mapped (mallopt(3)). This applies to allocations of up to `bytes` bytes. On 64-bit
/// systems, glibc accepts at most 32 MiB. Returns whether it accepted the value.
pub fn keep_free(bytes: usize) -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        // SAFETY: both calls pass only numbers and take the lock of the first heap.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, bytes) == 1
                && libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX) == 1
        }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    {
        let _ = bytes;
        false
    }
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::give_back;

    /// Returns the private dirty memory of this process in bytes, from /proc (proc_pid_smaps(5)).
    fn private() -> u64 {
        let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("Linux has it");
        let line = text.lines().find_map(|line| line.strip_prefix("Private_Dirty:"));
        let kib = line.and_then(|line| line.split_whitespace().next());
        1024 * kib.expect("a size").parse::<u64>().expect("a number")
    }

    #[test]
    fn free_pages_between_allocations_are_returned() {
        // Small enough not to be mapped individually. Every sixteenth piece stays allocated.
        let mut pieces: Vec<_> = (0..4096).map(|_| Some(vec![1_u8; 16 * 1024])).collect();
        let full = private();
        for (i, piece) in pieces.iter_mut().enumerate() {
            if i % 16 != 0 {
                *piece = None;
            }
        }
        assert!(give_back());
        let (now, freed) = (private(), 4096 * 15 / 16 * 16 * 1024);
        assert!(now + freed / 2 < full, "{full} before, {now} after");
    }
}
