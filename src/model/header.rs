//! Headers of HTTP, as far as objects name them.

/// Whether a header can have this name: a token (RFC 9110, 5.1).
pub fn is_header_name(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token)
}
