//! Validation of HTTP headers that objects name.

/// Returns whether this is a valid header name: a token (RFC 9110, 5.1).
pub fn is_header_name(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token)
}

/// Returns whether this is a valid header value: text without control characters except tabs (RFC
/// 9110, 5.5).
pub fn is_header_value(value: &str) -> bool {
    !value.bytes().any(|byte| (byte < 32 && byte != b'\t') || byte == 127)
}
