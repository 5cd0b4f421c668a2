//! Tests of the proxy configuration for authorization providers (action CUSTOM).

use std::collections::BTreeSet;

use serde_json::json;

use super::access::{event_with_root, guarded_by};
use super::*;
use strait_mesh::push::scope::{ChangeImpact, ProxyLocation, related_hosts};
use strait_model::dirty::Wildcard;
use strait_rules::traffic::{KindSettings, TrafficIndex};

const HTTP: &str = "envoy.filters.http.rbac";
const ASK: &str = "envoy.filters.http.ext_authz";

/// Returns a policy of namespace `shop` that queries a provider about these paths.
pub(super) fn custom_policy(name: &str, provider: &str, operations: Value) -> Value {
    let operations = operations.as_array().expect("a list").iter();
    let to: Vec<_> = operations.map(|one| json!({ "operation": one })).collect();
    json!({
        "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": { "namespace": "shop", "name": name },
        "spec": { "action": "CUSTOM", "provider": { "name": provider }, "rules": [{ "to": to }] },
    })
}

/// Returns the event for a mesh config with these providers.
pub(super) fn with_providers(providers: Value) -> MeshEvent {
    let text = json!({ "extensionProviders": providers }).to_string();
    MeshEvent::MeshConfig(Arc::new(MeshConfig::parse(&text, &Default::default()).expect("valid")))
}

/// Returns the event for the service of the providers, in a separate namespace.
pub(super) fn authorizers(ports: Vec<Port>, endpoints: Vec<Endpoint>) -> MeshEvent {
    let service = service("opa.authz").vip("10.1.9.9").ports(ports);
    MeshEvent::Registry(shard("west", 1).network("n1").with(service, endpoints).built())
}

fn both() -> Value {
    json!([
        { "name": "web", "envoyExtAuthzHttp": { "service": "authz/opa.authz.svc.cluster.local", "port": 80, "timeout": "2s",
            "pathPrefix": "/check", "statusOnError": "503", "includeRequestHeadersInCheck": ["X-Token"],
            "includeAdditionalHeadersInCheck": { "x-from": "mesh" }, "headersToUpstreamOnAllow": ["x-user*"],
            "includeRequestBodyInCheck": { "maxRequestBytes": 9 } } },
        { "name": "rpc", "envoyExtAuthzGrpc": { "service": "opa.authz.svc.cluster.local", "port": 81, "failOpen": true } },
        { "name": "log", "envoyOtelAls": {} },
        { "name": "twice", "envoyExtAuthzGrpc": { "service": "opa.authz.svc.cluster.local", "port": 81 } },
        { "name": "twice", "envoyExtAuthzGrpc": { "service": "opa.authz.svc.cluster.local", "port": 81 } },
        { "name": "bad", "envoyExtAuthzGrpc": { "service": "opa.authz.svc.cluster.local", "port": 0 } },
        { "name": "away", "envoyExtAuthzGrpc": { "service": "no.authz.svc.cluster.local", "port": 81 } },
        { "name": "elsewhere", "envoyExtAuthzGrpc": { "service": "other/opa.authz.svc.cluster.local", "port": 81 } },
        { "name": "portless", "envoyExtAuthzGrpc": { "service": "opa.authz.svc.cluster.local", "port": 99 } },
    ])
}

fn with_custom_policies(
    policies: Vec<Value>,
    more: impl IntoIterator<Item = MeshEvent>,
) -> (Arc<PushContext>, Proxy) {
    let ports = vec![port("http", 80, 8080), port("tcp", 81, 8081)];
    let opa_services = authorizers(vec![port("http", 80, 80), port("grpc", 81, 81)], vec![]);
    let events = [with_providers(both()), opa_services, event_with_root("root", policies)];
    guarded_by(("shop", "web"), ports, events.into_iter().chain(more))
}

/// Returns the filters of the chains of a port; for HTTP, the filters in the manager.
fn filters(context: &Arc<PushContext>, proxy: &Proxy, port: u64) -> Vec<Value> {
    let listener = listeners(context, proxy).remove("virtualInbound").expect("one");
    let chains = listener["filter_chains"].as_array().cloned().expect("a list");
    let serves_port =
        |chain: &&Value| chain["filter_chain_match"]["destination_port"].as_u64() == Some(port);
    let chain = chains.iter().find(serves_port).expect("the port has chains");
    match chain["filters"][0]["typed_config"]["http_filters"].as_array() {
        Some(filters) => filters.clone(),
        None => chain["filters"].as_array().cloned().expect("a list"),
    }
}

fn names(filters: &[Value]) -> Vec<String> {
    filters.iter().map(|filter| text(&filter["name"])).collect()
}

/// Section 10: providers are queried before tokens are verified and before any rule decides, in the
/// order of their names.
#[test]
fn providers_are_queried_first_each_after_its_own_rules() {
    let keys = json!({ "keys": [{ "kty": "EC", "crv": "P-256", "x": "LpgXUJBl11nMkgkPS2pXhmFyJoBwEhxlerbWQGbWOlo", "y": "20_Y8LKheGvgLvTjRgg_jrS02bHFdeXxVlxUaAm-17o" }] });
    let tokens = json!({
        "apiVersion": "security.istio.io/v1", "kind": "RequestAuthentication",
        "metadata": { "namespace": "shop", "name": "tokens" },
        "spec": { "jwtRules": [{ "issuer": "https://a", "jwks": keys.to_string() }] },
    });
    let mut deny = custom_policy("deny", "web", json!([{ "paths": ["/x"] }]));
    deny["spec"] =
        json!({ "action": "DENY", "rules": [{ "to": [{ "operation": { "paths": ["/x"] } }] }] });
    let policies = vec![
        tokens,
        deny,
        custom_policy("w", "web", json!([{ "paths": ["/w"] }])),
        custom_policy("r", "rpc", json!([{ "paths": ["/r"] }])),
        custom_policy("r2", "rpc", json!([{ "paths": ["/r2"] }])),
    ];
    let (context, proxy) = with_custom_policies(policies, []);
    let found = filters(&context, &proxy, 8080);
    let expected =
        [HTTP, ASK, HTTP, ASK, "envoy.filters.http.jwt_authn", HTTP, "envoy.filters.http.router"];
    assert_eq!(names(&found), expected);
    let rules = &found[0]["typed_config"];
    assert_eq!(rules["shadow_rules_stat_prefix"], "istio_ext_authz_rpc_");
    assert_eq!((&rules["rules"], &rules["shadow_rules"]["action"]), (&Value::Null, &json!("DENY")));
    let keys: Vec<_> =
        rules["shadow_rules"]["policies"].as_object().expect("rules").keys().collect();
    let expected =
        ["r2", "r"].map(|name| format!("istio-ext-authz-rpc-ns[shop]-policy[{name}]-rule[0]"));
    assert_eq!(keys.into_iter().collect::<BTreeSet<_>>(), expected.iter().collect());
    let rpc = &found[1]["typed_config"];
    assert_eq!(rpc["filter_enabled_metadata"]["filter"], HTTP);
    let key = &rpc["filter_enabled_metadata"]["path"][0]["key"];
    assert_eq!(key, "istio_ext_authz_rpc_shadow_effective_policy_id");
    assert_eq!(
        (&rpc["failure_mode_allow"], &rpc["status_on_error"]["code"]),
        (&json!(true), &json!("Forbidden"))
    );
    let service = &rpc["grpc_service"];
    assert_eq!(service["envoy_grpc"]["cluster_name"], "outbound|81||opa.authz.svc.cluster.local");
    assert_eq!(service["timeout"], "600s");
    let web = &found[3]["typed_config"];
    assert_eq!(web["status_on_error"]["code"], "ServiceUnavailable");
    assert_eq!(web["failure_mode_allow"], Value::Null, "fails closed by default");
    assert_eq!(web["with_request_body"]["max_request_bytes"], 9);
    let token = json!([{ "exact": "x-token", "ignore_case": true }]);
    assert_eq!(web["allowed_headers"]["patterns"], token);
    let service = &web["http_service"];
    assert_eq!(service["path_prefix"], "/check");
    assert_eq!(service["server_uri"]["cluster"], "outbound|80||opa.authz.svc.cluster.local");
    assert_eq!(service["server_uri"]["timeout"], "2s");
    assert_eq!(service["authorization_request"]["headers_to_add"][0]["value"], "mesh");
    let user = json!([{ "prefix": "x-user", "ignore_case": true }]);
    assert_eq!(service["authorization_response"]["allowed_upstream_headers"]["patterns"], user);
}

/// 8.1: only gRPC providers are queried about connections, with the parts of rules that apply to
/// connections.
#[test]
fn http_provider_is_not_queried_about_connections() {
    let policies = vec![
        custom_policy("w", "web", json!([{ "paths": ["/w"] }])),
        custom_policy("r", "rpc", json!([{ "paths": ["/r"] }])),
    ];
    let (context, proxy) = with_custom_policies(policies, []);
    let found = filters(&context, &proxy, 8081);
    let expected = [
        "envoy.filters.network.rbac",
        "envoy.filters.network.ext_authz",
        "envoy.filters.network.tcp_proxy",
    ];
    assert_eq!(names(&found), expected);
    let query = &found[1]["typed_config"];
    assert_eq!(query["filter_enabled_metadata"]["filter"], "envoy.filters.network.rbac");
    assert_eq!(query["failure_mode_allow"], true);
    let rule = &found[0]["typed_config"]["shadow_rules"]["policies"]["istio-ext-authz-rpc-ns[shop]-policy[r]-rule[0]"];
    assert_eq!(rule["permissions"][0]["and_rules"]["rules"][0]["any"], true, "{rule}");
}

/// F-1: matches of dry-run rules are recorded under keys that no filter reads.
#[test]
fn dry_run_queries_no_provider() {
    let mut tried = custom_policy("t", "rpc", json!([{ "paths": ["/t"] }]));
    tried["metadata"]["annotations"] = json!({ "istio.io/dry-run": "true" });
    let (context, proxy) = with_custom_policies(vec![tried.clone()], []);
    let found = filters(&context, &proxy, 8080);
    assert_eq!(names(&found), [HTTP, "envoy.filters.http.router"]);
    assert_eq!(found[0]["typed_config"]["shadow_rules_stat_prefix"], "istio_dry_run_custom_rpc_");
    let in_force = custom_policy("r", "rpc", json!([{ "paths": ["/r"] }]));
    let (context, proxy) = with_custom_policies(vec![tried, in_force], []);
    let found = filters(&context, &proxy, 8080);
    // The last RBAC filter denies paths that could bypass a rule on paths.
    assert_eq!(names(&found), [HTTP, HTTP, ASK, HTTP, "envoy.filters.http.router"]);
    let key = &found[2]["typed_config"]["filter_enabled_metadata"]["path"][0]["key"];
    assert_eq!(key, "istio_ext_authz_rpc_shadow_effective_policy_id");
}

#[test]
fn requests_are_denied_with_a_reason_if_no_provider_can_be_queried() {
    let cases = [
        ("nobody", "no entry with this name"),
        ("twice", "several"),
        ("log", "no authorization provider"),
        ("bad", "1 to 65535"),
        ("away", "service no.authz.svc.cluster.local does not exist"),
        ("elsewhere", "is in namespace authz"),
        ("portless", "has no port 99"),
    ];
    for (provider, part) in cases {
        let (context, proxy) = with_custom_policies(
            vec![custom_policy("a", provider, json!([{ "paths": ["/a"] }]))],
            [],
        );
        let found = filters(&context, &proxy, 8080);
        assert_eq!(names(&found), [HTTP, "envoy.filters.http.router"], "{provider}");
        let rules = &found[0]["typed_config"]["rules"];
        assert_eq!(rules["action"], "DENY");
        let key = "ns[shop]-policy[a]-rule[0]-deny-due-to-bad-CUSTOM-action";
        assert!(rules["policies"][key].is_object(), "{provider}: {rules}");
        let fault = context.authorizer_of(provider, &proxy);
        let fault = fault.expect_err(provider).to_string();
        assert!(fault.contains(part), "{provider}: {fault}");
    }
    let hidden = service("opa.authz").vip("10.1.9.9").ports(vec![port("grpc", 81, 81)]);
    let hidden = hidden.with(|it| it.export_to = ExportTo::parse(".", &"authz".into()));
    let hidden = MeshEvent::Registry(shard("west", 1).network("n1").with(hidden, vec![]).built());
    let (context, proxy) = with_custom_policies(
        vec![custom_policy("a", "rpc", json!([{ "paths": ["/a"] }]))],
        [hidden],
    );
    assert_eq!(names(&filters(&context, &proxy, 8080)), [HTTP, "envoy.filters.http.router"]);
    let fault = context.authorizer_of("rpc", &proxy).expect_err("hidden");
    assert!(fault.to_string().contains("not visible"), "{fault}");
}

/// Returns the event for a DestinationRule of the providers' service.
fn rule_for_opa(policy: Value) -> MeshEvent {
    let rule = json!({
        "apiVersion": "networking.istio.io/v1", "kind": "DestinationRule",
        "metadata": { "namespace": "authz", "name": "opa" },
        "spec": { "host": "opa.authz.svc.cluster.local", "trafficPolicy": policy },
    });
    let objects = [Arc::new(rule)].into_iter().collect();
    let mut index =
        TrafficIndex::new(KindSettings::for_domain("cluster.local", &MeshConfig::default()));
    MeshEvent::Traffic(index.apply(&objects).expect("the first time"))
}

/// If a query was sent to the original destination, the workload itself would answer it.
#[test]
fn provider_without_load_balanced_endpoints_is_not_queried() {
    let unchosen = |resolution: Resolution| {
        let service = service("opa.authz").vip("10.1.9.9").ports(vec![port("grpc", 81, 81)]);
        let service = service.with(|it| it.resolution = resolution);
        MeshEvent::Registry(shard("west", 1).network("n1").with(service, vec![]).built())
    };
    let own = json!({ "mode": "MUTUAL" });
    let cases = [
        (unchosen(Resolution::Headless), "proxies do not load-balance"),
        (unchosen(Resolution::Passthrough), "proxies do not load-balance"),
        (
            rule_for_opa(json!({ "loadBalancer": { "simple": "PASSTHROUGH" } })),
            "PASSTHROUGH by DestinationRule authz/opa",
        ),
        (rule_for_opa(json!({ "tls": own })), "TLS settings of DestinationRule authz/opa"),
    ];
    for (event, part) in cases {
        let policy = custom_policy("a", "rpc", json!([{ "paths": ["/a"] }]));
        let (context, proxy) = with_custom_policies(vec![policy], [event]);
        let fault = context.authorizer_of("rpc", &proxy).expect_err(part).to_string();
        assert!(fault.contains(part), "{fault}");
        let found = filters(&context, &proxy, 8080);
        assert_eq!(names(&found), [HTTP, "envoy.filters.http.router"], "{part}");
        let key = "ns[shop]-policy[a]-rule[0]-deny-due-to-bad-CUSTOM-action";
        assert!(found[0]["typed_config"]["rules"]["policies"][key].is_object(), "{part}");
    }
    let balanced = rule_for_opa(json!({ "loadBalancer": { "simple": "RANDOM" } }));
    let policy = custom_policy("a", "rpc", json!([{ "paths": ["/a"] }]));
    let (context, proxy) = with_custom_policies(vec![policy], [balanced]);
    assert_eq!(names(&filters(&context, &proxy, 8080))[..2], [HTTP, ASK]);
}

/// A Sidecar limits the services that a workload calls, not the providers that its proxy queries.
#[test]
fn sidecar_without_the_provider_keeps_its_cluster() {
    let sidecar = json!({
        "apiVersion": "networking.istio.io/v1", "kind": "Sidecar",
        "metadata": { "namespace": "shop", "name": "default" },
        "spec": { "egress": [{ "hosts": ["./*"] }] },
    });
    let objects = [Arc::new(sidecar)].into_iter().collect();
    let mesh = MeshConfig::default();
    let mut index = TrafficIndex::new(KindSettings::for_domain("cluster.local", &mesh));
    let update = index.apply(&objects).expect("the first time");
    let scoped = || MeshEvent::Traffic(update.clone());
    let name = "outbound|81||opa.authz.svc.cluster.local";
    let (context, proxy) = with_custom_policies(
        vec![custom_policy("r", "rpc", json!([{ "paths": ["/r"] }]))],
        [scoped()],
    );
    let clusters = list_resources(&context, &proxy, ResourceType::Cluster);
    let opa_clusters: Vec<_> = clusters.keys().filter(|name| name.contains("opa.authz")).collect();
    assert_eq!(opa_clusters, [name], "only the port of the provider");
    let (context, proxy) = with_custom_policies(vec![], [scoped()]);
    let clusters = list_resources(&context, &proxy, ResourceType::Cluster);
    assert!(!clusters.contains_key(name), "no provider is queried");
}

/// Proxies that query a provider receive changes of the provider's service, whatever Sidecars they
/// follow. Other proxies do not.
#[test]
fn proxies_that_query_a_provider_receive_changes_of_its_service() {
    let sidecar_object = |namespace: &str| {
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": "Sidecar",
            "metadata": { "namespace": namespace, "name": "default" },
            "spec": { "egress": [{ "hosts": ["./*"] }] },
        })
    };
    let objects = ["shop", "pay"].map(|namespace| Arc::new(sidecar_object(namespace)));
    let objects = objects.into_iter().collect();
    let mut index =
        TrafficIndex::new(KindSettings::for_domain("cluster.local", &MeshConfig::default()));
    let mut mesh = mesh();
    mesh.apply(with_providers(both()));
    mesh.apply(event_with_root("root", [custom_policy("r", "rpc", json!([{ "paths": ["/r"] }]))]));
    mesh.apply(MeshEvent::Traffic(index.apply(&objects).expect("the first time")));
    mesh.apply(MeshEvent::Registry(shard("east", 1).network("n1").built()));
    mesh.apply(MeshEvent::Complete);
    let (before, _) = mesh.next_version().expect("a first version");
    mesh.apply(authorizers(vec![port("grpc", 81, 81)], vec![]));
    let (now, changes) = mesh.next_version().expect("a second");
    let locations = ["client.shop", "client.pay"].map(|name| {
        let proxy = sidecar(name, "east");
        let whereabouts = now.whereabouts(&proxy);
        Arc::new(ProxyLocation { proxy: Arc::new(proxy), network: "n1".into(), whereabouts })
    });
    let hosts = related_hosts([&before, &now], &changes.services());
    let affected = Cache::default().seen(&before, &now, &hosts, &locations);
    let lists = |at: usize| {
        let affected = &affected[at].lists;
        [Wildcard::Clusters, Wildcard::Listeners].map(|list| affected.contains(list))
    };
    assert_eq!([lists(0), lists(1)], [[true, true], [false, false]]);
}
