//! The policy sets of the matrix, as tables. Policies have a short notation: `ACTION[ dry-run][
//! root]` with their rules, or with the whole `spec` if they need more. They are in namespace
//! `shop` or in the root namespace.

/// Policies, and their effect on a server that uses a gRPC library.
pub(super) struct PolicySet {
    pub(super) name: &'static str,
    /// The previous, valid policies; or empty.
    pub(super) before: &'static str,
    pub(super) policies: &'static str,
    /// The effective rules in the evaluator's notation; empty if they are the policies themselves.
    pub(super) holds: &'static str,
    /// The effective rules under the mistake that the set tests. At least one call must distinguish
    /// the two.
    pub(super) mistake: &'static str,
}

/// Policies that apply as written. The mistake is to ignore them.
const PLAIN: PolicySet = PolicySet { name: "", before: "", policies: "", holds: "", mistake: "{}" };

/// The attributes that rules can match.
pub(super) const FIELDS: &[PolicySet] = &[
    PolicySet {
        name: "ALLOW by principals",
        policies: r#"{"ALLOW": [{"from": [{"source": {"principals": ["cluster.local/ns/shop/sa/a"]}}]}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "ALLOW by parts of principals",
        policies: r#"{"ALLOW": [{"from": [{"source": {"principals": ["*/sa/b", "cluster.local/ns/shop/*"]}}]}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "ALLOW by notPrincipals: who shows no certificate is not that one",
        policies: r#"{"ALLOW": [{"from": [{"source": {"notPrincipals": ["cluster.local/ns/shop/sa/a"]}}]}]}"#,
        mistake: r#"{"ALLOW": [{"from": [{"source": {"principals": ["*"], "notPrincipals": ["cluster.local/ns/shop/sa/a"]}}]}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "DENY by notPrincipals",
        policies: r#"{"DENY": [{"from": [{"source": {"notPrincipals": ["cluster.local/ns/shop/sa/a"]}}]}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "ALLOW by namespaces",
        policies: r#"{"ALLOW": [{"from": [{"source": {"namespaces": ["o*r"]}}]}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "DENY by source namespace and account, as conditions",
        policies: r#"{"DENY": [
            {"when": [{"key": "source.namespace", "notValues": ["shop"]}], "to": [{"operation": {"paths": ["*/Get"]}}]},
            {"when": [{"key": "source.serviceAccount", "values": ["shop/a"]}], "to": [{"operation": {"paths": ["/pkg.Admin/*"]}}]}
        ]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "ALLOW by accounts of the policy's namespace and of another",
        policies: r#"{"ALLOW": [
            {"from": [{"source": {"serviceAccounts": ["a"]}}], "to": [{"operation": {"ports": ["7000"]}}]},
            {"from": [{"source": {"serviceAccounts": ["other/b"]}}], "to": [{"operation": {"ports": ["7001"]}}]}
        ]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "DENY by trust domain, in which its alias is",
        policies: r#"{"DENY": [{"from": [{"source": {"trustDomains": ["old.example"]}}]}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "DENY by method of a service, and by all of another",
        policies: r#"{"DENY": [{"to": [{"operation": {"paths": ["/pkg.Shop/Get", "/pkg.Admin/*"]}}]}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "ALLOW by all methods but one",
        policies: r#"{"ALLOW": [{"to": [{"operation": {"paths": ["/pkg.Shop/*"], "notPaths": ["*/List"]}}]}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "gRPC posts: DENY of GET denies nothing, ALLOW of POST allows",
        policies: r#"{
            "DENY": [{"to": [{"operation": {"methods": ["GET"]}}]}],
            "ALLOW": [{"to": [{"operation": {"methods": ["POST"], "paths": ["*/Get"]}}]}]
        }"#,
        ..PLAIN
    },
    PolicySet {
        name: "ALLOW by a header, whose every value counts",
        policies: r#"{"ALLOW": [{"when": [{"key": "request.headers[x-role]", "values": ["admin"]}]}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "DENY by a header with several values",
        policies: r#"{"DENY": [{"when": [{"key": "request.headers[X-Role]", "values": ["adm*"]}]}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "ALLOW where a header is there, DENY where it isn't the one",
        policies: r#"{
            "ALLOW": [{"when": [{"key": "request.headers[x-role]", "values": ["*"]}]}],
            "DENY": [{"when": [{"key": "request.headers[x-role]", "notValues": ["user", "admin"]}], "to": [{"operation": {"ports": ["7001"]}}]}]
        }"#,
        ..PLAIN
    },
    PolicySet {
        name: "DENY by port does not affect the other port",
        policies: r#"{"DENY": [{"to": [{"operation": {"ports": ["7001"]}}]}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "ALLOW by notPorts, and by port as a condition",
        policies: r#"{"ALLOW": [
            {"to": [{"operation": {"notPorts": ["7001"], "paths": ["*/Get"]}}]},
            {"when": [{"key": "destination.port", "values": ["7001"]}], "to": [{"operation": {"paths": ["/pkg.Admin/*"]}}]}
        ]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "F-21: DENY by host, whatever port is named",
        policies: r#"{"DENY": [{"to": [{"operation": {"hosts": ["a.example"]}}]}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "ALLOW by addresses, and by all but one",
        policies: r#"{"ALLOW": [
            {"from": [{"source": {"ipBlocks": ["10.80.0.7"]}}], "to": [{"operation": {"ports": ["7000"]}}]},
            {"from": [{"source": {"remoteIpBlocks": ["10.80.0.0/24"], "notIpBlocks": ["10.80.0.7/32"]}}], "to": [{"operation": {"ports": ["7001"]}}]}
        ]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "ALLOW and DENY: what denies goes first",
        policies: r#"{
            "ALLOW": [{"from": [{"source": {"namespaces": ["shop"]}}]}],
            "DENY": [{"to": [{"operation": {"paths": ["/pkg.Admin/*"], "ports": ["7001"]}}], "when": [{"key": "request.headers[x-role]", "notValues": ["admin"]}]}]
        }"#,
        mistake: r#"{"ALLOW": [{"from": [{"source": {"namespaces": ["shop"]}}]}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "root namespace: DENY of the mesh and ALLOW of the namespace",
        policies: r#"{
            "ALLOW": [{"from": [{"source": {"principals": ["*"]}}]}],
            "DENY root": [{"to": [{"operation": {"paths": ["/pkg.Admin/Reset"]}}]}]
        }"#,
        mistake: r#"{"ALLOW": [{"from": [{"source": {"principals": ["*"]}}]}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "selector: one server denies, the others don't",
        policies: r#"{"DENY": {"selector": {"matchLabels": {"app": "core"}}, "rules": [{"to": [{"operation": {"paths": ["*/Get"]}}]}]}}"#,
        mistake: r#"{"DENY": [{"to": [{"operation": {"paths": ["*/Get"]}}]}]}"#,
        ..PLAIN
    },
];

/// Attributes that a library handles differently or ignores, and unreadable policies.
pub(super) const FLAWS: &[PolicySet] = &[
    PolicySet {
        name: "F-1: a CUSTOM that is only tried never changes an answer",
        policies: r#"{"CUSTOM dry-run": {"provider": {"name": "nobody"}, "rules": [{"to": [{"operation": {"paths": ["/pkg.Shop/*"]}}]}]}}"#,
        holds: "{}",
        mistake: r#"{"DENY": [{"to": [{"operation": {"paths": ["/pkg.Shop/*"]}}]}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "F-3: DENY with an unreadable condition applies without it",
        policies: r#"{"DENY": [{"when": [{"key": "request.header[x-role]", "values": ["admin"]}], "to": [{"operation": {"paths": ["/pkg.Shop/*"]}}]}]}"#,
        holds: r#"{"DENY": [{"to": [{"operation": {"paths": ["/pkg.Shop/*"]}}]}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "F-3: of an ALLOW the rule that can't be read allows nothing",
        policies: r#"{"ALLOW": [
            {"when": [{"key": "request.header[x-role]", "values": ["admin"]}]},
            {"to": [{"operation": {"paths": ["*/List"]}}]}
        ]}"#,
        holds: r#"{"ALLOW": [{"to": [{"operation": {"paths": ["*/List"]}}]}]}"#,
        mistake: r#"{"ALLOW": [{}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "F-3: last valid version stays after an unreadable edit",
        before: r#"{"DENY": [{"to": [{"operation": {"paths": ["/pkg.Admin/*"]}}]}]}"#,
        policies: r#"{"DENY": [{"to": [{"operation": {"paths": ["/pkg.Shop/*"]}}], "when": [{"key": "request.header[x-role]", "values": ["admin"]}]}]}"#,
        holds: r#"{"DENY": [{"to": [{"operation": {"paths": ["/pkg.Admin/*"]}}]}]}"#,
        mistake: r#"{"DENY": [{"to": [{"operation": {"paths": ["/pkg.Shop/*"]}}]}]}"#,
    },
    PolicySet {
        name: "F-4: one bad value of several makes no DENY narrower",
        policies: r#"{"DENY": [{"from": [{"source": {"ipBlocks": ["10.80.0.7", "10.80.0.8/33"]}}], "to": [{"operation": {"paths": ["/pkg.Shop/*"]}}]}]}"#,
        holds: r#"{"DENY": [{"to": [{"operation": {"paths": ["/pkg.Shop/*"]}}]}]}"#,
        mistake: r#"{"DENY": [{"from": [{"source": {"ipBlocks": ["10.80.0.7"]}}], "to": [{"operation": {"paths": ["/pkg.Shop/*"]}}]}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "F-6: an ALLOW without rules allows nothing",
        policies: r#"{"ALLOW": []}"#,
        ..PLAIN
    },
    PolicySet {
        name: "F-6: CUSTOM with an unknown provider denies matching calls",
        policies: r#"{"CUSTOM": {"provider": {"name": "nobody"}, "rules": [{"to": [{"operation": {"paths": ["/pkg.Admin/*"]}}]}]}}"#,
        holds: r#"{"DENY": [{"to": [{"operation": {"paths": ["/pkg.Admin/*"]}}]}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "F-6: a DENY that is only tried denies nothing",
        policies: r#"{"DENY dry-run": [{"to": [{"operation": {"paths": ["/pkg.Shop/*"]}}]}]}"#,
        mistake: r#"{"DENY": [{"to": [{"operation": {"paths": ["/pkg.Shop/*"]}}]}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "F-6: an ALLOW that is only tried neither allows nor denies",
        policies: r#"{"ALLOW dry-run": [{"from": [{"source": {"namespaces": ["other"]}}]}], "ALLOW": [{"to": [{"operation": {"paths": ["*/Get"]}}]}]}"#,
        mistake: r#"{"ALLOW": [{"from": [{"source": {"namespaces": ["other"]}}]}, {"to": [{"operation": {"paths": ["*/Get"]}}]}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "F-6: DENY by principal holds in the trust domain's aliases too",
        policies: r#"{"DENY": [{"from": [{"source": {"principals": ["cluster.local/ns/shop/sa/a"]}}]}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "F-6: DENY with one unreadable rule keeps the other rules",
        policies: r#"{"DENY": [
            {"to": [{"operation": {"ports": ["http"], "paths": ["*/List"]}}]},
            {"to": [{"operation": {"paths": ["/pkg.Admin/*"]}}]}
        ]}"#,
        holds: r#"{"DENY": [{"to": [{"operation": {"paths": ["*/List", "/pkg.Admin/*"]}}]}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "AUDIT never decides",
        policies: r#"{"AUDIT": [{}], "DENY": [{"to": [{"operation": {"paths": ["*/List"]}}]}]}"#,
        mistake: r#"{"DENY": [{}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "tokens: a rule of ALLOW that looks at them allows nothing",
        policies: r#"{"ALLOW": [
            {"from": [{"source": {"requestPrincipals": ["*"]}}]},
            {"when": [{"key": "request.auth.claims[group]", "notValues": ["guests"]}]},
            {"to": [{"operation": {"paths": ["*/Get"]}}]}
        ]}"#,
        holds: r#"{"ALLOW": [{"to": [{"operation": {"paths": ["*/Get"]}}]}]}"#,
        mistake: r#"{"ALLOW": [{}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "tokens: a rule of DENY goes without them",
        policies: r#"{"DENY": [{"from": [{"source": {"requestPrincipals": ["a/b"], "namespaces": ["shop"]}}], "to": [{"operation": {"paths": ["/pkg.Admin/*"]}}]}]}"#,
        holds: r#"{"DENY": [{"from": [{"source": {"namespaces": ["shop"]}}], "to": [{"operation": {"paths": ["/pkg.Admin/*"]}}]}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "templates of paths: a rule of ALLOW that looks at one allows nothing",
        policies: r#"{"ALLOW": [
            {"to": [{"operation": {"paths": ["/{*}/Get"]}}]},
            {"to": [{"operation": {"paths": ["*/List"]}}]}
        ]}"#,
        holds: r#"{"ALLOW": [{"to": [{"operation": {"paths": ["*/List"]}}]}]}"#,
        mistake: r#"{"ALLOW": [{"to": [{"operation": {"paths": ["*/Get", "*/List"]}}]}]}"#,
        ..PLAIN
    },
    PolicySet {
        name: "templates, SNI and headers of gRPC's own: a rule of DENY goes without them",
        policies: r#"{"DENY": [
            {"to": [{"operation": {"paths": ["/{*}/Get"], "ports": ["7001"]}}]},
            {"to": [{"operation": {"paths": ["*/List"]}}], "when": [{"key": "connection.sni", "values": ["x"]}]},
            {"to": [{"operation": {"paths": ["*/Reset"]}}], "when": [{"key": "request.headers[grpc-timeout]", "values": ["1S"]}]},
            {"to": [{"operation": {"paths": ["*/Reset"]}}], "when": [{"key": "request.headers[te]", "values": ["x"]}]}
        ]}"#,
        holds: r#"{"DENY": [{"to": [{"operation": {"ports": ["7001"]}}, {"operation": {"paths": ["*/List", "*/Reset"]}}]}]}"#,
        ..PLAIN
    },
];
