//! 104x, 1050 to 1056, 1059, 1070, 1071, 1078 to 1080, 1084, 1089 and 109x: the state of objects of the
//! traffic configuration in combination with others.

use super::code::Code;

codes! {
    /// An object without any effect.
    OBJECT_NO_EFFECT = "STR1059", "no part of an object has an effect",
        "Correct the parts that the other reasons name, or remove the object.", "\
No part of the object has an effect: either for the reasons that are listed next to this one, or because the
object is empty. Examples: a VirtualService without a rule that can apply, a Gateway without a server, a
Telemetry that configures nothing. The state of the object is unused.";

    /// An unsupported kind.
    KIND_UNREAD = "STR1040", "objects of this kind are stored but have no effect",
        "Remove the object if you do not need it. docs/how-to/migrate-from-istio.md describes alternatives.", "\
Strait stores this object but does not support its kind, or the feature that the object names: it does not
change the configuration of any proxy. This is not an error: other control planes that read the same store
may use the object.";

    /// A destination that does not exist.
    DESTINATION_UNKNOWN = "STR1041", "a rule routes to an unknown service",
        "Compare the name with: strait service list. Short names refer to the object's own namespace.", "\
No cluster and no ServiceEntry has a service of this name. Requests to it receive 503, or 500 if an
HTTPRoute or GRPCRoute routes them. Connections are closed. The weights of other destinations do not change.
The rule applies automatically as soon as the service exists.";

    /// A destination that is not visible to clients.
    DESTINATION_HIDDEN = "STR1042", "a rule routes to a service that is not exported to its clients",
        "Export the service to the named namespaces (networking.istio.io/exportTo), or choose another destination.", "\
Proxies only receive services that are exported to their namespaces. Requests of other proxies to this
destination receive 503.";

    /// A port that the service does not have.
    DESTINATION_PORT = "STR1043", "a rule routes to a port that the service does not have",
        "Name a port of the service as its clients see it: strait service get SERVICE", "\
The number refers to the port of the service, not to the port of pods. Without a number, the destination is
the only port of the service, or the requested port if the service has several. Requests to a missing port
receive 503.";

    /// A subset that does not exist.
    SUBSET_UNKNOWN = "STR1044", "a rule routes to a subset that the active DestinationRule does not have",
        "Add the subset to the named DestinationRule, or route to any of its subsets.", "\
For each client of a service, one DestinationRule is active: the one in the client's own namespace,
otherwise in the service's, otherwise in the root namespace. They are never merged: a rule in the client's
namespace replaces the others, including their subsets. Requests to a missing subset receive 503. A subset
that was removed from its rule stays for 30 s while a rule routes to it.";

    /// An unknown host.
    HOST_UNKNOWN = "STR1045", "no service has the host",
        "Compare the name with: strait service list. Short names refer to the object's own namespace.", "\
No cluster and no ServiceEntry has a service of this name, so the object has no effect, with one exception:
the HTTP rules of a VirtualService apply to requests on port 80 that name the host. The object applies
automatically as soon as a service of that name exists.";

    /// Another rule is active.
    RULE_SHADOWED = "STR1046", "another DestinationRule applies instead of this one",
        "Move all settings for those clients into the named rule, or delete that one.", "\
For each client of a service, one DestinationRule is active: the one in the client's own namespace,
otherwise in the service's, otherwise in the root namespace; in each namespace the one with the most
specific host, then the oldest. Objects of one namespace and host with equal exportTo and selector are
merged: if several have a policy or a subset of the same name, the oldest one applies.";

    /// Rules for a protocol that no port of the service has.
    RULE_PROTOCOL = "STR1047", "no port of the service has the protocol of the rules",
        "Declare the protocol of the port in its Service (appProtocol, or its name), or use the other list.", "\
The rules in `http` apply to HTTP ports, rules in `tls` to TLS and HTTPS ports, rules in `tcp` to all ports
that are not declared as HTTP. On a port without a declared protocol (AUTO), the rules in `http` apply to
requests, and rules in `tcp` to all other connections. On other ports the rules have no effect.";

    /// A delegate that no rule uses.
    DELEGATE_UNUSED = "STR1048", "a VirtualService has no hosts, and no rule delegates to it",
        "Add its hosts, or name it in the delegate of a rule of the VirtualService that has them.", "\
The rules of a VirtualService without hosts only replace rules that delegate to it.";

    /// A selector without a workload.
    SELECTOR_UNUSED = "STR1049", "a selector selects no workload",
        "Compare it with the labels of the pods: kubectl get pods --show-labels", "\
No known workload in the object's namespace (for a Gateway: in any namespace) has these labels. The object
applies as soon as a matching workload exists.";

    /// A static entry without endpoints.
    ENTRY_EMPTY = "STR1089", "a ServiceEntry has no endpoints",
        "Add endpoints or a workloadSelector, or use resolution DNS, with which proxies resolve the host.", "\
The resolution of the ServiceEntry is STATIC, it has no endpoints and no workloadSelector, and no other
object adds endpoints to the host. Requests to the host receive 503, and connections are closed.";

    /// The Service of another namespace.
    GRANT_MISSING = "STR1050", "a route refers to a namespace that does not allow it",
        "Create a ReferenceGrant in the namespace of the Service, from this kind and namespace, to Service.", "\
A Gateway API route may only route to a Service in another namespace if a ReferenceGrant in that namespace
allows it. Until then, the Service's share of requests receives 500, its share of connections is closed, and
no requests are mirrored to it.";

    /// An object that is exported to no namespace.
    EXPORTED_TO_NOBODY = "STR1051", "an object is exported to no namespace",
        "Correct exportTo: write * for all namespaces, . for the object's own, or names of namespaces.", "\
Proxies only receive services and rules that are exported to their namespaces. This object is exported to
none, so it has no effect.";

    /// The last valid version of an object is active.
    TRAFFIC_LAST_GOOD = "STR1052", "the last valid version of an object is active",
        "Correct the field that the other reason names, or restore the previous version.", "\
The current version cannot be read. The entire last valid version is active instead, until the object can be
read or is deleted.";

    /// An unused grant.
    GRANT_UNUSED = "STR1053", "a ReferenceGrant is not used by any route",
        "Compare its kinds, namespaces and names with the routes that should use it.", "\
A ReferenceGrant allows routes of the kinds and namespaces that it names to route to Services in its own
namespace. No known route uses it.";

    /// An unused WorkloadEntry.
    WORKLOAD_UNUSED = "STR1054", "a WorkloadEntry is not selected by any service",
        "Compare its labels with the workloadSelector of ServiceEntries in its namespace.", "\
A WorkloadEntry is an endpoint of the ServiceEntries and Services in its namespace that select its labels.
None selects this one.";

    /// A subset without endpoints.
    SUBSET_EMPTY = "STR1055", "a subset has no endpoints of the service",
        "Compare its labels with the labels of the pods: kubectl get pods --show-labels", "\
A subset contains the endpoints that have all its labels, from the pod, the entry or the location. The
service has endpoints, but none matches: requests to the subset receive 503 until one does.";

    /// A subset of a client's own rule.
    SUBSET_WITHHELD = "STR1058", "a subset is limited to the client's network",
        "Give the subset the same labels in the DestinationRule of the service's namespace.", "\
Gateways of other networks only know the subsets of the DestinationRule in the service's namespace (or in
the root namespace). A rule in a client's namespace may define the subset with other labels, or an
additional subset. A gateway would then forward to other endpoints. Therefore clients only receive the
endpoints in their own network; endpoints in other networks are withheld.";

    /// A missing right.
    ROUTE_STATUS_DENIED = "STR1056", "Strait may not write the status of routes",
        "Grant the control plane patch of the status of httproutes, grpcroutes, tlsroutes and tcproutes, as in the
chart.", "\
Strait writes the state of routes on Services into their status, for users of kubectl. Routes work without
it, and `strait check config` and /debug/config show the same information. Strait retries after ten minutes.";

    /// A held configuration.
    HELD = "STR1070", "the configuration is on hold: changes of objects are pending",
        "See the pending changes: strait history list. Apply them: strait history release", "\
An operator holds a configuration (`strait history pin`, `strait history rollback`): proxies keep it,
whatever traffic rules, mesh config and mesh networks change. Changes are read and validated, and apply once
the hold is released. Changes of pods, endpoints, clusters and certificates apply as usual, and so do access
policies, unless the hold includes them. Do not hold a configuration longer than necessary: changes of
objects have no effect meanwhile.";

    /// A held configuration that a restart could not restore.
    HOLD_LOST = "STR1071", "the configuration that was held before the start cannot be restored",
        "Hold the configuration again (strait history rollback VERSION), or confirm that there is no hold:
strait history release", "\
The file `hold.json` of the state directory preserves a held configuration over a restart. It exists but
cannot be read completely, so the held configuration is unknown: the current objects are active, as if it
had been released. The file stays until the next hold or release.";

    /// A missing right.
    OBJECT_STATUS_DENIED = "STR1078", "Strait may not write the status of Istio's kinds",
        "Grant the control plane patch of the status of the kind (rbac.statuses in the chart), or drop --write-status.", "\
With --write-status, Strait writes the state of each object of Istio's kinds in the config cluster into its
status, for users of kubectl. The mesh works without it, and `strait check config` and /debug/config show
the same information. The status of other kinds is written if the rights exist. Strait retries after ten
minutes.";

    /// IST0104.
    GATEWAY_PORT_UNSERVED = "STR1079", "no Service of a Gateway's routers has the port",
        "Add the port to the Service of the routers, or use a port of that Service in the Gateway.", "\
The port number of a server refers to the routers' Service, which maps it to a port of the pod. The Services
that select the routers have no such port: the routers listen on that number themselves, if they can
(STR1084), and clients cannot reach it through the Service or its load balancer.";

    /// IST0161.
    GATEWAY_CREDENTIAL = "STR1080", "a credential of a Gateway cannot be used",
        "See the cause in the reason, and check the Secret: kubectl get secret NAME -o yaml", "\
A server of a Gateway terminates TLS with the certificate in a Secret in the namespace of its routers, in
their own cluster. A router has requested it and received none, or keeps using the previous one. Servers
with other credentials work. Connections to this server are closed until there is a certificate.";

    /// UNPRIVILEGED_POD: an omitted listener.
    PORT_PRIVILEGED = "STR1084", "a proxy cannot listen on a port below 1024",
        "Use a port from 1024 on. For a Gateway, map this port of the routers' Service to this targetPort.", "\
The node of the named proxy states UNPRIVILEGED_POD: it cannot listen below 1024, and would reject this
listener. Therefore this listener is omitted, and the others apply. Connections that are redirected into a
sidecar do not need the port. A proxy that may listen on it must not have this setting
(ISTIO_META_UNPRIVILEGED_POD).";

    /// A gradual rollout in progress.
    ROLLOUT_RUNS = "STR1090", "a change is being rolled out gradually",
        "See its progress: strait history rollout. Apply it to all proxies at once: strait history rollout --promote", "\
The policy file contains `rollout`: a change of traffic rules, mesh config or mesh networks first applies to
a percentage of proxies, then step by step to more, and finally to all. Until then the other proxies keep
the previous configuration. A further change restarts the rollout from the configuration of all proxies.";

    /// A stopped rollout.
    ROLLOUT_STOPPED = "STR1091", "a rollout was stopped: the previous configuration is on hold",
        "Fix the objects, then roll out again: strait history release", "\
Proxies rejected a change that was being rolled out, or the change removed endpoints, above the limit of
`rollout.stopAt` in the policy file. All proxies have the previous configuration again. It is on hold, as
after `strait history pin`: changes of objects are pending. The reason contains the proxy with the rejected
resource, or the service that lost endpoints. `strait history release` rolls out the current objects,
starting at the first step.";

    /// The lost base of a rollout.
    ROLLOUT_LOST = "STR1092", "the configuration of all proxies from before the start cannot be restored",
        "Check the active configuration: strait history list. The next change is rolled out gradually again.", "\
With `rollout` in the policy file, `settled.json` in the state directory preserves the configuration of all
proxies over a restart. It exists but cannot be read completely: the current objects apply to all proxies. A
rollout that was in progress before the start has therefore reached all proxies. This message stays until
the next change is rolled out.";

    /// Replicas with different held configurations.
    HOLD_NOT_SHARED = "STR1093", "the held configuration cannot be shared with other replicas",
        "Grant the control plane get, create, update and patch of these Secrets. Until then, run the command for
each replica: --replica NAME", "\
Replicas share the held configuration through the Secrets `strait-hold` and `strait-hold-0` to
`strait-hold-15` in the system namespace of the config cluster. They cannot be read or written, or contain a
configuration that this replica cannot hold. Until this is fixed, proxies receive the configuration that
their replica holds. The chart's role contains the rights. Strait retries every five seconds.";
}
