//! Label and field selectors: parsed once per request, evaluated once per object.

use serde_json::Value;

use crate::object::Object;
use crate::resource::Resource;
use crate::status::ApiError;
use crate::stencil::is_marked;

/// The selector of a list or watch.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Selector {
    namespace: Option<String>,
    labels: Vec<LabelRequirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Debug, Clone, PartialEq)]
struct LabelRequirement {
    key: String,
    test: LabelTest,
}

#[derive(Debug, Clone, PartialEq)]
enum LabelTest {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
}

#[derive(Debug, Clone, PartialEq)]
struct FieldRequirement {
    field: String,
    value: String,
    equal: bool,
}

impl Selector {
    /// Parses the selectors of a request in the formats that Kubernetes documents. Empty text
    /// selects all.
    pub(crate) fn parse(
        resource: &Resource,
        namespace: Option<&str>,
        labels: &str,
        fields: &str,
    ) -> Result<Selector, ApiError> {
        let labels = split_outside_parentheses(labels)
            .map(|text| {
                LabelRequirement::parse(text).ok_or_else(|| {
                    ApiError::bad_request(format!("unable to parse requirement: {text:?}"))
                })
            })
            .collect::<Result<_, _>>()?;
        let fields = fields
            .split(',')
            .map(str::trim)
            .filter(|text| !text.is_empty())
            .map(|text| FieldRequirement::parse(resource, text))
            .collect::<Result<_, _>>()?;
        Ok(Selector { namespace: namespace.map(str::to_owned), labels, fields })
    }

    pub(crate) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Returns whether only the namespace restricts the selection.
    pub(crate) fn is_plain(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Returns whether `object` is selected. Objects are stored encoded, so a selector on more than
    /// names must decode them. Such selectors are rare, and storing decoded objects would need much
    /// memory.
    pub(crate) fn matches(&self, object: &Object) -> bool {
        if self.namespace.as_ref().is_some_and(|namespace| **namespace != *object.name.namespace) {
            return false;
        }
        if self.is_plain() {
            return true;
        }
        match object.shared().filter(|shared| !self.uses_marks(shared)) {
            Some(shared) => self.selects(shared),
            None => self.selects(&object.selectable()),
        }
    }

    fn selects(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.labels.iter().all(|requirement| requirement.matches(labels))
            && self.fields.iter().all(|requirement| requirement.matches(object))
    }

    /// Returns whether the selector uses a field that differs between similar objects.
    fn uses_marks(&self, shared: &Value) -> bool {
        let labels = &shared["metadata"]["labels"];
        let mut values = (self.labels.iter().map(|requirement| labels.get(&requirement.key)))
            .chain(self.fields.iter().map(|requirement| requirement.found_in(shared)));
        values.any(|value| value.and_then(Value::as_str).is_some_and(is_marked))
    }
}

impl LabelRequirement {
    fn parse(text: &str) -> Option<LabelRequirement> {
        let requirement = |key: &str, test| {
            let key = key.trim();
            let plausible = !key.is_empty() && !key.contains(|c: char| c.is_whitespace());
            plausible.then(|| LabelRequirement { key: key.to_owned(), test })
        };
        if let Some((key, value)) = text.split_once("!=") {
            return requirement(key, LabelTest::NotIn(vec![value.trim().to_owned()]));
        }
        if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
            return requirement(key, LabelTest::In(vec![value.trim().to_owned()]));
        }
        if let Some((head, set)) = text.split_once('(') {
            let values = set
                .trim_end()
                .strip_suffix(')')?
                .split(',')
                .map(|value| value.trim().to_owned())
                .collect();
            let mut words = head.split_whitespace();
            let (key, operator) = (words.next()?, words.next()?);
            return match operator {
                "in" => requirement(key, LabelTest::In(values)),
                "notin" => requirement(key, LabelTest::NotIn(values)),
                _ => None,
            };
        }
        match text.strip_prefix('!') {
            Some(key) => requirement(key, LabelTest::Absent),
            None => requirement(text, LabelTest::Exists),
        }
    }

    fn matches(&self, labels: &Value) -> bool {
        let value = labels.get(&self.key).and_then(Value::as_str);
        let among =
            |values: &[String]| value.is_some_and(|value| values.iter().any(|v| v == value));
        match &self.test {
            LabelTest::In(values) => among(values),
            LabelTest::NotIn(values) => !among(values),
            LabelTest::Exists => value.is_some(),
            LabelTest::Absent => value.is_none(),
        }
    }
}

impl FieldRequirement {
    fn parse(resource: &Resource, text: &str) -> Result<FieldRequirement, ApiError> {
        let (field, value, equal) = if let Some((field, value)) = text.split_once("!=") {
            (field, value, false)
        } else if let Some((field, value)) = text.split_once("==").or_else(|| text.split_once('='))
        {
            (field, value, true)
        } else {
            return Err(ApiError::bad_request(format!("invalid selector: '{text}'")));
        };
        if !is_selectable(resource, field) {
            return Err(ApiError::bad_request(format!("field label not supported: {field}")));
        }
        Ok(FieldRequirement { field: field.to_owned(), value: value.to_owned(), equal })
    }

    fn matches(&self, object: &Value) -> bool {
        let found = match self.found_in(object) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Null) | None => String::new(),
            Some(other) => other.to_string(),
        };
        (found == self.value) == self.equal
    }

    fn found_in<'a>(&self, object: &'a Value) -> Option<&'a Value> {
        self.field.split('.').try_fold(object, |value, part| value.get(part))
    }
}

/// Returns whether a field is selectable. A real server indexes a few fields of each kind and
/// rejects all others.
fn is_selectable(resource: &Resource, field: &str) -> bool {
    if field == "metadata.name" || (field == "metadata.namespace" && resource.namespaced) {
        return true;
    }
    let fields: &[&str] = match resource.plural {
        "pods" => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.serviceAccountName",
            "status.phase",
            "status.podIP",
        ],
        "secrets" => &["type"],
        "services" => &["spec.clusterIP", "spec.type"],
        "namespaces" => &["status.phase"],
        "nodes" => &["spec.unschedulable"],
        "events" => &[
            "involvedObject.kind",
            "involvedObject.name",
            "involvedObject.namespace",
            "reason",
            "type",
        ],
        _ => &[],
    };
    fields.contains(&field)
}

/// Splits at commas outside of parentheses: `a in (x,y),b` contains two requirements.
fn split_outside_parentheses(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn selects(labels: &str, fields: &str) -> Result<bool, ApiError> {
        let pods = Resource::by_name("pods").expect("a row");
        let object = Object::new(
            7,
            json!({
                "metadata": {"namespace": "shop", "name": "cart-1", "labels": {"app": "cart", "v": "2"}},
                "status": {"phase": "Running"},
            }),
        );
        Ok(Selector::parse(pods, Some("shop"), labels, fields)?.matches(&object))
    }

    #[test]
    fn selectors_choose_as_kubernetes_documents_them() {
        let cases = [
            ("", "", true),
            ("app=cart", "", true),
            ("app==cart,v=2", "", true),
            ("app!=cart", "", false),
            ("tier!=web", "", true),
            ("app in (cart, pay),v notin (1)", "", true),
            ("app notin (cart)", "", false),
            ("app", "", true),
            ("!app", "", false),
            ("!tier", "", true),
            ("", "metadata.name=cart-1", true),
            ("", "metadata.name=cart-2", false),
            ("", "status.phase=Running,metadata.namespace=shop", true),
            ("", "status.phase!=Running", false),
            ("", "spec.nodeName=", true),
        ];
        for (labels, fields, expected) in cases {
            assert_eq!(selects(labels, fields), Ok(expected), "{labels} {fields}");
        }
    }

    #[test]
    fn invalid_selectors_are_refused() {
        for (labels, fields) in [("a b", ""), ("a near (b)", ""), ("", "spec.x=1"), ("", "name")] {
            assert_eq!(selects(labels, fields).map_err(|e| e.code), Err(400), "{labels} {fields}");
        }
    }
}
