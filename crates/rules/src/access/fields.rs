//! Reading the fields of an object, each fault with its path.
//!
//! A field that nobody knows is a fault: it may be a condition whose name is misspelt, without which a rule would let
//! in more than it says.

use serde_json::{Map, Value};

use super::object::AccessFault;

/// The fields of an object of which only these are known; `None` where it is none.
pub(super) fn fields<'a>(
    value: &'a Value,
    path: &str,
    known: &[&str],
    faults: &mut Vec<AccessFault>,
) -> Option<&'a Map<String, Value>> {
    let Some(fields) = value.as_object() else {
        faults.push(AccessFault::unreadable(path, format!("expected fields, found {value}")));
        return None;
    };
    for name in fields.keys().filter(|name| !known.contains(&name.as_str())) {
        let text = format!("nobody knows this field; there are {}", known.join(", "));
        faults.push(AccessFault::unreadable(format!("{path}.{name}"), text));
    }
    Some(fields)
}

/// A field that is there and isn't null.
pub(super) fn present<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

/// The items of a list; a fault where it is none, or has none.
pub(super) fn items<'a>(value: &'a Value, path: &str) -> Result<&'a [Value], AccessFault> {
    match value.as_array() {
        Some(items) if !items.is_empty() => Ok(items),
        Some(_) => Err(AccessFault::unreadable(path, "is there and empty")),
        None => Err(AccessFault::unreadable(path, format!("expected a list, found {value}"))),
    }
}

/// The texts of a list, none of them empty.
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
