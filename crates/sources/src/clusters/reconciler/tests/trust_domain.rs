//! Tests of the trust domain in which the workloads of a member are read.

use super::*;

impl World {
    /// Waits until `east` is shown, known and read in `domain`, by run number `runs`.
    async fn until_read_in(&self, domain: &str, runs: usize) {
        let started = Instant::now();
        loop {
            let is = (
                lock(&self.doubles.trust_domain).clone(),
                self.outputs.known.borrow().clusters["east"].trust_domain.to_string(),
                self.outputs.statuses.borrow()[0].trust_domain.clone(),
                *lock(&self.doubles.started),
            );
            if is == (domain.to_owned(), domain.to_owned(), domain.to_owned(), runs) {
                return;
            }
            assert!(started.elapsed() < LIMIT, "wanted {domain} by run {runs}, is {is:?}");
            tokio::task::yield_now().await;
        }
    }

    /// Waits until these clusters are known with these trust domains.
    async fn until_in(&mut self, wanted: &[(&str, &str)]) {
        let known = self.outputs.known.wait_for(|known| {
            let trust_domain = |id: &str| known.clusters.get(id).map(|one| &*one.trust_domain);
            wanted.iter().all(|(id, domain)| trust_domain(id) == Some(domain))
        });
        let known = tokio::time::timeout(LIMIT, known).await;
        assert!(known.is_ok(), "wanted {wanted:?}");
    }
}

#[tokio::test]
async fn changed_trust_domain_is_read_while_the_old_run_serves() {
    const OWN: &str = "strait.dev/trust-domain=east.example";
    let mut world = World::new(Setup::default());
    world.secrets(&[("a", &["east=good-1"])]);
    world.until(&["east live"]).await;
    world.until_read_in("example.org", 1).await;

    world.secrets(&[("a", &["east=good-1", OWN])]);
    world.until_read_in("east.example", 2).await;
    world.until_alive(&["east good-1"]).await;

    // The mesh's trust domain does not affect a cluster that has its own.
    world.mesh_trust_domain.send_replace(Some("other.example".into()));
    world.secrets(&[("a", &["east=good-1", OWN, "strait.dev/network=n1"])]);
    world.until(&["east live"]).await;
    world.until_read_in("east.example", 2).await;
    world.secrets(&[("a", &["east=good-1"])]);
    world.until_read_in("other.example", 3).await;

    world.secrets(&[("a", &["east=good-1", "strait.dev/trust-domain=East"])]);
    world.until(&["east live: the new kubeconfig is not used: STR0217"]).await;
    world.until_read_in("other.example", 3).await;
}

#[tokio::test]
async fn nothing_is_read_before_the_trust_domain_of_the_mesh_is_known() {
    let mut world = World::new(Setup::default());
    world.mesh_trust_domain.send_replace(None);
    world.secrets(&[("a", &["east=good-1"])]);
    world.until_settled(MembersSettled::Waiting(vec!["east".into()])).await;
    assert_eq!(*lock(&world.doubles.started), 0);
    world.mesh_trust_domain.send_replace(Some("example.org".into()));
    world.until(&["east live"]).await;
}

#[tokio::test]
async fn claimed_trust_domain_is_used_unless_the_secret_names_one() {
    let mut world = World::new(Setup::default());
    world.secrets(&[("a", &["east=says-own.local"])]);
    world.until(&["east live"]).await;
    // The first run discovered it, and reported nothing.
    world.until_read_in("own.local", 2).await;
    world.until_alive(&["east says-own.local"]).await;
    assert_eq!(world.received(), ["+east"]);
    world.mesh_trust_domain.send_replace(Some("other.example".into()));
    world.until_read_in("own.local", 3).await;
    world.secrets(&[("a", &["east=says-own.local", "strait.dev/trust-domain=east.example"])]);
    world.until_read_in("east.example", 4).await;
    world.until(&["east live"]).await;
}

#[tokio::test]
async fn cluster_cannot_claim_the_trust_domain_of_another_or_one_that_policy_denies() {
    const WEST_DOMAIN: &str = "strait.dev/trust-domain=west.example";
    let (change, policy) = rules("");
    let mut world = World::new(Setup { policy, ..Setup::default() });
    let east: (&str, &[&str]) = ("a", &["east=says-west.example"]);
    world.secrets(&[east, ("b", &["west=good-1", WEST_DOMAIN])]);
    // A domain that belongs to another cluster is not accepted, in any order of contact; the
    // cluster is not affected otherwise.
    world.until(&["east live", "west live"]).await;
    world.until_in(&[("east", "example.org"), ("west", "west.example")]).await;

    // A policy that assigns the trust domain takes precedence.
    change.send_replace(parsed("clusters: {east: {trustDomains: [west.example]}}"));
    world.until_in(&[("east", "west.example"), ("west", "west.example")]).await;
    world.until(&["east live", "west live"]).await;

    // A domain that no other Secret names is accepted, unless policy denies it.
    world.secrets(&[("a", &["east=says-own.local"]), ("b", &["west=good-1", WEST_DOMAIN])]);
    change.send_replace(parsed("clusters: {east: {mode: normal}}"));
    world.until_in(&[("east", "own.local"), ("west", "west.example")]).await;
    change.send_replace(parsed("mesh: {trustDomains: []}"));
    world.until_in(&[("east", "example.org"), ("west", "west.example")]).await;
    world.until(&["east live", "west live"]).await;
}
