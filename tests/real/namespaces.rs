//! A member whose reader has only Roles in some namespaces of a real API server.

use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::apiserver::{Apiserver, Settings};
use crate::certs::Authority;
use crate::host::Host;
use crate::kube::{Request, endpoint_slice, namespace, service};
use crate::netns::Netns;
use crate::strait::Strait;
use crate::wait;

const LIMIT: Duration = Duration::from_secs(60);
const RBAC: &str = "rbac.authorization.k8s.io";
const READ: [&str; 3] = ["get", "list", "watch"];
const NAMESPACES: [(&str, u8); 3] = [("shop", 1), ("edge", 2), ("bank", 3)];

/// Serves `web` of a namespace at this address.
fn serve(apiserver: &Apiserver, (namespace, number): (&str, u8), address: &str) {
    let web = service(namespace, "web", &format!("10.96.7.{number}"), &[("http", 80, 8080)]);
    let slice = endpoint_slice(&web, &[("web-1".to_owned(), address.to_owned(), true)]);
    apiserver.apply(&[web, slice]);
}

/// Returns a role and its binding; cluster-wide without a namespace.
fn grant(namespace: Option<&str>, rules: &Value) -> [Value; 2] {
    let kind = if namespace.is_some() { "Role" } else { "ClusterRole" };
    let metadata = match namespace {
        Some(namespace) => json!({ "name": "strait-namespace-reader", "namespace": namespace }),
        None => json!({ "name": "strait-reader" }),
    };
    let version = format!("{RBAC}/v1");
    [
        json!({ "apiVersion": version, "kind": kind, "metadata": metadata, "rules": rules }),
        json!({
            "apiVersion": version, "kind": format!("{kind}Binding"), "metadata": metadata,
            "roleRef": { "apiGroup": RBAC, "kind": kind, "name": metadata["name"] },
            "subjects": [{ "apiGroup": RBAC, "kind": "User", "name": "strait-reader" }],
        }),
    ]
}

/// Waits until the control plane has exactly these addresses of `web`, in the order of
/// [`NAMESPACES`].
fn until(strait: &Strait, expected: [Option<&str>; 3]) {
    wait::until(LIMIT, &format!("the endpoints are {expected:?}"), || {
        let mut found = Vec::new();
        for (namespace, _) in NAMESPACES {
            let path = format!("/debug/endpoints?hostname=web.{namespace}");
            let rows = strait.try_json(&path).unwrap_or_default();
            found.push(rows[0]["address"].as_str().map(str::to_owned));
        }
        let is_equal = found.iter().map(Option::as_deref).eq(expected);
        if is_equal { Ok(()) } else { Err(format!("{found:?}")) }
    });
}

/// A control plane with one member, whose reader may read the namespaces `shop` and `edge`.
struct LimitedMember {
    apiserver: Apiserver,
    strait: Strait,
}

impl LimitedMember {
    /// Starts both. `name` is unique among scenarios.
    fn start(host: &Host, name: &str) -> Self {
        let hub = Rc::new(Netns::create(name));
        let authority = Authority::create(&host.subfolder(&format!("{name}-ca")), name);
        let settings = Settings {
            cluster: name,
            address: "127.0.0.1",
            port: 6443,
            service_cidr: "10.96.0.0/16",
        };
        let mut apiserver = Apiserver::start(host, &hub, &authority, &settings);
        apiserver.wait_until_ready();
        for (name, number) in NAMESPACES {
            apiserver.apply(&[namespace(name, json!({}))]);
            serve(&apiserver, (name, number), &format!("10.10.{number}.1"));
        }
        let kube_system = json!([{
            "apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"],
        }]);
        apiserver.apply(&grant(Some("shop"), &kinds()));
        apiserver.apply(&grant(Some("edge"), &kinds()));
        apiserver.apply(&grant(None, &kube_system));

        let folder = host.subfolder(&format!("{name}-config"));
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {
                "name": "east", "namespace": "strait-system",
                "labels": { "strait.dev/cluster": "true" },
                "annotations": { "strait.dev/network": "n1", "strait.dev/read-namespaces": "shop, edge" },
            },
            "stringData": { "east": apiserver.reader_kubeconfig() },
        });
        std::fs::write(folder.join("east.json"), secret.to_string()).unwrap();
        let arguments = [
            ("--config-dir", folder.to_str().expect("UTF-8")),
            ("--ca-dir", authority.folder().to_str().expect("UTF-8")),
            ("--xds-address", "127.0.0.1:0"),
            ("--admin-address", "127.0.0.1:0"),
        ];
        let arguments = arguments.iter().flat_map(|(flag, value)| [*flag, *value]);
        let strait = Strait::start(host, &hub, arguments.map(str::to_owned).collect());
        strait.wait_until_ready();
        strait.wait_for_cluster_state("east", &["live"], LIMIT);
        until(&strait, [Some("10.10.1.1"), Some("10.10.2.1"), None]);
        Self { apiserver, strait }
    }

    /// Waits until the reason of the cluster contains a text, or does not.
    fn until_reason(&self, text: &str, is_expected: bool) -> Value {
        wait::until(LIMIT, &format!("the reason contains {text}: {is_expected}"), || {
            let entry = self.strait.try_json("/debug/clusters")?[0].clone();
            let reason = entry["reason"].as_str().unwrap_or_default();
            if reason.contains(text) == is_expected { Ok(entry) } else { Err(reason.to_owned()) }
        })
    }
}

/// Returns the rules for a namespace.
fn kinds() -> Value {
    json!([
        { "apiGroups": [""], "resources": ["services", "pods"], "verbs": READ },
        { "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": READ },
    ])
}

/// The reader reads exactly the namespaces in which it has a Role.
pub(crate) fn run(host: &Host) {
    let LimitedMember { strait, .. } = &LimitedMember::start(host, "roles");
    let rights = strait.json("/debug/clusters")[0]["missingRights"].clone();
    let has = |right: &str| rights.as_array().is_some_and(|all| all.contains(&json!(right)));
    assert!(has("list nodes") && has("list namespaces"), "{rights}");
    for (namespace, _) in NAMESPACES {
        assert!(!has(&format!("list services in {namespace}")), "{rights}");
    }
}

/// The objects of a namespace stay while its Role or its RoleBinding is missing.
pub(crate) fn lost_namespace(host: &Host) {
    let mut member = LimitedMember::start(host, "lost-role");
    let kept = ["10.10.2.1", "10.10.2.2"];
    for (round, collection) in (2..).zip(["rolebindings", "roles"]) {
        let path = format!("/apis/{RBAC}/v1/namespaces/edge/{collection}/strait-namespace-reader");
        member.apiserver.requests(&[Request::delete(&path)]);
        // A running watch survives the loss of its right, until it ends.
        member.apiserver.stop();
        member.apiserver.launch();
        member.apiserver.wait_until_ready();
        let entry = member.until_reason("STR0318: namespace edge", true);
        assert_eq!(entry["state"], "stale", "{entry}");
        assert_eq!(entry["unreadNamespaces"][0]["namespace"], "edge", "{entry}");
        let addresses = [1, 2].map(|number| format!("10.10.{number}.{round}"));
        let [shop, edge] = &addresses;
        serve(&member.apiserver, ("edge", 2), edge);
        serve(&member.apiserver, ("shop", 1), shop);
        until(&member.strait, [Some(shop), Some(kept[round - 2]), None]);

        member.apiserver.apply(&grant(Some("edge"), &kinds()));
        until(&member.strait, [Some(shop), Some(edge), None]);
        let entry = member.until_reason("STR0318", false);
        assert!(entry["unreadNamespaces"].is_null(), "{entry}");
        member.strait.wait_for_cluster_state("east", &["live"], LIMIT);
    }
}
