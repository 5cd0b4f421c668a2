//! The audit: generates from scratch, without caches, the resources that each proxy should hold, and
//! compares them with those that it was sent.
//!
//! Which streams a change affects is computed, not recorded (decision 0019), so a mistake there, or
//! in a cache, would leave a proxy with old resources until its next change. The audit finds any such
//! difference within one round, reports it, and sends the current resources. A round takes at least
//! the audit interval, and longer if it would otherwise use more than [`CPU_SHARE`] of one core.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tracing::error;

use super::connections::OpenStream;
use super::shared::ServerShared;
use strait_base::codes;
use strait_envoy::heads::ConfigVariant;
use strait_envoy::{Cache, ProxyConfig};
use strait_mesh::push::subscription_index::{ChangedItem, Changes};
use strait_xds::audit::AuditDifference;

/// The part of one core that the audit may use: one in this number.
const CPU_SHARE: u32 = 200;
/// The maximum number of differences that a log line names.
const NAMED_MAX: usize = 5;

/// Audits each open stream once. Takes about `interval`, and returns at once without streams.
pub(super) async fn round(shared: Arc<ServerShared>, interval: Duration) {
    let streams = shared.connections.list();
    let pause = interval / u32::try_from(streams.len()).unwrap_or(u32::MAX).max(1);
    for stream in streams {
        let began = Instant::now();
        let audited = Arc::clone(&shared);
        // Generating takes too long for a thread that serves streams. A panic ends this audit only.
        let _ = tokio::task::spawn_blocking(move || audit(&audited, &stream)).await;
        tokio::time::sleep(pause.max(began.elapsed() * CPU_SHARE)).await;
    }
}

/// Audits one stream, and repairs it if something differs.
fn audit(shared: &ServerShared, stream: &OpenStream) {
    let head = shared.heads.variant_for(stream.proxy());
    let Some(differences) = differences(shared, head.as_deref(), stream) else { return };
    shared.stats.audited.fetch_add(1, Ordering::Relaxed);
    if differences.is_empty() {
        return;
    }
    let count = differences.len() as u64;
    shared.stats.audit_mismatches.fetch_add(count, Ordering::Relaxed);
    error!(
        code = codes::AUDIT_MISMATCH.id,
        proxy = %stream.proxy().id,
        "{}: {}; the current resources are sent now",
        codes::AUDIT_MISMATCH.title,
        described(&differences)
    );
    let subscription_index =
        head.as_ref().map_or(&shared.subscription_index, |head| head.subscription_index());
    shared.cache_of(head.as_deref()).clear();
    let workload =
        ChangedItem::Workload(stream.proxy().cluster.clone(), stream.proxy().workload.clone());
    subscription_index.mark(&Changes::from_iter([workload]));
}

/// Returns the differences between the resources of a proxy and the expected ones.
/// Returns `None` if they cannot be compared now: a change is on its way to the proxy, or the
/// proxy's cluster was withdrawn, so that the proxy keeps its configuration.
fn differences(
    shared: &ServerShared,
    head: Option<&ConfigVariant>,
    stream: &OpenStream,
) -> Option<Vec<AuditDifference>> {
    let context = shared.context_of(head)?;
    if !context.network_labels.contains_key(&stream.proxy().cluster) {
        return None;
    }
    // The order matters: a change that is published after this check also changes the context.
    if stream.may_have_changes() {
        return None;
    }
    let (network, whereabouts) = stream.place();
    let sent = stream.sent_state()?;
    if !shared.context_of(head).is_some_and(|now| Arc::ptr_eq(&now, &context)) {
        return None;
    }
    let cache = Cache::default();
    let config = ProxyConfig::new(&context, stream.proxy(), network, &cache);
    Some(sent.differences(&mut config.at(whereabouts).with_hosts_apart()))
}

/// Names the differing resources with both versions.
fn described(differences: &[AuditDifference]) -> String {
    let mut text = String::new();
    for AuditDifference { kind, name, held, generated } in differences.iter().take(NAMED_MAX) {
        let separator = if text.is_empty() { "" } else { ", " };
        let version = held.as_ref().and_then(|held| held.version());
        let held = version.map_or_else(|| "none".to_owned(), |version| version.to_string());
        let generated = generated.as_ref();
        let now = generated.map_or_else(|| "none".to_owned(), |now| now.version.to_string());
        let _ =
            write!(text, "{separator}{} {name} (holds {held}, should hold {now})", kind.short());
    }
    if let Some(others) = differences.len().checked_sub(NAMED_MAX).filter(|others| *others > 0) {
        let _ = write!(text, " and {others} others");
    }
    text
}
