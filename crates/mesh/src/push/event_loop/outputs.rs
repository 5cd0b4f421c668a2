//! The channels through which the event loop publishes the versions of the mesh.

use std::sync::Arc;

use tokio::sync::watch;

use crate::push::context::PushContext;
use crate::push::scope::ChangeImpact;
use crate::push::subscription_index::SubscriptionIndex;

/// The receivers of the versions of one head.
#[derive(Clone)]
pub struct VariantOutputs {
    /// The current version; `None` until the first one.
    pub context: watch::Sender<Option<Arc<PushContext>>>,
    /// The streams to notify.
    pub subscription_index: Arc<SubscriptionIndex>,
    /// Computes which proxies a change affects.
    pub change_impact: Arc<dyn ChangeImpact>,
}
