//! Limits of one object, which are checked before the object is read.
//!
//! Reading and merging an object takes time and memory for each list entry. The limits are far
//! above real use. They are also above the limits of Istio's and the Gateway API's schemas, so that
//! every object that those accept is accepted here (docs/how-to/check-before-applying.md, "Limits of one
//! object").

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use strait_model::{ObjectJson, ObjectKey};

/// Maximum number of entries of a list or a map.
pub const ENTRIES_MAX: usize = 4096;
/// Maximum number of values of an object: texts, numbers, lists and maps.
pub const VALUES_MAX: usize = 65_536;
/// Maximum number of pairs of two lists that an object multiplies.
pub const PAIRS_MAX: usize = 65_536;

/// Lists with a separate limit. It is lower if each entry has entries in several indexes, or is
/// compared with entries of other lists. It is higher for lists of addresses, because real policies
/// have thousands.
const LISTS: &[(&str, &str, usize)] = &[
    ("AuthorizationPolicy", "spec.rules[].from[].source.ipBlocks", 16_384),
    ("AuthorizationPolicy", "spec.rules[].from[].source.notIpBlocks", 16_384),
    ("AuthorizationPolicy", "spec.rules[].from[].source.remoteIpBlocks", 16_384),
    ("AuthorizationPolicy", "spec.rules[].from[].source.notRemoteIpBlocks", 16_384),
    ("VirtualService", "spec.hosts", 2048),
    ("ServiceEntry", "spec.hosts", 2048),
    // Each patch is checked against Envoy's schema.
    ("EnvoyFilter", "spec.configPatches", 1024),
    ("HTTPRoute", "spec.parentRefs", 256),
    ("HTTPRoute", "spec.hostnames", 256),
    ("GRPCRoute", "spec.parentRefs", 256),
    ("GRPCRoute", "spec.hostnames", 256),
    ("TLSRoute", "spec.parentRefs", 256),
    ("TLSRoute", "spec.hostnames", 256),
    ("TCPRoute", "spec.parentRefs", 256),
    ("ReferenceGrant", "spec.from", 256),
    ("ReferenceGrant", "spec.to", 256),
];

/// Lists of a ServiceEntry that are copied for each host.
const OF_EACH_HOST: [&str; 4] =
    ["spec.addresses", "spec.ports", "spec.exportTo", "spec.subjectAltNames"];

/// A limit that an object exceeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excess {
    /// Path of the list, from the root of the object.
    pub path: String,
    count: usize,
    what: &'static str,
    max: usize,
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, what, max, .. } = self;
        write!(
            f,
            "has {count} {what}, but an object may have at most {max}: split it into several \
                   objects"
        )
    }
}

/// Parses an object that is within the limits.
///
/// # Errors
/// The first exceeded limit.
pub fn to_value(key: &ObjectKey, object: &ObjectJson) -> Result<Value, Excess> {
    // Larger objects are not parsed: the parsed form may take hundreds of times the memory of the
    // text.
    let values = object.values();
    if values > VALUES_MAX {
        let (path, what) = ("spec".to_owned(), "values");
        return Err(Excess { path, count: values, what, max: VALUES_MAX });
    }
    let value = object.to_value();
    check(&key.kind, &value)?;
    Ok(value)
}

/// Checks the lists and maps of an object.
fn check(kind: &str, object: &Value) -> Result<(), Excess> {
    let mut counts = EntryCounts { kind, path: String::new(), by_list: BTreeMap::new() };
    counts.add(object)?;
    let count = |list: &str| counts.by_list.get(list).copied().unwrap_or_default();
    let limit = |list: &str, others: usize, what| {
        let pairs = count(list).saturating_mul(others);
        let excess = Excess { path: list.to_owned(), count: pairs, what, max: PAIRS_MAX };
        if pairs <= PAIRS_MAX { Ok(()) } else { Err(excess) }
    };
    match kind {
        "ServiceEntry" => {
            let others = OF_EACH_HOST.iter().map(|list| count(list)).sum();
            limit("spec.hosts", others, "combinations with addresses, ports, namespaces and names")
        }
        "HTTPRoute" | "GRPCRoute" | "TLSRoute" | "TCPRoute" => {
            let routes = routes(object);
            limit("spec.parentRefs", routes, "combinations with matches and backends")?;
            limit("spec.hostnames", routes, "combinations with matches and backends")
        }
        _ => Ok(()),
    }
}

/// Returns the number of combinations of a match and a backend in the rules of a route.
fn routes(object: &Value) -> usize {
    let rules = object.pointer("/spec/rules").and_then(Value::as_array);
    let combinations = |rule: &Value| {
        let count = |list| rule.get(list).and_then(Value::as_array).map_or(0, Vec::len).max(1);
        count("matches").saturating_mul(count("backendRefs"))
    };
    rules.into_iter().flatten().map(combinations).fold(0, usize::saturating_add)
}

struct EntryCounts<'a> {
    kind: &'a str,
    path: String,
    /// Total number of entries of all lists at a path.
    by_list: BTreeMap<String, usize>,
}

impl EntryCounts<'_> {
    fn add(&mut self, value: &Value) -> Result<(), Excess> {
        let end = self.path.len();
        match value {
            Value::Array(entries) => {
                self.limit(entries.len())?;
                match self.by_list.get_mut(&self.path) {
                    Some(count) => *count += entries.len(),
                    None => _ = self.by_list.insert(self.path.clone(), entries.len()),
                }
                self.path.push_str("[]");
                for entry in entries {
                    self.add(entry)?;
                }
            }
            Value::Object(entries) => {
                self.limit(entries.len())?;
                for (name, entry) in
                    entries.iter().filter(|(_, one)| one.is_array() || one.is_object())
                {
                    if end > 0 {
                        self.path.push('.');
                    }
                    self.path.push_str(name);
                    self.add(entry)?;
                    self.path.truncate(end);
                }
            }
            _ => {}
        }
        self.path.truncate(end);
        Ok(())
    }

    fn limit(&self, count: usize) -> Result<(), Excess> {
        let own = LISTS.iter().find(|(kind, list, _)| *kind == self.kind && *list == self.path);
        let max = own.map_or(ENTRIES_MAX, |(.., max)| *max);
        if count <= max {
            return Ok(());
        }
        Err(Excess { path: self.path.clone(), count, what: "entries", max })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::largest::repeated_fields;

    #[test]
    fn object_with_200_entries_of_any_list_is_accepted() {
        for field in repeated_fields() {
            let object = ObjectJson::from(field.object("shop", 200));
            let read = to_value(&field.key("shop"), &object);
            assert_eq!(read.err(), None, "{} {}", field.kind, field.field);
        }
    }

    #[test]
    fn highest_accepted_count_is_the_limit() {
        let spec = |count: usize| json!({"spec": {"exportTo": vec!["a"; count]}});
        assert_eq!(check("VirtualService", &spec(ENTRIES_MAX)), Ok(()));
        let excess = check("VirtualService", &spec(ENTRIES_MAX + 1)).expect_err("beyond");
        assert_eq!(
            format!("{}: {excess}", excess.path),
            "spec.exportTo: has 4097 entries, but an object may have at most 4096: split it into several objects"
        );
        let hosts = |count: usize| json!({"spec": {"hosts": vec!["a"; count]}});
        assert_eq!(check("VirtualService", &hosts(2048)), Ok(()));
        assert!(check("VirtualService", &hosts(2049)).is_err());
        assert_eq!(check("Gateway", &hosts(2049)), Ok(()));
    }

    #[test]
    fn objects_that_other_schemas_accept_are_within_the_limits() {
        // Gateway API: 32 parents, 16 hosts, 16 rules, 128 matches in total, and 16 backends per
        // rule.
        let rules =
            vec![json!({"matches": vec![json!({}); 8], "backendRefs": vec![json!({}); 16]}); 16];
        let spec = json!({"spec": {
            "parentRefs": vec![json!({}); 32], "hostnames": vec!["a"; 16], "rules": rules,
        }});
        assert_eq!(check("HTTPRoute", &spec), Ok(()));
        // Istio: 256 hosts, addresses and ports, 4096 endpoints and selector labels.
        for (list, count) in
            [("hosts", 256), ("addresses", 256), ("ports", 256), ("endpoints", 4096)]
        {
            let mut spec = json!({"spec": {"hosts": ["a"], "ports": [{}]}});
            spec["spec"][list] = vec![json!({}); count].into();
            assert_eq!(check("ServiceEntry", &spec), Ok(()), "{list}");
        }
    }

    #[test]
    fn lists_that_an_object_multiplies_have_a_common_limit() {
        let entry = |hosts: usize, addresses: usize| {
            let (hosts, addresses) = (vec!["a"; hosts], vec!["b"; addresses]);
            json!({"spec": {"hosts": hosts, "addresses": addresses, "ports": [{}]}})
        };
        assert_eq!(check("ServiceEntry", &entry(256, 255)), Ok(()));
        let excess = check("ServiceEntry", &entry(256, 256)).expect_err("beyond");
        assert_eq!((excess.path.as_str(), excess.count), ("spec.hosts", 65_792));
    }
}
