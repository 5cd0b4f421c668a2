//! Sessions of browsers, which a holder of the token opens with a one-time code.
//!
//! Codes and sessions are signed texts that any replica can verify, so no process stores them, and
//! each request of a page can be sent to a different replica. The token itself is never sent to the
//! browser. The caller passes the time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::token::random_hex;
use strait_base::lock::lock;
use strait_identity::SharedKey;

/// Lifetime of an unused code.
pub(super) const CODE_LASTS: Duration = Duration::from_secs(60);
/// Maximum idle time of a session. An open page sends a request every minute.
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);
/// Maximum lifetime of a session.
const SESSION_LASTS: Duration = Duration::from_secs(12 * 3600);
/// Age of a cookie at which it is replaced, so that an active session is not idle.
const RENEWED_AFTER: Duration = Duration::from_secs(60);
/// Tolerated clock difference between replicas.
const CLOCKS_APART: Duration = Duration::from_secs(60);
/// Maximum number of remembered used codes. Codes expire soon, so more are not needed.
const USED_MAX: usize = 1024;
/// Length of the random part of a text.
const RANDOM: usize = 32;

/// Returns the current key of all replicas. It changes with the CA, which ends all sessions.
pub type SessionKey = Arc<dyn Fn() -> SharedKey + Send + Sync>;

/// Creates and verifies the sessions of browsers.
pub(super) struct BrowserSessions {
    key: SessionKey,
    /// Codes that this replica has accepted. Other replicas accept them until they expire.
    used: Mutex<VecDeque<String>>,
}

/// A valid session.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ValidSession {
    /// The value of `Set-Cookie` with which the session remains active, if it is due.
    pub(super) renewed: Option<String>,
}

impl BrowserSessions {
    pub(super) fn new(key: SessionKey) -> Self {
        Self { key, used: Mutex::default() }
    }

    /// Creates a code for a client that has presented the token. Returns `None` if the system
    /// provides no randomness.
    pub(super) fn code(&self, now: SystemTime) -> Option<String> {
        Some(signed(&(self.key)(), "code", &format!("{}x{}", seconds(now), random()?)))
    }

    /// Opens a session with a code. Returns the value of `Set-Cookie`.
    pub(super) fn open(&self, code: &str, now: SystemTime) -> Option<String> {
        let key = (self.key)();
        let made = verified(&key, "code", code)?.split('x').next()?.parse().ok()?;
        if !is_within(made, CODE_LASTS, now) {
            return None;
        }
        let random = random()?;
        let mut used = lock(&self.used);
        if used.iter().any(|one| one == code) {
            return None;
        }
        if used.len() >= USED_MAX {
            used.pop_front();
        }
        used.push_back(code.to_owned());
        drop(used);
        Some(cookie(&key, (seconds(now), seconds(now)), &random, now))
    }

    /// Returns the session of a `Cookie` header, if it is valid.
    pub(super) fn find(&self, header: &str, now: SystemTime) -> Option<ValidSession> {
        let key = (self.key)();
        let name = name(&key);
        let mut cookies = header.split(';').filter_map(|pair| pair.trim().split_once('='));
        let (_, given) = cookies.find(|(own, _)| *own == name)?;
        let content = verified(&key, "session", given)?;
        let mut parts = content.split('x');
        let opened = parts.next()?.parse().ok()?;
        let used = parts.next()?.parse().ok()?;
        let random = parts.next()?;
        let is_valid = is_within(opened, SESSION_LASTS, now) && is_within(used, IDLE_MAX, now);
        let is_due = !is_within(used, RENEWED_AFTER, now);
        let renewed = || cookie(&key, (opened, seconds(now)), random, now);
        is_valid.then(|| ValidSession { renewed: is_due.then(renewed) })
    }
}

/// Returns the name of the cookie. It differs for each mesh, because browsers send the cookies of
/// one port to all ports of a host.
fn name(key: &SharedKey) -> String {
    format!("strait-{}", key.sign("name of the cookie").get(..12).unwrap_or_default())
}

/// Returns the value of `Set-Cookie` of a session.
fn cookie(key: &SharedKey, (opened, used): (u64, u64), random: &str, now: SystemTime) -> String {
    let left = (opened + SESSION_LASTS.as_secs()).saturating_sub(seconds(now));
    format!(
        "{}={}; Path=/; HttpOnly; SameSite=Strict; Max-Age={left}",
        name(key),
        signed(key, "session", &format!("{opened}x{used}x{random}"))
    )
}

/// Returns a text with its signature. A text of one kind is never valid as another kind. Numbers and
/// hexadecimal digits are separated by `x` and `y`, because commands accept only letters and digits.
fn signed(key: &SharedKey, kind: &str, text: &str) -> String {
    format!("{text}y{}", key.sign(&format!("{kind} {text}")))
}

/// Returns the text without its signature, if the signature is valid.
fn verified<'a>(key: &SharedKey, kind: &str, given: &'a str) -> Option<&'a str> {
    let (text, signature) = given.split_once('y')?;
    key.verify(&format!("{kind} {text}"), signature).then_some(text)
}

fn random() -> Option<String> {
    Some(random_hex()?.get(..RANDOM)?.to_owned())
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Returns whether less than `limit` has passed since a time in seconds since the epoch. A time in
/// the future is valid only as far as clocks may differ.
fn is_within(since: u64, limit: Duration, now: SystemTime) -> bool {
    let now = seconds(now);
    since <= now + CLOCKS_APART.as_secs() && now.saturating_sub(since) < limit.as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions(secret: &'static str) -> BrowserSessions {
        BrowserSessions::new(Arc::new(move || SharedKey::derive(secret.as_bytes(), "sessions")))
    }

    /// Returns the `Cookie` header that a browser sends back for a `Set-Cookie`.
    fn sent(set: &str) -> String {
        format!("other=1; {}", set.split(';').next().expect("a cookie"))
    }

    #[test]
    fn code_opens_one_session_before_it_expires() {
        let (sessions, now) = (sessions("a"), SystemTime::now());
        let code = sessions.code(now).expect("a code");
        let cookie = sessions.open(&code, now).expect("a session");
        assert_eq!(sessions.find(&sent(&cookie), now), Some(ValidSession { renewed: None }));
        assert!(code.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{code}");
        assert!(cookie.contains("; HttpOnly; SameSite=Strict;") && !cookie.contains(&code));
        assert_eq!(sessions.open(&code, now), None, "used up");
        let late = sessions.code(now).expect("a code");
        assert_eq!(sessions.open(&late, now + CODE_LASTS), None, "too late");
        for wrong in ["", "x", "1y2", &code, &format!("1{late}"), &late[1..]] {
            assert_eq!(sessions.open(wrong, now), None);
        }
    }

    #[test]
    fn session_ends_when_it_is_idle_or_old() {
        let (sessions, now) = (sessions("a"), SystemTime::now());
        let open = || sent(&sessions.open(&sessions.code(now).expect("a code"), now).expect("one"));
        let (idle, mut busy) = (open(), open());
        let mut at = now;
        while at < now + SESSION_LASTS - Duration::from_secs(1) {
            let found = sessions.find(&busy, at).expect("it is active");
            busy = found.renewed.map_or(busy, |renewed| sent(&renewed));
            at += IDLE_MAX / 2;
        }
        assert_eq!(sessions.find(&busy, now + SESSION_LASTS), None, "too old");
        assert_eq!(sessions.find(&idle, now + IDLE_MAX), None);
    }

    #[test]
    fn session_is_valid_at_all_replicas_with_the_same_ca_only() {
        let (one, replica, other) = (sessions("a"), sessions("a"), sessions("b"));
        let now = SystemTime::now();
        let code = one.code(now).expect("a code");
        let cookie = sent(&replica.open(&code, now).expect("the code of another replica"));
        assert!(one.find(&cookie, now).is_some() && replica.find(&cookie, now).is_some());
        assert_eq!(other.find(&cookie, now), None);
        assert_eq!(other.open(&one.code(now).expect("a code"), now), None);
    }

    #[test]
    fn altered_cookie_is_invalid() {
        let (sessions, now) = (sessions("a"), SystemTime::now());
        let code = sessions.code(now).expect("a code");
        let cookie = sent(&sessions.open(&code, now).expect("one"));
        let later = format!("{}", seconds(now) + 1);
        let altered = cookie.replace(&seconds(now).to_string(), &later);
        assert_ne!(altered, cookie);
        assert_eq!(sessions.find(&altered, now), None);
        let (name, _) = cookie.rsplit_once('=').expect("a cookie");
        let fresh = sessions.code(now).expect("a code");
        assert_eq!(sessions.find(&format!("{name}={fresh}"), now), None, "a code is no session");
        assert_eq!(sessions.find("", now), None);
    }
}
