//! Matches that no request can meet because of other fields of the object.

use std::collections::BTreeSet;

use super::super::hosts::{HostPattern, HostSet};
use super::super::object::Reason;
use super::super::route::{SourceMatch, TextMatch};
use super::VirtualService;
use strait_base::codes;
use strait_model::ExportTo;

impl VirtualService {
    /// Reports conditions on senders in namespaces to which the object is not exported.
    pub(super) fn hidden_senders(&self) -> Vec<Reason> {
        // A delegate applies to the clients of its roots.
        let named: BTreeSet<_> = match &self.export_to {
            ExportTo::Namespaces(named) if !self.hosts.is_empty() => named.iter().collect(),
            _ => BTreeSet::new(),
        };
        if named.is_empty() {
            return Vec::new();
        }
        let mut reasons = Vec::new();
        let mut note = |list: &str, rule: u32, place: usize, source: &SourceMatch| {
            if let Some(namespace) = source.namespace.as_ref().filter(|one| !named.contains(one)) {
                let path = format!("spec.{list}[{rule}].match[{place}].sourceNamespace");
                let text = format!(
                    "spec.exportTo does not contain {namespace}: no proxy of {namespace} has the rule"
                );
                reasons.push(Reason::lost(&codes::MATCH_NEVER, path, text));
            }
        };
        for rule in &*self.http {
            for (place, one) in rule.matches.iter().enumerate() {
                note("http", rule.place.index, place, &one.source);
            }
        }
        for (list, rules) in [("tls", &self.tls), ("tcp", &self.tcp)] {
            for rule in rules {
                for (place, one) in rule.matches.iter().enumerate() {
                    note(list, rule.place.index, place, &one.source);
                }
            }
        }
        reasons
    }

    /// Reports conditions on hosts that are not among the hosts of the object. Requests to a sidecar
    /// may name a service in several ways, so only objects for gateways are checked.
    pub(super) fn foreign_authorities(&self) -> Vec<Reason> {
        if self.hosts.is_empty() || self.is_for_mesh() {
            return Vec::new();
        }
        let hosts: HostSet<'_> = self.hosts.iter().collect();
        let is_covered = |authority: &str| {
            let port = authority.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
            let name = port.map_or(authority, |(name, _)| name);
            // Short names may be completed, and a star is reported by itself.
            let is_full = name.contains('.') && !name.contains('*');
            let host = HostPattern::written(name).ok().filter(|_| is_full);
            host.is_none_or(|host| hosts.has_wider(&host))
        };
        let mut reasons = Vec::new();
        for rule in &*self.http {
            for (place, one) in rule.matches.iter().enumerate() {
                let Some(TextMatch::Exact(authority)) = &one.authority else { continue };
                if !is_covered(authority) {
                    let path = format!("spec.http[{}].match[{place}].authority", rule.place.index);
                    let text = format!(
                        "{authority} is not covered by the hosts of the object: no request matches it"
                    );
                    reasons.push(Reason::lost(&codes::MATCH_NEVER, path, text));
                }
            }
        }
        reasons
    }
}
