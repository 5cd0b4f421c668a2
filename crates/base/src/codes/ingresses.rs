//! 1057, 1066 to 1068, and 1083: Ingresses of Kubernetes.

use super::code::Code;

codes! {
    /// Ingress: whose it is.
    INGRESS_CLASS = "STR1066", "an Ingress of another controller",
        "Nothing, where that is meant; else name an IngressClass whose controller is istio.io/ingress-controller.", "\
Followed are Ingresses whose annotation kubernetes.io/ingress.class is ingressClass of the mesh config
(istio unless said), and those of an IngressClass whose controller is istio.io/ingress-controller. Those
that name no class are followed where that is the cluster's default class, or where the mesh config has
ingressControllerMode: DEFAULT. With OFF none is.";

    /// Ingress: spec.rules, spec.defaultBackend, spec.tls.
    INGRESS_PART = "STR1067", "a part of an Ingress that has no effect",
        "Correct the field that is named; strait check config says what is served until then.", "\
Each host, path, backend and entry of tls is read by itself: what can't be followed costs itself, and the
others hold. Requests to a backend that can't be used are answered 500. An entry of tls needs a
secretName, of a Secret in the namespace of the routers.";

    /// Ingress: spec.rules.host with a wildcard.
    INGRESS_WILDCARD = "STR1057", "a wildcard host of an Ingress matches more names than Kubernetes documents",
        "Name the hosts, if names with several labels in place of the star must not be served.", "\
Kubernetes documents that the star in the host of an Ingress stands for one label: *.example.com is
a.example.com and not a.b.example.com. Envoy's wildcards stand for one label or more, and as in Istio such
a request is served by the rules of the wildcard, unless another host is more specific.";

    /// Ingress: two objects, one path.
    INGRESS_PATH_TAKEN = "STR1068", "another Ingress has the same path of the same host",
        "Merge the two, or give one another path.", "\
All Ingresses of a host are served together: the longest path that fits decides, exact before prefix.
Of two that are alike the oldest Ingress has it, and in an object the first.";

    /// A right that is missing.
    INGRESS_STATUS_DENIED = "STR1083", "statuses of Ingresses may not be written",
        "Let the control plane patch ingresses/status of networking.k8s.io, as the chart does.", "\
Ingresses that the mesh serves say in status.loadBalancer at which addresses they are reached: those of
the Service in the root namespace that the mesh config names (ingressService, istio-ingressgateway unless
said). They are served without it. It is tried again after ten minutes.";
}
