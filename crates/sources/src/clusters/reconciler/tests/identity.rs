//! Tests of members whose Secret was deleted and created again for a rebuilt cluster.

use super::remembered::remembered;
use super::*;

const FOLLOWS: &str = "clusters: {east: {identity: follow-source}}";

/// Starts a world with these rules in which `east`, with the UID `x`, is live under the Secret `a`
/// with the UID `1`.
async fn live_east(text: &str) -> (World, watch::Sender<Arc<Policy>>) {
    let (rules, policy) = rules(text);
    let mut world = World::new(Setup { policy, ..Setup::default() });
    world.secrets(&[("a@1", &["east=good-1uid-x"])]);
    world.until(&["east live a"]).await;
    (world, rules)
}

/// The identity of `east`: its UID, the Secret that led to it, and the UID before.
fn holder(world: &World) -> (Option<String>, Option<String>, Option<String>) {
    let statuses = world.outputs.statuses.borrow();
    let east = statuses.iter().find(|status| status.id == "east");
    let holder = east.and_then(|status| status.kept.clone()).expect("it has data");
    (holder.uid, holder.found_by.map(|uid| uid.to_string()), holder.followed)
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[tokio::test]
async fn new_secret_of_a_pinned_member_is_not_followed() {
    let (mut world, rules) = live_east("").await;
    let next = "annotate the Secret with strait.dev/cluster-uid=y, or set clusters.east.identity: \
                follow-source in the policy file: the Secret was created again";
    // Whether the deletion was seen makes no difference.
    world.secrets(&[]);
    world.until(&["east draining a"]).await;
    let rebuilt = &[("a@2", &["east=good-2uid-y"][..])];
    world.secrets(rebuilt);
    world
        .until(&[&format!("east identityChanged a: UID was x and is y; to accept it {next}")])
        .await;
    world.secrets(&[("a@1", &["east=good-1uid-x"])]);
    world.until(&["east live a"]).await;
    world.secrets(rebuilt);
    world
        .until(&[&format!("east identityChanged a: UID was x and is y; to accept it {next}")])
        .await;
    assert_eq!(world.received(), ["+east", "+east"]);
    assert_eq!(holder(&world), (text("x"), text("1"), None));
    // The rule applies once the policy file has it.
    rules.send_replace(parsed(FOLLOWS));
    world.until(&["east live a"]).await;
    world.until_alive(&["east good-2uid-y"]).await;
}

#[tokio::test]
async fn new_secret_may_lead_to_another_cluster_if_the_policy_follows_it() {
    let (mut world, _rules) = live_east(FOLLOWS).await;
    assert_eq!(holder(&world), (text("x"), text("1"), None));
    world.secrets(&[("a@2", &["east=good-2uid-y"])]);
    world.until(&["east live a"]).await;
    world.until_alive(&["east good-2uid-y"]).await;
    world.until(&["east live a"]).await;
    assert_eq!(holder(&world), (text("y"), text("2"), text("x")));
    // The data of the old cluster is replaced, not removed.
    assert_eq!(world.received(), ["+east", "+east"]);
    // The deletion of the Secret was seen before.
    world.secrets(&[]);
    world.until(&["east draining a"]).await;
    world.secrets(&[("a@3", &["east=good-3uid-z"])]);
    world.until(&["east live a"]).await;
    assert_eq!(holder(&world), (text("z"), text("3"), text("y")));
    // An operator accepts the earlier cluster: it is not the result of a new Secret.
    world.secrets(&[("a@3", &["east=good-4uid-y", "strait.dev/cluster-uid=y"])]);
    world.until_alive(&["east good-4uid-y"]).await;
    world.until(&["east live a"]).await;
    assert_eq!(holder(&world), (text("y"), text("3"), None));
}

#[tokio::test]
async fn edited_secret_is_not_followed() {
    let (mut world, _rules) = live_east(FOLLOWS).await;
    world.secrets(&[("a@1", &["east=good-2uid-y"])]);
    let next = "clusters.east.identity of the policy file accepts it only from a Secret that was";
    world.until(&[&format!("east identityChanged a: strait.dev/cluster-uid=y; {next}")]).await;
    assert_eq!(world.received(), ["+east"]);
    // A new Secret that led to the same cluster does not allow a later change.
    world.secrets(&[("a@2", &["east=good-1uid-x"])]);
    world.until(&["east live a"]).await;
    world.secrets(&[("a@2", &["east=good-2uid-y"])]);
    world.until(&["east identityChanged a: UID was x and is y"]).await;
    // The data of a directory has no UIDs, so a new file is not known to be new.
    world.secrets(&[("a", &["east=good-3uid-y"])]);
    world.until(&["east identityChanged a: UID was x and is y"]).await;
}

#[tokio::test]
async fn pinned_uid_takes_precedence_over_a_new_secret() {
    let (mut world, _rules) = live_east(FOLLOWS).await;
    world.secrets(&[("a@2", &["east=good-2uid-y", "strait.dev/cluster-uid=x"])]);
    world.until(&["east identityChanged a: annotation strait.dev/cluster-uid names x"]).await;
    world.secrets(&[("a@2", &["east=good-2uid-y"])]);
    world.until(&["east live a"]).await;
    assert_eq!(holder(&world), (text("y"), text("2"), text("x")));
}

#[tokio::test]
async fn new_secret_is_followed_after_a_restart() {
    let member = |found_by: Option<&str>| {
        let mut members = remembered(&[("east", "a", "x")]);
        for member in members.values_mut() {
            member.found_by = found_by.map(Into::into);
        }
        members
    };
    // The state of an earlier version does not contain which Secret it was.
    for (found_by, accepted) in [(Some("1"), true), (Some("2"), false), (None, false)] {
        let (_rules, policy) = rules(FOLLOWS);
        let remembered = member(found_by);
        let mut world = World::new(Setup { policy, remembered, ..Setup::default() });
        world.secrets(&[("a@2", &["east=good-2uid-y"])]);
        let wanted = if accepted { "east live a" } else { "east identityChanged a: UID was x" };
        world.until(&[wanted]).await;
        let (uid, _, followed) = holder(&world);
        let expected = if accepted { (text("y"), text("x")) } else { (text("x"), None) };
        assert_eq!((uid, followed), expected, "{found_by:?}");
    }
}

#[tokio::test]
async fn older_secret_wins_whichever_cluster_answers_first() {
    let both: &[(&str, &[&str])] = &[("a", &["west=slow-1uid-x"]), ("b", &["east=good-2uid-x"])];
    let mut world = World::new(Setup { grace: LIMIT * 100, ..Setup::default() });
    world.secrets(both);
    world.until(&["east live b", "west syncing a"]).await;
    assert_eq!(world.received(), ["+east"]);
    world.release("slow-1uid-x");
    let conflict = "east conflict b: STR0220: the cluster is a member already, as west of Secret \
                    strait-system/a, which is first by name";
    world.until(&[conflict, "west live a"]).await;
    assert_eq!(world.received(), ["+west", "-east"], "the older one delivers first");
    world.secrets(&[("b", &["east=good-2uid-x"])]);
    world.until(&["east live b", "west draining a"]).await;
    assert_eq!(world.received(), ["+east", "-west"]);
}

#[tokio::test]
async fn removed_pins_leave_the_cluster_to_the_older_secret() {
    let pin = "strait.dev/cluster-uid=x";
    let mut world = World::new(Setup::default());
    world.secrets(&[("a", &["west=good-1uid-x", pin]), ("b", &["east=good-2uid-x", pin])]);
    world.until(&["east live b", "west live a"]).await;
    world.secrets(&[("a", &["west=good-1uid-x"]), ("b", &["east=good-2uid-x", pin])]);
    world.until(&["east conflict b: STR0220", "west live a"]).await;
}
