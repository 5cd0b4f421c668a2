//! From the push context to what one proxy shall hold.
//!
//! Pure: the same context and proxy give the same bytes, whatever happened before. What many proxies
//! share is encoded once and kept in [`Cache`], keyed by the generator's entire input.

mod cache;
mod cds;
mod eds;
mod lds;
mod nds;
#[cfg(any(test, fuzzing))]
pub mod oracle;
mod rds;
#[cfg(test)]
mod tests;
mod tls;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use prost::{Message, Name};
use strait_proto::envoy::google::protobuf::{Any, Duration as ProtoDuration};

pub use self::cache::Cache;
use self::cache::{Class, Scopes, ServiceInputs};
use self::tls::Secrets;
use super::list::List;
use super::names::OutboundName;
use super::resource::{All, Resource, ResourceSource, ResourceType};
use super::session::RESPONSE_BYTES;
use crate::aggregate::MergedService;
use crate::model::{ClusterId, Namespace, NetworkId, Proxy, ProxyType, Resolution};
use crate::push::addresses::{Addresses, addresses};
use crate::push::proxy::inbound_targets;
use crate::push::view::{Role, ViewKey, is_exported};
use crate::push::{PushContext, Whereabouts};

/// What one proxy shall hold at one version of the mesh.
pub struct Picture<'a> {
    context: &'a Arc<PushContext>,
    proxy: &'a Proxy,
    view: ViewKey,
    /// The port on which it listens as an east-west gateway, if it is one.
    east_west_port: Option<u16>,
    cache: &'a Cache,
}

impl<'a> Picture<'a> {
    /// The picture of `proxy`, which is in `network`.
    pub fn new(
        context: &'a Arc<PushContext>,
        proxy: &'a Proxy,
        network: NetworkId,
        cache: &'a Cache,
    ) -> Self {
        let east_west_port = cache.east_west_port(context, proxy);
        let role = if east_west_port.is_some() { Role::Gateway } else { Role::Client };
        let view = ViewKey::of(proxy, network, role);
        Self { context, proxy, view, east_west_port, cache }
    }

    /// The same, of a proxy that is known to be there.
    pub fn at(self, whereabouts: Whereabouts) -> Self {
        Self { view: self.view.at(whereabouts), ..self }
    }

    /// Where the proxy stands: see [`ViewKey::vantage`].
    pub fn vantage(&self) -> ViewKey {
        self.view.clone().vantage()
    }

    fn addresses(&self) -> Arc<Addresses> {
        let ViewKey { cluster, namespace, ipv4, ipv6, .. } = &self.view;
        self.cache.addresses.get_or_make(self.class(), self.context.definitions, || {
            Arc::new(addresses(self.context, cluster, namespace, *ipv4, *ipv6))
        })
    }

    fn clusters(&self) -> All {
        let context = self.context;
        let mut shared = None;
        if self.proxy.kind == ProxyType::Sidecar || self.east_west_port.is_some() {
            let secrets = Secrets::of(self.proxy);
            let version = context.upstreams;
            let scopes = self.cache.scopes.get_or_make((), version, || Scopes::of(context));
            let key = (scopes.narrowed(&self.view), secrets);
            let outbound = || self.outbound(secrets);
            shared = Some(self.cache.outbound.get_or_make(key, version, outbound));
        }
        let mut own = Vec::new();
        if self.proxy.kind == ProxyType::Sidecar {
            let ipv4 = self.view.ipv4;
            let served = self.cache.served(context, self.proxy);
            let inbound = inbound_targets(context, self.proxy, &served);
            let inbound = inbound.iter().map(|target| cds::inbound(context, target, ipv4));
            own.extend(cds::fixed(context, ipv4).into_iter().chain(inbound).map(Arc::new));
        }
        all(shared.unwrap_or_else(|| list(ResourceType::Cluster, Vec::new())), own)
    }

    /// The upstream clusters of all services that the proxy sees.
    fn outbound(&self, secrets: Secrets) -> Arc<List> {
        let context = self.context;
        let mut clusters = Vec::new();
        let abroad = self.clusters_abroad();
        // What a namespace has for itself no gateway carries.
        let nobody = Namespace::default();
        let namespace = match self.view.role {
            Role::Client => &self.view.namespace,
            Role::Gateway => &nobody,
        };
        for service in context.services_of(namespace) {
            if self.view.role == Role::Client && !self.sees(service) {
                continue;
            }
            let abroad = self.view.role == Role::Client
                && is_exported(context, service)
                && service.by_cluster.keys().any(|cluster| abroad.contains(cluster));
            let mut view = self.view.narrowed(context, service);
            if !matches!(service.primary.resolution, Resolution::Headless | Resolution::ByName(_)) {
                // Only where it depends on its endpoints does an upstream cluster depend on where
                // these are.
                view = ViewKey {
                    network: NetworkId::default(),
                    sees: None,
                    ipv4: true,
                    ipv6: true,
                    node: None,
                    locality: None,
                    ..view
                };
            }
            let key = (service.hostname().clone(), view.clone(), secrets, abroad);
            let inputs = ServiceInputs::of(context, service);
            let shared = self.cache.clusters.get_or_make(key, inputs, || {
                let client = cds::Client { context, view: &view, secrets, abroad };
                client.outbound(service).into_iter().map(Arc::new).collect()
            });
            clusters.extend(shared.iter().cloned());
        }
        list(ResourceType::Cluster, clusters)
    }

    /// The clusters that are in another network than the proxy.
    fn clusters_abroad(&self) -> BTreeSet<&ClusterId> {
        let clusters = self.context.clusters.clusters.keys();
        clusters.filter(|id| self.context.network_of_cluster(id) != self.view.network).collect()
    }

    /// Whether a client may use the service at all.
    fn sees(&self, service: &MergedService) -> bool {
        service.primary.export_to.visible_to(&self.view.namespace)
            && (service.is_at_home_in(&self.view.cluster)
                || !self.context.mesh.cluster_local(service.hostname()))
    }

    fn service(&self, host: &str) -> Option<&'_ Arc<MergedService>> {
        match self.view.role {
            Role::Client => self.context.service(host, &self.view.namespace),
            Role::Gateway => self.context.services.get(host),
        }
    }

    fn assignment(&self, name: &str) -> Arc<Resource> {
        let context = self.context;
        let known = OutboundName::parts(name)
            .and_then(|(host, port, sni)| Some((self.service(host)?, port, sni)));
        let Some((service, port, sni)) = known else {
            return Arc::new(eds::empty(name));
        };
        let parsed = OutboundName { hostname: service.hostname().clone(), port, sni };
        let key = (parsed, self.view.narrowed(context, service));
        let kept = &self.cache.assignments;
        kept.get(&key, |inputs| inputs.are_of(context, service)).unwrap_or_else(|| {
            let made = Arc::new(eds::assigned(context, &key.1, name, port, service));
            kept.put(key, ServiceInputs::of(context, service), Arc::clone(&made));
            made
        })
    }
}

impl ResourceSource for Picture<'_> {
    fn all(&mut self, kind: ResourceType) -> All {
        match kind {
            ResourceType::Cluster => self.clusters(),
            ResourceType::Listener => self.listeners(),
            ResourceType::NameTable => all(self.name_table(), Vec::new()),
            ResourceType::Endpoint | ResourceType::Route => all(list(kind, Vec::new()), Vec::new()),
        }
    }

    fn one(&mut self, kind: ResourceType, name: &str) -> Option<Arc<Resource>> {
        match kind {
            ResourceType::Endpoint => Some(self.assignment(name)),
            ResourceType::Route => Some(self.route(name)),
            ResourceType::Cluster | ResourceType::Listener | ResourceType::NameTable => None,
        }
    }
}

/// A list of what many proxies hold.
fn list(kind: ResourceType, mut resources: Vec<Arc<Resource>>) -> Arc<List> {
    sort(&mut resources);
    List::new(kind, resources.into(), RESPONSE_BYTES)
}

/// What many proxies hold, and of a proxy's own what has other names.
fn all(shared: Arc<List>, mut own: Vec<Arc<Resource>>) -> All {
    sort(&mut own);
    let taken = shared.resources();
    own.retain(|one| taken.binary_search_by(|other| other.name.cmp(&one.name)).is_err());
    All { shared, own }
}

/// By name, of each name the first.
fn sort(resources: &mut Vec<Arc<Resource>>) {
    resources.sort_by(|a, b| a.name.cmp(&b.name));
    resources.dedup_by(|a, b| a.name == b.name);
}

/// Encodes a message as the resource `name`.
fn encode(name: impl Into<Arc<str>>, message: &impl Message) -> Resource {
    Resource::new(name, message.encode_to_vec())
}

/// Wraps a message with its type.
fn any<M: Message + Name>(message: &M) -> Any {
    Any {
        type_url: format!("type.googleapis.com/{}", M::full_name()),
        value: message.encode_to_vec(),
    }
}

fn duration(duration: Duration) -> ProtoDuration {
    ProtoDuration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or_default(),
    }
}

fn seconds(seconds: u64) -> ProtoDuration {
    duration(Duration::from_secs(seconds))
}

impl Picture<'_> {
    fn listeners(&self) -> All {
        let addresses = self.addresses();
        let shared = match self.proxy.kind {
            ProxyType::Sidecar => {
                let inputs = self.context.definitions;
                self.cache.listeners.get_or_make(self.class(), inputs, || {
                    let listeners = lds::shared(self.context, &self.view, &addresses);
                    list(ResourceType::Listener, listeners.into_iter().map(Arc::new).collect())
                })
            }
            ProxyType::Router => list(ResourceType::Listener, Vec::new()),
        };
        let own = match (self.proxy.kind, self.east_west_port) {
            (ProxyType::Sidecar, _) => {
                let served = self.cache.served(self.context, self.proxy);
                let inbound = inbound_targets(self.context, self.proxy, &served);
                lds::own(
                    self.context,
                    self.proxy,
                    &self.view,
                    &addresses,
                    shared.resources(),
                    &inbound,
                )
            }
            (ProxyType::Router, Some(port)) => lds::gateway(self.context, &self.view, port),
            (ProxyType::Router, None) => Vec::new(),
        };
        all(shared, own.into_iter().map(Arc::new).collect())
    }

    fn route(&self, name: &str) -> Arc<Resource> {
        if self.proxy.kind == ProxyType::Router {
            return Arc::new(rds::empty(name));
        }
        let addresses = self.addresses();
        let domain = &*self.proxy.dns_domain;
        let make = || Arc::new(rds::route(self.context, &addresses, domain, name));
        let is_own = self.is_in_own_domain();
        let is_shared = is_own || !rds::is_any_shortened(&addresses, domain);
        // Clients choose names and domains: only what listeners have named is worth keeping, and is the
        // same for others.
        if !is_shared || !rds::is_named(&addresses, name) {
            return make();
        }
        let key = (self.class(), is_own, name.into());
        self.cache.routes.get_or_make(key, self.context.definitions, make)
    }

    /// Whether the proxy's DNS domain is `NAMESPACE.svc.DOMAIN`, with its own namespace and the domain of
    /// services.
    fn is_in_own_domain(&self) -> bool {
        let rest = self.proxy.dns_domain.strip_prefix(self.proxy.namespace().as_str());
        let domain = rest.and_then(|rest| rest.strip_prefix(".svc."));
        domain == Some(self.context.settings.domain.as_str())
    }

    /// Made for those who ask, and no others.
    fn name_table(&self) -> Arc<List> {
        let context = self.context;
        let scopes = || Scopes::of(context);
        let scopes = self.cache.scopes.get_or_make((), context.upstreams, scopes);
        // Virtual addresses are each cluster's own, and so are families.
        let (ViewKey { cluster, ipv4, ipv6, .. }, view) = (&self.view, scopes.narrowed(&self.view));
        let view = ViewKey {
            cluster: cluster.clone(),
            ipv4: *ipv4,
            ipv6: *ipv6,
            locality: None,
            role: Role::Client,
            ..view
        };
        let given = self.proxy.takes_given_addresses;
        self.cache.names.get_or_make((view.clone(), given), context.definitions, || {
            let addresses = &self.addresses();
            let table = nds::Names { context, view: &view, addresses, given }.table();
            list(ResourceType::NameTable, vec![Arc::new(table)])
        })
    }

    /// What addresses, shared listeners and routes depend on, besides the mesh.
    fn class(&self) -> Class {
        let ViewKey { cluster, namespace, ipv4, ipv6, .. } = &self.view;
        (cluster.clone(), namespace.clone(), *ipv4, *ipv6)
    }
}
