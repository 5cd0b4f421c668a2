//! Conditions of VirtualServices on senders that do not exist.

use super::ConfigView;
use strait_base::codes;
use strait_model::labels_match;
use strait_rules::traffic::Reason;
use strait_rules::traffic::route::SourceMatch;
use strait_rules::traffic::virtual_service::VirtualService;

impl ConfigView<'_> {
    /// Reports conditions on senders that no known workload and no connected proxy meets.
    pub(super) fn absent_senders(&self, service: &VirtualService) -> Vec<Reason> {
        let mut reasons = Vec::new();
        if !self.services_known {
            return reasons;
        }
        let mut check = |list: &str, rule: u32, place: usize, source: &SourceMatch| {
            // Namespaces to which the object is not exported are reported when it is parsed.
            let namespace = source.namespace.as_ref();
            if namespace.is_none_or(|one| service.export_to.visible_to(one)) {
                let path = format!("spec.{list}[{rule}].match[{place}]");
                reasons.extend(self.absent_sender(source, &path));
            }
        };
        for rule in &*service.http {
            for (place, one) in rule.matches.iter().enumerate() {
                check("http", rule.place.index, place, &one.source);
            }
        }
        for (list, rules) in [("tls", &service.tls), ("tcp", &service.tcp)] {
            for rule in rules.iter() {
                for (place, one) in rule.matches.iter().enumerate() {
                    check(list, rule.place.index, place, &one.source);
                }
            }
        }
        reasons
    }

    /// Reports a condition on senders that no workload meets. `path` is that of the match.
    fn absent_sender(&self, source: &SourceMatch, path: &str) -> Option<Reason> {
        let namespace = source.namespace.as_ref();
        if let Some(namespace) = namespace.filter(|one| !self.may_have_clients(one)) {
            let text = format!("no workload of namespace {namespace} is known: nothing matches");
            let path = format!("{path}.sourceNamespace");
            return Some(Reason::warning(&codes::MATCH_NEVER, path, text));
        }
        let wanted = source.labels.as_ref()?;
        let is_carried = match namespace {
            Some(namespace) => self.is_carried(wanted, namespace),
            None => {
                let mut known = self.context.workload_labels(None);
                let mut connected = self.clients.proxies().iter();
                known.any(|(_, carried)| labels_match(wanted, carried))
                    || connected.any(|one| labels_match(wanted, self.context.labels_of(one)))
            }
        };
        let of_namespace = namespace.map(|one| format!(" of namespace {one}")).unwrap_or_default();
        let text = format!("no known workload{of_namespace} has these labels: nothing matches");
        let path = format!("{path}.sourceLabels");
        (!is_carried).then(|| Reason::warning(&codes::MATCH_NEVER, path, text))
    }
}
