//! 104x, 1050 to 1056, 1059, 1070, 1071, 1078 to 1080, 1084 and 109x: what an object of the traffic configuration comes to among all others.

use super::code::Code;

codes! {
    /// An object of which each part has no effect.
    OBJECT_NO_EFFECT = "STR1059", "no part of an object has an effect",
        "Correct the parts that the other reasons name, or remove the object.", "\
Every part of the object has no effect, for the reasons that are given next to this one, or it has no part
at all: a VirtualService without a rule that can apply, a Gateway without a server, a Telemetry that
configures nothing. The state of the object is unused.";

    /// A kind that nobody reads.
    KIND_UNREAD = "STR1040", "objects of this kind are kept, and hold for nobody",
        "Remove it if you don't need it; docs/guide/migrate-from-istio.md says what is there instead.", "\
Strait keeps what the stores have of this kind, or of what it names, and doesn't follow it: no proxy is
given anything otherwise because of it. It is no error: other control planes that read the same store
may follow it.";

    /// A destination that isn't there.
    DESTINATION_UNKNOWN = "STR1041", "a rule leads to a service that nobody knows",
        "Compare the name with: strait service list. Short names are of the object's own namespace.", "\
No cluster and no ServiceEntry has a service of this name. Requests that go there are answered 503,
those of an HTTPRoute or GRPCRoute 500; connections are closed. The shares of other destinations stay
what they are. The rule leads there by itself as soon as the service comes.";

    /// A destination that clients may not see.
    DESTINATION_HIDDEN = "STR1042", "a rule leads to a service that is not exported to its clients",
        "Export the service to the namespaces named (networking.istio.io/exportTo), or lead elsewhere.", "\
Proxies are given the services that are exported to their namespaces. Requests of others that a rule
leads there are answered 503.";

    /// A port that the service lacks.
    DESTINATION_PORT = "STR1043", "a rule leads to a port that the service doesn't have",
        "Name a port of the service, as its clients see it: strait service get SERVICE", "\
The number is that of the service, not of the pods behind it. Where none is named it is the only port
that the service has, and of a service with several that of the host that is asked for. Requests that go
to a port that isn't there are answered 503.";

    /// A subset that isn't there.
    SUBSET_UNKNOWN = "STR1044", "a rule leads to a subset that the DestinationRule in force doesn't have",
        "Add the subset to the DestinationRule that is named, or lead to one that it has.", "\
For a client of a service one DestinationRule is in force: of the client's own namespace, else of the
service's, else of the root namespace. They are never mixed: a rule of the client's namespace that says
only something else takes the subsets of the others away. Requests to a subset that isn't there are
answered 503. One that was taken out of its rule stays for 30 s, as long as something leads there.";

    /// Nothing has that name.
    HOST_UNKNOWN = "STR1045", "a host that no service is",
        "Compare the name with: strait service list. Short names are of the object's own namespace.", "\
No cluster and no ServiceEntry has a service of this name, so there is nothing that the object could
hold for, but for a VirtualService's rules for requests, which hold where a request to port 80 names the
host. It holds by itself as soon as a service of that name comes.";

    /// Another rule is in force.
    RULE_SHADOWED = "STR1046", "another DestinationRule counts in place of this one",
        "Put all that shall hold for those clients into the rule that is named, or delete that one.", "\
For a client of a service one DestinationRule is in force: of the client's own namespace, else of the
service's, else of the root namespace; in each that of the most specific host, then the oldest. Objects
of one namespace and host, with the same exportTo and selector, are joined: of a policy, or a subset,
that several of these have, the oldest one's counts.";

    /// Requests where there are none, or bytes.
    RULE_PROTOCOL = "STR1047", "rules for what no port of the service carries",
        "Declare the protocol of the port in its Service (appProtocol, or its name), or use the other list.", "\
The rules of `http` hold on ports that carry HTTP, those of `tls` on ports of TLS and HTTPS, those of
`tcp` on all that are not declared as HTTP. On a port of which nobody says what it carries (AUTO)
requests go by the rules of `http`, and all else by those of `tcp`. On other ports they say nothing.";

    /// Nobody delegates.
    DELEGATE_UNUSED = "STR1048", "a VirtualService without hosts to which none delegates",
        "Name its hosts, or name it in the delegate of a rule of the VirtualService that has them.", "\
Rules of a VirtualService without hosts hold in the place of rules that delegate to it, and nowhere
else.";

    /// No workload.
    SELECTOR_UNUSED = "STR1049", "a selector that selects no workload",
        "Compare it with the labels of the pods: kubectl get pods --show-labels", "\
None of the workloads that Strait knows in the object's namespace (for a Gateway: in any) carries these
labels. It holds as soon as one comes.";

    /// Another namespace's Service.
    GRANT_MISSING = "STR1050", "a route leads into a namespace that doesn't let it",
        "Create a ReferenceGrant in the namespace of the Service, from this kind and namespace, to Service.", "\
A route of the Gateway API may lead to a Service of another namespace only where a ReferenceGrant there
says so. Until then its share of requests is answered 500, and of connections closed; no copies are sent
there.";

    /// Exported to nobody.
    EXPORTED_TO_NOBODY = "STR1051", "an object that is exported to nobody",
        "Correct exportTo: * for all, . for its own namespace, or names of namespaces.", "\
Proxies are given what is exported to their namespaces, be it services or rules. This object is exported
to none, so that it holds for nobody, wherever it is.";

    /// The last good form counts.
    TRAFFIC_LAST_GOOD = "STR1052", "an object counts as it was before it was changed",
        "Correct the field that the other reason names, or put the object back as it was.", "\
Its present form can't be read. What was last good of it is in force instead, whole, until it can be
read again or is deleted.";

    /// A grant without use.
    GRANT_UNUSED = "STR1053", "a ReferenceGrant that no route needs",
        "Compare its kinds, namespaces and names with the routes that shall lead there.", "\
A ReferenceGrant lets routes of the kinds and namespaces that it names lead to Services of its own.
None of the routes that are known does so by it.";

    /// A WorkloadEntry without use.
    WORKLOAD_UNUSED = "STR1054", "a WorkloadEntry that no service has",
        "Compare its labels with the workloadSelector of ServiceEntries of its namespace.", "\
It is an endpoint of the ServiceEntries, and Services, of its namespace that select its labels. None
does.";

    /// A subset without endpoints.
    SUBSET_EMPTY = "STR1055", "a subset that no endpoint of the service is of",
        "Compare its labels with those of the pods: kubectl get pods --show-labels", "\
A subset has the endpoints whose labels, of the pod or the entry or of where it is, hold all of the
subset's. None does, while the service has endpoints: requests that are led to the subset are answered 503
until one comes.";
    /// A subset of a client's own rule.
    SUBSET_WITHHELD = "STR1058", "a subset that stays in the client's network",
        "Give the subset the same labels in the DestinationRule of the service's namespace.", "\
Gateways of other networks know the subsets of the DestinationRule in the service's namespace (or of the
root namespace's). A rule in a client's namespace may give such a name other labels, or have one that the
other rule lacks: a gateway would lead to other endpoints. So clients are given the endpoints of their own
network only; those of other networks are withheld.";

    /// A right that is missing.
    ROUTE_STATUS_DENIED = "STR1056", "statuses of routes may not be written",
        "Let the control plane patch statuses of httproutes, grpcroutes, tlsroutes and tcproutes, as the chart does.", "\
What becomes of routes on Services is written into their status, for those who look with kubectl. Routes
work without it, and `strait check config` and /debug/config say the same. It is tried again after ten
minutes.";

    /// Configuration that is held.
    HELD = "STR1070", "the configuration is held, and what objects say now waits",
        "See what waits: strait history list. Let it count: strait history release", "\
Somebody holds a configuration (`strait history pin`, `strait history rollback`): proxies go on with it,
whatever traffic rules, mesh config and mesh networks say since. These are read and judged all the same, and
count once the hold is released. Pods, endpoints, clusters and certificates go on, and so do access policies
unless they are held as well. A configuration is not held for long without a reason: whoever changes an object
waits for its effect in vain.";

    /// A hold that a restart could not restore.
    HOLD_LOST = "STR1071", "what was held before the start can't be told",
        "Hold it again (strait history rollback), or say that nothing is held: strait history release", "\
The file `hold.json` of the state directory has what is held outlast a restart. It is there and can't be read
whole, so that nobody knows what it was: what objects say now is in force instead, as if it had been released.
The file stays where it is until something is held again or released.";

    /// A right that is missing.
    OBJECT_STATUS_DENIED = "STR1078", "statuses of Istio's kinds may not be written",
        "Let the control plane patch the status of the kind named (the chart's rbac.statuses), or drop --write-status.", "\
With --write-status each object of Istio's kinds in the config cluster says in its status what becomes of it,
for those who look with kubectl. The mesh works without it, and `strait check config` and /debug/config say
the same. Other kinds, for which the right is there, are written. It is tried again after ten minutes.";

    /// IST0104.
    GATEWAY_PORT_UNSERVED = "STR1079", "a port of a Gateway that no Service of its routers has",
        "Add the port to the Service of the routers, or name one of its ports in the Gateway.", "\
The number of a server's port is that of the routers' Service, which leads it to a port of the pod. The
Services that select the routers have no such port: the routers listen at that number themselves, if they can
(STR1084), and clients that call the Service, or its load balancer, don't come there.";

    /// IST0161.
    GATEWAY_CREDENTIAL = "STR1080", "a credential of a Gateway that can't be used",
        "See what keeps it from being used in the reason, and compare the Secret: kubectl get secret NAME -o yaml", "\
A server of a Gateway ends TLS with the certificate of a Secret in the namespace of its routers, in their own
cluster. A router has asked for it, and was given none, or goes on with the one from before. Servers with
other credentials work; this one's clients are closed until there is a certificate.";

    /// UNPRIVILEGED_POD: a listener that is left out.
    PORT_PRIVILEGED = "STR1084", "a port below 1024 at which a proxy can't listen",
        "Use a port from 1024; for a Gateway, give a Service of its routers this port with such a targetPort.", "\
The node of the proxy that is named says UNPRIVILEGED_POD: it can't listen below 1024 itself, and would
answer with a refusal if it were sent a listener there. So this one is left out, and the others hold.
Connections that are redirected into a sidecar need no port of its own. A proxy that may listen there must
not say it (ISTIO_META_UNPRIVILEGED_POD).";

    /// A change that is let out to a share of proxies.
    ROLLOUT_RUNS = "STR1090", "a change is given to a share of proxies first",
        "See how far it is: strait history rollout. Give it to all at once: strait history rollout --promote", "\
The policy file has `rollout`: a change of traffic rules, mesh config or mesh networks is given to a share of
proxies, then step by step to more, and to all in the end. Until then all others go on with what was in force
before. A further change begins anew, from the same configuration for all.";

    /// A roll-out that was stopped.
    ROLLOUT_STOPPED = "STR1091", "a roll-out was stopped, and what was in force before is held",
        "Mend what is wrong, then let it out again: strait history release", "\
A change that was given to a share of proxies was refused by some of them, or took endpoints away, more than
`rollout.stopAt` of the policy file allows. The share was given back what was in force before, which is held
for all since, as by `strait history pin`: what objects say waits. The reason says which proxy refused what,
or which service lost endpoints. `strait history release` lets out what objects say then, from the first
share on.";

    /// What counted for all before a restart, which a roll-out is compared with.
    ROLLOUT_LOST = "STR1092", "what counted for all proxies before the start can't be told",
        "Look at the configuration in force; the next change is let out in shares again.", "\
With `rollout` in the policy file, `settled.json` of the state directory has what counts for all proxies
outlast a restart. It is there and can't be read whole: all are given what objects say. What was being let out
to a share before the start, if anything was, has come to all by that. It is said until the next change is let
out.";

    /// Replicas hold different configurations.
    HOLD_NOT_SHARED = "STR1093", "the other replicas can't be told what is held",
        "Let the control plane get, create, update and patch that Secret; until then tell each replica the same.", "\
Replicas tell each other what is held through the Secrets `strait-hold` and `strait-hold-0` to
`strait-hold-15` in the system namespace of the config cluster. They can't be read or written, or say what
this replica can't hold: until that is mended, proxies are given what the replica holds that they are
connected to.
The chart's role has the rights; it is tried again every five seconds.";
}
