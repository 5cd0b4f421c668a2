//! Verifies the claims of a proxy. Pure.
//!
//! The authenticated identity of the caller is true; everything in the node is a claim.
//! (docs/reference/interface.md, "Proxies".)

use std::collections::BTreeSet;
use std::net::IpAddr;

use strait_base::codes::{self, Code};
use strait_identity::caller::TokenProof;
use strait_identity::{Caller, SpiffeId};
use strait_mesh::network::PlacedBy;
use strait_mesh::push::{PushContext, Whereabouts};
use strait_model::{ClusterId, NETWORK_LABEL, NetworkId, Proxy, Workload};
use strait_rules::service_entry::VmWorkload;

/// The verified properties of an admitted proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    /// The network of the proxy.
    pub network: NetworkId,
    /// Whether the registry of the proxy's cluster has its pod, or a WorkloadEntry its machine, and
    /// they match the proxy.
    pub verified: bool,
    /// The location of the proxy.
    pub whereabouts: Whereabouts,
}

/// A false claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmissionRefusal {
    /// The error code.
    pub code: &'static Code,
    /// The claim and the fact that contradicts it.
    pub fact: String,
}

impl std::fmt::Display for AdmissionRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}. {}", self.code, self.fact, self.code.next)
    }
}

/// Admits `proxy`, whose certificate or token proves `identity`.
///
/// # Errors
/// The first claim that contradicts the identity, or the known facts about the cluster.
pub fn admit(
    context: &PushContext,
    proxy: &Proxy,
    identity: &SpiffeId,
) -> Result<Admitted, AdmissionRefusal> {
    let refuse = |code: &'static Code, fact: String| Err(AdmissionRefusal { code, fact });
    if let Some(trust_domain) = foreign_to(context, proxy, identity) {
        let of = match context.clusters.contains(&proxy.cluster) {
            true => format!("cluster {}", proxy.cluster),
            false => "the mesh".to_owned(),
        };
        return refuse(
            &codes::CLAIM_IDENTITY,
            format!("certificate {identity} is not in the trust domain of {of}, {trust_domain}"),
        );
    }
    if identity.namespace() != proxy.namespace() {
        return refuse(
            &codes::CLAIM_IDENTITY,
            format!(
                "node {} claims namespace {}, but is authenticated as {identity}",
                proxy.id,
                proxy.namespace()
            ),
        );
    }
    if let Some(account) = &proxy.service_account
        && **account != *identity.service_account()
    {
        return refuse(
            &codes::CLAIM_IDENTITY,
            format!(
                "node {} claims service account {account:?}, but is authenticated as {identity}",
                proxy.id
            ),
        );
    }
    if !context.clusters.contains(&proxy.cluster) {
        return refuse(
            &codes::CLAIM_CLUSTER,
            format!(
                "node {} claims cluster {:?}, which is not a member of the mesh",
                proxy.id,
                proxy.cluster.as_str()
            ),
        );
    }
    let workload = context.workload_of(proxy);
    if let Some(workload) = workload {
        matches_pod(proxy, identity, workload)?;
    }
    let vm = context.machine_of(proxy);
    if let Some(vm) = vm {
        matches_machine(proxy, identity, vm)?;
    }
    let (derived, by) = derive(context, proxy, workload);
    // The annotation applies to every proxy of the cluster. Other sources apply only to known pods,
    // because a machine outside Kubernetes may be in a different network from its cluster. If
    // nothing defines a network, no claim is contradicted.
    let known = match by {
        PlacedBy::SecretAnnotation => true,
        PlacedBy::Nothing => false,
        _ => workload.is_some() || vm.is_some_and(|vm| vm.network().is_some()),
    };
    match &proxy.network {
        Some(claimed) if known && *claimed != derived => refuse(
            &codes::CLAIM_NETWORK,
            format!(
                "node {} claims network {:?}, but is in {:?} (by {by})",
                proxy.id,
                claimed.as_str(),
                derived.as_str()
            ),
        ),
        _ => {
            let network = network(context, proxy);
            let whereabouts = context.whereabouts(proxy);
            let verified = workload.is_some() || stands_on_machine(context, proxy, identity);
            Ok(Admitted { network, verified, whereabouts })
        }
    }
}

/// Checks an admitted proxy again, whose network was `before`.
///
/// A proxy whose cluster has left the mesh keeps its network. A proxy whose cluster is now in
/// another trust domain stays admitted, but unverified.
///
/// # Errors
/// A pod or a WorkloadEntry that became known after the admission contradicts the proxy.
pub fn readmit(
    context: &PushContext,
    proxy: &Proxy,
    identity: &SpiffeId,
    before: NetworkId,
) -> Result<Admitted, AdmissionRefusal> {
    // The Secret of a cluster and its reported data are removed one after the other.
    let belongs = context.clusters.contains(&proxy.cluster)
        && context.network_labels.contains_key(&proxy.cluster);
    let workload = context.workload_of(proxy);
    if let Some(workload) = workload {
        matches_pod(proxy, identity, workload)?;
    }
    if let Some(vm) = context.machine_of(proxy) {
        matches_machine(proxy, identity, vm)?;
    }
    let trusted = foreign_to(context, proxy, identity).is_none();
    Ok(Admitted {
        network: if belongs { network(context, proxy) } else { before },
        verified: trusted && (workload.is_some() || stands_on_machine(context, proxy, identity)),
        whereabouts: context.whereabouts(proxy),
    })
}

/// Returns the ID of the cluster that has this name or alias.
pub fn canonical(context: &PushContext, name: ClusterId) -> ClusterId {
    context.settings.cluster_aliases.get(&name).cloned().unwrap_or(name)
}

/// Checks that a node belongs to the cluster that the caller's certificate contains. A certificate
/// without a cluster fits every node.
///
/// # Errors
/// The node claims a different cluster.
pub fn fits_certificate(
    context: &PushContext,
    caller: &Caller,
    node: &str,
    claimed: &ClusterId,
) -> Result<(), AdmissionRefusal> {
    let own = caller.proven_cluster().map(|own| canonical(context, own));
    let Some(own) = own.filter(|own| own != claimed) else { return Ok(()) };
    let fact = format!(
        "node {node} claims cluster {:?}, but its certificate is from {own}",
        claimed.as_str()
    );
    Err(AdmissionRefusal { code: &codes::CLAIM_OTHER_CLUSTER, fact })
}

/// Checks that a proxy belongs to the cluster and the pod in its token. A certificate contains no
/// pod.
///
/// # Errors
/// The proxy claims a different cluster or pod.
pub fn fits_token(proxy: &Proxy, token: &TokenProof) -> Result<(), AdmissionRefusal> {
    let id = &proxy.id;
    if proxy.cluster != token.cluster {
        let (claimed, named) = (proxy.cluster.as_str(), &token.cluster);
        let fact = format!("node {id} claims cluster {claimed:?}, but its token is from {named}");
        return Err(AdmissionRefusal { code: &codes::CLAIM_CLUSTER, fact });
    }
    match &token.pod {
        Some(pod) if pod.name != proxy.workload.name => Err(AdmissionRefusal {
            code: &codes::CLAIM_POD,
            fact: format!("node {id} claims a pod other than the pod of its token, {}", pod.name),
        }),
        _ => Ok(()),
    }
}

/// Checks that the pod of a token may still exist. A pod that is not known yet may exist, and so
/// may each pod of a cluster without known data.
///
/// # Errors
/// The pod was known and no longer exists, or another pod has its name.
pub fn outlives_token_pod(
    context: &PushContext,
    proxy: &Proxy,
    token: &TokenProof,
    was_there: bool,
) -> Result<(), AdmissionRefusal> {
    let Some(pod) = &token.pod else { return Ok(()) };
    let gone = match context.workload_of(proxy) {
        Some(workload) => workload.has_uid(&pod.uid) == Some(false),
        None => was_there && context.workloads.contains_key(&proxy.cluster),
    };
    if !gone {
        return Ok(());
    }
    let fact = format!("pod {} of cluster {} no longer exists", proxy.workload, proxy.cluster);
    Err(AdmissionRefusal { code: &codes::TOKEN_POD, fact })
}

/// Returns the trust domain of the proxy's cluster if the certificate is from a different trust
/// domain that is not an alias. For an unknown cluster, the trust domain is that of the mesh.
fn foreign_to<'a>(context: &'a PushContext, proxy: &Proxy, identity: &SpiffeId) -> Option<&'a str> {
    let mesh = &context.mesh;
    let own = context.clusters.trust_domain(&proxy.cluster).unwrap_or(&mesh.trust_domain);
    let mut same = mesh.same_trust_domains(own);
    (!same.any(|domain| domain == identity.trust_domain())).then_some(own)
}

/// Returns the current network of a proxy: the network that the cluster's Secret fixes, else the
/// claimed network, else the network derived from its pod, cluster and address.
fn network(context: &PushContext, proxy: &Proxy) -> NetworkId {
    let fixed = context.clusters.fixed_network(&proxy.cluster);
    let said = fixed.or(proxy.network.as_ref()).cloned();
    said.unwrap_or_else(|| derive(context, proxy, context.workload_of(proxy)).0)
}

fn derive(
    context: &PushContext,
    proxy: &Proxy,
    workload: Option<&Workload>,
) -> (NetworkId, PlacedBy) {
    let label = workload.and_then(|workload| workload.network_label.as_ref());
    let label = label.or_else(|| context.machine_of(proxy)?.network());
    let label = label.cloned().or_else(|| {
        // A pod that is not known yet may still have the label.
        let claimed = proxy.labels.get(NETWORK_LABEL).filter(|_| workload.is_none());
        claimed.map(|text| NetworkId::from(&**text))
    });
    let unspecified = IpAddr::from([0, 0, 0, 0]);
    let address = proxy.addresses.first().copied().unwrap_or(unspecified);
    context.place(&proxy.cluster, label.as_ref(), address)
}

fn matches_pod(
    proxy: &Proxy,
    identity: &SpiffeId,
    workload: &Workload,
) -> Result<(), AdmissionRefusal> {
    let pod = &proxy.workload;
    let cluster = &proxy.cluster;
    if *workload.service_account != *identity.service_account() {
        return Err(AdmissionRefusal {
            code: &codes::CLAIM_POD,
            fact: format!(
                "pod {pod} of cluster {cluster} runs as service account {:?}, but the proxy is authenticated as {identity}",
                workload.service_account
            ),
        });
    }
    // A pod without an address contradicts nothing. The address in the ID is checked even if
    // INSTANCE_IPS lists others, which may belong to further interfaces.
    let known = &workload.addresses;
    let of_id = Proxy::parse_id(&proxy.id).ok().and_then(|(_, address, ..)| address);
    let holds = proxy.addresses.iter().any(|address| known.contains(address))
        && of_id.is_none_or(|address| known.contains(&address));
    if !known.is_empty() && !holds {
        let claimed: BTreeSet<IpAddr> = of_id.into_iter().chain(proxy.addresses.clone()).collect();
        let claimed: Vec<_> = claimed.iter().map(ToString::to_string).collect();
        let known: Vec<_> = known.iter().map(|address| address.to_string()).collect();
        return Err(AdmissionRefusal {
            code: &codes::CLAIM_POD,
            fact: format!(
                "pod {pod} of cluster {cluster} is at {}, node {} claims {}",
                known.join(", "),
                proxy.id,
                claimed.join(", ")
            ),
        });
    }
    Ok(())
}

/// Checks a proxy against the WorkloadEntry with its name, as far as the entry defines an account
/// and an address.
fn matches_machine(
    proxy: &Proxy,
    identity: &SpiffeId,
    vm: &VmWorkload,
) -> Result<(), AdmissionRefusal> {
    let name = &proxy.workload;
    let refuse = |fact| Err(AdmissionRefusal { code: &codes::CLAIM_POD, fact });
    if let Some(account) = vm.account()
        && account != identity.service_account()
    {
        return refuse(format!(
            "WorkloadEntry {name} runs as service account {account:?}, but the proxy is authenticated as {identity}"
        ));
    }
    match vm.address() {
        Some(address) if !proxy.addresses.contains(&address) => {
            let claimed: Vec<_> = proxy.addresses.iter().map(ToString::to_string).collect();
            refuse(format!(
                "WorkloadEntry {name} is at {address}, node {} claims {}",
                proxy.id,
                claimed.join(", ")
            ))
        }
        _ => Ok(()),
    }
}

/// Returns whether a WorkloadEntry of the proxy's namespace assigns the account in the certificate
/// to the proxy's machine.
///
/// The entry with the proxy's name is used, otherwise any entry at its address, because a machine's
/// proxy may have a different name. An entry at an address never contradicts a proxy, because
/// another network may use the same address.
fn stands_on_machine(context: &PushContext, proxy: &Proxy, identity: &SpiffeId) -> bool {
    let runs_as = |vm: &VmWorkload| vm.account() == Some(identity.service_account());
    if let Some(vm) = context.machine_of(proxy) {
        return runs_as(vm) && matches_machine(proxy, identity, vm).is_ok();
    }
    let at = |address| context.entries.vms_at(proxy.namespace(), address);
    proxy.addresses.iter().flat_map(|address| at(*address)).any(|vm| {
        let elsewhere = vm.network().is_some_and(|network| {
            proxy.network.as_ref().is_some_and(|claimed| claimed != network)
        });
        runs_as(vm) && !elsewhere
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use strait_mesh::push::event_loop::{MeshEvent, MeshState};
    use strait_model::mesh_config::{MeshConfig, MeshNetworks};
    use strait_model::testing::{member, service, shard, sidecar, workload};
    use strait_model::{KnownCluster, KnownClusters, Labels};

    /// Creates a mesh with cluster `east`, whose Secret may fix a network, and whose system
    /// namespace names `by-namespace`. Its pod `web.ns` of account `app` at 10.0.0.1 may name
    /// another network.
    fn context(fixed: Option<&str>, network_label: Option<&str>) -> Arc<PushContext> {
        context_of(fixed, network_label, Some("by-namespace"), "")
    }

    /// Creates the mesh of [`context`] with another label of the system namespace, and mesh
    /// networks.
    fn context_of(
        fixed: Option<&str>,
        network_label: Option<&str>,
        namespace_label: Option<&str>,
        networks: &str,
    ) -> Arc<PushContext> {
        let mut mesh = MeshState::new(strait_mesh::testing::settings());
        let clusters = [(ClusterId::from("east"), member(fixed))].into();
        mesh.apply(MeshEvent::Clusters(Arc::new(KnownClusters { clusters })));
        let mut pod = workload("web.ns", "10.0.0.1", &[]);
        Arc::make_mut(&mut pod.1.profile).network_label = network_label.map(NetworkId::from);
        let mut word = shard("east", 1).pod(pod);
        if let Some(label) = namespace_label {
            word = word.network(label);
        }
        let networks = MeshNetworks::parse(networks).expect("valid");
        mesh.apply(MeshEvent::MeshNetworks(Arc::new(networks)));
        mesh.apply(MeshEvent::Registry(word.with(service("web.ns"), vec![]).built()));
        mesh.apply(MeshEvent::Complete);
        mesh.next_version().expect("a version").0
    }

    /// Creates a mesh with the trust domain `cluster.local` and the alias `old.example`, in which
    /// cluster `east` is in `domain`.
    fn context_in(domain: &str) -> Arc<PushContext> {
        let mut mesh = MeshState::new(Arc::clone(&context(None, None).settings));
        let aliases = "trustDomainAliases: [old.example]";
        let config = MeshConfig::parse(aliases, &Default::default()).expect("valid");
        mesh.apply(MeshEvent::MeshConfig(Arc::new(config)));
        let east = KnownCluster { trust_domain: domain.into(), ..member(None) };
        let clusters = [(ClusterId::from("east"), east)].into();
        mesh.apply(MeshEvent::Clusters(Arc::new(KnownClusters { clusters })));
        let pod = workload("web.ns", "10.0.0.1", &[]);
        mesh.apply(MeshEvent::Registry(shard("east", 1).pod(pod).built()));
        mesh.apply(MeshEvent::Complete);
        mesh.next_version().expect("a version").0
    }

    #[test]
    fn proxy_is_in_the_trust_domain_of_its_cluster_or_an_alias() {
        for (cluster, certificate, lets_in) in [
            ("cluster.local", "cluster.local", true),
            ("cluster.local", "old.example", true),
            ("old.example", "cluster.local", true),
            ("cluster.local", "west.example", false),
            ("west.example", "west.example", true),
            // An alias of the mesh's trust domain is not an alias of a cluster's own trust domain.
            ("west.example", "cluster.local", false),
            ("west.example", "old.example", false),
        ] {
            let context = context_in(cluster);
            let identity = id(&format!("spiffe://{certificate}/ns/ns/sa/app"));
            let proxy = sidecar("web.ns", "east");
            let found = admit(&context, &proxy, &identity);
            let code = found.as_ref().err().map(|refusal| refusal.code.id);
            assert_eq!(code, (!lets_in).then_some("STR0510"), "{certificate} in {cluster}");
            // A proxy that is already admitted stays connected, and is reported as unverified.
            let later = readmit(&context, &proxy, &identity, "".into());
            let later = later.expect("its pod does not contradict it");
            assert_eq!(later.verified, lets_in, "{certificate} in {cluster}");
        }
    }

    fn id(text: &str) -> SpiffeId {
        text.parse().expect("a SPIFFE ID")
    }

    fn own() -> SpiffeId {
        id("spiffe://cluster.local/ns/ns/sa/app")
    }

    #[test]
    fn proxy_with_true_claims_is_admitted() {
        let context = context(None, None);
        let web = admit(&context, &sidecar("web.ns", "east"), &own()).expect("let in");
        let whereabouts = Whereabouts::default();
        let expected = Admitted { network: "by-namespace".into(), verified: true, whereabouts };
        assert_eq!(web, expected);
        let unknown = admit(&context, &sidecar("other.ns", "east"), &own()).expect("let in");
        assert!(!unknown.verified);
    }

    #[test]
    fn each_false_claim_is_refused_with_its_code() {
        let mut account = sidecar("web.ns", "east");
        account.service_account = Some("other".into());
        let mut address = sidecar("web.ns", "east");
        address.addresses = vec!["10.0.0.2".parse().expect("an address")];
        // INSTANCE_IPS is right, the ID is not.
        let mut id_address = sidecar("web.ns", "east");
        id_address.id = "sidecar~10.0.0.2~web.ns~ns.svc.cluster.local".into();
        let mut network = sidecar("web.ns", "east");
        network.network = Some("elsewhere".into());
        let elsewhere = || network.clone();
        let web = || sidecar("web.ns", "east");
        let stranger = "spiffe://elsewhere/ns/ns/sa/app";
        let cases = [
            ("trust domain", web(), id(stranger), None, None, "STR0510"),
            ("namespace", sidecar("web.other", "east"), own(), None, None, "STR0510"),
            ("account", account, own(), None, None, "STR0510"),
            ("cluster", sidecar("web.ns", "west"), own(), None, None, "STR0511"),
            ("no cluster", sidecar("web.ns", ""), own(), None, None, "STR0511"),
            (
                "pod's account",
                web(),
                id("spiffe://cluster.local/ns/ns/sa/x"),
                None,
                None,
                "STR0512",
            ),
            ("pod's address", address, own(), None, None, "STR0512"),
            ("address in the id", id_address, own(), None, None, "STR0512"),
            ("network of the Secret", elsewhere(), own(), Some("n1"), None, "STR0513"),
            ("network of the pod", elsewhere(), own(), None, Some("n1"), "STR0513"),
        ];
        for (case, proxy, identity, fixed, label, code) in cases {
            let refusal = admit(&context(fixed, label), &proxy, &identity).expect_err(case);
            assert_eq!(refusal.code.id, code, "{case}: {refusal}");
        }
    }

    #[test]
    fn claimed_network_must_not_contradict_the_network_of_a_known_pod() {
        let registry = "networks: {n1: {endpoints: [{fromRegistry: east}]}}";
        let range = "networks: {n1: {endpoints: [{fromCidr: 10.0.0.0/8}]}}";
        let nothing = || context_of(None, None, None, "");
        let namespace = || context(None, None);
        let cases = [
            ("the system namespace", "web.ns", namespace(), "by-namespace", false),
            (
                "the cluster in mesh networks",
                "web.ns",
                context_of(None, None, None, registry),
                "n1",
                false,
            ),
            (
                "the range in mesh networks",
                "web.ns",
                context_of(None, None, None, range),
                "n1",
                false,
            ),
            ("nothing", "web.ns", nothing(), "n1", true),
            // For a machine outside Kubernetes, or an unknown pod, only its own claim exists.
            ("the system namespace, of others", "vm.ns", namespace(), "by-namespace", true),
            ("the Secret, of everybody", "vm.ns", context(Some("n1"), None), "n1", false),
        ];
        for (said_by, name, context, network, stands) in cases {
            let claims = |network: &str| {
                let claim = Some(network.into());
                Proxy { network: claim, ..sidecar(name, "east") }
            };
            let right = admit(&context, &claims(network), &own()).expect(said_by);
            assert_eq!(right.network.as_str(), network, "{said_by}");
            let other = admit(&context, &claims("elsewhere"), &own());
            let other = other.map(|admitted| admitted.network.to_string());
            let expected = stands.then(|| "elsewhere".to_owned());
            assert_eq!(other.as_ref().ok(), expected.as_ref(), "{said_by}");
            let code = other.err().map(|refusal| refusal.code.id);
            assert_eq!(code, (!stands).then_some("STR0513"), "{said_by}");
        }
    }

    #[test]
    fn later_annotation_overrides_the_claimed_network() {
        let proxy = Proxy { network: Some("n2".into()), ..sidecar("vm.ns", "east") };
        assert_eq!(network(&context(None, None), &proxy).as_str(), "n2");
        assert_eq!(network(&context(Some("n1"), None), &proxy).as_str(), "n1");
    }

    #[test]
    fn readmission_updates_network_and_verification() {
        let now = |context: &PushContext, name: &str, cluster: &str| {
            let admitted = readmit(context, &sidecar(name, cluster), &own(), "before".into());
            let admitted = admitted.expect("nothing contradicts it");
            (admitted.network.to_string(), admitted.verified)
        };
        let context = context(None, None);
        assert_eq!(now(&context, "web.ns", "east"), ("by-namespace".to_owned(), true));
        assert_eq!(now(&context, "other.ns", "east"), ("by-namespace".to_owned(), false));
        assert_eq!(now(&context, "web.ns", "gone"), ("before".to_owned(), false));
        // The pod became known later, and belongs to another account.
        let stranger = id("spiffe://cluster.local/ns/ns/sa/other");
        let web = sidecar("web.ns", "east");
        let refusal = readmit(&context, &web, &stranger, "before".into()).expect_err("it ends");
        assert_eq!(refusal.code.id, "STR0512");
        let elsewhere = Proxy { addresses: vec!["10.0.0.7".parse().expect("an address")], ..web };
        let refusal = readmit(&context, &elsewhere, &own(), "before".into()).expect_err("it ends");
        assert!(refusal.to_string().contains("is at 10.0.0.1"), "{refusal}");
    }

    /// Creates the mesh of [`context`] with these WorkloadEntries: name and spec.
    fn with_vms(vms: &[(&str, serde_json::Value)]) -> Arc<PushContext> {
        use strait_model::registry::{Epoch, RegistryUpdate, ShardKey};
        use strait_rules::service_entry::EntryIndex;
        let objects = vms
            .iter()
            .map(|(name, spec)| {
                Arc::new(serde_json::json!({
                    "apiVersion": "networking.istio.io/v1",
                    "kind": "WorkloadEntry",
                    "metadata": {"name": name, "namespace": "ns"},
                    "spec": spec,
                }))
            })
            .collect();
        let mut index = EntryIndex::new("cluster.local");
        let change = index.apply(&objects).expect("news");
        let mut mesh = MeshState::new(Arc::clone(&context(None, None).settings));
        let clusters = [(ClusterId::from("east"), member(None))].into();
        mesh.apply(MeshEvent::Clusters(Arc::new(KnownClusters { clusters })));
        let word = shard("east", 1).pod(workload("web.ns", "10.0.0.1", &[]));
        mesh.apply(MeshEvent::Registry(word.with(service("web.ns"), vec![]).built()));
        let shard = ShardKey::service_entries();
        let update = RegistryUpdate { shard, epoch: Epoch(0), change };
        mesh.apply(MeshEvent::Entries(update, Arc::clone(index.selections())));
        mesh.apply(MeshEvent::Complete);
        mesh.next_version().expect("a version").0
    }

    #[test]
    fn machine_is_verified_by_its_entry() {
        use serde_json::json;
        let own = json!({"address": "10.0.0.1", "serviceAccount": "app", "network": "n1"});
        let db = json!({"address": "10.0.0.1", "serviceAccount": "db"});
        let nobody = json!({"address": "10.0.0.1"});
        let away = json!({"address": "10.0.0.7", "serviceAccount": "app"});
        let named = json!({"address": "vm.example.com", "serviceAccount": "app"});
        let cases: [(&str, &str, &serde_json::Value, Result<bool, &str>); 9] = [
            ("its own entry", "vm", &own, Ok(true)),
            ("an entry at a name", "vm", &named, Ok(true)),
            ("an entry without an account", "vm", &nobody, Ok(false)),
            ("another's account", "vm", &db, Err("STR0512")),
            ("another's address", "vm", &away, Err("STR0512")),
            ("an entry at its address", "other", &own, Ok(true)),
            ("one of another account", "other", &db, Ok(false)),
            ("one elsewhere", "other", &away, Ok(false)),
            ("one at a name", "other", &named, Ok(false)),
        ];
        for (case, name, spec, expected) in cases {
            let context = with_vms(&[(name, spec.clone())]);
            // The known pods are named `web`, so this proxy is not a pod.
            let proxy = sidecar("vm.ns", "east");
            let found = admit(&context, &proxy, &self::own());
            let found = found.map(|admitted| admitted.verified).map_err(|refusal| refusal.code.id);
            assert_eq!(found, expected, "{case}");
            let again = readmit(&context, &proxy, &self::own(), "before".into());
            let again = again.map(|admitted| admitted.verified);
            assert_eq!(again.map_err(|refusal| refusal.code.id), expected, "{case}");
        }
        let context = with_vms(&[("vm", own.clone())]);
        let vm = sidecar("vm.ns", "east");
        assert_eq!(admit(&context, &vm, &self::own()).expect("let in").network.as_str(), "n1");
        let claims = Proxy { network: Some("n2".into()), ..vm };
        let refusal = admit(&context, &claims, &self::own()).expect_err("elsewhere");
        assert_eq!(refusal.code.id, "STR0513");
        // A pod with that name takes precedence over an entry.
        let context = with_vms(&[("web", db)]);
        assert!(
            admit(&context, &sidecar("web.ns", "east"), &self::own()).expect("let in").verified
        );
    }

    #[test]
    fn labels_of_an_unknown_pod_define_its_network() {
        let mut proxy = sidecar("new.ns", "east");
        proxy.labels = Labels::from([("topology.istio.io/network".into(), "n9".into())]);
        let context = context(None, None);
        assert_eq!(admit(&context, &proxy, &own()).expect("let in").network.as_str(), "n9");
    }
}
