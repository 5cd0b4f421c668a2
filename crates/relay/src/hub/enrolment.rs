//! Requests of relays for certificates: their content, their invitation, and their limits. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use ring::digest::{SHA256, digest};
use serde::de::DeserializeOwned;

use super::member::{Invitation, RelayedMember};
use crate::wire::{EnrolRequest, ErrorBody, ErrorResponse, REQUEST_BYTES_MAX, RenewRequest};
use strait_base::codes::{self, Code};
use strait_model::ClusterId;

/// The interval in which one address may send one request.
const SOURCE_INTERVAL: Duration = Duration::from_secs(1);
/// The number of requests that are accepted within [`SOURCE_INTERVAL`].
const TOTAL_MAX: usize = 10;

/// Why a relay gets no certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnrolmentRefusal {
    /// The HTTP status.
    pub status: u16,
    /// The code.
    pub code: &'static Code,
    /// The fact.
    pub fact: String,
}

impl EnrolmentRefusal {
    /// Creates a refusal.
    pub fn new(status: u16, code: &'static Code, fact: impl Into<String>) -> Self {
        Self { status, code, fact: fact.into() }
    }

    /// Returns the body of the response.
    pub fn body(&self) -> ErrorResponse {
        let message = format!("{}. {}", self.fact, self.code.next.lines().next().unwrap_or(""));
        ErrorResponse { error: ErrorBody { code: self.code.id.to_owned(), message } }
    }
}

/// Parses a request for a first certificate.
///
/// # Errors
/// With status 400 or 413 if it is invalid.
pub fn read_enrol(body: &[u8]) -> Result<EnrolRequest, EnrolmentRefusal> {
    let request: EnrolRequest = parse(body)?;
    let missing = |fact: &str| EnrolmentRefusal::new(400, &codes::RELAY_REQUEST, fact);
    if request.token.trim().is_empty() {
        return Err(missing("the token is empty"));
    }
    if request.csr.trim().is_empty() {
        return Err(missing("the certificate request (csr) is empty"));
    }
    if request.cluster_uid.trim().is_empty() {
        return Err(missing("the UID of kube-system (clusterUid) is empty"));
    }
    Ok(request)
}

/// Parses a request for a further certificate.
///
/// # Errors
/// With status 400 or 413 if it is invalid.
pub fn read_renew(body: &[u8]) -> Result<RenewRequest, EnrolmentRefusal> {
    let request: RenewRequest = parse(body)?;
    if request.csr.trim().is_empty() {
        let fact = "the certificate request (csr) is empty";
        return Err(EnrolmentRefusal::new(400, &codes::RELAY_REQUEST, fact));
    }
    Ok(request)
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, EnrolmentRefusal> {
    if body.len() > REQUEST_BYTES_MAX {
        let fact = format!("the request is longer than {} KiB", REQUEST_BYTES_MAX >> 10);
        return Err(EnrolmentRefusal::new(413, &codes::RELAY_REQUEST, fact));
    }
    serde_json::from_slice(body).map_err(|error| {
        // The text of the error may contain the token.
        let (line, column) = (error.line(), error.column());
        let fact = format!("the request is not the expected JSON (line {line}, column {column})");
        EnrolmentRefusal::new(400, &codes::RELAY_REQUEST, fact)
    })
}

/// Returns the member that the token of an invitation is for, with the invitation.
///
/// # Errors
/// With status 401 if no member has this invitation, or it has expired.
pub fn invited<'a>(
    members: &'a BTreeMap<ClusterId, RelayedMember>,
    token: &str,
    now: SystemTime,
) -> Result<(&'a ClusterId, &'a RelayedMember, Invitation), EnrolmentRefusal> {
    let hash = digest(&SHA256, token.trim().as_bytes());
    let invitation =
        |member: &RelayedMember| member.invitation.filter(|i| is_equal(&i.sha256, hash.as_ref()));
    // All are compared, so that the time does not depend on the place of the member.
    let found = members.iter().fold(None, |found, (cluster, member)| {
        found.or(invitation(member).map(|invitation| (cluster, member, invitation)))
    });
    let refused = |fact: String| EnrolmentRefusal::new(401, &codes::RELAY_INVITATION, fact);
    let (cluster, member, invitation) = found.ok_or_else(|| {
        refused("the invitation is unknown, already used, or replaced by a later one".to_owned())
    })?;
    if now >= invitation.expires {
        return Err(refused(format!("the invitation of {cluster} has expired")));
    }
    Ok((cluster, member, invitation))
}

/// Compares in a time that does not depend on the content.
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).fold(0, |differs, (one, other)| differs | (one ^ other)) == 0
}

/// Checks that a relay was started for the cluster of its invitation or token. An empty `named` is
/// from a relay that does not send it.
///
/// # Errors
/// With status 409 if it was started for another cluster.
pub fn check_id(cluster: &ClusterId, named: &str) -> Result<(), EnrolmentRefusal> {
    if named.is_empty() || named == cluster.as_str() {
        return Ok(());
    }
    let fact = format!(
        "the invitation is for {cluster}, and the relay was started with --cluster {named}"
    );
    Err(EnrolmentRefusal::new(409, &codes::RELAY_CLUSTER, fact))
}

/// Checks that a relay is in the cluster that it enrols for. `known` are the UIDs of the members.
///
/// # Errors
/// With status 409 if the UID differs from the known UID of the member, and 403 if it is the UID of another member.
pub fn check_uid(
    cluster: &ClusterId,
    member: &RelayedMember,
    uid: &str,
    known: &BTreeMap<ClusterId, String>,
) -> Result<(), EnrolmentRefusal> {
    let refused = |status, fact| Err(EnrolmentRefusal::new(status, &codes::RELAY_CLUSTER, fact));
    if let Some((other, _)) = known.iter().find(|(id, known)| *id != cluster && *known == uid) {
        return refused(403, format!("the relay of {cluster} runs in the cluster of {other}"));
    }
    let expected = member.uid.as_deref().or_else(|| known.get(cluster).map(String::as_str));
    match expected {
        Some(expected) if expected != uid => refused(
            409,
            format!("the relay's cluster has the UID {uid:?}, but {cluster} is {expected:?}"),
        ),
        _ => Ok(()),
    }
}

/// Limits the requests for certificates: one per second and address, ten per second in total.
#[derive(Debug, Default)]
pub struct EnrolmentLimits {
    /// The accepted requests of the last [`SOURCE_INTERVAL`]; at most [`TOTAL_MAX`].
    recent: Vec<(Instant, IpAddr)>,
}

impl EnrolmentLimits {
    /// Counts a request from `source`.
    ///
    /// # Errors
    /// With status 429 if there were too many.
    pub fn take(&mut self, source: IpAddr, now: Instant) -> Result<(), EnrolmentRefusal> {
        self.recent.retain(|(at, _)| now.duration_since(*at) < SOURCE_INTERVAL);
        let refused = |fact: &str| EnrolmentRefusal::new(429, &codes::RELAY_LIMIT, fact);
        if self.recent.len() >= TOTAL_MAX {
            return Err(refused("ten requests per second are accepted in total"));
        }
        if self.recent.iter().any(|(_, from)| *from == source) {
            return Err(refused("one request per second is accepted from one address"));
        }
        self.recent.push((now, source));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::Invitation;

    fn member(token: &str, expires: SystemTime) -> RelayedMember {
        let mut sha256 = [0; 32];
        sha256.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        RelayedMember {
            secret: ("strait-system".into(), "strait-member".into()),
            generation: 1,
            generation_from: None,
            uid: None,
            invitation: Some(Invitation { sha256, expires }),
        }
    }

    #[test]
    fn token_finds_its_member_until_it_expires() {
        let now = SystemTime::now();
        let later = now + Duration::from_secs(60);
        let members = BTreeMap::from([
            ("east".into(), member("a", later)),
            ("west".into(), member("b", now)),
        ]);
        assert_eq!(invited(&members, " a\n", now).expect("valid").0, &"east".into());
        for token in ["b", "c", ""] {
            assert_eq!(invited(&members, token, now).expect_err("refused").status, 401, "{token}");
        }
    }

    #[test]
    fn uid_must_be_that_of_the_member() {
        let now = SystemTime::now();
        let (east, west): (ClusterId, ClusterId) = ("east".into(), "west".into());
        let known = BTreeMap::from([(west.clone(), "w".to_owned())]);
        let status = |cluster, member: &RelayedMember, uid| {
            check_uid(cluster, member, uid, &known).map_err(|refusal| refusal.status)
        };
        let unknown = member("a", now);
        assert_eq!(status(&east, &unknown, "e"), Ok(()));
        assert_eq!(status(&east, &unknown, "w"), Err(403));
        assert_eq!(status(&west, &unknown, "w"), Ok(()));
        assert_eq!(status(&west, &unknown, "x"), Err(409));
        let pinned = RelayedMember { uid: Some("e".into()), ..unknown };
        assert_eq!(status(&east, &pinned, "x"), Err(409));
        assert!(check_id(&east, "").is_ok() && check_id(&east, "east").is_ok());
        let refusal = check_id(&east, "west").expect_err("another cluster");
        assert_eq!((refusal.status, refusal.code.id), (409, "STR0344"));
    }

    #[test]
    fn invalid_request_is_refused_without_its_content() {
        let long = format!(r#"{{"token":"{}"}}"#, "x".repeat(REQUEST_BYTES_MAX));
        for (body, status) in [
            ("", 400),
            ("[]", 400),
            (r#"{"token":"canary"}"#, 400),
            (r#"{"token":"canary","csr":"x","clusterUid":"u","more":1}"#, 400),
            (r#"{"token":" ","csr":"x","clusterUid":"u"}"#, 400),
            (r#"{"token":"canary","csr":"","clusterUid":"u"}"#, 400),
            (r#"{"token":"canary","csr":"x","clusterUid":""}"#, 400),
            (&long, 413),
        ] {
            let refusal = read_enrol(body.as_bytes()).err().expect("refused");
            assert_eq!(refusal.status, status, "{body}");
            assert!(!format!("{:?}", refusal.body()).contains("canary"), "{body}");
        }
        assert!(read_enrol(br#"{"token":"t","csr":"x","clusterUid":"u"}"#).is_ok());
    }

    #[test]
    fn requests_are_limited_by_address_and_in_total() {
        let (mut limits, now) = (EnrolmentLimits::default(), Instant::now());
        let address = |last: u8| IpAddr::from([10, 0, 0, last]);
        assert!(limits.take(address(1), now).is_ok());
        assert_eq!(limits.take(address(1), now).expect_err("too soon").status, 429);
        for last in 2..=10 {
            assert!(limits.take(address(last), now).is_ok());
        }
        assert_eq!(limits.take(address(11), now).expect_err("too many").status, 429);
        assert!(limits.take(address(1), now + SOURCE_INTERVAL).is_ok());
    }
}
