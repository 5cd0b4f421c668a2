//! Sessions of browsers, which a holder of the token opens with a one-time code.
//!
//! Owns the codes and the sessions, in memory only: they end with the process. The token itself
//! never reaches the browser. The caller passes the time.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::token::{equal, random_hex};

/// Lifetime of an unused code.
pub(super) const CODE_LASTS: Duration = Duration::from_secs(60);
/// Maximum number of unused codes; the oldest is dropped.
const CODES_MAX: usize = 16;
/// Maximum idle time of a session. An open page sends a request every minute.
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);
/// Maximum lifetime of a session.
const SESSION_LASTS: Duration = Duration::from_secs(12 * 3600);
/// Maximum number of sessions; the longest idle session is dropped.
const SESSIONS_MAX: usize = 128;

/// The sessions of one process.
pub(super) struct BrowserSessions {
    /// Name of the cookie, different for each process: browsers send the cookies of one port to all
    /// ports of a host.
    cookie: String,
    table: Mutex<BrowserSessionTable>,
}

#[derive(Default)]
struct BrowserSessionTable {
    codes: VecDeque<(String, Instant)>,
    open: Vec<BrowserSession>,
}

struct BrowserSession {
    id: String,
    opened: Instant,
    used: Instant,
}

impl Default for BrowserSessions {
    fn default() -> Self {
        // Without randomness there are no codes, and therefore no sessions.
        let own = random_hex().unwrap_or_default();
        let cookie = format!("strait-{}", own.get(..12).unwrap_or_default());
        Self { cookie, table: Mutex::default() }
    }
}

impl BrowserSessions {
    /// Creates a code for a client that has presented the token. Returns `None` if the system
    /// provides no randomness.
    pub(super) fn code(&self, now: Instant) -> Option<String> {
        let code = random_hex()?;
        let mut table = self.table(now);
        if table.codes.len() >= CODES_MAX {
            table.codes.pop_front();
        }
        table.codes.push_back((code.clone(), now));
        Some(code)
    }

    /// Opens a session and uses up its code. Returns the value of `Set-Cookie`.
    pub(super) fn open(&self, code: &str, now: Instant) -> Option<String> {
        let id = random_hex()?;
        let mut table = self.table(now);
        let at = table.codes.iter().position(|(known, _)| equal(known, code))?;
        table.codes.remove(at);
        if table.open.len() >= SESSIONS_MAX {
            let idle = table.open.iter().enumerate().min_by_key(|(_, session)| session.used);
            if let Some((at, _)) = idle {
                table.open.swap_remove(at);
            }
        }
        let cookie = format!(
            "{}={id}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}",
            self.cookie,
            SESSION_LASTS.as_secs()
        );
        table.open.push(BrowserSession { id, opened: now, used: now });
        Some(cookie)
    }

    /// Returns whether a `Cookie` header belongs to an open session, and marks the session as used.
    pub(super) fn allows(&self, header: &str, now: Instant) -> bool {
        let mut cookies = header.split(';').filter_map(|pair| pair.trim().split_once('='));
        let Some((_, given)) = cookies.find(|(name, _)| *name == self.cookie) else { return false };
        let mut table = self.table(now);
        match table.open.iter_mut().find(|session| equal(&session.id, given)) {
            Some(session) => {
                session.used = now;
                true
            }
            None => false,
        }
    }

    /// Returns the table without entries that have expired by `now`.
    fn table(&self, now: Instant) -> MutexGuard<'_, BrowserSessionTable> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.codes.retain(|(_, made)| now.duration_since(*made) < CODE_LASTS);
        table.open.retain(|session| {
            now.duration_since(session.used) < IDLE_MAX
                && now.duration_since(session.opened) < SESSION_LASTS
        });
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the `Cookie` header that a browser sends back for a `Set-Cookie`.
    fn sent(set: &str) -> String {
        format!("other=1; {}", set.split(';').next().expect("a cookie"))
    }

    #[test]
    fn code_opens_one_session_before_it_expires() {
        let (sessions, now) = (BrowserSessions::default(), Instant::now());
        let code = sessions.code(now).expect("a code");
        let cookie = sessions.open(&code, now).expect("a session");
        assert!(sessions.allows(&sent(&cookie), now));
        assert!(cookie.contains("; HttpOnly; SameSite=Strict;") && !cookie.contains(&code));
        assert_eq!(sessions.open(&code, now), None, "used up");
        let late = sessions.code(now).expect("a code");
        assert_eq!(sessions.open(&late, now + CODE_LASTS), None, "too late");
        for wrong in ["", "x", &code] {
            assert_eq!(sessions.open(wrong, now), None);
        }
    }

    #[test]
    fn session_ends_when_it_is_idle_or_old() {
        let (sessions, now) = (BrowserSessions::default(), Instant::now());
        let open = || sent(&sessions.open(&sessions.code(now).expect("a code"), now).expect("one"));
        let (idle, busy) = (open(), open());
        let mut at = now;
        while at < now + SESSION_LASTS {
            assert!(sessions.allows(&busy, at));
            at += IDLE_MAX / 2;
        }
        assert!(!sessions.allows(&busy, at), "it has had its time");
        assert!(!sessions.allows(&idle, now + IDLE_MAX));
    }

    #[test]
    fn session_is_valid_for_one_process() {
        let (sessions, other, now) =
            (BrowserSessions::default(), BrowserSessions::default(), Instant::now());
        let cookie = sessions.open(&sessions.code(now).expect("a code"), now).expect("one");
        assert!(!other.allows(&sent(&cookie), now));
        assert!(!sessions.allows("", now) && !sessions.allows(&sessions.cookie, now));
    }

    #[test]
    fn number_of_sessions_is_limited_and_the_longest_idle_one_is_dropped() {
        let (sessions, start) = (BrowserSessions::default(), Instant::now());
        let codes: Vec<_> = (0..=CODES_MAX).filter_map(|_| sessions.code(start)).collect();
        assert_eq!(sessions.open(&codes[0], start), None, "it made room");
        let open =
            |now| sent(&sessions.open(&sessions.code(now).expect("a code"), now).expect("one"));
        let first = open(start);
        let second = open(start + Duration::from_secs(1));
        let later = start + Duration::from_secs(2);
        assert!(sessions.allows(&first, later));
        let rest: Vec<_> = (0..SESSIONS_MAX - 1).map(|_| open(later)).collect();
        assert!(sessions.allows(&first, later) && !sessions.allows(&second, later));
        assert!(rest.iter().all(|one| sessions.allows(one, later)));
    }
}
