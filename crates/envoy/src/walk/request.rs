//! A request whose route is explained.

use std::collections::BTreeMap;

use regex::bytes::{Captures, RegexBuilder};

use strait_model::mesh_config::{DotParameters, PathNormalization};
use strait_proto::envoy::envoy::config::route::v3 as route;
use strait_proto::envoy::envoy::r#type::matcher::v3 as matcher;

/// A request that a workload sends.
#[derive(Debug, Clone, Default)]
pub struct ProbedRequest {
    /// Whether the client itself starts TLS.
    pub(super) is_tls: bool,
    /// Whether it is a raw TCP connection without HTTP and TLS.
    pub(super) is_bytes: bool,
    /// The host in the URL, without brackets.
    pub(super) host: String,
    /// The destination port.
    pub(super) port: u16,
    /// Host and port as written; the port only if it was written.
    pub(super) named: String,
    /// The port of the HTTP proxy that receives the request, as the `http_proxy` setting of clients
    /// defines it.
    pub(super) by_proxy: Option<u16>,
    /// The path without the query.
    pub(super) path: String,
    /// The query parameters, in order.
    pub(super) query: Vec<(String, String)>,
    /// Headers, including `:method`, `:authority` and `:scheme`; names are in lower case.
    pub(super) headers: BTreeMap<String, String>,
    /// The SNI, if it differs from the URL's host.
    pub(super) sni: Option<String>,
}

impl ProbedRequest {
    /// Parses a request: `method`, a URL with or without `http://`, and headers as `NAME: VALUE`. A
    /// `tcp://` URL is a connection.
    ///
    /// # Errors
    /// Returns a description of the first invalid part.
    pub fn parse(
        text: &str,
        url: &str,
        headers: &[String],
        sni: Option<&str>,
    ) -> Result<Self, String> {
        let method = text.parse::<http::Method>();
        let method = method
            .map_err(|_| {
                format!(
                    "{:?} is not an HTTP method such as GET",
                    text.chars().take(40).collect::<String>()
                )
            })?
            .to_string();
        let with_scheme =
            if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: http::Uri = with_scheme
            .parse()
            .map_err(|_| format!("{url:?} is not a URL such as http://reviews.shop:9080/path"))?;
        let scheme = uri.scheme_str().unwrap_or("http").to_ascii_lowercase();
        if !matches!(&*scheme, "http" | "https" | "grpc" | "tcp") {
            return Err(format!(
                "{scheme} is not http, https, grpc or tcp; for raw TCP use tcp://HOST:PORT, for TLS https://HOST:PORT"
            ));
        }
        let (is_tls, is_bytes) = (scheme == "https", scheme == "tcp");
        let authority = uri.authority().ok_or_else(|| format!("{url:?} names no host"))?;
        if authority.as_str().contains('@') {
            return Err("a URL with a user name is not supported".to_owned());
        }
        let host = authority.host().trim_matches(['[', ']']).to_ascii_lowercase();
        let port = match authority.as_str().rsplit_once(':') {
            Some((_, port)) if !port.ends_with(']') => {
                port.parse()
                    .ok()
                    .filter(|port| *port > 0)
                    .ok_or_else(|| format!("{port:?} is not a port from 1 to 65535"))?
            }
            _ => {
                if is_bytes {
                    return Err(format!("{url:?} names no port"));
                }
                if is_tls { 443 } else { 80 }
            }
        };
        let query = uri.query().unwrap_or_default();
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (name.to_owned(), value.to_owned())
        });
        let mut all = BTreeMap::from([
            (":method".to_owned(), method),
            (":scheme".to_owned(), if is_tls { "https" } else { "http" }.to_owned()),
            (":authority".to_owned(), authority.to_string()),
        ]);
        for header in headers {
            let (name, value) = header
                .split_once([':', '='])
                .filter(|(name, _)| !name.is_empty())
                .ok_or_else(|| format!("{header:?} is not a header of the form NAME: VALUE"))?;
            let name = name.trim().to_ascii_lowercase();
            let name = if name == "host" { ":authority".to_owned() } else { name };
            let value = value.trim().to_owned();
            // Envoy compares several values of one header joined by commas.
            match all.get_mut(&name).filter(|_| !name.starts_with(':')) {
                Some(before) => *before = format!("{before},{value}"),
                None => _ = all.insert(name, value),
            }
        }
        Ok(Self {
            is_tls,
            is_bytes,
            host,
            port,
            named: authority.as_str().to_ascii_lowercase(),
            by_proxy: None,
            path: uri.path().to_owned(),
            query: pairs.collect(),
            headers: all,
            sni: sni.map(str::to_ascii_lowercase),
        })
    }

    /// Returns the request as sent to an HTTP proxy at a port of the workload's host, as the
    /// `http_proxy` setting of clients defines it.
    #[must_use]
    pub fn by_proxy(self, port: Option<u16>) -> Self {
        Self { by_proxy: port, ..self }
    }

    /// Returns the destination port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the path without the query.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the path with the query.
    pub(super) fn path_and_query(&self) -> String {
        let pair = |(name, value): &(String, String)| match &**value {
            "" => name.clone(),
            value => format!("{name}={value}"),
        };
        match &*self.query {
            [] => self.path.clone(),
            all => format!("{}?{}", self.path, all.iter().map(pair).collect::<Vec<_>>().join("&")),
        }
    }

    /// Returns the method.
    pub fn method(&self) -> &str {
        self.headers.get(":method").map_or("", |method| method)
    }

    /// Returns the host that it sends to the proxy.
    pub fn authority(&self) -> &str {
        self.headers.get(":authority").map_or("", |authority| authority)
    }

    /// Returns the request with the path as a proxy with this path normalization matches it.
    pub(super) fn normalized(
        &self,
        normalization: PathNormalization,
        parameters: DotParameters,
    ) -> Self {
        Self { path: normalization.applied(&self.path, parameters), ..self.clone() }
    }

    /// Returns the URL to which a virtual host that requires TLS redirects the request.
    pub(super) fn in_tls(&self) -> String {
        format!("https://{}{}{}", self.authority(), self.path, self.query_text())
    }

    /// Returns the query with its question mark, or an empty string.
    fn query_text(&self) -> String {
        let pair = |(name, value): &(String, String)| {
            if value.is_empty() { name.clone() } else { format!("{name}={value}") }
        };
        let pairs: Vec<_> = self.query.iter().map(pair).collect();
        if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
    }

    /// Returns the status and the location of a redirect.
    pub(super) fn redirected(
        &self,
        redirect: &route::RedirectAction,
        wanted: Option<&route::RouteMatch>,
    ) -> (u32, String) {
        use route::redirect_action::{
            PathRewriteSpecifier, RedirectResponseCode as Code, SchemeRewriteSpecifier,
        };
        use route::route_match::PathSpecifier;
        let status = match redirect.response_code() {
            Code::MovedPermanently => 301,
            Code::Found => 302,
            Code::SeeOther => 303,
            Code::TemporaryRedirect => 307,
            Code::PermanentRedirect => 308,
        };
        let own = if self.is_tls { "https" } else { "http" };
        let scheme = match &redirect.scheme_rewrite_specifier {
            Some(SchemeRewriteSpecifier::SchemeRedirect(scheme)) => scheme,
            Some(SchemeRewriteSpecifier::HttpsRedirect(true)) => "https",
            _ => own,
        };
        let (host, port) = match self.authority().rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port.to_owned())),
            _ => (self.authority(), None),
        };
        // If the scheme changes, its default port is removed, and no other.
        let implied = if self.is_tls { "443" } else { "80" };
        let port = match redirect.port_redirect {
            0 if !redirect.host_redirect.is_empty() => None,
            0 => port.filter(|port| scheme == own || port != implied),
            number => Some(number.to_string()),
        };
        let host = if redirect.host_redirect.is_empty() { host } else { &redirect.host_redirect };
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        let path = match &redirect.path_rewrite_specifier {
            Some(PathRewriteSpecifier::PathRedirect(path)) => path.clone(),
            Some(PathRewriteSpecifier::PrefixRewrite(new)) => {
                let matched = match wanted.and_then(|wanted| wanted.path_specifier.as_ref()) {
                    Some(
                        PathSpecifier::Prefix(text)
                        | PathSpecifier::Path(text)
                        | PathSpecifier::PathSeparatedPrefix(text),
                    ) => text.len(),
                    _ => self.path.len(),
                };
                format!("{new}{}", self.path.get(matched..).unwrap_or_default())
            }
            Some(PathRewriteSpecifier::RegexRewrite(rewrite)) => substituted(rewrite, &self.path),
            _ => self.path.clone(),
        };
        let query = if redirect.strip_query || path.contains('?') {
            String::new()
        } else {
            self.query_text()
        };
        (status, format!("{scheme}://{host}{port}{path}{query}"))
    }
}

/// Returns a path after a substitution, in which `\1` is the first group of the expression.
fn substituted(rewrite: &matcher::RegexMatchAndSubstitute, path: &str) -> String {
    let expression = rewrite.pattern.as_ref().map_or("", |pattern| &pattern.regex);
    let Ok(regex) = RegexBuilder::new(expression).build() else { return path.to_owned() };
    let replaced = regex.replace_all(path.as_bytes(), |groups: &Captures<'_>| {
        let mut text = Vec::new();
        let mut rest = rewrite.substitution.bytes();
        while let Some(byte) = rest.next() {
            match (byte, rest.clone().next()) {
                (b'\\', Some(next)) => {
                    rest.next();
                    match (next as char).to_digit(10) {
                        Some(group) => {
                            let group = groups.get(group as usize);
                            text.extend(group.map_or(&b""[..], |group| group.as_bytes()));
                        }
                        None => text.push(next),
                    }
                }
                (byte, _) => text.push(byte),
            }
        }
        text
    });
    String::from_utf8_lossy(&replaced).into_owned()
}
