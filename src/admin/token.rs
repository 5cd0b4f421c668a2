//! The token that `/debug/*` and `/api/*` ask for.

use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::apiserver::Redacted;

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// A file can't be read or written.
    #[error("admin token file {path}: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file holds nothing.
    #[error("admin token file {path} is empty; write a token of at least 16 characters into it", path = path.display())]
    Empty {
        /// The file.
        path: PathBuf,
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
    /// When the file can't be read or is empty.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| TokenError::File { path: path.into(), source })?;
        let text = text.trim();
        if text.is_empty() {
            return Err(TokenError::Empty { path: path.into() });
        }
        Ok(Self(Redacted::new(text.to_owned())))
    }

    /// Reads `admin-token` in `directory`, or makes it, readable by its owner only.
    ///
    /// # Errors
    /// When it can be neither read nor written.
    pub fn read_or_make(directory: &Path) -> Result<(Self, PathBuf), TokenError> {
        let path = directory.join("admin-token");
        match Self::read(&path) {
            Ok(token) => Ok((token, path)),
            Err(TokenError::File { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                let text = random_hex().ok_or(TokenError::NoRandomness)?;
                write_private(&path, &text)
                    .map_err(|source| TokenError::File { path: path.clone(), source })?;
                Ok((Self(Redacted::new(text)), path))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether an `Authorization` header carries this token. Takes the same time for all wrong ones.
    pub fn allows(&self, header: Option<&str>) -> bool {
        let Some((scheme, given)) = header.and_then(|header| header.split_once(' ')) else {
            return false;
        };
        let (given, own) = (given.trim().as_bytes(), self.0.reveal().as_bytes());
        let differs = given.iter().zip(own).fold(0, |sum, (a, b)| sum | (a ^ b));
        scheme.eq_ignore_ascii_case("bearer") && given.len() == own.len() && differs == 0
    }
}

/// A private directory for the token of a process without a state directory. It goes when it is dropped.
///
/// # Errors
/// When it can't be made.
pub fn runtime_directory() -> std::io::Result<TempDir> {
    let base = std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|path| path.is_dir())
        .unwrap_or_else(std::env::temp_dir);
    let private = std::fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().prefix("strait-").rand_bytes(16).permissions(private).tempdir_in(base)
}

fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{text}")?;
    file.sync_all()
}

/// 32 random bytes in hexadecimal.
fn random_hex() -> Option<String> {
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
        let text = std::fs::read_to_string(&path).expect("readable");
        let mode = std::fs::metadata(&path).expect("a file").permissions().mode();
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
    fn an_empty_file_is_no_token() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert!(matches!(Token::read(file.path()), Err(TokenError::Empty { .. })));
    }
}
