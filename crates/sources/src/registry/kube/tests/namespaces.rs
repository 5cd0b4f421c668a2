//! Tests of a run that is limited to namespaces.

use std::collections::BTreeMap;

use super::faults::{Member, Reported, access, sim};
use crate::registry::kube::{ApiContact, RunConfig, RunStatus};
use strait_model::ReadNamespaces;
use strait_model::registry::Contents;
use strait_sim::objects::{self, Endpoint, HTTP, endpoint_slice, service};
use strait_sim::{Fault, Options, SimCluster};

/// Serves `cart` of a namespace at this address.
fn serve(sim: &SimCluster, namespace: &str, address: &str) {
    let slice = endpoint_slice(namespace, "cart", "cart-a", &[HTTP], &[Endpoint::new(address)]);
    sim.store().apply(slice).expect("a slice");
}

/// Starts a cluster with `cart` in three namespaces, whose rights cover only `granted`.
async fn cluster(granted: &[&str]) -> SimCluster {
    let sim = sim(Options::default()).await;
    for (namespace, address) in [("edge", "10.2.0.1"), ("bank", "10.3.0.1")] {
        sim.store().apply(objects::namespace(namespace)).expect("a namespace");
        let cart = service(namespace, "cart", "10.96.1.1", &[HTTP]);
        sim.store().apply(cart).expect("a service");
        serve(&sim, namespace, address);
    }
    grant(&sim, granted);
    sim
}

/// Replaces the namespaces that may be read. Running watches end, as after their usual time.
fn grant(sim: &SimCluster, namespaces: &[&str]) {
    let namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
    sim.fault(Fault::OnlyNamespaces { namespaces });
    sim.fault(Fault::CloseWatches { after_ms: 500 });
}

fn read(sim: &SimCluster, namespaces: &[&str], known: Option<Contents>) -> Member {
    let access = access(sim, &sim.url());
    let namespaces = ReadNamespaces::of(namespaces).expect("valid");
    Member::reading_as(sim.clone(), access, |config| RunConfig { namespaces, known, ..config })
}

/// Returns the addresses of all endpoints, by service.
fn endpoints(reported: &Reported) -> BTreeMap<String, Vec<String>> {
    let services = reported.services.iter().map(|(host, record)| {
        let name = host.to_string().replace(".svc.cluster.local", "");
        (name, record.endpoints.to_vec().iter().map(|one| one.address.to_string()).collect())
    });
    services.collect()
}

async fn until_endpoints(member: &Member, expected: &[(&str, &str)]) {
    let expected =
        expected.iter().map(|(name, address)| ((*name).to_owned(), vec![(*address).to_owned()]));
    let expected: BTreeMap<_, _> = expected.collect();
    member.until_reported(|reported| endpoints(reported) == expected).await;
}

fn unread(status: &RunStatus) -> Vec<String> {
    status.unread.iter().map(|one| one.namespace.to_string()).collect()
}

#[tokio::test]
async fn limited_reader_reads_exactly_the_listed_namespaces() {
    let sim = cluster(&["shop", "edge"]).await;
    let member = read(&sim, &["shop", "edge"], None);
    until_endpoints(&member, &[("cart.edge", "10.2.0.1"), ("cart.shop", "10.1.0.1")]).await;
    let status = member.until(|status| status.synced && status.missing_rights.len() == 2).await;
    assert_eq!((unread(&status), status.contact), (Vec::new(), ApiContact::Good));
    assert_eq!(status.missing_rights, ["list nodes", "list namespaces"]);
    assert!(status.cluster_uid.is_some(), "only this namespace itself may be read");
    assert_eq!(status.degraded.len(), 2, "{:?}", status.degraded);
    let outside = sim.requests(|request| {
        let namespaced = ["services", "endpointslices", "pods", "gateways", "workloadentries"];
        let is_own = ["shop", "edge"]
            .iter()
            .any(|name| request.path.contains(&format!("/namespaces/{name}/")));
        namespaced.contains(&request.resource) && !is_own
    });
    assert_eq!(outside, [], "no request covers more than a namespace");
    serve(&sim, "edge", "10.2.0.2");
    serve(&sim, "bank", "10.3.0.2");
    until_endpoints(&member, &[("cart.edge", "10.2.0.2"), ("cart.shop", "10.1.0.1")]).await;
}

#[tokio::test]
async fn namespace_that_does_not_exist_is_reported_until_it_does() {
    let sim = cluster(&[]).await;
    sim.heal();
    let member = read(&sim, &["shop", "typo"], None);
    until_endpoints(&member, &[("cart.shop", "10.1.0.1")]).await;
    let status = member.until(|status| !status.degraded.is_empty()).await;
    let missing = "STR0319: the cluster has no namespace typo, to which its reader is limited";
    assert_eq!((status.degraded, status.contact), (vec![missing.to_owned()], ApiContact::Good));
    sim.store().apply(objects::namespace("typo")).expect("a namespace");
    member.until(|status| status.degraded.is_empty()).await;
}

#[tokio::test]
async fn namespace_that_may_not_be_read_stays_unchanged_and_others_continue() {
    let sim = cluster(&["shop", "edge"]).await;
    let member = read(&sim, &["shop", "edge"], None);
    until_endpoints(&member, &[("cart.edge", "10.2.0.1"), ("cart.shop", "10.1.0.1")]).await;
    grant(&sim, &["shop"]);
    let status = member.until(|status| unread(status) == ["edge"]).await;
    assert_eq!(status.contact, ApiContact::Good);
    assert!(status.missing_rights.iter().any(|right| right.ends_with(" in edge")), "{status:?}");
    serve(&sim, "edge", "10.2.0.2");
    serve(&sim, "shop", "10.1.0.2");
    let frozen = [("cart.edge", "10.2.0.1"), ("cart.shop", "10.1.0.2")];
    until_endpoints(&member, &frozen).await;

    // The next run may not read the namespace either.
    let services = member.reported.borrow().services.clone();
    let services = services.into_iter().map(|(host, record)| (host, Some(record)));
    let known = Contents { services: services.collect(), ..Contents::default() };
    let next = read(&sim, &["shop", "edge", "bank"], Some(known));
    until_endpoints(&next, &frozen).await;
    let status = next.until(|status| unread(status) == ["bank", "edge"]).await;
    assert_eq!((status.services, status.endpoints), (2, 2));
    serve(&sim, "shop", "10.1.0.3");
    until_endpoints(&next, &[frozen[0], ("cart.shop", "10.1.0.3")]).await;
    grant(&sim, &["shop", "edge", "bank"]);
    let all = [("cart.bank", "10.3.0.1"), ("cart.edge", "10.2.0.2"), ("cart.shop", "10.1.0.3")];
    until_endpoints(&next, &all).await;
    next.until(|status| status.unread.is_empty() && status.endpoints == 3).await;
    assert_eq!(next.reported.borrow().resets, 1);
}

#[tokio::test]
async fn reader_without_any_namespace_does_not_sync() {
    let sim = cluster(&[]).await;
    let member = read(&sim, &["shop", "edge"], None);
    let status = member.until(|status| matches!(status.contact, ApiContact::Denied(_))).await;
    // The kinds are denied in any order.
    let contact = format!("{:?}", status.contact);
    assert!([" in edge: ", " in shop: "].iter().any(|one| contact.contains(one)), "{status:?}");
    assert!(!status.synced);
    grant(&sim, &["edge"]);
    until_endpoints(&member, &[("cart.edge", "10.2.0.1")]).await;
}

#[tokio::test]
async fn reader_that_may_not_list_namespaces_reads_the_rest_of_an_identified_cluster() {
    let sim = cluster(&[]).await;
    sim.heal();
    let unlisted = Fault::ListForbidden { resource: "namespaces".into() };
    sim.fault(unlisted.clone());
    let begin = || Member::reading_as(sim.clone(), access(&sim, &sim.url()), |config| config);
    let member = begin();
    let all = [("cart.bank", "10.3.0.1"), ("cart.edge", "10.2.0.1"), ("cart.shop", "10.1.0.1")];
    until_endpoints(&member, &all).await;
    let status = member.until(|status| status.synced && !status.missing_rights.is_empty()).await;
    assert_eq!(status.missing_rights, ["list namespaces"]);
    assert_eq!(status.contact, ApiContact::Good);
    assert!(status.cluster_uid.is_some(), "read by itself");
    assert!(status.degraded[0].starts_with("STR0309: namespaces"), "{:?}", status.degraded);

    // Without the UID, the cluster may be another one.
    sim.fault(Fault::Forbidden { resource: "namespaces".into() });
    let next = begin();
    let status = next.until(|status| matches!(status.contact, ApiContact::Denied(_))).await;
    assert!(!status.synced);
    sim.heal();
    sim.fault(unlisted);
    until_endpoints(&next, &all).await;
}
