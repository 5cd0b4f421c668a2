//! Ownership of hosts by namespaces, and the limits of objects for hosts of other namespaces.
//!
//! An exported VirtualService applies to the requests of all clients that see it, including
//! requests for services of other namespaces. With `traffic.foreignHosts: deny` in the policy file,
//! it applies only to hosts of its own namespace, to hosts that are not services, and at proxies of
//! its own namespace. Objects of the root namespace belong to the operator and apply everywhere.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::OrdMap;

use super::hosts::{HostPattern, wider};
use strait_model::{ExportTo, Hostname, Namespace};

/// The owners of hosts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForeignHosts {
    /// The domain of the names of Services.
    pub domain: Arc<str>,
    /// The root namespace, whose objects apply to all hosts.
    pub root_namespace: Arc<str>,
    /// The namespaces with exported objects, without the root namespace.
    pub namespaces: BTreeSet<Namespace>,
    /// The owners of hosts whose names do not contain the namespace.
    pub owners: OrdMap<Hostname, HostNamespaces>,
}

/// The namespaces that have a service with the same name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostNamespaces {
    /// The namespace whose service is visible to other namespaces.
    pub public: Option<Namespace>,
    /// The namespaces with a service that is visible only to themselves.
    pub private: BTreeSet<Namespace>,
}

impl ForeignHosts {
    /// Returns the namespace that owns a host for clients of a namespace, or `None` if the host is
    /// not a service.
    pub fn owner_for(&self, host: &HostPattern, client: &Namespace) -> Option<Namespace> {
        let name = host.to_string();
        match self.owners.get(name.as_str()) {
            Some(owners) if owners.private.contains(client) => Some(client.clone()),
            Some(HostNamespaces { public: Some(owner), .. }) => Some(owner.clone()),
            _ => owner_by_name(&name, &self.domain).or_else(|| self.wildcard_owner(host)),
        }
    }

    /// Returns the namespace of the narrowest wildcard service that contains a host.
    fn wildcard_owner(&self, host: &HostPattern) -> Option<Namespace> {
        let mut names = wider(host).map(|pattern| pattern.to_string());
        names.find_map(|name| self.owners.get(name.as_str())?.public.clone())
    }
}

/// Returns whether an object of `namespace` is visible to other namespaces.
pub fn is_exported(export_to: &ExportTo, namespace: &Namespace) -> bool {
    match export_to {
        ExportTo::Public => true,
        ExportTo::Namespaces(names) => names.iter().any(|name| name != namespace),
    }
}

/// Returns the namespace in the name of a Service or of one of its pods,
/// `NAME.NAMESPACE.svc.DOMAIN`, or in a wildcard for such names.
pub fn owner_by_name(host: &str, domain: &str) -> Option<Namespace> {
    let (name, namespace) = host.strip_suffix(domain)?.strip_suffix(".svc.")?.rsplit_once('.')?;
    (!name.is_empty() && !namespace.is_empty()).then(|| namespace.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_service_contains_its_namespace() {
        for (host, owner) in [
            ("reviews.shop.svc.cluster.local", Some("shop")),
            ("reviews-0.reviews.shop.svc.cluster.local", Some("shop")),
            ("*.shop.svc.cluster.local", Some("shop")),
            ("*.svc.cluster.local", None),
            ("shop.svc.cluster.local", None),
            ("reviews.shop.svc.other.local", None),
            ("reviews.example", None),
            ("reviews.shop.svccluster.local", None),
        ] {
            assert_eq!(owner_by_name(host, "cluster.local"), owner.map(Namespace::from), "{host}");
        }
    }

    #[test]
    fn private_service_of_the_client_takes_precedence_over_the_public_one() {
        let owners = HostNamespaces { public: Some("pay".into()), private: ["shop".into()].into() };
        let foreign = ForeignHosts {
            domain: "cluster.local".into(),
            owners: [(Hostname::from("api.example"), owners)].into_iter().collect(),
            ..ForeignHosts::default()
        };
        let host = HostPattern::written("api.example").expect("a host");
        let owner = |client: &str| foreign.owner_for(&host, &client.into());
        assert_eq!(owner("shop"), Some("shop".into()));
        assert_eq!(owner("web"), Some("pay".into()));
    }
}
