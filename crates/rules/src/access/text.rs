//! Patterns of text: how conditions are written, and what they mean, once for proxies and for `explain`.

use std::borrow::Cow;
use std::fmt::Write;
use std::ops::Deref;

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

    /// Hands on the pattern of what is of this form.
    pub(super) fn with_pattern(&self, then: impl FnOnce(TextPattern<'_>)) {
        match self {
            Self::Present => then(TextPattern::of(&[TextPart::Some])),
            Self::Exact(text) => then(TextPattern::of(&[TextPart::text(*text)])),
            Self::Prefix(text) => then(TextPattern::of(&[TextPart::text(*text), TextPart::Any])),
            Self::Suffix(text) => then(TextPattern::of(&[TextPart::Any, TextPart::text(*text)])),
        }
    }

    pub(super) fn pattern(&self) -> TextPattern<'static> {
        let mut pattern = TextPattern::default();
        self.with_pattern(|one| pattern = one.to_static());
        pattern
    }
}

/// What a whole text must be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TextPattern<'a> {
    /// One after the other.
    pub parts: TextParts<'a>,
    /// Whether letters count in either case.
    pub ignore_case: bool,
}

/// Parts that somebody else holds, or of its own.
#[derive(Debug, Clone)]
pub enum TextParts<'a> {
    /// Somebody else's.
    Lent(&'a [TextPart<'a>]),
    /// Its own.
    Own(Vec<TextPart<'a>>),
}

impl<'a> Deref for TextParts<'a> {
    type Target = [TextPart<'a>];

    fn deref(&self) -> &[TextPart<'a>] {
        match self {
            Self::Lent(parts) => parts,
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
    /// Just this.
    Text(Cow<'a, str>),
    /// Anything, or nothing.
    Any,
    /// Anything but nothing.
    Some,
    /// Anything without a slash, or nothing.
    Segment,
    /// What may follow a host: a dot, a port.
    HostEnd,
    /// Whatever may follow it so that somebody might still take it for that host: a dot, then anything behind a colon or a
    /// comma.
    HostRest,
    /// What may stand before it likewise: nothing, or anything that ends with a comma or a name of a user (`@`).
    HostBefore,
    /// Nothing, or a dot.
    Dot,
    /// Nothing, or elements of a comma-separated list before this one.
    ListBefore,
    /// Nothing, or elements after it.
    ListAfter,
    /// Nothing, or anything that begins with none of these characters.
    OtherAfter(String),
    /// Nothing, or anything that ends with none of these.
    OtherBefore(String),
}

/// How long a text may be of which it is said what differs from it: an expression for each character, of which the longest
/// is still one that an Envoy takes as it comes.
const DIFFERING_MAX: usize = 48;

impl<'a> TextForm<'a> {
    /// Patterns that together are every text that is not of this form: of the elements of a comma-separated list where
    /// the form could be that of an element, and is no whole text. None where that can't be said in short.
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
        // Blanks around an element are none of it.
        let other = |one: char, is_outer: bool| {
            let blanks = if is_listed && is_outer { " \t" } else { "" };
            format!("{one}{blanks}")
        };
        let mut all: Vec<Vec<TextPart<'_>>> = Vec::with_capacity(count + 1);
        for (place, (at, one)) in text.char_indices().enumerate() {
            let (before, after) = (&text[..at], &text[at + one.len_utf8()..]);
            let mut parts = Vec::new();
            if is_end {
                parts.extend([
                    TextPart::OtherBefore(other(one, place + 1 == count)),
                    TextPart::text(after),
                ]);
                parts.extend(is_listed.then_some(TextPart::ListAfter));
            } else {
                parts.extend(is_listed.then_some(TextPart::ListBefore));
                parts
                    .extend([TextPart::text(before), TextPart::OtherAfter(other(one, place == 0))]);
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

    pub(super) fn of(parts: &'a [TextPart<'a>]) -> Self {
        Self { parts: TextParts::Lent(parts), ignore_case: false }
    }

    /// The same for as long as anybody likes.
    pub(super) fn to_static(&self) -> TextPattern<'static> {
        let parts = self.parts.iter().map(TextPart::to_static).collect();
        TextPattern { parts: TextParts::Own(parts), ignore_case: self.ignore_case }
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
        for part in self.parts.iter() {
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

/// Characters as they stand between the brackets of an expression.
fn in_class(all: &str) -> String {
    let mut class = String::new();
    for one in all.chars() {
        match one {
            '\t' => class.push_str("\\t"),
            one if one.is_ascii_punctuation() => class.extend(['\\', one]),
            one => class.push(one),
        }
    }
    class
}

/// Whether the whole text is these parts, one after the other.
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
