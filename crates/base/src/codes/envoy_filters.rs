//! 1032, 107x and 1081: EnvoyFilters.

use super::code::Code;

codes! {
    /// A patch whose conditions no connected proxy meets.
    ENVOY_FILTER_UNMATCHED = "STR1032", "no connected proxy meets the conditions of a patch",
        "Compare match.context and match.proxy with the proxies: strait proxy list", "\
A patch applies to proxies that its EnvoyFilter selects, and of these to those that meet its `match`:
`context` selects gateways or the traffic of sidecars, `proxyVersion` is a regular expression for the version
of Istio's agent, and `metadata` must be equal. No connected proxy meets all of them, so the patch has no
effect. It applies as soon as a matching proxy connects.";

    /// A patch with an unsupported target, operation or place.
    ENVOY_FILTER_FIELD = "STR1076", "a part of an EnvoyFilter is not supported",
        "Follow the alternative in the reason, or insert the filter first or before the router.", "\
Strait supports these patches of an EnvoyFilter, by context and port of the listener: HTTP filters that are
inserted first (INSERT_FIRST) or directly before the router (INSERT_BEFORE), MERGE into the HTTP connection
manager, and ADD of an upstream cluster. Each patch is evaluated separately; the other patches of the object
apply. Other patches refer to parts of Strait's generated configuration, which may change with each version.";

    /// A filter that Envoy refuses or Strait does not support.
    ENVOY_FILTER_VALUE = "STR1077", "a filter of an EnvoyFilter is omitted",
        "Correct the named field. docs/reference/traffic-support.md lists the supported filters.", "\
An Envoy that refuses one filter refuses the entire listener, and a new pod then has no listener. Therefore
Strait only inserts filters that every Envoy contains and accepts: it checks each filter against the rules
of Envoy's API and against the checks of Envoy's filter code. Lua scripts may only define functions and
constants at their top level, because Envoy executes it when it loads the script.";

    /// The upstream cluster of an `ext_authz` filter.
    ENVOY_FILTER_UPSTREAM = "STR1081", "a filter of an EnvoyFilter queries an upstream cluster that does not exist",
        "Write the service as outbound|PORT||HOST, with a port of the service, and export it to those proxies.", "\
An external authorization filter queries the upstream cluster that it names. Every proxy with the filter
receives the cluster of a service, whatever its Sidecar imports and its Gateways route to. A missing cluster
never responds: requests are denied, or pass unchecked with failure_mode_allow. Clusters with other names
can only exist in the proxy's own bootstrap, which Strait does not know.";
}
