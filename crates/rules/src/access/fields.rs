//! Parses the fields of an object, and reports each fault with its path.
//!
//! An unknown field of an AuthorizationPolicy or PeerAuthentication is a fault: it may be a
//! condition whose name is misspelt, without which a rule would allow more than intended. An
//! unknown field of a RequestAuthentication is a fault if it restricts access. Other unknown fields
//! are ignored with a warning.

use serde_json::{Map, Value};

use super::object::AccessFault;
use strait_base::codes;

/// Word prefixes that mark a field as restricting: it demands, forbids, selects or limits
/// something.
const RESTRICTING_WORDS: [&str; 38] = [
    "accept",
    "age",
    "algorithm",
    "allow",
    "audience",
    "bind",
    "block",
    "claim",
    "condition",
    "demand",
    "deny",
    "enforce",
    "except",
    "exclude",
    "expir",
    "forbid",
    "from",
    "include",
    "issuer",
    "jwks",
    "key",
    "limit",
    "mandatory",
    "match",
    "max",
    "min",
    "mtls",
    "must",
    "needs",
    "only",
    "presence",
    "reject",
    "require",
    "restrict",
    "selector",
    "strict",
    "valid",
    "verif",
];

/// Returns whether an unknown field must be treated as restricting access, judged by the words of
/// its name and its value.
pub(super) fn restricts(name: &str, value: &Value) -> bool {
    if matches!(value, Value::Null | Value::Bool(false)) {
        return false;
    }
    let is_restricting = |text: &str| {
        words(text).any(|word| RESTRICTING_WORDS.iter().any(|start| word.starts_with(start)))
    };
    if is_restricting(name) {
        return true;
    }
    match value {
        // A value of several words is a description.
        Value::String(text) => !text.contains(char::is_whitespace) && is_restricting(text),
        Value::Object(fields) => fields.iter().any(|(name, value)| restricts(name, value)),
        Value::Array(items) => items.iter().any(|item| restricts("", item)),
        _ => false,
    }
}

/// Returns the words of a name such as `maxTokenAge`, `max_token_age` or `REQUIRED`, in lower case.
fn words(name: &str) -> impl Iterator<Item = String> {
    let mut divided = String::with_capacity(name.len());
    let mut was_lower = false;
    for character in name.chars() {
        if character.is_uppercase() && was_lower {
            divided.push(' ');
        }
        was_lower = character.is_lowercase();
        divided.push(if character.is_alphanumeric() {
            character.to_ascii_lowercase()
        } else {
            ' '
        });
    }
    divided.split_whitespace().map(str::to_owned).collect::<Vec<_>>().into_iter()
}

/// Returns the fields of an object like [`fields`], but an unknown field is a fault only if it
/// restricts access. Any other is a warning. Also returns whether an unknown field restricts
/// access.
pub(super) fn lenient_fields<'a>(
    value: &'a Value,
    path: &str,
    known_fields: &[&str],
    faults: &mut Vec<AccessFault>,
) -> Option<(&'a Map<String, Value>, bool)> {
    let Some(fields) = value.as_object() else {
        faults.push(AccessFault::unreadable(path, format!("expected fields, found {value}")));
        return None;
    };
    let mut has_restricting = false;
    for (name, value) in fields.iter().filter(|(name, _)| !known_fields.contains(&name.as_str())) {
        let path = format!("{path}.{name}");
        if restricts(name, value) {
            has_restricting = true;
            let text = "this field is unknown and may restrict access, so everything that it may \
                        forbid is refused";
            faults.push(AccessFault::unreadable(path, text));
        } else {
            let text = format!(
                "this field is unknown and ignored; known fields are {}",
                known_fields.join(", ")
            );
            faults.push(AccessFault::warning(&codes::ACCESS_NO_EFFECT, path, text));
        }
    }
    Some((fields, has_restricting))
}

/// Returns the fields of an object; `None` if the value is not an object. Each unknown field is a
/// fault.
pub(super) fn fields<'a>(
    value: &'a Value,
    path: &str,
    known_fields: &[&str],
    faults: &mut Vec<AccessFault>,
) -> Option<&'a Map<String, Value>> {
    let Some(fields) = value.as_object() else {
        faults.push(AccessFault::unreadable(path, format!("expected fields, found {value}")));
        return None;
    };
    for name in fields.keys().filter(|name| !known_fields.contains(&name.as_str())) {
        let text = format!("this field is unknown; known fields are {}", known_fields.join(", "));
        faults.push(AccessFault::unreadable(format!("{path}.{name}"), text));
    }
    Some(fields)
}

/// Returns a field if it exists and is not null.
pub(super) fn present<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

/// Returns the items of a list.
///
/// # Errors
/// The value is not a list, or the list is empty.
pub(super) fn items<'a>(value: &'a Value, path: &str) -> Result<&'a [Value], AccessFault> {
    match value.as_array() {
        Some(items) if !items.is_empty() => Ok(items),
        Some(_) => Err(AccessFault::unreadable(path, "is empty")),
        None => Err(AccessFault::unreadable(path, format!("expected a list, found {value}"))),
    }
}

/// Returns the strings of a list.
///
/// # Errors
/// The value is not a list of strings, or a string is empty.
pub(super) fn texts<'a>(value: &'a Value, path: &str) -> Result<Vec<&'a str>, AccessFault> {
    let text = |(at, item): (usize, &'a Value)| match item.as_str() {
        Some("") => Err(AccessFault::unreadable(format!("{path}[{at}]"), "is empty")),
        Some(text) => Ok(text),
        None => {
            let fact = format!("expected text, found {item}");
            Err(AccessFault::unreadable(format!("{path}[{at}]"), fact))
        }
    };
    items(value, path)?.iter().enumerate().map(text).collect()
}
