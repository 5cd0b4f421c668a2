//! The table of names from which Istio's agent answers its workload's DNS: each host with the addresses
//! at which this proxy reaches it. (Istio, "DNS proxying".)
//!
//! Hosts without such an address are left out: the agent then asks the DNS server of its cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use prost::Message;
use strait_proto::istio::nds::{NameTable, name_table::NameInfo};

use super::rds::{self, InFull};
use crate::aggregate::{MergedService, ShardEndpoints};
use crate::model::{ClusterId, EndpointRef, Health, NetworkId, Resolution};
use crate::push::PushContext;
use crate::push::addresses::Addresses;
use crate::push::view::{ViewKey, Way, decide};
use crate::registry::Provider;
use crate::registry::service_entry::is_given;
use crate::xds::resource::Resource;

/// What a table is made of.
pub(super) struct Names<'a> {
    pub(super) context: &'a PushContext,
    pub(super) view: &'a ViewKey,
    pub(super) addresses: &'a Addresses,
    /// Whether hosts without an address of their own are called by the one that we gave them.
    pub(super) given: bool,
}

impl Names<'_> {
    /// The table, as the one resource of its type, which has no name.
    pub(super) fn table(&self) -> Resource {
        let mut hosts: BTreeMap<Arc<str>, NameInfo> = BTreeMap::new();
        let services = self.addresses.services.iter();
        let in_full = rds::in_full(services.map(|(service, _)| &**service));
        for (service, vips) in &self.addresses.services {
            if service.primary.resolution == Resolution::Headless {
                self.add_pods(service, &in_full, &mut hosts);
            } else {
                // A name is told for all ports: at none may another service answer.
                let whole = vips.iter().filter(|vip| vip.is_whole()).map(|vip| vip.address);
                let known = whole.filter(|vip| self.given || !is_given(vip));
                self.add(service, "", known.collect(), &in_full, &mut hosts);
            }
        }
        // One by one, since a map of a message has no order.
        let mut bytes = Vec::new();
        for (host, info) in hosts {
            let one = NameTable { table: [(host.to_string(), info)].into() };
            one.encode(&mut bytes).expect("a vector has room");
        }
        Resource::new("", bytes)
    }

    /// The pods of a headless service: under its name, and those that have one below that by their own.
    fn add_pods(
        &self,
        service: &MergedService,
        in_full: &InFull<'_>,
        hosts: &mut BTreeMap<Arc<str>, NameInfo>,
    ) {
        let pods = service
            .shards
            .iter()
            .flat_map(|shard| shard.iter().map(move |(pod, network)| (shard, pod, network)));
        let told = pods.filter(|(shard, pod, network)| self.is_told(service, shard, *pod, network));
        let told: Vec<_> = told.map(|(shard, pod, _)| (&shard.key.cluster, pod)).collect();
        let all: BTreeSet<IpAddr> = told.iter().map(|(_, pod)| pod.address).collect();
        self.add(service, "", all.into_iter().collect(), in_full, hosts);

        // Of pods of one name in several clusters, those of one: its own, else the first.
        let mut named: BTreeMap<String, (&ClusterId, BTreeSet<IpAddr>)> = BTreeMap::new();
        let (near, far): (Vec<_>, Vec<_>) =
            told.into_iter().partition(|(cluster, _)| **cluster == self.view.cluster);
        for (cluster, pod) in near.into_iter().chain(far) {
            let Some(name) = self.name_of(service, cluster, pod) else { continue };
            let (holder, addresses) =
                named.entry(name).or_insert_with(|| (cluster, BTreeSet::new()));
            if *holder == cluster {
                addresses.insert(pod.address);
            }
        }
        for (name, (_, addresses)) in named {
            self.add(service, &format!("{name}."), addresses.into_iter().collect(), in_full, hosts);
        }
    }

    /// The name of a pod below that of a service, where it has one.
    fn name_of(
        &self,
        service: &MergedService,
        cluster: &ClusterId,
        pod: EndpointRef<'_>,
    ) -> Option<String> {
        let key = pod.workload?.to_key();
        let pod = self.context.workloads.get(cluster)?.get(key.namespace.as_str(), &key.name)?;
        (pod.subdomain.as_ref() == Some(&service.primary.name)).then(|| key.name.to_string())
    }

    /// Whether the proxy reaches a pod, be it ready or its cluster's service tell of those that aren't.
    fn is_told(
        &self,
        service: &MergedService,
        shard: &ShardEndpoints,
        pod: EndpointRef<'_>,
        network: &NetworkId,
    ) -> bool {
        let anyway = shard.service.publish_not_ready;
        let health = if anyway { Health::Healthy } else { pod.health };
        let pod = EndpointRef { health, ..pod };
        decide(self.context, self.view, service, &shard.key, pod, network) == Ok(Way::Direct)
    }

    /// A name of a service, below that of the service if there is a `prefix`.
    fn add(
        &self,
        service: &MergedService,
        prefix: &str,
        ips: Vec<IpAddr>,
        in_full: &InFull<'_>,
        hosts: &mut BTreeMap<Arc<str>, NameInfo>,
    ) {
        if ips.is_empty() {
            return;
        }
        let host = service.hostname().as_str();
        let of_cluster = |shard: &ShardEndpoints| shard.key.provider == Provider::Kubernetes;
        let in_kubernetes = service.shards.first().is_some_and(of_cluster);
        // The agent completes short names by the domains that a pod's resolver searches.
        let short_form = format!("{}.{}", service.primary.name, service.primary.namespace);
        let namespace = self.view.namespace.as_str();
        let is_anothers = rds::is_anothers(in_full, self.context, namespace, service, &short_form);
        let is_short = in_kubernetes && !host.ends_with(CLUSTER_SET) && !is_anothers;
        let short = |text: &str| if is_short { text.to_owned() } else { String::new() };
        let info = NameInfo {
            ips: ips.iter().map(ToString::to_string).collect(),
            registry: if in_kubernetes { "Kubernetes" } else { "External" }.to_owned(),
            shortname: short(&format!("{prefix}{}", service.primary.name)),
            namespace: short(service.primary.namespace.as_str()),
            ..Default::default()
        };
        hosts.entry(format!("{prefix}{host}").into()).or_insert(info);
    }
}

/// The end of names that stand for a service of several clusters (multi-cluster services).
const CLUSTER_SET: &str = ".svc.clusterset.local";
