//! 1057, 1066 to 1068, and 1083: Ingresses of Kubernetes.

use super::code::Code;

codes! {
    /// Ingress: the class.
    INGRESS_CLASS = "STR1066", "an Ingress belongs to another controller",
        "Nothing, if this is intended. Otherwise name an IngressClass with the controller istio.io/ingress-controller.", "\
Strait serves an Ingress if its annotation kubernetes.io/ingress.class equals ingressClass of the mesh
config (default: istio), or if its IngressClass has the controller istio.io/ingress-controller. Ingresses
without a class are served if this is the cluster's default class, or if the mesh config has
ingressControllerMode: DEFAULT. With OFF no Ingress is served.";

    /// Ingress: spec.rules, spec.defaultBackend, spec.tls.
    INGRESS_PART = "STR1067", "a part of an Ingress has no effect",
        "Correct the named field. strait check config shows the configuration that is served until then.", "\
Each host, path, backend and entry of tls is evaluated separately: an invalid part affects only itself, and
the others apply. Requests to an invalid backend receive 500. An entry of tls needs a secretName of a Secret
in the namespace of the routers.";

    /// Ingress: spec.rules.host with a wildcard.
    INGRESS_WILDCARD = "STR1057", "a wildcard host of an Ingress matches more names than Kubernetes documents",
        "List the hosts explicitly, if names with several labels before the domain must not be served.", "\
Kubernetes documents that the star in the host of an Ingress matches one label: *.example.com matches
a.example.com but not a.b.example.com. In Envoy and Istio, the star matches one label or more: a
request for a.b.example.com is served by the rules of the wildcard, unless another host is more specific.";

    /// Ingress: two objects with the same path.
    INGRESS_PATH_TAKEN = "STR1068", "another Ingress has the same path of the same host",
        "Merge the two, or give either of them another path.", "\
All Ingresses of a host are served together: the longest matching path applies, and an exact path wins over
a prefix. Of two equal paths, the path in the oldest Ingress applies, and within an Ingress the first path.";

    /// A missing right.
    INGRESS_STATUS_DENIED = "STR1083", "Strait may not write the status of Ingresses",
        "Grant the control plane patch of ingresses/status in networking.k8s.io, as the chart does.", "\
The status of an Ingress that the mesh serves contains its addresses (status.loadBalancer). Strait copies
them from the Service in the root namespace that the mesh config names (ingressService, default:
istio-ingressgateway). Ingresses are served without a status, too. Strait retries after ten minutes.";
}
