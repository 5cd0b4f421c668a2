//! Gateways of networks that are declared as `Gateway`s of the Gateway API.

use std::collections::BTreeSet;

use super::gateways::{
    ConfiguredGateway, Inputs, Networks, ONLY_HBONE, PendingCause, PendingGateway,
};
use strait_model::{ClusterId, DeclaredGateway, GatewaySource, NETWORK_LABEL, WorkloadKey};

impl Networks {
    /// Adds the gateways that clusters declare.
    pub(super) fn add_declared(
        &mut self,
        inputs: Inputs<'_>,
        found: &mut BTreeSet<ConfiguredGateway>,
    ) {
        for (cluster, facts) in inputs.facts {
            let settings = inputs.clusters.clusters.get(*cluster);
            let is_config = settings.is_some_and(|settings| settings.config);
            for (name, gateway) in facts.gateways.iter() {
                if is_config || !gateway.of_config_cluster_only {
                    self.add_declared_gateway(cluster, name, gateway, inputs, found);
                }
            }
        }
    }

    fn add_declared_gateway(
        &mut self,
        cluster: &ClusterId,
        name: &WorkloadKey,
        gateway: &DeclaredGateway,
        inputs: Inputs<'_>,
        found: &mut BTreeSet<ConfiguredGateway>,
    ) {
        let key = name;
        let name = format!("{}/{}", key.namespace, key.name);
        // A gateway that the config cluster declares for another network does not affect its own
        // network.
        let fixed = inputs.clusters.fixed_network(cluster);
        let fixed = fixed.filter(|_| !gateway.of_config_cluster_only);
        if fixed.is_some_and(|fixed| *fixed != gateway.network) {
            let claim = format!("label {NETWORK_LABEL} of Gateway {name}");
            self.ignore(cluster, claim, &gateway.network);
        }
        let network = fixed.unwrap_or(&gateway.network);
        let source = GatewaySource::Gateway(name.into());
        if let Err(refused) = inputs.policy.may_be_gateway(key.namespace.as_str()) {
            let claim = format!("{source}: policy {}", refused.rule);
            return self.ignore(cluster, claim, network);
        }
        let owner = (!gateway.of_config_cluster_only).then(|| (*cluster).clone());
        let reason = if gateway.entrances.is_empty() {
            Some("the Gateway has no listener for the mesh's mTLS")
        } else if gateway.entrances.iter().all(|(port, _)| *port == 0) {
            Some(ONLY_HBONE)
        } else if gateway.addresses.is_empty() {
            Some("the Gateway has no address")
        } else {
            None
        };
        if let Some(reason) = reason {
            self.pend(PendingGateway {
                network: network.clone(),
                cluster: owner,
                source,
                reason: reason.to_owned(),
                cause: PendingCause::NoAddress,
            });
            return;
        }
        for host in &gateway.addresses {
            let entrances = gateway.entrances.iter().filter(|(port, _)| *port != 0);
            found.extend(entrances.map(|(port, hbone_port)| ConfiguredGateway {
                network: network.clone(),
                cluster: owner.clone(),
                source: source.clone(),
                host: host.clone(),
                port: *port,
                hbone_port: *hbone_port,
            }));
        }
    }
}
