//! The protocol: the subscribed types, the effects of each response on the stored objects, and the
//! reply to it. Pure.
//!
//! Servers name a kind by different API versions, so each kind is requested in several versions.
//! The newer version of an object that arrives in two versions applies.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::convert::{self, UnusableDocument};
use crate::store::policy_effect::PolicyEffect;
use strait_base::mass_deletion::{GuardedPart, MassDeletionGuard};
use strait_base::source_status::WARNINGS_MAX;
use strait_model::{Collection, ConfigKind, ObjectJson, ObjectKey};
use strait_proto::envoy::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use strait_proto::envoy::google::rpc;

/// Maximum number of objects of a kind, far more than in any mesh.
const OBJECTS_MAX: usize = 200_000;
/// gRPC's "invalid argument".
const INVALID_ARGUMENT: i32 = 3;
/// Maximum number of reported errors of a response; the rest is counted.
const REPORTED_MAX: usize = 5;

/// A subscribed type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Type {
    kind: &'static ConfigKind,
    /// Its index in the versions of the kind.
    version: usize,
}

impl Type {
    fn all() -> impl Iterator<Item = Self> {
        let versions = |kind: &'static ConfigKind| {
            // Servers that serve the middle version serve the last one as well.
            let served = kind.versions.len().checked_sub(1).filter(|last| *last != 0);
            [Some(0), served].into_iter().flatten().map(move |version| Self { kind, version })
        };
        ConfigKind::from_mcp().flat_map(versions)
    }

    fn url(self) -> String {
        let version = self.kind.versions.get(self.version).copied().unwrap_or_default();
        format!("{}/{version}/{}", self.kind.group, self.kind.kind)
    }
}

/// The known objects of one server.
#[derive(Debug, Default)]
pub(super) struct McpState {
    types: BTreeMap<Type, McpCollection>,
    guard: MassDeletionGuard<(Type, AnsweredObjects)>,
}

/// A set of objects that a response must mostly contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AnsweredObjects {
    All,
    /// Restrictive policies: few, compared with policies that allow.
    Restricting,
}

/// The result of a response.
#[derive(Debug)]
pub(super) enum McpOutcome {
    /// The type was not requested.
    Not,
    /// Accepted as far as possible, with the reply to send.
    Yes(Box<DiscoveryRequest>),
    /// The response lacks most of the stored objects, which stay. A new stream must request
    /// everything again.
    Doubtful(String),
}

#[derive(Debug, Default)]
struct McpCollection {
    /// Whether this stream has received a response.
    has_response: bool,
    /// The last version that was accepted completely on this stream.
    accepted: String,
    objects: BTreeMap<ObjectKey, ObjectJson>,
    invalid: Vec<String>,
}

impl McpCollection {
    /// Returns the part of the stored objects in a set that a response with these keys contains.
    fn part<K>(
        &self,
        subject: K,
        answered: &BTreeMap<ObjectKey, ObjectJson>,
        is_selected: impl Fn(&ObjectKey, &ObjectJson) -> bool,
    ) -> GuardedPart<K> {
        let selected = self.objects.iter().filter(|(key, object)| is_selected(key, object));
        let (remaining, gone): (Vec<_>, Vec<_>) =
            selected.map(|(key, _)| key).partition(|key| answered.contains_key(*key));
        GuardedPart::of(subject, remaining.len() + gone.len(), remaining.len()).lacking(gone)
    }
}

impl McpState {
    /// Creates a state with known objects, of a server without any response since.
    pub(super) fn with_remembered(objects: &Collection) -> Self {
        let mut types: BTreeMap<Type, McpCollection> = BTreeMap::new();
        for (key, object) in objects.iter() {
            if let Some(kind) = ConfigKind::find(key) {
                let collection = types.entry(Type { kind, version: 0 }).or_default();
                collection.objects.insert(key.clone(), object.clone());
            }
        }
        Self { types, guard: MassDeletionGuard::default() }
    }

    /// Starts a stream. Returns the requests. Stored objects stay until there is a response for
    /// their type.
    pub(super) fn begin(&mut self) -> Vec<DiscoveryRequest> {
        let requests = Type::all().map(|kind| {
            let collection = self.types.entry(kind).or_default();
            collection.has_response = false;
            collection.accepted.clear();
            DiscoveryRequest { type_url: kind.url(), ..DiscoveryRequest::default() }
        });
        requests.collect()
    }

    /// Returns the number of doubtful responses.
    pub(super) fn unconfirmed_lists(&self) -> u64 {
        self.guard.doubted()
    }

    /// Processes a response. It is accepted, or rejected with the errors.
    pub(super) fn answer(&mut self, response: &DiscoveryResponse, now: Instant) -> McpOutcome {
        let Some(requested) = Type::all().find(|one| one.url() == response.type_url) else {
            return McpOutcome::Not;
        };
        let collection = self.types.entry(requested).or_default();
        let mut unusable: Vec<UnusableDocument> = Vec::new();
        if response.resources.len() > OBJECTS_MAX {
            let fact = format!("{} objects, more than {OBJECTS_MAX}", response.resources.len());
            unusable.push(UnusableDocument { key: None, fact });
        } else {
            let mut objects = BTreeMap::new();
            for resource in &response.resources {
                match convert::object(requested.kind, resource) {
                    Ok((key, object)) => {
                        let object = ObjectJson::from(object);
                        let before =
                            collection.objects.get(&key).filter(|before| **before == object);
                        let object = before.cloned().unwrap_or(object);
                        objects.insert(key, object);
                    }
                    Err(fault) => unusable.push(fault),
                }
            }
            // The previous version of an object stays. If not even the name is known, any missing
            // object may be it.
            let nameless = unusable.iter().any(|unusable| unusable.key.is_none());
            let faulty: BTreeSet<_> =
                unusable.iter().filter_map(|unusable| unusable.key.as_ref()).collect();
            for (key, before) in &collection.objects {
                if nameless || faulty.contains(key) {
                    objects.entry(key.clone()).or_insert_with(|| before.clone());
                }
            }
            let parts = [
                collection.part((requested, AnsweredObjects::All), &objects, |_, _| true),
                collection
                    .part((requested, AnsweredObjects::Restricting), &objects, |key, object| {
                        PolicyEffect::from_object(key, object)
                            .is_some_and(|effect| effect.restricts())
                    })
                    .of_several(),
            ];
            if !self.guard.admits_all(parts, now) {
                let unconfirmed_lists =
                    self.guard.waiting().filter(|((one, _), _)| *one == requested);
                let unconfirmed_lists: Vec<_> = unconfirmed_lists
                    .map(|((one, objects), unconfirmed)| match objects {
                        AnsweredObjects::All => format!("its list of {} {unconfirmed}", one.url()),
                        AnsweredObjects::Restricting => format!(
                            "for policies that restrict access, its list of {} {unconfirmed}",
                            one.url()
                        ),
                    })
                    .collect();
                return McpOutcome::Doubtful(unconfirmed_lists.join("; "));
            }
            collection.objects = objects;
        }
        collection.has_response = true;
        collection.invalid =
            unusable.iter().map(|unusable| message(requested.kind, unusable)).collect();
        let error_detail = (!unusable.is_empty()).then(|| {
            let mut message = collection
                .invalid
                .iter()
                .take(REPORTED_MAX)
                .cloned()
                .collect::<Vec<_>>()
                .join("; ");
            if collection.invalid.len() > REPORTED_MAX {
                message
                    .push_str(&format!("; and {} more", collection.invalid.len() - REPORTED_MAX));
            }
            rpc::Status { code: INVALID_ARGUMENT, message, details: Vec::new() }
        });
        if error_detail.is_none() {
            collection.accepted.clone_from(&response.version_info);
        }
        McpOutcome::Yes(Box::new(DiscoveryRequest {
            type_url: response.type_url.clone(),
            version_info: collection.accepted.clone(),
            response_nonce: response.nonce.clone(),
            error_detail,
            ..DiscoveryRequest::default()
        }))
    }

    /// Whether each kind has received a response on this stream, in at least one version.
    pub(super) fn has_all_responses(&self) -> bool {
        let has_response = |kind| {
            self.types.iter().any(|(one, collection)| one.kind == kind && collection.has_response)
        };
        ConfigKind::from_mcp().all(has_response)
    }

    /// Ends the time for responses: a version without a response on this stream is no longer served
    /// if there was a response for another version of the kind.
    pub(super) fn settle(&mut self) {
        for kind in ConfigKind::from_mcp() {
            let has_response = self
                .types
                .iter()
                .any(|(one, collection)| one.kind == kind && collection.has_response);
            let unanswered = self
                .types
                .iter_mut()
                .filter(|(one, collection)| one.kind == kind && !collection.has_response);
            if has_response {
                unanswered.for_each(|(_, collection)| collection.objects.clear());
            }
        }
    }

    /// Returns all objects; the newer of two versions applies.
    pub(super) fn objects(&self) -> Collection {
        let mut all = Collection::default();
        for collection in self.types.values().rev() {
            for (key, object) in &collection.objects {
                all.insert(key.clone(), object.clone());
            }
        }
        all
    }

    /// Returns the unused parts of the last responses.
    pub(super) fn warnings(&self) -> Vec<String> {
        let invalid = self.types.values().flat_map(|collection| collection.invalid.iter().cloned());
        invalid.take(WARNINGS_MAX).collect()
    }
}

fn message(kind: &ConfigKind, unusable: &UnusableDocument) -> String {
    let fact = &unusable.fact;
    match &unusable.key {
        Some(key) => format!("{key}: {fact}; its previous version stays in use"),
        None => format!("{}: {fact}; no missing object is deleted", kind.kind),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::super::client::REQUESTS;
    use super::*;
    use strait_base::mass_deletion::CONFIRM_AFTER;
    use strait_proto::envoy::google::protobuf::Any;
    use strait_proto::istio::mcp::{Metadata, Resource};
    use strait_proto::istio::networking::{ServiceEntry, ServicePort, WorkloadEntry};

    fn any(url: &str, value: Vec<u8>) -> Any {
        Any { type_url: url.to_owned(), value }
    }

    fn resource(name: &str, url: &str, body: Vec<u8>) -> Any {
        let metadata = Metadata { name: name.to_owned(), ..Metadata::default() };
        let resource = Resource { metadata: Some(metadata), body: Some(any(url, body)) };
        any("type.googleapis.com/istio.mcp.v1alpha1.Resource", resource.encode_to_vec())
    }

    fn entry(name: &str, host: &str) -> Any {
        let port = ServicePort { number: 80, name: "http".into(), ..ServicePort::default() };
        let entry = ServiceEntry {
            hosts: vec![host.to_owned()],
            ports: vec![port],
            resolution: 1,
            ..ServiceEntry::default()
        };
        let url = "type.googleapis.com/istio.networking.v1alpha3.ServiceEntry";
        resource(name, url, entry.encode_to_vec())
    }

    fn response(kind: &str, version: &str, resources: Vec<Any>) -> DiscoveryResponse {
        DiscoveryResponse {
            type_url: format!("networking.istio.io/{kind}"),
            version_info: version.to_owned(),
            nonce: format!("n{version}"),
            resources,
            ..DiscoveryResponse::default()
        }
    }

    impl McpState {
        fn take(&mut self, response: &DiscoveryResponse) -> Option<DiscoveryRequest> {
            match self.answer(response, Instant::now()) {
                McpOutcome::Yes(request) => Some(*request),
                McpOutcome::Not => None,
                McpOutcome::Doubtful(fact) => panic!("{fact}"),
            }
        }
    }

    fn hosts(state: &McpState) -> Vec<String> {
        let objects = state.objects();
        let entries = objects.values().map(ObjectJson::to_value);
        let entries = entries.filter(|one| one["kind"] == "ServiceEntry");
        entries.map(|one| one["spec"]["hosts"][0].as_str().unwrap_or("?").to_owned()).collect()
    }

    #[test]
    fn response_is_complete_and_missing_objects_are_deleted() {
        let mut state = McpState::default();
        let requests: Vec<_> = state.begin().into_iter().map(|one| one.type_url).collect();
        assert_eq!(requests[0], "networking.istio.io/v1/ServiceEntry");
        let versions = ConfigKind::from_mcp().map(|kind| kind.versions.len().min(2));
        assert_eq!(requests.len(), versions.sum::<usize>());
        assert!(requests.len() < REQUESTS, "with the reply to a response");
        let two = vec![entry("shop/a", "a.example"), entry("shop/b", "b.example")];
        let reply = state.take(&response("v1/ServiceEntry", "1", two)).expect("requested");
        assert_eq!((&*reply.version_info, &*reply.response_nonce), ("1", "n1"));
        assert!(reply.error_detail.is_none() && !state.has_all_responses());
        state.take(&response("v1alpha3/WorkloadEntry", "1", vec![])).expect("requested");
        for kind in ConfigKind::from_mcp().skip(2) {
            assert!(!state.has_all_responses());
            let version = kind.versions.last().expect("one");
            let type_url = format!("{}/{version}/{}", kind.group, kind.kind);
            let empty = DiscoveryResponse { type_url, ..response("", "1", vec![]) };
            state.take(&empty).expect("requested");
        }
        assert!(state.has_all_responses(), "one version of each kind");
        assert_eq!(hosts(&state), ["a.example", "b.example"]);
        let objects = state.objects();
        let object = objects.values().next().expect("one").to_value();
        assert_eq!(object["spec"]["resolution"], "STATIC");
        assert_eq!(object["spec"]["location"], "MESH_EXTERNAL");
        assert_eq!(object["metadata"]["namespace"], "shop");
        state.take(&response("v1/ServiceEntry", "2", vec![entry("shop/b", "b.example")]));
        assert_eq!(hosts(&state), ["b.example"]);
        assert!(state.take(&response("v1/WorkloadGroup", "1", vec![])).is_none());
    }

    #[test]
    fn invalid_object_does_not_affect_others_and_is_rejected_by_name() {
        let mut state = McpState::default();
        state.begin();
        let two = vec![entry("shop/a", "a.example"), entry("shop/b", "b.example")];
        state.take(&response("v1/ServiceEntry", "1", two));
        let workload = WorkloadEntry::default().encode_to_vec();
        let url = "type.googleapis.com/istio.networking.v1.";
        for (invalid, fact, is_stored) in [
            (
                resource("shop/a", &format!("{url}ServiceEntry"), vec![0xff]),
                "shop/a: its body can't",
                true,
            ),
            (
                resource("shop/a", &format!("{url}WorkloadEntry"), workload),
                "not a ServiceEntry",
                true,
            ),
            (resource("nonsense", url, vec![]), "\"nonsense\" is not NAMESPACE/NAME", true),
            (any("type.googleapis.com/x", vec![]), "is not istio.mcp", true),
            (any("/istio.mcp.v1alpha1.Resource", vec![0xff]), "can't be decoded", true),
        ] {
            let answer =
                response("v1/ServiceEntry", "2", vec![invalid, entry("shop/b", "new.example")]);
            let reply = state.take(&answer).expect("requested");
            let refused = reply.error_detail.expect("refused");
            assert!(refused.message.contains(fact), "{}", refused.message);
            assert_eq!((&*reply.version_info, &*reply.response_nonce), ("1", "n2"));
            assert_eq!(hosts(&state), ["a.example", "new.example"], "{fact}");
            assert_eq!(state.warnings().len(), usize::from(is_stored));
        }
        let none = vec![entry("shop/a", "a.example")];
        let reply = state.take(&response("v1/ServiceEntry", "3", none)).expect("requested");
        assert!(reply.error_detail.is_none());
        assert_eq!(hosts(&state), ["a.example"]);
        assert!(state.warnings().is_empty());
    }

    #[test]
    fn stored_objects_stay_until_the_response_of_a_new_stream() {
        let mut state = McpState::default();
        state.begin();
        state.take(&response("v1/ServiceEntry", "1", vec![entry("shop/a", "a.example")]));
        let again = state.begin();
        assert!(
            again.iter().all(|one| one.version_info.is_empty()),
            "everything is requested again"
        );
        assert!(!state.has_all_responses());
        assert_eq!(hosts(&state), ["a.example"]);
        // The new server supports only an older version of the kind.
        state.take(&response("v1alpha3/ServiceEntry", "1", vec![entry("shop/b", "b.example")]));
        assert_eq!(hosts(&state), ["a.example", "b.example"]);
        state.settle();
        assert_eq!(hosts(&state), ["b.example"]);
    }

    #[test]
    fn remembered_version_of_an_invalid_object_stays() {
        let mut first = McpState::default();
        first.begin();
        let two = vec![entry("shop/a", "a.example"), entry("shop/b", "b.example")];
        first.take(&response("v1/ServiceEntry", "1", two));
        let mut second = McpState::with_remembered(&first.objects());
        assert_eq!(second.objects(), first.objects());
        second.begin();
        let invalid = resource("shop/a", "x/ServiceEntry", vec![0xff]);
        second.take(&response("v1/ServiceEntry", "2", vec![invalid]));
        assert_eq!(hosts(&second), ["a.example"]);
    }

    #[test]
    fn newer_of_two_versions_of_an_object_applies() {
        let mut state = McpState::default();
        state.begin();
        state.take(&response("v1alpha3/ServiceEntry", "1", vec![entry("shop/a", "old.example")]));
        state.take(&response("v1/ServiceEntry", "1", vec![entry("shop/a", "new.example")]));
        assert_eq!(hosts(&state), ["new.example"]);
    }

    fn policy(name: &str, action: i32) -> Any {
        use strait_proto::istio::security::{AuthorizationPolicy, Rule};
        let rules = vec![Rule::default()];
        let policy = AuthorizationPolicy { action, rules, ..AuthorizationPolicy::default() };
        let url = "type.googleapis.com/istio.security.v1beta1.AuthorizationPolicy";
        resource(name, url, policy.encode_to_vec())
    }

    #[test]
    fn response_without_most_restrictive_policies_is_requested_again() {
        let mut state = McpState::default();
        state.begin();
        let answer = |denying: &[&str]| {
            let allowing = (0..9).map(|number| policy(&format!("shop/allow-{number}"), 0));
            let denying = denying.iter().map(|name| policy(name, 1));
            DiscoveryResponse {
                type_url: "security.istio.io/v1/AuthorizationPolicy".to_owned(),
                ..response("", "1", allowing.chain(denying).collect())
            }
        };
        state.take(&answer(&["shop/deny-a", "shop/deny-b"]));
        let start = Instant::now();
        let McpOutcome::Doubtful(fact) = state.answer(&answer(&[]), start) else {
            panic!("it is doubtful")
        };
        let text = "for policies that restrict access, its list of security.istio.io/v1/AuthorizationPolicy has 0 of 2 known objects (lacking AuthorizationPolicy shop/deny-a, AuthorizationPolicy shop/deny-b); waiting for confirmation";
        assert_eq!(fact, text);
        assert_eq!(state.objects().len(), 11);
        state.begin();
        assert!(matches!(state.answer(&answer(&[]), start + CONFIRM_AFTER), McpOutcome::Yes(_)));
        assert_eq!(state.objects().len(), 9);
        // The loss of a single one is a deletion.
        state.take(&answer(&["shop/deny-a"]));
        state.take(&answer(&[]));
    }

    #[test]
    fn response_without_most_objects_applies_when_the_next_stream_confirms_it() {
        let mut state = McpState::default();
        state.begin();
        let entries = || vec![entry("shop/a", "a.example")];
        state.take(&response("v1/ServiceEntry", "1", entries()));
        let start = Instant::now();
        let empty = response("v1/ServiceEntry", "2", vec![]);
        let McpOutcome::Doubtful(fact) = state.answer(&empty, start) else {
            panic!("it is doubtful")
        };
        let lacking = "v1/ServiceEntry has 0 of 1 known objects (lacking ServiceEntry shop/a)";
        assert!(fact.contains(lacking), "{fact}");
        state.begin();
        assert!(matches!(
            state.answer(&response("v1/ServiceEntry", "3", entries()), start),
            McpOutcome::Yes(_)
        ));
        assert_eq!(hosts(&state), ["a.example"]);
        assert!(matches!(state.answer(&empty, start), McpOutcome::Doubtful(_)));
        state.begin();
        assert!(matches!(state.answer(&empty, start + CONFIRM_AFTER), McpOutcome::Yes(_)));
        assert_eq!((hosts(&state).len(), state.unconfirmed_lists()), (0, 2));
    }
}
