//! The name table with which Istio's agent responds to the workload's DNS queries: each host with
//! the addresses at which this proxy reaches it. (Istio, "DNS proxying".)
//!
//! Hosts without an address of this kind are omitted: the agent then queries the cluster's DNS
//! server.

#[cfg(test)]
mod oracle;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use prost::Message;

use super::chunks::Chunks;
use super::rds::{self, InFull};
use strait_mesh::aggregate::{MergedService, ShardEndpoints};
use strait_mesh::push::PushContext;
use strait_mesh::push::addresses::ListenAddresses;
use strait_mesh::push::shared::set_names;
use strait_mesh::push::view::{Path, ViewKey, decide};
use strait_model::{ClusterId, EndpointRef, Health, NetworkId, Resolution};
use strait_proto::istio::nds::{NameTable, name_table::NameInfo};
use strait_rules::service_entry::is_given;
use strait_xds::resource::{Resource, ResourceBody};

/// The inputs of a name table.
pub(super) struct NameTableInputs<'a> {
    context: &'a PushContext,
    view: &'a ViewKey,
    addresses: &'a ListenAddresses,
    /// Whether the table contains addresses that Strait allocated to hosts without one.
    given: bool,
    /// The names of clusters in the set; empty if no headless service has a name of the set.
    set_names: BTreeMap<ClusterId, Arc<str>>,
}

/// An entry of the table.
#[derive(Hash)]
struct Entry<'a> {
    host: Cow<'a, str>,
    ips: Vec<IpAddr>,
    called: Called<'a>,
}

/// The name of a service as the agent receives it.
#[derive(Clone, Copy, Hash)]
struct Called<'a> {
    host: &'a str,
    in_kubernetes: bool,
    /// The name and namespace that form the short name, if it has one.
    short: Option<(&'a str, &'a str)>,
}

/// The addresses of a headless service's pods: all addresses, and the addresses of pods with a DNS
/// name below the service's, by that name. Directly reachable pods precede pods in other networks.
struct PodNames {
    all: Vec<IpAddr>,
    named: BTreeMap<String, BTreeSet<IpAddr>>,
}

impl<'a> NameTableInputs<'a> {
    pub(super) fn new(
        context: &'a PushContext,
        view: &'a ViewKey,
        addresses: &'a ListenAddresses,
        given: bool,
    ) -> Self {
        let needs_names = addresses.services.iter().any(|(service, _)| {
            service.primary.resolution == Resolution::Headless && service.hostname().is_of_set()
        });
        let set_names = match needs_names {
            true => set_names(context, &BTreeSet::new()),
            false => BTreeMap::new(),
        };
        Self { context, view, addresses, given, set_names }
    }

    /// Returns the table, which has no name and is the only resource of this type.
    pub(super) fn table(&self, chunk_cache: &Chunks) -> Resource {
        let entries = self.entries();
        // Each entry is encoded separately, because protobuf maps have no order.
        let chunks = chunk_cache.split(&entries, |one, draft| one.write(&mut draft.bytes));
        let digests = chunks.iter().flat_map(|chunk| chunk.digests());
        let runs = chunks.iter().map(|chunk| chunk.bytes().clone()).collect();
        Resource::of_parts("", digests, ResourceBody::edited(runs, Vec::new(), Vec::new()))
    }

    /// Returns all hosts with addresses, sorted by name. If a name occurs twice, the first entry is
    /// used.
    fn entries(&self) -> Vec<Entry<'a>> {
        let mut entries = Vec::with_capacity(self.addresses.services.len());
        let services = self.addresses.services.iter();
        let in_full = rds::in_full(
            services.map(|(service, _)| (service.hostname(), &service.primary.namespace)),
        );
        for (service, vips) in &self.addresses.services {
            let called = self.called(service, &in_full);
            if service.primary.resolution == Resolution::Headless {
                self.add_pods(service, called, &mut entries);
            } else {
                // A name applies to all ports, so an address that is shared with another service is
                // omitted.
                let whole = vips.iter().filter(|vip| vip.is_whole()).map(|vip| vip.address);
                let ips = whole.filter(|vip| self.given || !is_given(vip)).collect();
                entries.push(Entry { host: called.host.into(), ips, called });
            }
        }
        entries.retain(|entry| !entry.ips.is_empty());
        entries.sort_by(|a, b| a.host.cmp(&b.host));
        entries.dedup_by(|later, first| later.host == first.host);
        entries
    }

    /// Adds the pods of a headless service, under the service's name and under their own names.
    fn add_pods(&self, service: &MergedService, called: Called<'a>, entries: &mut Vec<Entry<'a>>) {
        let PodNames { all, named } = self.pod_names(service);
        entries.push(Entry { host: called.host.into(), ips: all, called });
        entries.extend(named.into_iter().map(|(name, addresses)| Entry {
            host: format!("{name}.{}", called.host).into(),
            ips: addresses.into_iter().collect(),
            called,
        }));
    }

    /// Returns the addresses of a headless service's pods that the proxy reaches.
    fn pod_names(&self, service: &MergedService) -> PodNames {
        let pods = service
            .shards
            .iter()
            .flat_map(|shard| shard.iter().map(move |(pod, network)| (shard, pod, network)));
        let reachable =
            pods.filter(|(shard, pod, network)| self.is_reachable(service, shard, *pod, network));
        let reachable: Vec<_> =
            reachable.map(|(shard, pod, _)| (&shard.key.cluster, pod)).collect();
        let all: BTreeSet<IpAddr> = reachable.iter().map(|(_, pod)| pod.address).collect();

        // If pods in several clusters have the same name, the proxy's own cluster wins, otherwise
        // the first.
        let mut named: BTreeMap<String, (&ClusterId, BTreeSet<IpAddr>)> = BTreeMap::new();
        let (near, far): (Vec<_>, Vec<_>) =
            reachable.into_iter().partition(|(cluster, _)| **cluster == self.view.cluster);
        for (cluster, pod) in near.into_iter().chain(far) {
            let Some(name) = self.pod_name(service, cluster, pod) else { continue };
            let (holder, addresses) =
                named.entry(name).or_insert_with(|| (cluster, BTreeSet::new()));
            if *holder == cluster {
                addresses.insert(pod.address);
            }
        }
        let named = named.into_iter().map(|(name, (_, addresses))| (name, addresses)).collect();
        let mut names = PodNames { all: all.into_iter().collect(), named };
        self.add_remote_pods(service, &mut names);
        names
    }

    /// Adds the virtual addresses of pods in other networks. Under a name of the set, these are all
    /// pods. Under the service's own name, a pod is only added if it is in one remote cluster and no
    /// pod of that name is reachable directly. The name of the service stays unchanged unless the
    /// Service in the proxy's cluster has the annotation `strait.dev/headless: everywhere`, so that
    /// a client that uses any pod does not suddenly use another region.
    fn add_remote_pods(&self, service: &MergedService, names: &mut PodNames) {
        let Some(pods) = self.context.remote_pods.of(service.hostname()) else { return };
        let home = self.context.network_of_cluster(&self.view.cluster);
        let remote = pods.outside(&home).filter(|(_, pods)| pods.network != self.view.network);
        let families = (self.view.ipv4, self.view.ipv6);
        let has_all = service.hostname().is_of_set() || self.is_everywhere(service);
        let mut found: BTreeMap<String, Vec<Vec<IpAddr>>> = BTreeMap::new();
        for (cluster, pods) in remote {
            if has_all {
                names.all.extend(pods.addresses(families));
            }
            for (pod, addresses) in pods.named(families) {
                let Some(name) = self.name_below(service, cluster, pod) else { continue };
                found.entry(name).or_default().push(addresses);
            }
        }
        for (name, by_cluster) in found {
            if let [only] = &by_cluster[..] {
                names.named.entry(name).or_insert_with(|| only.iter().copied().collect());
            }
        }
    }

    /// Returns whether the Service in the proxy's own cluster requests that its name has the pods in
    /// other networks too. Services in other clusters cannot request it, so a cluster that joins
    /// changes no name.
    fn is_everywhere(&self, service: &MergedService) -> bool {
        service.shards.iter().any(|shard| {
            shard.key.cluster == self.view.cluster && shard.service.named_pods.everywhere
        })
    }

    /// Returns the name of a pod below the service's name, if it has one. Under a name of the set, it
    /// contains the name of the cluster.
    fn pod_name(
        &self,
        service: &MergedService,
        cluster: &ClusterId,
        pod: EndpointRef<'_>,
    ) -> Option<String> {
        if let Some(hostname) = pod.hostname {
            return self.name_below(service, cluster, hostname);
        }
        let key = pod.workload?.to_key();
        let pod = self.context.workloads.get(cluster)?.get(key.namespace.as_str(), &key.name)?;
        if pod.subdomain.as_ref() != Some(&service.primary.name) {
            return None;
        }
        self.name_below(service, cluster, &key.name)
    }

    /// Returns the name of a pod below the service's name. Under a name of the set, it contains the
    /// name of the cluster (KEP-1645).
    fn name_below(
        &self,
        service: &MergedService,
        cluster: &ClusterId,
        pod: &str,
    ) -> Option<String> {
        match service.hostname().is_of_set() {
            true => Some(format!("{pod}.{}", self.set_names.get(cluster)?)),
            false => Some(pod.to_owned()),
        }
    }

    /// Returns whether the proxy reaches a pod that is ready or whose service publishes unready
    /// pods.
    fn is_reachable(
        &self,
        service: &MergedService,
        shard: &ShardEndpoints,
        pod: EndpointRef<'_>,
        network: &NetworkId,
    ) -> bool {
        let anyway = shard.service.named_pods.unready;
        let health = if anyway { Health::Healthy } else { pod.health };
        let pod = EndpointRef { health, ..pod };
        decide(self.context, self.view, service, &shard.key, pod, network) == Ok(Path::Direct)
    }

    /// Returns the name of a service as the agent receives it. The agent completes short names with
    /// the search domains of a pod's resolver.
    fn called(&self, service: &'a MergedService, in_full: &InFull<'_>) -> Called<'a> {
        let host = service.hostname().as_str();
        let is_kubernetes = |shard: &ShardEndpoints| shard.key.provider.is_cluster();
        let in_kubernetes = service.shards.first().is_some_and(is_kubernetes);
        let (name, owner) = (&*service.primary.name, service.primary.namespace.as_str());
        let namespace = self.view.namespace.as_str();
        let is_short = in_kubernetes
            && !service.hostname().is_of_set()
            && !rds::is_anothers(
                in_full,
                self.context,
                namespace,
                (service.hostname(), &service.primary.namespace),
                &format!("{name}.{owner}"),
            );
        Called { host, in_kubernetes, short: is_short.then_some((name, owner)) }
    }
}

impl Entry<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        let Called { host, in_kubernetes, short } = self.called;
        // The name of the pod, followed by a dot.
        let prefix = self.host.strip_suffix(host).unwrap_or_default();
        let shortname = short.map(|(name, _)| format!("{prefix}{name}"));
        let info = NameInfo {
            ips: self.ips.iter().map(ToString::to_string).collect(),
            registry: if in_kubernetes { "Kubernetes" } else { "External" }.to_owned(),
            shortname: shortname.unwrap_or_default(),
            namespace: short.map(|(_, namespace)| namespace.to_owned()).unwrap_or_default(),
            ..Default::default()
        };
        let entry = NameTable { table: [(self.host.to_string(), info)].into() };
        entry.encode(out).expect("a vector has room");
    }
}
