//! Lines of access logs, in the two formats that Istio's proxies and Strait's write where nobody says otherwise.
//!
//! Text is read from its two ends, since what clients send stands in its middle.

use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

/// What of a line is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogEntry {
    /// `None` for a connection that is not HTTP.
    pub(super) request: Option<LoggedRequest>,
    /// The upstream cluster; `-` where none was chosen.
    pub(super) cluster: String,
    /// The address that the client meant, at the proxy that wrote the line.
    pub(super) local: SocketAddr,
    /// Who connected.
    pub(super) remote: IpAddr,
    /// The client's identity, where the line says it; `Some(None)` for none.
    pub(super) identity: Option<Option<String>>,
    /// The server name that the client asked for.
    pub(super) server_name: Option<String>,
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LoggedRequest {
    pub(super) method: String,
    /// With its query.
    pub(super) path: String,
    pub(super) authority: Option<String>,
}

/// What a line lacks, to be counted.
pub(super) type LogFault = &'static str;

const NO_LINE: LogFault = "is no access log line in Istio's text or JSON format";
const NO_ADDRESS: LogFault = "has no downstream_local_address or downstream_remote_address";
const NO_REQUEST: LogFault = "has no method or path";

/// Reads a line.
pub(super) fn read(line: &str) -> Result<LogEntry, LogFault> {
    let line = line.trim();
    if line.starts_with('{') {
        return of_json(&serde_json::from_str(line).map_err(|_| NO_LINE)?);
    }
    of_text(line)
}

fn of_json(fields: &Value) -> Result<LogEntry, LogFault> {
    let field = |name: &str| fields.get(name).and_then(Value::as_str).and_then(given);
    let needed = ["downstream_local_address", "downstream_remote_address"];
    let [local, remote] =
        needed.map(|name| field(name).and_then(|text| text.parse::<SocketAddr>().ok()));
    let (Some(local), Some(remote)) = (local, remote) else { return Err(NO_ADDRESS) };
    // A connection has neither; a format without the fields says nothing.
    if ["method", "path", "upstream_cluster"].iter().any(|name| fields.get(*name).is_none()) {
        return Err(NO_REQUEST);
    }
    let identity = fields.get("downstream_peer_uri_san");
    Ok(LogEntry {
        request: request(field("method"), field("path"), field("authority"))?,
        cluster: field("upstream_cluster").unwrap_or("-").to_owned(),
        local,
        remote: remote.ip(),
        identity: identity.map(|text| text.as_str().and_then(spiffe)),
        server_name: field("requested_server_name").map(str::to_owned),
    })
}

fn of_text(line: &str) -> Result<LogEntry, LogFault> {
    let after_time = line.strip_prefix('[').and_then(|rest| rest.split_once("] \""));
    let (_, rest) = after_time.ok_or(NO_LINE)?;
    let (asked, rest) = rest.split_once('"').ok_or(NO_LINE)?;
    let asked: Vec<_> = asked.split(' ').collect();
    let [method, path, _] = asked[..] else { return Err(NO_LINE) };
    // From the end: what stands between may hold anything.
    let (rest, identity) = match rest.rsplit_once(' ') {
        Some((before, last)) if last.starts_with("spiffe://") => (before, Some(spiffe(last))),
        _ => (rest, None),
    };
    let mut from_end = rest.rsplitn(7, ' ');
    let mut next = || from_end.next().ok_or(NO_LINE);
    let [_route, server_name, remote, local, _upstream, cluster, rest] =
        [next()?, next()?, next()?, next()?, next()?, next()?, next()?];
    // `"AUTHORITY" "UPSTREAM HOST"`.
    let rest = rest.strip_suffix('"').and_then(|rest| rest.rsplit_once("\" \""));
    let authority = rest.and_then(|(before, _)| before.rsplit_once('"')).map(|(_, name)| name);
    let authority = authority.ok_or(NO_LINE)?;
    let address = |text: &str| text.parse::<SocketAddr>().ok();
    let (Some(local), Some(remote)) = (address(local), address(remote)) else {
        return Err(NO_ADDRESS);
    };
    Ok(LogEntry {
        request: request(given(method), given(path), given(authority))?,
        cluster: cluster.to_owned(),
        local,
        remote: remote.ip(),
        identity,
        server_name: given(server_name).map(str::to_owned),
    })
}

fn request(
    method: Option<&str>,
    path: Option<&str>,
    authority: Option<&str>,
) -> Result<Option<LoggedRequest>, LogFault> {
    let authority = authority.map(str::to_owned);
    match (method, path) {
        (None, None) => Ok(None),
        (Some(method), Some(path)) => {
            let (method, path) = (method.to_owned(), path.to_owned());
            Ok(Some(LoggedRequest { method, path, authority }))
        }
        _ => Err(NO_REQUEST),
    }
}

/// Envoy writes `-` for nothing.
fn given(text: &str) -> Option<&str> {
    (!text.is_empty() && text != "-").then_some(text)
}

/// The first identity of a list.
fn spiffe(text: &str) -> Option<String> {
    let first = text.split(',').next().unwrap_or_default().trim();
    first.starts_with("spiffe://").then(|| first.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"[2026-11-25T10:00:00.000Z] "GET /api/1?x=1 HTTP/1.1" 200 - via_upstream - "-" 0 12 3 2 "10.9.9.9" "cu"rl/8 "x" y" "id-1" "web.shop:8080" "10.0.0.7:8080" inbound|8080|| 127.0.0.6:41000 10.0.0.7:8080 10.0.0.9:33000 outbound_.80_._.web.shop.svc.cluster.local default"#;

    #[test]
    fn the_usual_text_is_read_whatever_clients_send() {
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
        let tcp = r#"[t] "- - -" 0 - - - "-" 5 6 7 - "-" "-" "-" "-" "10.0.0.7:5432" inbound|5432|| 127.0.0.6:1 10.0.0.7:5432 10.0.0.9:2 - -"#;
        let entry = read(tcp).expect("a connection");
        assert_eq!((entry.request, entry.local.port()), (None, 5432));
    }

    #[test]
    fn json_is_read_by_its_names_and_says_who_called_where_it_can() {
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
    fn a_line_that_lacks_something_says_what() {
        let cases = [
            ("", NO_LINE),
            ("some log of something else", NO_LINE),
            ("{", NO_LINE),
            (r#"{"method":"GET","path":"/"}"#, NO_ADDRESS),
            (
                r#"{"downstream_local_address":"10.0.0.7:80","downstream_remote_address":"10.0.0.7:80"}"#,
                NO_REQUEST,
            ),
            (&TEXT.replace("10.0.0.7:8080 10.0.0.9:33000", "- -"), NO_ADDRESS),
            // Cut off: what stands at its end is no address.
            (&TEXT[..TEXT.len() - 90], NO_ADDRESS),
        ];
        for (line, fault) in cases {
            assert_eq!(read(line), Err(fault), "{line}");
        }
    }
}
