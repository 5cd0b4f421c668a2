//! 102x: routes.

use super::code::Code;

codes! {
    /// VirtualService: spec.hosts.
    ROUTE_HOST_INVALID = "STR1020", "a host of a VirtualService that it doesn't get",
        "Correct or remove the host that is named.", "\
Each host is read by itself: one that is no host, is there twice, or is `*` for sidecars, costs only
itself. The others hold.";

    /// A rule with a value that Envoy refuses.
    ROUTE_REFUSED = "STR1021", "a rule holds a value that Envoy refuses",
        "Correct the field that is named.", "\
Envoy refuses a whole table of routes for one wrong value in it: all services of the port would keep old
routes, or after a restart have none. So the last valid version of a VirtualService stays, as a whole.
Without one the rule is as if absent, unless it blocks (a direct response of 400 and above, or an abort of
all requests with such a status): then it answers 500. A rule of the Gateway API answers 500. All other
rules hold.";

    /// A condition with a value that Envoy refuses.
    MATCH_REFUSED = "STR1022", "a condition that Envoy refuses, or that nothing can fit",
        "Correct the condition that is named.", "\
A regular expression has the syntax of RE2, without look-around and references, in at most 1024 bytes;
names of headers are tokens. The last valid version of a VirtualService stays, as a whole. Without one its
rule is as if absent, unless it blocks (a direct response of 400 and above, or an abort of all requests
with such a status): then what fits the other conditions of the same match is answered 500, as with a
route of the Gateway API. Connections that the condition would take are left to other rules.";

    /// A rule after a rule for all requests.
    RULE_UNREACHABLE = "STR1023", "a rule that is never asked",
        "Put the rule before the one that takes every request.", "\
Of the rules of one VirtualService the first that fits decides. One without a condition takes every
request, and those behind it none.";

    /// Two objects with one host.
    HOST_OF_ANOTHER = "STR1024", "a host belongs to another VirtualService",
        "Merge the two, delegate from one to the other, or have both hold: serve --join-virtual-services", "\
Sidecars follow one VirtualService for a host: one that is private to the namespace before one that is
exported to it by name, that before one for everybody, and of equals the oldest, then by name and
namespace. Rules of two are never mixed there, unless serve has --join-virtual-services.";

    /// A missing delegate.
    DELEGATE_MISSING = "STR1025", "a rule delegates to what isn't there",
        "Create the VirtualService that is named, without hosts, and export it to this one's namespace.", "\
A rule that delegates stands for the rules of another VirtualService, which has no hosts and is visible
from the namespace of the one that delegates. Where there is none the rule is as if it were absent, and
the next one decides.";

    /// A conflict between a rule and its delegate.
    DELEGATE_CONFLICT = "STR1026", "a delegate's rule can't be joined with the rule that names it",
        "Make the delegate's conditions narrower than those of the rule, or leave them out.", "\
A request must fit both the rule that delegates and the delegate's own. Where the two contradict each
other, or both have a regular expression for one thing, the delegate's rule is left out. A delegate
doesn't delegate further.";

    /// An invalid destination.
    DESTINATION_INVALID = "STR1027", "a destination that can't be one",
        "Name one host, a port from 1 to 65535, and a subset of letters, digits, - . and _", "\
Its share of requests is answered 500, and of connections closed; shares of other destinations stay what
they are.";

    /// Envoy's limit for regular expressions.
    REGEX_LONG = "STR1029", "an expression that only some Envoys take",
        "Shorten it, or start all proxies with the bootstrap of: strait proxy bootstrap", "\
RE2 makes a program of an expression, and Envoy refuses a table of routes with a program of more than
100 instructions, unless its bootstrap says otherwise by `re2.max_program_size.error_level`. The
bootstraps of Strait and of Istio set it to 32768. A proxy with another bootstrap keeps the routes that
it had.";

    /// A known field without effect.
    ROUTE_PART_LOST = "STR1028", "a part of a rule has no effect",
        "Correct or remove the field that is named.", "\
It says what can't be followed and what is harmless to leave out. The rest of the rule holds.";
}
