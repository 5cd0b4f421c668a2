//! Whose Services are told apart by the addresses that clients mean. (Gateway API, GEP-1324: the frontend of a Service is its
//! name and its cluster IP.)
//!
//! A route on a Service is for requests to its addresses, whatever host they name. So that requests to another Service don't
//! come under it by naming its host, all Services of a namespace are told apart so as soon as a route is on one of them.

use std::collections::BTreeSet;

use imbl::OrdSet;

use strait_model::Namespace;

/// The namespaces of such Services.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressedServices {
    /// For all clients.
    for_all: OrdSet<Namespace>,
    /// For clients of one namespace, which stands first.
    for_clients: OrdSet<(Namespace, Namespace)>,
}

impl AddressedServices {
    /// Those of `namespace`, for the clients of one other, or for all.
    pub(super) fn insert(&mut self, namespace: Namespace, clients: Option<Namespace>) {
        match clients {
            None => drop(self.for_all.insert(namespace)),
            Some(clients) => drop(self.for_clients.insert((clients, namespace))),
        }
    }

    /// The namespaces whose Services are told apart for other clients than by those.
    pub(super) fn differing(&self, others: &Self) -> BTreeSet<Namespace> {
        let all = self.for_all.clone().symmetric_difference(others.for_all.clone());
        let clients = self.for_clients.clone().symmetric_difference(others.for_clients.clone());
        all.into_iter().chain(clients.into_iter().map(|(_, namespace)| namespace)).collect()
    }

    /// Whether requests of such clients to Services of `namespace` go by address.
    pub fn contains(&self, namespace: &Namespace, clients: &Namespace) -> bool {
        self.for_all.contains(namespace)
            || (!self.for_clients.is_empty()
                && self.for_clients.contains(&(clients.clone(), namespace.clone())))
    }
}
