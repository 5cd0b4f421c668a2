//! Command operators of Envoy in header values and access logs: `%NAME%` is replaced with a
//! property of the request. (Envoy, "Custom request/response headers" and "Command Operators";
//! tested with Envoy 1.36 and 1.40.)
//!
//! Envoy rejects a whole listener or route configuration that contains an operator it cannot parse,
//! for example `50%`.

use crate::is_header_name;

/// Operators without an argument.
const PLAIN: &[&str] = &[
    "ACCESS_LOG_TYPE",
    "BYTES_RECEIVED",
    "BYTES_RETRANSMITTED",
    "BYTES_SENT",
    "CONNECTION_ID",
    "CONNECTION_TERMINATION_DETAILS",
    "CUSTOM_FLAGS",
    "DOWNSTREAM_DIRECT_LOCAL_ADDRESS",
    "DOWNSTREAM_DIRECT_LOCAL_ADDRESS_WITHOUT_PORT",
    "DOWNSTREAM_DIRECT_LOCAL_PORT",
    "DOWNSTREAM_DIRECT_REMOTE_ADDRESS",
    "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT",
    "DOWNSTREAM_DIRECT_REMOTE_PORT",
    "DOWNSTREAM_HANDSHAKE_DURATION",
    "DOWNSTREAM_HEADER_BYTES_RECEIVED",
    "DOWNSTREAM_HEADER_BYTES_SENT",
    "DOWNSTREAM_LOCAL_ADDRESS",
    "DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT",
    "DOWNSTREAM_LOCAL_DNS_SAN",
    "DOWNSTREAM_LOCAL_EMAIL_SAN",
    "DOWNSTREAM_LOCAL_IP_SAN",
    "DOWNSTREAM_LOCAL_OTHERNAME_SAN",
    "DOWNSTREAM_LOCAL_PORT",
    "DOWNSTREAM_LOCAL_SUBJECT",
    "DOWNSTREAM_LOCAL_URI_SAN",
    "DOWNSTREAM_PEER_CERT",
    "DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_1",
    "DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_256",
    "DOWNSTREAM_PEER_CHAIN_SERIALS",
    "DOWNSTREAM_PEER_DNS_SAN",
    "DOWNSTREAM_PEER_EMAIL_SAN",
    "DOWNSTREAM_PEER_FINGERPRINT_1",
    "DOWNSTREAM_PEER_FINGERPRINT_256",
    "DOWNSTREAM_PEER_IP_SAN",
    "DOWNSTREAM_PEER_ISSUER",
    "DOWNSTREAM_PEER_OTHERNAME_SAN",
    "DOWNSTREAM_PEER_SERIAL",
    "DOWNSTREAM_PEER_SUBJECT",
    "DOWNSTREAM_PEER_URI_SAN",
    "DOWNSTREAM_REMOTE_ADDRESS",
    "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT",
    "DOWNSTREAM_REMOTE_PORT",
    "DOWNSTREAM_TLS_CIPHER",
    "DOWNSTREAM_TLS_SESSION_ID",
    "DOWNSTREAM_TLS_VERSION",
    "DOWNSTREAM_TRANSPORT_FAILURE_REASON",
    "DOWNSTREAM_WIRE_BYTES_RECEIVED",
    "DOWNSTREAM_WIRE_BYTES_SENT",
    "DURATION",
    "FILTER_CHAIN_NAME",
    "GRPC_STATUS",
    "GRPC_STATUS_NUMBER",
    "HOSTNAME",
    "LOCAL_REPLY_BODY",
    "PACKETS_RETRANSMITTED",
    "PATH",
    "PROTOCOL",
    "REQUESTED_SERVER_NAME",
    "REQUEST_DURATION",
    "REQUEST_HEADERS_BYTES",
    "REQUEST_TX_DURATION",
    "RESPONSE_CODE",
    "RESPONSE_CODE_DETAILS",
    "RESPONSE_DURATION",
    "RESPONSE_FLAGS",
    "RESPONSE_FLAGS_LONG",
    "RESPONSE_HEADERS_BYTES",
    "RESPONSE_TRAILERS_BYTES",
    "RESPONSE_TX_DURATION",
    "ROUNDTRIP_DURATION",
    "ROUTE_NAME",
    "STREAM_ID",
    "TLS_JA3_FINGERPRINT",
    "TLS_JA4_FINGERPRINT",
    "TRACE_ID",
    "UNIQUE_ID",
    "UPSTREAM_CLUSTER",
    "UPSTREAM_CLUSTER_RAW",
    "UPSTREAM_CONNECTION_ID",
    "UPSTREAM_CONNECTION_POOL_READY_DURATION",
    "UPSTREAM_DECOMPRESSED_HEADER_BYTES_SENT",
    "UPSTREAM_HEADER_BYTES_RECEIVED",
    "UPSTREAM_HEADER_BYTES_SENT",
    "UPSTREAM_HOST",
    "UPSTREAM_HOST_NAME",
    "UPSTREAM_HOST_NAME_WITHOUT_PORT",
    "UPSTREAM_LOCAL_ADDRESS",
    "UPSTREAM_LOCAL_ADDRESS_WITHOUT_PORT",
    "UPSTREAM_LOCAL_DNS_SAN",
    "UPSTREAM_LOCAL_IP_SAN",
    "UPSTREAM_LOCAL_PORT",
    "UPSTREAM_LOCAL_URI_SAN",
    "UPSTREAM_PEER_CERT",
    "UPSTREAM_PEER_DNS_SAN",
    "UPSTREAM_PEER_IP_SAN",
    "UPSTREAM_PEER_ISSUER",
    "UPSTREAM_PEER_SUBJECT",
    "UPSTREAM_PEER_URI_SAN",
    "UPSTREAM_PROTOCOL",
    "UPSTREAM_REMOTE_ADDRESS",
    "UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT",
    "UPSTREAM_REMOTE_PORT",
    "UPSTREAM_REQUEST_ATTEMPT_COUNT",
    "UPSTREAM_TLS_CIPHER",
    "UPSTREAM_TLS_SESSION_ID",
    "UPSTREAM_TLS_VERSION",
    "UPSTREAM_TRANSPORT_FAILURE_REASON",
    "UPSTREAM_WIRE_BYTES_RECEIVED",
    "UPSTREAM_WIRE_BYTES_SENT",
    "VIRTUAL_CLUSTER_NAME",
];

/// Operators with a required argument in parentheses and an optional maximum length.
const WITH_ARGUMENT: &[&str] = &["ENVIRONMENT", "QUERY_PARAM", "REQ", "RESP", "TRAILER"];

/// The operators whose argument names a header, and optionally an alternative header.
const WITH_HEADER_ARGUMENT: &[&str] = &["REQ", "RESP", "TRAILER"];

/// The maximum number of digits of the maximum length.
const LENGTH_DIGITS_MAX: usize = 9;

/// Operators with a required argument and no maximum length.
const WITH_UNCUT_ARGUMENT: &[&str] = &["CLUSTER_METADATA", "DYNAMIC_METADATA", "UPSTREAM_METADATA"];

/// Its argument names an object in the filter state, optionally followed by a format.
const FILTER_STATE: &str = "FILTER_STATE";

/// Operators with an optional argument: a time format.
const WITH_TIME_FORMAT: &[&str] =
    &["DOWNSTREAM_PEER_CERT_V_END", "DOWNSTREAM_PEER_CERT_V_START", "EMIT_TIME", "START_TIME"];

/// Returns one line with all operators that [`check`] accepts.
pub fn all() -> String {
    let plain = PLAIN.iter().chain(WITH_TIME_FORMAT).map(|name| format!("%{name}%"));
    let cut = WITH_ARGUMENT.iter().map(|name| format!("%{name}(a):10%"));
    let uncut = WITH_UNCUT_ARGUMENT.iter().map(|name| format!("%{name}(a:b)%"));
    let filter_states = ["", ":PLAIN", ":TYPED"].map(|form| format!("%{FILTER_STATE}(a{form})%"));
    plain.chain(cut).chain(uncut).chain(filter_states).collect::<Vec<_>>().join(" ")
}

/// Checks that Envoy can parse a value.
///
/// # Errors
/// Returns a description of the problem.
pub fn check(value: &str) -> Result<(), String> {
    let mut rest = value;
    while let Some((_, behind)) = rest.split_once('%') {
        if let Some(behind) = behind.strip_prefix('%') {
            rest = behind;
            continue;
        }
        let end = behind.find(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_');
        let (name, behind) = behind.split_at(end.unwrap_or(behind.len()));
        let (argument, behind) = match behind.strip_prefix('(') {
            Some(behind) => match behind.split_once(')') {
                Some((argument, behind)) => (Some(argument), behind),
                None => return Err(format!("%{name}( is not closed")),
            },
            None => (None, behind),
        };
        let (is_cut, behind) = match behind.strip_prefix(':') {
            Some(length) => {
                let behind = length.trim_start_matches(|c: char| c.is_ascii_digit());
                if !(1..=LENGTH_DIGITS_MAX).contains(&(length.len() - behind.len())) {
                    let fact = "whose maximum length does not have";
                    return Err(format!("has %{name}% {fact} 1 to {LENGTH_DIGITS_MAX} digits"));
                }
                (true, behind)
            }
            None => (false, behind),
        };
        let Some(behind) = behind.strip_prefix('%') else {
            return Err("has a % that is neither doubled nor a part of %NAME%".to_owned());
        };
        let is_supported = match argument {
            None => !is_cut && (PLAIN.contains(&name) || WITH_TIME_FORMAT.contains(&name)),
            Some("") => false,
            Some(object) if name == FILTER_STATE => {
                let form = object.split_once(':').map(|(_, form)| form);
                !is_cut && matches!(form, None | Some("PLAIN" | "TYPED"))
            }
            Some(_) => {
                WITH_ARGUMENT.contains(&name)
                    || !is_cut
                        && (WITH_UNCUT_ARGUMENT.contains(&name) || WITH_TIME_FORMAT.contains(&name))
            }
        };
        if !is_supported {
            return Err(format!("has %{name}% in a form that not every Envoy supports"));
        }
        if let Some(argument) = argument {
            check_argument(name, argument)
                .map_err(|fact| format!("has %{name}({})% {fact}", argument.escape_debug()))?;
        }
        rest = behind;
    }
    Ok(())
}

/// Checks the argument in the parentheses of an operator.
fn check_argument(name: &str, argument: &str) -> Result<(), &'static str> {
    if argument.contains(char::is_control) {
        return Err("with a control character");
    }
    if WITH_HEADER_ARGUMENT.contains(&name) {
        let is_name =
            |name: &str| name.is_empty() || is_header_name(name.strip_prefix(':').unwrap_or(name));
        let mut names = argument.splitn(3, '?');
        let are_names = names.by_ref().take(2).all(is_name);
        return match names.next() {
            None if are_names => Ok(()),
            None => Err("whose argument is not a header name"),
            Some(_) => Err("with more than one alternative header"),
        };
    }
    if name == FILTER_STATE && argument.split(':').next().is_none_or(str::is_empty) {
        return Err("without the name of an object");
    }
    if WITH_TIME_FORMAT.contains(&name) && ends_line(argument) {
        return Err("whose time format contains a line end");
    }
    Ok(())
}

/// Returns whether a time format contains `%n`, which may have flags, a width and a variant.
/// (strftime.)
fn ends_line(form: &str) -> bool {
    let is_modifier = |c: char| c.is_ascii_digit() || "-_^#EO".contains(c);
    form.split('%').skip(1).any(|rest| rest.trim_start_matches(is_modifier).starts_with('n'))
}

/// Values that [`check`] and every version of Envoy reject.
pub const UNREADABLE: [&str; 31] = [
    "50%",
    "%",
    "a%b",
    "%NO_SUCH%",
    "%REQ%",
    "%REQ()%",
    "%REQ(x%",
    "%RESPONSE_CODE(1)%",
    "%PROTOCOL:5%",
    "%FILTER_STATE(a:b)%",
    "%FILTER_STATE(:PLAIN)%",
    "%REQ(a):%",
    "%REQ(a):20 %",
    "%REQ(a):+1%",
    "%QUERY_PARAM(a):%",
    "%ENVIRONMENT(A):%",
    "%REQ(a?b?c)%",
    "%REQ(a b)%",
    "%REQ( a)%",
    "%REQ(a?b:c)%",
    "%REQ(::a)%",
    "%REQ(a\tb)%",
    "%RESP(a?b?c)%",
    "%TRAILER(a b)%",
    "%START_TIME(%n)%",
    "%START_TIME(%Y%%n)%",
    "%START_TIME(%-5n)%",
    "%START_TIME(%En)%",
    "%START_TIME(a\nb)%",
    "%EMIT_TIME(%n)%",
    "%DYNAMIC_METADATA(a\nb)%",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_values_that_envoy_can_parse_are_accepted() {
        for value in [
            "",
            "plain",
            "100%%",
            "%DOWNSTREAM_REMOTE_ADDRESS%",
            "a %REQ(x-a?y):10% b %PROTOCOL%",
            "%REQ(x-a?:authority):999999999% %RESP(:status)% %TRAILER(a_b.c)%",
            "%START_TIME(%Y-%m-%dT%H:%M:%S.%3f%z never)%",
            "%QUERY_PARAM(a b)%",
            "%START_TIME(%s)%",
            "%DYNAMIC_METADATA(a:b)%",
            "%FILTER_STATE(a:PLAIN)%",
        ] {
            assert_eq!(check(value), Ok(()), "{value}");
        }
        // Versions of Envoy differ for these values.
        let other_values = ["%REQ(a):99999999999999999999%", "%DYNAMIC_METADATA(a\u{1})%"];
        for value in UNREADABLE.into_iter().chain(other_values) {
            assert!(check(value).is_err(), "{value}");
        }
    }

    #[test]
    fn names_are_sorted_and_unique() {
        assert!(PLAIN.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
