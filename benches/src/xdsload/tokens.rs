//! Tokens of pods, which proxies without certificates send.

use std::path::Path;

use crate::Failure;

/// The token of one pod.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    pub(crate) text: String,
    /// The ID of the pod's cluster.
    pub(crate) cluster: String,
}

/// Reads the tokens in a file, one per line.
pub(crate) fn read(file: &Path) -> Result<Vec<String>, Failure> {
    let failed = |fact: String| Failure(format!("--tokens {}: {fact}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| failed(error.to_string()))?;
    let is_token = |line: &str| line.split('.').count() == 3 && line.is_ascii();
    match text.lines().position(|line| !is_token(line)) {
        Some(at) => Err(failed(format!("line {} is not a token", at + 1))),
        None => Ok(text.lines().map(str::to_owned).collect()),
    }
}
