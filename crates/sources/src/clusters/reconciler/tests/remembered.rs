//! Tests of members that are known from before the start.

use super::*;

/// Creates remembered members from ID, Secret and UID.
pub(super) fn remembered(members: &[(&str, &str, &str)]) -> BTreeMap<ClusterId, RememberedMember> {
    let member = |(id, secret, uid): &(&str, &str, &str)| {
        let remembered = RememberedMember {
            secret: Some(format!("strait-system/{secret}").into()),
            uid: Some((*uid).to_owned()),
            last_contact: Some(SystemTime::now() - Duration::from_secs(600)),
            ..RememberedMember::default()
        };
        ((*id).into(), remembered)
    };
    members.iter().map(member).collect()
}

#[tokio::test]
async fn remembered_data_is_served_at_once_and_replaced_by_the_first_sync() {
    let members = remembered(&[("east", "a", "1"), ("north", "b", "2"), ("west", "gone", "3")]);
    let mut world = World::new(Setup { remembered: members, ..Setup::default() });
    world.secrets(&[("a", &["east=slow-uid-1"]), ("b", &["north=dark", "new=good-1"])]);
    let from_disk = "last contact 10 min ago";
    world
        .until(&[
            &format!("east restored a: {from_disk}"),
            "new live b",
            &format!("north restored b: {from_disk}"),
        ])
        .await;
    // `east` may report newer data, `north` cannot.
    world.until_settled(MembersSettled::Waiting(vec!["east".into()])).await;
    world.release("slow-uid-1");
    world.until(&["east live a", "new live b", "north restored b"]).await;
    world.until_settled(MembersSettled::All).await;
    let mut received = world.received();
    received.sort();
    assert_eq!(received, ["+east", "+east", "+new", "+north"]);
    // A new Secret for a cluster that no Secret named at the start finds no remembered data.
    world.secrets(&[("a", &["east=slow-uid-1"]), ("gone", &["west=dark"])]);
    world.until(&["east live a", "new draining b", "north draining b", "west syncing gone"]).await;
}

#[tokio::test]
async fn different_cluster_under_the_same_secret_is_barred_after_a_restart() {
    let members = remembered(&[("east", "a", "1"), ("west", "b", "2")]);
    let mut world = World::new(Setup { remembered: members, ..Setup::default() });
    // Another Secret may mean another cluster.
    world.secrets(&[("a", &["east=good-uid-9"]), ("c", &["west=good-uid-8"])]);
    world.until(&["east identityChanged a: UID was 1 and is 9", "west live c"]).await;
}

#[tokio::test]
async fn members_are_presumed_until_the_secrets_are_read() {
    let members = remembered(&[("east", "a", "1"), ("north", "b", "2"), ("west", "c", "3")]);
    let mut world = World::new(Setup { remembered: members, ..Setup::default() });
    world.until_settled(MembersSettled::All).await;
    world.until(&["east restored a", "north restored b", "west restored c"]).await;
    world.until_alive(&[]).await;
    // One member is unchanged, one has another Secret, one was removed.
    world.secrets(&[("a", &["east=good-uid-9"]), ("z", &["north=good-uid-8"])]);
    world
        .until(&[
            "east identityChanged a",
            "north live z",
            "west draining c: its Secret was deleted",
        ])
        .await;
}

#[tokio::test]
async fn presumed_member_with_an_unusable_secret_stays_with_a_reason() {
    let members = remembered(&[("east", "a", "1")]);
    let mut world = World::new(Setup { remembered: members, ..Setup::default() });
    world.until(&["east restored a"]).await;
    world.secrets(&[("a", &["east=exec"])]);
    world.until(&["east rejected a: STR0203"]).await;
    world.secrets(&[("a", &["east=good-uid-1"])]);
    world.until(&["east live a"]).await;
}

/// After a restart of Strait, proxies must not receive outdated data, and an unresponsive cluster
/// must not be waited for.
#[tokio::test]
async fn remembered_data_is_served_after_clusters_had_time_to_report_newer_data() {
    let members = remembered(&[("dark", "a", "1"), ("east", "a", "2"), ("silent", "a", "3")]);
    let began = Instant::now();
    let mut world = World::new(Setup { remembered: members, ..Setup::default() });
    world.secrets(&[("a", &["dark=dark", "east=good-uid-2", "silent=slow-uid-3"])]);
    world.until(&["dark restored", "east live", "silent restored"]).await;
    world.until_settled(MembersSettled::Waiting(vec!["silent".into()])).await;
    world.until_settled(MembersSettled::All).await;
    assert!(began.elapsed() >= FRESH_WAIT, "{:?}", began.elapsed());
    assert_eq!(world.outputs.statuses.borrow()[2].state, ClusterState::Restored);
}

#[tokio::test]
async fn members_whose_secrets_may_be_in_unreadable_files_stay_unchanged() {
    let members = remembered(&[("east", "a", "1"), ("north", "b", "2"), ("west", "c", "3")]);
    let mut world = World::new(Setup { remembered: members, ..Setup::default() });
    let partly = |world: &World, secrets: &[(&str, &[&str])], place: Option<&str>| {
        world.secrets(secrets);
        world.objects.send_modify(|objects| {
            let read = Objects::clone(objects.as_ref().expect("some"));
            *objects = Some(Arc::new(Objects { partial: place.map(Into::into), ..read }));
        });
    };
    // One member is found, one is under another Secret, one is not found.
    let found: &[(&str, &[&str])] = &[("a", &["east=good-uid-1"]), ("z", &["north=good-uid-2"])];
    partly(&world, found, Some("more.yaml"));
    let unread = "west rejected c: STR0219: its Secret was not found, and may be in more.yaml";
    world.until(&["east live a", "north live z", unread]).await;
    world.until_settled(MembersSettled::All).await;
    // Other changes in the meantime don't affect it.
    partly(&world, &[("z", &["north=good-uid-2"])], Some("more.yaml"));
    world.until(&["east draining a", "north live z", unread]).await;
    partly(&world, found, None);
    world.until(&["east live a", "north live z", "west draining c: its Secret was deleted"]).await;
}

/// Before the mesh config is read, no cluster can be contacted.
#[tokio::test]
async fn member_that_cannot_be_contacted_yet_still_gets_time_to_report() {
    let members = remembered(&[("east", "a", "1")]);
    let mut world = World::new(Setup { remembered: members, ..Setup::default() });
    world.mesh_trust_domain.send_replace(None);
    world.secrets(&[("a", &["east=good-uid-1"])]);
    world.until(&["east restored a"]).await;
    assert_eq!(*world.outputs.settled.borrow(), MembersSettled::Waiting(vec!["east".into()]));
    world.mesh_trust_domain.send_replace(Some("example.org".into()));
    world.until(&["east live a"]).await;
    world.until_settled(MembersSettled::All).await;
}
