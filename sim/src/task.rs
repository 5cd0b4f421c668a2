//! Where this crate starts tasks. The product runs its own under a supervisor; a simulator that tests
//! use must not need one, so a panic here ends only the task and shows on stderr.

use std::future::Future;

use tokio::task::JoinHandle;

#[expect(clippy::disallowed_methods, reason = "the simulator has no supervisor")]
pub(crate) fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(future)
}
