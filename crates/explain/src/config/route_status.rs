//! Statuses of Gateway API routes: converts the findings about a route to conditions. (Gateway API,
//! `RouteConditionType`, `RouteConditionReason`.)

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{ConfigView, Finding};
use strait_base::bounded::head;
use strait_base::codes::{self, Code};
use strait_model::{ObjectKey, RouteParentStatus, RouteStatus, StatusCondition, StatusField};
use strait_rules::traffic::gateway_route::{ParentService, ServiceKind};
use strait_rules::traffic::{HostPattern, Reason, TrafficObject, TrafficReport};

/// Maximum length of a message, in bytes. An API server accepts 32 KiB.
const MESSAGE_MAX: usize = 2048;
/// Fields of a parent reference that the status repeats.
const PARENT_FIELDS: [&str; 6] = ["group", "kind", "namespace", "name", "sectionName", "port"];

/// Facts about a route, in addition to the findings about its parts.
struct RouteFacts {
    /// Number of rules.
    rules: usize,
    /// `Some` if the route is invalid; the value states whether an earlier version is active
    /// instead.
    refused: Option<bool>,
}

impl ConfigView<'_> {
    /// Returns the statuses that Gateway API routes with a current or former Service parent should
    /// have. Routes that already have this status are left out.
    pub fn route_statuses(&self) -> Vec<RouteStatus> {
        let routes = self.reports.traffic.iter();
        let routes = routes.filter(|(key, _)| StatusField::of(key) == StatusField::Parents);
        let statuses = routes.filter_map(|(key, report)| {
            // A just parsed route may not be active yet.
            if !self.is_joined(report) {
                return None;
            }
            let object = self.reports.objects.get(key)?.to_value();
            let status = self.route_status(key, report, &object);
            let held = object.pointer("/status/parents").and_then(Value::as_array);
            let held = held.map(Vec::as_slice).unwrap_or_default();
            status.merged(held, "").map(|_| status)
        });
        statuses.collect()
    }

    /// Returns whether the valid version of a route, if any, is active.
    fn is_joined(&self, report: &TrafficReport) -> bool {
        let Some((_, TrafficObject::GatewayRoute(route))) = report.good() else { return true };
        let host = |parent: &ParentService| HostPattern::for_service(&parent.host);
        route.parents.iter().all(|parent| self.joined(route, &host(parent)).is_some())
    }

    fn route_status(&self, key: &ObjectKey, report: &TrafficReport, object: &Value) -> RouteStatus {
        let (_, Finding { reasons, .. }) = self.found(report);
        let rules = object.pointer("/spec/rules").and_then(Value::as_array);
        let facts = RouteFacts {
            rules: rules.map_or(0, Vec::len),
            refused: report.state.refused.then_some(report.good().is_some()),
        };
        let parents = object.pointer("/spec/parentRefs").and_then(Value::as_array);
        let parents = parents.map(Vec::as_slice).unwrap_or_default().iter().enumerate();
        let parents = parents.filter(|(_, parent)| {
            let text = |field: &str| parent[field].as_str();
            let kind = text("group").zip(text("kind"));
            kind.and_then(|(group, kind)| ServiceKind::from_group_kind(group, kind)).is_some()
                && text("name").is_some()
        });
        let parents = parents.map(|(at, parent)| RouteParentStatus {
            parent: named(parent),
            conditions: conditions(at, &facts, &reasons),
        });
        let generation = object.pointer("/metadata/generation").and_then(Value::as_i64);
        RouteStatus {
            key: key.clone(),
            generation: generation.unwrap_or_default(),
            parents: parents.collect(),
        }
    }
}

/// Returns the parent reference of a route for its status.
fn named(parent: &Value) -> Value {
    let fields = PARENT_FIELDS.iter().filter_map(|field| {
        let value = parent.get(field).filter(|value| !value.is_null())?;
        Some(((*field).to_owned(), value.clone()))
    });
    Value::Object(fields.collect::<Map<_, _>>())
}

/// Returns the conditions of a route at its parent with index `at`, counted from 0.
fn conditions(at: usize, facts: &RouteFacts, reasons: &[Reason]) -> Vec<StatusCondition> {
    let condition = |kind, is_true, reason, message: String| StatusCondition {
        kind,
        is_true,
        reason,
        message: shortened(message),
    };
    let all = |chosen: &dyn Fn(&Reason) -> bool| -> Vec<&Reason> {
        reasons.iter().filter(|reason| reason.is_lost && chosen(reason)).collect()
    };
    let own = format!("spec.parentRefs[{at}]");
    let of_parent = all(&|reason| {
        let rest = reason.path.strip_prefix(&own);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    });
    let values = all(&|reason| is_value(reason.code));
    let dropped: BTreeSet<&str> =
        values.iter().filter_map(|reason| rule_of(&reason.path)).collect();
    let unreadable =
        all(&|reason| *reason.code == codes::TRAFFIC_MALFORMED || is_value(reason.code));

    let accepted = match (facts.refused, of_parent.first()) {
        (Some(false), _) => Some(("UnsupportedValue", joined(&unreadable))),
        (_, Some(first)) => Some((parent_reason(first.code), joined(&of_parent))),
        _ if facts.refused.is_none() && facts.rules > 0 && dropped.len() == facts.rules => {
            Some(("UnsupportedValue", joined(&values)))
        }
        _ => None,
    };
    let is_accepted = accepted.is_none();
    let (reason, message) = accepted.unwrap_or(("Accepted", String::new()));
    let mut conditions = vec![condition("Accepted", is_accepted, reason, message)];

    let backends = all(&|reason| backend_reason(reason).is_some());
    conditions.push(match backends.first().and_then(|first| backend_reason(first)) {
        Some(reason) => condition("ResolvedRefs", false, reason, joined(&backends)),
        None => condition("ResolvedRefs", true, "ResolvedRefs", String::new()),
    });

    if is_accepted && facts.refused == Some(true) {
        let message = format!("Fall Back to the previous version: {}", joined(&unreadable));
        conditions.push(condition("PartiallyInvalid", true, "UnsupportedValue", message));
    } else if is_accepted && !values.is_empty() {
        let message = format!("Dropped Rule(s): {}", joined(&values));
        conditions.push(condition("PartiallyInvalid", true, "UnsupportedValue", message));
    }
    conditions
}

/// Returns whether a reason is about an unsupported value.
fn is_value(code: &Code) -> bool {
    [&codes::ROUTE_REFUSED, &codes::MATCH_REFUSED].contains(&code)
}

/// Returns the condition reason for a parent that rejects the route.
fn parent_reason(code: &Code) -> &'static str {
    if *code == codes::HOST_OF_ANOTHER {
        "Conflicted"
    } else if *code == codes::TRAFFIC_UNSUPPORTED {
        "UnsupportedValue"
    } else {
        "NoMatchingParent"
    }
}

/// Returns the condition reason for an unusable backend.
fn backend_reason(reason: &Reason) -> Option<&'static str> {
    rule_of(&reason.path)?;
    let code = reason.code;
    if *code == codes::DESTINATION_INVALID {
        Some("InvalidKind")
    } else if *code == codes::GRANT_MISSING || *code == codes::DESTINATION_HIDDEN {
        Some("RefNotPermitted")
    } else if *code == codes::DESTINATION_UNKNOWN || *code == codes::DESTINATION_PORT {
        Some("BackendNotFound")
    } else {
        None
    }
}

/// Returns the rule that contains a path: `spec.rules[1]`.
fn rule_of(path: &str) -> Option<&str> {
    let end = path.starts_with("spec.rules[").then(|| path.find(']'))??;
    path.get(..=end)
}

fn joined(reasons: &[&Reason]) -> String {
    let texts = reasons.iter().map(|reason| reason.to_string());
    texts.collect::<Vec<_>>().join("; ")
}

pub(super) fn shortened(mut message: String) -> String {
    if message.len() > MESSAGE_MAX {
        message.truncate(head(&message, MESSAGE_MAX).len());
        message.push('…');
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message_of(facts: &RouteFacts, reasons: &[Reason]) -> String {
        let all = conditions(0, facts, reasons);
        let all = all.iter().map(|one| format!("{}={} {}", one.kind, one.is_true, one.reason));
        all.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn conditions_follow_the_findings() {
        let rule = "spec.rules[0].backendRefs[1]";
        let lost = |code, path: &str| vec![Reason::lost(code, path, "why")];
        let two = RouteFacts { rules: 2, refused: None };
        let accepted = |rest: &str| format!("Accepted=true Accepted, ResolvedRefs={rest}");
        let resolved = "true ResolvedRefs";
        for (facts, reasons, expected) in [
            (&two, vec![], accepted(resolved)),
            (&two, lost(&codes::DESTINATION_UNKNOWN, rule), accepted("false BackendNotFound")),
            (&two, lost(&codes::DESTINATION_PORT, rule), accepted("false BackendNotFound")),
            (&two, lost(&codes::DESTINATION_INVALID, rule), accepted("false InvalidKind")),
            (&two, lost(&codes::GRANT_MISSING, rule), accepted("false RefNotPermitted")),
            (&two, lost(&codes::DESTINATION_HIDDEN, rule), accepted("false RefNotPermitted")),
            (
                &two,
                lost(&codes::HOST_UNKNOWN, "spec.parentRefs[0]"),
                "Accepted=false NoMatchingParent, ResolvedRefs=true ResolvedRefs".to_owned(),
            ),
            (
                &two,
                lost(&codes::DESTINATION_PORT, "spec.parentRefs[0]"),
                "Accepted=false NoMatchingParent, ResolvedRefs=true ResolvedRefs".to_owned(),
            ),
            (
                &two,
                lost(&codes::TRAFFIC_UNSUPPORTED, "spec.parentRefs[0].sectionName"),
                "Accepted=false UnsupportedValue, ResolvedRefs=true ResolvedRefs".to_owned(),
            ),
            (
                &two,
                lost(&codes::HOST_OF_ANOTHER, "spec.parentRefs[0]"),
                "Accepted=false Conflicted, ResolvedRefs=true ResolvedRefs".to_owned(),
            ),
            // Problems of other parents and warnings do not change the conditions of this parent.
            (&two, lost(&codes::HOST_UNKNOWN, "spec.parentRefs[1]"), accepted(resolved)),
            (&two, lost(&codes::HOST_UNKNOWN, "spec.parentRefs[10]"), accepted(resolved)),
            (
                &two,
                vec![Reason::warning(&codes::HOST_OF_ANOTHER, "spec.parentRefs[0]", "some")],
                accepted(resolved),
            ),
            (
                &two,
                lost(&codes::ROUTE_REFUSED, "spec.rules[1].filters[0]"),
                accepted("true ResolvedRefs, PartiallyInvalid=true UnsupportedValue"),
            ),
            (
                &two,
                lost(&codes::MATCH_REFUSED, "spec.rules[1].matches[0].path"),
                accepted("true ResolvedRefs, PartiallyInvalid=true UnsupportedValue"),
            ),
            (
                &RouteFacts { rules: 1, refused: None },
                lost(&codes::ROUTE_REFUSED, "spec.rules[0].filters[0]"),
                "Accepted=false UnsupportedValue, ResolvedRefs=true ResolvedRefs".to_owned(),
            ),
            (
                &RouteFacts { rules: 1, refused: None },
                lost(&codes::MATCH_REFUSED, "spec.rules[0].matches[0].path"),
                "Accepted=false UnsupportedValue, ResolvedRefs=true ResolvedRefs".to_owned(),
            ),
            (
                &RouteFacts { rules: 1, refused: Some(true) },
                lost(&codes::MATCH_REFUSED, "spec.rules[0].matches[0].path"),
                accepted("true ResolvedRefs, PartiallyInvalid=true UnsupportedValue"),
            ),
            (
                &RouteFacts { rules: 1, refused: Some(false) },
                lost(&codes::TRAFFIC_MALFORMED, "spec.rules"),
                "Accepted=false UnsupportedValue, ResolvedRefs=true ResolvedRefs".to_owned(),
            ),
            (
                &RouteFacts { rules: 1, refused: Some(true) },
                lost(&codes::TRAFFIC_MALFORMED, "spec.rules"),
                accepted("true ResolvedRefs, PartiallyInvalid=true UnsupportedValue"),
            ),
        ] {
            assert_eq!(message_of(facts, &reasons), expected, "{reasons:?}");
        }
    }

    #[test]
    fn messages_contain_the_path_and_have_a_bounded_length() {
        let one = Reason::lost(
            &codes::DESTINATION_UNKNOWN,
            "spec.rules[0].backendRefs[0]",
            "x".repeat(99),
        );
        let facts = RouteFacts { rules: 1, refused: None };
        let all = conditions(0, &facts, std::slice::from_ref(&one));
        assert_eq!(all[1].message, one.to_string());
        let all = conditions(0, &facts, &vec![one; 99]);
        assert!(all[1].message.len() <= MESSAGE_MAX + '…'.len_utf8());
    }
}
