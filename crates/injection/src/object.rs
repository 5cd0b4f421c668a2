//! Ways into a JSON object whose shape nobody has checked yet.

use serde_json::{Map, Value};

use super::refusal::InjectRefusal;
use strait_base::codes;

/// Fields of an object.
pub(super) type Fields = Map<String, Value>;

/// The object under `key`, made where there is none.
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

/// The list under `key`, made where there is none.
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

/// The elements of the list under `key`; none where there is no list.
pub(super) fn items<'a>(parent: &'a Value, key: &str) -> &'a [Value] {
    parent[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The text under `key`.
pub(super) fn text<'a>(parent: &'a Value, key: &str) -> Option<&'a str> {
    parent[key].as_str()
}

pub(super) fn misshapen(key: &str, wanted: &str) -> InjectRefusal {
    InjectRefusal::new(&codes::INJECT_MISSHAPEN, format!("its field {key} is not {wanted}"))
}
