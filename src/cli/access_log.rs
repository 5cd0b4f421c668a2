//! Parser for lines of Envoy's access logs: method, path, time, upstream cluster and response of
//! each call.
//!
//! It reads Istio's default format as text and JSON, and Envoy's own default format, which does not
//! contain the upstream cluster. A line may start with the prefix of `kubectl logs --prefix
//! --timestamps`. A quoted field ends at a quote that is followed by a space or the end of the
//! line, and a line is accepted only if it has exactly the number of fields that the format
//! defines. A caller that writes quotes into a header therefore makes its own line unreadable, but
//! cannot forge another call. Sources: Istio's `accessLogFormat` and `accessLogEncoding`, Envoy's
//! "Default format string".

use std::io::{self, BufRead, Read as _};
use std::net::SocketAddr;

use jiff::Timestamp;
use serde_json::Value;

/// Longest accepted line, in bytes: twice Envoy's default limit for request headers.
pub const LINE_BYTES_MAX: usize = 128 << 10;

/// Number of fields of a line in Istio's and in Envoy's text format.
const ISTIO_FIELDS: usize = 22;
const ENVOY_FIELDS: usize = 13;

/// One call as a proxy logged it. A field is `None` if the format lacks it or the proxy wrote `-`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoggedCall {
    /// Pod that wrote the log, from the prefix of `kubectl logs --prefix`.
    pub pod: Option<String>,
    /// Start time of the call.
    pub at: Option<Timestamp>,
    /// HTTP method; `None` for a call that is not HTTP.
    pub method: Option<String>,
    /// Path with query, as the caller sent it.
    pub path: Option<String>,
    /// Protocol: `HTTP/1.1`, `HTTP/2` and so on.
    pub protocol: Option<String>,
    /// Status code of the response; 0 if Envoy received none.
    pub code: Option<u16>,
    /// Response flags of Envoy, for example `UF,URX`.
    pub flags: Option<String>,
    /// Envoy's reason for the response, for example `rbac_access_denied_matched_policy[…]`.
    pub details: Option<String>,
    /// Envoy's reason for closing the connection.
    pub termination: Option<String>,
    /// Host that the caller named, possibly with a port.
    pub authority: Option<String>,
    /// Address to which Envoy sent the call.
    pub upstream_host: Option<String>,
    /// Upstream cluster, for example `outbound|80||reviews.shop.svc.cluster.local`.
    pub upstream_cluster: Option<String>,
    /// Destination address that the caller connected to.
    pub downstream_local: Option<String>,
    /// Address of the caller.
    pub downstream_remote: Option<String>,
    /// Server name (SNI) of the caller's TLS handshake.
    pub server_name: Option<String>,
    /// Name of the route.
    pub route: Option<String>,
    /// Identities of the caller. Only custom formats contain them: as `downstream_peer_uri_san` in
    /// JSON, or as an additional last field of Istio's text format.
    pub peer: Option<String>,
    /// Whether the format contains the caller's identity. If not, an absent `peer` does not mean
    /// that the caller had none.
    pub has_peer_field: bool,
    /// Whether the format contains method, path and upstream cluster. If not, absent values do not
    /// mean that the call had none.
    pub tells_request: bool,
    /// The `User-Agent` header.
    pub user_agent: Option<String>,
}

/// Statistics on how much of the logs was readable.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogCoverage {
    /// Number of lines that are calls.
    pub calls: u64,
    /// Number of non-empty lines in an unknown format.
    pub unread: u64,
    /// Times of the earliest and the latest call, of the calls with a time.
    pub span: Option<(Timestamp, Timestamp)>,
}

impl LogCoverage {
    /// Parses one log and passes its calls to `take` in order.
    ///
    /// # Errors
    /// If reading the log fails.
    pub fn read(
        &mut self,
        mut log: impl BufRead,
        mut take: impl FnMut(LoggedCall),
    ) -> io::Result<()> {
        let mut line = Vec::new();
        loop {
            line.clear();
            let limit = LINE_BYTES_MAX as u64 + 1;
            if log.by_ref().take(limit).read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            if line.len() > LINE_BYTES_MAX {
                self.unread += 1;
                log.skip_until(b'\n')?;
                continue;
            }
            let text = String::from_utf8_lossy(&line);
            match LoggedCall::parse(&text) {
                Some(call) => {
                    self.calls += 1;
                    self.span = match (self.span, call.at) {
                        (None, at) => at.map(|at| (at, at)),
                        (span, None) => span,
                        (Some((from, to)), Some(at)) => Some((from.min(at), to.max(at))),
                    };
                    take(call);
                }
                None if text.trim().is_empty() => {}
                None => self.unread += 1,
            }
        }
    }
}

impl LoggedCall {
    /// Parses one line. Returns `None` if its format is unknown.
    pub fn parse(line: &str) -> Option<Self> {
        let (pod, rest) = without_prefix(line.trim());
        let call = if rest.starts_with('{') { of_json(rest) } else { of_text(rest) }?;
        Some(Self { pod, ..call })
    }
}

/// Splits the prefix of `kubectl logs --prefix --timestamps` off a line. Returns the name of the
/// pod and the rest.
fn without_prefix(line: &str) -> (Option<String>, &str) {
    let named = line.strip_prefix("[pod/").and_then(|rest| rest.split_once("] "));
    let (pod, rest) = match named {
        Some((name, rest)) => (name.split('/').next().map(str::to_owned), rest),
        None => (None, line),
    };
    match rest.split_once(' ') {
        Some((word, after)) if word.parse::<Timestamp>().is_ok() => (pod, after.trim_start()),
        _ => (pod, rest),
    }
}

/// Returns the field, or `None` if it is empty or `-`.
fn field_value(field: &str) -> Option<String> {
    (!field.is_empty() && field != "-").then(|| field.to_owned())
}

/// Returns the name of an upstream cluster. Newer Istio versions add `;` to it, for their
/// statistics.
fn cluster(field: &str) -> Option<String> {
    field_value(field.trim_end_matches(';'))
}

fn of_text(line: &str) -> Option<LoggedCall> {
    let fields = fields(line)?;
    let at = fields.first()?.parse().ok()?;
    let request = fields.get(1)?;
    let (method, rest) = request.split_once(' ')?;
    let (path, protocol) = rest.rsplit_once(' ')?;
    let field = |number: usize| fields.get(number).and_then(|field| field_value(field));
    let common = LoggedCall {
        at: Some(at),
        method: field_value(method),
        path: field_value(path),
        protocol: field_value(protocol),
        code: Some(fields.get(2)?.parse().ok()?),
        flags: field(3),
        ..LoggedCall::default()
    };
    // This field is a number of bytes here and text in the other format, so a line of one format
    // cannot be extended into a line of the other.
    let is_envoys = fields.get(4)?.parse::<u64>().is_ok();
    // A caller that adds a field shifts an address into the position of the server name.
    let has_peer = |last: &str| last == "-" || last.starts_with("spiffe://");
    let has_peer_field = fields.len() == ISTIO_FIELDS + 1
        && fields.last().is_some_and(|last| has_peer(last))
        && fields.get(20).is_some_and(|name| name.parse::<SocketAddr>().is_err());
    match (fields.len() - usize::from(has_peer_field), is_envoys) {
        (ISTIO_FIELDS, false) => Some(LoggedCall {
            tells_request: true,
            has_peer_field,
            peer: field(22),
            details: field(4),
            termination: field(5),
            user_agent: field(12),
            authority: field(14),
            upstream_host: field(15),
            upstream_cluster: fields.get(16).and_then(|field| cluster(field)),
            downstream_local: field(18),
            downstream_remote: field(19),
            server_name: field(20),
            route: field(21),
            ..common
        }),
        (ENVOY_FIELDS, true) => Some(LoggedCall {
            user_agent: field(9),
            authority: field(11),
            upstream_host: field(12),
            ..common
        }),
        _ => None,
    }
}

/// Splits a line into its fields, without the enclosing `[…]` and `"…"`. Returns `None` if a field
/// is not closed.
fn fields(line: &str) -> Option<Vec<&str>> {
    let mut fields = Vec::with_capacity(ISTIO_FIELDS);
    let mut rest = line;
    while !rest.is_empty() {
        if fields.len() > ISTIO_FIELDS + 1 {
            return None;
        }
        let closing = match (rest.as_bytes()[0], fields.is_empty()) {
            (b'[', true) => Some(']'),
            (b'"', _) => Some('"'),
            _ => None,
        };
        let (field, after) = match closing {
            Some(closing) => {
                let inner = &rest[1..];
                let ends = |at: &usize| matches!(inner.as_bytes().get(at + 1), None | Some(b' '));
                let end = inner.match_indices(closing).map(|(at, _)| at).find(ends)?;
                (&inner[..end], &inner[end + 1..])
            }
            None => rest.split_at(rest.find(' ').unwrap_or(rest.len())),
        };
        fields.push(field);
        rest = after.strip_prefix(' ').unwrap_or(after);
    }
    Some(fields)
}

fn of_json(line: &str) -> Option<LoggedCall> {
    let value: Value = serde_json::from_str(line).ok()?;
    let value_of = |name: &str| match &value[name] {
        Value::String(text) => field_value(text),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let call = LoggedCall {
        pod: None,
        at: value_of("start_time").and_then(|at| at.parse().ok()),
        method: value_of("method"),
        path: value_of("path"),
        protocol: value_of("protocol"),
        code: value_of("response_code").and_then(|code| code.parse().ok()),
        flags: value_of("response_flags"),
        details: value_of("response_code_details"),
        termination: value_of("connection_termination_details"),
        authority: value_of("authority"),
        upstream_host: value_of("upstream_host"),
        upstream_cluster: value_of("upstream_cluster").and_then(|name| cluster(&name)),
        downstream_local: value_of("downstream_local_address"),
        downstream_remote: value_of("downstream_remote_address"),
        server_name: value_of("requested_server_name"),
        route: value_of("route_name"),
        peer: value_of("downstream_peer_uri_san"),
        has_peer_field: value.get("downstream_peer_uri_san").is_some(),
        tells_request: ["method", "path", "upstream_cluster"]
            .iter()
            .all(|name| value.get(name).is_some()),
        user_agent: value_of("user_agent"),
    };
    // Other JSON, for example the control plane's own log, has none of these fields.
    let is_call = call.code.is_some() && (call.authority.is_some() || call.upstream_host.is_some());
    (is_call || call.upstream_cluster.is_some() || call.downstream_local.is_some()).then_some(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISTIO: &str = r#"[2026-11-25T02:00:00.123Z] "GET /reviews/1?x=y HTTP/1.1" 200 - via_upstream - "-" 0 375 8 7 "-" "curl/8.5" "4f3a-1" "reviews.shop:9080" "10.1.0.7:9080" outbound|9080|v1|reviews.shop.svc.cluster.local 10.1.0.3:51234 10.96.0.9:9080 10.1.0.3:40000 - default"#;
    const JSON: &str = r#"{"start_time":"2026-11-25T02:00:05.000Z","method":"POST","path":"/pay","protocol":"HTTP/2","response_code":503,"response_flags":"UF","authority":"pay.example","upstream_host":"192.0.2.9:443","upstream_cluster":"PassthroughCluster","requested_server_name":null,"route_name":"allow_any","downstream_remote_address":"10.1.0.3:4","downstream_peer_uri_san":"spiffe://cluster.local/ns/shop/sa/web"}"#;

    #[test]
    fn istio_text_format_is_parsed() {
        let call = LoggedCall::parse(ISTIO).expect("a call");
        let expected = LoggedCall {
            at: Some("2026-11-25T02:00:00.123Z".parse().expect("a time")),
            method: Some("GET".into()),
            path: Some("/reviews/1?x=y".into()),
            protocol: Some("HTTP/1.1".into()),
            code: Some(200),
            details: Some("via_upstream".into()),
            authority: Some("reviews.shop:9080".into()),
            upstream_host: Some("10.1.0.7:9080".into()),
            upstream_cluster: Some("outbound|9080|v1|reviews.shop.svc.cluster.local".into()),
            downstream_local: Some("10.96.0.9:9080".into()),
            downstream_remote: Some("10.1.0.3:40000".into()),
            route: Some("default".into()),
            user_agent: Some("curl/8.5".into()),
            tells_request: true,
            ..LoggedCall::default()
        };
        assert_eq!(call, expected);
    }

    #[test]
    fn non_http_calls_have_an_upstream_and_no_path() {
        let line = r#"[2026-11-25T02:00:00Z] "- - -" 0 - - - "-" 10 20 5 - "-" "-" "-" "-" "10.1.0.9:3306" outbound|3306||db.shop.svc.cluster.local; 10.1.0.3:5 10.96.0.1:3306 10.1.0.3:6 - -"#;
        let call = LoggedCall::parse(line).expect("a call");
        let cluster = call.upstream_cluster.as_deref();
        assert_eq!(cluster, Some("outbound|3306||db.shop.svc.cluster.local"));
        assert_eq!((call.method, call.path, call.authority), (None, None, None));
    }

    #[test]
    fn json_and_envoy_default_format_are_parsed() {
        let call = LoggedCall::parse(JSON).expect("a call");
        assert_eq!(call.code, Some(503));
        assert_eq!(call.upstream_cluster.as_deref(), Some("PassthroughCluster"));
        assert_eq!(call.peer.as_deref(), Some("spiffe://cluster.local/ns/shop/sa/web"));
        assert_eq!(call.server_name, None);
        let line = r#"[2026-11-25T02:00:00.000Z] "GET / HTTP/1.1" 404 NR 0 0 1 - "-" "curl" "id" "web.shop" "-""#;
        let call = LoggedCall::parse(line).expect("a call");
        assert_eq!(call.authority.as_deref(), Some("web.shop"));
        assert_eq!((call.flags.as_deref(), call.upstream_host), (Some("NR"), None));
        assert_eq!(call.upstream_cluster, None);
    }

    #[test]
    fn additional_last_field_is_the_identity_of_the_caller() {
        let bare = LoggedCall::parse(ISTIO).expect("a call");
        assert_eq!((bare.peer.as_deref(), bare.has_peer_field), (None, false));
        let identity = "spiffe://cluster.local/ns/shop/sa/web";
        let call = LoggedCall::parse(&format!("{ISTIO} {identity}")).expect("a call");
        assert_eq!((call.peer.as_deref(), call.has_peer_field), (Some(identity), true));
        let plain = LoggedCall::parse(&format!("{ISTIO} -")).expect("a call");
        assert_eq!((plain.peer, plain.has_peer_field), (None, true));
        assert_eq!(LoggedCall::parse(&format!("{ISTIO} other")), None);
    }

    #[test]
    fn prefix_of_kubectl_logs_is_removed() {
        let line = format!("[pod/web-1/istio-proxy] 2026-11-25T02:00:01.5Z {ISTIO}");
        let call = LoggedCall::parse(&line).expect("a call");
        assert_eq!(call.pod.as_deref(), Some("web-1"));
        let bare = LoggedCall::parse(ISTIO).expect("a call");
        assert_eq!(LoggedCall { pod: None, ..call }, bare);
    }

    #[test]
    fn caller_cannot_forge_a_second_call() {
        let agent =
            r#"x" "1" "bank.example" "10.0.0.1:1" outbound|1||bank.example 1 2 3 - default"#;
        let forged = ISTIO.replace("curl/8.5", agent);
        assert_eq!(LoggedCall::parse(&forged), None);
        let agent = r#"a" "1" 2 3 4 5 6 7 8 "bank"#;
        let stretched = format!(
            r#"[2026-11-25T02:00:00Z] "GET / HTTP/1.1" 200 - 0 0 1 5 "5" "{agent}" "id" "web.shop" "-""#
        );
        assert_eq!(fields(&stretched).map(|fields| fields.len()), Some(ISTIO_FIELDS));
        assert_eq!(LoggedCall::parse(&stretched), None);
        // This line has an additional field and ends like a line with the caller's identity.
        let shifted = ISTIO.replace("curl/8.5", r#"a" "b"#).replace("- default", "- -");
        assert_eq!(fields(&shifted).map(|fields| fields.len()), Some(ISTIO_FIELDS + 1));
        assert_eq!(LoggedCall::parse(&shifted), None);
        let quoted = LoggedCall::parse(&ISTIO.replace("curl/8.5", r#"a"b"#)).expect("a call");
        assert_eq!(quoted.user_agent.as_deref(), Some(r#"a"b"#));
    }

    #[test]
    fn unknown_lines_are_counted_and_the_time_span_is_recorded() {
        let long = "x".repeat(LINE_BYTES_MAX + 10);
        let log = format!(
            "\n2026-11-25T01:00:00Z\tinfo\tEnvoy proxy is ready\n{{\"level\":\"info\"}}\n{JSON}\n{long}\n{ISTIO}\n[\n[2026"
        );
        let (mut coverage, mut calls) = (LogCoverage::default(), Vec::new());
        coverage.read(log.as_bytes(), |call| calls.push(call.code)).expect("a log");
        assert_eq!(calls, [Some(503), Some(200)]);
        let time = |text: &str| text.parse::<Timestamp>().expect("a time");
        let span = (time("2026-11-25T02:00:00.123Z"), time("2026-11-25T02:00:05Z"));
        assert_eq!(coverage, LogCoverage { calls: 2, unread: 5, span: Some(span) });
    }
}
