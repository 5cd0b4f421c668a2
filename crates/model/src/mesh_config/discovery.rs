//! `discoverySelectors` of the mesh config and of the policy file: Kubernetes label selectors on
//! namespaces.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::{LabelCondition, LabelSelector, Labels, NamespaceFilter, Test};

/// A selector as written.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawSelector {
    #[serde(default)]
    match_labels: Labels,
    #[serde(default)]
    match_expressions: Vec<RawExpression>,
}

#[derive(Deserialize)]
struct RawExpression {
    key: Arc<str>,
    operator: String,
    #[serde(default)]
    values: BTreeSet<Arc<str>>,
}

/// A selector of the policy file, in which unknown fields are refused.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct StrictSelector {
    #[serde(default)]
    match_labels: Labels,
    #[serde(default)]
    match_expressions: Vec<StrictExpression>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StrictExpression {
    key: Arc<str>,
    operator: String,
    #[serde(default)]
    values: BTreeSet<Arc<str>>,
}

/// Parses the selectors of the policy file.
///
/// # Errors
/// As [`read`].
pub(crate) fn read_strict(selectors: Vec<StrictSelector>) -> Result<NamespaceFilter, String> {
    let expression = |strict: StrictExpression| {
        let StrictExpression { key, operator, values } = strict;
        RawExpression { key, operator, values }
    };
    let selectors = selectors.into_iter().map(|strict| RawSelector {
        match_labels: strict.match_labels,
        match_expressions: strict.match_expressions.into_iter().map(expression).collect(),
    });
    read(selectors.collect())
}

/// Parses the selectors.
///
/// # Errors
/// Returns the problem of the first invalid selector; none of them is used then.
pub(super) fn read(selectors: Vec<RawSelector>) -> Result<NamespaceFilter, String> {
    let selectors = selectors.into_iter().map(selector);
    Ok(NamespaceFilter { selectors: selectors.collect::<Result<_, String>>()? })
}

/// Parses a selector.
///
/// # Errors
/// Returns the first problem.
pub(super) fn selector(raw: RawSelector) -> Result<LabelSelector, String> {
    let conditions = raw.match_expressions.into_iter().map(condition);
    Ok(LabelSelector {
        labels: raw.match_labels,
        conditions: conditions.collect::<Result<_, String>>()?,
    })
}

fn condition(raw: RawExpression) -> Result<LabelCondition, String> {
    let RawExpression { key, operator, values } = raw;
    if key.is_empty() {
        return Err("the key of a label is missing (key)".into());
    }
    let test = match (operator.as_str(), values.is_empty()) {
        ("In", false) => Test::In(values),
        ("NotIn", false) => Test::NotIn(values),
        ("Exists", true) => Test::Exists,
        ("DoesNotExist", true) => Test::DoesNotExist,
        ("In" | "NotIn", true) => return Err(format!("{operator} on {key} needs values")),
        ("Exists" | "DoesNotExist", false) => {
            return Err(format!("{operator} on {key} takes no values"));
        }
        _ => {
            return Err(format!(
                "operator {operator:?} on {key} is unknown; expected In, NotIn, Exists or DoesNotExist"
            ));
        }
    };
    Ok(LabelCondition { key, test })
}

/// Returns the selectors in Istio's terms.
pub(super) fn to_json(filter: &NamespaceFilter) -> Value {
    filter.selectors.iter().map(selector_to_json).collect()
}

/// Returns a selector in Kubernetes's terms.
pub(super) fn selector_to_json(selector: &LabelSelector) -> Value {
    let conditions = selector.conditions.iter().map(|LabelCondition { key, test }| match test {
        Test::In(values) => json!({"key": key, "operator": "In", "values": values}),
        Test::NotIn(values) => json!({"key": key, "operator": "NotIn", "values": values}),
        Test::Exists => json!({"key": key, "operator": "Exists"}),
        Test::DoesNotExist => json!({"key": key, "operator": "DoesNotExist"}),
    });
    let conditions: Vec<Value> = conditions.collect();
    json!({"matchLabels": selector.labels, "matchExpressions": conditions})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(text: &str) -> Result<NamespaceFilter, String> {
        read(serde_json::from_str(text).expect("selectors"))
    }

    #[test]
    fn namespace_belongs_to_the_mesh_if_any_selector_matches_completely() {
        let labels = |pairs: &[(&str, &str)]| -> Labels {
            pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
        };
        let mesh = labels(&[("mesh", "on"), ("team", "a")]);
        let other = labels(&[("team", "b")]);
        let cases = [
            ("[]", true, true),
            ("[{}]", true, true),
            (r#"[{"matchLabels": {"mesh": "on"}}]"#, true, false),
            (r#"[{"matchLabels": {"mesh": "on", "team": "b"}}]"#, false, false),
            (r#"[{"matchLabels": {"mesh": "on"}}, {"matchLabels": {"team": "b"}}]"#, true, true),
            (
                r#"[{"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "c"]}]}]"#,
                true,
                false,
            ),
            (
                r#"[{"matchExpressions": [{"key": "mesh", "operator": "NotIn", "values": ["on"]}]}]"#,
                false,
                true,
            ),
            (r#"[{"matchExpressions": [{"key": "mesh", "operator": "Exists"}]}]"#, true, false),
            (
                r#"[{"matchLabels": {"team": "b"}, "matchExpressions": [{"key": "mesh", "operator": "DoesNotExist"}]}]"#,
                false,
                true,
            ),
        ];
        for (text, first, second) in cases {
            let filter = filter(text).expect(text);
            assert_eq!((filter.admits(&mesh), filter.admits(&other)), (first, second), "{text}");
            let reparsed = self::filter(&to_json(&filter).to_string());
            assert_eq!(reparsed, Ok(filter), "{text}");
        }
    }

    #[test]
    fn invalid_selector_is_reported() {
        for (expression, part) in [
            (r#"{"key": "a", "operator": "Is"}"#, "\"Is\""),
            (r#"{"key": "a", "operator": "In"}"#, "needs values"),
            (r#"{"key": "a", "operator": "Exists", "values": ["b"]}"#, "takes no values"),
            (r#"{"key": "", "operator": "Exists"}"#, "missing"),
        ] {
            let error = filter(&format!(r#"[{{"matchExpressions": [{expression}]}}]"#));
            let error = error.expect_err(expression);
            assert!(error.contains(part), "{error}");
        }
    }
}
