//! What the C library does with free memory. A crate of its own, so that all others can forbid unsafe code.

#![warn(missing_docs)]

/// Has the C library give the pages back that lie free within its heaps, not just at their ends
/// (malloc_trim(3)), and says whether there were any. Takes each heap's lock in turn, and some
/// milliseconds for 100 MB. Other C libraries than glibc have no such call: nothing happens.
pub fn give_back() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: takes a number, and locks of its own; any thread may call it at any time.
        unsafe { libc::malloc_trim(0) == 1 }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    false
}

/// Has the C library keep what is freed for whoever needs memory next, where pieces of up to `bytes` are
/// concerned, rather than give it back at once and have it made anew, page by page (mallopt(3)). It takes no more
/// than 32 MiB on 64 bits; returns whether it took this.
pub fn keep_free(bytes: usize) -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        // SAFETY: both take numbers, and the lock of the first heap.
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

    /// Bytes that are this process's own, by /proc (proc_pid_smaps(5)).
    fn private() -> u64 {
        let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("Linux has it");
        let line = text.lines().find_map(|line| line.strip_prefix("Private_Dirty:"));
        let kib = line.and_then(|line| line.split_whitespace().next());
        1024 * kib.expect("a size").parse::<u64>().expect("a number")
    }

    #[test]
    fn pages_between_what_is_kept_go_back() {
        // Small enough not to be mapped one by one; every sixteenth stays.
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
