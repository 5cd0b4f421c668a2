//! Reports of objects that are not used unchanged: in the log and in the table of sources.

use std::collections::BTreeMap;
use std::sync::Arc;

use strait_base::source_status::{SourceFacts, SourceStatusTable, WARNINGS_MAX};

/// Maximum number of logged reasons per object and change.
const LOGGED_MAX: usize = 16;

/// Returns the first reasons of each object; thousands of log lines would delay the feed.
/// `/debug/config` lists all.
pub(super) fn first_of_each<K: Ord + Clone, R>(
    reasons: impl Iterator<Item = (K, R)>,
) -> impl Iterator<Item = (K, R)> {
    let mut counts = BTreeMap::<K, usize>::new();
    reasons.filter(move |(object, _)| {
        let count = counts.entry(object.clone()).or_default();
        *count += 1;
        *count <= LOGGED_MAX
    })
}

/// Reports in the table of sources the objects of one kind that are not used unchanged, from all
/// stores.
pub(super) fn report_problems<P: ToString>(
    source_statuses: &SourceStatusTable,
    name: &'static str,
    problems: &[P],
) {
    let name: Arc<str> = name.into();
    if problems.is_empty() {
        source_statuses.forget(&name);
        return;
    }
    let warnings = problems.iter().take(WARNINGS_MAX).map(ToString::to_string).collect();
    let mut facts = SourceFacts { synced: true, warnings, ..SourceFacts::starting("entries", "") };
    facts.last_contact = Some(facts.since);
    source_statuses.report(&name, &facts);
}
