//! One object in many copies: encoded once, with marks where the copies differ.

use serde_json::Value;

/// The text of a JSON object, cut at its marks.
#[derive(Debug)]
pub(crate) struct Stencil {
    /// The text before the first mark, and each mark's number with the text after it.
    head: String,
    rest: Vec<(usize, String)>,
}

/// What stands in an object for value number `i` of [`Stencil::fill`].
pub(crate) fn mark(i: usize) -> String {
    format!("@@{i}@@")
}

impl Stencil {
    /// Encodes an object whose strings contain marks; at most ten of them.
    pub(crate) fn cut(object: &Value) -> Stencil {
        let text = object.to_string();
        let mut pieces = text.split("@@");
        let head = pieces.next().unwrap_or_default().to_owned();
        let mut rest = Vec::new();
        // Between two marks there is text, so numbers and texts take turns.
        while let (Some(number), Some(text)) = (pieces.next(), pieces.next()) {
            rest.push((number.parse().unwrap_or_default(), text.to_owned()));
        }
        Stencil { head, rest }
    }

    /// A copy with these values, which need no escapes, at the marks.
    pub(crate) fn fill(&self, values: &[&str]) -> String {
        let mut copy = self.head.clone();
        for (i, text) in &self.rest {
            copy.push_str(values.get(*i).copied().unwrap_or_default());
            copy.push_str(text);
        }
        copy
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_copy_is_the_object_with_its_values() {
        let stencil =
            Stencil::cut(&json!({"a": mark(0), "b": [format!("x-{}-{}", mark(1), mark(0))]}));
        assert_eq!(stencil.fill(&["1", "2"]), r#"{"a":"1","b":["x-2-1"]}"#);
    }
}
