//! What becomes of a member whose Secret turns bad, or whose ID another Secret takes over.

use super::remembered::remembered;
use super::*;

#[tokio::test]
async fn a_secret_that_turned_bad_meanwhile_leaves_what_was_last_known() {
    for bad in [&["east=exec"][..], &["east=good-uid-1", "strait.dev/mode=sleep"]] {
        let members = remembered(&[("east", "a", "1")]);
        let mut world = World::new(Setup { remembered: members, ..Setup::default() });
        world.secrets(&[("a", bad)]);
        world.until(&["east rejected a: from disk, last heard of 10 min ago"]).await;
        world.until(&["east rejected a: STR02"]).await;
        world.until_settled(MembersSettled::All).await;
        world.until_alive(&[]).await;
        assert_eq!(world.words(), ["+east"], "{bad:?}");
        // It is still known which cluster that is.
        world.secrets(&[("a", &["east=good-uid-9"])]);
        world.until(&["east identityChanged a"]).await;
        world.secrets(&[("a", &["east=good-uid-1"])]);
        world.until(&["east live a"]).await;
        world.secrets(&[]);
        world.until(&["east draining a"]).await;
    }
    // Of another Secret, which was never any good, nothing is known.
    let members = remembered(&[("east", "a", "1")]);
    let mut world = World::new(Setup { remembered: members, ..Setup::default() });
    world.secrets(&[("b", &["east=exec"])]);
    world.until(&["east rejected b: STR0203"]).await;
    assert_eq!(world.words(), [""; 0]);
}

#[tokio::test]
async fn a_cluster_that_another_secret_took_over_is_still_that_cluster() {
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
    // Nor may it be another member's.
    world.secrets(&[("s1", same), ("s2", &["c2=good-3uid-x"])]);
    world.until(&["c1 live s1", "c2 conflict s2: STR0220"]).await;
    world.secrets(&[("s1", other)]);
    world.until(&["c1 identityChanged s1: UID was x and is y"]).await;
    assert_eq!(world.words(), ["+c1", "-c2"]);
}

#[tokio::test]
async fn a_takeover_that_was_taken_back_forgets_nothing() {
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
async fn a_cluster_that_is_paused_from_the_start_is_not_called() {
    let mut world = World::new(Setup::default());
    world.secrets(&[("a", &["east=good-1", "strait.dev/mode=pause"])]);
    world.until(&["east paused: frozen by strait.dev/mode; nothing is known of it"]).await;
    world.until_settled(MembersSettled::All).await;
    assert_eq!(*lock(&world.doubles.started), 0);
    world.secrets(&[("a", &["east=good-1"])]);
    world.until(&["east live"]).await;
}

#[tokio::test]
async fn a_drain_beside_a_kubeconfig_that_turned_bad_counts() {
    let mut world = World::new(Setup::default());
    world.secrets(&[("a", &["east=good-1"])]);
    world.until(&["east live"]).await;
    world.secrets(&[("a", &["east=exec", "strait.dev/mode=drain"])]);
    world.until(&["east draining: the cluster runs on as before: STR0203"]).await;
    assert_eq!(world.outputs.known.borrow().clusters["east"].mode, Mode::Drain);
    world.until_alive(&["east good-1"]).await;
}
