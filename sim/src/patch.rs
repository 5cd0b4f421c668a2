//! The supported patch types: merge patch, strategic merge patch, and server-side apply, which is
//! treated as a strategic merge without field ownership.

use serde_json::{Map, Value};

/// The type of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PatchForm {
    /// RFC 7386: a list replaces a list.
    Merge,
    /// Lists with a merge key are merged by it. `$` directives are supported.
    Strategic,
    /// Server-side apply: like a strategic merge, but an absent object is created.
    Apply,
}

impl PatchForm {
    pub(crate) fn of_media_type(media_type: &str) -> Option<PatchForm> {
        match media_type {
            "application/merge-patch+json" => Some(PatchForm::Merge),
            "application/strategic-merge-patch+json" => Some(PatchForm::Strategic),
            "application/apply-patch+yaml" => Some(PatchForm::Apply),
            _ => None,
        }
    }

    pub(crate) fn patch(self, mut target: Value, patch: Value) -> Value {
        match self {
            PatchForm::Merge => merge(&mut target, patch, None),
            PatchForm::Strategic | PatchForm::Apply => merge(&mut target, patch, Some("")),
        }
        target
    }
}

/// Merges `patch` into `target`. `path` is the current path, for example `spec.ports`; `None`
/// selects a plain merge patch.
fn merge(target: &mut Value, patch: Value, path: Option<&str>) {
    match (target, patch) {
        (target, Value::Object(patch)) => {
            if !target.is_object() {
                *target = Value::Object(Map::new());
            }
            let Value::Object(fields) = target else { return };
            if path.is_some() && patch.get("$patch").is_some_and(|d| d == "replace") {
                fields.clear();
            }
            for (key, value) in patch {
                if path.is_some() && key.starts_with('$') {
                    continue;
                }
                match value {
                    Value::Null => {
                        fields.remove(&key);
                    }
                    value => {
                        let inner = path.map(|path| match path {
                            "" => key.clone(),
                            path => format!("{path}.{key}"),
                        });
                        merge(fields.entry(key).or_insert(Value::Null), value, inner.as_deref());
                    }
                }
            }
        }
        (Value::Array(items), Value::Array(patch)) => {
            match path.and_then(|path| merge_key(path, &patch)) {
                Some(key) => merge_list(items, patch, path.unwrap_or_default(), key),
                None => *items = patch,
            }
        }
        (target, patch) => *target = patch,
    }
}

fn merge_list(items: &mut Vec<Value>, patch: Vec<Value>, path: &str, key: &str) {
    for change in patch {
        let place = items.iter().position(|item| item[key] == change[key]);
        match (place, change["$patch"] == "delete") {
            (Some(index), true) => {
                items.remove(index);
            }
            (Some(index), false) => merge(&mut items[index], change, Some(path)),
            (None, true) => {}
            (None, false) => {
                let mut item = Value::Null;
                merge(&mut item, change, Some(path));
                items.push(item);
            }
        }
    }
}

/// Returns the merge keys of the supported built-in types.
fn merge_key(path: &str, patch: &[Value]) -> Option<&'static str> {
    let key = match path {
        // Lists of ports at the top level of an EndpointSlice are replaced as a whole.
        "spec.ports" => "port",
        "spec.taints" => "key",
        "status.conditions" | "status.addresses" => "type",
        "metadata.ownerReferences" => "uid",
        _ => match path.rsplit('.').next()? {
            "ports" if path.ends_with("ontainers.ports") => "containerPort",
            "containers" | "initContainers" | "volumes" | "env" | "imagePullSecrets" => "name",
            _ => return None,
        },
    };
    patch.iter().all(|item| item.get(key).is_some()).then_some(key)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_form_follows_its_rules() {
        let service = json!({"metadata": {"labels": {"a": "1"}}, "spec": {"ports": [{"port": 80, "name": "x"}]}});
        let cases = [
            (
                PatchForm::Merge,
                json!({"metadata": {"labels": {"a": null}}, "spec": {"ports": [{"port": 81}]}}),
                json!({"metadata": {"labels": {}}, "spec": {"ports": [{"port": 81}]}}),
            ),
            (
                PatchForm::Strategic,
                json!({"spec": {"$setElementOrder/ports": [], "ports": [{"port": 81}, {"port": 80, "name": "y"}]}}),
                json!({"metadata": {"labels": {"a": "1"}}, "spec": {"ports": [{"port": 80, "name": "y"}, {"port": 81}]}}),
            ),
            (
                PatchForm::Strategic,
                json!({"spec": {"ports": [{"port": 80, "$patch": "delete"}]}}),
                json!({"metadata": {"labels": {"a": "1"}}, "spec": {"ports": []}}),
            ),
        ];
        for (form, patch, expected) in cases {
            assert_eq!(form.patch(service.clone(), patch.clone()), expected, "{form:?} {patch}");
        }
    }
}
