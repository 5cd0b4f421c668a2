//! PeerAuthentication, and the one function that computes the mTLS mode of a port.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::fields::{fields, present, restricts};
use super::object::{AccessFault, PolicyKind, PolicyName, created};
use super::selector::PolicySelector;
use super::time_point::TimePoint;
use strait_base::codes;
use strait_model::{Namespace, WorkloadKey};

/// Protocols that a server accepts: plaintext, mTLS or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum PeerMode {
    /// Only plaintext.
    Disable,
    /// Plaintext and mTLS. The default if no policy sets a mode.
    #[default]
    Permissive,
    /// Only mTLS.
    Strict,
}

impl PeerMode {
    /// Returns the spelling used in objects.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disable => "DISABLE",
            Self::Permissive => "PERMISSIVE",
            Self::Strict => "STRICT",
        }
    }
}

/// A parsed PeerAuthentication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerAuthentication {
    /// Namespace and name of the object.
    pub name: WorkloadKey,
    /// Creation time in seconds since the Unix epoch; 0 if unknown.
    pub created: i64,
    /// Selector of the workloads that the policy applies to.
    pub selector: PolicySelector,
    /// `mtls.mode`; `None` inherits the mode of a wider policy.
    pub mode: Option<PeerMode>,
    /// `portLevelMtls`, by port of the workload; `None` inherits the mode of the other ports.
    pub ports: BTreeMap<u16, Option<PeerMode>>,
}

impl PeerAuthentication {
    /// Parses an object. Parts that cannot be read are added to `faults`.
    ///
    /// If a part cannot be read, the rest applies only if its mode is STRICT, because no other part
    /// of the object can be stricter. Otherwise the object is ignored: only the oldest policy of a
    /// level applies, so that the readable rest could replace a stricter one. If `strict`, or if an
    /// unknown field may restrict access, an object with faults accepts only mTLS.
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
                                faults.push(AccessFault::unreadable(
                                    path,
                                    "is not a port from 1 to \
                                                                         65535",
                                ));
                            }
                        }
                    }
                }
                Some(_) => faults.push(AccessFault::unreadable(path, "is empty")),
                None => faults.push(AccessFault::unreadable(
                    path,
                    format!("expected modes by port, found {given}"),
                )),
            }
            if selector == PolicySelector::All {
                let text = "needs a selector, because ports belong to specific workloads";
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

    /// Returns warnings for parts that have no effect in the policy's namespace.
    pub(super) fn warnings(&self, root: &Namespace) -> Vec<AccessFault> {
        if self.name.namespace == *root && self.selector != PolicySelector::All {
            let text =
                "has no effect in the root namespace, where a policy applies to the whole mesh";
            vec![AccessFault::warning(&codes::ACCESS_NO_EFFECT, "spec.selector", text)]
        } else {
            Vec::new()
        }
    }

    /// Returns the kind and name of the policy.
    pub fn policy_name(&self) -> PolicyName {
        PolicyName { kind: PolicyKind::Peer, object: self.name.clone() }
    }
}

const SPEC_FIELDS: [&str; 3] = ["selector", "mtls", "portLevelMtls"];
const MTLS_FIELDS: [&str; 1] = ["mode"];

/// Returns whether an unknown field of the spec, or of any mode in it, may restrict access.
fn has_restricting_field(spec: &Value) -> bool {
    let unknown = |fields: Option<&Value>, known_fields: &[&str]| {
        let mut fields = fields.and_then(Value::as_object).into_iter().flatten();
        fields.any(|(name, value)| !known_fields.contains(&&**name) && restricts(name, value))
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
                format!("{found} is not a valid mode; use STRICT, PERMISSIVE, DISABLE or UNSET");
            faults.push(AccessFault::unreadable(format!("{path}.mode"), text));
            None
        }
    }
}

/// A mode transition of a port: until it ends, the port accepts both plaintext and mTLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModeTransition {
    /// Mode after the transition.
    pub to: PeerMode,
    /// Time at which the transition ends.
    pub ends: TimePoint,
}

/// Mode of one port, with the policy that sets it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortMode {
    /// Current mode.
    pub mode: PeerMode,
    /// The policy that sets the mode, or the mode after the transition; `None` for the default.
    pub by: Option<WorkloadKey>,
    /// The transition in progress. The port accepts both plaintext and mTLS until its clients have
    /// the new configuration.
    pub transition: Option<ModeTransition>,
}

impl PortMode {
    fn set_by(mode: PeerMode, policy: &PeerAuthentication) -> Self {
        Self { mode, by: Some(policy.name.clone()), transition: None }
    }

    /// Returns the mode that policies set, which is the mode after a transition.
    fn target(&self) -> PeerMode {
        self.transition.map_or(self.mode, |transition| transition.to)
    }

    /// Returns the mode during a transition from `old` that ends at `ends`. The port accepts both
    /// if only the old or only the new mode accepts mTLS.
    fn coming_from(&self, old: PeerMode, ends: TimePoint) -> Self {
        let to = self.target();
        if (old == PeerMode::Disable) == (to == PeerMode::Disable) || to == PeerMode::Permissive {
            return self.clone();
        }
        let transition = Some(ModeTransition { to, ends });
        Self { mode: PeerMode::Permissive, by: self.by.clone(), transition }
    }
}

/// Modes of all ports of a workload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerModes {
    /// Mode of the ports that `ports` does not contain.
    pub rest: PortMode,
    /// Modes of single ports.
    pub ports: BTreeMap<u16, PortMode>,
}

impl PeerModes {
    /// Returns the mode of a port of the workload.
    pub fn of_port(&self, port: u16) -> &PortMode {
        self.ports.get(&port).unwrap_or(&self.rest)
    }

    /// Applies a policy for these workloads on top of the modes of wider policies.
    pub(super) fn with(mut self, policy: &PeerAuthentication) -> Self {
        if let Some(mode) = policy.mode {
            self.rest = PortMode::set_by(mode, policy);
        }
        for (port, mode) in &policy.ports {
            let mode = match mode {
                Some(mode) => PortMode::set_by(*mode, policy),
                None => self.rest.clone(),
            };
            self.ports.insert(*port, mode);
        }
        self
    }

    /// Returns the modes during a transition from `old` that ends at `ends`.
    pub(super) fn coming_from(&self, old: &Self, ends: TimePoint) -> Self {
        let ports =
            old.ports.keys().chain(self.ports.keys()).map(|port| {
                (*port, self.of_port(*port).coming_from(old.of_port(*port).mode, ends))
            });
        Self { ports: ports.collect(), rest: self.rest.coming_from(old.rest.mode, ends) }
    }

    /// Sets everything to STRICT that `policy` sets to STRICT, even if the policy does not select
    /// the workload.
    pub(super) fn tightened(mut self, policy: &PeerAuthentication) -> Self {
        if policy.mode == Some(PeerMode::Strict) {
            let strict = PortMode::set_by(PeerMode::Strict, policy);
            self.ports.values_mut().for_each(|port| port.clone_from(&strict));
            self.rest = strict;
        }
        for (port, mode) in &policy.ports {
            if *mode == Some(PeerMode::Strict) {
                self.ports.insert(*port, PortMode::set_by(PeerMode::Strict, policy));
            }
        }
        self
    }
}
