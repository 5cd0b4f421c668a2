//! The namespaces that hosts belong to, and the namespaces whose objects do not apply to hosts of others.
//!
//! A VirtualService that is exported applies to the requests of all clients that see it, also to requests for services of
//! other namespaces. With `traffic.foreignHosts: deny` of the policy file it does not: such an object applies to hosts of its
//! own namespace, to hosts that are no services, and at proxies of its own namespace. Objects of the root namespace are the
//! operator's and apply everywhere.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::OrdMap;

use super::hosts::{HostPattern, wider};
use strait_model::{ExportTo, Hostname, Namespace};

/// The namespaces of hosts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForeignHosts {
    /// The domain of the names of Services.
    pub domain: Arc<str>,
    /// The namespace whose objects apply to all hosts.
    pub root_namespace: Arc<str>,
    /// The namespaces with objects that are exported, without the root namespace.
    pub namespaces: BTreeSet<Namespace>,
    /// The owners of hosts whose names do not tell.
    pub owners: OrdMap<Hostname, NamespacesOfHost>,
}

/// The namespaces that have a service of one name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamespacesOfHost {
    /// The namespace of the service that other namespaces see.
    pub public: Option<Namespace>,
    /// The namespaces that have a service of this name for themselves.
    pub private: BTreeSet<Namespace>,
}

impl ForeignHosts {
    /// The namespace that a host belongs to for clients of a namespace; `None` if it is no service.
    pub fn owner_of(&self, host: &HostPattern, client: &Namespace) -> Option<Namespace> {
        let name = host.to_string();
        match self.owners.get(name.as_str()) {
            Some(owners) if owners.private.contains(client) => Some(client.clone()),
            Some(NamespacesOfHost { public: Some(owner), .. }) => Some(owner.clone()),
            _ => owner_by_name(&name, &self.domain).or_else(|| self.owner_of_wider(host)),
        }
    }

    /// The namespace of the narrowest wildcard service that contains a host.
    fn owner_of_wider(&self, host: &HostPattern) -> Option<Namespace> {
        let mut names = wider(host).map(|pattern| pattern.to_string());
        names.find_map(|name| self.owners.get(name.as_str())?.public.clone())
    }
}

/// Whether other namespaces than its own see an object.
pub fn is_exported(export_to: &ExportTo, namespace: &Namespace) -> bool {
    match export_to {
        ExportTo::Public => true,
        ExportTo::Namespaces(names) => names.iter().any(|name| name != namespace),
    }
}

/// The namespace in the name of a Service or of a pod behind one, `NAME.NAMESPACE.svc.DOMAIN`, or in a wildcard for such names.
pub fn owner_by_name(host: &str, domain: &str) -> Option<Namespace> {
    let (name, namespace) = host.strip_suffix(domain)?.strip_suffix(".svc.")?.rsplit_once('.')?;
    (!name.is_empty() && !namespace.is_empty()).then(|| namespace.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_services_tell_their_namespace() {
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
    fn private_service_of_the_client_comes_before_the_public_one() {
        let owners =
            NamespacesOfHost { public: Some("pay".into()), private: ["shop".into()].into() };
        let foreign = ForeignHosts {
            domain: "cluster.local".into(),
            owners: [(Hostname::from("api.example"), owners)].into_iter().collect(),
            ..ForeignHosts::default()
        };
        let host = HostPattern::written("api.example").expect("a host");
        let owner = |client: &str| foreign.owner_of(&host, &client.into());
        assert_eq!(owner("shop"), Some("shop".into()));
        assert_eq!(owner("web"), Some("pay".into()));
    }
}
