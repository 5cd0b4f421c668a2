//! Where versions go.

use std::sync::Arc;

use tokio::sync::watch;

use crate::push::context::PushContext;
use crate::push::interest::Interest;
use crate::push::scope::Sight;

/// Where versions of one head go, and whom they concern.
#[derive(Clone)]
pub struct HeadOutputs {
    /// The current version; `None` until there is one.
    pub context: watch::Sender<Option<Arc<PushContext>>>,
    /// Who is notified.
    pub interest: Arc<Interest>,
    /// What they see of a change.
    pub sight: Arc<dyn Sight>,
}
