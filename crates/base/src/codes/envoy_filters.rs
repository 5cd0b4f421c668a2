//! 107x and 1081: EnvoyFilters.

use super::code::Code;

codes! {
    /// A patch with an unsupported target, operation or place.
    ENVOY_FILTER_FIELD = "STR1076", "a part of an EnvoyFilter that is not followed",
        "Do what the reason names instead, or put the filter first or before the router (docs/guide/traffic.md).", "\
Of an EnvoyFilter the patches of HTTP filters are followed that put one first (INSERT_FIRST) or right before
the router (INSERT_BEFORE), and those that MERGE something into the HTTP connection manager, by context and
port of the listener, and those that ADD an upstream cluster. Each patch is taken by itself: the others
of the object hold. Other patches name parts of what Strait makes, which are no promise: they change with
its versions.";

    /// A filter that Envoy refuses or Strait does not support.
    ENVOY_FILTER_VALUE = "STR1077", "a filter of an EnvoyFilter that is not put in",
        "Mend the field that is named; docs/guide/traffic.md lists the filters that are followed.", "\
An Envoy that refuses one filter refuses the whole listener, and a new pod has none then. So only filters
are put in that every Envoy has and that none refuses: each is held to the rules of Envoy's API, and to what
Envoy checks when it makes the filter. Scripts in Lua may define functions and constants at their top level
and do nothing else there, since an Envoy runs that once as it loads them.";

    /// The upstream cluster of an `ext_authz` filter.
    ENVOY_FILTER_UPSTREAM = "STR1081", "a filter of an EnvoyFilter asks by an upstream cluster that isn't there",
        "Name the service as outbound|PORT||HOST, with a port that it has, and export it to those proxies.", "\
A filter of external authorization asks by the upstream cluster that it names. That of a service comes along
to every proxy that has the filter, whatever its Sidecar imports and its Gateways lead to. One that isn't
there gives no answer: requests are denied, or with failure_mode_allow pass unasked. Other names than those of
services only the proxy's own bootstrap can have, of which nothing is known here.";
}
