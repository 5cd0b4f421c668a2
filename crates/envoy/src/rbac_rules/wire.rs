//! Encodes a rule as Envoy's message directly from its matcher. The first proxy that receives a
//! changed policy waits for the encoding of all its rules, and a few hundred plain messages take
//! ten times as long to build, measure and free.
//!
//! The bytes equal the encoding of plain messages, with which the tests compare them.

use ipnet::IpNet;
use prost::encoding::encode_varint;

use strait_rules::access::{
    AlternativeInForm, Atom, ClauseInForm, RuleInForm, TextPart, TextPattern,
};

/// Returns the key of a length-delimited field, by field number.
const fn sized(tag: u8) -> u8 {
    assert!(tag < 16, "its key is more than one byte");
    tag << 3 | 2
}

/// Returns the key of a varint field, by field number.
const fn number(tag: u8) -> u8 {
    assert!(tag < 16, "its key is more than one byte");
    tag << 3
}

/// The key of field 1 with a length, which is the first or only field of many messages.
const FIRST: u8 = sized(1);

/// The field keys of one side of a rule. `Principal` (source) and `Permission` (operation) of
/// `envoy.config.rbac.v3` have the same structure and different field numbers.
struct RuleSide {
    /// The key in `Policy`.
    list: u8,
    all: u8,
    any: u8,
    anything: u8,
    not: u8,
    header: u8,
    path: u8,
    metadata: u8,
    /// Writes an atom that only this side supports, and returns whether it did.
    own: fn(&Atom<'_>, &mut Vec<u8>) -> bool,
}

const OPERATION: RuleSide = RuleSide {
    list: sized(1),
    all: sized(1),
    any: sized(2),
    anything: number(3),
    not: sized(8),
    header: sized(4),
    path: sized(10),
    metadata: sized(14),
    own: operation,
};

const SOURCE: RuleSide = RuleSide {
    list: sized(2),
    all: sized(1),
    any: sized(2),
    anything: number(3),
    not: sized(8),
    header: sized(6),
    path: sized(9),
    metadata: sized(13),
    own: source,
};

/// Writes the fields of a `Policy`.
pub(super) fn policy(rule: &RuleInForm<'_>, out: &mut Vec<u8>) {
    if rule.is_never() {
        for side in [OPERATION, SOURCE] {
            nest(side.list, out, |out| side.nothing(out));
        }
        return;
    }
    rule.each_operation(|one| OPERATION.alternative(one, out));
    rule.each_source(|one| SOURCE.alternative(one, out));
}

impl RuleSide {
    fn alternative(&self, alternative: AlternativeInForm<'_>, out: &mut Vec<u8>) {
        nest(self.list, out, |out| {
            nest(self.all, out, |out| {
                let start = out.len();
                alternative.each_clause(|clause| nest(FIRST, out, |out| self.clause(clause, out)));
                if out.len() == start {
                    nest(FIRST, out, |out| self.anything(out));
                }
            });
        });
    }

    fn clause(&self, clause: ClauseInForm<'_>, out: &mut Vec<u8>) {
        if clause.negated() {
            nest(self.not, out, |out| self.write_any(clause, out));
        } else {
            self.write_any(clause, out);
        }
    }

    fn write_any(&self, clause: ClauseInForm<'_>, out: &mut Vec<u8>) {
        let (start, mut is_empty) = (out.len(), true);
        nest(self.any, out, |out| {
            clause.each(&mut |atoms| {
                is_empty = false;
                nest(FIRST, out, |out| self.write_all(atoms, out));
            });
        });
        // Envoy rejects an empty list.
        if is_empty {
            out.truncate(start);
            self.nothing(out);
        }
    }

    fn write_all(&self, atoms: &[Atom<'_>], out: &mut Vec<u8>) {
        if let [only] = atoms {
            return self.atom(only, out);
        }
        nest(self.all, out, |out| {
            atoms.iter().for_each(|atom| nest(FIRST, out, |out| self.atom(atom, out)));
        });
    }

    fn atom(&self, atom: &Atom<'_>, out: &mut Vec<u8>) {
        match atom {
            Atom::Header(name, pattern) => {
                nest(self.header, out, |out| header(name, Some(pattern), out));
            }
            Atom::HeaderNowhere(name, pattern) => nest(self.not, out, |out| {
                nest(self.header, out, |out| header(name, Some(pattern), out));
            }),
            Atom::HeaderPresent(name) => nest(self.header, out, |out| header(name, None, out)),
            Atom::Path(pattern) => {
                nest(self.path, out, |out| nest(FIRST, out, |out| string(pattern, out)));
            }
            Atom::Metadata(filter, path, pattern) => {
                nest(self.metadata, out, |out| metadata(filter, path, pattern, out));
            }
            other => {
                // Atoms of the other side do not occur here and match nothing.
                if !(self.own)(other, out) {
                    self.nothing(out);
                }
            }
        }
    }

    fn anything(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.anything, 1]);
    }

    fn nothing(&self, out: &mut Vec<u8>) {
        nest(self.not, out, |out| self.anything(out));
    }
}

/// Writes an atom that only `Permission` supports.
fn operation(atom: &Atom<'_>, out: &mut Vec<u8>) -> bool {
    const DESTINATION_IP: u8 = sized(5);
    const DESTINATION_PORT: u8 = number(6);
    const REQUESTED_SERVER_NAME: u8 = sized(9);
    const URI_TEMPLATE: u8 = sized(13);
    match atom {
        Atom::PathTemplate(path) => nest(URI_TEMPLATE, out, |out| template(path, out)),
        Atom::Port(port) => {
            out.push(DESTINATION_PORT);
            encode_varint((*port).into(), out);
        }
        Atom::DestinationAddress(range) => nest(DESTINATION_IP, out, |out| cidr(range, out)),
        Atom::ServerName(name) => nest(REQUESTED_SERVER_NAME, out, |out| string(name, out)),
        _ => return false,
    }
    true
}

/// Writes an atom that only `Principal` supports.
fn source(atom: &Atom<'_>, out: &mut Vec<u8>) -> bool {
    const AUTHENTICATED: u8 = sized(4);
    const PRINCIPAL_NAME: u8 = sized(2);
    const DIRECT_REMOTE_IP: u8 = sized(10);
    const REMOTE_IP: u8 = sized(11);
    match atom {
        Atom::Identity(name) => nest(AUTHENTICATED, out, |out| {
            nest(PRINCIPAL_NAME, out, |out| string(name, out));
        }),
        Atom::PeerAddress(range) => nest(DIRECT_REMOTE_IP, out, |out| cidr(range, out)),
        Atom::ClientAddress(range) => nest(REMOTE_IP, out, |out| cidr(range, out)),
        _ => return false,
    }
    true
}

/// Writes an `envoy.config.route.v3.HeaderMatcher` for a value, or for the presence of the header.
fn header(name: &str, pattern: Option<&TextPattern<'_>>, out: &mut Vec<u8>) {
    const PRESENT_MATCH: u8 = number(7);
    const STRING_MATCH: u8 = sized(13);
    text_unless_empty(FIRST, name, out);
    match pattern {
        Some(pattern) => nest(STRING_MATCH, out, |out| string(pattern, out)),
        None => out.extend_from_slice(&[PRESENT_MATCH, 1]),
    }
}

/// Writes an `envoy.config.rbac.v3.SourcedMetadata` for metadata of filters. If the value is a
/// list, its elements are matched, because claims may be lists.
fn metadata(filter: &str, path: &[String], pattern: &TextPattern<'_>, out: &mut Vec<u8>) {
    const PATH: u8 = sized(2);
    const VALUE: u8 = sized(3);
    const STRING_MATCH: u8 = sized(3);
    const LIST_MATCH: u8 = sized(6);
    const OR_MATCH: u8 = sized(7);
    let text = |out: &mut _| nest(STRING_MATCH, out, |out| string(pattern, out));
    let either = |out: &mut _| {
        nest(FIRST, out, text);
        nest(FIRST, out, |out| {
            nest(LIST_MATCH, out, |out| nest(FIRST, out, text));
        });
    };
    nest(FIRST, out, |out| {
        text_unless_empty(FIRST, filter, out);
        for key in path {
            nest(PATH, out, |out| self::text(FIRST, key, out));
        }
        nest(VALUE, out, |out| nest(OR_MATCH, out, either));
    });
}

/// Writes an `envoy.config.core.v3.TypedExtensionConfig` that matches a path with a template.
fn template(path: &str, out: &mut Vec<u8>) {
    const CONFIG: u8 = sized(2);
    const CONTENT: u8 = sized(2);
    const TYPE: &str =
        "type.googleapis.com/envoy.extensions.path.match.uri_template.v3.UriTemplateMatchConfig";
    text(FIRST, "uri-template", out);
    nest(CONFIG, out, |out| {
        text(FIRST, TYPE, out);
        if !path.is_empty() {
            nest(CONTENT, out, |out| text(FIRST, path, out));
        }
    });
}

/// Writes an `envoy.config.core.v3.CidrRange`.
fn cidr(range: &IpNet, out: &mut Vec<u8>) {
    const LENGTH: u8 = sized(2);
    text(FIRST, &range.addr().to_string(), out);
    nest(LENGTH, out, |out| {
        if range.prefix_len() != 0 {
            out.push(number(1));
            encode_varint(range.prefix_len().into(), out);
        }
    });
}

/// Writes the simplest `envoy.type.matcher.v3.StringMatcher` for the pattern.
fn string(pattern: &TextPattern<'_>, out: &mut Vec<u8>) {
    const EXACT: u8 = sized(1);
    const PREFIX: u8 = sized(2);
    const SUFFIX: u8 = sized(3);
    const SAFE_REGEX: u8 = sized(5);
    const REGEX: u8 = sized(2);
    const IGNORE_CASE: u8 = number(6);
    // Envoy rejects an empty prefix or suffix.
    match &*pattern.parts {
        [TextPart::Text(whole)] => text(EXACT, whole, out),
        [TextPart::Text(start), TextPart::Text(more)] => joined_text(EXACT, [start, more], out),
        [TextPart::Text(prefix), TextPart::Any] if !prefix.is_empty() => text(PREFIX, prefix, out),
        [TextPart::Text(start), TextPart::Text(more), TextPart::Any] if !start.is_empty() => {
            joined_text(PREFIX, [start, more], out);
        }
        [TextPart::Any, TextPart::Text(suffix)] if !suffix.is_empty() => text(SUFFIX, suffix, out),
        // For a regular expression, Envoy uses the case sensitivity of the expression.
        _ => {
            return nest(SAFE_REGEX, out, |out| text_unless_empty(REGEX, &pattern.regex(), out));
        }
    }
    if pattern.ignore_case {
        out.extend_from_slice(&[IGNORE_CASE, 1]);
    }
}

/// Writes a string of a `oneof`, even if it is empty.
fn text(key: u8, text: &str, out: &mut Vec<u8>) {
    begin_text(key, text.len(), out);
    out.extend_from_slice(text.as_bytes());
}

/// Writes a string of a `oneof` from two parts.
fn joined_text(key: u8, [start, end]: [&str; 2], out: &mut Vec<u8>) {
    begin_text(key, start.len() + end.len(), out);
    out.extend_from_slice(start.as_bytes());
    out.extend_from_slice(end.as_bytes());
}

#[inline]
fn begin_text(key: u8, length: usize, out: &mut Vec<u8>) {
    match u8::try_from(length) {
        Ok(short @ ..0x80) => out.extend_from_slice(&[key, short]),
        _ => {
            out.push(key);
            encode_varint(length as u64, out);
        }
    }
}

fn text_unless_empty(key: u8, value: &str, out: &mut Vec<u8>) {
    if !value.is_empty() {
        text(key, value, out);
    }
}

/// Writes a message as a field. Its length is known only afterwards and usually takes one byte.
#[inline]
fn nest(key: u8, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&[key, 0]);
    let start = out.len();
    write(out);
    match (u8::try_from(out.len() - start), out.get_mut(start - 1)) {
        (Ok(short @ ..0x80), Some(place)) => *place = short,
        _ => make_room(start, out),
    }
}

/// Moves a message to make room for a length of several bytes.
#[cold]
fn make_room(start: usize, out: &mut Vec<u8>) {
    let mut varint = Vec::with_capacity(5);
    encode_varint((out.len() - start) as u64, &mut varint);
    out.splice(start - 1..start, varint);
}
