//! Tests of members whose Secret becomes invalid, or whose ID another Secret takes over.

use super::remembered::remembered;
use super::*;

#[tokio::test]
async fn secret_that_became_invalid_meanwhile_keeps_the_last_known_state() {
    for invalid in [&["east=exec"][..], &["east=good-uid-1", "strait.dev/mode=sleep"]] {
        let members = remembered(&[("east", "a", "1")]);
        let mut world = World::new(Setup { remembered: members, ..Setup::default() });
        world.secrets(&[("a", invalid)]);
        world.until(&["east rejected a: from disk, last contact 10 min ago"]).await;
        world.until(&["east rejected a: STR02"]).await;
        world.until_settled(MembersSettled::All).await;
        world.until_alive(&[]).await;
        assert_eq!(world.received(), ["+east"], "{invalid:?}");
        // The UID of the cluster is still known.
        world.secrets(&[("a", &["east=good-uid-9"])]);
        world.until(&["east identityChanged a"]).await;
        world.secrets(&[("a", &["east=good-uid-1"])]);
        world.until(&["east live a"]).await;
        world.secrets(&[]);
        world.until(&["east draining a"]).await;
    }
    // Another Secret, which was never valid, has no remembered data.
    let members = remembered(&[("east", "a", "1")]);
    let mut world = World::new(Setup { remembered: members, ..Setup::default() });
    world.secrets(&[("b", &["east=exec"])]);
    world.until(&["east rejected b: STR0203"]).await;
    assert_eq!(world.received(), [""; 0]);
}

#[tokio::test]
async fn cluster_keeps_its_uid_when_another_secret_takes_over() {
    let mut world = World::new(Setup::default());
    let (same, other) = (&["c1=good-uid-x"][..], &["c1=good-2uid-y"][..]);
    world.secrets(&[("s1", same)]);
    world.until(&["c1 live s1"]).await;
    world.secrets(&[("s0dup", same)]);
    world.until(&["c1 live s0dup"]).await;
    world.secrets(&[("s0dup", same), ("s1", same)]);
    world.until(&["c1 live s0dup", "c1 conflict s1"]).await;
    world.secrets(&[("s1", same)]);
    world.until(&["c1 live s1"]).await;
    // It must not be another member's cluster either.
    world.secrets(&[("s1", same), ("s2", &["c2=good-3uid-x"])]);
    world.until(&["c1 live s1", "c2 conflict s2: STR0220"]).await;
    world.secrets(&[("s1", other)]);
    world.until(&["c1 identityChanged s1: UID was x and is y"]).await;
    assert_eq!(world.received(), ["+c1", "-c2"]);
}

#[tokio::test]
async fn reverted_takeover_loses_no_state() {
    let mut world = World::new(Setup::default());
    let younger = ("b", &["east=good-uid-x"][..]);
    world.secrets(&[younger]);
    world.until(&["east live b"]).await;
    world.secrets(&[("a", &["east=dark"]), younger]);
    world.until(&["east live a: the old one does", "east conflict b"]).await;
    world.secrets(&[("a", &["east=good-uid-x"]), younger]);
    world.until_alive(&["east good-uid-x"]).await;
    world.until(&["east live a", "east conflict b"]).await;
    world.secrets(&[("a", &["east=good-2uid-y"]), younger]);
    world.until(&["east identityChanged a: UID was x", "east conflict b"]).await;
}

#[tokio::test]
async fn cluster_paused_from_the_start_is_not_contacted() {
    let mut world = World::new(Setup::default());
    world.secrets(&[("a", &["east=good-1", "strait.dev/mode=pause"])]);
    world.until(&["east paused: frozen by strait.dev/mode; it has no data"]).await;
    world.until_settled(MembersSettled::All).await;
    assert_eq!(*lock(&world.doubles.started), 0);
    world.secrets(&[("a", &["east=good-1"])]);
    world.until(&["east live"]).await;
}

#[tokio::test]
async fn drain_applies_although_the_kubeconfig_became_invalid() {
    let mut world = World::new(Setup::default());
    world.secrets(&[("a", &["east=good-1"])]);
    world.until(&["east live"]).await;
    world.secrets(&[("a", &["east=exec", "strait.dev/mode=drain"])]);
    world.until(&["east draining: the cluster continues unchanged: STR0203"]).await;
    assert_eq!(world.outputs.known.borrow().clusters["east"].mode, Mode::Drain);
    world.until_alive(&["east good-1"]).await;
}

#[tokio::test]
async fn only_the_secret_that_holds_an_id_permits_its_relays() {
    let mut world = World::new(Setup::default());
    let secret = |generation: &'static str| {
        ["strait.dev/relay=true", "strait.dev/cluster-id=west", generation]
    };
    let [second, third] =
        ["strait.dev/relay-generation=2", "strait.dev/relay-generation=3"].map(secret);
    world.secrets(&[("b", &second)]);
    world.until(&["west live b"]).await;
    world.until_relayed(&["west b 2"]).await;
    // The first by name takes over, and the other one is on standby.
    world.secrets(&[("a", &third), ("b", &second)]);
    world.until_relayed(&["west a 3"]).await;
    // It keeps the ID and its relays although it became invalid.
    world.secrets(&[("a", &secret("strait.dev/relay-generation=none")), ("b", &second)]);
    world.until(&["west live a: STR0217", "west conflict b"]).await;
    world.until_relayed(&["west a 3"]).await;
    // A member with a kubeconfig has no relay.
    world.secrets(&[("a", &["west=good-1"]), ("b", &second)]);
    world.until_relayed(&[]).await;
    world.secrets(&[("b", &second)]);
    world.until_relayed(&["west b 2"]).await;
    world.secrets(&[]);
    world.until_relayed(&[]).await;
}
