//! Label selectors in text form, as `kubectl -l` accepts them.

use std::collections::{BTreeMap, BTreeSet};

/// A label selector. It selects an object that meets all requirements.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SelectorExpression {
    text: String,
    requirements: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: RequirementTest,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum RequirementTest {
    Exists,
    Absent,
    /// The set contains the value.
    In(BTreeSet<String>),
    /// The label is absent, or the set does not contain the value.
    NotIn(BTreeSet<String>),
}

impl SelectorExpression {
    /// Parses `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
    ///
    /// # Errors
    /// Returns the problem with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let requirements = split(text).into_iter().map(|part| requirement(part.trim()));
        let requirements = requirements.collect::<Result<_, _>>()?;
        Ok(Self { text: text.trim().to_owned(), requirements })
    }

    /// Selects the objects whose label has this value.
    pub(super) fn equal(key: &str, value: &str) -> Self {
        let test = RequirementTest::In([value.to_owned()].into());
        let requirements = vec![Requirement { key: key.to_owned(), test }];
        Self { text: format!("{key}={value}"), requirements }
    }

    /// Returns the text, for an API server.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.requirements.iter().all(|Requirement { key, test }| {
            let value = labels.get(key);
            match test {
                RequirementTest::Exists => value.is_some(),
                RequirementTest::Absent => value.is_none(),
                RequirementTest::In(values) => value.is_some_and(|value| values.contains(value)),
                RequirementTest::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            }
        })
    }
}

/// Splits a selector at the commas outside of parentheses. An empty text has no parts.
fn split(text: &str) -> Vec<&str> {
    if text.trim().is_empty() {
        return Vec::new();
    }
    let mut depth = 0_i32;
    text.split(move |character| {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        character == ',' && depth == 0
    })
    .collect()
}

fn requirement(part: &str) -> Result<Requirement, String> {
    let with = |key: &str, test: RequirementTest| {
        let key = key.trim();
        match is_key(key) {
            true => Ok(Requirement { key: key.to_owned(), test }),
            false => Err(format!("{part:?} names no label")),
        }
    };
    let single = |value: &str| Ok::<BTreeSet<String>, String>([checked(value)?].into());
    if let Some(key) = part.strip_prefix('!') {
        return with(key, RequirementTest::Absent);
    }
    if let Some((key, value)) = part.split_once("!=") {
        return with(key, RequirementTest::NotIn(single(value)?));
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return with(key, RequirementTest::In(single(value)?));
    }
    if let Some((left, rest)) = part.split_once('(') {
        let values = rest.strip_suffix(')').ok_or(format!("{part:?} has no closing ')'"))?;
        let values = values.split(',').map(checked).collect::<Result<BTreeSet<_>, _>>()?;
        return match left.split_whitespace().collect::<Vec<_>>()[..] {
            [key, "in"] => with(key, RequirementTest::In(values)),
            [key, "notin"] => with(key, RequirementTest::NotIn(values)),
            _ => Err(format!("{part:?} is neither KEY in (…) nor KEY notin (…)")),
        };
    }
    with(part, RequirementTest::Exists)
}

fn checked(value: &str) -> Result<String, String> {
    let value = value.trim();
    match value.len() <= 63 && value.bytes().all(is_plain) {
        true => Ok(value.to_owned()),
        false => Err(format!("{value:?} is not a label value")),
    }
}

fn is_key(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').unwrap_or(("a", key));
    let is_part = |text: &str| !text.is_empty() && text.bytes().all(is_plain);
    is_part(prefix) && is_part(name)
}

/// Whether a name or a value of a label may contain a character.
pub(super) fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selector_selects_like_an_api_server() {
        let labels: BTreeMap<String, String> = [("tier", "prod"), ("strait.dev/cluster", "true")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let selects = |text: &str| SelectorExpression::parse(text).expect(text).matches(&labels);
        for text in [
            "",
            "tier=prod",
            "tier==prod,strait.dev/cluster=true",
            "tier!=test",
            "absent!=x",
            "tier in (prod, test)",
            "tier notin (test),strait.dev/cluster",
            "!absent",
        ] {
            assert!(selects(text), "{text}");
        }
        for text in [
            "tier=test",
            "tier!=prod",
            "absent=x",
            "tier in (test)",
            "tier notin (prod)",
            "!tier",
            "absent",
        ] {
            assert!(!selects(text), "{text}");
        }
        for text in [",", "=x", "tier in prod", "tier in (a", "a b", "tier=a b", "!", "x/y/z=1"] {
            assert!(SelectorExpression::parse(text).is_err(), "{text}");
        }
    }
}
