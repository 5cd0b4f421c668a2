//! The one owner of the mesh: takes events, makes the next version, notifies those it concerns.
//!
//! [`MeshEvent`] lists everything that can change the mesh. [`MeshState`] is the state, plain and
//! synchronous; [`run`] only receives, applies and publishes. Nothing is published before the mesh
//! is known to be complete, so that no proxy is ever given half a picture.

mod gateways_first;
mod heads;
mod outputs;
mod reach;
mod ruled;
mod snapshot;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use imbl::OrdMap;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{info, warn};

pub use self::heads::MeshHeads;
pub use self::heads::NextHead;
pub use self::outputs::HeadOutputs;
use self::reach::TouchedReach;
pub use self::ruled::BegunEdition;
use self::ruled::{Edition, EditionVersion, RulesInUse, ServiceNamesInUse};
use self::work::{MeshWork, causes_of_update};
use super::access_state::AccessState;
use super::aliases::ServiceAliases;
use super::context::{FixedSettings, NetworkAssignment, Private, PushContext};
use super::debounce::Debounce;
use super::interest::{Changes, Dep, Interest};
use super::joins::Joins;
pub use super::loop_counters::LoopCounters;
use super::scope::Sight;
use super::withholding::{MeasureRules, RuleBytes, WithholdingInputs};
use crate::aggregate::{AddressClaims, Aggregate, AggregateChanges, MergedService};
use crate::hold::KeptConfigurations;
use crate::network::probes::ProbeAddress;
use crate::network::{Inputs, Networks, ResolvedNames};
use crate::timeline::Timeline;
use strait_base::task::until;
use strait_base::watchdog::Watchdog;
use strait_model::mesh_config::{MeshConfig, MeshNetworks};
use strait_model::policy::Policy;
use strait_model::registry::RegistryUpdate;
use strait_model::{
    Cause, Causes, ClusterFacts, ClusterId, ConfigurationSnapshot, ExportTo, Hostname,
    IgnoredClaim, KnownClusters, Namespace, NetworkId, Resolution, Workloads,
};
use strait_rules::access::AccessPolicies;
use strait_rules::service_entry::Selections;
use strait_rules::traffic::TrafficUpdate;

/// Everything that can change the mesh.
#[derive(Debug)]
pub enum MeshEvent {
    /// An update of a source.
    Registry(RegistryUpdate),
    /// The update of entries, with what they select of clusters, and clusters of them.
    Entries(RegistryUpdate, Arc<Selections>),
    /// What the traffic configuration is now.
    Traffic(TrafficUpdate),
    /// From now on other rules hold for the proxies of a cluster.
    BeginEdition(Box<BegunEdition>),
    /// What they are now.
    EditionTraffic(ClusterId, TrafficUpdate),
    /// What holds for others holds for them again.
    EndEdition(ClusterId),
    /// The clusters that belong to the mesh.
    Clusters(Arc<KnownClusters>),
    /// Mesh settings.
    MeshConfig(Arc<MeshConfig>),
    /// The rules by which addresses belong to networks.
    MeshNetworks(Arc<MeshNetworks>),
    /// What clusters may say, and which come first.
    Policy(Arc<Policy>),
    /// What the configuration is of which the others are parts.
    Configuration(Arc<ConfigurationSnapshot>),
    /// Another configuration beside it, for some proxies, in the place of the one that was so before.
    BeginNext(Box<NextHead>),
    /// There is none any more; says so once what came before this has been published.
    EndNext(oneshot::Sender<()>),
    /// Several at once: no version has some of them alone.
    Together(Vec<MeshEvent>),
    /// Who may call whom, and the objects behind what changed of it.
    Access(Arc<AccessPolicies>, Causes),
    /// What DNS says of gateways.
    GatewayNames(Arc<ResolvedNames>),
    /// Gateways that don't answer.
    DeadGateways(Arc<BTreeSet<ProbeAddress>>),
    /// Every source that must be heard has reported. Versions are published from here on, once DNS has answered for
    /// every gateway name.
    Complete,
    /// Versions are published whether or not DNS has answered: its time is over.
    CompleteWithoutNames,
}

/// Where versions go.
pub struct LoopOutputs {
    /// The current version; `None` until the mesh is complete.
    pub context: watch::Sender<Option<Arc<PushContext>>>,
    /// Who is notified.
    pub interest: Arc<Interest>,
    /// What they see of a change.
    pub sight: Arc<dyn Sight>,
    /// Gateway names that DNS shall resolve.
    pub names: watch::Sender<BTreeSet<Arc<str>>>,
    /// What changed, and why.
    pub timeline: Arc<Timeline>,
    /// What can be gone back to.
    pub kept: Arc<KeptConfigurations>,
    /// Figures for `/debug/push`.
    pub figures: watch::Sender<LoopCounters>,
}

/// The mesh: its inputs, the current version's parts, and what has changed since that version.
#[derive(Clone)]
pub struct MeshState {
    settings: Arc<FixedSettings>,
    aggregate: Aggregate,
    config: Arc<MeshConfig>,
    mesh_networks: Arc<MeshNetworks>,
    clusters: Arc<KnownClusters>,
    policy: Arc<Policy>,
    access: AccessState,
    resolved: Arc<ResolvedNames>,
    dead_gateways: Arc<BTreeSet<ProbeAddress>>,
    networks: Arc<Networks>,
    services: OrdMap<Hostname, Arc<MergedService>>,
    network_labels: OrdMap<ClusterId, Option<NetworkId>>,
    workloads: OrdMap<ClusterId, Workloads>,
    facts: OrdMap<ClusterId, ClusterFacts>,
    private: Private,
    restricted_namespaces: OrdMap<Namespace, usize>,
    aliases: ServiceAliases,
    /// What changed of the ways to endpoints since then.
    touched_reach: TouchedReach,
    /// Names that stand for something else than at the last version.
    renamed: BTreeSet<Hostname>,
    configuration: Arc<ConfigurationSnapshot>,
    rules: RulesInUse,
    /// Measures the rules of an object, see [`Self::measuring`].
    measure: MeasureRules,
    /// By the cluster whose proxies they are for.
    editions: BTreeMap<ClusterId, Edition>,
    /// The last versions of these, until they are taken.
    edition_versions: Vec<EditionVersion>,
    /// Whether some have come or gone since the last version.
    editions_stale: bool,
    claims: AddressClaims,
    joins: Joins,
    version: u64,
    touched: AggregateChanges,
    /// The objects behind what waits for the next version.
    causes: Causes,
    everything: bool,
    networks_stale: bool,
    all_hosts_stale: bool,
    vms_stale: bool,
    heard: bool,
    complete: bool,
}

impl MeshState {
    /// An empty, incomplete mesh.
    pub fn new(settings: Arc<FixedSettings>) -> Self {
        Self {
            aggregate: Aggregate::new(settings.config_cluster.clone()),
            settings,
            config: Arc::default(),
            mesh_networks: Arc::default(),
            clusters: Arc::default(),
            policy: Arc::default(),
            access: AccessState::default(),
            resolved: Arc::default(),
            dead_gateways: Arc::default(),
            networks: Arc::default(),
            services: OrdMap::new(),
            network_labels: OrdMap::new(),
            workloads: OrdMap::new(),
            facts: OrdMap::new(),
            private: OrdMap::new(),
            restricted_namespaces: OrdMap::new(),
            aliases: ServiceAliases::default(),
            touched_reach: TouchedReach::default(),
            renamed: BTreeSet::new(),
            configuration: Arc::default(),
            rules: RulesInUse::default(),
            measure: |_| RuleBytes::default(),
            editions: BTreeMap::new(),
            edition_versions: Vec::new(),
            editions_stale: false,
            claims: AddressClaims::default(),
            joins: Joins::default(),
            version: 0,
            touched: AggregateChanges::default(),
            causes: Causes::default(),
            everything: false,
            networks_stale: true,
            all_hosts_stale: false,
            vms_stale: false,
            heard: false,
            complete: false,
        }
    }

    /// The same mesh, in which objects are withheld from proxies by what this measures of their rules. Without it none are.
    #[must_use]
    pub fn measuring(self, measure: MeasureRules) -> Self {
        Self { measure, ..self }
    }

    /// Takes one event. What it changes waits for [`Self::next_version`].
    pub fn apply(&mut self, event: MeshEvent) {
        match event {
            MeshEvent::Configuration(configuration) => self.configuration = configuration,
            MeshEvent::Together(events) => events.into_iter().for_each(|event| self.apply(event)),
            MeshEvent::Registry(update) => self.hear(update),
            MeshEvent::Entries(update, selections) => {
                self.hear(update);
                self.vms_stale |= self.joins.select(selections);
            }
            MeshEvent::Traffic(update) => {
                self.causes.merge(self.rules.take(update, &self.aliases, &self.settings.domain));
            }
            MeshEvent::BeginEdition(begun) => {
                let BegunEdition { cluster, traffic, outputs } = *begun;
                let rules = RulesInUse::of(traffic, self.version);
                self.editions.insert(cluster, Edition { rules, outputs });
                self.editions_stale = true;
            }
            MeshEvent::EditionTraffic(cluster, update) => {
                if let Some(edition) = self.editions.get_mut(&cluster) {
                    let rules = &mut edition.rules;
                    self.causes.merge(rules.take(update, &self.aliases, &self.settings.domain));
                }
            }
            MeshEvent::EndEdition(cluster) => {
                self.editions_stale |= self.editions.remove(&cluster).is_some();
            }
            MeshEvent::Clusters(clusters) if clusters != self.clusters => {
                self.note_clusters(&clusters);
                if let Some(differing) = clusters.differ_in_mode(&self.clusters) {
                    self.touched_reach.clusters.extend(differing);
                    self.clusters = clusters;
                    return;
                }
                // Upstream clusters name the trust domains that may answer, servers those that may call.
                self.everything |= clusters.trust_domains() != self.clusters.trust_domains();
                self.aggregate.rank(Arc::clone(&clusters));
                self.claims.reorder();
                self.clusters = clusters;
                self.all_hosts_stale = true;
                // A Secret may fix, or free, the network of a cluster, and so of its gateways.
                self.networks_stale = true;
            }
            MeshEvent::MeshConfig(config) if config != self.config => {
                self.causes.add(Cause::named(ClusterId::default(), "MeshConfig", ""));
                self.config = config;
                self.everything = true;
            }
            MeshEvent::MeshNetworks(networks) if networks != self.mesh_networks => {
                self.causes.add(Cause::named(ClusterId::default(), "MeshNetworks", ""));
                self.mesh_networks = networks;
                self.all_hosts_stale = true;
                self.networks_stale = true;
            }
            MeshEvent::Policy(policy) if policy != self.policy => {
                self.causes.add(Cause::named(ClusterId::default(), "Policy", ""));
                self.policy = policy;
                self.all_hosts_stale = true;
                self.networks_stale = true;
            }
            MeshEvent::Access(policies, causes) => {
                self.causes.merge(causes);
                self.access.take(policies);
            }
            MeshEvent::GatewayNames(names) if names != self.resolved => {
                self.causes.add(Cause::named(ClusterId::default(), "GatewayName", ""));
                self.resolved = names;
                self.networks_stale = true;
            }
            MeshEvent::DeadGateways(dead) if dead != self.dead_gateways => {
                self.causes.add(Cause::named(ClusterId::default(), "GatewayProbe", ""));
                self.dead_gateways = dead;
                self.networks_stale = true;
            }
            // Not of one head.
            MeshEvent::BeginNext(_) | MeshEvent::EndNext(_) => {}
            MeshEvent::Complete => self.heard = true,
            MeshEvent::CompleteWithoutNames => {
                self.heard = true;
                self.complete();
            }
            // The same value again changes nothing.
            MeshEvent::Clusters(_)
            | MeshEvent::MeshConfig(_)
            | MeshEvent::MeshNetworks(_)
            | MeshEvent::Policy(_)
            | MeshEvent::GatewayNames(_)
            | MeshEvent::DeadGateways(_) => {}
        }
        if self.heard && !self.complete {
            self.refresh_networks();
            let names = self.networks.names_to_resolve();
            if names.iter().all(|name| self.resolved.get(name).is_some()) {
                self.complete();
            }
        }
    }

    /// Names the clusters that come, go, or are known otherwise than before.
    fn note_clusters(&mut self, now: &KnownClusters) {
        let (was, is) = (&self.clusters.clusters, &now.clusters);
        let ids: BTreeSet<_> = was.keys().chain(is.keys()).collect();
        for id in ids.into_iter().filter(|id| was.get(*id) != is.get(*id)) {
            self.causes.add(Cause::named(ClusterId::default(), "Cluster", id.as_str()));
        }
    }

    fn hear(&mut self, update: RegistryUpdate) {
        self.causes.merge(causes_of_update(&update));
        let touched = self.aggregate.apply(update);
        self.networks_stale |= touched.gateways
            || !touched.placements.is_empty()
            || touched.objects.iter().any(|host| self.may_be_gateway(host));
        self.joins.note(&touched);
        self.touched.merge(touched);
    }

    fn complete(&mut self) {
        self.everything |= !self.complete;
        self.complete = true;
    }

    /// Has subsets go that were kept until `now`, and rules come in force that waited for one. When there is the next to do so.
    pub fn expire(&mut self, now: Instant) -> Option<Instant> {
        let Self { rules, editions, aliases, settings, causes, .. } = self;
        let editions = editions.values_mut().map(|edition| &mut edition.rules);
        let all = std::iter::once(rules).chain(editions);
        all.filter_map(|rules| rules.expire(now, aliases, &settings.domain, causes)).min()
    }

    /// All rules in force, whomever they are for.
    fn all_rules(&self) -> impl Iterator<Item = &RulesInUse> {
        let editions = self.editions.values().map(|edition| &edition.rules);
        std::iter::once(&self.rules).chain(editions)
    }

    /// Whether anything waits for the next version.
    pub fn is_dirty(&self) -> bool {
        self.everything
            || self.networks_stale
            || self.all_hosts_stale
            || self.joins.is_stale()
            || self.editions_stale
            || self.all_rules().any(RulesInUse::is_dirty)
            || self.access.is_stale()
            || !self.touched_reach.is_empty()
            || !self.touched.is_empty()
    }

    /// Whether rules have been heard that are not in force yet.
    pub(super) fn awaits(&self) -> bool {
        self.all_rules().any(RulesInUse::awaits)
    }

    /// Whether more than endpoints wait.
    fn definitions_wait(&self) -> bool {
        self.everything
            || self.networks_stale
            || self.all_hosts_stale
            || self.joins.is_stale()
            || self.editions_stale
            || self.all_rules().any(RulesInUse::is_dirty)
            || self.access.is_stale()
            || !self.touched.objects.is_empty()
    }

    /// The objects behind the version that was just made, or behind what came to nothing.
    fn take_causes(&mut self) -> Causes {
        std::mem::take(&mut self.causes)
    }

    /// Makes the next version out of what waits. `None` where nothing came of it, or while the mesh
    /// isn't complete.
    pub fn next_version(&mut self) -> Option<(Arc<PushContext>, Changes)> {
        if !self.complete || !self.is_dirty() {
            return None;
        }
        let mut touched = std::mem::take(&mut self.touched);
        if self.joins.is_stale() {
            touched.merge(self.joins.refresh(&mut self.aggregate, &self.settings));
        }
        let mut changes = Changes::default();
        let mesh_changed = std::mem::take(&mut self.everything);
        // Proxies on machines that nothing selects are known by them, too.
        if std::mem::take(&mut self.vms_stale) || touched.entries || !touched.facts.is_empty() {
            changes.deps.insert(Dep::Machines);
        }
        self.refresh_workloads(&touched);
        let mut hosts = self.stale_hosts(touched.hosts, &touched.placements, &mut changes);
        let (deps, spaces) = self.access.changes(&touched.workloads);
        changes.deps.extend(deps);
        let services = (&self.services, &self.private);
        self.access.stale_hosts(&spaces, services, &self.workloads, &mut hosts);
        for host in hosts {
            self.merge(&host, &mut changes);
        }
        self.settle_addresses(&mut changes);
        self.refresh_facts(&touched.facts);
        self.refresh_facts(&touched.traffic);
        let workloads = touched.workloads.into_iter();
        changes.deps.extend(workloads.map(|(cluster, name)| Dep::Workload(cluster, name)));
        if !touched.placements.is_empty() {
            let labels = self.aggregate.network_labels();
            self.network_labels = labels.map(|(id, label)| (id.clone(), label.cloned())).collect();
        }
        self.refresh_networks();
        if std::mem::take(&mut self.everything) {
            changes.deps.insert(Dep::Networks);
        }
        if mesh_changed {
            changes.deps.insert(Dep::Mesh);
        }
        let touched = std::mem::take(&mut self.touched_reach);
        let reads_more = |service: &MergedService| self.is_read_beyond_assignments(service);
        let private = self.private.values().flat_map(|private| private.values());
        let services = self.services.values().chain(private);
        touched.note(services, reads_more, &mut changes);
        self.note_rules(changes)
    }

    /// With what changed of rules: what the next version is, and those of the editions, if there is one.
    fn note_rules(&mut self, common: Changes) -> Option<(Arc<PushContext>, Changes)> {
        let renamed = std::mem::take(&mut self.renamed);
        let mut has_changed = std::mem::take(&mut self.editions_stale);
        let Self { rules, editions, services, private, aliases, version, settings, .. } = self;
        let mesh = ServiceNamesInUse { services, private, aliases };
        let withholding = WithholdingInputs {
            measure: self.measure,
            limits: self.policy.traffic(),
            domain: &settings.domain,
            root_namespace: &self.config.root_namespace,
            services,
            private,
        };
        let mut of_editions = Vec::new();
        for edition in editions.values_mut() {
            let mut changes = common.clone();
            edition.rules.note((mesh, withholding), &renamed, &mut changes);
            has_changed |= !changes.is_empty();
            of_editions.push(changes);
        }
        let mut changes = common;
        rules.note((mesh, withholding), &renamed, &mut changes);
        has_changed |= !changes.is_empty();
        if !has_changed {
            return None;
        }
        *version += 1;
        rules.settle(*version, &changes);
        for (edition, changes) in editions.values_mut().zip(&of_editions) {
            edition.rules.settle(*version, changes);
        }
        let context = self.context();
        let versions = self.editions.iter().zip(of_editions);
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

    /// Takes over the pods of the clusters that have others now.
    fn refresh_workloads(&mut self, touched: &AggregateChanges) {
        let of_pods = touched.workloads.iter().map(|(cluster, _)| cluster);
        let mut last = None;
        for cluster in touched.placements.iter().chain(of_pods) {
            if last.replace(cluster) == Some(cluster) {
                continue;
            }
            match self.aggregate.workloads(cluster) {
                Some(pods) => self.workloads.insert(cluster.clone(), pods.clone()),
                None => self.workloads.remove(cluster),
            };
        }
    }

    /// Takes over what clusters say of themselves.
    fn refresh_facts(&mut self, touched: &BTreeSet<ClusterId>) {
        for cluster in touched {
            match self.aggregate.facts(cluster) {
                Some(facts) => self.facts.insert(cluster.clone(), facts.clone()),
                None => self.facts.remove(cluster),
            };
        }
    }

    /// Finds the gateways again where anything they depend on changed.
    fn refresh_networks(&mut self) {
        if std::mem::take(&mut self.networks_stale) {
            let named = self.mesh_networks.named_services();
            let labels = self.aggregate.network_labels();
            let labels = labels.filter_map(|(id, label)| Some((id.clone(), label?.clone())));
            let facts = self.aggregate.clusters().map(|(id, _, facts)| (id, facts));
            let facts: Vec<_> = facts.collect();
            let inputs = Inputs {
                clusters: &self.clusters,
                namespace_labels: &labels.collect(),
                mesh: &self.mesh_networks,
                policy: &self.policy,
                names: &self.resolved,
                facts: &facts,
                dead: &self.dead_gateways,
            };
            let networks = Networks::build(self.aggregate.gateways(&named), inputs);
            if networks != *self.networks {
                let ignored = networks.ignored_claims();
                for (cluster, claim) in ignored.difference(self.networks.ignored_claims()) {
                    let IgnoredClaim { claim, network } = claim;
                    warn!(%cluster, claim, %network, "claim ignored: Secret or policy say otherwise");
                }
                let differing = networks.differing(&self.networks);
                // Names that DNS is asked for are of no one network.
                self.everything |= differing.is_empty();
                self.touched_reach.networks.extend(differing);
                self.networks = Arc::new(networks);
            }
        }
    }

    /// The hosts to merge again. Where a placement changed, a proxy's own network may have as well,
    /// so every stream looks at everything.
    fn stale_hosts(
        &mut self,
        mut hosts: BTreeSet<Hostname>,
        placements: &BTreeSet<ClusterId>,
        changes: &mut Changes,
    ) -> BTreeSet<Hostname> {
        if self.all_hosts_stale {
            changes.deps.insert(Dep::Mesh);
        }
        if !placements.is_empty() {
            changes.deps.insert(Dep::Networks);
        }
        if std::mem::take(&mut self.all_hosts_stale) {
            hosts.extend(self.aggregate.hosts());
        }
        for cluster in placements {
            hosts.extend(self.aggregate.hosts_of(cluster));
        }
        if !placements.is_empty() {
            // Their pods may be in another network.
            hosts.extend(self.aggregate.nameless_hosts().cloned());
        }
        hosts
    }

    fn merge(&mut self, host: &Hostname, changes: &mut Changes) {
        let placement = NetworkAssignment {
            clusters: &self.clusters,
            mesh_networks: &self.mesh_networks,
            policy: &self.policy,
            same_addresses: self.claims.shared(),
            config_cluster: self.settings.config_cluster.as_ref(),
            domain: &self.settings.domain,
            root_namespace: &self.config.root_namespace,
        };
        let mut new = self.aggregate.merge(host, &placement);
        if let Some(new) = &mut new {
            self.access.set_tls_modes(new, &self.workloads);
        }
        if let Some((host, namespace)) = host.split_private() {
            return self.merge_private(host, namespace, new, changes);
        }
        let old = self.services.get(host).cloned();
        self.claims.replace(old.as_deref(), new.as_ref());
        if self.aliases.note(host, new.as_ref().map(|new| &new.primary.resolution)) {
            self.renamed.insert(host.clone());
        }
        match (old.as_deref(), new) {
            (None, None) => {}
            (Some(old), Some(new)) if *old == new => {}
            (old, Some(new)) => {
                if old.is_none_or(|old| !old.same_definition(&new)) {
                    changes.deps.insert(Dep::Definition(host.clone()));
                } else if self.is_read_beyond_assignments(&new) {
                    changes.deps.insert(Dep::Members(host.clone()));
                }
                if old.is_none_or(|old| !old.same_security(&new)) {
                    changes.deps.insert(Dep::Accounts(host.clone()));
                }
                if old.is_none_or(|old| !old.differs_beside_endpoints(&new)) {
                    changes.deps.insert(Dep::Endpoints(host.clone()));
                }
                self.count_restricted(old.map(|old| &old.primary.export_to), Some(&new));
                self.services.insert(host.clone(), Arc::new(new));
            }
            (Some(old), None) => {
                changes.deps.insert(Dep::Definition(host.clone()));
                changes.deps.insert(Dep::Endpoints(host.clone()));
                self.count_restricted(Some(&old.primary.export_to), None);
                self.services.remove(host);
            }
        }
    }

    /// Merges again what has endpoints at addresses that other clusters' pods have as well, or no more: claims to
    /// addresses are known once all is merged, and don't depend on what is made of them.
    fn settle_addresses(&mut self, changes: &mut Changes) {
        let again = self.claims.settle(|cluster| self.aggregate.seniority(cluster));
        for host in self.aggregate.hosts_at(&again.clusters, &again.addresses) {
            self.merge(&host, changes);
        }
    }

    /// Counts for which namespaces some service is there that isn't for all.
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
            *self.restricted_namespaces.entry(namespace.clone()).or_default() += 1;
        }
        for namespace in named(old) {
            self.drop_restricted(namespace);
        }
    }

    fn drop_restricted(&mut self, namespace: &Namespace) {
        if let Some(count) = self.restricted_namespaces.get_mut(namespace) {
            *count -= 1;
            if *count == 0 {
                self.restricted_namespaces.remove(namespace);
            }
        }
    }

    /// Takes over a definition that one namespace has for itself.
    fn merge_private(
        &mut self,
        host: Hostname,
        namespace: Namespace,
        new: Option<MergedService>,
        changes: &mut Changes,
    ) {
        let mut private = self.private.get(&host).cloned().unwrap_or_default();
        match (private.get(&namespace), new) {
            (None, None) => return,
            (Some(old), Some(new)) if **old == new => return,
            (None, Some(new)) => {
                *self.restricted_namespaces.entry(namespace.clone()).or_default() += 1;
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
            self.private.remove(&host);
        } else {
            self.private.insert(host.clone(), private);
        }
        changes.deps.insert(Dep::Definition(host.clone()));
        changes.deps.insert(Dep::Endpoints(host));
    }

    fn may_be_gateway(&self, host: &Hostname) -> bool {
        let was = self.services.get(host).into_iter().flat_map(|old| old.by_cluster.values());
        was.chain(self.aggregate.services_of(host))
            .any(|service| Networks::concerns(service, &self.mesh_networks))
    }

    /// Whether more depends on the endpoints of a service than its assignments: which pods a service without a selector
    /// runs on, and so their inbound listeners, follows from its endpoints alone; a headless one has a listener for each;
    /// pods beside endpoints by name are named in the upstream cluster; and where connections go to whom the client chose,
    /// all endpoints decide how that one is spoken to.
    fn is_read_beyond_assignments(&self, service: &MergedService) -> bool {
        let passes_through = |rules: &RulesInUse| {
            rules.traffic.destination_rules.of(service.hostname().as_str()).pass_through()
        };
        service.by_cluster.iter().any(|(_, own)| own.selector.is_empty())
            || matches!(service.primary.resolution, Resolution::Headless | Resolution::ByName(_))
            || self.all_rules().any(passes_through)
    }
}

/// Runs the mesh until every sender of events is gone.
///
/// `events` is bounded: a full one makes the sources wait, each delaying only itself.
pub async fn run(
    mesh: MeshState,
    mut events: mpsc::Receiver<MeshEvent>,
    outputs: LoopOutputs,
    mut watchdog: Watchdog,
) {
    let mut heads = MeshHeads::new(mesh, &outputs);
    let mut clock = Debounce::default();
    let mut waiting_since: Option<Instant> = None;
    let mut figures = LoopCounters::none();
    loop {
        watchdog.progress().begins("rules that expire");
        let expires = heads.expire(Instant::now());
        if heads.is_complete() && heads.is_dirty() {
            waiting_since.get_or_insert_with(Instant::now);
        }
        let definitions = heads.definitions_wait();
        let due = waiting_since.map(|since| clock.due(since, definitions));
        let wait = async {
            match due {
                // The timer counts in milliseconds: even what is due already would wait for the next.
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
                // Whatever else has arrived joins the same version; what arrives from here on need not.
                for _ in 0..figures.queued {
                    let Ok(event) = events.try_recv() else { break };
                    figures.events += 1;
                    apply(&mut heads, event, &watchdog);
                }
                if heads.is_complete() && !was_complete {
                    info!("every source has been heard; versions are published from here on");
                }
                if !heads.is_complete() {
                    watchdog.progress().begins("the names of gateways");
                    // Names are resolved before the first version, so that a restart withholds
                    // nothing that was reachable before it.
                    heads.resolve(&outputs);
                }
            }
            () = until(expires) => {}
            () = watchdog.idle() => {}
        }
    }
}

fn apply(heads: &mut MeshHeads, event: MeshEvent, watchdog: &Watchdog) {
    watchdog.progress().begins(MeshWork { step: "applying", causes: MeshHeads::causes_of(&event) });
    heads.apply(event);
}
