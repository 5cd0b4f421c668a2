//! Responses of one type that the client has not answered yet, and the versions that it has
//! acknowledged or rejected.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

use super::resource::Version;

/// The maximum number of unanswered responses that are recorded. Older ones are dropped, so that a
/// client that never answers uses bounded memory.
const OUTSTANDING_MAX: usize = 256;
/// The maximum length of a client's error text that is stored, in characters.
const ERROR_LENGTH_MAX: usize = 2048;
/// The length of the prefix of an error text that is searched for resource names, in bytes. A
/// request may be megabytes long, and its error is searched once for each resource of the response.
/// Envoy puts the names first, followed by the problem.
const ERROR_SEARCH_MAX: usize = 16 << 10;

/// A rejection (NACK). It lasts until the client accepts later responses for the same resources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nack {
    /// The client's error text, without control characters and cut to a bounded length.
    pub error: String,
    /// Resources that the error text names, or that were alone in their response.
    pub resources: BTreeSet<Arc<str>>,
    /// Resources of rejected responses whose error text names no resource. At least one resource of
    /// each such response is at fault, but it is unknown which.
    pub suspects: BTreeSet<Arc<str>>,
}

impl Nack {
    /// Removes a resource that the client has accepted or no longer holds.
    fn forget(&mut self, name: &str) {
        self.resources.remove(name);
        self.suspects.remove(name);
    }

    fn is_over(&self) -> bool {
        self.resources.is_empty() && self.suspects.is_empty()
    }
}

/// The last versions that were sent to a client and acknowledged by it, for one type.
///
/// A version here is a digest of all resources of the type that the client holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// The version of the last response that was sent.
    pub sent: Option<Version>,
    /// The version of the last response that was accepted.
    pub acked: Option<Version>,
    /// The time at which the last response was sent.
    pub last_sent: Option<SystemTime>,
    /// The time at which the last response was accepted.
    pub last_acked: Option<SystemTime>,
    /// The current rejection.
    pub nack: Option<Nack>,
}

/// A proxy's reaction to the last responses. A later variant is worse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProxyStanding {
    /// The proxy has accepted the last response, or was sent nothing.
    #[default]
    InSync,
    /// The proxy has not answered yet.
    Waits,
    /// The proxy has rejected the last response and keeps its previous configuration.
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

/// Unanswered responses of one type, and the client's progress so far.
#[derive(Debug, Default)]
pub(super) struct PendingResponses {
    outstanding: VecDeque<Outstanding>,
    progress: Progress,
}

#[derive(Debug)]
struct Outstanding {
    nonce: u64,
    state: Version,
    /// Only the names are stored: a client that never answers must not keep old bytes in memory.
    names: SentNames,
}

/// The names in a response, divided into shared list pieces and remaining names.
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
    /// Returns the last versions that were sent and acknowledged.
    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Records a response. `state` is the digest of all resources that the client holds after
    /// accepting it.
    pub(super) fn sent(&mut self, nonce: u64, state: Version, names: SentNames, now: SystemTime) {
        if self.outstanding.len() == OUTSTANDING_MAX {
            self.outstanding.pop_front();
        }
        self.outstanding.push_back(Outstanding { nonce, state, names });
        self.progress.sent = Some(state);
        self.progress.last_sent = Some(now);
    }

    /// Returns whether a response with this nonce or an earlier one is unanswered. Clients answer
    /// in order.
    pub(super) fn awaits(&self, nonce: u64) -> bool {
        self.outstanding.front().is_some_and(|sent| sent.nonce <= nonce)
    }

    /// Records that the client states that it already held `state` when the stream began.
    pub(super) fn listed(&mut self, state: Version) {
        self.progress.sent = Some(state);
        self.progress.acked = Some(state);
    }

    /// Removes a resource from the current rejection, because the client no longer holds it.
    pub(super) fn forget(&mut self, name: &str) {
        if let Some(nack) = &mut self.progress.nack {
            nack.forget(name);
        }
        self.progress.nack.take_if(|nack| nack.is_over());
    }

    /// Records the client's answer to a response. With an `error`, it is a rejection.
    ///
    /// Returns whether a response with that nonce was unanswered. If not, the nonce is stale and
    /// has no effect (xDS protocol, "stale nonce").
    ///
    /// A rejection triggers no response. The client keeps its last valid version and receives the
    /// resource again when it changes. If the resource were sent again at once, the client would
    /// reject it again, without end.
    pub(super) fn answer(&mut self, nonce: u64, error: Option<&str>, now: SystemTime) -> bool {
        let Some(position) = self.outstanding.iter().position(|sent| sent.nonce == nonce) else {
            return false;
        };
        // A client answers in order: it will not answer the responses that it skipped.
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
                        // An error that names some resources means that the others were accepted.
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

/// Returns whether `text` contains `name` as a whole name, not as a part of a longer one.
fn mentions(text: &str, name: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || "|_-*".contains(c);
    !name.is_empty()
        && text.match_indices(name).any(|(at, _)| {
            let (before, after) = (&text[..at], &text[at + name.len()..]);
            // A dot ends a sentence, unless the name continues after it.
            let rest = after.strip_prefix('.').unwrap_or(after);
            !before.ends_with(|c| inside(c) || c == '.')
                && !after.starts_with(inside)
                && (rest.len() == after.len() || !rest.starts_with(inside))
        })
}

/// Returns at most the first `bytes` bytes of a text, cut at a character boundary.
fn beginning(text: &str, bytes: usize) -> &str {
    (0..=bytes.min(text.len())).rev().find_map(|end| text.get(..end)).unwrap_or_default()
}

/// Makes a client's text safe to display and log.
fn printable(text: &str) -> String {
    let visible = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(ERROR_LENGTH_MAX).map(visible).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_a_resource_only_by_its_whole_name() {
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
    fn client_text_is_truncated_and_control_characters_are_replaced() {
        assert_eq!(printable("a\u{1b}[31m\nb"), "a [31m b");
        assert_eq!(printable(&"ü".repeat(10_000)).chars().count(), ERROR_LENGTH_MAX);
    }
}
