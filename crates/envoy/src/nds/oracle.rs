//! An independent generator of the entire name table, for comparison with the table of shared
//! chunks.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use prost::Message;

use super::{InFull, NameTableInputs, PodNames, is_given, rds};
use strait_mesh::aggregate::{MergedService, ShardEndpoints};
use strait_model::Resolution;
use strait_proto::istio::nds::{NameTable, name_table::NameInfo};

impl NameTableInputs<'_> {
    /// Returns the encoded table.
    pub(crate) fn at_once(&self) -> Vec<u8> {
        let mut hosts: BTreeMap<Arc<str>, NameInfo> = BTreeMap::new();
        let services = self.addresses.services.iter();
        let in_full = rds::in_full(
            services.map(|(service, _)| (service.hostname(), &service.primary.namespace)),
        );
        for (service, vips) in &self.addresses.services {
            if service.primary.resolution == Resolution::Headless {
                self.put_pods(service, &in_full, &mut hosts);
            } else {
                // A name applies to all ports, so an address that is shared with another service is
                // omitted.
                let whole = vips.iter().filter(|vip| vip.is_whole()).map(|vip| vip.address);
                let usable = whole.filter(|vip| self.given || !is_given(vip));
                self.add(service, "", usable.collect(), &in_full, &mut hosts);
            }
        }
        // Each entry is encoded separately, because protobuf maps have no order.
        let mut bytes = Vec::new();
        for (host, info) in hosts {
            let table = NameTable { table: [(host.to_string(), info)].into() };
            table.encode(&mut bytes).expect("a vector has room");
        }
        bytes
    }

    /// Adds the pods of a headless service, under the service's name and under their own names.
    fn put_pods(
        &self,
        service: &MergedService,
        in_full: &InFull<'_>,
        hosts: &mut BTreeMap<Arc<str>, NameInfo>,
    ) {
        let PodNames { all, named } = self.pod_names(service);
        self.add(service, "", all, in_full, hosts);
        for (name, addresses) in named {
            self.add(service, &format!("{name}."), addresses.into_iter().collect(), in_full, hosts);
        }
    }

    /// Adds a name of a service, or a name below it if there is a `prefix`.
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
        let is_kubernetes = |shard: &ShardEndpoints| shard.key.provider.is_cluster();
        let in_kubernetes = service.shards.first().is_some_and(is_kubernetes);
        // The agent completes short names with the search domains of a pod's resolver.
        let short_form = format!("{}.{}", service.primary.name, service.primary.namespace);
        let namespace = self.view.namespace.as_str();
        let is_anothers = {
            let owner = (service.hostname(), &service.primary.namespace);
            rds::is_anothers(in_full, self.context, namespace, owner, &short_form)
        };
        let is_short = in_kubernetes && !service.hostname().is_of_set() && !is_anothers;
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
