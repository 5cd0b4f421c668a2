//! Accessors for JSON objects of unknown shape.

use serde_json::{Map, Value};

use super::refusal::InjectRefusal;
use strait_base::codes;

/// The fields of an object.
pub(super) type Fields = Map<String, Value>;

/// Returns the object under `key`, and creates it if it is absent or null.
pub(super) fn object<'a>(
    parent: &'a mut Fields,
    key: &str,
) -> Result<&'a mut Fields, InjectRefusal> {
    let value = parent.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().ok_or_else(|| misshapen(key, "an object"))
}

/// Returns the list under `key`, and creates it if it is absent or null.
pub(super) fn list<'a>(
    parent: &'a mut Fields,
    key: &str,
) -> Result<&'a mut Vec<Value>, InjectRefusal> {
    let value = parent.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = Value::Array(Vec::new());
    }
    value.as_array_mut().ok_or_else(|| misshapen(key, "a list"))
}

/// Returns the elements of the list under `key`, or an empty slice if `key` holds no list.
pub(super) fn items<'a>(parent: &'a Value, key: &str) -> &'a [Value] {
    parent[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Returns the string under `key`.
pub(super) fn text<'a>(parent: &'a Value, key: &str) -> Option<&'a str> {
    parent[key].as_str()
}

pub(super) fn misshapen(key: &str, wanted: &str) -> InjectRefusal {
    InjectRefusal::new(&codes::INJECT_MISSHAPEN, format!("its field {key} is not {wanted}"))
}
