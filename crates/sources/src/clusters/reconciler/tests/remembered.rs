//! Members that are known from before the start.

use super::*;

/// Members remembered from before: ID, Secret, UID.
pub(super) fn remembered(members: &[(&str, &str, &str)]) -> BTreeMap<ClusterId, RememberedMember> {
    let one = |(id, secret, uid): &(&str, &str, &str)| {
        let remembered = RememberedMember {
            secret: Some(format!("strait-system/{secret}").into()),
            uid: Some((*uid).to_owned()),
            last_contact: Some(SystemTime::now() - Duration::from_secs(600)),
            ..RememberedMember::default()
        };
        ((*id).into(), remembered)
    };
    members.iter().map(one).collect()
}

#[tokio::test]
async fn what_is_remembered_is_there_at_once_and_goes_when_its_cluster_speaks() {
    let members = remembered(&[("east", "a", "1"), ("north", "b", "2"), ("west", "gone", "3")]);
    let mut world = World::new(Setup { remembered: members, ..Setup::default() });
    world.secrets(&[("a", &["east=slow-uid-1"]), ("b", &["north=dark", "new=good-1"])]);
    let from_disk = "last heard of 10 min ago";
    world
        .until(&[
            &format!("east restored a: {from_disk}"),
            "new live b",
            &format!("north restored b: {from_disk}"),
        ])
        .await;
    // East may say what is newer, north can't.
    world.until_settled(MembersSettled::Waiting(vec!["east".into()])).await;
    world.release("slow-uid-1");
    world.until(&["east live a", "new live b", "north restored b"]).await;
    world.until_settled(MembersSettled::All).await;
    let mut words = world.words();
    words.sort();
    assert_eq!(words, ["+east", "+east", "+new", "+north"]);
    // A Secret for a cluster that no Secret named at the start finds nothing of it.
    world.secrets(&[("a", &["east=slow-uid-1"]), ("gone", &["west=dark"])]);
    world.until(&["east live a", "new draining b", "north draining b", "west syncing gone"]).await;
}

#[tokio::test]
async fn another_cluster_under_the_same_secret_is_barred_after_a_restart_too() {
    let members = remembered(&[("east", "a", "1"), ("west", "b", "2")]);
    let mut world = World::new(Setup { remembered: members, ..Setup::default() });
    // Another Secret may mean another cluster.
    world.secrets(&[("a", &["east=good-uid-9"]), ("c", &["west=good-uid-8"])]);
    world.until(&["east identityChanged a: UID was 1 and is 9", "west live c"]).await;
}

#[tokio::test]
async fn without_any_configuration_the_members_are_presumed_and_later_as_their_secrets() {
    let members = remembered(&[("east", "a", "1"), ("north", "b", "2"), ("west", "c", "3")]);
    let mut world = World::new(Setup { remembered: members, ..Setup::default() });
    world.until_settled(MembersSettled::All).await;
    world.until(&["east restored a", "north restored b", "west restored c"]).await;
    world.until_alive(&[]).await;
    // One is there, one has another Secret, one has gone.
    world.secrets(&[("a", &["east=good-uid-9"]), ("z", &["north=good-uid-8"])]);
    world
        .until(&["east identityChanged a", "north live z", "west draining c: its Secret has gone"])
        .await;
}

#[tokio::test]
async fn a_presumed_member_whose_secret_can_not_be_used_stays_and_says_why() {
    let members = remembered(&[("east", "a", "1")]);
    let mut world = World::new(Setup { remembered: members, ..Setup::default() });
    world.until(&["east restored a"]).await;
    world.secrets(&[("a", &["east=exec"])]);
    world.until(&["east rejected a: STR0203"]).await;
    world.secrets(&[("a", &["east=good-uid-1"])]);
    world.until(&["east live a"]).await;
}

/// A restart of Strait alone shows nobody the past, and a cluster that says nothing is not waited for.
#[tokio::test]
async fn what_is_remembered_counts_once_its_cluster_had_a_moment_to_say_what_is_newer() {
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
async fn members_whose_secrets_may_be_in_what_can_not_be_read_stay_as_they_were_known() {
    let members = remembered(&[("east", "a", "1"), ("north", "b", "2"), ("west", "c", "3")]);
    let mut world = World::new(Setup { remembered: members, ..Setup::default() });
    let partly = |world: &World, secrets: &[(&str, &[&str])], place: Option<&str>| {
        world.secrets(secrets);
        world.objects.send_modify(|objects| {
            let read = Objects::clone(objects.as_ref().expect("some"));
            *objects = Some(Arc::new(Objects { partial: place.map(Into::into), ..read }));
        });
    };
    // One is there, one is under another Secret, of one nothing is found.
    let found: &[(&str, &[&str])] = &[("a", &["east=good-uid-1"]), ("z", &["north=good-uid-2"])];
    partly(&world, found, Some("more.yaml"));
    let unread = "west rejected c: STR0219: its Secret is not found, and may be in more.yaml";
    world.until(&["east live a", "north live z", unread]).await;
    world.until_settled(MembersSettled::All).await;
    // What else changes meanwhile changes nothing for it.
    partly(&world, &[("z", &["north=good-uid-2"])], Some("more.yaml"));
    world.until(&["east draining a", "north live z", unread]).await;
    partly(&world, found, None);
    world.until(&["east live a", "north live z", "west draining c: its Secret has gone"]).await;
}

/// Before the mesh config is read nobody can be asked.
#[tokio::test]
async fn a_member_that_can_not_be_asked_yet_has_its_moment_all_the_same() {
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
