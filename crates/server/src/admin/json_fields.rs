//! Differences between two resources by field, in Envoy's JSON form.

use std::collections::BTreeMap;

use serde_json::Value;

use strait_admin_api::ChangedField;

/// Maximum number of reported fields per resource.
const FIELDS_MAX: usize = 50;
/// Maximum number of characters of a value.
const VALUE_CHARS_MAX: usize = 300;

/// Returns the first fields in which two values differ. Items of lists are compared by name if all
/// have a unique one.
pub(super) fn changed_fields(old: &Value, new: &Value) -> Vec<ChangedField> {
    let mut found = Vec::new();
    compare("", Some(old), Some(new), &mut found);
    found
}

fn compare(path: &str, old: Option<&Value>, new: Option<&Value>, found: &mut Vec<ChangedField>) {
    if old == new || found.len() >= FIELDS_MAX {
        return;
    }
    match (old, new) {
        (Some(Value::Object(old)), Some(Value::Object(new))) => {
            let names = old.keys().chain(new.keys().filter(|name| !old.contains_key(*name)));
            for name in names {
                let dot = if path.is_empty() { "" } else { "." };
                compare(&format!("{path}{dot}{name}"), old.get(name), new.get(name), found);
            }
        }
        (Some(Value::Array(old)), Some(Value::Array(new))) => match (by_name(old), by_name(new)) {
            (Some(old), Some(new)) => {
                let names = old.keys().chain(new.keys().filter(|name| !old.contains_key(*name)));
                for name in names {
                    let [old, new] = [&old, &new].map(|all| all.get(name).copied());
                    compare(&format!("{path}[{name}]"), old, new, found);
                }
            }
            _ => {
                for at in 0..old.len().max(new.len()) {
                    compare(&format!("{path}[{at}]"), old.get(at), new.get(at), found);
                }
            }
        },
        _ => {
            let told = |value: Option<&Value>| value.map(|value| shortened(&value.to_string()));
            found.push(ChangedField { path: path.to_owned(), before: told(old), after: told(new) });
        }
    }
}

/// Returns the items of a list by name, if each has a unique one.
fn by_name(items: &[Value]) -> Option<BTreeMap<&str, &Value>> {
    let named = items.iter().map(|one| Some((one.get("name")?.as_str()?, one)));
    let named: BTreeMap<_, _> = named.collect::<Option<_>>()?;
    (named.len() == items.len()).then_some(named)
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn list_items_are_compared_by_name_or_by_position() {
        let old = json!({
            "name": "80",
            "virtual_hosts": [
                { "name": "a", "routes": [{ "timeout": "1s" }, { "cluster": "x" }] },
                { "name": "b", "domains": ["b"] },
            ],
        });
        let new = json!({
            "name": "80",
            "virtual_hosts": [
                { "name": "c", "domains": [] },
                { "name": "a", "routes": [{ "timeout": "2s", "retry": true }] },
            ],
        });
        let field = |path: &str, before: Option<&str>, after: Option<&str>| ChangedField {
            path: path.into(),
            before: before.map(str::to_owned),
            after: after.map(str::to_owned),
        };
        let expected = [
            field("virtual_hosts[a].routes[0].timeout", Some("\"1s\""), Some("\"2s\"")),
            field("virtual_hosts[a].routes[0].retry", None, Some("true")),
            field("virtual_hosts[a].routes[1]", Some("{\"cluster\":\"x\"}"), None),
            field("virtual_hosts[b]", Some("{\"domains\":[\"b\"],\"name\":\"b\"}"), None),
            field("virtual_hosts[c]", None, Some("{\"domains\":[],\"name\":\"c\"}")),
        ];
        assert_eq!(changed_fields(&old, &new), expected);
        assert_eq!(changed_fields(&old, &old), []);
        let many = |value: u32| json!((0..200).map(|_| value).collect::<Vec<_>>());
        assert_eq!(changed_fields(&many(1), &many(2)).len(), FIELDS_MAX);
        let long = changed_fields(&json!("ü".repeat(400)), &json!(1));
        assert_eq!(long[0].before.as_ref().map(|text| text.chars().count()), Some(301));
    }
}
