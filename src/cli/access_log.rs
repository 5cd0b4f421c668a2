//! Lines of Envoy's access logs: what was called, when, by which cluster, and with which answer.
//!
//! Reads Istio's default format as text and as JSON, and Envoy's own default format, which names no upstream cluster; each
//! may stand behind what `kubectl logs --prefix --timestamps` puts before it. A quoted field is closed by a quote that a
//! space or the end follows, and a line counts only if it has as many fields as its format: a caller that writes quotes
//! into a header makes its line unread, and never another call of it. (Istio's `accessLogFormat` and `accessLogEncoding`,
//! Envoy's "Default format string".)

use std::io::{self, BufRead, Read as _};
use std::net::SocketAddr;

use jiff::Timestamp;
use serde_json::Value;

/// The longest line that is read, in bytes: twice what Envoy takes of a request's headers by default.
pub const LINE_BYTES_MAX: usize = 128 << 10;

/// How many fields a line of Istio's text format has, and of Envoy's.
const ISTIO_FIELDS: usize = 22;
const ENVOY_FIELDS: usize = 13;

/// One call as a proxy logged it; `None` where the format has no such field or the proxy wrote `-`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoggedCall {
    /// The pod whose log it is, where `kubectl logs --prefix` named it.
    pub pod: Option<String>,
    /// When it began.
    pub at: Option<Timestamp>,
    /// Its method; none for a call that isn't HTTP.
    pub method: Option<String>,
    /// The path with its query, as the caller sent it.
    pub path: Option<String>,
    /// `HTTP/1.1`, `HTTP/2` and so on.
    pub protocol: Option<String>,
    /// The status of the answer; 0 where there was none.
    pub code: Option<u16>,
    /// Envoy's response flags, such as `UF,URX`.
    pub flags: Option<String>,
    /// Why Envoy answered so, such as `rbac_access_denied_matched_policy[…]`.
    pub details: Option<String>,
    /// Why Envoy ended the connection.
    pub termination: Option<String>,
    /// The host that the caller named, perhaps with a port.
    pub authority: Option<String>,
    /// The address that the call went to.
    pub upstream_host: Option<String>,
    /// Envoy's cluster that it went to, such as `outbound|80||reviews.shop.svc.cluster.local`.
    pub upstream_cluster: Option<String>,
    /// The address that the caller asked.
    pub downstream_local: Option<String>,
    /// The address of the caller.
    pub downstream_remote: Option<String>,
    /// The name that the caller gave in its TLS handshake.
    pub server_name: Option<String>,
    /// The name of the route.
    pub route: Option<String>,
    /// The identities of the caller, where a format of one's own has them: `downstream_peer_uri_san` in JSON, one field more
    /// at the end of Istio's text.
    pub peer: Option<String>,
    /// Whether the format has these: without, a caller may have some all the same.
    pub tells_peer: bool,
    /// Whether the format has method, path and upstream cluster: without, a call that has none may have some all the same.
    pub tells_request: bool,
    /// `User-Agent`.
    pub user_agent: Option<String>,
}

/// How much of some logs could be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogCoverage {
    /// Lines that are calls.
    pub calls: u64,
    /// Lines that are in no format that is known, empty ones left out.
    pub unread: u64,
    /// When the first and the last of the calls that say it began.
    pub span: Option<(Timestamp, Timestamp)>,
}

impl LogCoverage {
    /// Hands over each call of one log, in its order.
    ///
    /// # Errors
    /// The log can't be read to its end.
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
    /// Reads one line; `None` for one that is in no format that is known.
    pub fn parse(line: &str) -> Option<Self> {
        let (pod, rest) = without_prefix(line.trim());
        let call = if rest.starts_with('{') { of_json(rest) } else { of_text(rest) }?;
        Some(Self { pod, ..call })
    }
}

/// What `kubectl logs --prefix` says of a line, and the line without it and without the time of `--timestamps`.
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

/// A field, where it says something.
fn given(field: &str) -> Option<String> {
    (!field.is_empty() && field != "-").then(|| field.to_owned())
}

/// The name of a cluster: newer Istio ends the names of its figures with `;`.
fn cluster(field: &str) -> Option<String> {
    given(field.trim_end_matches(';'))
}

fn of_text(line: &str) -> Option<LoggedCall> {
    let fields = fields(line)?;
    let at = fields.first()?.parse().ok()?;
    let request = fields.get(1)?;
    let (method, rest) = request.split_once(' ')?;
    let (path, protocol) = rest.rsplit_once(' ')?;
    let of = |number: usize| fields.get(number).and_then(|field| given(field));
    let common = LoggedCall {
        at: Some(at),
        method: given(method),
        path: given(path),
        protocol: given(protocol),
        code: Some(fields.get(2)?.parse().ok()?),
        flags: of(3),
        ..LoggedCall::default()
    };
    // Bytes, where the other format has words: a line of the one can't be stretched into one of the other.
    let is_envoys = fields.get(4)?.parse::<u64>().is_ok();
    // A caller that writes one field more moves an address to where the server name stands.
    let has_peer = |last: &str| last == "-" || last.starts_with("spiffe://");
    let tells_peer = fields.len() == ISTIO_FIELDS + 1
        && fields.last().is_some_and(|last| has_peer(last))
        && fields.get(20).is_some_and(|name| name.parse::<SocketAddr>().is_err());
    match (fields.len() - usize::from(tells_peer), is_envoys) {
        (ISTIO_FIELDS, false) => Some(LoggedCall {
            tells_request: true,
            tells_peer,
            peer: of(22),
            details: of(4),
            termination: of(5),
            user_agent: of(12),
            authority: of(14),
            upstream_host: of(15),
            upstream_cluster: fields.get(16).and_then(|field| cluster(field)),
            downstream_local: of(18),
            downstream_remote: of(19),
            server_name: of(20),
            route: of(21),
            ..common
        }),
        (ENVOY_FIELDS, true) => Some(LoggedCall {
            user_agent: of(9),
            authority: of(11),
            upstream_host: of(12),
            ..common
        }),
        _ => None,
    }
}

/// The fields of a line, `[…]` and `"…"` without what encloses them; `None` if one isn't closed.
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
    let of = |name: &str| match &value[name] {
        Value::String(text) => given(text),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let call = LoggedCall {
        pod: None,
        at: of("start_time").and_then(|at| at.parse().ok()),
        method: of("method"),
        path: of("path"),
        protocol: of("protocol"),
        code: of("response_code").and_then(|code| code.parse().ok()),
        flags: of("response_flags"),
        details: of("response_code_details"),
        termination: of("connection_termination_details"),
        authority: of("authority"),
        upstream_host: of("upstream_host"),
        upstream_cluster: of("upstream_cluster").and_then(|name| cluster(&name)),
        downstream_local: of("downstream_local_address"),
        downstream_remote: of("downstream_remote_address"),
        server_name: of("requested_server_name"),
        route: of("route_name"),
        peer: of("downstream_peer_uri_san"),
        tells_peer: value.get("downstream_peer_uri_san").is_some(),
        tells_request: ["method", "path", "upstream_cluster"]
            .iter()
            .all(|name| value.get(name).is_some()),
        user_agent: of("user_agent"),
    };
    // Something else that is JSON, such as the control plane's own log, says none of these.
    let is_call = call.code.is_some() && (call.authority.is_some() || call.upstream_host.is_some());
    (is_call || call.upstream_cluster.is_some() || call.downstream_local.is_some()).then_some(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISTIO: &str = r#"[2026-11-25T02:00:00.123Z] "GET /reviews/1?x=y HTTP/1.1" 200 - via_upstream - "-" 0 375 8 7 "-" "curl/8.5" "4f3a-1" "reviews.shop:9080" "10.1.0.7:9080" outbound|9080|v1|reviews.shop.svc.cluster.local 10.1.0.3:51234 10.96.0.9:9080 10.1.0.3:40000 - default"#;
    const JSON: &str = r#"{"start_time":"2026-11-25T02:00:05.000Z","method":"POST","path":"/pay","protocol":"HTTP/2","response_code":503,"response_flags":"UF","authority":"pay.example","upstream_host":"192.0.2.9:443","upstream_cluster":"PassthroughCluster","requested_server_name":null,"route_name":"allow_any","downstream_remote_address":"10.1.0.3:4","downstream_peer_uri_san":"spiffe://cluster.local/ns/shop/sa/web"}"#;

    #[test]
    fn istios_text_format_is_read() {
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
    fn what_is_no_http_has_an_upstream_and_no_path() {
        let line = r#"[2026-11-25T02:00:00Z] "- - -" 0 - - - "-" 10 20 5 - "-" "-" "-" "-" "10.1.0.9:3306" outbound|3306||db.shop.svc.cluster.local; 10.1.0.3:5 10.96.0.1:3306 10.1.0.3:6 - -"#;
        let call = LoggedCall::parse(line).expect("a call");
        let cluster = call.upstream_cluster.as_deref();
        assert_eq!(cluster, Some("outbound|3306||db.shop.svc.cluster.local"));
        assert_eq!((call.method, call.path, call.authority), (None, None, None));
    }

    #[test]
    fn json_and_envoys_own_format_are_read() {
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
    fn one_field_more_says_who_called() {
        let bare = LoggedCall::parse(ISTIO).expect("a call");
        assert_eq!((bare.peer.as_deref(), bare.tells_peer), (None, false));
        let identity = "spiffe://cluster.local/ns/shop/sa/web";
        let told = LoggedCall::parse(&format!("{ISTIO} {identity}")).expect("a call");
        assert_eq!((told.peer.as_deref(), told.tells_peer), (Some(identity), true));
        let plain = LoggedCall::parse(&format!("{ISTIO} -")).expect("a call");
        assert_eq!((plain.peer, plain.tells_peer), (None, true));
        assert_eq!(LoggedCall::parse(&format!("{ISTIO} other")), None);
    }

    #[test]
    fn what_kubectl_puts_before_a_line_is_left_out() {
        let line = format!("[pod/web-1/istio-proxy] 2026-11-25T02:00:01.5Z {ISTIO}");
        let call = LoggedCall::parse(&line).expect("a call");
        assert_eq!(call.pod.as_deref(), Some("web-1"));
        let bare = LoggedCall::parse(ISTIO).expect("a call");
        assert_eq!(LoggedCall { pod: None, ..call }, bare);
    }

    #[test]
    fn a_caller_cannot_write_another_call_into_its_line() {
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
        // One field more, in a line that ends as one does that says who called.
        let shifted = ISTIO.replace("curl/8.5", r#"a" "b"#).replace("- default", "- -");
        assert_eq!(fields(&shifted).map(|fields| fields.len()), Some(ISTIO_FIELDS + 1));
        assert_eq!(LoggedCall::parse(&shifted), None);
        let quoted = LoggedCall::parse(&ISTIO.replace("curl/8.5", r#"a"b"#)).expect("a call");
        assert_eq!(quoted.user_agent.as_deref(), Some(r#"a"b"#));
    }

    #[test]
    fn other_lines_are_counted_and_the_span_is_told() {
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
