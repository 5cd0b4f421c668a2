//! A YAML mapping from which fields are taken one by one, so that each error has its field and
//! line.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::DeserializeOwned;
use serde_saphyr::Spanned;

use super::protobuf_json;

/// Why a text is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct InvalidYaml {
    /// The line, starting at 1, if known.
    pub line: Option<u64>,
    /// The field, for example `networks.n1.gateways[0].port`; empty if the text is no valid YAML.
    pub field: String,
    /// The problem.
    pub fact: String,
}

impl fmt::Display for InvalidYaml {
    /// Formats it as `line 3, connectTimeout: expected …`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}")?;
            f.write_str(if self.field.is_empty() { ": " } else { ", " })?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.fact)
    }
}

/// The fields of a mapping that have not been taken yet.
pub(super) struct YamlFields(BTreeMap<String, Spanned<serde_json::Value>>);

impl YamlFields {
    /// Parses a text in a form of protobuf's JSON, as YAML; an empty one has no fields.
    pub(super) fn parse(text: &str) -> Result<Self, InvalidYaml> {
        let written = parse::<Option<BTreeMap<String, Spanned<serde_json::Value>>>>(text)?;
        let mut fields = BTreeMap::new();
        for (written, mut field) in written.unwrap_or_default() {
            let name = match protobuf_json::camel_case(&written) {
                Some(name) if !fields.contains_key(&name) => name,
                _ => written,
            };
            protobuf_json::normalize(&name, &mut field.value);
            fields.insert(name, field);
        }
        Ok(Self(fields))
    }

    /// Takes a field; returns `None` if it is missing or null.
    pub(super) fn take<T: DeserializeOwned>(
        &mut self,
        name: &str,
    ) -> Result<Option<T>, InvalidYaml> {
        self.take_with(name, Ok)
    }

    /// Takes a field and converts it; the error of `convert` becomes the reported problem.
    pub(super) fn take_with<T: DeserializeOwned, U>(
        &mut self,
        name: &str,
        convert: impl FnOnce(T) -> Result<U, String>,
    ) -> Result<Option<U>, InvalidYaml> {
        let Some(Spanned { value, referenced, .. }) = self.0.remove(name) else { return Ok(None) };
        if value.is_null() {
            return Ok(None);
        }
        serde_json::from_value(value)
            .map_err(|error| error.to_string())
            .and_then(convert)
            .map(Some)
            .map_err(|fact| InvalidYaml {
                line: Some(referenced.line()),
                field: name.to_owned(),
                fact,
            })
    }

    /// Returns the names of the fields that were not taken.
    pub(super) fn into_remaining(self) -> Vec<String> {
        self.0.into_keys().collect()
    }
}

/// Parses one YAML document.
pub(super) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, InvalidYaml> {
    serde_saphyr::from_str(text).map_err(|error| {
        let line = error.location().map(|location| location.line()).filter(|line| *line > 0);
        InvalidYaml { line, field: String::new(), fact: first_line(error.without_snippet()) }
    })
}

/// Returns the message in one line, without the location, which [`InvalidYaml`] contains
/// separately.
fn first_line(error: &serde_saphyr::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    let end = line.find(" at line ").unwrap_or(line.len());
    plain(line.get(..end).unwrap_or(line)).to_owned()
}

/// Removes advice for programmers from the parser's message.
pub(crate) fn plain(fact: &str) -> &str {
    let fact = fact.strip_prefix("error: ").unwrap_or(fact);
    let advice = [", set DuplicateKeyPolicy", "; use from_str_multiple"];
    let end = advice.iter().filter_map(|start| fact.find(start)).min();
    end.and_then(|end| fact.get(..end)).unwrap_or(fact)
}
