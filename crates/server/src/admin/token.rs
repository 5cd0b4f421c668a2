//! The token of `/debug/*` and `/api/*`.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tracing::warn;

use strait_base::{codes, durable};
use strait_identity::SharedKey;
use strait_kube_client::Redacted;

/// Minimum length of a token in bytes; shorter ones can be guessed.
const SHORTEST: usize = 16;
/// Maximum size of the file in bytes.
const FILE_MAX: u64 = 4096;

/// Reason why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// A file can't be read.
    #[error("admin token file {path}: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A new token can't be written.
    #[error("admin token file {path} can't be written: {source}", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The content of the file is not a token.
    #[error("admin token file {path} {fact}; a token has at least {SHORTEST} characters", path = path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// The reason.
        fact: String,
    },
    /// The system provides no randomness.
    #[error("the system provides no randomness for an admin token")]
    NoRandomness,
}

/// A bearer token.
#[derive(Clone)]
pub struct Token(Redacted<String>);

impl Token {
    /// Reads the token from a file of the operator.
    ///
    /// # Errors
    /// If the file can't be read, or contains no token.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let token = Self::of_file(path)?;
        // Group access is normal for Secrets in a pod; access for all users is a mistake.
        if mode(path).is_some_and(|mode| mode & 0o007 != 0) {
            let (path, code) = (path.display(), &codes::ADMIN_TOKEN);
            warn!(%path, %code, "all users of this machine can read the admin token; run chmod o= {path}");
        }
        Ok(token)
    }

    /// Reads `admin-token` in `directory`, or creates it, readable only by its owner. An invalid
    /// file is replaced, because a full disk may have left it.
    ///
    /// # Errors
    /// If the file can be neither read nor written.
    pub fn read_or_make(directory: &Path) -> Result<(Self, PathBuf), TokenError> {
        let path = directory.join("admin-token");
        match Self::of_file(&path) {
            Ok(token) => {
                close(&path);
                return Ok((token, path));
            }
            Err(TokenError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            Err(error @ TokenError::Unfit { .. }) => {
                warn!(%error, code = %codes::ADMIN_TOKEN, "replacing the invalid admin token");
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

    /// Derives a key from the token. Processes with the same token derive the same key.
    pub fn shared_key(&self, purpose: &str) -> SharedKey {
        SharedKey::derive(self.0.reveal().as_bytes(), purpose)
    }

    /// Returns whether an `Authorization` header carries this token. Takes equally long for all
    /// wrong tokens of the same length.
    pub fn allows(&self, header: Option<&str>) -> bool {
        let Some((scheme, given)) = header.and_then(|header| header.split_once(' ')) else {
            return false;
        };
        scheme.eq_ignore_ascii_case("bearer") && equal(self.0.reveal(), given.trim())
    }
}

/// Compares a secret with a given value. Takes equally long for all values of the secret's length.
pub(super) fn equal(own: &str, given: &str) -> bool {
    let pairs = own.bytes().zip(given.bytes());
    own.len() == given.len() && pairs.fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

/// Creates a private directory for the token of a process without a state directory. It is deleted
/// when dropped.
///
/// # Errors
/// If the directory can't be created.
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

/// Restricts a token of this process to its owner.
fn close(path: &Path) {
    if mode(path).is_none_or(|mode| mode & 0o077 == 0) {
        return;
    }
    let (shown, code) = (path.display(), &codes::ADMIN_TOKEN);
    match fs::set_permissions(path, Permissions::from_mode(durable::SECRET)) {
        Ok(()) => warn!(
            path = %shown, %code,
            "other users could read the admin token until now; to replace it, remove the file and restart"
        ),
        Err(error) => warn!(path = %shown, %error, %code, "other users can read the admin token"),
    }
}

/// Returns 32 random bytes in hexadecimal.
pub(super) fn random_hex() -> Option<String> {
    use rand::TryRngCore;
    let mut bytes = [0_u8; 32];
    rand::rngs::OsRng.try_fill_bytes(&mut bytes).ok()?;
    Some(strait_base::hex::encode(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_created_once_and_readable_only_by_its_owner() {
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
    fn invalid_token_is_rejected_and_a_generated_one_is_replaced() {
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
            let Err(error) = Token::read(&path) else { panic!("accepted although it {fact}") };
            assert!(matches!(error, TokenError::Unfit { .. }), "{error}");
            assert!(error.to_string().contains(fact), "{error}");
            let (made, _) = Token::read_or_make(directory.path()).expect("replaced");
            let text = fs::read_to_string(&path).expect("readable");
            assert!(made.allows(Some(&format!("Bearer {}", text.trim()))));
        }
        fs::write(&path, "1234567890123456").expect("written");
        Token::read(&path).expect("long enough");
    }

    #[test]
    fn generated_token_that_others_can_read_is_restricted() {
        let directory = tempfile::tempdir().expect("a directory");
        let (_, path) = Token::read_or_make(directory.path()).expect("made");
        for open in [0o644, 0o660] {
            fs::set_permissions(&path, Permissions::from_mode(open)).expect("ours");
            Token::read_or_make(directory.path()).expect("read");
            assert_eq!(mode(&path).map(|mode| mode & 0o777), Some(0o600));
        }
        // A file of the operator is not modified.
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("ours");
        Token::read(&path).expect("read");
        assert_eq!(mode(&path).map(|mode| mode & 0o777), Some(0o644));
    }
}
