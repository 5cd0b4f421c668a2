//! How workloads take connections: PeerAuthentication, and the one function that says so for a port.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::fields::{fields, present, restricts};
use super::object::{AccessFault, PolicyKind, PolicyName, created};
use super::selector::PolicySelector;
use super::time_point::TimePoint;
use strait_base::codes;
use strait_model::{Namespace, WorkloadKey};

/// How connections are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum PeerMode {
    /// In plain text alone.
    Disable,
    /// In plain text and by mTLS: what holds where nothing is said.
    #[default]
    Permissive,
    /// By mTLS alone.
    Strict,
}

impl PeerMode {
    /// As objects name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disable => "DISABLE",
            Self::Permissive => "PERMISSIVE",
            Self::Strict => "STRICT",
        }
    }
}

/// A PeerAuthentication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerAuthentication {
    /// Its name.
    pub name: WorkloadKey,
    /// Seconds since the Unix epoch; 0 where unknown.
    pub created: i64,
    /// The workloads it is for.
    pub selector: PolicySelector,
    /// `mtls.mode`; `None` for what a wider policy says.
    pub mode: Option<PeerMode>,
    /// `portLevelMtls`, by port of the workload; `None` for the mode of the rest.
    pub ports: BTreeMap<u16, Option<PeerMode>>,
}

impl PeerAuthentication {
    /// Reads an object. Where a part of it can't be read, which is in `faults`, the rest counts if it asks for mTLS: whatever
    /// the part says, that takes no more. Else nothing of it counts: in the place of another, of which the oldest counts
    /// alone, the rest might take more connections than that. If `strict`, or if an unknown field may restrict access, it
    /// takes mTLS alone.
    pub(super) fn read(
        name: &WorkloadKey,
        object: &Value,
        strict: bool,
        faults: &mut Vec<AccessFault>,
    ) -> Option<Self> {
        let before = faults.len();
        let empty = Value::Object(Map::new());
        let spec = object.get("spec").filter(|spec| !spec.is_null()).unwrap_or(&empty);
        let strict = strict || has_restricting_field(spec);
        let closed = |selector| {
            let mode = Some(PeerMode::Strict);
            let (name, created) = (name.clone(), created(object));
            strict.then(|| Self { name, created, selector, mode, ports: BTreeMap::new() })
        };
        let spec = fields(spec, "spec", &SPEC_FIELDS, faults);
        let Some(spec) = spec else { return closed(PolicySelector::All) };
        let Some(selector) = PolicySelector::read(spec, None, faults) else {
            return closed(PolicySelector::All);
        };
        let mode = present(spec, "mtls").and_then(|mtls| read_mode(mtls, "spec.mtls", faults));
        let mut ports = BTreeMap::new();
        if let Some(given) = present(spec, "portLevelMtls") {
            let path = "spec.portLevelMtls";
            match given.as_object() {
                Some(given) if !given.is_empty() => {
                    for (port, mtls) in given {
                        let path = format!("{path}.{port}");
                        match port.parse::<u16>().ok().filter(|port| *port != 0) {
                            Some(port) => {
                                ports.insert(port, read_mode(mtls, &path, faults));
                            }
                            None => {
                                faults
                                    .push(AccessFault::unreadable(path, "is no port, 1 to 65535"));
                            }
                        }
                    }
                }
                Some(_) => faults.push(AccessFault::unreadable(path, "is there and empty")),
                None => faults.push(AccessFault::unreadable(
                    path,
                    format!("expected modes by port, found {given}"),
                )),
            }
            if selector == PolicySelector::All {
                let text = "needs a selector: ports are those of certain workloads";
                faults.push(AccessFault::unreadable(path, text));
            }
        }
        if faults.len() > before {
            if strict || mode != Some(PeerMode::Strict) {
                return closed(selector);
            }
            if selector == PolicySelector::All {
                ports.clear();
            }
        }
        Some(Self { name: name.clone(), created: created(object), selector, mode, ports })
    }

    /// What it says that has no effect in its namespace.
    pub(super) fn warnings(&self, root: &Namespace) -> Vec<AccessFault> {
        if self.name.namespace == *root && self.selector != PolicySelector::All {
            let text =
                "counts for nothing in the root namespace: there a policy is for the whole mesh";
            vec![AccessFault::warning(&codes::ACCESS_NO_EFFECT, "spec.selector", text)]
        } else {
            Vec::new()
        }
    }

    /// Which it is.
    pub fn policy_name(&self) -> PolicyName {
        PolicyName { kind: PolicyKind::Peer, object: self.name.clone() }
    }
}

const SPEC_FIELDS: [&str; 3] = ["selector", "mtls", "portLevelMtls"];
const MTLS_FIELDS: [&str; 1] = ["mode"];

/// Whether an unknown field of a spec, or of one of its modes, restricts access.
fn has_restricting_field(spec: &Value) -> bool {
    let unknown = |fields: Option<&Value>, known: &[&str]| {
        let mut fields = fields.and_then(Value::as_object).into_iter().flatten();
        fields.any(|(name, value)| !known.contains(&&**name) && restricts(name, value))
    };
    let ports = spec.get("portLevelMtls").and_then(Value::as_object);
    unknown(Some(spec), &SPEC_FIELDS)
        || unknown(spec.get("mtls"), &MTLS_FIELDS)
        || ports.into_iter().flatten().any(|(_, mtls)| unknown(Some(mtls), &MTLS_FIELDS))
}

fn read_mode(mtls: &Value, path: &str, faults: &mut Vec<AccessFault>) -> Option<PeerMode> {
    let mode = fields(mtls, path, &MTLS_FIELDS, faults).and_then(|mtls| present(mtls, "mode"));
    match mode.map(|mode| (mode.as_str(), mode)) {
        None | Some((Some("UNSET"), _)) => None,
        Some((Some("STRICT"), _)) => Some(PeerMode::Strict),
        Some((Some("PERMISSIVE"), _)) => Some(PeerMode::Permissive),
        Some((Some("DISABLE"), _)) => Some(PeerMode::Disable),
        Some((_, found)) => {
            let text =
                format!("{found} means nothing; it may be STRICT, PERMISSIVE, DISABLE or UNSET");
            faults.push(AccessFault::unreadable(format!("{path}.mode"), text));
            None
        }
    }
}

/// What a port that takes both goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModeTransition {
    /// How it will take connections.
    pub to: PeerMode,
    /// From when on.
    pub ends: TimePoint,
}

/// How one port takes connections, and which policy says so.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortMode {
    /// How.
    pub mode: PeerMode,
    /// The policy that says so, or what the port goes to; `None` where none says anything.
    pub by: Option<WorkloadKey>,
    /// What it goes to, where it takes both plain text and mTLS until clients have learnt that.
    pub transition: Option<ModeTransition>,
}

impl PortMode {
    fn said_by(mode: PeerMode, policy: &PeerAuthentication) -> Self {
        Self { mode, by: Some(policy.name.clone()), transition: None }
    }

    /// What policies say, at once or in the end.
    fn target(&self) -> PeerMode {
        self.transition.map_or(self.mode, |transition| transition.to)
    }

    /// The same of a port that was taken as `old` says, until then: connections in plain text and by mTLS are both under
    /// way wherever one of the two takes no mTLS.
    fn coming_from(&self, old: PeerMode, ends: TimePoint) -> Self {
        let to = self.target();
        if (old == PeerMode::Disable) == (to == PeerMode::Disable) || to == PeerMode::Permissive {
            return self.clone();
        }
        let transition = Some(ModeTransition { to, ends });
        Self { mode: PeerMode::Permissive, by: self.by.clone(), transition }
    }
}

/// How a workload takes connections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerModes {
    /// At ports of which nothing else is said.
    pub rest: PortMode,
    /// At ports of which something is.
    pub ports: BTreeMap<u16, PortMode>,
}

impl PeerModes {
    /// How the workload takes connections to a port of its own.
    pub fn of_port(&self, port: u16) -> &PortMode {
        self.ports.get(&port).unwrap_or(&self.rest)
    }

    /// What a policy for these workloads changes of what wider ones say.
    pub(super) fn with(mut self, policy: &PeerAuthentication) -> Self {
        if let Some(mode) = policy.mode {
            self.rest = PortMode::said_by(mode, policy);
        }
        for (port, mode) in &policy.ports {
            let mode = match mode {
                Some(mode) => PortMode::said_by(*mode, policy),
                None => self.rest.clone(),
            };
            self.ports.insert(*port, mode);
        }
        self
    }

    /// What holds while servers and clients go from `old` to this, until then.
    pub(super) fn coming_from(&self, old: &Self, ends: TimePoint) -> Self {
        let ports =
            old.ports.keys().chain(self.ports.keys()).map(|port| {
                (*port, self.of_port(*port).coming_from(old.of_port(*port).mode, ends))
            });
        Self { ports: ports.collect(), rest: self.rest.coming_from(old.rest.mode, ends) }
    }

    /// Makes strict whatever `policy` makes strict, whether it selects the workload or not.
    pub(super) fn tightened(mut self, policy: &PeerAuthentication) -> Self {
        if policy.mode == Some(PeerMode::Strict) {
            let strict = PortMode::said_by(PeerMode::Strict, policy);
            self.ports.values_mut().for_each(|port| port.clone_from(&strict));
            self.rest = strict;
        }
        for (port, mode) in &policy.ports {
            if *mode == Some(PeerMode::Strict) {
                self.ports.insert(*port, PortMode::said_by(PeerMode::Strict, policy));
            }
        }
        self
    }
}
