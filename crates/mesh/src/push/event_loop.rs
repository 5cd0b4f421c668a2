//! The event loop, the only owner of the mesh: applies events, builds the next version, and wakes
//! the affected streams.
//!
//! [`MeshEvent`] lists everything that can change the mesh. [`MeshState`] is the plain, synchronous
//! state; [`run`] only receives, applies and publishes. Nothing is published before the mesh is
//! complete, so that no proxy receives a partial configuration.

mod gateways_first;
mod heads;
mod outputs;
mod reach;
mod ruled;
mod snapshot;
mod state_parts;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{mpsc, oneshot, watch};
use tracing::{info, warn};

pub use self::heads::RolloutCandidate;
pub use self::heads::ServedConfigurations;
pub use self::outputs::VariantOutputs;
pub use self::ruled::BegunEdition;
use self::ruled::{ClusterOverrides, EditionVersion, RulesInUse, ServiceNamesInUse};
use self::state_parts::{MeshInputs, UnpublishedChanges, VersionParts};
use self::work::{MeshWork, causes_of_update};
use super::access_state::AccessState;
use super::context::{FixedSettings, NetworkAssignment, PushContext};
use super::debounce::Debounce;
use super::joins::Joins;
pub use super::loop_counters::LoopCounters;
use super::scope::ChangeImpact;
use super::subscription_index::{ChangedItem, Changes, SubscriptionIndex};
use super::withholding::{MeasureRules, RuleBytes, WithholdingInputs};
use crate::aggregate::{AddressClaims, Aggregate, MergedService};
use crate::hold::RetainedConfigurations;
use crate::network::probes::ProbeAddress;
use crate::network::{Inputs, Networks, ResolvedNames};
use crate::timeline::Timeline;
use strait_base::task::until;
use strait_base::watchdog::Watchdog;
use strait_model::mesh_config::{MeshConfig, MeshNetworks};
use strait_model::policy::Policy;
use strait_model::registry::RegistryUpdate;
use strait_model::{
    Cause, Causes, ClusterId, ConfigurationSnapshot, ExportTo, Hostname, IgnoredClaim,
    KnownClusters, Namespace, Resolution,
};
use strait_rules::access::AccessPolicies;
use strait_rules::service_entry::Selections;
use strait_rules::traffic::TrafficUpdate;

/// Everything that can change the mesh.
#[derive(Debug)]
pub enum MeshEvent {
    /// An update of a source.
    Registry(RegistryUpdate),
    /// An update of ServiceEntries, with the pods that they select from clusters and the machines
    /// that they describe.
    Entries(RegistryUpdate, Arc<Selections>),
    /// A new version of the traffic configuration.
    Traffic(TrafficUpdate),
    /// From now on, the proxies of one cluster use different traffic rules.
    BeginEdition(Box<BegunEdition>),
    /// A new version of that cluster's traffic rules.
    EditionTraffic(ClusterId, TrafficUpdate),
    /// The proxies of that cluster use the common traffic rules again.
    EndEdition(ClusterId),
    /// The clusters that belong to the mesh.
    Clusters(Arc<KnownClusters>),
    /// The mesh config.
    MeshConfig(Arc<MeshConfig>),
    /// The mesh networks: rules that assign networks to addresses, and configured gateways.
    MeshNetworks(Arc<MeshNetworks>),
    /// The policy: what clusters may claim, and the ranking of clusters.
    Policy(Arc<Policy>),
    /// The configuration from which the traffic rules, policies and settings were parsed.
    Configuration(Arc<ConfigurationSnapshot>),
    /// A rollout starts: some proxies receive this configuration instead. Replaces an earlier one.
    BeginNext(Box<RolloutCandidate>),
    /// The rollout ends. The sender is notified once all earlier events have been published.
    EndNext(oneshot::Sender<()>),
    /// Several events at once: no version contains only some of them.
    Together(Vec<MeshEvent>),
    /// The access policies, and the objects that caused the change.
    Access(Arc<AccessPolicies>, Causes),
    /// The DNS responses for gateway names.
    GatewayNames(Arc<ResolvedNames>),
    /// Gateways that failed their probes.
    DeadGateways(Arc<BTreeSet<ProbeAddress>>),
    /// Every required source has reported. Versions are published from now on, once DNS has
    /// responded for every gateway name.
    Complete,
    /// The time for DNS responses is over: versions are published regardless of them.
    CompleteWithoutNames,
}

/// The receivers of versions and statistics.
pub struct LoopOutputs {
    /// The current version; `None` until the mesh is complete.
    pub context: watch::Sender<Option<Arc<PushContext>>>,
    /// The streams to notify.
    pub subscription_index: Arc<SubscriptionIndex>,
    /// Computes which proxies a change affects.
    pub change_impact: Arc<dyn ChangeImpact>,
    /// Gateway names that DNS must resolve.
    pub names: watch::Sender<BTreeSet<Arc<str>>>,
    /// The record of changes and their causes.
    pub timeline: Arc<Timeline>,
    /// The configurations that can be restored.
    pub retained: Arc<RetainedConfigurations>,
    /// Statistics for `/debug/push`.
    pub figures: watch::Sender<LoopCounters>,
}

/// The mesh: its inputs, the parts of the current version, and the changes since that version.
#[derive(Clone)]
pub struct MeshState {
    settings: Arc<FixedSettings>,
    inputs: MeshInputs,
    aggregate: Aggregate,
    joins: Joins,
    access: AccessState,
    rules: RulesInUse,
    /// Computes the size of an object's rules; see [`Self::measuring`].
    measure: MeasureRules,
    /// Editions by the cluster whose proxies receive them.
    editions: BTreeMap<ClusterId, ClusterOverrides>,
    claims: AddressClaims,
    current: VersionParts,
    pending: UnpublishedChanges,
    /// The number of the current version.
    version: u64,
    /// New versions of editions that have not been taken yet.
    edition_versions: Vec<EditionVersion>,
    is_synced: bool,
    complete: bool,
}

impl MeshState {
    /// Creates an empty, incomplete mesh.
    pub fn new(settings: Arc<FixedSettings>) -> Self {
        Self {
            aggregate: Aggregate::new(settings.config_cluster.clone()),
            settings,
            inputs: MeshInputs::default(),
            joins: Joins::default(),
            access: AccessState::default(),
            rules: RulesInUse::default(),
            measure: |_| RuleBytes::default(),
            editions: BTreeMap::new(),
            claims: AddressClaims::default(),
            current: VersionParts::default(),
            pending: UnpublishedChanges::default(),
            version: 0,
            edition_versions: Vec::new(),
            is_synced: false,
            complete: false,
        }
    }

    /// Sets the function that measures rules. Objects with too large rules are withheld from
    /// proxies; without this function, none are.
    #[must_use]
    pub fn measuring(self, measure: MeasureRules) -> Self {
        Self { measure, ..self }
    }

    /// Applies an event. Its changes take effect with [`Self::next_version`].
    pub fn apply(&mut self, event: MeshEvent) {
        match event {
            MeshEvent::Configuration(configuration) => self.inputs.configuration = configuration,
            MeshEvent::Together(events) => events.into_iter().for_each(|event| self.apply(event)),
            MeshEvent::Registry(update) => self.apply_update(update),
            MeshEvent::Entries(update, selections) => {
                self.apply_update(update);
                self.pending.machines |= self.joins.select(selections);
            }
            MeshEvent::Traffic(update) => {
                self.pending.causes.merge(self.rules.apply(
                    update,
                    &self.current.aliases,
                    &self.settings.domain,
                ));
            }
            MeshEvent::BeginEdition(begun) => {
                let BegunEdition { cluster, traffic, outputs } = *begun;
                let rules = RulesInUse::of(traffic, self.version);
                self.editions.insert(cluster, ClusterOverrides { rules, outputs });
                self.pending.editions = true;
            }
            MeshEvent::EditionTraffic(cluster, update) => {
                if let Some(edition) = self.editions.get_mut(&cluster) {
                    let rules = &mut edition.rules;
                    self.pending.causes.merge(rules.apply(
                        update,
                        &self.current.aliases,
                        &self.settings.domain,
                    ));
                }
            }
            MeshEvent::EndEdition(cluster) => {
                self.pending.editions |= self.editions.remove(&cluster).is_some();
            }
            MeshEvent::Clusters(clusters) if clusters != self.inputs.clusters => {
                self.note_clusters(&clusters);
                if let Some(differing) = clusters.differ_in_mode(&self.inputs.clusters) {
                    self.pending.reach.clusters.extend(differing);
                    self.inputs.clusters = clusters;
                    return;
                }
                // Trust domains are part of upstream clusters and of servers' access checks.
                self.pending.everything |=
                    clusters.trust_domains() != self.inputs.clusters.trust_domains();
                self.aggregate.rank(Arc::clone(&clusters));
                self.claims.reorder();
                self.inputs.clusters = clusters;
                self.pending.all_hosts = true;
                // A Secret may fix the network of a cluster or remove the restriction, which
                // affects the cluster's gateways.
                self.pending.networks = true;
            }
            MeshEvent::MeshConfig(config) if config != self.inputs.config => {
                self.pending.causes.add(Cause::named(ClusterId::default(), "MeshConfig", ""));
                self.inputs.config = config;
                self.pending.everything = true;
            }
            MeshEvent::MeshNetworks(networks) if networks != self.inputs.mesh_networks => {
                self.pending.causes.add(Cause::named(ClusterId::default(), "MeshNetworks", ""));
                self.inputs.mesh_networks = networks;
                self.pending.all_hosts = true;
                self.pending.networks = true;
            }
            MeshEvent::Policy(policy) if policy != self.inputs.policy => {
                self.pending.causes.add(Cause::named(ClusterId::default(), "Policy", ""));
                self.inputs.policy = policy;
                self.pending.all_hosts = true;
                self.pending.networks = true;
            }
            MeshEvent::Access(policies, causes) => {
                self.pending.causes.merge(causes);
                self.access.take(policies);
            }
            MeshEvent::GatewayNames(names) if names != self.inputs.resolved => {
                self.pending.causes.add(Cause::named(ClusterId::default(), "GatewayName", ""));
                self.inputs.resolved = names;
                self.pending.networks = true;
            }
            MeshEvent::DeadGateways(dead) if dead != self.inputs.dead_gateways => {
                self.pending.causes.add(Cause::named(ClusterId::default(), "GatewayProbe", ""));
                self.inputs.dead_gateways = dead;
                self.pending.networks = true;
            }
            // Handled by `ServedConfigurations`.
            MeshEvent::BeginNext(_) | MeshEvent::EndNext(_) => {}
            MeshEvent::Complete => self.is_synced = true,
            MeshEvent::CompleteWithoutNames => {
                self.is_synced = true;
                self.complete();
            }
            // An equal value changes nothing.
            MeshEvent::Clusters(_)
            | MeshEvent::MeshConfig(_)
            | MeshEvent::MeshNetworks(_)
            | MeshEvent::Policy(_)
            | MeshEvent::GatewayNames(_)
            | MeshEvent::DeadGateways(_) => {}
        }
        if self.is_synced && !self.complete {
            self.refresh_networks();
            let names = self.current.networks.names_to_resolve();
            if names.iter().all(|name| self.inputs.resolved.get(name).is_some()) {
                self.complete();
            }
        }
    }

    /// Records the clusters that were added, removed or changed as causes.
    fn note_clusters(&mut self, now: &KnownClusters) {
        let (was, is) = (&self.inputs.clusters.clusters, &now.clusters);
        let ids: BTreeSet<_> = was.keys().chain(is.keys()).collect();
        for id in ids.into_iter().filter(|id| was.get(*id) != is.get(*id)) {
            self.pending.causes.add(Cause::named(ClusterId::default(), "Cluster", id.as_str()));
        }
    }

    fn apply_update(&mut self, update: RegistryUpdate) {
        self.pending.causes.merge(causes_of_update(&update));
        let touched = self.aggregate.apply(update);
        self.pending.networks |= touched.gateways
            || !touched.placements.is_empty()
            || touched.objects.iter().any(|host| self.may_be_gateway(host));
        self.joins.note(&touched);
        self.pending.aggregate.merge(touched);
    }

    fn complete(&mut self) {
        self.pending.everything |= !self.complete;
        self.complete = true;
    }

    /// Drops subsets that were retained until `now` and activates rules that waited for one.
    /// Returns when the next such change is due.
    pub fn expire(&mut self, now: Instant) -> Option<Instant> {
        let Self { rules, editions, current, settings, pending, .. } = self;
        let editions = editions.values_mut().map(|edition| &mut edition.rules);
        let all = std::iter::once(rules).chain(editions);
        let (aliases, causes) = (&current.aliases, &mut pending.causes);
        all.filter_map(|rules| rules.expire(now, aliases, &settings.domain, causes)).min()
    }

    /// Returns all active rules, including rules of editions.
    fn all_rules(&self) -> impl Iterator<Item = &RulesInUse> {
        let editions = self.editions.values().map(|edition| &edition.rules);
        std::iter::once(&self.rules).chain(editions)
    }

    /// Returns whether any change waits for the next version.
    pub fn is_dirty(&self) -> bool {
        self.pending.everything
            || self.pending.networks
            || self.pending.all_hosts
            || self.joins.is_stale()
            || self.pending.editions
            || self.all_rules().any(RulesInUse::is_dirty)
            || self.access.is_stale()
            || self.current.remote_pods.is_awaiting
            || !self.pending.reach.is_empty()
            || !self.pending.aggregate.is_empty()
    }

    /// Returns whether rules have been received that are not active yet.
    pub(super) fn awaits(&self) -> bool {
        self.all_rules().any(RulesInUse::awaits)
    }

    /// Returns whether a change to anything other than endpoints waits.
    fn definitions_wait(&self) -> bool {
        self.pending.everything
            || self.pending.networks
            || self.pending.all_hosts
            || self.joins.is_stale()
            || self.pending.editions
            || self.all_rules().any(RulesInUse::is_dirty)
            || self.access.is_stale()
            || self.current.remote_pods.is_awaiting
            || !self.pending.aggregate.objects.is_empty()
    }

    /// Returns the objects that caused the last version, or that had no effect.
    fn take_causes(&mut self) -> Causes {
        std::mem::take(&mut self.pending.causes)
    }

    /// Builds the next version from the waiting changes. Returns `None` if nothing differs or the
    /// mesh is not complete.
    pub fn next_version(&mut self) -> Option<(Arc<PushContext>, Changes)> {
        if !self.complete || !self.is_dirty() {
            return None;
        }
        let mut touched = std::mem::take(&mut self.pending.aggregate);
        if self.joins.is_stale() {
            touched.merge(self.joins.refresh(&mut self.aggregate, &self.settings));
        }
        let mut changes = Changes::default();
        let mesh_changed = std::mem::take(&mut self.pending.everything);
        // Proxies on machines that no entry selects are identified by these entries, too.
        if std::mem::take(&mut self.pending.machines)
            || touched.entries
            || !touched.facts.is_empty()
        {
            changes.deps.insert(ChangedItem::Machines);
        }
        self.refresh_workloads(&touched);
        let mut hosts = self.stale_hosts(touched.hosts, &touched.placements, &mut changes);
        let (deps, changed_namespaces) = self.access.changes(&touched.workloads);
        changes.deps.extend(deps);
        let services = (&self.current.services, &self.current.private);
        self.access.stale_hosts(&changed_namespaces, services, &self.current.workloads, &mut hosts);
        for host in hosts {
            self.merge(&host, &mut changes);
        }
        self.settle_addresses(&mut changes);
        let stale = touched.facts.iter().chain(&touched.traffic).chain(&touched.exports);
        self.refresh_facts(stale);
        self.pending.exports |= !touched.exports.is_empty();
        let workloads = touched.workloads.into_iter();
        changes.deps.extend(workloads.map(|(cluster, name)| ChangedItem::Workload(cluster, name)));
        if !touched.placements.is_empty() {
            let labels = self.aggregate.network_labels();
            self.current.network_labels =
                labels.map(|(id, label)| (id.clone(), label.cloned())).collect();
        }
        self.refresh_networks();
        if std::mem::take(&mut self.pending.everything) {
            changes.deps.insert(ChangedItem::Networks);
        }
        if mesh_changed {
            changes.deps.insert(ChangedItem::Mesh);
        }
        let touched = std::mem::take(&mut self.pending.reach);
        let reads_more = |service: &MergedService| self.affects_more_than_assignments(service);
        let private = self.current.private.values().flat_map(|private| private.values());
        let services = self.current.services.values().chain(private);
        touched.note(services, reads_more, &mut changes);
        self.refresh_remote_pods(&mut changes);
        self.note_rules(changes)
    }

    /// Adds the changes to rules and returns the next version, if anything differs. Also builds the
    /// versions of the editions.
    fn note_rules(&mut self, common: Changes) -> Option<(Arc<PushContext>, Changes)> {
        let renamed = std::mem::take(&mut self.pending.renamed);
        let [editions, exports] = [&mut self.pending.editions, &mut self.pending.exports];
        let mut has_changed = std::mem::take(editions) | std::mem::take(exports);
        let Self { rules, editions, current, version, settings, .. } = self;
        let VersionParts { services, private, aliases, .. } = current;
        let mesh = ServiceNamesInUse { services, private, aliases };
        let withholding = WithholdingInputs {
            measure: self.measure,
            limits: self.inputs.policy.traffic(),
            domain: &settings.domain,
            root_namespace: &self.inputs.config.root_namespace,
            services,
            private,
        };
        let mut edition_changes = Vec::new();
        for edition in editions.values_mut() {
            let mut changes = common.clone();
            edition.rules.note((mesh, withholding), &renamed, &mut changes);
            has_changed |= !changes.is_empty();
            edition_changes.push(changes);
        }
        let mut changes = common;
        rules.note((mesh, withholding), &renamed, &mut changes);
        has_changed |= !changes.is_empty();
        if !has_changed {
            return None;
        }
        *version += 1;
        rules.settle(*version, &changes);
        for (edition, changes) in editions.values_mut().zip(&edition_changes) {
            edition.rules.settle(*version, changes);
        }
        let context = self.context();
        let versions = self.editions.iter().zip(edition_changes);
        let versions = versions.map(|((cluster, edition), changes)| EditionVersion {
            cluster: cluster.clone(),
            context: Arc::new(PushContext {
                traffic: Arc::clone(&edition.rules.traffic),
                definitions: edition.rules.definitions,
                ..context.clone()
            }),
            changes,
            outputs: edition.outputs.clone(),
        });
        self.edition_versions = versions.collect();
        Some((Arc::new(context), changes))
    }

    /// Recomputes the gateways if any of their inputs changed.
    fn refresh_networks(&mut self) {
        if std::mem::take(&mut self.pending.networks) {
            let named = self.inputs.mesh_networks.named_services();
            let labels = self.aggregate.network_labels();
            let labels = labels.filter_map(|(id, label)| Some((id.clone(), label?.clone())));
            let facts = self.aggregate.clusters().map(|(id, _, facts)| (id, facts));
            let facts: Vec<_> = facts.collect();
            let inputs = Inputs {
                clusters: &self.inputs.clusters,
                namespace_labels: &labels.collect(),
                mesh: &self.inputs.mesh_networks,
                policy: &self.inputs.policy,
                names: &self.inputs.resolved,
                facts: &facts,
                dead: &self.inputs.dead_gateways,
            };
            let networks = Networks::build(self.aggregate.gateways(&named), inputs);
            if networks != *self.current.networks {
                let ignored = networks.ignored_claims();
                for (cluster, claim) in ignored.difference(self.current.networks.ignored_claims()) {
                    let IgnoredClaim { claim, network } = claim;
                    warn!(%cluster, claim, %network, "ignoring network claim: the Secret of the cluster or the policy overrides it");
                }
                let differing = networks.differing(&self.current.networks);
                // A change to names that DNS resolves belongs to no single network.
                self.pending.everything |= differing.is_empty();
                self.pending.reach.networks.extend(differing);
                self.current.networks = Arc::new(networks);
            }
        }
    }

    /// Returns the hosts to merge again. If the network of a cluster changed, the networks of
    /// proxies may have changed as well, so every stream checks everything.
    fn stale_hosts(
        &mut self,
        mut hosts: BTreeSet<Hostname>,
        placements: &BTreeSet<ClusterId>,
        changes: &mut Changes,
    ) -> BTreeSet<Hostname> {
        if self.pending.all_hosts {
            changes.deps.insert(ChangedItem::Mesh);
        }
        if !placements.is_empty() {
            changes.deps.insert(ChangedItem::Networks);
        }
        if std::mem::take(&mut self.pending.all_hosts) {
            hosts.extend(self.aggregate.hosts());
        }
        for cluster in placements {
            hosts.extend(self.aggregate.hosts_of(cluster));
        }
        if !placements.is_empty() {
            // Pods of these clusters may be in a different network now.
            hosts.extend(self.aggregate.nameless_hosts().cloned());
        }
        hosts
    }

    fn merge(&mut self, host: &Hostname, changes: &mut Changes) {
        let placement = NetworkAssignment {
            clusters: &self.inputs.clusters,
            mesh_networks: &self.inputs.mesh_networks,
            policy: &self.inputs.policy,
            same_addresses: self.claims.shared(),
            config_cluster: self.settings.config_cluster.as_ref(),
            domain: &self.settings.domain,
            root_namespace: &self.inputs.config.root_namespace,
        };
        let mut new = self.aggregate.merge(host, &placement);
        if let Some(new) = &mut new {
            self.access.set_tls_modes(new, &self.current.workloads);
        }
        if let Some((host, namespace)) = host.split_private() {
            return self.merge_private(host, namespace, new, changes);
        }
        let old = self.current.services.get(host).cloned();
        self.claims.replace(old.as_deref(), new.as_ref());
        if self.current.aliases.note(host, new.as_ref().map(|new| &new.primary.resolution)) {
            self.pending.renamed.insert(host.clone());
        }
        match (old.as_deref(), new) {
            (None, None) => {}
            (Some(old), Some(new)) if *old == new => {}
            (old, Some(new)) => {
                if old.is_none_or(|old| !old.same_definition(&new)) {
                    changes.deps.insert(ChangedItem::Definition(host.clone()));
                } else if self.affects_more_than_assignments(&new) {
                    changes.deps.insert(ChangedItem::Members(host.clone()));
                }
                if old.is_none_or(|old| !old.same_security(&new)) {
                    changes.deps.insert(ChangedItem::Accounts(host.clone()));
                }
                if old.is_none_or(|old| !old.differs_except_in_endpoints(&new)) {
                    changes.deps.insert(ChangedItem::Endpoints(host.clone()));
                }
                self.count_restricted(old.map(|old| &old.primary.export_to), Some(&new));
                self.current.services.insert(host.clone(), Arc::new(new));
            }
            (Some(old), None) => {
                changes.deps.insert(ChangedItem::Definition(host.clone()));
                changes.deps.insert(ChangedItem::Endpoints(host.clone()));
                self.count_restricted(Some(&old.primary.export_to), None);
                self.current.services.remove(host);
            }
        }
    }

    /// Merges services again whose endpoints have addresses that became or stopped being shared
    /// with pods of other clusters. Claims to addresses are only known after all services are
    /// merged, and they do not depend on this second merge.
    fn settle_addresses(&mut self, changes: &mut Changes) {
        let resettled = self.claims.settle(|cluster| self.aggregate.seniority(cluster));
        for host in self.aggregate.hosts_at(&resettled.clusters, &resettled.addresses) {
            self.merge(&host, changes);
        }
    }

    /// Updates the number of services that are visible only to certain namespaces.
    fn count_restricted(&mut self, old: Option<&ExportTo>, new: Option<&MergedService>) {
        let new = new.map(|new| &new.primary.export_to);
        if old == new {
            return;
        }
        fn named(export_to: Option<&ExportTo>) -> &[Namespace] {
            match export_to {
                Some(ExportTo::Namespaces(namespaces)) => namespaces,
                _ => &[],
            }
        }
        for namespace in named(new) {
            *self.current.restricted_namespaces.entry(namespace.clone()).or_default() += 1;
        }
        for namespace in named(old) {
            self.drop_restricted(namespace);
        }
    }

    fn drop_restricted(&mut self, namespace: &Namespace) {
        if let Some(count) = self.current.restricted_namespaces.get_mut(namespace) {
            *count -= 1;
            if *count == 0 {
                self.current.restricted_namespaces.remove(namespace);
            }
        }
    }

    /// Stores a definition that applies only to proxies of one namespace.
    fn merge_private(
        &mut self,
        host: Hostname,
        namespace: Namespace,
        new: Option<MergedService>,
        changes: &mut Changes,
    ) {
        let mut private = self.current.private.get(&host).cloned().unwrap_or_default();
        match (private.get(&namespace), new) {
            (None, None) => return,
            (Some(old), Some(new)) if **old == new => return,
            (None, Some(new)) => {
                *self.current.restricted_namespaces.entry(namespace.clone()).or_default() += 1;
                private.insert(namespace, Arc::new(new));
            }
            (Some(_), Some(new)) => {
                private.insert(namespace, Arc::new(new));
            }
            (Some(_), None) => {
                private.remove(&namespace);
                self.drop_restricted(&namespace);
            }
        }
        if private.is_empty() {
            self.current.private.remove(&host);
        } else {
            self.current.private.insert(host.clone(), private);
        }
        changes.deps.insert(ChangedItem::Definition(host.clone()));
        changes.deps.insert(ChangedItem::Endpoints(host));
    }

    fn may_be_gateway(&self, host: &Hostname) -> bool {
        let was =
            self.current.services.get(host).into_iter().flat_map(|old| old.by_cluster.values());
        was.chain(self.aggregate.services_of(host))
            .any(|service| Networks::concerns(service, &self.inputs.mesh_networks))
    }

    /// Returns whether endpoints of a service determine more than its assignments. The pods of a
    /// service without a selector, and therefore their inbound listeners, follow from its
    /// endpoints. A headless service has a listener per endpoint. Endpoints with hostnames are part
    /// of the upstream cluster. If connections go to the original destination, all endpoints
    /// determine the TLS mode.
    fn affects_more_than_assignments(&self, service: &MergedService) -> bool {
        let passes_through = |rules: &RulesInUse| {
            rules.traffic.destination_rules.of(service.hostname().as_str()).pass_through()
        };
        service.by_cluster.iter().any(|(_, own)| own.selector.is_empty())
            || matches!(service.primary.resolution, Resolution::Headless | Resolution::ByName(_))
            || self.all_rules().any(passes_through)
    }
}

/// Runs the mesh until every sender of events is dropped.
///
/// `events` is bounded. If it is full, the sources wait, and each delays only itself.
pub async fn run(
    mesh: MeshState,
    mut events: mpsc::Receiver<MeshEvent>,
    outputs: LoopOutputs,
    mut watchdog: Watchdog,
) {
    let mut heads = ServedConfigurations::new(mesh, &outputs);
    let mut clock = Debounce::default();
    let mut waiting_since: Option<Instant> = None;
    let mut figures = LoopCounters::none();
    loop {
        watchdog.progress().begins("expiring rules");
        let expires = heads.expire(Instant::now());
        if heads.is_complete() && heads.is_dirty() {
            waiting_since.get_or_insert_with(Instant::now);
        }
        let definitions = heads.definitions_wait();
        let due = waiting_since.map(|since| clock.due(since, definitions));
        let wait = async {
            match due {
                // The timer has millisecond resolution; a deadline that has passed would wait for
                // the next tick.
                Some(due) if due <= Instant::now() => {}
                due => until(due).await,
            }
            if definitions {
                heads.gateways_first.answered().await;
            }
        };
        watchdog.beat();
        tokio::select! {
            biased;
            () = wait => {
                let begun = Instant::now();
                watchdog.progress().begins(MeshWork { step: "publishing", causes: heads.causes() });
                if heads.publish(&outputs, waiting_since.take(), begun, &mut figures) {
                    figures.cost = begun.elapsed();
                    clock.finished(Instant::now(), figures.cost);
                }
                outputs.figures.send_replace(figures);
            }
            event = events.recv() => {
                let Some(event) = event else { return };
                let was_complete = heads.is_complete();
                figures.events += 1;
                figures.queued = events.len();
                apply(&mut heads, event, &watchdog);
                // Apply every event that has already arrived, so that all are part of the same
                // version. Later events need not be.
                for _ in 0..figures.queued {
                    let Ok(event) = events.try_recv() else { break };
                    figures.events += 1;
                    apply(&mut heads, event, &watchdog);
                }
                if heads.is_complete() && !was_complete {
                    info!("all sources synced; publishing configuration");
                }
                if !heads.is_complete() {
                    watchdog.progress().begins("resolving gateway names");
                    // Resolve gateway names before the first version, so that a restart withholds
                    // nothing that was reachable before.
                    heads.resolve(&outputs);
                }
            }
            () = until(expires) => {}
            () = watchdog.idle() => {}
        }
    }
}

fn apply(heads: &mut ServedConfigurations, event: MeshEvent, watchdog: &Watchdog) {
    watchdog
        .progress()
        .begins(MeshWork { step: "applying", causes: ServedConfigurations::causes_of(&event) });
    heads.apply(event);
}
