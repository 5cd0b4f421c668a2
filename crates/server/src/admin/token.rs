//! The token that `/debug/*` and `/api/*` ask for.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tracing::warn;

use strait_base::{codes, durable};
use strait_kube_client::Redacted;

/// The fewest bytes of a token: less is guessed.
const SHORTEST: usize = 16;
/// The most bytes of its file.
const FILE_MAX: u64 = 4096;

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// A file can't be read.
    #[error("admin token file {path}: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A new one can't be written.
    #[error("admin token file {path} can't be written: {source}", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// What the file holds is no token.
    #[error("admin token file {path} {fact}; a token has at least {SHORTEST} characters", path = path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fact: String,
    },
    /// The system gives no randomness.
    #[error("no randomness for an admin token")]
    NoRandomness,
}

/// A bearer token.
#[derive(Clone)]
pub struct Token(Redacted<String>);

impl Token {
    /// Reads the token of an operator's own file.
    ///
    /// # Errors
    /// When the file can't be read, or holds none.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let token = Self::of_file(path)?;
        // A group is how a pod is given its Secrets; everybody is a mistake.
        if mode(path).is_some_and(|mode| mode & 0o007 != 0) {
            let (path, code) = (path.display(), &codes::ADMIN_TOKEN);
            warn!(%path, %code, "everybody on this machine may read the admin token; chmod o= {path}");
        }
        Ok(token)
    }

    /// Reads `admin-token` in `directory`, or makes it, readable by its owner only. One that can't be a token
    /// is made anew: a full disk may have left it.
    ///
    /// # Errors
    /// When it can be neither read nor written.
    pub fn read_or_make(directory: &Path) -> Result<(Self, PathBuf), TokenError> {
        let path = directory.join("admin-token");
        match Self::of_file(&path) {
            Ok(token) => {
                close(&path);
                return Ok((token, path));
            }
            Err(TokenError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            Err(error @ TokenError::Unfit { .. }) => {
                warn!(%error, code = %codes::ADMIN_TOKEN, "a new admin token is made in its place");
            }
            Err(error) => return Err(error),
        }
        let text = random_hex().ok_or(TokenError::NoRandomness)?;
        durable::replace(&path, format!("{text}\n").as_bytes(), durable::SECRET)
            .map_err(|source| TokenError::Write { path: path.clone(), source })?;
        Ok((Self(Redacted::new(text)), path))
    }

    fn of_file(path: &Path) -> Result<Self, TokenError> {
        let unfit = |fact: String| TokenError::Unfit { path: path.into(), fact };
        let bytes = match durable::read_at_most(path, FILE_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                return Err(unfit(format!("is too large: {error}")));
            }
            Err(source) => return Err(TokenError::File { path: path.into(), source }),
        };
        let text = String::from_utf8(bytes).map_err(|_| unfit("is no text".to_owned()))?;
        match text.trim() {
            "" => Err(unfit("is empty".to_owned())),
            token if token.len() < SHORTEST => {
                Err(unfit(format!("has only {} characters", token.chars().count())))
            }
            token => Ok(Self(Redacted::new(token.to_owned()))),
        }
    }

    /// Whether an `Authorization` header carries this token. Takes the same time for all wrong ones.
    pub fn allows(&self, header: Option<&str>) -> bool {
        let Some((scheme, given)) = header.and_then(|header| header.split_once(' ')) else {
            return false;
        };
        scheme.eq_ignore_ascii_case("bearer") && equal(self.0.reveal(), given.trim())
    }
}

/// Whether a secret is what was given. Takes the same time for all that are as long as it.
pub(super) fn equal(own: &str, given: &str) -> bool {
    let pairs = own.bytes().zip(given.bytes());
    own.len() == given.len() && pairs.fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

/// A private directory for the token of a process without a state directory. It goes when it is dropped.
///
/// # Errors
/// When it can't be made.
pub fn runtime_directory() -> io::Result<TempDir> {
    let base = std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|path| path.is_dir())
        .unwrap_or_else(std::env::temp_dir);
    let private = Permissions::from_mode(0o700);
    tempfile::Builder::new().prefix("strait-").rand_bytes(16).permissions(private).tempdir_in(base)
}

fn mode(path: &Path) -> Option<u32> {
    Some(fs::metadata(path).ok()?.permissions().mode())
}

/// Lets nobody but its owner read a token of ours.
fn close(path: &Path) {
    if mode(path).is_none_or(|mode| mode & 0o077 == 0) {
        return;
    }
    let (shown, code) = (path.display(), &codes::ADMIN_TOKEN);
    match fs::set_permissions(path, Permissions::from_mode(durable::SECRET)) {
        Ok(()) => warn!(
            path = %shown, %code,
            "others could read the admin token until now; remove the file and start anew for another one"
        ),
        Err(error) => warn!(path = %shown, %error, %code, "others can read the admin token"),
    }
}

/// 32 random bytes in hexadecimal.
pub(super) fn random_hex() -> Option<String> {
    use rand::TryRngCore;
    let mut bytes = [0_u8; 32];
    rand::rngs::OsRng.try_fill_bytes(&mut bytes).ok()?;
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_made_once_and_kept_private() {
        let directory = tempfile::tempdir().expect("a directory");
        let (made, path) = Token::read_or_make(directory.path()).expect("made");
        let text = fs::read_to_string(&path).expect("readable");
        let mode = fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let (again, _) = Token::read_or_make(directory.path()).expect("read");
        for token in [made, again] {
            assert!(token.allows(Some(&format!("Bearer {}", text.trim()))));
            assert!(token.allows(Some(&format!("bearer {}", text.trim()))));
            for wrong in [None, Some("Bearer "), Some("Bearer x"), Some(text.trim()), Some("")] {
                assert!(!token.allows(wrong), "{wrong:?}");
            }
        }
    }

    #[test]
    fn what_is_too_short_or_too_large_is_no_token_and_ours_is_made_anew() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("admin-token");
        let cases: [(&[u8], &str); 4] = [
            (b"", "is empty"),
            (b" 123456789012345\n", "has only 15 characters"),
            (b"\xff\xfe1234567890123456", "is no text"),
            (&[b'x'; 4097], "is too large"),
        ];
        for (bytes, fact) in cases {
            fs::write(&path, bytes).expect("written");
            let Err(error) = Token::read(&path) else { panic!("{fact}, and is a token") };
            assert!(matches!(error, TokenError::Unfit { .. }), "{error}");
            assert!(error.to_string().contains(fact), "{error}");
            let (made, _) = Token::read_or_make(directory.path()).expect("made anew");
            let text = fs::read_to_string(&path).expect("readable");
            assert!(made.allows(Some(&format!("Bearer {}", text.trim()))));
        }
        fs::write(&path, "1234567890123456").expect("written");
        Token::read(&path).expect("long enough");
    }

    #[test]
    fn a_token_that_others_may_read_is_closed_to_them() {
        let directory = tempfile::tempdir().expect("a directory");
        let (_, path) = Token::read_or_make(directory.path()).expect("made");
        for open in [0o644, 0o660] {
            fs::set_permissions(&path, Permissions::from_mode(open)).expect("ours");
            Token::read_or_make(directory.path()).expect("read");
            assert_eq!(mode(&path).map(|mode| mode & 0o777), Some(0o600));
        }
        // Somebody else's file is left as it is.
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("ours");
        Token::read(&path).expect("read");
        assert_eq!(mode(&path).map(|mode| mode & 0o777), Some(0o644));
    }
}
