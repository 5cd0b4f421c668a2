//! Patterns of text: how conditions are written, and what they mean, once for proxies and for `explain`.

use std::fmt::Write;

/// A text condition as policies write it: `*` alone, at the front or at the end; anywhere else it is a character.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TextForm<'a> {
    /// `*`: there, and not empty.
    Present,
    Exact(&'a str),
    Prefix(&'a str),
    Suffix(&'a str),
}

impl<'a> TextForm<'a> {
    pub(super) fn read(text: &'a str) -> Self {
        if text == "*" {
            Self::Present
        } else if let Some(suffix) = text.strip_prefix('*') {
            Self::Suffix(suffix)
        } else if let Some(prefix) = text.strip_suffix('*') {
            Self::Prefix(prefix)
        } else {
            Self::Exact(text)
        }
    }

    pub(super) fn pattern(&self) -> TextPattern {
        TextPattern::new(match self {
            Self::Present => vec![TextPart::Some],
            Self::Exact(text) => vec![TextPart::text(*text)],
            Self::Prefix(text) => vec![TextPart::text(*text), TextPart::Any],
            Self::Suffix(text) => vec![TextPart::Any, TextPart::text(*text)],
        })
    }
}

/// What a whole text must be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TextPattern {
    /// One after the other.
    pub parts: Vec<TextPart>,
    /// Whether letters count in either case.
    pub ignore_case: bool,
}

/// A part of a pattern.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum TextPart {
    /// Just this.
    Text(String),
    /// Anything, or nothing.
    Any,
    /// Anything but nothing.
    Some,
    /// Anything without a slash, or nothing.
    Segment,
    /// What may follow a host: a dot, a port.
    HostEnd,
    /// Nothing, or elements of a comma-separated list before this one.
    ListBefore,
    /// Nothing, or elements after it.
    ListAfter,
}

impl TextPart {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }
}

impl TextPattern {
    pub(super) fn new(parts: Vec<TextPart>) -> Self {
        Self { parts, ignore_case: false }
    }

    /// Whether `text` is of this form.
    pub fn matches(&self, text: &str) -> bool {
        let folded;
        let text = if self.ignore_case {
            folded = text.to_ascii_lowercase();
            &folded
        } else {
            text
        };
        fits(&self.parts, text, self.ignore_case)
    }

    /// The regular expression (RE2) that a whole text of this form matches.
    pub fn regex(&self) -> String {
        let mut regex = String::from(if self.ignore_case { "(?i)" } else { "" });
        for part in &self.parts {
            match part {
                TextPart::Text(text) => text.chars().for_each(|one| {
                    let is_word = one.is_ascii_alphanumeric() || one == '_' || !one.is_ascii();
                    // Letters and digits after a backslash have meanings of their own.
                    let quote = if is_word { "" } else { "\\" };
                    let _infallible = write!(regex, "{quote}{one}");
                }),
                TextPart::Any => regex.push_str(".*"),
                TextPart::Some => regex.push_str(".+"),
                TextPart::Segment => regex.push_str("[^/]*"),
                TextPart::HostEnd => regex.push_str(r"\.?(?::[0-9]+)?"),
                TextPart::ListBefore => regex.push_str(r"(?:.*,)?[ \t]*"),
                TextPart::ListAfter => regex.push_str(r"[ \t]*(?:,.*)?"),
            }
        }
        regex
    }
}

/// Whether the whole text is these parts, one after the other.
fn fits(parts: &[TextPart], text: &str, ignore_case: bool) -> bool {
    let Some((part, rest)) = parts.split_first() else { return text.is_empty() };
    let tail = |at: usize| text.get(at..).is_some_and(|tail| fits(rest, tail, ignore_case));
    let blanks = |text: &str| text.len() - text.trim_start_matches([' ', '\t']).len();
    match part {
        TextPart::Text(wanted) if ignore_case => {
            let wanted = wanted.to_ascii_lowercase();
            text.strip_prefix(&*wanted).is_some_and(|tail| fits(rest, tail, ignore_case))
        }
        TextPart::Text(wanted) => {
            text.strip_prefix(&**wanted).is_some_and(|tail| fits(rest, tail, ignore_case))
        }
        TextPart::Any => (0..=text.len()).any(tail),
        TextPart::Some => (1..=text.len()).any(tail),
        TextPart::Segment => (0..=text.find('/').unwrap_or(text.len())).any(tail),
        TextPart::HostEnd => {
            let dot = usize::from(text.starts_with('.'));
            [0, dot].into_iter().any(|dot| {
                let after = text.get(dot..).unwrap_or_default();
                let digits =
                    |port: &str| port.find(|one: char| !one.is_ascii_digit()).unwrap_or(port.len());
                let port = after.strip_prefix(':').map_or(0, digits);
                tail(dot) || (1..=port).any(|digits| tail(dot + 1 + digits))
            })
        }
        TextPart::ListBefore => {
            let starts = text.match_indices(',').map(|(at, _)| at + 1);
            std::iter::once(0).chain(starts).any(|start| {
                let blank = text.get(start..).map_or(0, blanks);
                (0..=blank).any(|blank| tail(start + blank))
            })
        }
        TextPart::ListAfter => {
            let is_comma = |at: &usize| text.get(*at..).is_some_and(|rest| rest.starts_with(','));
            (0..=blanks(text)).any(|blank| {
                tail(blank) || (is_comma(&blank) && (blank + 1..=text.len()).any(tail))
            })
        }
    }
}
