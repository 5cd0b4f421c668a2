use std::sync::Arc;

use super::*;
use strait_mesh::push::PushContext;
use strait_mesh::push::event_loop::{MeshEvent, MeshState};
use strait_model::policy::Policy;
use strait_model::testing::{endpoint, member, named_endpoint, service, shard, sidecar};
use strait_model::{ByName, Endpoint, KnownCluster, KnownClusters, NamedEndpoint, WorkloadKey};

/// East and west with one endpoint of `web.ns` each, in one network.
fn steered(policy: &str, clusters: KnownClusters) -> Arc<PushContext> {
    let mut mesh = MeshState::new(strait_mesh::testing::settings());
    for (epoch, (cluster, address)) in
        [("east", "10.0.0.1"), ("west", "10.0.0.2")].into_iter().enumerate()
    {
        let epoch = u64::try_from(epoch).expect("few");
        let word = shard(cluster, epoch).with(service("web.ns"), vec![endpoint(address)]);
        mesh.apply(MeshEvent::Registry(word.built()));
    }
    mesh.apply(MeshEvent::Clusters(Arc::new(clusters)));
    let text = format!("apiVersion: strait.dev/v1\nkind: Policy\n{policy}");
    mesh.apply(MeshEvent::Policy(Arc::new(Policy::parse(&text).expect("a sound policy"))));
    mesh.apply(MeshEvent::Complete);
    mesh.next_version().expect("a first version").0
}

fn explanation(context: &PushContext) -> Explanation {
    let view = ViewKey::of(&sidecar("client.ns", "west"), "".into(), Role::Client);
    explain(context, "proxy", (&view, true), "web.ns", None, None).expect("a service")
}

#[test]
fn withheld_endpoints_name_the_policy_rule() {
    let none = KnownClusters::default;
    let why = "unreachable for more than 900s (policy mesh.whenDark)";
    let dark = KnownCluster { withdrawn: Some(why.into()), ..member(None) };
    let dark = KnownClusters { clusters: [("east".into(), dark)].into() };
    for (policy, clusters, step, code, detail) in [
        (
            "owners: [{namespaces: [ns], clusters: [west]}]",
            none(),
            "export",
            "STR0602",
            "web.ns.svc.cluster.local belongs to west (policy owners[0])",
        ),
        (
            "clusters: {east: {addresses: [10.9.0.0/16]}}",
            none(),
            "network",
            "STR0603",
            "10.0.0.1 is outside the ranges that cluster east may use (policy clusters.east.addresses)",
        ),
        (
            "clusters: {east: {networks: [n1]}}",
            none(),
            "network",
            "STR0604",
            "cluster east may claim n1, not network \"\" (policy clusters.east.networks)",
        ),
        ("", dark, "ready", "STR0605", &format!("cluster east is {why}")),
    ] {
        let explanation = explanation(&steered(policy, clusters));
        let line =
            explanation.endpoints.iter().find(|line| line.cluster == "east").expect("a line");
        let refused: Vec<_> = line.steps.iter().filter(|step| !step.ok).collect();
        let [refused] = refused.as_slice() else { panic!("one step: {line:#?}") };
        assert_eq!((refused.step, refused.detail.as_str()), (step, detail));
        assert_eq!(explanation.clusters[0].code, Some(code));
        assert_eq!(explanation.endpoints.iter().filter(|line| line.verdict == "direct").count(), 1);
    }
}

#[test]
fn preferences_are_reported_in_their_own_wording() {
    let policy =
        "preferences: [{name: home, services: {namespaces: [ns]}, order: [own cluster, east]}]";
    let explanation = explanation(&steered(policy, KnownClusters::default()));
    let lines: Vec<_> =
        explanation.clusters.iter().map(|line| (line.cluster.as_str(), line.priority)).collect();
    assert_eq!(lines, [("east", Some(1)), ("west", Some(0))]);
    let words = "home: own cluster, then east, then any other";
    assert!(explanation.clusters.iter().all(|line| line.preference.as_deref() == Some(words)));
    let plain = self::explanation(&steered("", KnownClusters::default()));
    let priorities: Vec<_> = plain.clusters.iter().map(|line| line.priority).collect();
    assert!(priorities.iter().all(Option::is_none), "no preference, no priority: {priorities:?}");
}

/// Returns the explanation of `db.ns` with this resolution to a proxy of network n1.
fn found(resolution: Resolution) -> Explanation {
    let mut mesh = MeshState::new(strait_mesh::testing::settings());
    let named = service("db.ns").with(|one| one.resolution = resolution);
    mesh.apply(MeshEvent::Registry(shard("east", 0).with(named, vec![]).built()));
    mesh.apply(MeshEvent::Complete);
    let context = mesh.next_version().expect("a first version").0;
    let view = ViewKey::of(&sidecar("client.ns", "west"), "n1".into(), Role::Client);
    explain(&context, "proxy", (&view, true), "DB.ns", None, None).expect("a service")
}

#[test]
fn endpoints_that_the_proxy_resolves_are_explained() {
    let one = |address: &str, network: Option<&str>| NamedEndpoint {
        ports: service("db.ns").ports.iter().map(|port| (port.name.clone(), 5432)).collect(),
        network: network.map(Into::into),
        ..named_endpoint(address)
    };
    let three = || vec![one("a.example", None), one("b.example", Some("n2")), one("c", Some("n1"))];
    let by_name = |just_then, endpoints| Resolution::ByName(ByName { just_then, endpoints });
    let sockets = vec![one("/run/db", None), one("a.example", None)];
    for (resolution, words, wanted) in [
        (
            by_name(false, three()),
            "(DNS)",
            &["a.example direct", "b.example network", "c direct"][..],
        ),
        (
            by_name(true, three()),
            "(DNS_ROUND_ROBIN)",
            &["a.example direct", "b.example ready", "c ready"],
        ),
        (by_name(false, sockets), "own host", &["/run/db direct", "a.example family"]),
        (Resolution::Passthrough, "(NONE)", &[]),
        (Resolution::Alias("www.example.org".into()), "no cluster has as a service", &[]),
    ] {
        let explanation = found(resolution);
        let how = explanation.found.as_deref().expect("it says how");
        assert!(how.contains(words), "{how}");
        let lines: Vec<_> = explanation
            .endpoints
            .iter()
            .map(|line| {
                let no: Vec<_> = line.steps.iter().filter(|step| !step.ok).collect();
                assert_eq!(no.len(), usize::from(line.verdict == "withheld"), "{line:#?}");
                let end = no.first().map_or(line.verdict, |step| step.step);
                format!("{} {end}", line.address)
            })
            .collect();
        assert_eq!(lines, wanted);
        let sent: usize = explanation.clusters.iter().map(|line| line.sent).sum();
        assert_eq!(sent, wanted.iter().filter(|line| line.ends_with("direct")).count());
    }
    assert_eq!(found(Resolution::ClientSide).found, None);
}

#[test]
fn all_reasons_for_withheld_endpoints_of_a_cluster_are_listed() {
    let mut unseen = endpoint("10.0.0.3");
    unseen.pod = PodState::Missing;
    let mut unready = endpoint("10.0.0.2");
    unready.health = Health::Unhealthy;
    let mut mesh = MeshState::new(strait_mesh::testing::settings());
    let endpoints = vec![endpoint("10.0.0.1"), unready, unseen];
    mesh.apply(MeshEvent::Registry(shard("east", 0).with(service("web.ns"), endpoints).built()));
    mesh.apply(MeshEvent::Complete);
    let explanation = explanation(&mesh.next_version().expect("a first version").0);
    let line = &explanation.clusters[0];
    let also: Vec<_> = line.also.iter().map(|one| (one.reason.as_str(), one.code)).collect();
    assert_eq!((line.reason.as_deref(), line.code), (Some("1 not ready"), Some("STR0420")));
    assert_eq!(also, [("1 whose pod is not known yet", "STR0421")]);
}

#[test]
fn dual_stack_pod_counts_once_by_the_address_that_reaches_it() {
    let one = |address: &str| Endpoint {
        workload: Some(Arc::new(WorkloadKey::new("ns", "web-1"))),
        ..endpoint(address)
    };
    let mut mesh = MeshState::new(strait_mesh::testing::settings());
    let endpoints = vec![one("10.0.0.1"), one("fd00::1")];
    mesh.apply(MeshEvent::Registry(shard("east", 0).with(service("web.ns"), endpoints).built()));
    mesh.apply(MeshEvent::Complete);
    let context = mesh.next_version().expect("a first version").0;
    let explained = |ipv4, ipv6, address: Option<&str>| {
        let view = ViewKey::of(&sidecar("client.ns", "east"), "".into(), Role::Client);
        let view = ViewKey { ipv4, ipv6, ..view };
        explain(&context, "proxy", (&view, true), "web.ns", None, address).expect("a service")
    };
    for (ipv4, ipv6, address, other) in [
        (true, false, "10.0.0.1", "fd00::1"),
        (false, true, "fd00::1", "10.0.0.1"),
        (true, true, "10.0.0.1", "fd00::1"),
    ] {
        let explanation = explained(ipv4, ipv6, None);
        let [line] = &explanation.endpoints[..] else { panic!("{:#?}", explanation.endpoints) };
        assert_eq!((line.address.as_str(), line.verdict), (address, "direct"));
        assert_eq!(line.additional.as_deref(), Some(other));
        assert_eq!((explanation.clusters[0].sent, explanation.clusters[0].total), (1, 1));
        assert_eq!(explanation.clusters[0].code, None);
        let requested = explained(ipv4, ipv6, Some(other));
        assert_eq!(requested.endpoints.len(), 1, "a requested address is explained");
    }
}
