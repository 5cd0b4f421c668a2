//! Reads and writes Secrets that describe member clusters.
//!
//! In the native format, each data key is a cluster ID, each value a kubeconfig. `formats.rs` reads
//! the formats of other tools. An error in one value affects only that value.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::Value;

pub use super::formats::CLUSTER_ID_ANNOTATION;
use super::formats::{self, MemberReach, READ_NAMESPACES_ANNOTATION};
use super::kubeconfig::{self, KubeconfigRefusal};
use crate::members::profile::ID_PROPERTY;
use crate::store::{ISTIO_SECRET_LABEL, ObjectName, WatchedSecret};
use strait_base::codes;
use strait_kube_client::{Access, ApiCredential, Loopback};
use strait_model::{ClusterId, Mode, NetworkId, is_set_name, is_trust_domain};
use strait_relay::hub::{
    INVITATION_EXPIRES_KEY, INVITATION_KEY, RELAY_ANNOTATION, RelayAnnotationError, RelayedMember,
};

/// Fixes the network of the Secret's clusters.
pub const NETWORK_ANNOTATION: &str = "strait.dev/network";
/// `drain` or `pause`.
pub const MODE_ANNOTATION: &str = "strait.dev/mode";
/// The expected UID of the cluster's namespace `kube-system`. No other cluster is accepted, and
/// this one is accepted even if a different cluster had this ID before.
pub const UID_ANNOTATION: &str = "strait.dev/cluster-uid";
/// The trust domain of the workloads of the Secret's clusters, if it is not the mesh's.
pub const TRUST_DOMAIN_ANNOTATION: &str = "strait.dev/trust-domain";
/// The name of the Secret's cluster in the cluster set (multi-cluster services), if it is not the
/// cluster ID.
pub const SET_NAME_ANNOTATION: &str = "strait.dev/clusterset-id";
/// `true`: Strait renews the Secret's tokens itself, if their accounts may request tokens.
pub const SELF_RENEW_ANNOTATION: &str = "strait.dev/self-renew";
/// Istio's annotation that names the Secret's cluster; written for people and tools, never read.
const ISTIO_CLUSTER_ANNOTATION: &str = "networking.istio.io/cluster";

/// The content of one Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberSecret {
    /// The Secret.
    pub name: ObjectName,
    /// The kind of the object: `Secret` or `ClusterProfile`.
    pub kind: &'static str,
    /// Its creation time: the older of two Secrets holds an ID.
    pub created: Option<Timestamp>,
    /// The source in the operator file that it comes from; `None` for the system namespace.
    pub source: Option<Arc<str>>,
    /// The position of that source: of equally old Secrets, the first source's takes precedence.
    pub source_order: usize,
    /// Its clusters, each usable or refused. Boxed, because a node of the map has space for eleven.
    pub clusters: BTreeMap<ClusterId, Result<Box<MemberSpec>, KubeconfigRefusal>>,
    /// Data keys that cannot be cluster IDs.
    pub invalid_keys: BTreeMap<String, KubeconfigRefusal>,
    /// The settings in its annotations, if they are valid. They apply even to a cluster whose
    /// kubeconfig is invalid.
    pub settings: Option<MemberSettings>,
}

/// The specification of one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberSpec {
    /// How to reach its API server.
    pub access: Access,
    /// Its network, if the Secret fixes it.
    pub network: Option<NetworkId>,
    /// The mode that an operator requested.
    pub mode: Mode,
    /// The expected UID of the cluster, from the operator.
    pub uid: Option<Arc<str>>,
    /// The trust domain of the cluster's workloads; `None` for the mesh's.
    pub trust_domain: Option<Arc<str>>,
    /// How the API server is reached, and the identity that authenticates.
    pub reach: MemberReach,
    /// The name of the cluster in the set; `None` for its ID.
    pub set_name: Option<Arc<str>>,
}

/// The settings in the annotations of a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberSettings {
    /// The network that it fixes.
    pub network: Option<NetworkId>,
    /// The mode that an operator requests.
    pub mode: Mode,
    /// The expected UID of the cluster.
    pub uid: Option<Arc<str>>,
    /// The trust domain of the workloads; `None` for the mesh's.
    pub trust_domain: Option<Arc<str>>,
    /// The name of the cluster in the set; `None` for its ID.
    pub set_name: Option<Arc<str>>,
}

/// The group whose members have all rights, independent of RBAC.
const ADMIN_GROUP: &str = "system:masters";

impl MemberSpec {
    /// Whether its client certificate belongs to the group of administrators.
    pub(super) fn has_all_rights(&self) -> bool {
        let certificate_pem = match &self.access.credential {
            ApiCredential::Certificate { certificate_pem, .. }
            | ApiCredential::CertificateAndToken { certificate_pem, .. } => certificate_pem,
            _ => return false,
        };
        let Ok(certificate) = CertificateDer::from_pem_slice(certificate_pem) else { return false };
        let Ok((_, certificate)) = x509_parser::parse_x509_certificate(&certificate) else {
            return false;
        };
        let mut groups = certificate.subject().iter_organization();
        groups.any(|group| group.as_str() == Ok(ADMIN_GROUP))
    }

    fn new(access: Access, reach: MemberReach, settings: MemberSettings) -> Self {
        let MemberSettings { network, mode, uid, trust_domain, set_name } = settings;
        Self { access, network, mode, uid, trust_domain, reach, set_name }
    }

    /// Returns the settings that come from annotations.
    pub(super) fn settings(&self) -> MemberSettings {
        let Self { network, mode, uid, trust_domain, set_name, .. } = self;
        MemberSettings {
            network: network.clone(),
            mode: *mode,
            uid: uid.clone(),
            trust_domain: trust_domain.clone(),
            set_name: set_name.clone(),
        }
    }
}

impl MemberSecret {
    /// Creates a Secret that is presumed to exist, with known clusters and no other content.
    pub(super) fn unread(
        name: ObjectName,
        ids: BTreeSet<ClusterId>,
        refusal: &KubeconfigRefusal,
    ) -> Self {
        Self {
            name,
            kind: "Secret",
            created: None,
            source: None,
            source_order: 0,
            clusters: ids.into_iter().map(|id| (id, Err(refusal.clone()))).collect(),
            invalid_keys: BTreeMap::new(),
            settings: None,
        }
    }

    /// Parses `secret`. `loopback` decides whether loopback addresses are allowed.
    pub fn read(secret: &WatchedSecret, loopback: Loopback) -> Self {
        let settings = settings(&secret.annotations);
        let mut read = Self {
            name: secret.name.clone(),
            kind: if secret.profile.is_some() { "ClusterProfile" } else { "Secret" },
            created: secret.created,
            source: secret.source.clone(),
            source_order: 0,
            clusters: BTreeMap::new(),
            invalid_keys: BTreeMap::new(),
            settings: settings.clone().ok(),
        };
        if is_relayed(secret) {
            read.add_relayed(secret, settings);
            return read;
        }
        let found = formats::read(secret, loopback);
        if found.is_empty() {
            let fact = "the Secret has the member label but no data";
            let refusal = KubeconfigRefusal::new(&codes::KUBECONFIG_UNREADABLE, "", fact);
            read.invalid_keys.insert(secret.name.name.to_string(), refusal);
        }
        for (key, member) in found {
            match ClusterId::parse(&key) {
                Ok(id) => {
                    let member = settings.clone().and_then(|settings| {
                        let (access, reach) = member?;
                        Ok(MemberSpec::new(access, reach, settings))
                    });
                    read.clusters.insert(id, member.map(Box::new));
                }
                Err(error) => {
                    let fact =
                        format!("{error}; the annotation {CLUSTER_ID_ANNOTATION} names another ID");
                    let refusal = match member {
                        Err(refusal) if refusal.code == &codes::ID_MISSING => refusal,
                        _ => KubeconfigRefusal::new(&codes::CLUSTER_ID_INVALID, "", fact),
                    };
                    read.invalid_keys.insert(key, refusal);
                }
            }
        }
        read
    }

    /// Gives the only member the ID that it had before.
    pub(super) fn keep_id(&mut self, id: ClusterId) {
        if self.clusters.len() != 1 || self.clusters.contains_key(&id) {
            return;
        }
        let Some((other, mut member)) = self.clusters.pop_first() else { return };
        if let Ok(spec) = &mut member {
            let fact = format!("names the ID {other} now; the member stays {id}");
            let field = format!("property {ID_PROPERTY}");
            let remark = KubeconfigRefusal::new(&codes::PROFILE_ID_KEPT, field, fact);
            spec.reach.remark.get_or_insert(remark);
        }
        self.clusters.insert(id, member);
    }

    /// Adds the only member of a Secret without a kubeconfig, which is read through a relay.
    fn add_relayed(
        &mut self,
        secret: &WatchedSecret,
        settings: Result<MemberSettings, KubeconfigRefusal>,
    ) {
        let text = secret.annotations.get(CLUSTER_ID_ANNOTATION).map_or("", String::as_str);
        if text.is_empty() {
            let fact = format!(
                "the Secret of a relay ({RELAY_ANNOTATION}) has no cluster ID; set the annotation {CLUSTER_ID_ANNOTATION}"
            );
            let refusal = KubeconfigRefusal::new(&codes::ID_MISSING, "", fact);
            self.invalid_keys.insert(secret.name.name.to_string(), refusal);
            return;
        }
        let id = match ClusterId::parse(text) {
            Ok(id) => id,
            Err(error) => {
                let field = format!("annotation {CLUSTER_ID_ANNOTATION}");
                let code = &codes::CLUSTER_ID_INVALID;
                let refusal = KubeconfigRefusal::new(code, field, error.to_string());
                self.invalid_keys.insert(text.to_owned(), refusal);
                return;
            }
        };
        let member = settings.and_then(|settings| {
            let namespaces = formats::read_namespaces(secret)?;
            read_relayed(secret, settings.uid.clone()).map_err(|error| {
                KubeconfigRefusal::new(&codes::ANNOTATION_INVALID, error.field, error.fact)
            })?;
            let reach = MemberReach { namespaces, ..MemberReach::default() };
            Ok(MemberSpec::new(Access::relay(), reach, settings))
        });
        self.clusters.insert(id, member.map(Box::new));
    }
}

/// Whether a Secret defines a member that is read through a relay. An invalid value of the annotation
/// counts if the Secret contains no kubeconfig.
fn is_relayed(secret: &WatchedSecret) -> bool {
    let is_of_relay = |key: &String| [INVITATION_KEY, INVITATION_EXPIRES_KEY].contains(&&**key);
    secret.profile.is_none()
        && match flag(&secret.annotations, RELAY_ANNOTATION) {
            Ok(is_relayed) => is_relayed,
            Err(_) => secret.data.keys().all(is_of_relay),
        }
}

/// Returns the value of an annotation that is `true`, `false` or absent.
pub(super) fn flag(
    annotations: &BTreeMap<String, String>,
    annotation: &str,
) -> Result<bool, KubeconfigRefusal> {
    match annotations.get(annotation).map(String::as_str) {
        // A template may leave the value empty.
        None | Some("" | "false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(refused(annotation, "is neither true nor false")),
    }
}

/// Returns the refusal of an annotation with an invalid value.
fn refused(annotation: &str, fact: &str) -> KubeconfigRefusal {
    KubeconfigRefusal::new(&codes::ANNOTATION_INVALID, format!("annotation {annotation}"), fact)
}

fn read_relayed(
    secret: &WatchedSecret,
    uid: Option<Arc<str>>,
) -> Result<RelayedMember, RelayAnnotationError> {
    let name = (secret.name.namespace.to_string(), secret.name.name.to_string());
    let data = |key: &str| secret.data.get(key).map(|value| value.reveal().as_slice());
    RelayedMember::read(name, &secret.annotations, uid, data)
}

/// Returns the member of a Secret that is read through a relay; `None` for any other or invalid Secret. `uid` is the UID
/// that the operator expects.
pub(super) fn relayed_member(
    secret: &WatchedSecret,
    uid: Option<Arc<str>>,
) -> Option<RelayedMember> {
    is_relayed(secret).then(|| read_relayed(secret, uid).ok()).flatten()
}

fn settings(annotations: &BTreeMap<String, String>) -> Result<MemberSettings, KubeconfigRefusal> {
    flag(annotations, RELAY_ANNOTATION)?;
    let mode = match annotations.get(MODE_ANNOTATION).map(String::as_str) {
        None | Some("") => Mode::Normal,
        Some("drain") => Mode::Drain,
        Some("pause") => Mode::Pause,
        Some(_) => return Err(refused(MODE_ANNOTATION, "is neither drain nor pause")),
    };
    let network = match annotations.get(NETWORK_ANNOTATION).map(String::as_str) {
        // A template may leave the value empty.
        None | Some("") => None,
        Some(name) if is_label_value(name) => Some(NetworkId::from(name)),
        Some(_) => return Err(refused(NETWORK_ANNOTATION, "is not a valid network name")),
    };
    let uid = match annotations.get(UID_ANNOTATION).map(String::as_str) {
        None | Some("") => None,
        Some(uid) if is_label_value(uid) => Some(Arc::from(uid)),
        Some(_) => return Err(refused(UID_ANNOTATION, "is not a UID")),
    };
    let trust_domain = match annotations.get(TRUST_DOMAIN_ANNOTATION).map(String::as_str) {
        None | Some("") => None,
        Some(name) if is_trust_domain(name) => Some(Arc::from(name)),
        Some(_) => return Err(refused(TRUST_DOMAIN_ANNOTATION, "is not a trust domain")),
    };
    let set_name = match annotations.get(SET_NAME_ANNOTATION).map(String::as_str) {
        None | Some("") => None,
        Some(name) if is_set_name(name) => Some(Arc::from(name)),
        Some(_) => return Err(refused(SET_NAME_ANNOTATION, "is neither a DNS label nor two")),
    };
    Ok(MemberSettings { network, mode, uid, trust_domain, set_name })
}

/// Whether `text` is a valid value of a Kubernetes label: elsewhere, labels name the networks.
fn is_label_value(text: &str) -> bool {
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    text.len() <= 63
        && edge(text.bytes().next())
        && edge(text.bytes().last())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Returns the Secret, in YAML, that makes `cluster` a member. [`MemberSecret::read`] returns the
/// arguments again. With `self_renew`, Strait renews its token.
pub fn to_yaml(
    namespace: &str,
    cluster: &ClusterId,
    member: &MemberSpec,
    self_renew: bool,
) -> String {
    let quoted = |text: &str| Value::from(text).to_string();
    let (label, value) = ISTIO_SECRET_LABEL;
    let mut out = format!(
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: {}\n  namespace: {}\n  labels:\n    {label}: {}\n  annotations:\n    {ISTIO_CLUSTER_ANNOTATION}: {}\n",
        quoted(&secret_name(cluster)),
        quoted(namespace),
        quoted(value),
        quoted(cluster.as_str()),
    );
    if let Some(network) = &member.network {
        out += &format!("    {NETWORK_ANNOTATION}: {}\n", quoted(network.as_str()));
    }
    if let Some(uid) = &member.uid {
        out += &format!("    {UID_ANNOTATION}: {}\n", quoted(uid));
    }
    if let Some(trust_domain) = &member.trust_domain {
        out += &format!("    {TRUST_DOMAIN_ANNOTATION}: {}\n", quoted(trust_domain));
    }
    if let Some(set_name) = &member.set_name {
        out += &format!("    {SET_NAME_ANNOTATION}: {}\n", quoted(set_name));
    }
    if !member.reach.namespaces.is_whole() {
        let names = member.reach.namespaces.names().join(",");
        out += &format!("    {READ_NAMESPACES_ANNOTATION}: {}\n", quoted(&names));
    }
    if self_renew {
        out += &format!("    {SELF_RENEW_ANNOTATION}: \"true\"\n");
    }
    match member.mode {
        Mode::Normal => {}
        Mode::Drain => out += &format!("    {MODE_ANNOTATION}: drain\n"),
        Mode::Pause => out += &format!("    {MODE_ANNOTATION}: pause\n"),
    }
    out += &format!("type: Opaque\nstringData:\n  {}: |\n", quoted(cluster.as_str()));
    for line in kubeconfig::write(cluster, &member.access).lines() {
        out += &format!("    {line}\n");
    }
    out
}

/// Returns the name of the Secret that Strait creates for `cluster`.
pub fn secret_name(cluster: &ClusterId) -> String {
    format!("strait-cluster-{cluster}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_kube_client::Redacted;
    use strait_model::ReadNamespaces;

    const KUBECONFIG: &str = "clusters: [{name: a, cluster: {server: 'https://a.example.org'}}]
users: [{name: a, user: {token: canary}}]
contexts: [{name: a, context: {cluster: a, user: a}}]";

    fn secret(annotations: &[(&str, &str)], data: &[(&str, &str)]) -> WatchedSecret {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        WatchedSecret {
            name: ObjectName::new("strait-system", "a"),
            labels: BTreeMap::new(),
            annotations: annotations.iter().map(owned).collect(),
            created: None,
            uid: None,
            secret_type: "Opaque".to_owned(),
            source: None,
            profile: None,
            decision: None,
            data: data
                .iter()
                .map(|(key, value)| ((*key).to_owned(), Redacted::new(value.as_bytes().to_vec())))
                .collect(),
        }
    }

    fn relayed(annotations: &[(&str, &str)]) -> WatchedSecret {
        let own = [(RELAY_ANNOTATION, "true"), (CLUSTER_ID_ANNOTATION, "west")];
        secret(&[&own, annotations].concat(), &[("invitation-expires", "2026-11-29T08:00:00Z")])
    }

    #[test]
    fn secret_without_data_is_reported() {
        let read = MemberSecret::read(&secret(&[], &[]), Loopback::Refused);
        let refusal = &read.invalid_keys["a"];
        assert_eq!(refusal.code, &codes::KUBECONFIG_UNREADABLE);
        assert!(refusal.fact.contains("no data"), "{refusal}");
    }

    #[test]
    fn relayed_member_has_no_kubeconfig_and_its_data_keys_are_no_members() {
        let read = MemberSecret::read(&relayed(&[(NETWORK_ANNOTATION, "n2")]), Loopback::Refused);
        let (id, member) = read.clusters.iter().next().expect("one member");
        let member = member.as_ref().expect("valid");
        assert_eq!((id, &member.access), (&"west".into(), &Access::relay()));
        assert_eq!(member.network, Some("n2".into()));
        assert_eq!((read.clusters.len(), read.invalid_keys.len()), (1, 0));
    }

    #[test]
    fn annotation_of_relays_is_true_or_false() {
        for value in ["yes", "True", "1"] {
            let invalid = [(RELAY_ANNOTATION, value), (CLUSTER_ID_ANNOTATION, "west")];
            for data in [(INVITATION_EXPIRES_KEY, "2026-11-29T08:00:00Z"), ("west", KUBECONFIG)] {
                let read = MemberSecret::read(&secret(&invalid, &[data]), Loopback::Refused);
                let refusal = read.clusters["west"].as_ref().expect_err("refused").to_string();
                let expected = "STR0217: annotation strait.dev/relay is neither true nor false";
                assert_eq!((refusal.as_str(), read.clusters.len()), (expected, 1), "{value}");
            }
        }
        for value in ["", "false"] {
            let secret = secret(&[(RELAY_ANNOTATION, value)], &[("west", KUBECONFIG)]);
            let read = MemberSecret::read(&secret, Loopback::Refused);
            assert!(read.clusters["west"].is_ok(), "{value}");
        }
    }

    #[test]
    fn relayed_member_needs_an_id_and_valid_annotations() {
        let with = |annotation: (&str, &str)| {
            let mut secret = relayed(&[]);
            secret.annotations.insert(annotation.0.to_owned(), annotation.1.to_owned());
            MemberSecret::read(&secret, Loopback::Refused)
        };
        let read = with((CLUSTER_ID_ANNOTATION, "Prod_1"));
        assert_eq!(read.invalid_keys["Prod_1"].code, &codes::CLUSTER_ID_INVALID);
        let read = with((CLUSTER_ID_ANNOTATION, ""));
        let refusal = read.invalid_keys["a"].to_string();
        let expected = "STR0235: the Secret of a relay (strait.dev/relay) has no cluster ID; set the annotation strait.dev/cluster-id";
        assert_eq!(refusal, expected);
        let read = with(("strait.dev/relay-generation", "none"));
        let refusal = read.clusters["west"].as_ref().expect_err("refused");
        assert!(refusal.to_string().contains("strait.dev/relay-generation"), "{refusal}");
        assert!(relayed_member(&relayed(&[]), None).is_some());
        let read = with((READ_NAMESPACES_ANNOTATION, "shop, edge"));
        let member = read.clusters["west"].as_ref().expect("usable");
        assert_eq!(member.reach.namespaces.names(), ["edge".into(), "shop".into()]);
        let read = with((READ_NAMESPACES_ANNOTATION, "shop,"));
        assert!(read.clusters["west"].is_err());
    }

    #[test]
    fn invalid_cluster_does_not_affect_others_in_the_same_secret() {
        let data = [
            ("east", KUBECONFIG),
            ("west.yaml", KUBECONFIG),
            ("bad", "users: [{name: a, user: {exec: {}}}]"),
            ("Upper", KUBECONFIG),
            ("under_score", KUBECONFIG),
        ];
        let read = MemberSecret::read(&secret(&[], &data), Loopback::Refused);
        let usable: Vec<_> = read.clusters.iter().map(|(id, m)| (id.as_str(), m.is_ok())).collect();
        assert_eq!(usable, [("bad", false), ("east", true), ("west.yaml", true)]);
        let keys: Vec<_> = read.invalid_keys.keys().map(String::as_str).collect();
        assert_eq!(keys, ["Upper", "under_score"]);
        assert!(!format!("{read:?}").contains("canary"));
    }

    #[test]
    fn annotations_fix_network_and_mode() {
        let read = |annotations: &[(&str, &str)]| {
            let read = MemberSecret::read(
                &secret(annotations, &[("east", KUBECONFIG)]),
                Loopback::Refused,
            );
            read.clusters["east"].clone().map(|member| (member.network, member.mode))
        };
        assert_eq!(read(&[]), Ok((None, Mode::Normal)));
        assert_eq!(
            read(&[(NETWORK_ANNOTATION, ""), (MODE_ANNOTATION, "")]),
            Ok((None, Mode::Normal))
        );
        assert_eq!(
            read(&[(NETWORK_ANNOTATION, "eu-1"), (MODE_ANNOTATION, "drain")]),
            Ok((Some(NetworkId::from("eu-1")), Mode::Drain))
        );
        assert_eq!(read(&[(MODE_ANNOTATION, "pause")]), Ok((None, Mode::Pause)));
        for (annotation, value) in [
            (MODE_ANNOTATION, "Drain"),
            (MODE_ANNOTATION, "off"),
            (NETWORK_ANNOTATION, "a b"),
            (NETWORK_ANNOTATION, "-a"),
            (NETWORK_ANNOTATION, "a\n"),
            (NETWORK_ANNOTATION, &"a".repeat(64)),
            (UID_ANNOTATION, "a b"),
            (TRUST_DOMAIN_ANNOTATION, "West.example"),
            (TRUST_DOMAIN_ANNOTATION, "west/example"),
            (SET_NAME_ANNOTATION, "a.b.c"),
            (SET_NAME_ANNOTATION, "-a"),
            (SET_NAME_ANNOTATION, "A"),
        ] {
            let refusal = read(&[(annotation, value)]).expect_err(value);
            assert_eq!(refusal.code, &codes::ANNOTATION_INVALID);
        }
    }

    #[test]
    fn certificate_of_an_administrator_is_recognized() {
        let member = |group: &str| {
            let mut parameters = rcgen::CertificateParams::default();
            parameters.distinguished_name.push(rcgen::DnType::OrganizationName, group);
            let key = rcgen::KeyPair::generate().expect("a key");
            let certificate = parameters.self_signed(&key).expect("signed").pem();
            let base64 = |text: String| {
                base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text)
            };
            let (certificate, key) = (base64(certificate), base64(key.serialize_pem()));
            let user = format!("client-certificate-data: {certificate}, client-key-data: {key}");
            let kubeconfig = KUBECONFIG.replace("token: canary", &user);
            let read =
                MemberSecret::read(&secret(&[], &[("east", &kubeconfig)]), Loopback::Refused);
            read.clusters["east"].clone().expect("usable")
        };
        assert!(member("system:masters").has_all_rights());
        assert!(!member("readers").has_all_rights());
    }

    #[test]
    fn written_secret_reads_back_unchanged() {
        let member = MemberSpec {
            access: Access {
                server: "https://10.0.0.1:6443".parse().expect("a URL"),
                ca_pem: None,
                tls_server_name: Some("kubernetes.default.svc".to_owned()),
                credential: ApiCredential::Basic {
                    username: "a \"quoted\" name".to_owned(),
                    password: Redacted::new("'{{: #".to_owned()),
                },
                loopback: Loopback::Refused,
                proxy: None,
            },
            network: Some(NetworkId::from("eu")),
            mode: Mode::Pause,
            uid: Some("0b1c".into()),
            trust_domain: Some("west.example".into()),
            reach: MemberReach {
                namespaces: ReadNamespaces::of(["shop", "edge"]).expect("valid"),
                ..MemberReach::default()
            },
            set_name: Some("eu-1.prod".into()),
        };
        let id = ClusterId::from("prod.eu-1");
        let yaml = to_yaml("strait-system", &id, &member, true);
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("a.yaml"), &yaml).expect("written");
        let objects = crate::store::files::read_once(directory.path(), "strait-system");
        let secret = &objects.secrets[0];
        assert_eq!(secret.name.to_string(), "strait-system/strait-cluster-prod.eu-1", "{yaml}");
        assert!(super::super::renewal::is_wanted(secret), "{yaml}");
        let read = MemberSecret::read(secret, Loopback::Refused);
        assert_eq!(read.clusters[&id], Ok(Box::new(member)), "{yaml}");
    }
}
