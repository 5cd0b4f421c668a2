//! Checks that the parts of the operator file share. Each error contains the field.

use serde_json::{Map, Value};

use super::servers::ServerPattern;
use strait_base::dns_name::is_dns_label;
use strait_base::unread;
use strait_model::policy::InvalidPolicy;

/// An entry of a list. Messages about its content contain its position: `identities[0]`.
pub(super) type Entry = Map<String, Value>;

pub(super) type Checked<T> = Result<T, InvalidPolicy>;

pub(super) fn invalid<T>(field: impl Into<String>, fact: impl Into<String>) -> Checked<T> {
    Err(InvalidPolicy { field: field.into(), fact: fact.into() })
}

/// Converts an entry to its type. The message of an error may quote a value: the file contains no
/// secrets.
pub(super) fn read<T: serde::de::DeserializeOwned>(field: &str, entry: Entry) -> Checked<T> {
    unread::read_known(&Value::Object(entry)).or_else(|(path, error)| {
        let field = if path.is_empty() { field.to_owned() } else { format!("{field}.{path}") };
        invalid(field, error.to_string())
    })
}

pub(super) fn namespace(field: &str, text: &str) -> Checked<()> {
    match is_dns_label(text) {
        true => Ok(()),
        false => invalid(field, format!("{text:?} is not a namespace")),
    }
}

pub(super) fn filled(field: String, text: &str) -> Checked<()> {
    if text.is_empty() { invalid(field, "is empty") } else { Ok(()) }
}

pub(super) fn server_list(field: &str, servers: Vec<String>) -> Checked<Vec<ServerPattern>> {
    if servers.is_empty() {
        return invalid(format!("{field}.servers"), "is empty");
    }
    let parse = |(at, text): (usize, &String)| {
        ServerPattern::parse(text).or_else(|fact| invalid(format!("{field}.servers[{at}]"), fact))
    };
    servers.iter().enumerate().map(parse).collect()
}
