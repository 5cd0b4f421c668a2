//! Mode transitions between plaintext and mTLS: servers accept both for a limited time.

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;

/// An index whose policies change at given seconds.
struct Run {
    index: AccessIndex,
    begun: TimePoint,
}

impl Run {
    fn new(objects: impl IntoIterator<Item = Value>) -> Self {
        let mut run = Self { index: index(), begun: TimePoint::now() };
        run.at(0.0, objects);
        run
    }

    fn time(&self, seconds: f64) -> TimePoint {
        let TimePoint { instant, time } = self.begun;
        let later = Duration::from_secs_f64(seconds);
        TimePoint { instant: instant + later, time: time + later }
    }

    /// Returns the active policies at that second, after all transitions that are due.
    fn then(&mut self, seconds: f64) -> Arc<AccessPolicies> {
        let now = self.time(seconds);
        self.index.settle(now.instant);
        self.index.policies()
    }

    /// Replaces all objects at that second and returns the active policies.
    fn at(
        &mut self,
        seconds: f64,
        objects: impl IntoIterator<Item = Value>,
    ) -> Arc<AccessPolicies> {
        self.then(seconds);
        let now = self.time(seconds);
        self.index.hold_at(now, objects)
    }

    /// Returns the end of the transition that began at that second.
    fn transition_begun_at(&self, seconds: f64) -> Option<ModeTransition> {
        let ends = self.time(seconds + 60.0);
        Some(ModeTransition { to: PeerMode::Strict, ends })
    }
}

fn workload_mode(policies: &AccessPolicies, namespace: &str, app: &str) -> PortMode {
    let labels = labels(&[("app", app)]);
    let namespace = Namespace::from(namespace);
    let subject = AccessSubject { namespace: &namespace, labels: &labels, is_known: true };
    policies.of(subject).modes.rest
}

/// Returns the mode of `web` in `shop`.
fn mode(policies: &AccessPolicies) -> &'static str {
    workload_mode(policies, "shop", "web").mode.as_str()
}

/// Returns whether clients use plaintext with `web` in `shop`.
fn is_plain(policies: &AccessPolicies) -> bool {
    let (namespace, labels) = ("shop".into(), labels(&[("app", "web")]));
    let subject = AccessSubject { namespace: &namespace, labels: &labels, is_known: true };
    policies.receives_plaintext(subject, 80)
}

fn whole(namespace: &str, mode: &str) -> Value {
    peer(namespace, "all", json!({ "mtls": { "mode": mode } }))
}

fn app_policy(namespace: &str, app: &str, mode: &str) -> Value {
    let selector = json!({ "matchLabels": { "app": app } });
    peer(namespace, app, json!({ "selector": selector, "mtls": { "mode": mode } }))
}

#[test]
fn servers_accept_both_modes_only_during_a_transition() {
    let mut run = Run::new([whole("shop", "DISABLE")]);
    let first = run.then(0.0);
    assert_eq!(
        (mode(&first), run.index.settles()),
        ("DISABLE", None),
        "the first configuration is no transition"
    );
    let policies = run.at(10.0, [whole("shop", "STRICT")]);
    let found = workload_mode(&policies, "shop", "web");
    assert_eq!(
        (found.mode, found.transition),
        (PeerMode::Permissive, run.transition_begun_at(10.0))
    );
    assert_eq!(mode(&run.then(69.9)), "PERMISSIVE");
    let after = run.then(70.0);
    assert_eq!((mode(&after), run.index.settles()), ("STRICT", None));
    run.at(80.0, [whole("shop", "PERMISSIVE")]);
    assert_eq!(run.index.settles(), None, "no server accepts less than before");
    assert_eq!(
        mode(&run.at(81.0, [whole("shop", "STRICT")])),
        "STRICT",
        "all clients use mTLS already"
    );
}

/// A client that switches before its server would use a protocol that the server does not accept
/// yet.
#[test]
fn clients_switch_after_servers_are_ready() {
    use PeerMode::{Disable, Permissive, Strict};
    let cases = [
        (Disable, Strict, [true, true, false]),
        (Disable, Permissive, [true, true, false]),
        (Strict, Disable, [false, false, true]),
        // A server that accepts both is ready for either.
        (Permissive, Disable, [false, true, true]),
        (Permissive, Strict, [false, false, false]),
        (Strict, Permissive, [false, false, false]),
    ];
    for (before, now, expected) in cases {
        let object = |mode: PeerMode| whole("shop", mode.as_str());
        let mut run = Run::new([object(before)]);
        let settled = run.then(0.0);
        let begun = run.at(10.0, [object(now)]);
        assert!(Arc::ptr_eq(&run.then(14.9), &begun), "nothing changes in between");
        let servers_ready = run.then(15.0);
        let found = [&settled, &begun, &servers_ready].map(|policies| is_plain(policies));
        assert_eq!(found, expected, "{before:?} to {now:?}");
        // Endpoints are merged again when the protocol of their clients changes.
        for (before, now) in [(&settled, &begun), (&begun, &servers_ready)] {
            if is_plain(before) != is_plain(now) {
                assert_eq!(now.changed_modes(before), ["shop".into()].into());
            }
        }
        assert!(is_plain(&run.then(70.0)) == expected[2] && run.index.settles().is_none());
    }
    // The policy is deleted.
    let mut run = Run::new([whole("shop", "DISABLE")]);
    let begun = run.at(10.0, []);
    let servers_ready = run.then(15.0);
    assert!(begun.uses_plaintext_anywhere() && is_plain(&begun) && !is_plain(&servers_ready));
    assert_eq!(servers_ready.changed_modes(&begun), ["shop".into()].into());
}

/// Traffic through a gateway is mTLS while any client may send mTLS, and before the first one does.
#[test]
fn gateways_use_mtls_while_servers_accept_it() {
    let takes_mtls = |policies: &AccessPolicies| {
        let (namespace, labels) = ("shop".into(), labels(&[("app", "web")]));
        let subject = AccessSubject { namespace: &namespace, labels: &labels, is_known: true };
        policies.accepts_mtls(subject, 80)
    };
    for (before, now, expected) in [
        ("STRICT", "DISABLE", [true, true, true, true, false]),
        ("PERMISSIVE", "DISABLE", [true, true, true, true, false]),
        ("DISABLE", "STRICT", [false, true, true, true, true]),
        ("DISABLE", "PERMISSIVE", [false, true, true, true, true]),
    ] {
        let mut run = Run::new([whole("shop", before)]);
        let settled = run.then(0.0);
        let begun = run.at(10.0, [whole("shop", now)]);
        let servers_ready = run.then(15.0);
        let later = run.then(69.9);
        let ended = run.then(70.0);
        let all = [&settled, &begun, &servers_ready, &later, &ended];
        assert_eq!(all.map(|policies| takes_mtls(policies)), expected, "{before} to {now}");
        // Endpoints are merged again.
        let differs = [(&settled, &begun), (&later, &ended)].map(|(before, now)| {
            (takes_mtls(before) == takes_mtls(now), now.changed_modes(before))
        });
        for (is_same, changed) in differs {
            assert!(is_same || changed == ["shop".into()].into(), "{before} to {now}: {changed:?}");
        }
    }
}

#[test]
fn unrelated_edits_do_not_prolong_a_transition() {
    type Edit = fn(usize) -> Value;
    let edits: [(&str, Edit); 4] = [
        ("a policy of another namespace", |at| {
            let rules = json!([{ "to": [{ "operation": { "paths": [format!("/{at}")] } }] }]);
            object("AuthorizationPolicy", "other", "edited", json!({ "rules": rules }))
        }),
        ("a policy of the same namespace", |at| {
            let rules = json!([{ "to": [{ "operation": { "paths": [format!("/{at}")] } }] }]);
            object("AuthorizationPolicy", "shop", "edited", json!({ "rules": rules }))
        }),
        ("another namespace that changes repeatedly", |at| {
            whole("other", if at % 2 == 0 { "DISABLE" } else { "STRICT" })
        }),
        ("another workload that changes repeatedly", |at| {
            app_policy("shop", "db", if at % 2 == 0 { "DISABLE" } else { "STRICT" })
        }),
    ];
    for (what, edit) in edits {
        let mut run = Run::new([whole("shop", "DISABLE"), edit(0)]);
        run.at(1.0, [whole("shop", "STRICT"), edit(0)]);
        for at in 1..=5_u32 {
            let edited = edit(usize::try_from(at).expect("few"));
            let policies = run.at(1.0 + 10.0 * f64::from(at), [whole("shop", "STRICT"), edited]);
            let found = workload_mode(&policies, "shop", "web");
            assert_eq!(
                (found.mode, found.transition),
                (PeerMode::Permissive, run.transition_begun_at(1.0)),
                "{what}"
            );
        }
        assert!(run.index.settles().is_some_and(|at| at <= run.time(61.0).instant), "{what}");
        assert_eq!(mode(&run.then(61.0)), "STRICT", "{what}");
    }
}

#[test]
fn intermediate_mode_does_not_restart_the_transition() {
    let mut run = Run::new([whole("shop", "DISABLE")]);
    assert_eq!(mode(&run.at(1.0, [whole("shop", "PERMISSIVE")])), "PERMISSIVE");
    let found = workload_mode(&run.at(31.0, [whole("shop", "STRICT")]), "shop", "web");
    assert_eq!(found.transition, run.transition_begun_at(1.0), "clients switch to mTLS then");
    let ended = run.then(61.0);
    assert_eq!((mode(&ended), run.index.settles()), ("STRICT", None));
}

#[test]
fn reverted_mode_starts_a_transition_back() {
    let mut run = Run::new([whole("shop", "STRICT")]);
    let policies = run.at(1.0, [whole("shop", "DISABLE")]);
    assert_eq!(mode(&policies), "PERMISSIVE");
    let to = workload_mode(&policies, "shop", "web").transition.map(|one| one.to);
    assert_eq!(to, Some(PeerMode::Disable));
    let policies = run.at(31.0, [whole("shop", "STRICT")]);
    assert_eq!(mode(&policies), "PERMISSIVE", "some clients send plain text by now");
    assert_eq!(workload_mode(&policies, "shop", "web").transition, run.transition_begun_at(31.0));
    assert_eq!(mode(&run.then(61.0)), "PERMISSIVE");
    assert_eq!(mode(&run.then(91.0)), "STRICT");
}

#[test]
fn transition_applies_to_policies_of_every_level() {
    let mesh_policy = |mode: &str| whole(ROOT, mode);
    let cases = [
        // The mode of the mesh, without a narrower policy.
        (vec![mesh_policy("DISABLE")], vec![mesh_policy("STRICT")]),
        // The end of a namespace's override.
        (vec![mesh_policy("STRICT"), whole("shop", "DISABLE")], vec![mesh_policy("STRICT")]),
        (vec![mesh_policy("DISABLE")], vec![mesh_policy("DISABLE"), whole("shop", "STRICT")]),
        (vec![app_policy("shop", "web", "DISABLE")], vec![app_policy("shop", "web", "STRICT")]),
        (
            vec![whole("shop", "DISABLE")],
            vec![whole("shop", "DISABLE"), app_policy("shop", "web", "STRICT")],
        ),
    ];
    for (before, now) in cases {
        let mut run = Run::new(before.clone());
        let policies = run.at(1.0, now.clone());
        assert_eq!(mode(&policies), "PERMISSIVE", "{before:?} to {now:?}");
        let ended = run.then(61.0);
        assert_eq!(mode(&ended), "STRICT", "{before:?} to {now:?}");
        let spaces = ended.changed_namespaces(&policies);
        let its = [ROOT, "shop"].map(Namespace::from).into_iter().collect::<BTreeSet<_>>();
        assert!(!spaces.is_empty() && spaces.is_subset(&its), "{spaces:?}");
        let affected = ended.concerned(&policies);
        assert_eq!(affected.iter().count(), 1, "{before:?} to {now:?}: {affected:?}");
    }
}

#[test]
fn changed_root_namespace_starts_a_transition() {
    let mut index = index();
    let objects = collection([whole("old", "DISABLE"), whole("new", "STRICT")]);
    let settings_with_root =
        |root: &str| AccessSettings { root: root.into(), errors: PolicyErrors::Narrow };
    index.apply(&settings_with_root("old"), &objects);
    let now = TimePoint::now();
    index.apply_at(&settings_with_root("new"), &objects, now);
    assert_eq!(mode(&index.policies()), "PERMISSIVE");
    index.settle(now.instant + TRANSITION);
    assert_eq!(mode(&index.policies()), "STRICT");
}

/// A bulk edit of many objects arrives as many changes.
#[test]
fn changes_within_a_second_are_one_transition() {
    let all = |strict: usize| {
        (0..50).map(move |app| {
            app_policy("shop", &format!("a{app}"), if app < strict { "STRICT" } else { "DISABLE" })
        })
    };
    let mut run = Run::new(all(0));
    for written in 1..=50_u32 {
        let seconds = 1.0 + 0.05 * f64::from(written);
        run.at(seconds, all(usize::try_from(written).expect("few")));
    }
    let during = run.then(60.0);
    assert!(during.moves.len() <= 4, "{}", during.moves.len());
    let modes: BTreeSet<_> =
        (0..50).map(|app| workload_mode(&during, "shop", &format!("a{app}")).mode).collect();
    assert_eq!(modes, [PeerMode::Permissive].into());
    let after = run.then(63.5);
    let modes: BTreeSet<_> =
        (0..50).map(|app| workload_mode(&after, "shop", &format!("a{app}")).mode).collect();
    assert_eq!((modes, run.index.settles()), ([PeerMode::Strict].into(), None));
    // Each workload is reported when its own transition ends.
    assert_eq!(after.concerned(&during).iter().count(), 50);
}

/// Neither a held configuration nor a configuration that waits behind it starts a transition.
#[test]
fn unsent_policies_start_no_transition() {
    let mut run = Run::new([whole("shop", "DISABLE")]);
    run.at(1.0, [whole("shop", "STRICT")]);
    let unsent = run.index.unsent();
    assert_eq!((mode(&unsent.policies()), unsent.settles()), ("STRICT", None));
    assert_eq!(mode(&run.then(2.0)), "PERMISSIVE");
}
