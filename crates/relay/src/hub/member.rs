//! A relayed member, described by the annotations and the data of its Secret.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use strait_base::hex;

/// `true` on a Secret: the member is read through a relay.
pub const RELAY_ANNOTATION: &str = "strait.dev/relay";
/// The generation of the relay's certificates that is issued now.
pub const GENERATION_ANNOTATION: &str = "strait.dev/relay-generation";
/// The time from which the previous generation is refused, RFC 3339. Without it, it is refused at once. Earlier generations
/// are always refused.
pub const GENERATION_FROM_ANNOTATION: &str = "strait.dev/relay-generation-from";
/// The data key with the SHA-256 of the invitation, in hexadecimal digits.
pub const INVITATION_KEY: &str = "invitation-sha256";
/// The data key with the expiry of the invitation, RFC 3339.
pub const INVITATION_EXPIRES_KEY: &str = "invitation-expires";

/// A member that is read through a relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayedMember {
    /// The Secret that defines it: namespace and name.
    pub secret: (String, String),
    /// The generation of the certificates that are issued now.
    pub generation: u64,
    /// The time from which the previous generation is refused; `None` for at once.
    pub generation_from: Option<SystemTime>,
    /// The UID of `kube-system` that the operator expects.
    pub uid: Option<Arc<str>>,
    /// The invitation, if there is one.
    pub invitation: Option<Invitation>,
}

/// An invitation to enrol one relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Invitation {
    /// The SHA-256 of the token.
    pub sha256: [u8; 32],
    /// The expiry.
    pub expires: SystemTime,
}

/// An annotation or a data key of a relayed member that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {fact}")]
pub struct RelayAnnotationError {
    /// The annotation or the data key.
    pub field: String,
    /// The problem with it.
    pub fact: String,
}

impl RelayedMember {
    /// Reads a Secret with [`RELAY_ANNOTATION`]. `data` returns the value of a data key.
    ///
    /// # Errors
    /// If a value cannot be read.
    pub fn read<'a>(
        secret: (String, String),
        annotations: &BTreeMap<String, String>,
        uid: Option<Arc<str>>,
        data: impl Fn(&str) -> Option<&'a [u8]>,
    ) -> Result<Self, RelayAnnotationError> {
        let failed = |field: String, fact: &str| RelayAnnotationError { field, fact: fact.into() };
        let annotation = |name: &str| annotations.get(name).filter(|value| !value.is_empty());
        let of = |name: &str| format!("annotation {name}");
        let generation = match annotation(GENERATION_ANNOTATION) {
            None => 1,
            Some(text) => {
                text.parse().ok().filter(|generation| *generation > 0).ok_or_else(|| {
                    failed(of(GENERATION_ANNOTATION), "is not a whole number from 1")
                })?
            }
        };
        let generation_from = match annotation(GENERATION_FROM_ANNOTATION) {
            None => None,
            Some(text) => Some(moment(text).ok_or_else(|| {
                failed(of(GENERATION_FROM_ANNOTATION), "is not a time such as 2026-11-29T08:00:00Z")
            })?),
        };
        let text = |key: &str| {
            let value = data(key).filter(|value| !value.is_empty());
            value.map(|value| String::from_utf8_lossy(value).trim().to_owned())
        };
        let key = |name: &str| format!("data key {name}");
        let invitation = match text(INVITATION_KEY) {
            None => None,
            Some(digits) => {
                let sha256 = hex::decode(&digits)
                    .and_then(|bytes| bytes.try_into().ok())
                    .ok_or_else(|| failed(key(INVITATION_KEY), "is not 64 hexadecimal digits"))?;
                let expires = text(INVITATION_EXPIRES_KEY).as_deref().and_then(moment);
                let expires = expires.ok_or_else(|| {
                    failed(
                        key(INVITATION_EXPIRES_KEY),
                        "is not a time such as 2026-11-29T08:00:00Z",
                    )
                })?;
                Some(Invitation { sha256, expires })
            }
        };
        Ok(Self { secret, generation, generation_from, uid, invitation })
    }

    /// Returns the least generation of a certificate that is accepted at `now`. Until `generation_from`, that is the
    /// previous one: a certificate that an earlier rotation has ended never becomes valid again.
    pub fn least_generation(&self, now: SystemTime) -> u64 {
        match self.generation_from {
            Some(from) if now < from => self.generation.saturating_sub(1),
            _ => self.generation,
        }
    }
}

fn moment(text: &str) -> Option<SystemTime> {
    let stamp: jiff::Timestamp = text.trim().parse().ok()?;
    Some(stamp.into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn read(
        annotations: &[(&str, &str)],
        data: &[(&str, &'static str)],
    ) -> Result<RelayedMember, RelayAnnotationError> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let annotations = annotations.iter().map(owned).collect();
        let find = |key: &str| {
            data.iter().find(|(name, _)| *name == key).map(|(_, value)| value.as_bytes())
        };
        RelayedMember::read(("ns".into(), "name".into()), &annotations, None, find)
    }

    #[test]
    fn secret_without_an_invitation_has_generation_one() {
        let member = read(&[], &[]).expect("valid");
        assert_eq!((member.generation, member.invitation), (1, None));
        assert_eq!(member.least_generation(SystemTime::now()), 1);
    }

    #[test]
    fn invitation_has_a_hash_and_an_end() {
        let hash = "00ff".repeat(16);
        let hash: &'static str = hash.leak();
        let end = (INVITATION_EXPIRES_KEY, "2026-11-29T08:00:00Z");
        let member = read(&[], &[(INVITATION_KEY, hash), end]).expect("valid");
        let invitation = member.invitation.expect("one");
        assert_eq!((invitation.sha256[0], invitation.sha256[1]), (0, 255));
        for (hash, end) in [("0", end), ("zz", end), (hash, (INVITATION_EXPIRES_KEY, "soon"))] {
            assert!(read(&[], &[(INVITATION_KEY, hash), end]).is_err());
        }
        assert!(read(&[], &[(INVITATION_KEY, hash)]).is_err(), "an invitation without an end");
    }

    #[test]
    fn previous_generation_is_refused_from_a_time_on_and_earlier_ones_always() {
        let member = read(
            &[(GENERATION_ANNOTATION, "3"), (GENERATION_FROM_ANNOTATION, "2026-11-29T08:00:00Z")],
            &[],
        );
        let member = member.expect("valid");
        let from = member.generation_from.expect("a time");
        assert_eq!(member.least_generation(from - Duration::from_secs(1)), 2);
        assert_eq!(member.least_generation(from), 3);
        for wrong in ["0", "-1", "x", "1.5"] {
            assert!(read(&[(GENERATION_ANNOTATION, wrong)], &[]).is_err(), "{wrong}");
        }
    }
}
