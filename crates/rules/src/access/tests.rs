//! Tests of access policies: their meaning, invalid objects, and random policies compared with the
//! oracle.

mod histories;
mod meaning;
mod modes;
mod random;
mod targets;
mod tokens;
mod transitions;

use std::sync::Arc;

use serde_json::{Value, json};

pub(crate) use super::oracle::{evaluator, generator};
use super::*;
use strait_model::{Collection, Labels, Namespace, WorkloadKey};

const ROOT: &str = "istio-system";

fn settings(errors: PolicyErrors) -> AccessSettings {
    AccessSettings { root: ROOT.into(), errors }
}

fn index() -> AccessIndex {
    AccessIndex::new(settings(PolicyErrors::Narrow))
}

/// Returns an AuthorizationPolicy in the namespace `shop`.
fn policy(name: &str, spec: Value) -> Value {
    object("AuthorizationPolicy", "shop", name, spec)
}

/// Returns a PeerAuthentication.
fn peer(namespace: &str, name: &str, spec: Value) -> Value {
    object("PeerAuthentication", namespace, name, spec)
}

fn object(kind: &str, namespace: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "security.istio.io/v1",
        "kind": kind,
        "metadata": { "namespace": namespace, "name": name },
        "spec": spec,
    })
}

fn collection(objects: impl IntoIterator<Item = Value>) -> Collection {
    objects.into_iter().map(Arc::new).collect()
}

fn labels(all: &[(&str, &str)]) -> Labels {
    all.iter().map(|(key, value)| (Arc::from(*key), Arc::from(*value))).collect()
}

fn trust() -> TrustBundle {
    TrustBundle::new(["mesh.example", "old.example"].into_iter())
}

impl AccessIndex {
    /// Replaces all objects.
    fn hold(&mut self, objects: impl IntoIterator<Item = Value>) -> Arc<AccessPolicies> {
        let settings = self.settings.clone();
        self.apply(&settings, &collection(objects));
        self.policies()
    }

    /// Replaces all objects and starts a mode transition if clients must change.
    fn hold_at(
        &mut self,
        now: TimePoint,
        objects: impl IntoIterator<Item = Value>,
    ) -> Arc<AccessPolicies> {
        let settings = self.settings.clone();
        self.apply_at(&settings, &collection(objects), now);
        self.policies()
    }
}

impl AccessPolicies {
    /// Returns the decision of a workload `web` in `shop`.
    fn decides(&self, form: WireForm, request: &AccessRequest) -> AccessDecision {
        self.decides_for(&labels(&[("app", "web")]), form, request)
    }

    fn decides_for(
        &self,
        labels: &Labels,
        form: WireForm,
        request: &AccessRequest,
    ) -> AccessDecision {
        let subject = AccessSubject { namespace: &Namespace::from("shop"), labels, is_known: true };
        decide(&enforced(&self.of(subject), form, &trust(), &Default::default()), request)
    }

    fn allows(&self, request: &AccessRequest) -> bool {
        self.decides(WireForm::Http, request).verdict == AccessVerdict::Allow
    }
}

/// Returns a request from `account` in the namespace `shop` for a path.
fn request(account: &str, path: &str) -> AccessRequest {
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    AccessRequest {
        identity: Some(format!("spiffe://mesh.example/ns/shop/sa/{account}")),
        peer: Some("10.0.0.9".parse().expect("an address")),
        headers: [header(":authority", "web.shop"), header(":method", "GET")].into(),
        path: Some(path.to_owned()),
        port: Some(8080),
        ..AccessRequest::default()
    }
}
