//! The flag `--consul-address`: the location of a Consul and the options for reading it. Contains
//! no credential, only the name of the file with one.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use http::Uri;

use strait_model::ClusterId;

/// One Consul: `http[s]://HOST[:PORT][/PREFIX][?dc=NAME&name=NAME&token-file=FILE&ca-file=FILE]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsulAddress {
    /// Scheme, host, port and prefix.
    pub server: Uri,
    /// Prefix of the datacentre names: `NAME/DATACENTRE`. If empty, the prefix follows from the
    /// order of flags.
    pub name: String,
    /// The datacentres that are read; empty for all.
    pub datacentres: Vec<String>,
    /// The file that contains the ACL token.
    pub token_file: Option<PathBuf>,
    /// The PEM file with the CAs of the server certificate.
    pub ca_file: Option<PathBuf>,
}

/// The reason why a text is not a valid Consul address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not a supported URL.
    #[error("expected http://HOST:PORT or https://HOST:PORT")]
    Url,
    /// The URL contains a user name or password, which would be logged.
    #[error("a URL with a user name is not accepted: name a file with ?token-file=FILE")]
    UserInfo,
    /// An unknown option.
    #[error("unknown option {0:?}; the options are dc, name, token-file and ca-file")]
    Option(String),
    /// An option without a value, or with an invalid one.
    #[error("option {option} cannot have the value {value:?}")]
    Value {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
    },
}

impl FromStr for ConsulAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (server, query) = text.split_once('?').unwrap_or((text, ""));
        let server: Uri = server.trim_end_matches('/').parse().map_err(|_| AddressError::Url)?;
        let authority = server.authority().ok_or(AddressError::Url)?;
        if authority.as_str().contains('@') {
            return Err(AddressError::UserInfo);
        }
        if !matches!(server.scheme_str(), Some("http" | "https")) || authority.host().is_empty() {
            return Err(AddressError::Url);
        }
        let mut address = Self {
            server,
            name: String::new(),
            datacentres: Vec::new(),
            token_file: None,
            ca_file: None,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (option, value) = pair.split_once('=').unwrap_or((pair, ""));
            address.set(option, value)?;
        }
        Ok(address)
    }
}

impl ConsulAddress {
    fn set(&mut self, option: &str, value: &str) -> Result<(), AddressError> {
        // Names become part of a cluster ID and of requests, so they must not need escaping.
        let named = |option| match ClusterId::parse(value) {
            Ok(_) => Ok(value.to_owned()),
            Err(_) => Err(AddressError::Value { option, value: value.to_owned() }),
        };
        let file = |option| match value {
            "" => Err(AddressError::Value { option, value: String::new() }),
            path => Ok(Some(PathBuf::from(path))),
        };
        match option {
            "dc" if is_datacentre(value) => self.datacentres.push(value.to_owned()),
            "dc" => return Err(AddressError::Value { option: "dc", value: value.to_owned() }),
            "name" => self.name = named("name")?,
            "token-file" => self.token_file = file("token-file")?,
            "ca-file" => self.ca_file = file("ca-file")?,
            other => return Err(AddressError::Option(other.to_owned())),
        }
        Ok(())
    }
}

/// Whether a text is a valid datacentre name in Consul: letters, digits, `-` and `_`.
pub(super) fn is_datacentre(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=64).contains(&text.len()) && text.bytes().all(plain)
}

impl fmt::Display for ConsulAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.server.to_string().trim_end_matches('/'))
    }
}
