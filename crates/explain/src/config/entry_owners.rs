//! Hosts, addresses and ranges of ServiceEntries that belong to another service.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::ConfigView;
use super::address_owners::{AddressOwners, is_indistinguishable, order};
use super::clients::seen;
use super::objects::items;
use crate::standing::ConfigReason;
use strait_base::codes;
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::addresses::is_selected_by_sni;
use strait_model::registry::Provider;
use strait_model::{Namespace, ObjectKey, Port, Protocol};
use strait_rules::traffic::foreign::is_exported;

/// The parts of a ServiceEntry that belong to other services.
#[derive(Debug, Default)]
pub(super) struct EntryLoss {
    /// The reasons, which name the owners.
    pub(super) reasons: Vec<ConfigReason>,
    /// Whether a part of the entry has no effect.
    pub(super) is_partly: bool,
    /// Whether no host of the entry has an effect.
    pub(super) is_whole: bool,
}

impl ConfigView<'_> {
    /// Returns the hosts and addresses of a ServiceEntry that belong to an older service or to a service of a cluster.
    pub(super) fn entry_loss(&self, key: &ObjectKey, object: &Value) -> EntryLoss {
        let mut loss = EntryLoss::default();
        let namespace = Namespace::from(&*key.namespace);
        let hosts: Vec<&str> =
            items(object, "/spec/hosts").iter().filter_map(Value::as_str).collect();
        let mut without_effect = 0;
        for (at, host) in hosts.iter().enumerate() {
            let host = host.to_ascii_lowercase();
            let path = format!("spec.hosts[{at}]");
            let service = seen(self.context, &host, &namespace);
            let is_of_cluster = service.is_some_and(|one| !one.is_of_entry());
            if !is_of_cluster
                && let Some((reason, is_denied)) =
                    self.foreign_name((&host, &namespace), object, &path)
            {
                without_effect += usize::from(is_denied);
                loss.is_partly |= is_denied;
                loss.reasons.push(reason);
                if is_denied {
                    continue;
                }
            }
            if let Some(full) = self.service_of_short_name(&host, &namespace) {
                let text = format!(
                    "{host} is a short name of {}: clients that use it reach that service, at ports that both have",
                    owner(full)
                );
                loss.is_partly |= service.is_some_and(|own| collides(own, full));
                loss.reasons.push(ConfigReason::new(&codes::ENTRY_OWNED, path.clone(), text));
            }
            let Some(service) = service else { continue };
            let is_own = |provider: Provider, of: &Namespace| {
                provider.is_of_service_entries() && *of == namespace
            };
            let is_overruled = service
                .overruled
                .iter()
                .any(|(key, record)| is_own(key.provider, &record.service.namespace));
            if is_overruled {
                without_effect += 1;
                loss.is_partly = true;
                let text = format!(
                    "{} has this host, in another namespace: the entry has no effect for it",
                    owner(service)
                );
                loss.reasons.push(ConfigReason::new(&codes::ENTRY_OWNED, path, text));
                continue;
            }
            let is_part =
                service.shards.iter().any(|one| is_own(one.key.provider, &one.service.namespace));
            if !is_part {
                continue;
            }
            if is_of_cluster {
                let text = format!(
                    "{} has this host and decides its protocols, resolution and addresses; ports and endpoints are added",
                    owner(service)
                );
                loss.reasons.push(ConfigReason::new(&codes::ENTRY_OWNED, path, text));
            }
            self.add_addresses(object, service, &mut loss);
            self.add_ports(object, service, &namespace, &mut loss);
        }
        loss.is_whole = !hosts.is_empty() && without_effect == hosts.len();
        loss
    }

    /// Returns the Service of a cluster that a host names without the mesh's domain.
    fn service_of_short_name(&self, host: &str, namespace: &Namespace) -> Option<&MergedService> {
        let domain = &self.context.settings.domain;
        let names = [format!("{host}.svc.{domain}"), format!("{host}.{domain}")];
        let mut named = names.iter().filter_map(|name| seen(self.context, name, namespace));
        named.find(|one| !one.is_of_entry())
    }

    /// Adds the TCP ports of an entry without an address at which clients that do not resolve names
    /// with the agent reach another service instead.
    fn add_ports(
        &self,
        object: &Value,
        service: &MergedService,
        namespace: &Namespace,
        loss: &mut EntryLoss,
    ) {
        let owners = self.address_owners.get_or_init(|| AddressOwners::of(self.context));
        for (at, given) in items(object, "/spec/ports").iter().enumerate() {
            let number = given["number"].as_u64().and_then(|number| u16::try_from(number).ok());
            let port = number.and_then(|number| service.port(number));
            let Some(port) = port.filter(|port| is_indistinguishable(service, port)) else {
                continue;
            };
            let winner = owners.rest(port.number, namespace);
            let Some(winner) = winner.filter(|other| other.hostname() != service.hostname()) else {
                continue;
            };
            let text = format!(
                "{} has no address: connections to its port {} go to {}, unless the client resolves the name with the agent's DNS",
                service.hostname(),
                port.number,
                owner(winner)
            );
            let path = format!("spec.ports[{at}]");
            loss.reasons.push(ConfigReason::new(&codes::ENTRY_OWNED, path, text));
        }
    }

    /// Adds the addresses and ranges of an entry that belong to another service.
    fn add_addresses(&self, object: &Value, service: &MergedService, loss: &mut EntryLoss) {
        let owners = self.address_owners.get_or_init(|| AddressOwners::of(self.context));
        let own = order(service);
        let given = items(object, "/spec/addresses").iter().enumerate();
        for (at, given) in given.filter_map(|(at, given)| Some((at, given.as_str()?))) {
            let others = match (given.parse::<IpAddr>(), given.parse::<IpNet>()) {
                (Ok(address), _) => owners.addresses.get(&address),
                (_, Ok(range)) if range.prefix_len() == range.max_prefix_len() => {
                    owners.addresses.get(&range.addr())
                }
                (_, Ok(range)) => owners.ranges.get(&range.trunc()),
                _ => None,
            };
            // Hosts of one entry have the same endpoints at the address.
            let is_same_entry = |other: &MergedService| {
                let (one, other) = (&service.primary, &other.primary);
                one.namespace == other.namespace && one.name == other.name
            };
            let is_first = |other: &&&MergedService| {
                !is_same_entry(other) && order(other) < own && collides(other, service)
            };
            let path = format!("spec.addresses[{at}]");
            let Some(other) = others.into_iter().flatten().find(is_first) else {
                let namespace = &service.primary.namespace;
                let is_taken = |other: &&&MergedService| {
                    other.primary.namespace != *namespace
                        && order(other) > own
                        && collides(other, service)
                };
                let taken = others.into_iter().flatten().find(is_taken);
                if let Some(other) = taken.filter(|_| self.notes_foreign(namespace))
                    && loss.reasons.iter().all(|reason| reason.path != path)
                {
                    let text = format!(
                        "{given} is also an address of {}: connections to it go to this entry, which is older, at ports that both have",
                        owner(other)
                    );
                    loss.reasons.push(ConfigReason::new(&codes::FOREIGN_HOST, path, text));
                    continue;
                }
                let is_next_to_ports = |other: &&&MergedService| {
                    other.primary.namespace != *namespace && order(other) < own
                };
                let foreign = others.into_iter().flatten().find(is_next_to_ports);
                if let Some(other) = foreign.filter(|_| self.notes_foreign(namespace))
                    && is_exported(&service.primary.export_to, namespace)
                    && loss.reasons.iter().all(|reason| reason.path != path)
                {
                    let text = format!(
                        "{given} is an address of {}: connections to it at the ports of this entry go to this entry",
                        owner(other)
                    );
                    loss.reasons.push(ConfigReason::new(&codes::FOREIGN_HOST, path, text));
                }
                continue;
            };
            if loss.reasons.iter().any(|reason| reason.path == path) {
                continue;
            }
            loss.is_partly = true;
            let text = format!(
                "{given} is an address of {}, which receives the connections to it at ports that both have",
                owner(other)
            );
            loss.reasons.push(ConfigReason::new(&codes::ENTRY_OWNED, path, text));
        }
    }
}

/// Returns whether two services have a port number in common at which TLS names do not distinguish
/// them.
fn collides(one: &MergedService, other: &MergedService) -> bool {
    let are_entries = one.is_of_entry() && other.is_of_entry();
    let is_by_sni = |service, port| are_entries && is_selected_by_sni(service, port);
    let is_tcp = |port: &&Port| port.protocol != Protocol::Udp;
    one.ports().filter(is_tcp).any(|port| {
        let mut same = other.ports().filter(is_tcp).filter(|own| own.number == port.number);
        same.any(|own| !is_by_sni(one, port) && !is_by_sni(other, own))
    })
}

/// Names the object that decides a service.
fn owner(service: &MergedService) -> String {
    let (host, namespace) = (service.hostname(), &service.primary.namespace);
    match service.shards.first().map(|shard| &shard.key) {
        Some(key) if key.provider.is_of_service_entries() => {
            format!("a ServiceEntry of namespace {namespace} (host {host})")
        }
        Some(key) => {
            format!("service {host} of namespace {namespace} in cluster {}", key.cluster)
        }
        None => format!("service {host}"),
    }
}
