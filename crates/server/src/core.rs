//! Start of the core: the event loop, and the tasks that resolve and probe gateways for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::config::ServeArgs;
use strait_base::task::{Supervisor, until};
use strait_base::time::pace;
use strait_envoy::Cache;
use strait_envoy::heads::ConfigVariants;
use strait_mesh::hold::RetainedConfigurations;
use strait_mesh::network::ResolvedNames;
use strait_mesh::network::probes::{self, ProbeAddress, ProbeTargets};
use strait_mesh::network::resolver::{self, Dns};
use strait_mesh::push::event_loop::{self, LoopCounters, MeshEvent, MeshState};
use strait_mesh::push::shared::{SharedEndpointsCache, SharedServicesCache, SharingInputs};
use strait_mesh::push::subscription_index::SubscriptionIndex;
use strait_mesh::push::view::service_behind;
use strait_mesh::push::{self, PushContext};
use strait_mesh::timeline::Timeline;
use strait_model::{ClusterId, ImportMode, Mcs, NetworkId, SharedEndpoints, SharedServices};
use strait_sources::clusters::status::ClusterStatus;
use strait_xds::names::OutboundName;

/// Capacity of the event loop's queue. While it is full, registries wait and merge their pending
/// updates.
pub(super) const EVENTS: usize = 1024;
/// The bounds of the interval between two computations of shared services.
const SHARED_PACES: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(500)];

/// The running core: its queue of events and its outputs.
pub(super) struct Core {
    pub(super) events: mpsc::Sender<MeshEvent>,
    pub(super) context: watch::Receiver<Option<Arc<PushContext>>>,
    pub(super) subscription_index: Arc<SubscriptionIndex>,
    pub(super) cache: Arc<Cache>,
    /// Assigns proxies to the next configuration during a rollout.
    pub(super) heads: Arc<ConfigVariants>,
    pub(super) timeline: Arc<Timeline>,
    /// Configurations that an operator can return to.
    pub(super) retained: Arc<RetainedConfigurations>,
    pub(super) counters: watch::Receiver<LoopCounters>,
    /// Exported and imported services; empty while `--mcs` is off.
    pub(super) shared: watch::Receiver<Arc<SharedServices>>,
    shared_sender: watch::Sender<Arc<SharedServices>>,
    /// Their endpoints; empty while no cluster needs EndpointSlices.
    pub(super) shared_endpoints: watch::Receiver<Arc<SharedEndpoints>>,
    shared_endpoints_sender: watch::Sender<Arc<SharedEndpoints>>,
    pub(super) resolved: watch::Receiver<Arc<ResolvedNames>>,
    pub(super) dead_gateways: watch::Receiver<Arc<BTreeSet<ProbeAddress>>>,
    /// Cancelled when the process is about to end.
    pub(super) drain: CancellationToken,
}

impl Core {
    pub(super) fn start(
        args: &ServeArgs,
        config_cluster: Option<ClusterId>,
        timeline: Arc<Timeline>,
        tasks: &Supervisor,
    ) -> Self {
        let (events, events_taken) = mpsc::channel(EVENTS);
        let (context, context_seen) = watch::channel(None::<Arc<PushContext>>);
        let (names, names_wanted) = watch::channel(Default::default());
        let (shared_sender, shared) = watch::channel(Arc::default());
        let (shared_endpoints_sender, shared_endpoints) = watch::channel(Arc::default());
        let (figures, counters) = watch::channel(LoopCounters::none());
        let subscription_index = Arc::new(SubscriptionIndex::default());
        let cache = Arc::<Cache>::default();
        let retained = Arc::<RetainedConfigurations>::default();
        let mesh = MeshState::new(Arc::new(push::FixedSettings {
            domain: args.domain.clone(),
            trust_domain: args.trust_domain.clone(),
            system_namespace: args.namespace.clone(),
            config_cluster,
            allow_direct_cross_network: args.networks.allow_direct_cross_network,
            headless_pods_max: args.networks.headless_pods_max,
            metadata: args.endpoint_metadata(),
            cluster_aliases: args.clusters.cluster_alias.iter().cloned().collect(),
        }));
        let mesh = mesh.measuring(strait_envoy::rule_bytes);
        let outputs = event_loop::LoopOutputs {
            context,
            subscription_index: Arc::clone(&subscription_index),
            change_impact: Arc::<Cache>::clone(&cache),
            names,
            timeline: Arc::clone(&timeline),
            retained: Arc::clone(&retained),
            figures,
        };
        let watchdog = tasks.watchdog("event loop");
        tasks.spawn("event loop", event_loop::run(mesh, events_taken, outputs, watchdog));
        Self {
            events,
            subscription_index,
            cache,
            heads: Arc::default(),
            timeline,
            retained,
            counters,
            shared,
            shared_sender,
            shared_endpoints,
            shared_endpoints_sender,
            resolved: gateway_names(names_wanted, tasks),
            dead_gateways: gateway_probes(args.networks.probe_gateways, &context_seen, tasks),
            context: context_seen,
            drain: CancellationToken::new(),
        }
    }
}

/// Starts the task that computes the services that clusters share.
pub(super) fn share_services(
    args: &ServeArgs,
    core: &Core,
    statuses: &watch::Receiver<Arc<Vec<ClusterStatus>>>,
    tasks: &Supervisor,
) {
    let sharing = Sharing {
        auto_export: args.mcs.mcs_auto_export && args.mcs.mcs != Mcs::Off,
        removals_certain_at: Instant::now() + args.clusters.cluster_removal_grace,
        context: core.context.clone(),
        statuses: statuses.clone(),
        shared: core.shared_sender.clone(),
        imports: args.mcs.mcs_imports,
        endpoints: core.shared_endpoints_sender.clone(),
    };
    tasks.spawn_restarting("shared services", Duration::from_secs(1), move || {
        publish_shared(sharing.clone())
    });
}

fn gateway_names(
    wanted: watch::Receiver<BTreeSet<Arc<str>>>,
    tasks: &Supervisor,
) -> watch::Receiver<Arc<ResolvedNames>> {
    let (resolved, resolved_seen) = watch::channel(Arc::<ResolvedNames>::default());
    match Dns::system() {
        Ok(dns) => {
            let limits = resolver::DnsLimits::default();
            tasks.spawn_restarting("gateway names", Duration::from_secs(1), move || {
                resolver::run(dns.clone(), limits.clone(), wanted.clone(), resolved.clone())
            });
        }
        Err(error) => {
            warn!(%error, "no DNS configuration: gateways with host names are unreachable");
        }
    }
    resolved_seen
}

/// Returns the gateways that don't respond, probed at this interval. Zero disables probing.
fn gateway_probes(
    every: Duration,
    context: &watch::Receiver<Option<Arc<PushContext>>>,
    tasks: &Supervisor,
) -> watch::Receiver<Arc<BTreeSet<ProbeAddress>>> {
    let (dead, dead_seen) = watch::channel(Arc::default());
    if !every.is_zero() {
        let context = context.clone();
        tasks.spawn_restarting("gateway probes", Duration::from_secs(1), move || {
            let context = context.clone();
            let targets =
                move || context.borrow().as_deref().map(gateways_to_ask).unwrap_or_default();
            probes::run(every, targets, dead.clone())
        });
    }
    dead_seen
}

/// Returns the gateways to probe, each with the SNI of a service behind it, if one exists.
fn gateways_to_ask(context: &PushContext) -> ProbeTargets {
    let sni = |network: &NetworkId| {
        let (hostname, port) = service_behind(context, network)?;
        Some(OutboundName::sni(hostname.clone(), port).to_string())
    };
    // A network may have many gateways, and the search reads its endpoints.
    let mut found: BTreeMap<&NetworkId, Option<String>> = BTreeMap::new();
    let gateways = context.networks.iter().filter(|gateway| gateway.port != 0);
    let with_sni = gateways.map(|gateway| {
        let sni = found.entry(&gateway.network).or_insert_with_key(|network| sni(network));
        ((gateway.address, gateway.port), sni.clone())
    });
    with_sni.collect()
}

/// The inputs and the output of [`publish_shared`].
#[derive(Debug, Clone)]
struct Sharing {
    auto_export: bool,
    /// When a name that belongs to no member is that of a removed cluster.
    removals_certain_at: Instant,
    context: watch::Receiver<Option<Arc<PushContext>>>,
    statuses: watch::Receiver<Arc<Vec<ClusterStatus>>>,
    shared: watch::Sender<Arc<SharedServices>>,
    /// The mode of the flag; the policy can override it.
    imports: ImportMode,
    endpoints: watch::Sender<Arc<SharedEndpoints>>,
}

/// Sends the services that clusters share to the registries.
async fn publish_shared(mut sharing: Sharing) {
    let mut cache = SharedServicesCache::default();
    let mut endpoints_cache = SharedEndpointsCache::default();
    loop {
        let begun = Instant::now();
        let removals_certain = sharing.removals_certain_at <= begun;
        let current = sharing.context.borrow_and_update().clone();
        if let Some(current) = current {
            let statuses = sharing.statuses.borrow().clone();
            let ids = statuses.iter().filter_map(|status| ClusterId::parse(&status.id).ok());
            let inputs = SharingInputs {
                auto_export: sharing.auto_export,
                now: jiff::Timestamp::now().as_second(),
                removals_certain,
                unusable: ids.filter(|id| !current.clusters.contains(id)).collect(),
            };
            if let Some(mut new) = cache.changed(&current, &inputs) {
                sharing.shared.send_if_modified(|held| {
                    let differs = **held != new;
                    if differs {
                        new.share_with(held);
                        *held = Arc::new(new);
                    }
                    differs
                });
            }
            let needs_endpoints = sharing.imports == ImportMode::Full
                || current.policy.writes_imports_in(ImportMode::Full);
            let endpoints = match needs_endpoints {
                true => endpoints_cache.endpoints(&current, &sharing.shared.borrow()),
                false => SharedEndpoints::default(),
            };
            sharing.endpoints.send_if_modified(|held| {
                let differs = !held.is_same(&endpoints);
                if differs {
                    *held = Arc::new(endpoints);
                }
                differs
            });
        }
        let next = begun + pace(begun.elapsed(), SHARED_PACES);
        let certain_at = (!removals_certain).then_some(sharing.removals_certain_at);
        tokio::select! {
            // An error means that the process is ending.
            changed = sharing.context.changed() => if changed.is_err() { return },
            () = until(certain_at) => continue,
        }
        // Every change of any service creates a version.
        until(Some(next)).await;
    }
}
