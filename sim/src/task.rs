//! The function that starts tasks. The product starts tasks under a supervisor, but a simulator for
//! tests must not need one. A panic ends only the task and is printed to stderr.

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
