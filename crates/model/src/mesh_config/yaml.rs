//! A YAML mapping taken apart field by field, so that each error names its field and line.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::DeserializeOwned;
use serde_saphyr::Spanned;

/// Why a text can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct InvalidYaml {
    /// The line, from 1, where it is known.
    pub line: Option<u64>,
    /// The field, such as `networks.n1.gateways[0].port`; empty where the text is no YAML at all.
    pub field: String,
    /// What is wrong with it.
    pub fact: String,
}

impl fmt::Display for InvalidYaml {
    /// `line 3, connectTimeout: expected …`
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
    /// Reads a text; an empty one has no fields.
    pub(super) fn parse(text: &str) -> Result<Self, InvalidYaml> {
        parse::<Option<BTreeMap<String, Spanned<serde_json::Value>>>>(text)
            .map(|fields| Self(fields.unwrap_or_default()))
    }

    /// Takes a field out; `None` where it is not set, or null.
    pub(super) fn take<T: DeserializeOwned>(
        &mut self,
        name: &str,
    ) -> Result<Option<T>, InvalidYaml> {
        self.take_with(name, Ok)
    }

    /// Takes a field out and converts it; the error of `convert` is the fact reported.
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

    /// Names of the fields nobody took.
    pub(super) fn left(self) -> Vec<String> {
        self.0.into_keys().collect()
    }
}

/// Reads one YAML document.
pub(super) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, InvalidYaml> {
    serde_saphyr::from_str(text).map_err(|error| {
        let line = error.location().map(|location| location.line()).filter(|line| *line > 0);
        InvalidYaml { line, field: String::new(), fact: fact_of(error.without_snippet()) }
    })
}

/// The message in one line, without the location that [`InvalidYaml`] states by itself.
fn fact_of(error: &serde_saphyr::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    let end = line.find(" at line ").unwrap_or(line.len());
    plain(line.get(..end).unwrap_or(line)).to_owned()
}

/// What the parser says, without its advice to programmers.
pub(crate) fn plain(fact: &str) -> &str {
    let fact = fact.strip_prefix("error: ").unwrap_or(fact);
    let advice = [", set DuplicateKeyPolicy", "; use from_str_multiple"];
    let end = advice.iter().filter_map(|words| fact.find(words)).min();
    end.and_then(|end| fact.get(..end)).unwrap_or(fact)
}
