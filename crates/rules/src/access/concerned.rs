//! Whom a change of policies can concern, found from the policies that differ and without a look at any workload.

use std::sync::Arc;

use super::policies::{AccessPolicies, NamespacePolicies, differing, order};
use super::selector::{GATEWAY_NAME, PolicySelector};
use strait_model::{Labels, Namespace, WorkloadKey};

/// Some workloads, by what they have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkloadSelection {
    /// Their namespace; `None` for any.
    pub namespace: Option<Namespace>,
    /// Labels that they have; none for all workloads there.
    pub labels: Labels,
}

/// The workloads for which policies may say otherwise than before: all that do are among them, and others may be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConcernedWorkloads(Vec<WorkloadSelection>);

impl ConcernedWorkloads {
    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &WorkloadSelection> {
        self.0.iter()
    }

    fn everywhere() -> Self {
        Self(vec![WorkloadSelection { namespace: None, labels: Labels::new() }])
    }

    /// Adds what a policy of a namespace selects.
    fn add(&mut self, of: &Namespace, is_root: bool, selector: &PolicySelector) {
        let reached = (!is_root).then(|| of.clone());
        match selector {
            PolicySelector::All => {
                self.0.push(WorkloadSelection { namespace: reached, labels: Labels::new() });
            }
            PolicySelector::Labels(labels) => {
                self.0.push(WorkloadSelection { namespace: reached, labels: labels.clone() });
            }
            PolicySelector::Gateways(names) => self.0.extend(names.iter().map(|name| {
                let label = (Arc::from(GATEWAY_NAME), Arc::clone(name));
                WorkloadSelection {
                    namespace: Some(of.clone()),
                    labels: [label].into_iter().collect(),
                }
            })),
        }
    }
}

impl FromIterator<WorkloadSelection> for ConcernedWorkloads {
    fn from_iter<T: IntoIterator<Item = WorkloadSelection>>(selections: T) -> Self {
        Self(selections.into_iter().collect())
    }
}

impl AccessPolicies {
    /// The workloads for which these may say otherwise than an earlier version.
    pub fn concerned(&self, before: &Self) -> ConcernedWorkloads {
        let mut concerned = ConcernedWorkloads::default();
        // What servers take while clients learn differs for those whom such a move was about.
        let moves = self.moves_apart(before).map(|one| one.sides());
        for [old, new] in moves.chain([[before, self]]) {
            if old.root != new.root {
                return ConcernedWorkloads::everywhere();
            }
            for namespace in differing(&old.namespaces, &new.namespaces) {
                let nothing = NamespacePolicies::default();
                let [was, is] = [old, new]
                    .map(|one| one.namespaces.get(&namespace).map_or(&nothing, |held| &**held));
                let is_root = namespace == new.root;
                was.selectors_of_differences(is, |selector| {
                    concerned.add(&namespace, is_root, selector);
                });
            }
        }
        concerned.0.sort_unstable();
        concerned.0.dedup();
        concerned
    }
}

impl NamespacePolicies {
    /// Shows the selectors of all policies that differ from those of a later version: as they were, and as they are.
    fn selectors_of_differences(&self, now: &Self, mut show: impl FnMut(&PolicySelector)) {
        differences(
            &self.peers,
            &now.peers,
            |one| (one.created, &one.name),
            |one| {
                show(&one.selector);
            },
        );
        let [was, is] = [self, now].map(|held| &held.authorizations);
        differences(was, is, |one| (one.created, &one.name), |one| show(&one.selector));
        let [was, is] = [self, now].map(|held| &held.requests);
        differences(was, is, |one| (one.created, &one.name), |one| show(&one.selector));
    }
}

/// Shows what is in one of two lists alone, each of which is in the order in which policies count.
fn differences<T: Eq>(
    old: &[Arc<T>],
    new: &[Arc<T>],
    place: impl Fn(&T) -> (i64, &WorkloadKey),
    mut show: impl FnMut(&T),
) {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        let step = match (old.peek(), new.peek()) {
            (None, None) => return,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(old), Some(new)) => {
                let [(old, old_name), (new, new_name)] = [place(old), place(new)];
                order(old, old_name).cmp(&order(new, new_name))
            }
        };
        let was = if step.is_le() { old.next() } else { None };
        let is = if step.is_ge() { new.next() } else { None };
        if was != is {
            was.into_iter().chain(is).for_each(|one| show(one));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::access::{AccessIndex, AccessSettings, PolicyErrors, TRANSITION, TimePoint};
    use strait_model::Collection;
    use strait_model::testing::labels;

    fn object(kind: &str, name: &str, spec: &Value) -> Arc<Value> {
        let (namespace, name) = name.split_once('/').expect("a namespace and a name");
        Arc::new(json!({
            "apiVersion": "security.istio.io/v1", "kind": kind, "spec": spec,
            "metadata": { "namespace": namespace, "name": name },
        }))
    }

    fn of_app(app: &str) -> Value {
        json!({ "selector": { "matchLabels": { "app": app } }, "rules": [{}] })
    }

    fn policies(
        index: &mut AccessIndex,
        root: &str,
        objects: &[Arc<Value>],
    ) -> Arc<AccessPolicies> {
        let settings = AccessSettings { root: root.into(), errors: PolicyErrors::Narrow };
        let objects: Collection = objects.iter().cloned().collect();
        index.apply(&settings, &objects);
        index.policies()
    }

    /// `NAMESPACE LABELS` of what is concerned by going from one set of objects to another.
    fn concerned(before: &[Arc<Value>], now: &[Arc<Value>]) -> Vec<String> {
        let settings = AccessSettings { root: "root".into(), errors: PolicyErrors::Narrow };
        let mut index = AccessIndex::new(settings);
        let was = policies(&mut index, "root", before);
        let is = policies(&mut index, "root", now);
        let written = |one: &WorkloadSelection| {
            let labels = one.labels.iter().map(|(key, value)| format!(" {key}={value}"));
            let namespace = one.namespace.as_ref().map_or("*", |namespace| namespace.as_str());
            format!("{namespace}{}", labels.collect::<String>())
        };
        is.concerned(&was).iter().map(written).collect()
    }

    #[test]
    fn what_a_policy_selected_and_selects_is_concerned_and_nothing_beside_it() {
        let allow = |name: &str, spec: &Value| object("AuthorizationPolicy", name, spec);
        let others = [allow("shop/other", &of_app("other")), allow("root/all", &json!({}))];
        let with =
            |one: Option<Arc<Value>>| -> Vec<_> { others.iter().cloned().chain(one).collect() };
        let gateway = json!({ "rules": [{}], "targetRefs": [{
            "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "public",
        }] });
        let strict = json!({ "mtls": { "mode": "STRICT" } });
        let tokens = json!({ "selector": { "matchLabels": { "app": "web" } } });
        for (before, now, expected) in [
            (None, Some(allow("shop/one", &of_app("web"))), &["shop app=web"][..]),
            (Some(allow("shop/one", &of_app("web"))), None, &["shop app=web"]),
            (
                Some(allow("shop/one", &of_app("web"))),
                Some(allow("shop/one", &of_app("db"))),
                &["shop app=db", "shop app=web"],
            ),
            (None, Some(allow("shop/one", &json!({ "rules": [{}] }))), &["shop"]),
            (None, Some(allow("root/one", &of_app("web"))), &["* app=web"]),
            (
                None,
                Some(allow("root/one", &gateway)),
                &["root gateway.networking.k8s.io/gateway-name=public"],
            ),
            (None, Some(object("PeerAuthentication", "shop/one", &strict)), &["shop"]),
            (None, Some(object("RequestAuthentication", "shop/one", &tokens)), &["shop app=web"]),
            (Some(allow("shop/one", &of_app("web"))), Some(allow("shop/one", &of_app("web"))), &[]),
            // Nothing of it counts, and it is told of alone.
            (None, Some(allow("shop/one", &json!({ "action": "SHOUT" }))), &[]),
        ] {
            let text = format!("{before:?} to {now:?}");
            assert_eq!(concerned(&with(before), &with(now)), expected, "{text}");
        }
    }

    #[test]
    fn while_servers_leave_a_mode_those_it_was_for_are_concerned_as_well() {
        let spec = |mode: &str| {
            let app = json!({ "matchLabels": { "app": "web" } });
            json!({ "selector": app, "mtls": { "mode": mode } })
        };
        let peer = |mode: &str| object("PeerAuthentication", "shop/one", &spec(mode));
        let settings = AccessSettings { root: "root".into(), errors: PolicyErrors::Narrow };
        let mut index = AccessIndex::new(settings.clone());
        policies(&mut index, "root", &[peer("STRICT")]);
        let now = TimePoint::now();
        index.apply_at(&settings, &[peer("DISABLE")].into_iter().collect(), now);
        let during = index.policies();
        let after = index.settle(now.instant + TRANSITION).expect("servers were leaving");
        let web =
            WorkloadSelection { namespace: Some("shop".into()), labels: labels(&[("app", "web")]) };
        assert_eq!(after.concerned(&during), [web].into_iter().collect());
    }

    #[test]
    fn another_root_namespace_concerns_everybody() {
        let settings = AccessSettings { root: "root".into(), errors: PolicyErrors::Narrow };
        let mut index = AccessIndex::new(settings);
        let was = policies(&mut index, "root", &[]);
        let is = policies(&mut index, "other", &[]);
        assert_eq!(is.concerned(&was), ConcernedWorkloads::everywhere());
    }
}
