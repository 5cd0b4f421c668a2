//! The receivers of versions.

use std::sync::Arc;

use tokio::sync::watch;

use crate::push::context::PushContext;
use crate::push::interest::Interest;
use crate::push::scope::Sight;

/// The receivers of the versions of one head.
#[derive(Clone)]
pub struct HeadOutputs {
    /// The current version; `None` until the first one.
    pub context: watch::Sender<Option<Arc<PushContext>>>,
    /// The streams to notify.
    pub interest: Arc<Interest>,
    /// Computes which proxies a change affects.
    pub sight: Arc<dyn Sight>,
}
