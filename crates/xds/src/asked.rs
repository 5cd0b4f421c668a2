//! What a request may ask for, and what becomes of it.

/// The most types of which there is nothing that a stream may ask for: Envoy knows some ten.
pub(super) const TYPES_MAX: usize = 32;

/// Subscribes to everything of a wildcard type.
pub(super) const EVERYTHING: &str = "*";

/// Takes the wildcard out of a list of names; returns whether it was in it.
pub(super) fn take_everything(names: &mut Vec<&str>) -> bool {
    let before = names.len();
    names.retain(|name| *name != EVERYTHING);
    names.len() < before
}

/// The most names a client may watch of one type.
pub const NAMES_MAX: usize = 100_000;

/// The longest name a client may watch, in bytes.
pub const NAME_LENGTH_MAX: usize = 512;

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handled {
    /// It answered a response whose answer was awaited, whatever else it requested.
    Answer,
    /// The same, and it was a refusal.
    Refusal,
    /// It came by itself.
    Request,
}

/// A request that ends the stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The first request doesn't say who sends it.
    #[error("STR0502: the first request on a stream must carry the node")]
    NoNode,
    /// A later request comes from somebody else.
    #[error("STR0502: the node of a stream can't change, from {was:?} to {now:?}")]
    NodeChanged {
        /// Who opened the stream.
        was: String,
        /// Who sends now.
        now: String,
    },
    /// A request without a type.
    #[error("STR0502: a request must name a resource type")]
    NoType,
    /// More than 32 types of which there is nothing here.
    #[error(
        "STR0502: a stream may ask for {TYPES_MAX} types that are not served here, and no more"
    )]
    TooManyTypes,
    /// A type of a longer name than [`NAME_LENGTH_MAX`] bytes.
    #[error("STR0502: the name of a resource type is {0} bytes long, more than {NAME_LENGTH_MAX}")]
    TypeTooLong(usize),
    /// More than [`NAMES_MAX`] names.
    #[error("STR0502: {0} names of one type are more than the {NAMES_MAX} a stream may watch")]
    TooManyNames(usize),
    /// Names of more secrets than are even told that they are too many.
    #[error("STR0502: more than {0} names of secrets")]
    TooManySecrets(usize),
    /// A name of more than [`NAME_LENGTH_MAX`] bytes.
    #[error("STR0502: a resource name of {0} bytes is longer than {NAME_LENGTH_MAX}")]
    NameTooLong(usize),
}

/// Refuses more names, or longer ones, than a stream may watch.
pub(super) fn check_names<'a>(
    names: impl IntoIterator<Item = &'a &'a str>,
    watched_already: usize,
) -> Result<(), Violation> {
    let mut count = watched_already;
    for name in names {
        count += 1;
        if name.len() > NAME_LENGTH_MAX {
            return Err(Violation::NameTooLong(name.len()));
        }
    }
    if count > NAMES_MAX { Err(Violation::TooManyNames(count)) } else { Ok(()) }
}
