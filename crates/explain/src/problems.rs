//! Which findings are problems, and which ones only state facts. `strait check`, the metric of
//! problems and the Kubernetes events agree because all use these tables.

use strait_admin_api::{ObjectState, SourceKind};
use strait_base::codes::{self, Code};

/// The codes of reasons that are problems: access is not restricted as it seems to be, a policy cannot have the effect that it
/// states, an object with an error keeps its last valid version or loses a part, proxies answer requests with an error, or
/// objects are withheld from proxies. Other reasons are notes: `strait check config` prints them with the state of each object.
const OF_OBJECTS: [&Code; 30] = [
    &codes::ACCESS_UNREADABLE,
    &codes::ACCESS_PARTLY,
    &codes::ACCESS_NO_EFFECT,
    &codes::ACCESS_PLAIN_TEXT,
    &codes::ACCESS_PROVIDER,
    &codes::ACCESS_SHADOWED,
    &codes::ACCESS_WITHOUT_CERTIFICATE,
    &codes::ACCESS_PROVIDER_OF_REQUESTS,
    &codes::ACCESS_NEVER_ALLOWS,
    &codes::ACCESS_TRUST_DOMAIN,
    &codes::ACCESS_HOST_PORT,
    &codes::ACCESS_MATCHES_NOTHING,
    &codes::ACCESS_PEER_MORE_OPEN,
    &codes::TRAFFIC_TLS_UNCHECKED,
    &codes::TLS_REFUSED,
    &codes::GATEWAY_CREDENTIAL,
    &codes::ROUTE_REFUSED,
    &codes::MATCH_REFUSED,
    &codes::DESTINATION_INVALID,
    &codes::DESTINATION_UNKNOWN,
    &codes::DESTINATION_HIDDEN,
    &codes::DESTINATION_PORT,
    &codes::SUBSET_UNKNOWN,
    &codes::GRANT_MISSING,
    &codes::TRAFFIC_VALUE,
    &codes::FOREIGN_BYTES,
    &codes::ROUTES_SURPLUS,
    &codes::ENVOY_FILTER_FIELD,
    &codes::ENVOY_FILTER_VALUE,
    &codes::ENTRY_EMPTY,
];
/// Reasons that are problems if the object loses a part: TLS that cannot be configured leaves no
/// connection.
const LOSES_SECURITY: [&Code; 1] = [&codes::TRAFFIC_TLS];
/// Reasons that only state that the last valid version stays active.
const LAST_GOOD: [&Code; 2] = [&codes::ACCESS_LAST_GOOD, &codes::TRAFFIC_LAST_GOOD];

/// Reasons to withhold endpoints that are by design.
const BY_DESIGN: [&Code; 5] = [
    &codes::PLAIN_TEXT,
    &codes::HEADLESS_ELSEWHERE,
    &codes::NOT_SEEN,
    &codes::CLUSTER_LOCAL,
    &codes::EXPORT_REFUSED,
];
/// Reasons to withhold endpoints from all proxies, not only from those of other networks.
const FROM_ALL: [&Code; 3] =
    [&codes::POD_MISSING, &codes::ADDRESS_REFUSED, &codes::NETWORK_REFUSED];

/// Returns whether a reason in the status of a configuration object is a problem.
pub fn is_problem(state: &ObjectState, code: &Code) -> bool {
    let is_refused = *state == ObjectState::Refused && !LAST_GOOD.contains(&code);
    let is_lost = *state == ObjectState::Partly && LOSES_SECURITY.contains(&code);
    is_refused || is_lost || OF_OBJECTS.contains(&code)
}

/// Returns whether endpoints that are withheld for this reason are a problem.
pub fn is_withheld_by_fault(code: &Code) -> bool {
    !BY_DESIGN.contains(&code)
}

/// Describes the endpoints that are withheld for one reason.
pub fn describe_withheld(code: &Code, endpoints: usize) -> String {
    let is_one = endpoints == 1;
    let (noun, verb) = if is_one { ("endpoint", "is") } else { ("endpoints", "are") };
    let proxies = match code {
        _ if FROM_ALL.contains(&code) => "all proxies",
        _ if *code == codes::EXPORT_REFUSED => "proxies of other clusters",
        _ => "proxies of other networks",
    };
    format!("{endpoints} {noun} {verb} withheld from {proxies}: {}", code.title)
}

/// Returns the code of a source's warning, and whether the warning is a problem.
pub fn code_of_warning(kind: &SourceKind, warning: &str) -> (&'static Code, bool) {
    let usual = match kind {
        SourceKind::Entries => &codes::ENTRY,
        SourceKind::Consul => &codes::CONSUL_ODD,
        SourceKind::Mcp => &codes::MCP_ODD,
        _ => &codes::CONFIG_FILE,
    };
    let code = codes::named(warning).unwrap_or(usual);
    (code, ![&codes::SHADOWED, &codes::RIGHT_MISSING].contains(&code))
}
