//! Stencils: an object that exists in many similar copies is encoded once, with marks where the
//! copies differ.
//!
//! A world of half a million pods stores a few stencils and encodes each pod on access. Stencils
//! support JSON and protobuf, whose length fields depend on the inserted values.

use serde_json::Value;

use crate::protobuf::{sized_length, write_varint};

/// Encoded text with placeholders for values. Values are inserted without escaping.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stencil {
    nodes: Vec<Node>,
}

/// A part of a [`Stencil`].
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Node {
    /// Text that is equal in all copies.
    Text(Vec<u8>),
    /// A value, by its index in the argument of [`Stencil::fill`].
    Value(usize),
    /// Parts that are preceded by their length in bytes, as in protobuf.
    Sized(Vec<Node>),
}

/// Returns the mark that represents value `i` in a string of an object.
pub(crate) fn mark(i: usize) -> String {
    format!("@@{i}@@")
}

/// Returns whether a string of an object differs between copies.
pub(crate) fn is_marked(text: &str) -> bool {
    text.contains("@@")
}

/// Returns the mark that represents an entire list, which value `i` provides in encoded form.
pub(crate) fn block(i: usize) -> String {
    format!("@@!{i}!@@")
}

/// Splits a text at its marks.
pub(crate) fn pieces(text: &str) -> Vec<Node> {
    let mut nodes = Vec::new();
    // There is text between two marks, so texts and indexes alternate.
    for (i, piece) in text.split("@@").enumerate() {
        match piece.parse() {
            Ok(number) if i % 2 == 1 => nodes.push(Node::Value(number)),
            _ if piece.is_empty() => {}
            _ => nodes.push(Node::Text(piece.into())),
        }
    }
    nodes
}

/// Returns the placeholder if the value is the mark of an entire list.
pub(crate) fn block_in(value: &Value) -> Option<Node> {
    let number = value.as_str()?.strip_prefix("@@!")?.strip_suffix("!@@")?;
    number.parse().ok().map(Node::Value)
}

impl Stencil {
    /// Builds a stencil from an object whose strings contain marks.
    pub(crate) fn json(object: &Value) -> Stencil {
        let text = object.to_string();
        // The mark of a list is a string only until it is replaced.
        Stencil { nodes: pieces(&text.replace("\"@@!", "@@").replace("!@@\"", "@@")) }
    }

    /// Builds a stencil from parts, and joins adjacent constant parts.
    pub(crate) fn of(nodes: Vec<Node>) -> Stencil {
        Stencil { nodes: joined(nodes) }
    }

    /// Appends a copy with these values.
    pub(crate) fn fill(&self, values: &[&[u8]], out: &mut Vec<u8>) {
        fill(&self.nodes, values, out);
    }
}

fn joined(nodes: Vec<Node>) -> Vec<Node> {
    let mut out: Vec<Node> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let node = match node {
            Node::Sized(inner) => match &joined(inner)[..] {
                [] => Node::Text(vec![0]),
                [Node::Text(text)] => {
                    let mut sized = Vec::with_capacity(text.len() + 2);
                    write_varint(text.len() as u64, &mut sized);
                    sized.extend_from_slice(text);
                    Node::Text(sized)
                }
                inner => Node::Sized(inner.to_vec()),
            },
            node => node,
        };
        match (out.last_mut(), node) {
            (Some(Node::Text(before)), Node::Text(text)) => before.extend_from_slice(&text),
            (_, node) => out.push(node),
        }
    }
    out
}

fn fill(nodes: &[Node], values: &[&[u8]], out: &mut Vec<u8>) {
    for node in nodes {
        match node {
            Node::Text(text) => out.extend_from_slice(text),
            Node::Value(i) => out.extend_from_slice(values.get(*i).copied().unwrap_or_default()),
            Node::Sized(inner) => {
                write_varint(size(inner, values) as u64, out);
                fill(inner, values, out);
            }
        }
    }
}

fn size(nodes: &[Node], values: &[&[u8]]) -> usize {
    let of = |node: &Node| match node {
        Node::Text(text) => text.len(),
        Node::Value(i) => values.get(*i).map_or(0, |value| value.len()),
        Node::Sized(inner) => sized_length(size(inner, values)),
    };
    nodes.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn copy_contains_the_values() {
        let object =
            json!({"a": mark(0), "b": [format!("x-{}-{}", mark(11), mark(0))], "c": block(2)});
        let mut values: Vec<&[u8]> = vec![b""; 12];
        (values[0], values[11], values[2]) = (b"1", b"2", b"[3]");
        let mut out = Vec::new();
        Stencil::json(&object).fill(&values, &mut out);
        assert_eq!(String::from_utf8_lossy(&out), r#"{"a":"1","b":["x-2-1"],"c":[3]}"#);
    }

    #[test]
    fn lengths_depend_on_the_values() {
        let inner = vec![Node::Text(b"ab".to_vec()), Node::Value(0)];
        let stencil = Stencil::of(vec![Node::Sized(vec![Node::Sized(inner)])]);
        for (length, head) in [(0, &[3, 2][..]), (124, &[127, 126]), (126, &[130, 1, 128, 1])] {
            let mut out = Vec::new();
            stencil.fill(&[&vec![b'x'; length]], &mut out);
            assert_eq!(out[..head.len()], *head, "{length}");
            assert_eq!(out.len(), head.len() + 2 + length);
        }
    }
}
