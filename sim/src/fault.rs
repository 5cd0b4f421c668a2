//! Faults of a simulated API server, which tests switch on and off while it runs.
//!
//! [`Faults`] is the set of active faults of one cluster. Each request reads it, and running
//! watches wake when it changes. A stopped server is not a fault but a state of the cluster
//! (`SimCluster::stop`).

use http::HeaderValue;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::watch;

/// The maximum clock skew: a hundred years, in seconds.
const SKEW_MAX: u64 = 3_155_760_000;

/// A fault. Faults of different kinds can be active at the same time; a second fault of a kind
/// replaces the first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Fault {
    /// Connections are accepted, but requests get no response and watches send no events. HTTP/2
    /// pings are still acknowledged, so only a deadline for the response detects it.
    Hang,
    /// Each response starts late and is sent slowly.
    Slow {
        /// Milliseconds before a response starts.
        #[serde(default)]
        latency_ms: u64,
        /// At most this many bytes of body per second and request.
        #[serde(default)]
        bytes_per_second: Option<u64>,
    },
    /// The server alternates between up and down, starting with up.
    Flap {
        /// Milliseconds for which it is up.
        up_ms: u64,
        /// Milliseconds for which it is down.
        down_ms: u64,
    },
    /// Watches fail with 410: their resource version has expired.
    Gone {
        /// How the error is sent.
        how: Gone,
        /// The number of watches that fail; absent: all, until the fault is ended.
        #[serde(default)]
        times: Option<u32>,
    },
    /// Continue tokens have expired.
    ContinueExpired,
    /// Streaming lists (`sendInitialEvents`) are not supported.
    NoStreamingLists {
        /// The response to a request for a streaming list.
        how: Refusal,
    },
    /// 401 for every token.
    Unauthorized,
    /// 403 for one kind.
    Forbidden {
        /// Plural name, for example `nodes`.
        resource: String,
    },
    /// 403 for lists and watches of one kind. Single objects can be read.
    ListForbidden {
        /// Plural name, for example `namespaces`.
        resource: String,
    },
    /// 403 for everything outside of these namespaces, as with Roles alone. The namespace `kube-system`
    /// itself can be read.
    OnlyNamespaces {
        /// Names of namespaces.
        namespaces: Vec<String>,
    },
    /// Lists and watches of one kind fail; all other requests are answered.
    KindFails {
        /// Plural name, for example `endpointslices`.
        resource: String,
        /// The body of a 200 response; absent: the response is 500.
        #[serde(default)]
        body: Option<String>,
    },
    /// 403 for each request that would change an object, as with a read-only role.
    ReadOnly,
    /// 429 for everything.
    TooManyRequests {
        /// The value of the `Retry-After` header.
        retry_after_seconds: u64,
    },
    /// Requests fail with these statuses in turn; 200 lets a request pass.
    Errors {
        /// HTTP statuses.
        codes: Vec<u16>,
    },
    /// Each watch is closed, without an error, after this time.
    CloseWatches {
        /// Milliseconds.
        after_ms: u64,
    },
    /// Watches stay open but send nothing, not even bookmarks. Lists are correct.
    Mute,
    /// Each watch sends one line that never ends.
    EndlessLine,
    /// Each list has an endless number of pages.
    EndlessPages,
    /// Lists of one kind, or of all kinds, are empty, as while a backup is being restored.
    EmptyLists {
        /// Plural name; absent: all kinds.
        #[serde(default)]
        resource: Option<String>,
    },
    /// An API group is served in one version only, as with CustomResourceDefinitions that are older
    /// or newer than the client. The objects are equal in all versions.
    OnlyVersion {
        /// Name of the group, for example `networking.istio.io`.
        group: String,
        /// The served version, for example `v1alpha3`.
        version: String,
    },
    /// A kind is being removed, as while its CustomResourceDefinition is deleted: the discovery lists
    /// no verbs that write. The test deletes the objects.
    RemovedKind {
        /// Plural name.
        resource: String,
    },
    /// No protobuf, as from an aggregated API server: a client that also accepts JSON gets JSON,
    /// others get 406.
    JsonOnly,
    /// 200 with a web page, as from a login portal.
    Html,
    /// 200 with a compressed body, although the client did not ask for compression.
    Compressed,
    /// Bodies are cut off in the middle.
    Truncate,
    /// 302 to another URL.
    Redirect {
        /// The `Location` header.
        location: String,
    },
    /// The `Date` header is wrong.
    ClockSkew {
        /// Seconds that the server is ahead.
        seconds: i64,
    },
}

impl Fault {
    /// Parses a fault. An unknown field is an error that lists the fields of the fault.
    pub(crate) fn read(body: Value) -> Result<Fault, String> {
        let fields = body.as_object().cloned().unwrap_or_default();
        let fault: Fault = serde_json::from_value(body).map_err(|error| error.to_string())?;
        // `deny_unknown_fields` would not detect unknown fields of variants without fields.
        let known = json!(fault);
        let Some(unknown) = fields.keys().find(|field| known.get(field).is_none()) else {
            return Ok(fault);
        };
        let own = known.as_object().into_iter().flat_map(Map::keys).filter(|key| *key != "fault");
        let own: Vec<_> = own.map(|key| format!("`{key}`")).collect();
        let own = if own.is_empty() { "none".to_owned() } else { own.join(" and ") };
        Err(format!("unknown field `{unknown}`: {} has {own}", known["fault"]))
    }

    /// Checks the ranges of the numbers. An error names the field and its valid range.
    pub(crate) fn check(&self) -> Result<(), String> {
        let zero = |field: &str| format!("{field} is 0: it must be at least 1");
        let is_code = |code: &u16| *code == 200 || (400..=599).contains(code);
        let codes_are = "it must have statuses from 400 to 599, or 200 to let one through";
        Err(match self {
            Fault::Slow { bytes_per_second: Some(0), .. } => zero("bytesPerSecond"),
            Fault::Flap { up_ms: 0, .. } => zero("upMs"),
            Fault::Flap { down_ms: 0, .. } => zero("downMs"),
            Fault::Gone { times: Some(0), .. } => zero("times"),
            Fault::Errors { codes } if codes.is_empty() => format!("codes is empty: {codes_are}"),
            Fault::Errors { codes } => match codes.iter().find(|code| !is_code(code)) {
                Some(code) => format!("codes has {code}: {codes_are}"),
                None => return Ok(()),
            },
            Fault::Redirect { location } if HeaderValue::from_str(location).is_err() => {
                format!("location is {location:?}: it must be visible ASCII")
            }
            Fault::ClockSkew { seconds } if seconds.unsigned_abs() > SKEW_MAX => {
                format!("seconds is {seconds}: it must be from -{SKEW_MAX} to {SKEW_MAX}")
            }
            _ => return Ok(()),
        })
    }
}

/// How a watch learns that its resource version has expired. Clients must handle both forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Gone {
    /// HTTP status 410.
    Status,
    /// An ERROR event on a 200 stream.
    Event,
}

/// The response of a server that does not support streaming lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Refusal {
    /// 422: the feature gate is off.
    Invalid,
    /// 200 with an ERROR event that contains a Status 500: the version of etcd is too old.
    Event,
    /// The server ignores the parameter and starts a plain watch, so the initial events never end.
    Ignored,
}

/// The active faults of one cluster.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    active: watch::Sender<Vec<Fault>>,
}

impl Faults {
    /// Adds a fault, replacing a fault of the same kind.
    pub(crate) fn set(&self, fault: Fault) {
        self.active.send_modify(|active| {
            active.retain(|other| !same_kind(other, &fault));
            active.push(fault);
        });
    }

    /// Ends the fault of the same kind as `fault`.
    pub(crate) fn end(&self, fault: &Fault) {
        self.active.send_modify(|active| active.retain(|other| !same_kind(other, fault)));
    }

    /// Ends all faults.
    pub(crate) fn heal(&self) {
        self.active.send_modify(Vec::clear);
    }

    /// Returns the first result of `pick` for an active fault.
    pub(crate) fn find<T>(&self, pick: impl FnMut(&Fault) -> Option<T>) -> Option<T> {
        self.active.borrow().iter().find_map(pick)
    }

    /// Returns whether a group is not served in this version now.
    pub(crate) fn hides(&self, group: &str, version: &str) -> bool {
        let hidden = self.find(|fault| match fault {
            Fault::OnlyVersion { group: of, version: only } if of == group => Some(only != version),
            _ => None,
        });
        hidden == Some(true)
    }

    pub(crate) fn has(&self, fault: &Fault) -> bool {
        self.active.borrow().contains(fault)
    }

    pub(crate) fn list(&self) -> Vec<Fault> {
        self.active.borrow().clone()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Vec<Fault>> {
        self.active.subscribe()
    }

    /// Waits until `fault` is not active.
    pub(crate) async fn wait_without(&self, fault: &Fault) {
        // The sender is a field of `self`, so the wait cannot fail.
        let _ = self.subscribe().wait_for(|active| !active.contains(fault)).await;
    }

    /// Returns how a watch that starts now fails with 410, if it does. Counts the watch.
    pub(crate) fn take_gone(&self) -> Option<Gone> {
        let mut found = None;
        self.active.send_if_modified(|active| {
            let index = active.iter().position(|fault| matches!(fault, Fault::Gone { .. }));
            let Some(index) = index else { return false };
            let Fault::Gone { how, times } = &mut active[index] else { return false };
            found = Some(*how);
            if let Some(times) = times {
                *times = times.saturating_sub(1);
                if *times == 0 {
                    active.remove(index);
                }
            }
            true
        });
        found
    }

    /// Returns the next status of [`Fault::Errors`] and advances it; `None` for 200.
    pub(crate) fn take_error(&self) -> Option<u16> {
        let mut found = None;
        self.active.send_if_modified(|active| {
            for fault in active {
                if let Fault::Errors { codes } = fault
                    && let Some(first) = codes.first().copied()
                {
                    codes.rotate_left(1);
                    found = Some(first);
                }
            }
            false
        });
        found.filter(|code| *code != 200)
    }
}

fn same_kind(a: &Fault, b: &Fault) -> bool {
    std::mem::discriminant(a) == std::mem::discriminant(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counted_fault_ends_by_itself() {
        let faults = Faults::default();
        faults.set(Fault::Gone { how: Gone::Status, times: Some(2) });
        let taken = [(); 3].map(|()| faults.take_gone());
        assert_eq!(taken, [Some(Gone::Status), Some(Gone::Status), None]);
    }

    #[test]
    fn errors_alternate_and_200_lets_a_request_pass() {
        let faults = Faults::default();
        faults.set(Fault::Errors { codes: vec![500, 200, 503] });
        let taken = [(); 4].map(|()| faults.take_error());
        assert_eq!(taken, [Some(500), None, Some(503), Some(500)]);
    }

    #[test]
    fn a_second_fault_of_a_kind_replaces_the_first() {
        let faults = Faults::default();
        faults.set(Fault::CloseWatches { after_ms: 1 });
        faults.set(Fault::Mute);
        faults.set(Fault::CloseWatches { after_ms: 2 });
        assert_eq!(faults.list(), [Fault::Mute, Fault::CloseWatches { after_ms: 2 }]);
    }

    #[test]
    fn invalid_numbers_are_reported_by_field() {
        let cases = [
            (json!({"fault": "slow", "bytesPerSecond": 1}), ""),
            (json!({"fault": "slow", "bytesPerSecond": 0}), "bytesPerSecond is 0"),
            (json!({"fault": "flap", "upMs": 0, "downMs": 1}), "upMs is 0"),
            (json!({"fault": "flap", "upMs": 1, "downMs": 0}), "downMs is 0"),
            (json!({"fault": "gone", "how": "event"}), ""),
            (json!({"fault": "gone", "how": "event", "times": 0}), "times is 0"),
            (json!({"fault": "errors", "codes": [500, 200, 400, 599]}), ""),
            (json!({"fault": "errors", "codes": []}), "codes is empty"),
            (json!({"fault": "errors", "codes": [500, 9999]}), "codes has 9999"),
            (json!({"fault": "errors", "codes": [302]}), "codes has 302"),
            (json!({"fault": "redirect", "location": "https://a.example/"}), ""),
            (json!({"fault": "redirect", "location": "a\nb"}), "location is \"a\\nb\""),
            (json!({"fault": "clockSkew", "seconds": -3_155_760_000_i64}), ""),
            (json!({"fault": "clockSkew", "seconds": 3_155_760_001_i64}), "seconds is 3155760001"),
            (json!({"fault": "clockSkew", "seconds": i64::MIN}), "seconds is -9223372036854775808"),
        ];
        for (body, expected) in cases {
            let fault = Fault::read(body.clone()).expect("the fields are known");
            let fact = fault.check().err().unwrap_or_default();
            assert!(fact.starts_with(expected), "{body}: {fact}");
            assert_eq!(fact.is_empty(), expected.is_empty(), "{body}: {fact}");
        }
    }

    #[test]
    fn every_kind_refuses_fields_it_does_not_have() {
        let cases = [
            (json!({"fault": "html", "x": 1}), "unknown field `x`: \"html\" has none"),
            (
                json!({"fault": "slow", "latency": 1}),
                "unknown field `latency`: \"slow\" has `bytesPerSecond` and `latencyMs`",
            ),
            (
                json!({"fault": "emptyLists", "resources": "pods"}),
                "unknown field `resources`: \"emptyLists\" has `resource`",
            ),
        ];
        for (body, expected) in cases {
            assert_eq!(Fault::read(body), Err(expected.to_owned()));
        }
    }

    #[test]
    fn faults_have_a_plain_json_form() {
        let fault: Fault =
            serde_json::from_str(r#"{"fault":"gone","how":"event","times":1}"#).expect("valid");
        assert_eq!(fault, Fault::Gone { how: Gone::Event, times: Some(1) });
    }
}
