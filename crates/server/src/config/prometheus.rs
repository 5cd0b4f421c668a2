//! The flags of `strait serve` about the Prometheus that scrapes the proxies.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use http::header::HeaderValue;
use http::{Uri, uri};

use strait_base::durable;
use strait_sources::jwks;

/// Maximum size of the token file in bytes.
const TOKEN_MAX: u64 = 16 << 10;

/// Reason why the flags cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PrometheusError {
    /// A file is unusable.
    #[error("{flag} {}: {source}; set a file with {content}, or omit the flag", path.display())]
    File {
        /// The flag.
        flag: &'static str,
        /// The path.
        path: PathBuf,
        /// The content that the file must have.
        content: &'static str,
        /// The error of the system, or the reason why the content is invalid.
        source: io::Error,
    },
    /// A flag needs an https URL.
    #[error("{flag}: {url} {fact}; set an https URL with --prometheus, or omit {flag}")]
    Plain {
        /// The flag.
        flag: &'static str,
        /// The URL.
        url: Uri,
        /// The reason.
        fact: &'static str,
    },
}

/// The Prometheus that scrapes the proxies.
#[derive(Debug, Clone, Default, Args)]
pub struct PrometheusFlags {
    /// URL of a Prometheus that scrapes the proxies: the page then shows rates, errors and latency
    /// [default: none]
    #[arg(long, env = "STRAIT_PROMETHEUS", value_name = "URL", value_parser = parse_url)]
    pub prometheus: Option<Uri>,

    /// Roots of the certificate of --prometheus, PEM; read again for each use [default: the system's]
    #[arg(long, env = "STRAIT_PROMETHEUS_CA", value_name = "FILE", requires = "prometheus")]
    pub prometheus_ca: Option<PathBuf>,

    /// File with a bearer token for --prometheus, read for each request; needs https, except on this
    /// machine [default: none]
    #[arg(
        long,
        env = "STRAIT_PROMETHEUS_TOKEN_FILE",
        value_name = "FILE",
        requires = "prometheus"
    )]
    pub prometheus_token_file: Option<PathBuf>,
}

impl PrometheusFlags {
    /// Checks that the files can be used, and that the token is not sent in plain text to another
    /// machine.
    ///
    /// # Errors
    /// The flag, the reason and the next step.
    pub(crate) fn check(&self) -> Result<(), PrometheusError> {
        let Some(url) = &self.prometheus else { return Ok(()) };
        let is_plain = url.scheme() == Some(&uri::Scheme::HTTP);
        let needs_tls = |flag, fact| PrometheusError::Plain { flag, url: url.clone(), fact };
        let unusable = |flag, path: &Path, content, source| PrometheusError::File {
            flag,
            path: path.to_owned(),
            content,
            source,
        };
        if let Some(path) = &self.prometheus_ca {
            let flag = "--prometheus-ca";
            if is_plain {
                return Err(needs_tls(flag, "uses no TLS"));
            }
            jwks::check_roots(path)
                .map_err(|source| unusable(flag, path, "PEM certificates", source))?;
        }
        if let Some(path) = &self.prometheus_token_file {
            let flag = "--prometheus-token-file";
            if is_plain && !is_loopback(url) {
                return Err(needs_tls(flag, "would transmit the token in plain text"));
            }
            bearer(path).map_err(|source| unusable(flag, path, "a token", source))?;
        }
        Ok(())
    }
}

/// Returns the value of the header `Authorization` for the token in a file. It is never logged.
///
/// # Errors
/// If the file cannot be read or contains no token.
pub(crate) fn bearer(file: &Path) -> io::Result<HeaderValue> {
    let invalid = |fact| io::Error::new(io::ErrorKind::InvalidData, fact);
    let token = String::from_utf8(durable::read_at_most(file, TOKEN_MAX)?);
    let token = token.map_err(|_| invalid("it is not text"))?;
    let token = token.trim();
    if token.is_empty() {
        return Err(invalid("it is empty"));
    }
    let value = HeaderValue::try_from(format!("Bearer {token}"));
    let mut value =
        value.map_err(|_| invalid("it has more than one line or invalid characters"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn is_loopback(url: &Uri) -> bool {
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn parse_url(text: &str) -> Result<Uri, String> {
    let expected = "expected http[s]://HOST[:PORT][/PATH]";
    let url: Uri = text.parse().map_err(|_| expected)?;
    if url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("a URL with a user name is not accepted; set --prometheus-token-file".into());
    }
    let is_http = matches!(url.scheme_str(), Some("http" | "https"));
    match is_http && url.host().is_some_and(|host| !host.is_empty()) && url.query().is_none() {
        true => Ok(url),
        false => Err(expected.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_has_a_host_and_no_credentials() {
        for text in ["http://p:9090", "https://prometheus.example/base", "https://[::1]:9090/"] {
            parse_url(text).expect(text);
        }
        for text in ["p:9090", "ftp://p", "http://", "https://p/?a=b", "https://user:word@p"] {
            parse_url(text).expect_err(text);
        }
    }

    #[test]
    fn unusable_files_and_plain_text_are_errors_with_the_next_step() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("written");
            Some(path)
        };
        let absent = Some(folder.path().join("absent"));
        let (token, lines) = (write("token", "abc\n"), write("lines", "a\nb"));
        let check = |url: &str, ca: &Option<PathBuf>, token: &Option<PathBuf>| {
            let flags = PrometheusFlags {
                prometheus: Some(parse_url(url).expect(url)),
                prometheus_ca: ca.clone(),
                prometheus_token_file: token.clone(),
            };
            flags.check().map_err(|error| error.to_string())
        };
        for url in ["https://p", "http://localhost:9090", "http://127.0.0.1", "http://[::1]:1"] {
            assert_eq!(check(url, &None, &token), Ok(()), "{url}");
        }
        let omit = "set an https URL with --prometheus, or omit --prometheus-";
        for (url, ca, token, parts) in [
            ("http://p", &None, &token, ["--prometheus-token-file: http://p/ ", omit]),
            ("http://127.0.0.2.example", &None, &token, ["in plain text", omit]),
            ("http://localhost", &token, &None, ["--prometheus-ca: http://localhost/ ", omit]),
            ("https://p", &absent, &None, ["--prometheus-ca ", "set a file with PEM certificates"]),
            ("https://p", &token, &None, ["contains no PEM certificate", "or omit the flag"]),
            ("https://p", &None, &absent, ["--prometheus-token-file ", "set a file with a token"]),
            ("https://p", &None, &write("empty", " \n"), ["it is empty", "or omit the flag"]),
            ("https://p", &None, &lines, ["more than one line", "or omit the flag"]),
        ] {
            let error = check(url, ca, token).expect_err(url);
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
        let value = bearer(&token.expect("a file")).expect("a token");
        assert_eq!(
            (value.as_bytes(), format!("{value:?}")),
            (&b"Bearer abc"[..], "Sensitive".into())
        );
    }
}
