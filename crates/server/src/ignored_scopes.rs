//! Warns once about `serviceScopeConfigs` of the mesh config that have no effect, because the policy
//! does not honour them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use tracing::warn;

use strait_base::codes;
use strait_mesh::push::PushContext;
use strait_model::mesh_config::ServiceScopes;

/// The time in which clusters report the statements of their objects after a new mesh config.
const SETTLE: Duration = Duration::from_secs(5);

/// Follows the versions of the mesh. Ends with their sender.
pub(super) async fn warn_of_ignored_scopes(mut context: watch::Receiver<Option<Arc<PushContext>>>) {
    let mut reported: Arc<ServiceScopes> = Arc::default();
    loop {
        let current = context.borrow_and_update().as_ref().map(|context| ignored(context));
        match current {
            Some(scopes) if scopes.is_empty() => reported = scopes,
            Some(scopes) if scopes != reported => {
                reported = scopes;
                sleep(SETTLE).await;
                let count = context.borrow().as_ref().map_or(0, |context| would_be_local(context));
                let code = &codes::SCOPES_IGNORED;
                warn!(%code, services = count, next = code.next, "serviceScopeConfigs has no effect; services would become local with it");
            }
            _ => {}
        }
        if context.changed().await.is_err() {
            return;
        }
    }
}

/// Returns the configurations that have no effect.
fn ignored(context: &PushContext) -> Arc<ServiceScopes> {
    match context.policy.sharing().honours_istio() {
        true => Arc::default(),
        false => Arc::clone(&context.mesh.service_scopes),
    }
}

/// Returns the number of services that the configurations would keep in a cluster that shares them.
fn would_be_local(context: &PushContext) -> usize {
    let is_concerned = |shard: &strait_mesh::aggregate::ShardEndpoints| {
        let facts = shard.service.sharing;
        let is_decided = facts.export.or(facts.label).or(facts.namespace_label).is_some();
        let istio = facts.istio();
        !shard.sharing.is_local && !is_decided && istio.is_some_and(|(is_shared, _)| !is_shared)
    };
    let services = context.services.values();
    services.filter(|service| service.shards.iter().any(is_concerned)).count()
}
