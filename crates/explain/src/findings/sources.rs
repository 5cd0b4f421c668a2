//! Findings about sources that are not member clusters: config sources, Consul, and the config cluster.

use super::MeshFinding;
use crate::{code_of_warning, describe_withheld, is_withheld_by_fault};
use strait_admin_api::{Source, SourceState};
use strait_base::codes;

const CATEGORY: &str = "sources";

/// Returns the findings about a source: about the source itself, and its warnings.
pub fn of_source(source: &Source) -> Vec<MeshFinding> {
    let object = || format!("source/{}", source.name);
    let own = source.code.as_deref().and_then(codes::find);
    let reason = source.reason.as_deref().unwrap_or("it has not been read");
    let mut found = Vec::new();
    match (&source.state, own) {
        (SourceState::Restored, None) => {
            let fact = reason.to_owned();
            found.push(MeshFinding::note(CATEGORY, &codes::RESTORED, object(), fact));
        }
        (SourceState::Syncing, Some(code)) => {
            let fact = format!("it has not been read since the start: {reason}");
            found.push(MeshFinding::problem(CATEGORY, code, object(), fact));
        }
        (SourceState::Stale | SourceState::Timeout | SourceState::Restored, code) => {
            let usual = match source.state {
                SourceState::Timeout => &codes::SYNC_TIMEOUT,
                _ => &codes::UNREACHABLE,
            };
            let fact = format!("{}: {reason}", source.state.as_str());
            let code = code.or_else(|| codes::named(reason)).unwrap_or(usual);
            found.push(MeshFinding::problem(CATEGORY, code, object(), fact));
        }
        _ => {}
    }
    for warning in &source.warnings {
        let (code, is_problem) = code_of_warning(&source.kind, warning);
        // Consequences of the lost contact have already been reported.
        if own != Some(code) {
            let finding = MeshFinding::problem(CATEGORY, code, object(), warning.clone());
            found.push(MeshFinding { is_problem, ..finding });
        }
    }
    for (code, withheld) in &source.withheld_by {
        let code = codes::find(code).unwrap_or(&codes::NO_GATEWAY);
        let withheld_endpoints = describe_withheld(code, withheld.endpoints);
        let fact = format!("{withheld_endpoints}; services: {}", withheld.services.join(", "));
        let finding = MeshFinding::problem("networks", code, object(), fact);
        found.push(MeshFinding { is_problem: is_withheld_by_fault(code), ..finding });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_admin_api::{SourceKind, WithheldOfSource};

    #[test]
    fn source_that_was_never_read_and_warnings_have_the_code_of_their_cause() {
        let found = |state: SourceState, code: Option<&str>, warnings: &[&str]| {
            let source = Source {
                name: "dc1".to_owned(),
                kind: SourceKind::Consul,
                state,
                code: code.map(str::to_owned),
                reason: code.map(|_| "refused".to_owned()),
                warnings: warnings.iter().map(|text| (*text).to_owned()).collect(),
                ..Source::default()
            };
            let short = |row: MeshFinding| format!("{} {} {}", row.code, row.is_problem, row.fact);
            of_source(&source).into_iter().map(short).collect::<Vec<_>>()
        };
        assert_eq!(found(SourceState::Syncing, None, &[]), [""; 0], "it is being read");
        let unread = "STR0320 true it has not been read since the start: refused";
        assert_eq!(found(SourceState::Syncing, Some("STR0320"), &[]), [unread]);
        assert_eq!(found(SourceState::Live, Some("STR0320"), &[]), [""; 0], "a reconnect");
        let timeout = "STR0303 true timeout: it has not been read";
        assert_eq!(found(SourceState::Timeout, None, &[]), [timeout]);
        let warnings = ["service \"b\": STR0320: refused", "service \"c\": no address"];
        assert_eq!(
            found(SourceState::Live, None, &warnings),
            [
                "STR0320 true service \"b\": STR0320: refused",
                "STR0323 true service \"c\": no address"
            ]
        );
        assert_eq!(found(SourceState::Stale, Some("STR0320"), &warnings[..1]).len(), 1);
    }

    #[test]
    fn withheld_endpoints_of_a_source_are_a_problem_unless_they_are_by_design() {
        let withheld = |endpoints| {
            let services = vec!["db.example.com".to_owned()];
            WithheldOfSource { endpoints, services }
        };
        let by = [("STR0401", withheld(2)), ("STR0404", withheld(1))];
        let source = Source {
            name: "entries".to_owned(),
            withheld_by: by.map(|(code, one)| (code.to_owned(), one)).into(),
            ..Source::default()
        };
        let found = of_source(&source);
        let short: Vec<_> = found.iter().map(|one| (one.code.id, one.is_problem)).collect();
        assert_eq!(short, [("STR0401", true), ("STR0404", false)]);
        assert_eq!(found[0].object, "source/entries");
        assert!(found[0].fact.ends_with("services: db.example.com"), "{}", found[0].fact);
    }
}
