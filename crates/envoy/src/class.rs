//! The properties that proxies with equal listeners and routes have in common.

use std::time::Duration;

use strait_mesh::push::view::ViewKey;
use strait_model::{ClusterId, Interception, IstioFilters, Namespace, Proxy, ProxyType};
use strait_rules::traffic::Selection;

/// A set of proxies that share addresses, listeners and routes. A value that is cached for a class
/// also depends on the version of the definitions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Class {
    pub(super) cluster: ClusterId,
    /// The namespace of the proxies; empty if it does not matter.
    pub(super) namespace: Namespace,
    /// The rules' selectors that match the proxies.
    pub(super) selection: Selection,
    /// Whether the proxies support IPv4 and IPv6.
    pub(super) families: (bool, bool),
}

/// Returns the class of a view.
pub(super) fn class_for(view: &ViewKey) -> Class {
    Class {
        cluster: view.cluster.clone(),
        namespace: view.namespace.clone(),
        selection: view.selection.clone(),
        families: (view.ipv4, view.ipv6),
    }
}

/// The format in which a proxy accepts listeners.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ListenerFormat {
    /// Istio's own filters that the proxy has.
    pub(super) istio: IstioFilters,
    /// Whether the proxy reports service metrics.
    pub(super) counts: bool,
    /// The way in which connections are redirected to the proxy.
    pub(super) interception: Interception,
    /// Whether the proxy cannot listen on privileged ports.
    pub(super) is_unprivileged: bool,
    /// Default idle timeout of a connection.
    pub(super) idle_timeout: Option<Duration>,
}

impl ListenerFormat {
    pub(super) fn for_proxy(proxy: &Proxy) -> Self {
        // Clients connect to a router directly, without redirection.
        let interception = match proxy.kind {
            ProxyType::Sidecar => proxy.interception,
            ProxyType::Router => Interception::default(),
        };
        let &Proxy { istio_filters, reports_services, is_unprivileged, idle_timeout, .. } = proxy;
        Self {
            istio: istio_filters,
            counts: reports_services,
            interception,
            is_unprivileged,
            idle_timeout,
        }
    }
}
