//! The proxies that the server refuses repeatedly, until it admits them.
//!
//! A refused proxy has no stream, so that the table of connected proxies does not contain it. A
//! single refusal is not reported, because the server may not know a new pod yet.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use strait_base::codes::{self, Code};
use strait_base::lock::lock;

/// The maximum number of proxies in the table.
const PROXIES_MAX: usize = 1024;
/// Minimum time between the first and the last refusal of a proxy that is reported.
const LASTING: Duration = Duration::from_secs(5);
/// Time without another refusal after which a proxy is forgotten. Proxies retry within 30 s.
const FORGOTTEN: Duration = Duration::from_secs(120);

/// The proxies that were refused, by node ID and claimed cluster.
#[derive(Debug, Default)]
pub struct RefusedProxies(Mutex<BTreeMap<(String, String), RefusedProxy>>);

/// The refusals of one proxy.
#[derive(Debug)]
struct RefusedProxy {
    first: Instant,
    last: Instant,
    code: &'static Code,
    fact: String,
}

/// The refused proxies of one cluster with the same code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedGroup {
    /// The code.
    pub code: &'static Code,
    /// The number of proxies, the cluster, and the reason of the first proxy.
    pub text: String,
}

impl RefusedProxies {
    /// Records a refusal. `fact` begins with the code, if it has one.
    pub(super) fn refused(&self, now: Instant, node: &str, cluster: &str, fact: &str) {
        let key = (node.to_owned(), cluster.to_owned());
        let code = codes::named(fact).unwrap_or(&codes::CLAIM_IDENTITY);
        // `strait check` shows the next step separately.
        let fact = fact.strip_suffix(code.next).unwrap_or(fact).trim_end_matches([' ', '.']);
        let fact = fact.to_owned();
        let mut table = lock(&self.0);
        let has_room = table.len() < PROXIES_MAX;
        match table.get_mut(&key) {
            Some(known) => {
                let first = if known.code == code { known.first } else { now };
                *known = RefusedProxy { first, last: now, code, fact };
            }
            None if has_room => {
                table.insert(key, RefusedProxy { first: now, last: now, code, fact });
            }
            None => {}
        }
    }

    /// Removes a proxy that the server has admitted.
    pub(super) fn admitted(&self, node: &str, cluster: &str) {
        let mut table = lock(&self.0);
        if !table.is_empty() {
            table.remove(&(node.to_owned(), cluster.to_owned()));
        }
    }

    /// Returns the proxies that are refused repeatedly, by code and cluster.
    pub fn groups(&self, now: Instant) -> Vec<RefusedGroup> {
        let mut table = lock(&self.0);
        table.retain(|_, proxy| now.saturating_duration_since(proxy.last) < FORGOTTEN);
        let mut groups: BTreeMap<(&str, &str), (usize, &RefusedProxy)> = BTreeMap::new();
        for ((_, cluster), proxy) in &*table {
            if proxy.last.saturating_duration_since(proxy.first) >= LASTING {
                groups.entry((proxy.code.id, cluster.as_str())).or_insert((0, proxy)).0 += 1;
            }
        }
        let text = |cluster: &str, count: usize, fact: &str| match count {
            1 => format!(
                "1 proxy of cluster {cluster} is refused, so it has no current configuration: {fact}"
            ),
            _ => format!(
                "{count} proxies of cluster {cluster} are refused, so they have no current configuration: {fact}"
            ),
        };
        let group = |((_, cluster), (count, proxy)): ((&str, &str), (usize, &RefusedProxy))| {
            RefusedGroup { code: proxy.code, text: text(cluster, count, &proxy.fact) }
        };
        groups.into_iter().map(group).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACT: &str = "STR0511: node n claims cluster \"c9\", which is not a member of the mesh";

    #[test]
    fn proxies_refused_repeatedly_are_reported_by_cluster_until_they_are_admitted() {
        let (refused, start) = (RefusedProxies::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        refused.refused(start, "a", "c9", FACT);
        refused.refused(start, "b", "c9", FACT);
        refused.refused(start, "new", "east", "STR0512: another pod");
        let with_next = format!("{FACT}. {}", codes::CLAIM_CLUSTER.next);
        assert_eq!(refused.groups(after(9)), [], "each was refused once only");
        refused.refused(after(6), "a", "c9", &with_next);
        refused.refused(after(7), "b", "c9", FACT);
        let groups = refused.groups(after(9));
        assert_eq!(groups.len(), 1, "{groups:?}");
        assert_eq!(groups[0].code, &codes::CLAIM_CLUSTER);
        let expected = format!(
            "2 proxies of cluster c9 are refused, so they have no current configuration: {FACT}"
        );
        assert_eq!(groups[0].text, expected);
        refused.admitted("a", "c9");
        let groups = refused.groups(after(9));
        assert!(groups[0].text.starts_with("1 proxy of cluster c9 is refused"), "{groups:?}");
        assert_eq!(refused.groups(after(127)), [], "it no longer connects");
    }

    #[test]
    fn number_of_refused_proxies_is_bounded() {
        let (refused, start) = (RefusedProxies::default(), Instant::now());
        for node in 0..2 * PROXIES_MAX {
            refused.refused(start, &node.to_string(), "c9", FACT);
        }
        assert_eq!(lock(&refused.0).len(), PROXIES_MAX);
    }
}
