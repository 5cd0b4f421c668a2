//! 082x and 083x: access policies.

use super::code::Code;

codes! {
    /// A value or field of a policy.
    ACCESS_UNREADABLE = "STR0820", "an access policy cannot be read",
        "Correct the named field: strait policy status [NAMESPACE/]NAME. Strait reads the policy again automatically.", "\
A field has an invalid value or an unknown name. Without a part of it, an access policy could allow more
than intended, or deny more. Therefore Strait never ignores an invalid part silently: the last valid version
of the policy stays active, also after a restart. Other policies are not affected.";

    /// The last valid version of a policy is active.
    ACCESS_LAST_GOOD = "STR0821", "the last valid version of an access policy is active",
        "Correct what STR0820 names for the same policy, or restore its previous version.", "\
The current version cannot be read. The last valid version is active instead, on every proxy that it
selects, until the policy can be read or is deleted.";

    /// A policy without an earlier valid version.
    ACCESS_PARTLY = "STR0822", "an access policy applies partly",
        "Correct what STR0820 names for the same policy.", "\
A part of the policy cannot be read, and there is no earlier valid version. The policy never allows more
than intended:
- A rule of ALLOW that cannot be read is ignored.
- A rule of DENY or CUSTOM applies without the unreadable field, so that it denies more. If no field can be
  read, the rule is ignored, because a typing error must not stop all traffic. With --policy-errors strict,
  this rule denies everything that the policy selects.
- A PeerAuthentication is ignored. With --policy-errors strict, it accepts only mTLS.
- A rule of a RequestAuthentication refuses its tokens with 401.
- An unknown field that may restrict access, by its name or its value (presence: REQUIRED), fails closed: a
  RequestAuthentication also refuses requests without a token, a PeerAuthentication accepts only mTLS, and a
  policy with ALLOW allows nothing.";

    /// A valid part without effect.
    ACCESS_NO_EFFECT = "STR0823", "a part of an access policy has no effect",
        "Remove it, or express it differently: docs/reference/access-support.md.", "\
The part is valid but cannot have the intended effect: a selector in a PeerAuthentication of the root
namespace, a target that only applies at waypoint proxies, which Strait does not run, or that is no Gateway of
the namespace, an annotation that is not a boolean, or an unknown field of a RequestAuthentication that does
not restrict anything. The rest of the policy applies.";

    /// HTTP fields of a policy on ports without HTTP.
    ACCESS_HTTP_ON_TCP = "STR0824", "a policy matches HTTP attributes on a port without HTTP",
        "Name ports in the same operation, or declare the port's protocol in its Service.", "\
Hosts, methods, paths, headers and tokens exist only in HTTP. On a port without HTTP, or without a declared
protocol, a rule of ALLOW with such attributes allows nothing. A rule of DENY applies without these
attributes: it denies every connection that the rest of the rule matches.";

    /// DENY by identity under PERMISSIVE.
    ACCESS_PLAIN_TEXT = "STR0825", "plain text bypasses a policy that denies by identity",
        "Make the workloads STRICT with a PeerAuthentication, or allow by identity instead of denying.", "\
A client without mTLS has no identity. Rules of DENY that name principals, namespaces, accounts or trust
domains do not match it. Rules of ALLOW that only exclude identities (notPrincipals and similar) do match
it. While the workload accepts plain text (PERMISSIVE), a denied client can connect without a certificate.";

    /// CUSTOM with an unusable provider.
    ACCESS_PROVIDER = "STR0826", "the provider of a policy cannot be used",
        "Correct extensionProviders in the mesh config, or the provider's service, as the reason states.", "\
Strait denies everything that the policy's rules match, because no provider can decide on it. The provider
must be defined exactly once in extensionProviders of the mesh config, as a valid envoyExtAuthzHttp or
envoyExtAuthzGrpc. Its service must be known and visible to the policy's workloads, and have the port.
Proxies must be able to select an endpoint of the service: for a headless Service, a ServiceEntry with
resolution NONE, or a service whose DestinationRule has the load balancer PASSTHROUGH, the query would go to
the workload itself. In the logs of proxies, the names of these rules end with
-deny-due-to-bad-CUSTOM-action.";

    /// An older policy of the same level.
    ACCESS_SHADOWED = "STR0827", "an older PeerAuthentication applies instead of this one",
        "Delete either of the two.", "\
If there are several PeerAuthentications for a namespace or for the mesh, the oldest applies, then the first
by name. For several that select one workload, see STR0843 and STR0844.";

    /// A policy without a workload.
    ACCESS_SELECTS_NOBODY = "STR0828", "an access policy selects no workload",
        "Compare its selector with the labels of the pods: kubectl get pods --show-labels", "\
The labels of its selector match no known workload. The policy is active but has no effect until a matching
workload exists.";

    /// Keys of `jwksUri` that have not been fetched.
    ACCESS_KEYS = "STR0829", "the keys of a token rule are unknown",
        "See why they cannot be fetched: strait check config. Or put them into the rule, as jwks.", "\
Proxies receive the keys that verify tokens. If a rule only names their location (jwksUri) or its issuer,
Strait fetches them; for this rule it has not succeeded yet. Until then, tokens of the rule are refused with
401. Requests without a token pass as before, and AuthorizationPolicies decide on them.";

    /// Unsupported parts of a policy at a proxyless gRPC server.
    ACCESS_ON_LIBRARY = "STR0830", "a gRPC server without a proxy cannot evaluate a part of a policy",
        "Use attributes that the server supports, or run an Envoy next to it: docs/how-to/grpc-proxyless.md.", "\
A gRPC library enforces AuthorizationPolicies itself, by identity, address, port, host, method, path and
header. It does not support tokens, path templates, server names, metadata of filters, or gRPC's own
headers. A rule of ALLOW with any of these allows nothing. A rule of DENY applies without it and denies
more. RequestAuthentications have no effect: tokens are not verified, and no request is refused because of a
token.";

    /// STRICT without a certificate.
    ACCESS_WITHOUT_CERTIFICATE = "STR0831", "a gRPC server with STRICT mTLS has no certificate",
        "Add certificate_providers to its bootstrap (strait proxy bootstrap --grpc), or make the workload PERMISSIVE.", "\
Its PeerAuthentication is STRICT, but its library has no certificate and cannot use mTLS. It receives a
listener that refuses every request (PERMISSION_DENIED) instead of a listener for plain text.";

    /// CUSTOM with an HTTP provider on ports without HTTP.
    ACCESS_PROVIDER_OF_REQUESTS = "STR0832", "an HTTP provider is not queried about connections",
        "Name the HTTP ports in the rules, DENY the others, or use a gRPC provider.", "\
A provider of the kind envoyExtAuthzHttp only decides on HTTP requests. On a port without HTTP, or without a
declared protocol, a connection that the policy's rules match passes without a query. A provider of the kind
envoyExtAuthzGrpc decides on both.";

    /// Known keys that cannot be refreshed.
    ACCESS_KEYS_FETCH = "STR0833", "the keys of tokens cannot be fetched",
        "Try the named URL from where Strait runs: curl -v URL. For private roots: --jwks-roots FILE.", "\
The last fetched keys of the jwksUri or issuer stay active. Keys that the issuer has created since then are
unknown, and their tokens are refused. Strait retries after a second, then after growing pauses of up to an
hour. It never connects to its own host, to link-local addresses (which clouds use for their metadata
service) and to addresses in --jwks-deny. Redirects must stay within http or https. A response may have at
most 64 keys, 1 MiB, and 64 KiB of verifying keys.";

    /// ALLOW by identity under DISABLE.
    ACCESS_NEVER_ALLOWS = "STR0834", "a rule allows by identity where clients have none",
        "Make the port PERMISSIVE or STRICT with a PeerAuthentication, or allow by ipBlocks.", "\
Workloads that only accept plain text (DISABLE) never see a client certificate, so a rule of ALLOW with
principals, namespaces, accounts or trust domains never matches. Because the policy allows, everything that
no other rule allows is denied.";

    /// Tokens that no policy requires.
    ACCESS_TOKEN_OPTIONAL = "STR0835", "a token is verified but not required",
        "Allow by requestPrincipals: [\"*\"], or deny by notRequestPrincipals: [\"*\"].", "\
A RequestAuthentication defines which tokens are valid. A request with an invalid token is refused with 401.
A request without a token passes, unless an AuthorizationPolicy for the same workload requires one.";

    /// A trust domain of no cluster.
    ACCESS_TRUST_DOMAIN = "STR0836", "a policy names an unknown trust domain",
        "Compare it with trustDomain and trustDomainAliases of the mesh config, and with: strait cluster list", "\
The trust domain is neither the mesh's, nor an alias of it, nor the trust domain of a member. No certificate
of this trust domain is accepted, so the policy's values match no client; if the policy denies, the intended
clients may be allowed. cluster.local always means the mesh's own trust domain.";

    /// A host with a port.
    ACCESS_HOST_PORT = "STR0837", "a policy denies a host only at one port",
        "Remove the port from the host, and name it in ports if it matters.", "\
A host without a port matches the host at every port, with or without a final dot. A host with a port only
matches the text of the request, which the client chooses: a client that omits the port or sends another one
is not denied.";

    /// Claims without a token rule.
    ACCESS_CLAIMS_UNKNOWN = "STR0838", "routes match claims, but no token is verified",
        "Add a RequestAuthentication that selects the router.", "\
Claims of tokens (@request.auth.claims in a VirtualService) require a RequestAuthentication, which defines
the valid tokens. Without one, no request at the router has claims: conditions on claims never match, and
conditions on the absence of claims always match.";

    /// More keys than a proxy receives.
    ACCESS_KEYS_BEYOND = "STR0839", "workloads have more token keys than Strait sends",
        "Distribute the rules among workloads with selectors, or give their issuers fewer keys.", "\
A proxy receives the keys of each rule for its workload, once for each port. RequestAuthentications in the
proxy's namespace may add at most 256 KiB of keys, and RequestAuthentications in the root namespace another
256 KiB. The oldest policies come first. A rule beyond the limit is sent without keys: its tokens are
refused with 401. Requests without a token pass as before, and AuthorizationPolicies decide on them.";

    /// Policies that are not read.
    ACCESS_IN_MEMBER = "STR0840", "access policies in a member cluster have no effect",
        "Move the policies to the config cluster. List them: kubectl get authorizationpolicies -A", "\
Strait reads access policies from the config cluster (or --config-dir). They apply to the workloads of all
clusters, by namespace and labels. Policies in a member's own API server are not read: they deny nothing and
require nothing. They may be left from the member's previous control plane, and are active as long as that
control plane serves its proxies. strait check secrets counts them with the member's credential, if that may
list them. The roles that Strait creates do not include this right.";

    /// A value that can never match.
    ACCESS_VALUE_NEVER = "STR0841", "a value of an access policy can never match",
        "Write the value as proxies match it: docs/reference/access-support.md.", "\
No request or connection can have the value: a path without a leading slash, with a query or with `..`, a
wildcard inside of a text, several methods in one value, a host with a scheme or a path, or the port of a
Service instead of the workload's port. For a port that no Service targets, only connections to the
workload's own address match.";

    /// A rule that never matches.
    ACCESS_MATCHES_NOTHING = "STR0842", "an access policy denies nothing, or allows nothing",
        "Correct the values that STR0841 names for the same policy.", "\
No value of a condition can ever match. In this case a rule of DENY denies nothing, and a rule of CUSTOM
never queries its provider. A policy of ALLOW with only such rules allows nothing, and a negated condition
of ALLOW excludes nothing.";

    /// Another PeerAuthentication of the workload.
    ACCESS_PEER_WITHOUT_EFFECT = "STR0843", "a part of a PeerAuthentication has no effect",
        "Merge the PeerAuthentications that select one workload into one object, and name ports of the workload.", "\
Only one PeerAuthentication with a selector applies to a workload: the oldest, then the first by name.
portLevelMtls refers to the ports of pods, not to the ports of Services. The result is not more open than
the object demands.";

    /// Another PeerAuthentication of the workload, which accepts plain text.
    ACCESS_PEER_MORE_OPEN = "STR0844", "workloads accept plain text that a PeerAuthentication refuses",
        "Merge the PeerAuthentications that select one workload into one object, and name ports of the workload.", "\
The object demands STRICT, but has no effect for a workload or a port: another PeerAuthentication applies,
or portLevelMtls names a port that the workload does not have. Plain text is accepted there.";

    /// An Envoy whose RBAC joins headers.
    ENVOY_UNPATCHED = "STR0845", "proxies lack a patch that rules on headers need",
        "Update these Envoys to 1.37.1, 1.36.5, 1.35.9 or 1.34.13, and Istio's proxies to 1.29.1, 1.28.5 or 1.27.8.", "\
CVE-2026-26308: an Envoy without the patch of 10 March 2026 joins repeated headers with a comma before
access rules match them. Therefore a DENY of `admin` does not match `x-role: user` together with `x-role:
admin`. Strait generates rules of DENY that also match the value between commas, with and without the patch.
This does not cover filters of EnvoyFilters, nor rules with expressions or metadata matches. Strait compares
the version that the proxy reports: ISTIO_VERSION for Istio's proxies, otherwise Envoy's version.";

    /// ALLOW by HTTP attributes on a port without a declared protocol.
    ACCESS_UNDECLARED_PORT = "STR0846", "a policy allows by HTTP attributes on a port without a declared protocol",
        "Declare the port in its Service (appProtocol: http, or a name like http-web), or allow by identity and ports.", "\
If the Service does not declare HTTP for a port, a workload detects the protocol: by the first bytes of
plain text, and by the client's application protocol (ALPN) in mTLS. Istio's proxies announce HTTP in ALPN.
Plain Envoys only offer `istio`, which is treated as raw TCP. A rule of ALLOW with hosts, methods, paths,
headers or tokens allows no raw TCP, so everything that plain Envoys send is denied unless another rule
allows it. Gateways, and sidecars that Strait injects, are plain Envoys.";

    /// Addresses of clients in other networks.
    ACCESS_BEHIND_GATEWAY = "STR0847", "a rule matches the address of clients behind a gateway",
        "Identify clients by principals, namespaces or serviceAccounts instead of ipBlocks.", "\
A client in another network connects through the east-west gateway of the workload's network, and the
workload sees the gateway's address. The gateway cannot decrypt connections, so it adds no header with the
client's address. `ipBlocks` and `notIpBlocks` match the gateway, or nothing. The client's certificate
contains its identity on every path.";

    /// An Envoy that does not resolve dot segments with parameters.
    ENVOY_DOT_SEGMENTS = "STR0852", "proxies lack a patch that rules on paths need",
        "Update these Envoys to 1.39.1, 1.38.4, 1.37.6 or 1.36.10, and Istio's proxies to 1.30.4 or 1.29.7.", "\
CVE-2026-73551: an Envoy without the patch does not resolve a dot segment with a parameter (`/x/..;/admin`),
but an application may resolve it to `/admin`. Therefore every workload that an enforced rule on paths
selects denies requests whose normalized path contains such a segment, also with escaped dots
(`/%2e%2e;/`). Routes of VirtualServices and filters of EnvoyFilters still see the unresolved path. Strait
compares the version that the proxy reports: ISTIO_VERSION for Istio's proxies, otherwise Envoy's version.";
}
