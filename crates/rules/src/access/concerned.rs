//! Workloads that a change of policies may affect, computed from the changed policies only.

use std::sync::Arc;

use super::policies::{AccessPolicies, NamespacePolicies, differing, order};
use super::selector::{GATEWAY_NAME, PolicySelector};
use strait_model::{Labels, Namespace, WorkloadKey};

/// A set of workloads, selected by namespace and labels.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkloadSelection {
    /// Namespace of the workloads; `None` for any namespace.
    pub namespace: Option<Namespace>,
    /// Labels that the workloads have. Empty selects all workloads of the namespace.
    pub labels: Labels,
}

/// Workloads that a change of policies may affect. It contains every affected workload, and
/// possibly others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConcernedWorkloads(Vec<WorkloadSelection>);

impl ConcernedWorkloads {
    /// Iterates over the selections, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &WorkloadSelection> {
        self.0.iter()
    }

    fn everywhere() -> Self {
        Self(vec![WorkloadSelection { namespace: None, labels: Labels::new() }])
    }

    /// Adds the workloads that a policy in a namespace selects.
    fn add(&mut self, namespace: &Namespace, is_root: bool, selector: &PolicySelector) {
        let reached = (!is_root).then(|| namespace.clone());
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
                    namespace: Some(namespace.clone()),
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
    /// Returns the workloads that the difference from an earlier version may affect.
    pub fn concerned(&self, before: &Self) -> ConcernedWorkloads {
        let mut concerned = ConcernedWorkloads::default();
        // A mode transition that begins or ends changes what servers accept. Its workloads are
        // affected too.
        let moves = self.moves_apart(before).map(|one| one.sides());
        for [old, new] in moves.chain([[before, self]]) {
            if old.root != new.root {
                return ConcernedWorkloads::everywhere();
            }
            for namespace in differing(&old.namespaces, &new.namespaces) {
                let nothing = NamespacePolicies::default();
                let [was, is] = [old, new].map(|one| {
                    one.namespaces.get(&namespace).map_or(&nothing, |policies| &**policies)
                });
                let is_root = namespace == new.root;
                was.visit_changed_selectors(is, |selector| {
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
    /// Calls `show` with the selectors of all policies that differ between two versions, old and
    /// new.
    fn visit_changed_selectors(&self, now: &Self, mut show: impl FnMut(&PolicySelector)) {
        differences(
            &self.peers,
            &now.peers,
            |one| (one.created, &one.name),
            |policy| {
                show(&policy.selector);
            },
        );
        let [was, is] = [self, now].map(|policies| &policies.authorizations);
        differences(was, is, |one| (one.created, &one.name), |one| show(&one.selector));
        let [was, is] = [self, now].map(|policies| &policies.requests);
        differences(was, is, |one| (one.created, &one.name), |one| show(&one.selector));
    }
}

/// Calls `show` with the items that exactly one list contains. Both lists must be sorted by
/// precedence.
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

    fn spec_for_app(app: &str) -> Value {
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

    /// Returns the affected workloads of a change between two sets of objects, as `NAMESPACE
    /// LABELS`.
    fn concerned(before: &[Arc<Value>], now: &[Arc<Value>]) -> Vec<String> {
        let settings = AccessSettings { root: "root".into(), errors: PolicyErrors::Narrow };
        let mut index = AccessIndex::new(settings);
        let was = policies(&mut index, "root", before);
        let is = policies(&mut index, "root", now);
        let written = |selection: &WorkloadSelection| {
            let labels = selection.labels.iter().map(|(key, value)| format!(" {key}={value}"));
            let namespace =
                selection.namespace.as_ref().map_or("*", |namespace| namespace.as_str());
            format!("{namespace}{}", labels.collect::<String>())
        };
        is.concerned(&was).iter().map(written).collect()
    }

    #[test]
    fn only_workloads_selected_before_or_after_a_change_are_affected() {
        let allow = |name: &str, spec: &Value| object("AuthorizationPolicy", name, spec);
        let others = [allow("shop/other", &spec_for_app("other")), allow("root/all", &json!({}))];
        let with =
            |one: Option<Arc<Value>>| -> Vec<_> { others.iter().cloned().chain(one).collect() };
        let gateway = json!({ "rules": [{}], "targetRefs": [{
            "group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "public",
        }] });
        let strict = json!({ "mtls": { "mode": "STRICT" } });
        let tokens = json!({ "selector": { "matchLabels": { "app": "web" } } });
        for (before, now, expected) in [
            (None, Some(allow("shop/one", &spec_for_app("web"))), &["shop app=web"][..]),
            (Some(allow("shop/one", &spec_for_app("web"))), None, &["shop app=web"]),
            (
                Some(allow("shop/one", &spec_for_app("web"))),
                Some(allow("shop/one", &spec_for_app("db"))),
                &["shop app=db", "shop app=web"],
            ),
            (None, Some(allow("shop/one", &json!({ "rules": [{}] }))), &["shop"]),
            (None, Some(allow("root/one", &spec_for_app("web"))), &["* app=web"]),
            (
                None,
                Some(allow("root/one", &gateway)),
                &["root gateway.networking.k8s.io/gateway-name=public"],
            ),
            (None, Some(object("PeerAuthentication", "shop/one", &strict)), &["shop"]),
            (None, Some(object("RequestAuthentication", "shop/one", &tokens)), &["shop app=web"]),
            (
                Some(allow("shop/one", &spec_for_app("web"))),
                Some(allow("shop/one", &spec_for_app("web"))),
                &[],
            ),
            // The whole policy is ignored, so that only its report differs.
            (None, Some(allow("shop/one", &json!({ "action": "SHOUT" }))), &[]),
        ] {
            let text = format!("{before:?} to {now:?}");
            assert_eq!(concerned(&with(before), &with(now)), expected, "{text}");
        }
    }

    #[test]
    fn workloads_of_a_mode_transition_are_affected_until_it_ends() {
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
    fn changed_root_namespace_affects_all_workloads() {
        let settings = AccessSettings { root: "root".into(), errors: PolicyErrors::Narrow };
        let mut index = AccessIndex::new(settings);
        let was = policies(&mut index, "root", &[]);
        let is = policies(&mut index, "other", &[]);
        assert_eq!(is.concerned(&was), ConcernedWorkloads::everywhere());
    }
}
