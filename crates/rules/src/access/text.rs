//! Text patterns. Proxies and `explain` use the same patterns.

use std::borrow::Cow;
use std::fmt::Write;
use std::ops::Deref;

/// A text condition as written in policies. `*` is a wildcard if it is first, last or alone;
/// elsewhere it is literal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TextForm<'a> {
    /// `*`: present and not empty.
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

    /// Calls `then` with the pattern of the condition.
    pub(super) fn with_pattern(&self, then: impl FnOnce(TextPattern<'_>)) {
        match self {
            Self::Present => then(TextPattern::borrowed(&[TextPart::Some])),
            Self::Exact(text) => then(TextPattern::borrowed(&[TextPart::text(*text)])),
            Self::Prefix(text) => {
                then(TextPattern::borrowed(&[TextPart::text(*text), TextPart::Any]));
            }
            Self::Suffix(text) => {
                then(TextPattern::borrowed(&[TextPart::Any, TextPart::text(*text)]));
            }
        }
    }

    pub(super) fn pattern(&self) -> TextPattern<'static> {
        let mut pattern = TextPattern::default();
        self.with_pattern(|one| pattern = one.to_static());
        pattern
    }
}

/// A pattern for a whole text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TextPattern<'a> {
    /// Consecutive parts of the text.
    pub parts: TextParts<'a>,
    /// Whether case is ignored.
    pub ignore_case: bool,
}

/// Parts of a pattern, borrowed or owned.
#[derive(Debug, Clone)]
pub enum TextParts<'a> {
    /// Borrowed parts.
    Borrowed(&'a [TextPart<'a>]),
    /// Owned parts.
    Own(Vec<TextPart<'a>>),
}

impl<'a> Deref for TextParts<'a> {
    type Target = [TextPart<'a>];

    fn deref(&self) -> &[TextPart<'a>] {
        match self {
            Self::Borrowed(parts) => parts,
            Self::Own(parts) => parts,
        }
    }
}

impl Default for TextParts<'_> {
    fn default() -> Self {
        Self::Own(Vec::new())
    }
}

impl PartialEq for TextParts<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for TextParts<'_> {}

/// A part of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextPart<'a> {
    /// Literal text.
    Text(Cow<'a, str>),
    /// Any text, including the empty one.
    Any,
    /// Any text that is not empty.
    Some,
    /// Any text without a slash, including the empty one.
    Segment,
    /// Optional end of a host: a dot, a port, or both.
    HostEnd,
    /// Optional end of a host with which a server might still accept it: a dot, then any text after
    /// a colon or comma.
    HostRest,
    /// Optional beginning of a host with which a server might still accept it: any text that ends
    /// with a comma or with user info (`@`).
    HostBefore,
    /// An optional dot.
    Dot,
    /// Optional elements of a comma-separated list before this one.
    ListBefore,
    /// Optional elements of a comma-separated list after this one.
    ListAfter,
    /// Empty, or any text that begins with none of these characters.
    OtherAfter(String),
    /// Empty, or any text that ends with none of these characters.
    OtherBefore(String),
}

/// Maximum length in characters of a text whose complement is computed. The complement has one
/// pattern for each character; even the longest is within Envoy's default limit.
const DIFFERING_MAX: usize = 48;

impl<'a> TextForm<'a> {
    /// Returns patterns that together match every text that the condition does not match. For a
    /// prefix or suffix without commas, they match the elements of a comma-separated list. Empty if
    /// the text is too long.
    pub(super) fn others(&self) -> Vec<TextPattern<'a>> {
        let (text, is_end): (&'a str, _) = match self {
            Self::Present => return Vec::new(),
            Self::Exact(text) | Self::Prefix(text) => (*text, false),
            Self::Suffix(text) => (*text, true),
        };
        let count = text.chars().count();
        if count > DIFFERING_MAX {
            return Vec::new();
        }
        let is_listed = !matches!(self, Self::Exact(_)) && !text.contains(',');
        // Whitespace around an element does not belong to it.
        let other = |character: char, is_outer: bool| {
            let blanks = if is_listed && is_outer { " \t" } else { "" };
            format!("{character}{blanks}")
        };
        let mut all: Vec<Vec<TextPart<'_>>> = Vec::with_capacity(count + 1);
        for (place, (at, character)) in text.char_indices().enumerate() {
            let (before, after) = (&text[..at], &text[at + character.len_utf8()..]);
            let mut parts = Vec::new();
            if is_end {
                parts.extend([
                    TextPart::OtherBefore(other(character, place + 1 == count)),
                    TextPart::text(after),
                ]);
                parts.extend(is_listed.then_some(TextPart::ListAfter));
            } else {
                parts.extend(is_listed.then_some(TextPart::ListBefore));
                parts.extend([
                    TextPart::text(before),
                    TextPart::OtherAfter(other(character, place == 0)),
                ]);
            }
            parts.retain(|part| *part != TextPart::text(""));
            all.push(parts);
        }
        if let Self::Exact(text) = self {
            all.push(vec![TextPart::text(*text), TextPart::Some]);
        }
        all.into_iter().map(TextPattern::new).collect()
    }
}

impl<'a> TextPart<'a> {
    pub(super) fn text(text: impl Into<Cow<'a, str>>) -> Self {
        Self::Text(text.into())
    }

    fn to_static(&self) -> TextPart<'static> {
        match self {
            Self::Text(text) => TextPart::Text(Cow::Owned(text.to_string())),
            Self::Any => TextPart::Any,
            Self::Some => TextPart::Some,
            Self::Segment => TextPart::Segment,
            Self::HostEnd => TextPart::HostEnd,
            Self::HostRest => TextPart::HostRest,
            Self::HostBefore => TextPart::HostBefore,
            Self::Dot => TextPart::Dot,
            Self::ListBefore => TextPart::ListBefore,
            Self::ListAfter => TextPart::ListAfter,
            Self::OtherAfter(not) => TextPart::OtherAfter(not.clone()),
            Self::OtherBefore(not) => TextPart::OtherBefore(not.clone()),
        }
    }
}

impl<'a> TextPattern<'a> {
    pub(super) fn new(parts: Vec<TextPart<'a>>) -> Self {
        Self { parts: TextParts::Own(parts), ignore_case: false }
    }

    pub(super) fn borrowed(parts: &'a [TextPart<'a>]) -> Self {
        Self { parts: TextParts::Borrowed(parts), ignore_case: false }
    }

    /// Returns a copy with a static lifetime.
    pub(super) fn to_static(&self) -> TextPattern<'static> {
        let parts = self.parts.iter().map(TextPart::to_static).collect();
        TextPattern { parts: TextParts::Own(parts), ignore_case: self.ignore_case }
    }

    /// Returns whether the pattern matches the whole text.
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

    /// Returns a regular expression (RE2) that matches the same whole texts.
    pub fn regex(&self) -> String {
        let mut regex = String::from(if self.ignore_case { "(?i)" } else { "" });
        for part in self.parts.iter() {
            match part {
                TextPart::Text(text) => text.chars().for_each(|character| {
                    let is_literal = character.is_ascii_alphanumeric()
                        || character == '_'
                        || !character.is_ascii();
                    // Letters and digits have a special meaning after a backslash.
                    let quote = if is_literal { "" } else { "\\" };
                    let _infallible = write!(regex, "{quote}{character}");
                }),
                TextPart::Any => regex.push_str(".*"),
                TextPart::Some => regex.push_str(".+"),
                TextPart::Segment => regex.push_str("[^/]*"),
                TextPart::HostEnd => regex.push_str(r"\.?(?::[0-9]+)?"),
                TextPart::HostRest => regex.push_str(r"\.?(?:[:,].*)?"),
                TextPart::HostBefore => regex.push_str(r"(?:.*[,@])?[ \t]*"),
                TextPart::Dot => regex.push_str(r"\.?"),
                TextPart::OtherAfter(not) => {
                    let _infallible = write!(regex, "(?:[^{}].*)?", in_class(not));
                }
                TextPart::OtherBefore(not) => {
                    let _infallible = write!(regex, "(?:.*[^{}])?", in_class(not));
                }
                TextPart::ListBefore => regex.push_str(r"(?:.*,)?[ \t]*"),
                TextPart::ListAfter => regex.push_str(r"[ \t]*(?:,.*)?"),
            }
        }
        regex
    }
}

/// Escapes characters for use in a character class.
fn in_class(all: &str) -> String {
    let mut class = String::new();
    for character in all.chars() {
        match character {
            '\t' => class.push_str("\\t"),
            character if character.is_ascii_punctuation() => class.extend(['\\', character]),
            character => class.push(character),
        }
    }
    class
}

/// Returns whether the parts match the whole text.
fn fits(parts: &[TextPart<'_>], text: &str, ignore_case: bool) -> bool {
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
        TextPart::HostRest => {
            let ends =
                |at: &usize| text.get(*at..).is_some_and(|rest| rest.starts_with([':', ',']));
            [0, usize::from(text.starts_with('.'))]
                .into_iter()
                .any(|dot| tail(dot) || (ends(&dot) && (dot + 1..=text.len()).any(tail)))
        }
        TextPart::Dot => tail(0) || (text.starts_with('.') && tail(1)),
        TextPart::OtherAfter(not) => {
            let first = text.chars().next().filter(|one| !not.contains(*one));
            tail(0) || first.is_some_and(|one| (one.len_utf8()..=text.len()).any(tail))
        }
        TextPart::OtherBefore(not) => {
            let ends = text.char_indices().filter(|(_, one)| !not.contains(*one));
            tail(0) || ends.map(|(at, one)| at + one.len_utf8()).any(tail)
        }
        TextPart::ListBefore | TextPart::HostBefore => {
            let ends: &[char] = if *part == TextPart::HostBefore { &[',', '@'] } else { &[','] };
            let starts = text.match_indices(ends).map(|(at, _)| at + 1);
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
