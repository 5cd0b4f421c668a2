use std::task::{Context, Waker};

use super::*;
use crate::push::Whereabouts;
use crate::push::view::Role;
use strait_base::wake::{WakeReasons, WakeReceiver};
use strait_model::testing::sidecar;

/// Each name is `HOST` or `HOST:PORT`.
fn watch(subscription: &mut Subscription, names: &[&str]) {
    let names: Vec<Arc<str>> = names.iter().map(|name| (*name).into()).collect();
    subscription.watch(&names, |name| Some(name.split(':').next()?.into()));
}

fn forget(subscription: &mut Subscription, names: &[&str]) {
    let names: Vec<Arc<str>> = names.iter().map(|name| (*name).into()).collect();
    subscription.forget(&names);
}

fn dirty(subscription: &Subscription) -> Vec<String> {
    let mut names: Vec<_> = subscription.take().endpoints.iter().map(ToString::to_string).collect();
    names.sort();
    names
}

fn endpoints_of(names: &[&str]) -> Changes {
    Changes::for_endpoints(names.iter().map(|name| Hostname::from(*name)))
}

#[test]
fn only_streams_that_watch_a_host_are_notified() {
    let subscription_index = Arc::new(SubscriptionIndex::default());
    let mut a = subscription_index.subscribe(None);
    let b = subscription_index.subscribe(None);
    watch(&mut a, &["x", "y", "x:1"]);
    assert_eq!(subscription_index.mark(&endpoints_of(&["x", "z"])), 1);
    assert_eq!(dirty(&a), ["x", "x:1"]);
    assert!(b.take().is_empty());
    forget(&mut a, &["x", "x:1", "never watched"]);
    assert_eq!(subscription_index.mark(&endpoints_of(&["x"])), 0);
    watch(&mut a, &["x"]);
    assert_eq!(subscription_index.mark(&endpoints_of(&["x", "y"])), 1);
    assert_eq!(dirty(&a), ["x", "y"]);
}

#[test]
fn definition_change_notifies_unknown_streams_and_workload_change_its_own_proxy() {
    let subscription_index = Arc::new(SubscriptionIndex::default());
    let key = (ClusterId::from("east"), WorkloadKey::new("ns", "pod"));
    let own = subscription_index.subscribe(Some(key.clone()));
    let other = subscription_index.subscribe(None);
    let changed = Changes::from_iter([ChangedItem::Workload(key.0, key.1)]);
    assert_eq!(subscription_index.mark(&changed), 1);
    assert!(own.take().everything);
    let changed = Changes::from_iter([ChangedItem::Definition("x".into())]);
    assert_eq!(subscription_index.mark(&changed), 0, "no stream watches anything");
    own.watch_lists(Wildcards::ALL);
    other.watch_routes(&["80".into()], &[]);
    assert_eq!(subscription_index.mark(&changed), 2);
    assert_eq!(own.take().lists, Wildcards::ALL);
    assert_eq!(other.take().routes, ["80".into()].into());
}

fn set_location(subscription: &Subscription, network: &str) -> bool {
    let proxy = Arc::new(sidecar("web.ns", "east"));
    let whereabouts = Whereabouts::default();
    subscription.set_location(
        ProxyLocation { proxy, network: network.into(), whereabouts },
        view(network),
        None,
    )
}

fn view(network: &str) -> ViewKey {
    ViewKey::of(&sidecar("web.ns", "east"), network.into(), Role::Client)
}

#[test]
fn stream_with_an_unaffected_view_is_not_notified() {
    let subscription_index = Arc::new(SubscriptionIndex::default());
    let mut streams = [(); 3].map(|()| subscription_index.subscribe(None));
    streams.iter_mut().for_each(|stream| watch(stream, &["x", "y"]));
    let [a, b, c] = &streams;
    assert!(set_location(a, "n1") && set_location(b, "n2") && !set_location(a, "n1"));
    let unaffected_views = BTreeMap::from([("x".into(), vec![Arc::new(view("n1"))])]);
    let changes = Changes { unaffected_views, ..endpoints_of(&["x", "y"]) };
    subscription_index.mark(&changes);
    let both = ["x", "y"].map(str::to_owned);
    assert_eq!((dirty(a), dirty(b), dirty(c)), (vec!["y".into()], both.to_vec(), both.to_vec()));
    assert!(set_location(a, "n3"), "it moved");
    subscription_index.mark(&changes);
    assert_eq!(dirty(a), both);
}

#[test]
fn streams_are_counted_by_view() {
    let subscription_index = Arc::new(SubscriptionIndex::default());
    let mut streams = [(); 5].map(|()| subscription_index.subscribe(None));
    for (stream, network) in streams.iter_mut().zip(["n1", "n1", "n2", "n1", "n2"]) {
        watch(stream, &["x"]);
        set_location(stream, network);
    }
    forget(&mut streams[0], &["x"]);
    watch(&mut streams[0], &["y"]);
    let many = |host: &str, least| {
        let views = subscription_index.view_classes(&host.into(), least);
        views.iter().map(|view| view.network.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(many("x", 2), ["n1", "n2"]);
    assert_eq!(many("x", 3), [""; 0]);
    assert_eq!(many("y", 1), ["n1"]);
}

#[test]
fn ended_stream_is_removed_completely() {
    let subscription_index = Arc::new(SubscriptionIndex::default());
    let key = (ClusterId::from("east"), WorkloadKey::new("ns", "pod"));
    let mut stream = subscription_index.subscribe(Some(key));
    watch(&mut stream, &["x"]);
    set_location(&stream, "n1");
    set_location(&stream, "n2");
    drop(stream);
    let table = subscription_index.table();
    assert_eq!(table.streams.iter().count() + table.names.iter().count(), 0);
    assert_eq!(table.view_classes.iter().count() + table.by_view.len(), 0);
    assert!(table.by_name.is_empty() && table.by_hostname.is_empty() && table.workloads.is_empty());
    assert!(table.by_workload.is_empty());
}

#[test]
fn reused_number_does_not_carry_changes_of_its_former_name() {
    let subscription_index = Arc::new(SubscriptionIndex::default());
    let mut stream = subscription_index.subscribe(None);
    watch(&mut stream, &["x"]);
    subscription_index.mark(&endpoints_of(&["x"]));
    forget(&mut stream, &["x"]);
    watch(&mut stream, &["y"]);
    assert!(stream.take().is_empty());
    drop(stream);
    let mut next = subscription_index.subscribe(None);
    watch(&mut next, &["z", "x"]);
    subscription_index.mark(&endpoints_of(&["y", "z"]));
    assert_eq!(dirty(&next), ["z"]);
}

#[test]
fn stream_is_woken_for_its_changes_only() {
    let subscription_index = Arc::new(SubscriptionIndex::default());
    let (mut word, reason) = (WakeReceiver::default(), WakeReasons::bit(3));
    let stream = subscription_index.subscribe_waking(None, word.handle(reason));
    let context = Context::from_waker(Waker::noop());
    subscription_index.mark(&Changes::from_iter([ChangedItem::Mesh]));
    assert_eq!(word.take(&context), reason, "the mark precedes the first look");
    assert!(stream.has_changes() && stream.take().everything);
    subscription_index.mark(&Changes::for_endpoints([Hostname::from("a")]));
    assert_eq!(word.take(&context), WakeReasons::default());
    assert!(!stream.has_changes());
}
