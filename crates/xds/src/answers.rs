//! What was sent of one type and is to be answered, and how far the client has followed.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

use super::resource::Version;

/// Responses whose answer is awaited; older ones are forgotten, so that a client which never answers
/// costs a bounded amount.
const OUTSTANDING_MAX: usize = 256;
/// The longest error text of a client that is kept, in characters.
const ERROR_LENGTH_MAX: usize = 2048;
/// How much of an error text is searched for names, in bytes: a request may be megabytes, and is
/// searched for each resource of a response. Envoy puts the names first, then what is wrong.
const ERROR_SEARCH_MAX: usize = 16 << 10;

/// A response that the client refused, until it accepts later ones for the same resources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nack {
    /// The client's text, without control characters and cut to a bounded length.
    pub error: String,
    /// The resources that its text names, or that were alone in their response.
    pub resources: BTreeSet<Arc<str>>,
    /// Those of responses of whose resources the text names none: one of them is at fault, and it is unknown which.
    pub suspects: BTreeSet<Arc<str>>,
}

impl Nack {
    /// Forgets a resource that the client has accepted, or doesn't hold any more.
    fn forget(&mut self, name: &str) {
        self.resources.remove(name);
        self.suspects.remove(name);
    }

    fn is_over(&self) -> bool {
        self.resources.is_empty() && self.suspects.is_empty()
    }
}

/// How far a client has followed. A version here is a digest of all the client holds of the type.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// The last one sent.
    pub sent: Option<Version>,
    /// The last one accepted.
    pub acked: Option<Version>,
    /// When something was last sent.
    pub last_sent: Option<SystemTime>,
    /// When something was last accepted.
    pub last_acked: Option<SystemTime>,
    /// What is refused at present.
    pub nack: Option<Nack>,
}

/// What a client did with what it was last sent, the worst last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProxyStanding {
    /// It has accepted it, or was sent nothing.
    #[default]
    InSync,
    /// It has not answered yet.
    Waits,
    /// It has refused it, and keeps what it had before.
    Refuses,
}

impl ProxyStanding {
    pub(super) fn of(progress: &Progress) -> Self {
        if progress.nack.is_some() {
            Self::Refuses
        } else if progress.sent.is_some() && progress.sent != progress.acked {
            Self::Waits
        } else {
            Self::InSync
        }
    }
}

/// Responses of one type, until they are answered, and what came of those before.
#[derive(Debug, Default)]
pub(super) struct PendingResponses {
    outstanding: VecDeque<Outstanding>,
    progress: Progress,
}

#[derive(Debug)]
struct Outstanding {
    nonce: u64,
    state: Version,
    /// Their names alone: a client that never answers must not keep old bytes.
    names: SentNames,
}

/// The names in a response: in pieces, and one by one.
#[derive(Debug)]
pub(super) struct SentNames {
    pub(super) pieces: Vec<Arc<[Arc<str>]>>,
    pub(super) others: Box<[Arc<str>]>,
}

impl SentNames {
    fn iter(&self) -> impl Iterator<Item = &Arc<str>> {
        self.pieces.iter().flat_map(|names| names.iter()).chain(&self.others)
    }
}

impl PendingResponses {
    /// How far the client has followed.
    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Records a response; with it the client holds `state`.
    pub(super) fn sent(&mut self, nonce: u64, state: Version, names: SentNames, now: SystemTime) {
        if self.outstanding.len() == OUTSTANDING_MAX {
            self.outstanding.pop_front();
        }
        self.outstanding.push_back(Outstanding { nonce, state, names });
        self.progress.sent = Some(state);
        self.progress.last_sent = Some(now);
    }

    /// Whether the answer to a response up to that nonce is awaited: they come in order.
    pub(super) fn awaits(&self, nonce: u64) -> bool {
        self.outstanding.front().is_some_and(|sent| sent.nonce <= nonce)
    }

    /// Believes the client that it holds `state`, from before this stream.
    pub(super) fn listed(&mut self, state: Version) {
        self.progress.sent = Some(state);
        self.progress.acked = Some(state);
    }

    /// Forgets that a resource was refused: the client doesn't hold it any more.
    pub(super) fn forget(&mut self, name: &str) {
        if let Some(nack) = &mut self.progress.nack {
            nack.forget(name);
        }
        self.progress.nack.take_if(|nack| nack.is_over());
    }

    /// Takes the client's answer to a response, a refusal if there is an `error`. Returns whether an
    /// answer to that nonce was awaited; if not, it says nothing (xDS protocol, "stale nonce").
    ///
    /// Nothing is sent because of a refusal: the client keeps the last good version, and hears again
    /// when the resource changes. Sending it at once would only go round in circles.
    pub(super) fn answer(&mut self, nonce: u64, error: Option<&str>, now: SystemTime) -> bool {
        let Some(position) = self.outstanding.iter().position(|sent| sent.nonce == nonce) else {
            return false;
        };
        // A client answers in order: what it passed over it will not answer any more.
        let Some(answered) = self.outstanding.drain(..=position).next_back() else { return false };
        let progress = &mut self.progress;
        let of_response = || answered.names.iter();
        match error {
            None => {
                progress.acked = Some(answered.state);
                progress.last_acked = Some(now);
                if let Some(nack) = &mut progress.nack {
                    of_response().for_each(|name| nack.forget(name));
                }
                progress.nack.take_if(|nack| nack.is_over());
            }
            Some(error) => {
                let searched = beginning(error, ERROR_SEARCH_MAX);
                let is_alone = of_response().count() == 1;
                let mut named = of_response().filter(|name| is_alone || mentions(searched, name));
                let mut nack = progress.nack.take().unwrap_or_default();
                nack.error = printable(error);
                match named.next() {
                    None => nack.suspects.extend(of_response().cloned()),
                    Some(first) => {
                        // Whoever names some has nothing against the others.
                        of_response().for_each(|name| nack.forget(name));
                        nack.resources.extend(std::iter::once(first).chain(named).cloned());
                    }
                }
                progress.nack = Some(nack);
            }
        }
        true
    }
}

/// Whether `text` names `name`, and not only something that it is a part of.
fn mentions(text: &str, name: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || "|_-*".contains(c);
    !name.is_empty()
        && text.match_indices(name).any(|(at, _)| {
            let (before, after) = (&text[..at], &text[at + name.len()..]);
            // A stop ends a sentence unless a name goes on behind it.
            let rest = after.strip_prefix('.').unwrap_or(after);
            !before.ends_with(|c| inside(c) || c == '.')
                && !after.starts_with(inside)
                && (rest.len() == after.len() || !rest.starts_with(inside))
        })
}

/// At most the first `bytes` of a text.
fn beginning(text: &str, bytes: usize) -> &str {
    (0..=bytes.min(text.len())).rev().find_map(|end| text.get(..end)).unwrap_or_default()
}

/// A client's text, safe to show and log.
fn printable(text: &str) -> String {
    let visible = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(ERROR_LENGTH_MAX).map(visible).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_whole_names_only() {
        for (text, names_it) in [
            ("Error adding/updating cluster(s) outbound|80||a.b: no such thing", true),
            ("bad outbound|80||a.b.", true),
            ("outbound|80||a.b", true),
            ("\"outbound|80||a.b\", outbound|80||c.d", true),
            ("bad outbound|80||a.b.c", false),
            ("bad xoutbound|80||a.b", false),
            ("bad outbound|80||a.bc", false),
            ("", false),
        ] {
            assert_eq!(mentions(text, "outbound|80||a.b"), names_it, "{text}");
        }
    }

    #[test]
    fn a_clients_text_is_cut_and_cleaned() {
        assert_eq!(printable("a\u{1b}[31m\nb"), "a [31m b");
        assert_eq!(printable(&"ü".repeat(10_000)).chars().count(), ERROR_LENGTH_MAX);
    }
}
