//! 102x: routes.

use super::code::Code;

codes! {
    /// VirtualService: spec.hosts.
    ROUTE_HOST_INVALID = "STR1020", "a host of a VirtualService has no effect",
        "Correct or remove the named host.", "\
Each host is evaluated separately: a host that is invalid, duplicate, or `*` for sidecars affects only
itself. The others apply.";

    /// A rule with a value that Envoy refuses.
    ROUTE_REFUSED = "STR1021", "a rule has a value that Envoy refuses",
        "Correct the named field.", "\
Envoy refuses an entire route configuration for one invalid value: all services of the port would keep their
old routes, or have none after a restart. Therefore the last valid version of the entire VirtualService
stays active. Without one, the rule is ignored, unless it blocks requests (a direct response of 400 and
above, or an abort of all requests with this status): then it responds with 500. A rule of the Gateway API
responds with 500. All other rules apply.";

    /// A condition with a value that Envoy refuses.
    MATCH_REFUSED = "STR1022", "Envoy refuses a condition, or the condition cannot match",
        "Correct the named condition.", "\
A regular expression must have RE2's syntax, without look-around and references, and at most 1024 bytes.
Names of headers must be tokens. The last valid version of the entire object stays active. Without one, its
rule is ignored, unless it blocks requests (in a VirtualService, a direct response of 400 and above, or an
abort of all requests with this status; in a route of the Gateway API, a rule without backends): then requests
that meet the other conditions of the match receive 500. Other rules apply to the connections that the
condition would match.";

    /// A rule after a rule for all requests.
    RULE_UNREACHABLE = "STR1023", "a rule is never evaluated",
        "Move the rule before the named one, merge the two objects, or give one of the two another host or condition.", "\
The first matching rule of a VirtualService applies. A rule without a condition matches every request, so
later rules have no effect. At gateways, the rules of all VirtualServices and Ingresses with one host are
joined, and the same applies to the Gateway API's routes of one Service: of two equal conditions, the one of
the older object applies. In these routes, exact paths come first, then prefixes, then regular expressions:
the prefix / hides them. With httpsRedirect, a Gateway redirects a host for all Gateways of the port.";

    /// Two objects with one host.
    HOST_OF_ANOTHER = "STR1024", "a host belongs to another VirtualService",
        "Merge the two, delegate from one to the other, or let both apply: serve --join-virtual-services", "\
Sidecars use one VirtualService for a host. An object that is private to their namespace comes first, then an
object that is exported to it by name, then an object for all namespaces. Among equals, the oldest applies,
then the first by name and namespace. The rules of two objects are never mixed unless serve has
--join-virtual-services.";

    /// A missing delegate.
    DELEGATE_MISSING = "STR1025", "a rule delegates to a VirtualService that does not exist",
        "Create the named VirtualService without hosts, and export it to this one's namespace.", "\
A rule that delegates is replaced by the rules of another VirtualService, which must have no hosts and be
visible in the namespace of the delegating one. Without one, the rule is ignored, and the next one
applies.";

    /// A conflict between a rule and its delegate.
    DELEGATE_CONFLICT = "STR1026", "a delegate's rule conflicts with the rule that names it",
        "Make the delegate's conditions narrower than the rule's own, or remove them.", "\
A request must match both the delegating rule and the delegate's own rule. If the two contradict each other,
or both have a regular expression for the same attribute, the delegate's rule is ignored. A delegate cannot
delegate further.";

    /// An invalid destination.
    DESTINATION_INVALID = "STR1027", "a destination is invalid",
        "Name one host, a port from 1 to 65535, and a subset of letters, digits, - . and _", "\
The invalid destination keeps its weight: its share of requests receives 500, and its share of connections
is closed. The weights of other destinations do not change.";

    /// Envoy's limit for regular expressions.
    REGEX_LONG = "STR1029", "only some Envoys accept a long regular expression",
        "Shorten the expression, or start all proxies with the bootstrap of: strait proxy bootstrap", "\
RE2 compiles an expression to a program. Envoy refuses a route configuration with a program of more than 100
instructions, unless its bootstrap sets `re2.max_program_size.error_level`. The bootstraps of Strait and
Istio set it to 32768. A proxy with another bootstrap keeps its previous routes.";

    /// A known field without effect.
    ROUTE_PART_LOST = "STR1028", "a part of a rule has no effect",
        "Correct or remove the named field.", "\
The field is not supported, and ignoring it is harmless. The rest of the rule applies.";

    /// A condition that cannot be met.
    MATCH_NEVER = "STR1030", "no request meets a condition of a rule",
        "Correct or remove the named condition.", "\
Paths begin with a slash and are compared without the query. Methods have capital letters. Hosts contain no
star, and requests at gateways are for the hosts of the object. Only the proxies of namespaces to which an
object is exported receive its rules. A match with a condition that no request meets has no effect. The other
matches of the rule apply.";
}
