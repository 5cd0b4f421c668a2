//! Tests of the formats: Secrets as each tool writes them, accepted, or refused with the fix.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::*;
use crate::clusters::kubeconfig::KubeconfigRefusal;
use crate::clusters::secret::MemberSecret;
use crate::store::ObjectName;
use strait_base::codes;
use strait_kube_client::{Access, ApiCredential, Redacted};
use strait_model::ReadNamespaces;

const SERVER: &str = "https://api.example.org:6443";

fn certificate() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(["reader".to_owned()]).expect("a certificate");
    (made.cert.pem(), made.signing_key.serialize_pem())
}

/// Returns a kubeconfig with this user.
fn kubeconfig(server: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: '{server}'}}}}]\n\
         users: [{{name: u, user: {user}}}]\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n\
         current-context: x\n"
    )
}

fn admin(server: &str) -> String {
    let (certificate, key) = certificate();
    let [certificate, key] = [certificate, key].map(|pem| BASE64.encode(pem));
    let user = format!("{{client-certificate-data: {certificate}, client-key-data: {key}}}");
    kubeconfig(server, &user)
}

/// Creates a Secret from its type, labels, annotations and data.
fn secret(
    secret_type: &str,
    labels: &[(&str, &str)],
    annotations: &[(&str, &str)],
    data: &[(&str, &str)],
) -> WatchedSecret {
    let owned = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let data: BTreeMap<String, String> = owned(data);
    WatchedSecret {
        name: ObjectName::new("strait-system", "a"),
        labels: owned(labels),
        annotations: owned(annotations),
        created: None,
        uid: None,
        secret_type: secret_type.to_owned(),
        source: None,
        profile: None,
        decision: None,
        data: data.into_iter().map(|(key, text)| (key, Redacted::new(text.into_bytes()))).collect(),
    }
}

/// Returns the IDs of a Secret, each with the code of its refusal.
fn ids(secret: &WatchedSecret) -> Vec<(String, &'static str)> {
    let read = MemberSecret::read(secret, Loopback::Refused);
    let usable = read.clusters.iter().map(|(id, member)| {
        (id.to_string(), member.as_ref().err().map_or("", |refusal| refusal.code.id))
    });
    let invalid = read.invalid_keys.iter().map(|(key, refusal)| (key.clone(), refusal.code.id));
    usable.chain(invalid).collect()
}

fn only(secret: &WatchedSecret) -> Result<(Access, MemberReach), KubeconfigRefusal> {
    let read = MemberSecret::read(secret, Loopback::Refused);
    assert_eq!(read.clusters.len(), 1, "{read:?}");
    let (_, member) = read.clusters.into_iter().next().expect("one cluster");
    member.map(|member| (member.access, member.reach))
}

fn refusal(secret: &WatchedSecret) -> KubeconfigRefusal {
    only(secret).expect_err("it is refused")
}

const CAPI: &str = "cluster.x-k8s.io/secret";
const CAPI_LABEL: (&str, &str) = ("cluster.x-k8s.io/cluster-name", "prod-eu");
const ARGO: (&str, &str) = ("argocd.argoproj.io/secret-type", "cluster");

#[test]
fn secret_of_cluster_api_is_one_member_named_by_its_label() {
    let with_copy = [
        ("value", &*admin(SERVER)),
        ("relative", "tokenFile: ./token-file"),
        ("token-file", "k8s-aws-v1.x"),
    ];
    // EKS adds two keys that no other provider has.
    let eks = secret(CAPI, &[CAPI_LABEL], &[], &with_copy);
    assert_eq!(ids(&eks), [("prod-eu".to_owned(), "")]);
    let named = secret(CAPI, &[CAPI_LABEL], &[(CLUSTER_ID_ANNOTATION, "east")], &with_copy);
    assert_eq!(ids(&named), [("east".to_owned(), "")]);
    let without = secret(CAPI, &[], &[], &with_copy);
    assert_eq!(ids(&without), [("a".to_owned(), "STR0235")]);
    let empty = secret(CAPI, &[CAPI_LABEL], &[], &[("other", "x")]);
    assert_eq!(refusal(&empty).code.id, "STR0230");
}

#[test]
fn user_kubeconfigs_of_clouds_are_refused_with_the_identity_that_replaces_them() {
    for (user, kind) in [
        ("{exec: {command: aws, args: [eks, get-token]}}", "type aws"),
        ("{exec: {command: aws-iam-authenticator}}", "type aws"),
        ("{exec: {command: /usr/bin/gke-gcloud-auth-plugin}}", "type google"),
        ("{exec: {command: kubelogin}}", "type azure"),
    ] {
        let config = kubeconfig(SERVER, user);
        for object in [
            secret(CAPI, &[CAPI_LABEL], &[], &[("value", &config)]),
            secret("Opaque", &[], &[], &[("east", &config)]),
        ] {
            let refusal = refusal(&object);
            assert_eq!(refusal.code.id, "STR0203");
            assert!(refusal.fact.contains(kind), "{refusal}");
        }
    }
}

#[test]
fn hosted_control_planes_are_read_by_the_key_that_the_annotation_names() {
    for (tool, key, labels) in [
        ("k0smotron", "value", &[][..]),
        ("Kamaji", "admin.conf", &[]),
        ("HyperShift", "kubeconfig", &[]),
        ("vcluster", "config", &[("app", "vcluster")]),
        ("Sveltos", "kubeconfig", &[]),
        ("Crossplane", "kubeconfig", &[]),
        ("Gardener", "kubeconfig", &[]),
        ("Teleport", "kubeconfig.yaml", &[]),
    ] {
        let annotations = [(KUBECONFIG_KEY_ANNOTATION, key), (CLUSTER_ID_ANNOTATION, "east")];
        let config = admin(SERVER);
        let data = [(key, &*config), ("certificate-authority", "x"), ("token", "y")];
        let object = secret("Opaque", labels, &annotations, &data);
        assert_eq!(ids(&object), [("east".to_owned(), "")], "{tool}");
        let (access, _) = only(&object).expect(tool);
        assert!(matches!(access.credential, ApiCredential::Certificate { .. }), "{tool}");
    }
    // Without the annotation with the ID, the key is the ID.
    let config = admin(SERVER);
    let object = secret("", &[], &[(KUBECONFIG_KEY_ANNOTATION, "config")], &[("config", &config)]);
    assert_eq!(ids(&object), [("config".to_owned(), "")]);
    let object = secret("", &[], &[(KUBECONFIG_KEY_ANNOTATION, "x")], &[("config", &config)]);
    let refusal = refusal(&object);
    assert_eq!(refusal.code.id, "STR0230");
    assert!(refusal.fact.contains("config"), "{refusal}");
}

#[test]
fn vcluster_needs_an_address_that_the_control_plane_reaches() {
    let config = admin("https://localhost:8443");
    let key = (KUBECONFIG_KEY_ANNOTATION, "config");
    let object = secret("Opaque", &[], &[key], &[("config", &config)]);
    assert_eq!(refusal(&object).code.id, "STR0209");
    assert!(codes::LOOPBACK_SERVER.page.contains(API_SERVER_ANNOTATION));
    let server = (API_SERVER_ANNOTATION, "https://lab.example.org:443");
    let name = (TLS_SERVER_NAME_ANNOTATION, "kubernetes.default.svc");
    let object = secret("Opaque", &[], &[key, server, name], &[("config", &config)]);
    let (access, _) = only(&object).expect("usable");
    assert_eq!(access.server, "https://lab.example.org:443");
    assert_eq!(access.tls_server_name.as_deref(), Some("kubernetes.default.svc"));
    // The address checks apply to the annotation too; an empty one counts as absent.
    for (value, code) in [
        ("https://127.0.0.1:6443", "STR0209"),
        ("https://169.254.169.254", "STR0218"),
        ("http://lab.example.org", "STR0210"),
        ("", "STR0209"),
    ] {
        let server = (API_SERVER_ANNOTATION, value);
        let refusal = refusal(&secret("Opaque", &[], &[key, server], &[("config", &config)]));
        assert_eq!(refusal.code.id, code, "{value}");
        assert!(value.is_empty() || refusal.field == API_SERVER_ANNOTATION, "{refusal}");
    }
    let name = (TLS_SERVER_NAME_ANNOTATION, "a b");
    let object = secret("Opaque", &[], &[key, server, name], &[("config", &config)]);
    assert_eq!(refusal(&object).code.id, "STR0210");
}

#[test]
fn pushed_secret_of_a_cluster_profile_is_named_by_its_label() {
    let config = kubeconfig(SERVER, "{token: canary}");
    let labels = [("x-k8s.io/cluster-profile", "prod-eu")];
    let annotations = [(KUBECONFIG_KEY_ANNOTATION, "Config")];
    let object = secret("Opaque", &labels, &annotations, &[("Config", &config)]);
    assert_eq!(ids(&object), [("prod-eu".to_owned(), "")]);
    let object = secret("Opaque", &[], &annotations, &[("Config", &config)]);
    assert_eq!(ids(&object), [("Config".to_owned(), "STR0215")]);
}

#[test]
fn kubeconfig_of_rancher_is_native_with_an_annotated_expiry() {
    let config = kubeconfig(
        "https://rancher.example.org/k8s/clusters/c-1",
        "{token: 'kubeconfig-user-abc:canary'}",
    );
    let expires = (EXPIRES_ANNOTATION, "2027-01-31T00:00:00Z");
    let (access, reach) =
        only(&secret("Opaque", &[], &[expires], &[("east", &config)])).expect("usable");
    assert_eq!(access.server.path(), "/k8s/clusters/c-1");
    assert_eq!(reach.expires.map(|time| time.to_string()).as_deref(), Some(expires.1));
    let invalid = (EXPIRES_ANNOTATION, "soon");
    let (_, reach) =
        only(&secret("Opaque", &[], &[invalid], &[("east", &config)])).expect("usable");
    assert_eq!(reach.expires, None);
    assert_eq!(reach.remark.map(|remark| remark.code.id), Some("STR0217"));
}

/// Karmada and OCM keep a token and a CA: no kubeconfig, so each key is refused.
#[test]
fn secrets_without_a_kubeconfig_are_refused_by_key() {
    let karmada = secret("Opaque", &[], &[], &[("token", "canary"), ("caBundle", "pem")]);
    assert_eq!(
        ids(&karmada),
        [("token".to_owned(), "STR0201"), ("caBundle".to_owned(), "STR0215")]
    );
    let ocm = secret("Opaque", &[], &[], &[("token", "canary"), ("ca.crt", "pem")]);
    let read = ids(&ocm);
    assert!(read.iter().all(|(_, code)| *code == "STR0201"), "{read:?}");
}

fn argo(config: &str, more: &[(&str, &str)]) -> WatchedSecret {
    let mut data = vec![("name", "prod-eu"), ("server", SERVER), ("config", config)];
    data.extend(more);
    secret("Opaque", &[ARGO], &[], &data)
}

#[test]
fn credentials_of_argo_cd_are_read() {
    let (certificate, key) = certificate();
    let [pem, key] = [&certificate, &key].map(|pem| BASE64.encode(pem));
    let (access, _) = only(&argo(
        &format!(r#"{{"bearerToken": "canary", "tlsClientConfig": {{"insecure": false, "caData": "{pem}", "serverName": "x.example"}}, "disableCompression": true}}"#),
        &[("project", "p"), ("shard", "1")],
    ))
    .expect("a token");
    assert_eq!(access.credential, ApiCredential::Token(Redacted::new("canary".to_owned())));
    assert_eq!(access.ca_pem.as_deref(), Some(certificate.as_bytes()));
    assert_eq!(access.tls_server_name.as_deref(), Some("x.example"));
    let (access, _) =
        only(&argo(r#"{"username": "u", "password": "canary"}"#, &[])).expect("basic");
    assert!(matches!(access.credential, ApiCredential::Basic { .. }));
    let config = format!(
        r#"{{"tlsClientConfig": {{"certData": "{pem}", "keyData": "{key}", "serverName": ""}}}}"#
    );
    let (access, _) = only(&argo(&config, &[])).expect("a certificate");
    assert!(matches!(access.credential, ApiCredential::Certificate { .. }));
    let aws = r#"{"awsAuthConfig": {"clusterName": "eks-1", "roleARN": "arn:aws:iam::1:role/r"}}"#;
    let (access, reach) = only(&argo(aws, &[])).expect("an identity");
    assert_eq!(access.credential, ApiCredential::None);
    assert_eq!(reach.identity_cluster.as_deref(), Some("eks-1"));
    let role = Some("arn:aws:iam::1:role/r".into());
    assert_eq!(reach.identity, Some(IdentityChoice::Aws { role }));
}

#[test]
fn unusable_config_of_argo_cd_is_refused_and_not_tried_as_another_format() {
    for (config, code, fact) in [
        ("{", "STR0229", "not JSON"),
        ("[]", "STR0229", "not a map"),
        (
            r#"{"bearerToken": 5}"#,
            "STR0229",
            "config.bearerToken has the wrong type; it must be a string",
        ),
        (
            r#"{"tlsClientConfig": {"insecure": "false"}}"#,
            "STR0229",
            "config.tlsClientConfig.insecure has the wrong type; it must be true or false",
        ),
        (
            r#"{"tlsClientConfig": "canary"}"#,
            "STR0229",
            "config.tlsClientConfig has the wrong type; it must be a JSON object",
        ),
        (r#"{"token": "canary"}"#, "STR0229", "unknown field `token`"),
        (r#"{"bearerToken": "canary", "username": "u"}"#, "STR0229", "more than one"),
        (
            r#"{"bearerToken": "a", "awsAuthConfig": {"clusterName": "x"}}"#,
            "STR0229",
            "more than one",
        ),
        (r#"{"awsAuthConfig": {"clusterName": "x", "profile": "/etc/x"}}"#, "STR0229", "profile"),
        (r#"{"tlsClientConfig": {"insecure": true}}"#, "STR0205", "skips"),
        (r#"{"tlsClientConfig": {"certData": "eA=="}}"#, "STR0214", "is missing"),
        (
            r#"{"execProviderConfig": {"command": "argocd-k8s-auth", "args": ["aws"]}}"#,
            "STR0203",
            "type aws",
        ),
        (
            r#"{"execProviderConfig": {"command": "argocd-k8s-auth", "args": ["gcp"]}}"#,
            "STR0203",
            "type google",
        ),
        (
            r#"{"execProviderConfig": {"command": "argocd-k8s-auth", "args": ["azure"]}}"#,
            "STR0203",
            "type azure",
        ),
        (r#"{"execProviderConfig": {"command": "/tmp/owned"}}"#, "STR0203", "runs a program"),
    ] {
        let refusal = refusal(&argo(config, &[]));
        assert_eq!(refusal.code.id, code, "{config}: {refusal}");
        assert!(refusal.to_string().contains(fact), "{config}: {refusal}");
        let shown = format!("{refusal}{refusal:?}");
        assert!(!shown.contains("canary") && !shown.contains("owned"), "{shown}");
    }
    let marked = [(KUBECONFIG_KEY_ANNOTATION, "kubeconfig")];
    let config = admin(SERVER);
    let both =
        secret(CAPI, &[ARGO, CAPI_LABEL], &marked, &[("kubeconfig", &config), ("value", &config)]);
    assert_eq!(ids(&both), [("a".to_owned(), "STR0235")], "the label of Argo CD comes first");
    let both = secret(CAPI, &[CAPI_LABEL], &marked, &[("kubeconfig", &config)]);
    assert_eq!(refusal(&both).code.id, "STR0230", "the type of Cluster API comes second");
}

#[test]
fn name_and_server_of_argo_cd_are_checked() {
    let object = secret("", &[ARGO], &[], &[("name", "Prod_1"), ("server", SERVER)]);
    assert_eq!(ids(&object), [("Prod_1".to_owned(), "STR0215")]);
    let read = MemberSecret::read(&object, Loopback::Refused);
    assert!(read.invalid_keys["Prod_1"].fact.contains(CLUSTER_ID_ANNOTATION));
    let named = [(CLUSTER_ID_ANNOTATION, "prod-1")];
    let object = secret("", &[ARGO], &named, &[("name", "Prod_1"), ("server", SERVER)]);
    assert_eq!(ids(&object), [("prod-1".to_owned(), "")]);
    for own in
        ["https://kubernetes.default.svc", "https://kubernetes.default.svc.cluster.local:443"]
    {
        let object = secret("", &[ARGO], &[], &[("name", "in-cluster"), ("server", own)]);
        let refusal = refusal(&object);
        assert!(
            refusal.code.id == "STR0229" && refusal.fact.contains("config cluster"),
            "{refusal}"
        );
    }
    let object = secret("", &[ARGO], &[], &[("name", "a")]);
    assert_eq!(refusal(&object).fact, "is missing");
    let object =
        secret("", &[("argocd.argoproj.io/secret-type", "repository")], &[], &[("name", "a")]);
    assert_eq!(ids(&object), [("name".to_owned(), "STR0201")], "another kind of Argo CD Secret");
}

#[test]
fn namespaces_of_argo_cd_limit_the_reader() {
    let read = |object: &WatchedSecret| only(object).expect("usable").1.namespaces;
    let namespaces = |more: &[(&str, &str)]| read(&argo("{}", more));
    let of = |names: &[&str]| ReadNamespaces::of(names).expect("valid");
    let (whole, shop) = (ReadNamespaces::default(), of(&["shop"]));
    assert_eq!(namespaces(&[("namespaces", "shop, edge ,shop")]), of(&["edge", "shop"]));
    assert_eq!(namespaces(&[("namespaces", "shop"), ("clusterResources", "true")]), whole);
    assert_eq!(namespaces(&[("namespaces", "")]), whole);
    assert_eq!(namespaces(&[("namespaces", "shop"), ("clusterResources", "false")]), shop);
    let mut annotated = argo("{}", &[("namespaces", "shop")]);
    let mut annotate = |text: &str| {
        let name = READ_NAMESPACES_ANNOTATION.to_owned();
        annotated.annotations.insert(name, text.to_owned());
        annotated.clone()
    };
    assert_eq!(read(&annotate("edge")), of(&["edge"]), "the annotation takes precedence");
    assert_eq!(read(&annotate(" ")), shop);
    let refused = refusal(&annotate("edge,Shop"));
    assert_eq!(refused.code.id, "STR0217");
    assert!(refused.to_string().contains("annotation strait.dev/read-namespaces"), "{refused}");
    let refused = refusal(&argo("{}", &[("namespaces", "shop,*")]));
    assert_eq!((refused.code.id, &*refused.field), ("STR0229", "namespaces"));
}

#[test]
fn identity_replaces_the_credential_and_does_not_join_one() {
    let identity = [(IDENTITY_ANNOTATION, "eks"), (IDENTITY_CLUSTER_ANNOTATION, "eks-1")];
    let bare = kubeconfig(SERVER, "{}");
    let (access, reach) =
        only(&secret("", &[], &identity, &[("east", &bare)])).expect("an identity");
    assert_eq!(access.credential, ApiCredential::None);
    assert_eq!(reach.identity, Some(IdentityChoice::Named("eks".into())));
    assert_eq!(reach.identity_cluster.as_deref(), Some("eks-1"));
    let with_token = kubeconfig(SERVER, "{token: canary}");
    let refusal = refusal(&secret("", &[], &identity, &[("east", &with_token)]));
    assert_eq!(refusal.code.id, "STR0228");
    let argo = secret(
        "",
        &[ARGO],
        &identity,
        &[("name", "east"), ("server", SERVER), ("config", r#"{"bearerToken": "canary"}"#)],
    );
    assert_eq!(self::refusal(&argo).code.id, "STR0228");
}

#[test]
fn annotation_names_the_only_kubeconfig_of_a_native_secret() {
    let config = admin(SERVER);
    let named = [(CLUSTER_ID_ANNOTATION, "east")];
    let object = secret("", &[], &named, &[("kubeconfig", &config)]);
    assert_eq!(ids(&object), [("east".to_owned(), "")]);
    let object = secret("", &[], &named, &[("a", &config), ("b", &config)]);
    assert_eq!(ids(&object), [("a".to_owned(), "STR0217"), ("b".to_owned(), "STR0217")]);
}
