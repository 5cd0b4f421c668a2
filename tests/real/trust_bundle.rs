//! The roots in a ClusterTrustBundle of a real API server, with exactly the rights that
//! `strait cluster add --roots` grants for it.

use std::rc::Rc;
use std::time::Duration;

use serde_json::json;

use crate::apiserver::{Apiserver, Settings, reader_rights};
use crate::certs::Authority;
use crate::host::Host;
use crate::kube::{Request, namespace};
use crate::netns::Netns;
use crate::strait::Strait;
use crate::wait;

const LIMIT: Duration = Duration::from_secs(60);
/// The version that kube-apiserver 1.36 serves, behind a feature gate.
const PATH: &str = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles/strait.dev:mesh:roots";

pub(crate) fn run(host: &Host) {
    let hub = Rc::new(Netns::create("bundle"));
    let authority = Authority::create(&host.subfolder("bundle-ca"), "bundle");
    let settings = Settings {
        cluster: "bundle",
        address: "127.0.0.1",
        port: 6443,
        service_cidr: "10.96.0.0/16",
    };
    let mut apiserver = Apiserver::start(host, &hub, &authority, &settings);
    apiserver.wait_until_ready();
    let role = "strait-trust-bundle";
    let rules = json!([
        { "apiGroups": [""], "resources": ["secrets", "configmaps"], "verbs": ["get", "list", "watch"] },
        {
            "apiGroups": ["certificates.k8s.io"], "resources": ["clustertrustbundles"],
            "resourceNames": ["strait.dev:mesh:roots"], "verbs": ["create", "get", "patch"],
        },
        {
            "apiGroups": ["certificates.k8s.io"], "resources": ["signers"],
            "resourceNames": ["strait.dev/mesh"], "verbs": ["attest"],
        },
        // The cluster is the config cluster, so its account may also hold the Lease of the writer.
        { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "get", "update"] },
    ]);
    apiserver.apply(&reader_rights());
    apiserver.apply(&[
        namespace("strait-system", json!({})),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": { "name": role }, "rules": rules,
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": role },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "strait-reader" }],
        }),
    ]);
    let kubeconfig = host.subfolder("bundle-config").join("kubeconfig");
    std::fs::write(&kubeconfig, apiserver.reader_kubeconfig()).unwrap();
    let arguments = [
        ("--kubeconfig", kubeconfig.to_str().expect("UTF-8")),
        ("--cluster-id", "hub"),
        ("--ca-dir", authority.folder().to_str().expect("UTF-8")),
        ("--xds-address", "127.0.0.1:0"),
        ("--admin-address", "127.0.0.1:0"),
    ];
    let arguments = arguments.iter().flat_map(|(flag, value)| [*flag, *value]);
    let strait = Strait::start(host, &hub, arguments.map(str::to_owned).collect());
    strait.wait_until_ready();
    let found = wait::until(LIMIT, "the ClusterTrustBundle is written", || {
        let answers = apiserver.try_requests(&[Request::get(PATH)])?;
        answers.into_iter().next().ok_or_else(|| "no answer".to_owned())
    });
    let spec = &found["spec"];
    assert_eq!(spec["signerName"], "strait.dev/mesh", "{found}");
    let roots = spec["trustBundle"].as_str().unwrap_or_default();
    assert!(roots.contains(authority.pem().trim()), "{found}");
    assert_eq!(roots.matches("BEGIN CERTIFICATE").count(), 1, "each root once: {roots}");
    assert_eq!(found["metadata"]["labels"]["app.kubernetes.io/managed-by"], "strait");
}
