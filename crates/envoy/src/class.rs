//! What proxies have in common that share listeners and routes.

use std::time::Duration;

use strait_mesh::push::view::ViewKey;
use strait_model::{ClusterId, Interception, IstioFilters, Namespace, Proxy, ProxyType};
use strait_rules::traffic::Selection;

/// Proxies that share addresses, listeners and routes. What is kept for a class was made at a version of the
/// definitions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Class {
    pub(super) cluster: ClusterId,
    /// Empty where it doesn't matter.
    pub(super) namespace: Namespace,
    /// The selectors of rules that select them.
    pub(super) selection: Selection,
    /// Whether they speak IPv4, and IPv6.
    pub(super) families: (bool, bool),
}

/// The class of a view.
pub(super) fn class_of(view: &ViewKey) -> Class {
    Class {
        cluster: view.cluster.clone(),
        namespace: view.namespace.clone(),
        selection: view.selection.clone(),
        families: (view.ipv4, view.ipv6),
    }
}

/// In which form a proxy takes listeners.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ListenerFormat {
    /// Those of Istio's own filters that they have.
    pub(super) istio: IstioFilters,
    /// How connections come to them.
    pub(super) interception: Interception,
    /// Whether they can't listen at privileged ports themselves.
    pub(super) is_unprivileged: bool,
    /// How long a connection may be silent where nothing else says it.
    pub(super) idle_timeout: Option<Duration>,
}

impl ListenerFormat {
    pub(super) fn of(proxy: &Proxy) -> Self {
        // A router's are made to it.
        let interception = match proxy.kind {
            ProxyType::Sidecar => proxy.interception,
            ProxyType::Router => Interception::default(),
        };
        let &Proxy { istio_filters, is_unprivileged, idle_timeout, .. } = proxy;
        Self { istio: istio_filters, interception, is_unprivileged, idle_timeout }
    }
}
