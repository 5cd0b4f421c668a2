//! Who may read from a browser: sessions that a holder of the token opens by a code that works once.
//!
//! Owns the codes and the sessions, in memory only: they end with the process. The token itself never reaches the
//! browser. Time is passed in.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::token::{equal, random_hex};

/// How long a code waits to be used.
pub(super) const CODE_LASTS: Duration = Duration::from_secs(60);
/// How many codes wait at once; the oldest makes room.
const CODES_MAX: usize = 16;
/// How long a session lasts that asks for nothing. A page that is open asks every minute.
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);
/// How long a session lasts at most.
const SESSION_LASTS: Duration = Duration::from_secs(12 * 3600);
/// How many sessions there are at once; the one that has been idle for longest makes room.
const SESSIONS_MAX: usize = 128;

/// The sessions of one process.
pub(super) struct BrowserSessions {
    /// The cookie's name, another one for each process: browsers send one port's cookies to all ports of a host.
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
        // Without randomness there are no codes, thus no sessions.
        let own = random_hex().unwrap_or_default();
        let cookie = format!("strait-{}", own.get(..12).unwrap_or_default());
        Self { cookie, table: Mutex::default() }
    }
}

impl BrowserSessions {
    /// A new code, for somebody who has shown the token; `None` where the system gives no randomness.
    pub(super) fn code(&self, now: Instant) -> Option<String> {
        let code = random_hex()?;
        let mut table = self.table(now);
        if table.codes.len() >= CODES_MAX {
            table.codes.pop_front();
        }
        table.codes.push_back((code.clone(), now));
        Some(code)
    }

    /// Opens a session with a code, which is used up by that: the value of `Set-Cookie`.
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

    /// Whether a `Cookie` header belongs to an open session, which thereby is in use.
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

    /// What has not ended by `now`.
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

    /// What a browser sends back of a `Set-Cookie`.
    fn sent(set: &str) -> String {
        format!("other=1; {}", set.split(';').next().expect("a cookie"))
    }

    #[test]
    fn a_code_opens_one_session_and_only_while_it_is_fresh() {
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
    fn a_session_ends_when_it_is_idle_or_old() {
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
    fn a_session_is_of_one_process() {
        let (sessions, other, now) =
            (BrowserSessions::default(), BrowserSessions::default(), Instant::now());
        let cookie = sessions.open(&sessions.code(now).expect("a code"), now).expect("one");
        assert!(!other.allows(&sent(&cookie), now));
        assert!(!sessions.allows("", now) && !sessions.allows(&sessions.cookie, now));
    }

    #[test]
    fn there_are_only_so_many_and_the_one_idle_for_longest_goes() {
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
