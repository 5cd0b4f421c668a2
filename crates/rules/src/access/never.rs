//! Reasons why a value of a rule matches no request and no connection.

use super::request_test::RequestTest;
use super::text::TextForm;
use strait_model::mesh_config::{DotParameters, PathNormalization, has_dot_parameter};

impl RequestTest {
    /// Returns why no request and no connection matches this value, given how paths are normalized.
    /// `None` if one may match.
    pub fn never_matches(&self, normalization: PathNormalization) -> Option<String> {
        let (text, fact) = match self {
            Self::Path(text) => (&**text, literal_star(text).or_else(|| path(text, normalization))),
            Self::Host(text) => (&**text, literal_star(text).or_else(|| host(text))),
            Self::Method(text) => (&**text, literal_star(text).or_else(|| method(text))),
            Self::ServerName(text) => (&**text, literal_star(text).or_else(|| server_name(text))),
            Self::Principal(text) => (&**text, literal_star(text).or_else(|| principal(text))),
            Self::Namespace(text) => (&**text, namespace(text)),
            Self::RequestPrincipal(text) => (&**text, request_principal(text)),
            Self::Header(header) => {
                let [_, value] = &**header;
                // `*/*` is a valid value of `accept`.
                let star = literal_star(value).filter(|_| **value != *"*/*");
                (&**value, star.or_else(|| header_value(value)))
            }
            Self::Claim(claim) => (&*claim.value, literal_star(&claim.value)),
            Self::Port(0) => return Some("no connection has port 0".to_owned()),
            Self::Port(_)
            | Self::PathTemplate(_)
            | Self::ServiceAccount(_)
            | Self::TrustDomain(_)
            | Self::PeerAddress(_)
            | Self::ClientAddress(_)
            | Self::DestinationAddress(_)
            | Self::Noted(_) => return None,
        };
        Some(format!("{text:?}: {}", fact?))
    }

    /// Returns whether `wider`, a value of the same field, matches everything that this value
    /// matches.
    pub fn is_within(&self, wider: &Self) -> bool {
        let (own, wider) = match (self, wider) {
            (Self::Path(own), Self::Path(wider))
            | (Self::Method(own), Self::Method(wider))
            | (Self::ServerName(own), Self::ServerName(wider))
            | (Self::Principal(own), Self::Principal(wider))
            | (Self::Namespace(own), Self::Namespace(wider))
            | (Self::RequestPrincipal(own), Self::RequestPrincipal(wider)) => (&**own, &**wider),
            (Self::Host(own), Self::Host(wider)) => {
                return text_is_within(&own.to_ascii_lowercase(), &wider.to_ascii_lowercase());
            }
            (Self::Header(own), Self::Header(wider)) if own[0] == wider[0] => {
                (&*own[1], &*wider[1])
            }
            (Self::Claim(own), Self::Claim(wider)) if own.path == wider.path => {
                (&*own.value, &*wider.value)
            }
            (Self::PeerAddress(own), Self::PeerAddress(wider))
            | (Self::ClientAddress(own), Self::ClientAddress(wider))
            | (Self::DestinationAddress(own), Self::DestinationAddress(wider)) => {
                return wider.contains(own);
            }
            _ => return self == wider,
        };
        text_is_within(own, wider)
    }
}

fn text_is_within(own: &str, wider: &str) -> bool {
    use TextForm::{Exact, Prefix, Present, Suffix};
    match (TextForm::read(own), TextForm::read(wider)) {
        (_, Present) => true,
        (Exact(own), Exact(wider)) => own == wider,
        (Exact(own) | Prefix(own), Prefix(wider)) => own.starts_with(wider),
        (Exact(own) | Suffix(own), Suffix(wider)) => own.ends_with(wider),
        _ => false,
    }
}

/// Returns the literal text of a value, without its wildcard.
fn literal(text: &str) -> &str {
    match TextForm::read(text) {
        TextForm::Present => "",
        TextForm::Exact(text) | TextForm::Prefix(text) | TextForm::Suffix(text) => text,
    }
}

fn literal_star(text: &str) -> Option<&'static str> {
    literal(text).contains('*').then_some(
        "* is a wildcard only as the first or the last character, any other * is a literal character",
    )
}

fn path(text: &str, normalization: PathNormalization) -> Option<&'static str> {
    // An example of a text that the wildcard matches.
    const ANY: &str = "x";
    let form = TextForm::read(text);
    let written = match &form {
        TextForm::Present => return None,
        TextForm::Exact(text) => (*text).to_owned(),
        TextForm::Prefix(text) => format!("{text}{ANY}"),
        TextForm::Suffix(text) => format!("/{ANY}{text}"),
    };
    if literal(text).contains(['?', '#']) {
        return Some("paths are compared without query and fragment");
    }
    if !written.starts_with('/') {
        return Some("paths begin with /");
    }
    if written.chars().any(|one| one == ' ' || one.is_control()) {
        return Some("paths have no spaces; write them as %20");
    }
    if normalization != PathNormalization::None && !written.is_ascii() {
        return Some("proxies escape characters outside ASCII; write them as in %c3%a4");
    }
    (normalization.applied(&written, DotParameters::Removed) != written || has_dot_parameter(&written)).then_some(
        "paths are normalized before they are compared: `..`, `.`, several slashes, backslashes and needlessly escaped \
         characters are resolved",
    )
}

fn host(text: &str) -> Option<&'static str> {
    let literal = literal(text);
    if literal.contains("://") {
        return Some("a host has no scheme");
    }
    if literal.contains(['/', '?', '#']) {
        return Some("a host has no path");
    }
    let is_other = |one: char| one.is_whitespace() || one.is_control() || one == ',';
    if literal.contains(is_other) {
        return Some("a host has no spaces and no commas");
    }
    let port = match TextForm::read(text) {
        TextForm::Exact(text) | TextForm::Suffix(text) => text.rsplit_once(':')?.1,
        TextForm::Present | TextForm::Prefix(_) => return None,
    };
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    (is_number
        && literal.matches(':').count() == 1
        && !port.parse().is_ok_and(|port: u16| port > 0))
    .then_some("a port is from 1 to 65535")
}

fn header_value(text: &str) -> Option<&'static str> {
    let literal = literal(text);
    if literal.contains(|one: char| one.is_control() && one != '\t') {
        return Some("a header value has no control characters");
    }
    let form = TextForm::read(text);
    let is_space = |one: char| [' ', '\t'].contains(&one);
    let begins = matches!(form, TextForm::Exact(text) | TextForm::Prefix(text) if text.starts_with(is_space));
    let ends =
        matches!(form, TextForm::Exact(text) | TextForm::Suffix(text) if text.ends_with(is_space));
    (begins || ends).then_some("proxies remove spaces around header values")
}

fn method(text: &str) -> Option<&'static str> {
    let is_token = |one: char| one.is_ascii_alphanumeric() || "!#$%&'+-.^_`|~".contains(one);
    let is_method = literal(text).chars().all(is_token);
    (!is_method).then_some("a value is a single method")
}

fn server_name(text: &str) -> Option<&'static str> {
    let literal = literal(text);
    if literal.contains(['/', ':', ',']) || literal.contains(char::is_whitespace) {
        return Some("a server name has no scheme, port, path or list");
    }
    let is_upper = |one: char| one.is_ascii_uppercase();
    literal.contains(is_upper).then_some("proxies compare server names in lower case")
}

fn principal(text: &str) -> Option<&'static str> {
    let is_whole = matches!(TextForm::read(text), TextForm::Exact(_));
    let parts: Vec<_> = text.split('/').collect();
    // Identities of other meshes may have another form.
    let may_exist = match parts[..] {
        [_, "ns", _, "sa", _] => true,
        [_, kind, ..] => kind != "ns",
        _ => false,
    };
    (is_whole && !may_exist).then_some("a principal is TRUST_DOMAIN/ns/NAMESPACE/sa/ACCOUNT")
}

fn namespace(text: &str) -> Option<&'static str> {
    let is_other =
        |one: char| !(one.is_ascii_lowercase() || one.is_ascii_digit() || "-*".contains(one));
    text.contains(is_other).then_some("namespaces contain only lower-case letters, digits and -")
}

/// Proxies compare issuer and subject separately, split at the last slash.
fn request_principal(text: &str) -> Option<&'static str> {
    match text.rsplit_once('/') {
        None if matches!(TextForm::read(text), TextForm::Exact(_)) => {
            Some("a request principal is ISSUER/SUBJECT")
        }
        None => literal_star(text),
        Some((issuer, subject)) => literal_star(issuer).or_else(|| literal_star(subject)),
    }
}
