//! 082x and 083x: access policies.

use super::code::Code;

codes! {
    /// A value or field of a policy.
    ACCESS_UNREADABLE = "STR0820", "an access policy can't be read",
        "Correct the field named: strait policy status [NAMESPACE/]NAME. It is read again by itself.", "\
A field has a value that means nothing, or a name that nobody knows. An access policy of which a part is left
out would let in more than it says, or keep out more, so such a part is never skipped in silence: what was
last good of the policy stays in force, over a restart, too. Other policies are not affected.";

    /// The last valid version of a policy is active.
    ACCESS_LAST_GOOD = "STR0821", "an access policy counts as it was before it was changed",
        "Correct what STR0820 names of the same policy, or put it back as it was.", "\
Its present form can't be read. What was last good of it is in force instead, on every proxy that it selects,
until it can be read again or is deleted.";

    /// A policy without an earlier valid version.
    ACCESS_PARTLY = "STR0822", "an access policy counts in part",
        "Correct what STR0820 names of the same policy.", "\
It can't be read wholly, and there is no earlier form of it that could. It never lets in more than it says:
a rule of ALLOW that can't be read is left out; a rule of DENY or CUSTOM goes without the field that can't
be read, so that it denies more; where no field of it can be read it is left out, since a slip of the pen
must not take a mesh down. With --policy-errors strict such a rule denies everything that the policy
selects. A PeerAuthentication of this kind counts for nothing; with --policy-errors strict it takes mTLS
alone. A rule of a RequestAuthentication that cannot be read refuses its tokens with 401. An unknown field
that may restrict access, by its name or its value (presence: REQUIRED), fails closed: a
RequestAuthentication then also refuses requests without a token, a PeerAuthentication takes mTLS alone, and
a policy that allows admits nothing.";

    /// A valid part without effect.
    ACCESS_NO_EFFECT = "STR0823", "a part of an access policy has no effect",
        "Take it away, or say it in the way that counts: docs/guide/access.md.", "\
It can be read, and does not do what it seems to do: a selector of a PeerAuthentication in the root
namespace, a target that no proxy here is, an annotation that is no truth value, an unknown field of a
RequestAuthentication that restricts nothing. The rest of the policy counts.";

    /// HTTP fields of a policy on ports without HTTP.
    ACCESS_HTTP_ON_TCP = "STR0824", "a policy looks at requests on a port that carries none",
        "Name ports in the same operation, or declare the port's protocol in its Service.", "\
Hosts, methods, paths, headers and tokens are there in HTTP alone. On a port that is not HTTP, or of which
nobody says what it is, a rule of ALLOW that looks at them allows nothing, and a rule of DENY goes without
them: it denies every connection that the rest of the rule fits.";

    /// DENY by identity under PERMISSIVE.
    ACCESS_PLAIN_TEXT = "STR0825", "a policy that keeps out by identity is avoided by plain text",
        "Make the workloads STRICT by a PeerAuthentication, or allow by identity in place of denying.", "\
Who connects without mTLS has no identity: rules of DENY that name principals, namespaces, accounts or trust
domains don't match it, and rules of ALLOW that name none but those that are not allowed (notPrincipals and
the like) do. As long as the workload takes plain text (PERMISSIVE), whoever is to be kept out can come in
without a certificate.";

    /// CUSTOM with an unusable provider.
    ACCESS_PROVIDER = "STR0826", "a policy asks a provider that can't be asked",
        "Correct extensionProviders in the mesh config, or what keeps its service from being reached.", "\
What the rules of the policy match is denied: nobody can be asked whether it may pass, and without an
answer nothing passes. The provider is looked for by its name in extensionProviders of the mesh config,
where it must be one alone, an envoyExtAuthzHttp or envoyExtAuthzGrpc of which everything can be read. Its
service must be known and visible to the workloads that ask, and have the port. Proxies must choose among
its endpoints: of a headless Service, a ServiceEntry of resolution NONE, or one whose DestinationRule has the
load balancer PASSTHROUGH, the question would go to the workload itself. Rules of such policies are named in
the logs of proxies with the end -deny-due-to-bad-CUSTOM-action.";

    /// An older policy of the same level.
    ACCESS_SHADOWED = "STR0827", "an older PeerAuthentication counts in place of this one",
        "Delete one of the two.", "\
Of several PeerAuthentications for a whole namespace, or for the whole mesh, the oldest counts, then the first
by name. For several that select one workload, see STR0843 and STR0844.";

    /// A policy without a workload.
    ACCESS_SELECTS_NOBODY = "STR0828", "an access policy selects no workload",
        "Compare its selector with the labels of the pods: kubectl get pods --show-labels", "\
None of the workloads that Strait knows carries the labels of its selector. The policy is in force, and holds
for nobody until such a workload comes.";

    /// Keys of `jwksUri` that have not been fetched.
    ACCESS_KEYS = "STR0829", "the keys of a token rule are not known",
        "See what keeps them from being fetched: strait check config; or give them in the rule, as jwks.", "\
Proxies are sent the keys by which tokens are verified. Those of a rule that names where they are
(jwksUri), or only its issuer, are fetched by Strait, and have never been fetched so far. Tokens of the
rule are refused with 401 until they are. Requests without a token pass as before, and are judged by
AuthorizationPolicies.";

    /// Unsupported parts of a policy at a proxyless gRPC server.
    ACCESS_ON_LIBRARY = "STR0830", "a gRPC server without a proxy can't look at a part of a policy",
        "Say it by what such a server sees, or put an Envoy beside it: docs/guide/grpc.md.", "\
gRPC's own library enforces AuthorizationPolicies itself, by identity, address, port, host, method, path and
header. It sees less than Envoy: no tokens, path templates, server names, metadata of filters, nor headers of
gRPC's own. A rule of ALLOW that looks at one of these allows nothing there; a rule of DENY goes without it
and denies more. Of a RequestAuthentication nothing counts there: tokens are not verified, and no request is
refused for one.";

    /// STRICT without a certificate.
    ACCESS_WITHOUT_CERTIFICATE = "STR0831", "a gRPC server that is to take mTLS alone has no certificate",
        "Give its bootstrap certificate_providers (strait proxy bootstrap --grpc), or make the workload PERMISSIVE.", "\
Its PeerAuthentication says STRICT, and its library has no certificate, so it can't speak mTLS. It is sent a
listener that refuses every request (PERMISSION_DENIED) rather than one that takes plain text.";

    /// CUSTOM with an HTTP provider on ports without HTTP.
    ACCESS_PROVIDER_OF_REQUESTS = "STR0832", "a provider that speaks HTTP is not asked about connections",
        "Name the ports of HTTP in the rules, DENY the others, or use a provider that speaks gRPC.", "\
A provider of the kind envoyExtAuthzHttp is asked about requests of HTTP alone. On a port that is not
HTTP, or whose protocol nobody declares, a connection that the rules of the policy match passes without
anybody being asked. One of the kind envoyExtAuthzGrpc is asked about both.";

    /// Known keys that cannot be refreshed.
    ACCESS_KEYS_FETCH = "STR0833", "the keys of tokens can't be fetched",
        "Try what is named from where Strait runs: curl -v URL; roots of your own: --jwks-roots FILE.", "\
What was last fetched of a jwksUri, or of what an issuer names, stays in force; keys that the issuer has
made since then are not known, and tokens signed by them are refused. It is tried again after a second,
then ever later, up to an hour. Addresses of the host itself, of the link (where clouds have their
metadata service) and those that --jwks-deny names are never dialled, redirects stay within http or https,
and an answer is read up to 1 MiB. It may list 64 keys, and have 64 KiB of what verifies.";

    /// ALLOW by identity under DISABLE.
    ACCESS_NEVER_ALLOWS = "STR0834", "a rule allows by identity where nobody has one",
        "Make the port PERMISSIVE or STRICT by a PeerAuthentication, or allow by ipBlocks.", "\
Workloads that take plain text alone (DISABLE) see nobody's certificate, so a rule of ALLOW that asks for
principals, namespaces, accounts or trust domains never matches there. As a policy that allows is there, what
no other rule allows is denied.";

    /// Tokens that no policy requires.
    ACCESS_TOKEN_OPTIONAL = "STR0835", "a token is verified, and nothing asks for one",
        "Allow by requestPrincipals: [\"*\"], or deny by notRequestPrincipals: [\"*\"].", "\
A RequestAuthentication says which tokens are believed. A request with a bad one is refused with 401; one
without any passes, unless an AuthorizationPolicy for the same workload asks for one.";

    /// A trust domain of no cluster.
    ACCESS_TRUST_DOMAIN = "STR0836", "a policy names the trust domain of no cluster",
        "Compare it with trustDomain and trustDomainAliases of the mesh config, and with: strait cluster list", "\
It is neither the mesh's, nor one of its aliases, nor that of a member with one of its own. No certificate
in it is taken, so what names it matches nobody: where it denies, those may come in who are meant.
cluster.local always means the mesh's own.";

    /// A host with a port.
    ACCESS_HOST_PORT = "STR0837", "a policy keeps a host out at one port alone",
        "Take the port away from the host, and name it in ports if it matters.", "\
A host without a port in a policy means that host at every port, with a dot at its end or without. One
with a port means what a request says of it alone, and clients say what they like: who leaves the port out
in the host of a request, or names another, is not kept out.";

    /// Claims without a token rule.
    ACCESS_CLAIMS_UNKNOWN = "STR0838", "routes look at claims where no token is verified",
        "Add a RequestAuthentication that selects the router.", "\
Claims of tokens (@request.auth.claims in a VirtualService) are known where a RequestAuthentication says
which tokens are believed. At a router without one no request has any: what asks for a claim matches never,
and what asks that it isn't there matches always.";

    /// More keys than a proxy receives.
    ACCESS_KEYS_BEYOND = "STR0839", "workloads would be sent more keys of tokens than they are",
        "Divide the rules among workloads by selectors, or give their issuers fewer keys.", "\
A proxy is sent the keys of each rule of its workload, for each of its ports. Of the RequestAuthentications of
one namespace it is sent 256 KiB of keys, of the root namespace's as much again, the oldest policies first.
A rule beyond that is sent without keys: its tokens are refused with 401. Requests without a token pass as
before, and are judged by AuthorizationPolicies.";

    /// Policies that are not read.
    ACCESS_IN_MEMBER = "STR0840", "access policies lie in a member cluster, where they count for nothing",
        "Put what shall hold into the config cluster; what there is: kubectl get authorizationpolicies -A", "\
Access policies are read from the config cluster (or --config-dir), and hold for the workloads of all
clusters by namespace and labels. Those that lie in a member's own API server are not read: what they deny
is not denied, and what they ask for is not asked for. They are there where a member had a control plane of
its own, and are in force there for as long as that serves its proxies. strait check --secrets counts them
with the member's credential, where that may list them; the roles that Strait makes do not allow it.";

    /// A value that can never match.
    ACCESS_VALUE_NEVER = "STR0841", "a value of an access policy can never match",
        "Write the value as proxies see it: docs/guide/access.md.", "\
No request and no connection can have the value: a path without a leading slash, with a query or with `..`,
a wildcard inside a text, several methods in one value, a host with a scheme or a path, or the port of a
Service in place of that of the workload. For a port to which no Service leads, only connections to the
workload's own address match.";

    /// A rule that never matches.
    ACCESS_MATCHES_NOTHING = "STR0842", "an access policy denies nothing, or admits nothing",
        "Correct the values that STR0841 names of the same policy.", "\
All values of a condition can never match. A rule of DENY then denies nothing, and one of CUSTOM has nobody
asked. A policy of ALLOW with such rules alone admits nothing, and a negated condition of ALLOW keeps
nothing out.";

    /// Another PeerAuthentication of the workload.
    ACCESS_PEER_WITHOUT_EFFECT = "STR0843", "a part of a PeerAuthentication has no effect",
        "Join the PeerAuthentications that select one workload in one object, and name ports of the workload.", "\
One PeerAuthentication with a selector applies to a workload: the oldest, then the first by name.
portLevelMtls names ports of the workload, not of its Services. The result is not more open than the object
asks for.";

    /// Another PeerAuthentication of the workload, which accepts plain text.
    ACCESS_PEER_MORE_OPEN = "STR0844", "workloads accept plain text that a PeerAuthentication refuses",
        "Join the PeerAuthentications that select one workload in one object, and name ports of the workload.", "\
The object asks for STRICT, and has no effect for a workload or a port: another PeerAuthentication applies
there, or portLevelMtls names a port that the workload does not have. Plain text is accepted there.";

    /// An Envoy whose RBAC joins headers.
    ENVOY_UNPATCHED = "STR0845", "proxies lack a patch that rules on headers need",
        "Bring these Envoys to 1.37.1, 1.36.5, 1.35.9 or 1.34.13, and Istio's proxies to 1.29.1, 1.28.5 or 1.27.8.", "\
CVE-2026-26308: an Envoy without the patch of 10 March 2026 joins a header that comes twice by a comma before
rules of access look at it, so that a DENY of `admin` misses `x-role: user` beside `x-role: admin`. Strait
writes rules of DENY so that they match the value between commas as well, before the patch and after it; what
an EnvoyFilter brings along, or looks at by an expression or a metadata match, is not covered by that. The
version is what the proxy says of itself: Istio's by ISTIO_VERSION, others by Envoy's own.";

    /// ALLOW by HTTP attributes on a port without a declared protocol.
    ACCESS_UNDECLARED_PORT = "STR0846", "a policy allows by requests at a port of which nobody says what it carries",
        "Declare the port in its Service (appProtocol: http, or a name like http-web), or allow by identity and ports.", "\
Where the Service doesn't say that a port carries HTTP, a workload tells by the first bytes of plain text, and
in mTLS by what the client offers (ALPN). Istio's proxies say there that they send HTTP; plain Envoys offer
`istio` alone, which is taken for bytes. A rule of ALLOW that looks at hosts, methods, paths, headers or
tokens allows no connection of bytes, so all that these Envoys send is denied, unless another rule allows it.
Gateways and sidecars of Strait's own injection are plain Envoys.";

    /// Addresses of clients in other networks.
    ACCESS_BEHIND_GATEWAY = "STR0847", "a rule looks at the address of clients that come through a gateway",
        "Name who calls by principals, namespaces or serviceAccounts in place of ipBlocks.", "\
A client in another network comes through the east-west gateway of the workload's network, and the workload
sees the gateway's address. The gateway passes on what it can't open, so it adds no header that would name
the client. `ipBlocks` match the gateway, or nobody; `notIpBlocks` likewise. Who calls is in the client's
certificate, whichever way it comes.";
}
