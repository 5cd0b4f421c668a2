//! Signals that request the end of the process.

use tracing::warn;

/// Completes when SIGTERM, SIGINT (Ctrl-C) or SIGHUP (the terminal closed) arrives. Signals are
/// caught from the call on, not from the first poll. SIGHUP keeps being ignored if the parent
/// process ignores it.
pub fn signalled() -> impl Future<Output = ()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut kinds = vec![SignalKind::terminate(), SignalKind::interrupt()];
    if !hangups_are_ignored() {
        kinds.push(SignalKind::hangup());
    }
    let caught = kinds.into_iter().filter_map(|kind| match signal(kind) {
        Ok(mut signal) => Some(Box::pin(async move {
            signal.recv().await;
        })),
        Err(error) => {
            warn!(%error, signal = kind.as_raw_value(), "cannot catch a signal; it will end the process immediately");
            None
        }
    });
    let caught: Vec<_> = caught.collect();
    async move {
        match caught.is_empty() {
            true => std::future::pending().await,
            false => drop(futures::future::select_all(caught).await),
        }
    }
}

/// Returns whether the parent process ignores SIGHUP, as nohup(1) does.
fn hangups_are_ignored() -> bool {
    // This file only exists on Linux.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignores_hangups(&status)
}

/// Returns whether SIGHUP is ignored according to the content of `/proc/self/status`
/// (proc_pid_status(5)).
fn ignores_hangups(status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // SIGHUP is signal 1, the lowest bit.
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::ignores_hangups;

    #[test]
    fn hangup_that_the_parent_process_ignores_is_ignored() {
        for (mask, ignored) in
            [("0000000000000001", true), ("0000000000001000", false), ("0000000000001007", true)]
        {
            let status = format!("Name:\tstrait\nSigBlk:\t0000000000000001\nSigIgn:\t{mask}\n");
            assert_eq!(ignores_hangups(&status), ignored, "{mask}");
        }
        assert!(!ignores_hangups(""), "a system without /proc");
    }
}
