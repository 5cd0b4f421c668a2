//! Limits of requests, and the outcome of handling one.

/// The maximum number of unserved types that a stream may request. Envoy knows about ten.
pub(super) const TYPES_MAX: usize = 32;

/// The name that subscribes to all resources of a wildcard type.
pub(super) const EVERYTHING: &str = "*";

/// Removes the wildcard from a list of names. Returns whether the list contained it.
pub(super) fn take_everything(names: &mut Vec<&str>) -> bool {
    let before = names.len();
    names.retain(|name| *name != EVERYTHING);
    names.len() < before
}

/// The maximum number of names of one type that a client may subscribe to.
pub const NAMES_MAX: usize = 100_000;

/// The maximum length of a name that a client may subscribe to, in bytes.
pub const NAME_LENGTH_MAX: usize = 512;

/// The kind of a request that was handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handled {
    /// The request acknowledged an unanswered response. It may also have changed the subscription.
    Answer,
    /// The request rejected an unanswered response. It may also have changed the subscription.
    Refusal,
    /// The request did not answer a response.
    Request,
}

/// A request that ends the stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The first request does not contain the node.
    #[error("STR0502: the first request on a stream must carry the node")]
    NoNode,
    /// A later request contains a different node ID.
    #[error("STR0502: the node of a stream can't change, from {was:?} to {now:?}")]
    NodeChanged {
        /// The node ID of the first request.
        was: String,
        /// The node ID of the later request.
        now: String,
    },
    /// The request has no type.
    #[error("STR0502: a request must name a resource type")]
    NoType,
    /// The stream requested more than 32 unserved types.
    #[error(
        "STR0502: a stream may ask for {TYPES_MAX} types that are not served here, and no more"
    )]
    TooManyTypes,
    /// The type URL is longer than [`NAME_LENGTH_MAX`] bytes.
    #[error("STR0502: the name of a resource type is {0} bytes long, more than {NAME_LENGTH_MAX}")]
    TypeTooLong(usize),
    /// The client subscribed to more than [`NAMES_MAX`] names.
    #[error("STR0502: {0} names of one type are more than the {NAMES_MAX} a stream may watch")]
    TooManyNames(usize),
    /// The client subscribed to more secrets than are served or reported as surplus.
    #[error("STR0502: more than {0} names of secrets")]
    TooManySecrets(usize),
    /// A name is longer than [`NAME_LENGTH_MAX`] bytes.
    #[error("STR0502: a resource name of {0} bytes is longer than {NAME_LENGTH_MAX}")]
    NameTooLong(usize),
}

/// Checks the limits on the number and length of the names that a stream subscribes to.
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
