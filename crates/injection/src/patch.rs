//! Differences between two JSON values as a JSON Patch (RFC 6902).

use serde_json::{Value, json};

/// Returns the patch that turns `before` into `after`. Objects are compared by field. Lists are compared as a whole,
/// because their elements have no names here.
pub(super) fn difference(before: &Value, after: &Value) -> Vec<Value> {
    let mut patch = Vec::new();
    compare(before, after, String::new(), &mut patch);
    patch
}

fn compare(before: &Value, after: &Value, path: String, patch: &mut Vec<Value>) {
    let (Value::Object(old), Value::Object(new)) = (before, after) else {
        if before != after {
            patch.push(json!({ "op": "replace", "path": path, "value": after }));
        }
        return;
    };
    let below = |key: &str| format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.push(json!({ "op": "remove", "path": below(key) }));
    }
    for (key, value) in new {
        match old.get(key) {
            None => patch.push(json!({ "op": "add", "path": below(key), "value": value })),
            Some(before) => compare(before, value, below(key), patch),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_added_replaced_and_removed_by_their_escaped_names() {
        let before = json!({
            "metadata": { "labels": { "a/b": "1", "c~d": "2" } },
            "spec": { "containers": [{ "name": "app" }], "old": 1 },
        });
        let after = json!({
            "metadata": { "labels": { "a/b": "9", "c~d": "2" }, "annotations": { "x/y": "z" } },
            "spec": { "containers": [{ "name": "app" }, { "name": "proxy" }] },
        });
        let patch = difference(&before, &after);
        assert_eq!(
            patch,
            [
                json!({ "op": "add", "path": "/metadata/annotations", "value": { "x/y": "z" } }),
                json!({ "op": "replace", "path": "/metadata/labels/a~1b", "value": "9" }),
                json!({ "op": "remove", "path": "/spec/old" }),
                json!({ "op": "replace", "path": "/spec/containers", "value": after["spec"]["containers"] }),
            ]
        );
        assert!(difference(&after, &after).is_empty());
    }
}
