//! Matches connections and requests with a proxy's configuration like Envoy. (Envoy,
//! `FilterChainMatch`, `VirtualHost.domains`, `RouteMatch`.)

use std::net::IpAddr;

use ipnet::IpNet;
use regex::bytes::RegexBuilder;

use super::ProbedRequest;
use strait_proto::envoy::envoy::config::listener::v3 as listener;
use strait_proto::envoy::envoy::config::route::v3 as route;
use strait_proto::envoy::envoy::r#type::matcher::v3 as matcher;

/// A connection at a listener.
pub(super) struct ArrivingConnection<'a> {
    /// The destination address, if it is known.
    pub(super) address: Option<IpAddr>,
    /// The destination port.
    pub(super) port: u16,
    pub(super) is_tls: bool,
    pub(super) server_name: Option<&'a str>,
    /// The detected protocol, or the protocols that the client offers.
    pub(super) protocols: &'a [&'a str],
}

/// Returns the chain that accepts a connection, or `None` if the connection is closed.
pub(super) fn accepting_chain<'a>(
    listener: &'a listener::Listener,
    connection: &ArrivingConnection<'_>,
) -> Option<&'a listener::FilterChain> {
    let inspects =
        |what: &str| listener.listener_filters.iter().any(|one| one.name.ends_with(what));
    let visible = ArrivingConnection {
        is_tls: connection.is_tls && inspects("tls_inspector"),
        server_name: connection.server_name.filter(|_| inspects("tls_inspector")),
        protocols: if connection.is_tls || inspects("http_inspector") {
            connection.protocols
        } else {
            &[]
        },
        ..*connection
    };
    let mut fitting: Vec<_> = listener.filter_chains.iter().collect();
    let match_all = listener::FilterChainMatch::default();
    // Envoy keeps the chains that match a condition best, then evaluates the next condition, and
    // never reconsiders.
    for closeness in [port, range, name, transport, protocol] as [Closeness; 5] {
        let chain_closeness = |chain: &listener::FilterChain| {
            closeness(chain.filter_chain_match.as_ref().unwrap_or(&match_all), &visible)
        };
        let best = fitting.iter().filter_map(|chain| chain_closeness(chain)).max();
        fitting.retain(|chain| best.is_some() && chain_closeness(chain) == best);
    }
    fitting.first().copied().or(listener.default_filter_chain.as_ref())
}

/// How specifically a condition matches a connection; `None` if it does not match.
type Closeness = fn(&listener::FilterChainMatch, &ArrivingConnection<'_>) -> Option<usize>;

fn port(wanted: &listener::FilterChainMatch, connection: &ArrivingConnection<'_>) -> Option<usize> {
    match wanted.destination_port {
        None => Some(0),
        Some(port) => (port.value == u32::from(connection.port)).then_some(1),
    }
}

fn range(
    wanted: &listener::FilterChainMatch,
    connection: &ArrivingConnection<'_>,
) -> Option<usize> {
    if wanted.prefix_ranges.is_empty() {
        return Some(0);
    }
    let address = connection.address?;
    let lengths = wanted.prefix_ranges.iter().filter_map(|range| {
        let length = range.prefix_len.map_or(0, |length| length.value);
        let prefix = range.address_prefix.parse().ok()?;
        let net = IpNet::new(prefix, u8::try_from(length).ok()?).ok()?;
        net.contains(&address).then_some(length as usize + 1)
    });
    lengths.max()
}

fn name(wanted: &listener::FilterChainMatch, connection: &ArrivingConnection<'_>) -> Option<usize> {
    if wanted.server_names.is_empty() {
        return Some(0);
    }
    let server_name = connection.server_name?.to_ascii_lowercase();
    let fits = wanted.server_names.iter().filter_map(|name| match name.strip_prefix('*') {
        Some(suffix) => server_name.ends_with(suffix).then_some(name.len()),
        None => (*name == server_name).then_some(usize::MAX),
    });
    fits.max()
}

fn transport(
    wanted: &listener::FilterChainMatch,
    connection: &ArrivingConnection<'_>,
) -> Option<usize> {
    let own = if connection.is_tls { "tls" } else { "raw_buffer" };
    match &*wanted.transport_protocol {
        "" => Some(0),
        wanted => (wanted == own).then_some(1),
    }
}

fn protocol(
    wanted: &listener::FilterChainMatch,
    connection: &ArrivingConnection<'_>,
) -> Option<usize> {
    let protocols = &wanted.application_protocols;
    if protocols.is_empty() {
        return Some(0);
    }
    protocols.iter().any(|one| connection.protocols.contains(&&**one)).then_some(1)
}

/// Returns the virtual host for a host name: by exact domain, by the longest wildcard, or the one
/// for all names.
pub(super) fn selected_host<'a>(
    table: &'a route::RouteConfiguration,
    authority: &str,
) -> Option<&'a route::VirtualHost> {
    let name = lookup_name(table, authority);
    let best = |host: &&route::VirtualHost| {
        host.domains.iter().filter_map(|domain| closeness(domain, &name)).max()
    };
    let fitting = table.virtual_hosts.iter().filter(|host| best(host).is_some());
    fitting.max_by_key(best)
}

/// Returns the domain by which a virtual host of this table is selected for a request.
pub(super) fn selected_domain<'a>(
    table: &route::RouteConfiguration,
    host: &'a route::VirtualHost,
    authority: &str,
) -> Option<&'a str> {
    let name = lookup_name(table, authority);
    let domains = host.domains.iter().filter(|domain| closeness(domain, &name).is_some());
    domains.max_by_key(|domain| closeness(domain, &name)).map(|domain| &**domain)
}

/// Returns the name by which a table looks up a virtual host.
fn lookup_name(table: &route::RouteConfiguration, authority: &str) -> String {
    let mut name = authority.to_ascii_lowercase();
    if table.ignore_port_in_host_matching
        && let Some((host, port)) = name.rsplit_once(':')
        && port.parse::<u16>().is_ok()
    {
        name.truncate(host.len());
    }
    name
}

/// Returns how specifically a domain matches a name: exactly, by suffix, by prefix, or as `*`.
/// Longer domains match more specifically.
fn closeness(domain: &str, name: &str) -> Option<(u8, usize)> {
    let domain = domain.to_ascii_lowercase();
    if domain == name {
        return Some((3, domain.len()));
    }
    let fits = |part: &str| name.len() > part.len();
    match (domain.strip_prefix('*'), domain.strip_suffix('*')) {
        (Some(""), _) => Some((0, 0)),
        (Some(end), _) if fits(end) && name.ends_with(end) => Some((2, domain.len())),
        (_, Some(begin)) if fits(begin) && name.starts_with(begin) => Some((1, domain.len())),
        _ => None,
    }
}

/// Returns the first condition that a request does not meet, as text, or `None` if it meets all.
pub(super) fn misfit(
    wanted: Option<&route::RouteMatch>,
    request: &ProbedRequest,
) -> Option<String> {
    let wanted = wanted?;
    let ignores_case = wanted.case_sensitive.is_some_and(|sensitive| !sensitive.value);
    path_misfit(wanted.path_specifier.as_ref(), ignores_case, &request.path)
        .or_else(|| wanted.headers.iter().find_map(|one| header_misfit(one, request)))
        .or_else(|| wanted.query_parameters.iter().find_map(|one| parameter_misfit(one, request)))
        .or_else(|| wanted.dynamic_metadata.iter().find_map(claim_misfit))
}

fn path_misfit(
    wanted: Option<&route::route_match::PathSpecifier>,
    ignores_case: bool,
    path: &str,
) -> Option<String> {
    use route::route_match::PathSpecifier;
    let folded = |text: &str| {
        if ignores_case { text.to_ascii_lowercase() } else { text.to_owned() }
    };
    let folded_path = folded(path);
    match wanted? {
        PathSpecifier::Prefix(prefix) => (!folded_path.starts_with(&folded(prefix)))
            .then(|| format!("the path {path} does not begin with {prefix}")),
        PathSpecifier::Path(whole) => {
            (folded_path != folded(whole)).then(|| format!("the path {path} is not {whole}"))
        }
        PathSpecifier::PathSeparatedPrefix(prefix) => {
            let rest = folded_path.strip_prefix(&folded(prefix)).map(str::to_owned);
            let fits = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            (!fits).then(|| format!("the path {path} does not begin with the segments of {prefix}"))
        }
        PathSpecifier::SafeRegex(regex) => regex_misfit(&regex.regex, path, "the path"),
        _ => Some("its condition on the path is not supported here".to_owned()),
    }
}

fn header_misfit(wanted: &route::HeaderMatcher, request: &ProbedRequest) -> Option<String> {
    use route::header_matcher::HeaderMatchSpecifier;
    // Envoy's name for the header that HTTP/1.1 names `host` and HTTP/2 `:authority`.
    let name = match &*wanted.name.to_ascii_lowercase() {
        "host" => ":authority".to_owned(),
        name => name.to_owned(),
    };
    let shown = match &*name {
        ":path" => "the path with its query".to_owned(),
        ":method" => "the method".to_owned(),
        ":authority" => "the host".to_owned(),
        ":scheme" => "the scheme".to_owned(),
        name => format!("the header {name}"),
    };
    let path = (name == ":path").then(|| request.path_and_query());
    let value = path.as_deref().or_else(|| request.headers.get(&name).map(|value| &**value));
    let value = match value {
        None if wanted.treat_missing_header_as_empty => Some(""),
        value => value,
    };
    let misfit = match (&wanted.header_match_specifier, value) {
        (None | Some(HeaderMatchSpecifier::PresentMatch(true)), Some(_)) => None,
        (None | Some(HeaderMatchSpecifier::PresentMatch(true)), None) => {
            Some(format!("{shown} is missing"))
        }
        (Some(HeaderMatchSpecifier::StringMatch(text)), Some(value)) => {
            string_misfit(text, value, &shown)
        }
        // In Envoy, an absent header matches neither a pattern nor its inversion.
        (Some(_), None) => return Some(format!("{shown} is missing")),
        (Some(_), Some(_)) => Some(format!("its condition on {shown} is not supported here")),
    };
    match (wanted.invert_match, misfit) {
        (false, misfit) => misfit,
        (true, None) => Some(format!("{shown} has an excluded value")),
        (true, Some(_)) => None,
    }
}

fn parameter_misfit(
    wanted: &route::QueryParameterMatcher,
    request: &ProbedRequest,
) -> Option<String> {
    use route::query_parameter_matcher::QueryParameterMatchSpecifier;
    let shown = format!("the parameter {}", wanted.name);
    let mut all = request.query.iter();
    let Some((_, value)) = all.find(|(name, _)| *name == wanted.name) else {
        return Some(format!("{shown} is missing"));
    };
    match &wanted.query_parameter_match_specifier {
        Some(QueryParameterMatchSpecifier::StringMatch(text)) => string_misfit(text, value, &shown),
        _ => None,
    }
}

/// Returns the reason against a condition on claims. A probed request has no token and therefore no
/// claims.
fn claim_misfit(wanted: &matcher::MetadataMatcher) -> Option<String> {
    use matcher::metadata_matcher::path_segment::Segment;
    let key = |Segment::Key(key): &Segment| format!("[{key}]");
    let levels = wanted.path.iter().skip(1).filter_map(|one| one.segment.as_ref().map(key));
    let levels: String = levels.collect();
    let text = || format!("the claim {levels} is missing: the request has no token");
    (!wanted.invert).then(text)
}

fn string_misfit(wanted: &matcher::StringMatcher, value: &str, shown: &str) -> Option<String> {
    use matcher::string_matcher::MatchPattern;
    match wanted.match_pattern.as_ref()? {
        MatchPattern::Exact(text) => {
            (value != text).then(|| format!("{shown} is {value:?}, not {text:?}"))
        }
        MatchPattern::Prefix(text) => (!value.starts_with(text.as_str()))
            .then(|| format!("{shown} is {value:?}, which does not begin with {text:?}")),
        MatchPattern::SafeRegex(regex) => regex_misfit(&regex.regex, value, shown),
        _ => Some(format!("its condition on {shown} is not supported here")),
    }
}

/// Matches an expression with the entire text, like RE2. Character classes are ASCII by default.
fn regex_misfit(expression: &str, text: &str, shown: &str) -> Option<String> {
    let whole = format!("^(?:{expression})$");
    let plain = RegexBuilder::new(&whole).unicode(false).build();
    match plain.or_else(|_| RegexBuilder::new(&whole).build()) {
        Ok(regex) => (!regex.is_match(text.as_bytes()))
            .then(|| format!("{shown} {text:?} does not match the expression {expression}")),
        Err(_) => Some(format!(
            "the expression {expression} cannot be evaluated here: check {shown} with the proxy itself"
        )),
    }
}
