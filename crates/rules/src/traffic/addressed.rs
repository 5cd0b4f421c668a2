//! Namespaces whose Services are distinguished by the destination address of requests (Gateway API,
//! GEP-1324: the frontend of a Service is its name and its cluster IP).
//!
//! A route attached to a Service applies to requests to its addresses, whatever their host header
//! is. Requests to another Service must not match the route because of their host header. Therefore
//! all Services of a namespace are distinguished by address as soon as any of them has a route.

use std::collections::BTreeSet;

use imbl::OrdSet;

use strait_model::Namespace;

/// The namespaces whose Services are distinguished by address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressedServices {
    /// Namespaces, for clients in all namespaces.
    for_all: OrdSet<Namespace>,
    /// Pairs of client namespace and namespace of the Services.
    for_clients: OrdSet<(Namespace, Namespace)>,
}

impl AddressedServices {
    /// Adds the Services of `namespace`, for clients of one namespace or for all clients if `None`.
    pub(super) fn insert(&mut self, namespace: Namespace, clients: Option<Namespace>) {
        match clients {
            None => drop(self.for_all.insert(namespace)),
            Some(clients) => drop(self.for_clients.insert((clients, namespace))),
        }
    }

    /// Returns the namespaces that differ between two versions.
    pub(super) fn differing(&self, others: &Self) -> BTreeSet<Namespace> {
        let all = self.for_all.clone().symmetric_difference(others.for_all.clone());
        let clients = self.for_clients.clone().symmetric_difference(others.for_clients.clone());
        all.into_iter().chain(clients.into_iter().map(|(_, namespace)| namespace)).collect()
    }

    /// Returns whether requests from these clients to Services of `namespace` are distinguished by
    /// address.
    pub fn contains(&self, namespace: &Namespace, clients: &Namespace) -> bool {
        self.for_all.contains(namespace)
            || (!self.for_clients.is_empty()
                && self.for_clients.contains(&(clients.clone(), namespace.clone())))
    }
}
