//! The values of an access log line that are needed to decide its call again.

use std::net::{IpAddr, SocketAddr};

use crate::cli::access_log::LoggedCall;

/// The values of one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogEntry {
    /// The HTTP request; `None` for a connection that is not HTTP.
    pub(super) request: Option<LoggedRequest>,
    /// The upstream cluster; `-` if none was chosen.
    pub(super) cluster: String,
    /// Destination address of the client at the proxy that wrote the line.
    pub(super) local: SocketAddr,
    /// Address of the caller.
    pub(super) remote: IpAddr,
    /// Identity of the client, if the format contains it; `Some(None)` for a client without one.
    pub(super) identity: Option<Option<String>>,
    /// Server name (SNI) that the client requested.
    pub(super) server_name: Option<String>,
}

/// The HTTP request of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LoggedRequest {
    pub(super) method: String,
    /// Path with query.
    pub(super) path: String,
    pub(super) authority: Option<String>,
}

/// Reason why a line is left out, for counting.
pub(super) type LogFault = &'static str;

/// Reason for a line that is not a call.
pub(super) const NO_LINE: LogFault = "is not an access log line in Istio's text or JSON format";
const NO_ADDRESS: LogFault = "has no downstream_local_address or downstream_remote_address";
const NO_REQUEST: LogFault = "has no method or path";

/// Extracts the values of a call.
pub(super) fn entry(call: &LoggedCall) -> Result<LogEntry, LogFault> {
    let address = |text: &Option<String>| text.as_deref()?.parse::<SocketAddr>().ok();
    let (Some(local), Some(remote)) =
        (address(&call.downstream_local), address(&call.downstream_remote))
    else {
        return Err(NO_ADDRESS);
    };
    // A TCP connection has neither method nor path; if the format lacks these fields, the kind of
    // call is unknown.
    if !call.tells_request {
        return Err(NO_REQUEST);
    }
    let request = match (&call.method, &call.path) {
        (None, None) => None,
        (Some(method), Some(path)) => Some(LoggedRequest {
            method: method.clone(),
            path: path.clone(),
            authority: call.authority.clone(),
        }),
        _ => return Err(NO_REQUEST),
    };
    Ok(LogEntry {
        request,
        cluster: call.upstream_cluster.clone().unwrap_or_else(|| "-".to_owned()),
        local,
        remote: remote.ip(),
        identity: call.has_peer_field.then(|| call.peer.as_deref().and_then(spiffe)),
        server_name: call.server_name.clone(),
    })
}

/// Returns the first identity of a list.
fn spiffe(text: &str) -> Option<String> {
    let first = text.split(',').next().unwrap_or_default().trim();
    first.starts_with("spiffe://").then(|| first.to_owned())
}

#[cfg(test)]
pub(super) fn read(line: &str) -> Result<LogEntry, LogFault> {
    LoggedCall::parse(line).as_ref().map_or(Err(NO_LINE), entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"[2026-11-25T10:00:00.000Z] "GET /api/1?x=1 HTTP/1.1" 200 - via_upstream - "-" 0 12 3 2 "10.9.9.9" "cu"rl/8 x"y" "id-1" "web.shop:8080" "10.0.0.7:8080" inbound|8080|| 127.0.0.6:41000 10.0.0.7:8080 10.0.0.9:33000 outbound_.80_._.web.shop.svc.cluster.local default"#;

    #[test]
    fn default_text_format_is_parsed() {
        let entry = read(TEXT).expect("it is one");
        let request = entry.request.expect("a request");
        assert_eq!((&*request.method, &*request.path), ("GET", "/api/1?x=1"));
        assert_eq!(request.authority.as_deref(), Some("web.shop:8080"));
        assert_eq!((&*entry.cluster, entry.local.port()), ("inbound|8080||", 8080));
        assert_eq!(entry.remote.to_string(), "10.0.0.9");
        assert_eq!(entry.identity, None, "the format doesn't say it");
        let with = format!("{TEXT} spiffe://td/ns/a/sa/b");
        let identity = read(&with).expect("one more field").identity;
        assert_eq!(identity, Some(Some("spiffe://td/ns/a/sa/b".to_owned())));
        let tcp = r#"[2026-11-25T10:00:00Z] "- - -" 0 - - - "-" 5 6 7 - "-" "-" "-" "-" "10.0.0.7:5432" inbound|5432|| 127.0.0.6:1 10.0.0.7:5432 10.0.0.9:2 - -"#;
        let entry = read(tcp).expect("a connection");
        assert_eq!((entry.request, entry.local.port()), (None, 5432));
    }

    #[test]
    fn json_format_is_parsed_with_the_identity_if_present() {
        let line = |more: &str| {
            format!(
                r#"{{"method":"GET","path":"/","authority":"a","upstream_cluster":"inbound|80||","downstream_local_address":"10.0.0.7:80","downstream_remote_address":"[fd00::9]:1"{more}}}"#
            )
        };
        assert_eq!(read(&line("")).expect("good").identity, None);
        let none = read(&line(r#","downstream_peer_uri_san":null"#)).expect("good");
        assert_eq!(none.identity, Some(None), "plain text");
        let some =
            read(&line(r#","downstream_peer_uri_san":"spiffe://td/ns/a/sa/b""#)).expect("good");
        assert_eq!(some.identity, Some(Some("spiffe://td/ns/a/sa/b".to_owned())));
    }

    #[test]
    fn incomplete_lines_are_left_out_with_the_reason() {
        let cases = [
            ("", NO_LINE),
            ("some log of something else", NO_LINE),
            ("{", NO_LINE),
            (r#"{"method":"GET","path":"/"}"#, NO_LINE),
            (r#"{"method":"GET","path":"/","upstream_cluster":"inbound|80||"}"#, NO_ADDRESS),
            (
                r#"{"downstream_local_address":"10.0.0.7:80","downstream_remote_address":"10.0.0.7:80"}"#,
                NO_REQUEST,
            ),
            (&TEXT.replace("10.0.0.7:8080 10.0.0.9:33000", "- -"), NO_ADDRESS),
            // A line that is cut off.
            (&TEXT[..TEXT.len() - 90], NO_LINE),
            // The line of a client that forges fields is left out.
            (&TEXT.replace("cu\"rl", "a\" \"b"), NO_LINE),
        ];
        for (line, fault) in cases {
            assert_eq!(read(line), Err(fault), "{line}");
        }
    }
}
