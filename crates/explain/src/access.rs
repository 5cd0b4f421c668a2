//! Explains which callers a workload accepts and why, with the rules that its proxy receives
//! (`strait_rules::access::enforced`).

use std::collections::BTreeMap;

use super::access_findings::PolicyFindings;
use super::access_networks::behind_gateway;
use super::access_ports::PolicyPorts;
use super::peer_findings::{PeerLoss, of_peer};
use super::standing::PolicyFinding;
use super::standing::{ConfigReason, ConfigState, ObjectStanding};
use strait_admin_api::{self as api, PolicyExplanation};
use strait_base::codes;
use strait_mesh::push::PushContext;
use strait_mesh::push::authorizers::Authorizers;
use strait_model::mesh_config::{PathNormalization, has_dot_parameter};
use strait_model::{NetworkId, ObjectKey, Proxy, is_header_name, labels_match};
use strait_rules::access::{
    AccessDecision, AccessRequest, AccessSubject, AccessVerdict, AuthorizationAction,
    AuthorizationPolicy, AuthorizationRule, ModeTransition, PeerMode, PolicyKind, PolicyName,
    PolicyReport, PolicySelector, PolicyState, PortMode, ProviderReach, RequestTest, TimePoint,
    WireForm, WorkloadAccess, decide, enforced, rule_steps,
};
use strait_rules::traffic::destination_rule::RuleClient;
use strait_rules::traffic::selection::Selection;

/// The request to explain.
#[derive(Debug, Clone, Default)]
pub struct AccessQuery {
    /// Caller: `NAMESPACE/ACCOUNT` or a SPIFFE ID; `None` for a caller in plain text.
    pub from: Option<String>,
    /// Path of the request; `/` by default.
    pub path: Option<String>,
    /// HTTP method; `GET` by default.
    pub method: Option<String>,
    /// Host of the request.
    pub host: Option<String>,
    /// Port of the workload.
    pub port: Option<u16>,
}

fn mode_line(mode: &PortMode) -> api::PortMode {
    let (value, policy) = (mode.mode.as_str().to_owned(), by(mode));
    let Some(ModeTransition { to, ends }) = mode.transition else {
        return api::PortMode { value, by: policy, transition: None };
    };
    let (to, until) = (to.as_str().to_owned(), ends.to_string());
    api::PortMode {
        value,
        by: format!("in transition to {to} of {policy}, until {until}"),
        transition: Some(api::PortModeTransition { to, by: policy, until }),
    }
}

/// Explains how the workload of `proxy`, which is in `network`, handles a request.
///
/// # Errors
/// If a part of the request cannot be parsed.
pub fn explain_policy(
    context: &PushContext,
    proxy: &Proxy,
    network: &NetworkId,
    query: &AccessQuery,
) -> Result<PolicyExplanation, String> {
    if let Some(method) = query.method.as_deref().filter(|one| !is_header_name(one)) {
        return Err(format!("{method:?} is not an HTTP method such as GET"));
    }
    if query.port == Some(0) {
        return Err("0 is not a port from 1 to 65535".to_owned());
    }
    let access = context.access_of(proxy);
    let mode = match query.port {
        Some(port) => access.modes.of_port(port),
        None => &access.modes.rest,
    };
    let identity = query.from.as_deref().map(|from| spiffe_id(context, from)).transpose()?;
    let request = AccessRequest {
        // A port that accepts only plain text receives no client certificate.
        identity: identity.clone().filter(|_| mode.mode != PeerMode::Disable),
        headers: headers(query),
        path: Some(
            normalization(context, proxy, &access).applied(path(query), proxy.dot_parameters()),
        ),
        port: query.port,
        destination: proxy.addresses.first().copied(),
        ..AccessRequest::default()
    };
    let trust = context.trust_bundle();
    let authorizers = Authorizers::of(context, proxy, &access);
    let providers = authorizers.reach();
    // A proxyless gRPC server enforces the rules itself, and accepts only requests.
    let forms = match proxy.is_proxyless() {
        true => [WireForm::Grpc; 2],
        false => [WireForm::Http, WireForm::Tcp],
    };
    let verdict = |form| {
        let rules = enforced(&access, form, &trust, &providers);
        let in_form = match form {
            WireForm::Http | WireForm::Grpc => request.clone(),
            WireForm::Tcp => {
                AccessRequest { headers: BTreeMap::new(), path: None, ..request.clone() }
            }
        };
        let steps = access.policies.iter().map(|policy| {
            let of_policy = WorkloadAccess { policies: vec![*policy], ..access.clone() };
            let own = enforced(&of_policy, form, &trust, &providers);
            let field =
                |(path, ok): (_, bool)| api::PolicyField { path: ToString::to_string(&path), ok };
            let rules = own.rules().map(|rule| api::PolicyRule {
                rule: rule.key.clone(),
                matches: rule.matches(&in_form),
                fields: rule_steps(rule, &in_form).into_iter().map(field).collect(),
            });
            let provider = match &policy.action {
                AuthorizationAction::Custom(name) => Some(name),
                _ => None,
            };
            let fault = provider.and_then(|name| authorizers.fault(name));
            api::PolicyStep {
                policy: policy.policy_name().to_string(),
                action: policy.action.as_str().to_owned(),
                dry_run: policy.dry_run,
                provider: provider.map(ToString::to_string),
                provider_fault: fault.map(|fault| fault.to_string()),
                selected: selected_because(context, policy, proxy),
                rules: rules.collect(),
            }
        });
        if mode.mode == PeerMode::Strict && proxy.grpc.is_some_and(|library| !library.mtls) {
            let code = &codes::ACCESS_WITHOUT_CERTIFICATE;
            let by = format!("{}: {}: {}", code.id, by(mode), code.title);
            let (verdict, steps) = (api::Access::Deny, steps.collect());
            return api::PolicyVerdict { verdict, by, asks: Vec::new(), steps };
        }
        let is_guarded = form == WireForm::Http
            && access.decides_by_path()
            && in_form.path.as_deref().is_some_and(has_dot_parameter);
        let decision = match is_guarded {
            true => AccessDecision {
                verdict: AccessVerdict::Deny,
                rule: None,
                reason: "the path has a dot segment with a parameter (`/..;`), and a rule matches paths",
                queried_providers: Vec::new(),
            },
            false => decide(&rules, &in_form),
        };
        line(decision, mode, identity.is_some(), steps.collect())
    };
    Ok(PolicyExplanation {
        mode: mode_line(mode),
        http: verdict(forms[0]),
        tcp: verdict(forms[1]),
        labels_known: context.known_labels(proxy).is_some(),
        notes: identity
            .as_deref()
            .map(|from| behind_gateway(context, &access, network, from))
            .unwrap_or_default()
            .into_iter()
            .map(Into::into)
            .collect(),
    })
}

fn by(mode: &PortMode) -> String {
    let policy = mode.by.clone().map(|object| PolicyName { kind: PolicyKind::Peer, object });
    policy.map(|policy| policy.to_string()).unwrap_or_default()
}

fn line(
    decision: AccessDecision,
    mode: &PortMode,
    has_identity: bool,
    steps: Vec<api::PolicyStep>,
) -> api::PolicyVerdict {
    if mode.mode == PeerMode::Strict && !has_identity {
        let by = format!("{}: STRICT accepts no plain text", by(mode));
        return api::PolicyVerdict { verdict: api::Access::Deny, by, asks: Vec::new(), steps };
    }
    let by = decision.rule.unwrap_or_else(|| decision.reason.to_owned());
    let asks = decision.queried_providers.into_iter();
    let asks =
        asks.map(|(provider, rule)| api::AskedProvider { provider: provider.to_string(), rule });
    let verdict = decision.verdict.as_str().into();
    api::PolicyVerdict { verdict, by, asks: asks.collect(), steps }
}

/// Returns the SPIFFE ID of the caller.
fn spiffe_id(context: &PushContext, from: &str) -> Result<String, String> {
    if from.starts_with("spiffe://") {
        return Ok(from.to_owned());
    }
    match from.split('/').collect::<Vec<_>>()[..] {
        [namespace, account] if !namespace.is_empty() && !account.is_empty() => {
            let domain = &context.mesh.trust_domain;
            Ok(format!("spiffe://{domain}/ns/{namespace}/sa/{account}"))
        }
        _ => Err(format!("from={from} is neither NAMESPACE/ACCOUNT nor a SPIFFE ID")),
    }
}

fn headers(query: &AccessQuery) -> BTreeMap<String, String> {
    let method = query.method.clone().unwrap_or_else(|| "GET".to_owned());
    let host = query.host.clone().map(|host| (":authority".to_owned(), host));
    host.into_iter().chain([(":method".to_owned(), method)]).collect()
}

fn path(query: &AccessQuery) -> &str {
    let path = query.path.as_deref().unwrap_or("/");
    path.split(['?', '#']).next().unwrap_or_default()
}

/// Returns how paths are normalized before rules match them.
fn normalization(
    context: &PushContext,
    proxy: &Proxy,
    access: &WorkloadAccess<'_>,
) -> PathNormalization {
    if proxy.is_proxyless() {
        return PathNormalization::None;
    }
    let looks_at_paths = access.policies.iter().any(|policy| policy.looks_at_paths());
    PathNormalization::of(context.mesh.path_normalization, looks_at_paths)
}

fn selected_because(context: &PushContext, policy: &AuthorizationPolicy, proxy: &Proxy) -> String {
    let of_mesh = policy.name.namespace == *context.access.root();
    let space = if of_mesh { "of the mesh" } else { "of its namespace" };
    let labels = context.labels_of(proxy);
    match &policy.selector {
        PolicySelector::Labels(wanted) if labels_match(wanted, labels) => {
            let wanted = wanted.iter().map(|(key, value)| format!("{key}={value}"));
            format!("workloads {space} with {}", wanted.collect::<Vec<_>>().join(", "))
        }
        PolicySelector::Labels(_) => format!(
            "unverified labels: the pod is unknown, so every policy that restricts a workload {space} applies"
        ),
        PolicySelector::Gateways(_) if context.workload_of(proxy).is_none() => {
            "unverified labels: the pod is unknown, so every policy that restricts a router of a Gateway in its namespace applies"
                .to_owned()
        }
        PolicySelector::Gateways(names) => format!("routers of Gateway {}", names.join(", ")),
        PolicySelector::All => format!("every workload {space}"),
    }
}

/// Returns the status of each access policy for `/debug/config`. `proxies` are the connected
/// proxies, each once. If not all workloads are known, no policy is reported as unused.
pub(super) fn policy_states(
    context: &PushContext,
    proxies: &[&Proxy],
    workloads_known: bool,
    is_requested: impl Fn(&PolicyName) -> bool,
) -> Vec<(ObjectKey, ConfigState)> {
    // Filtered first, because the status of a policy requires a search of all workloads.
    let reports = context.access.reports().filter(|(name, _)| is_requested(name));
    let states = reports.map(|(name, report)| {
        let concerns = |proxy: &&&Proxy| is_for(context, name, proxy);
        let (of_peer, loss) = of_peer(context, name);
        let state = match report.state {
            PolicyState::Partly => ObjectStanding::Partly,
            PolicyState::Refused => ObjectStanding::Refused,
            PolicyState::InForce if has_no_rules(context, name) => ObjectStanding::Unused,
            PolicyState::InForce if older(context, name).is_some() => ObjectStanding::Shadowed,
            PolicyState::InForce if selects_in_root(context, name) => ObjectStanding::Unused,
            PolicyState::InForce if has_only_lost_targets(report) => ObjectStanding::Unused,
            PolicyState::InForce if loss == PeerLoss::All => ObjectStanding::Shadowed,
            PolicyState::InForce if workloads_known && !has_workloads(context, name) => {
                ObjectStanding::Unused
            }
            PolicyState::InForce if loss == PeerLoss::Part || has_lost_targets(report) => {
                ObjectStanding::Partly
            }
            PolicyState::InForce => ObjectStanding::InForce,
        };
        let faults = report.faults.iter();
        let faults = faults.map(|fault| ConfigReason::new(fault.code, &*fault.path, &*fault.text));
        let found = warnings(context, name)
            .into_iter()
            .chain(has_no_rules(context, name).then(|| {
                let text = "the object has no rules, so that it verifies no tokens".to_owned();
                (&codes::OBJECT_NO_EFFECT, "spec.jwtRules".to_owned(), text)
            }))
            .chain(of_peer)
            .chain(on_libraries(context, name, proxies))
            .chain(of_provider(context, name, proxies))
            .chain(at_ports(context, name, proxies, workloads_known))
            .chain(PolicyFindings::of(context, name, &concerned(context, name, proxies)).all());
        let of_workloads = |code: &codes::Code| *code == codes::ACCESS_SELECTS_NOBODY;
        let found = found.filter(|(code, ..)| workloads_known || !of_workloads(code));
        let found = found.map(|(code, path, text)| ConfigReason::new(code, path, text));
        let state = ConfigState {
            kind: name.kind.as_str().to_owned(),
            namespace: name.object.namespace.to_string(),
            name: name.object.name.to_string(),
            store: "config",
            cluster: None,
            state,
            proxies: proxies.iter().filter(concerns).count(),
            reasons: faults.chain(found).collect(),
        };
        (name.key(), state)
    });
    states.collect()
}

/// Returns whether a RequestAuthentication has no rules, and therefore no effect.
fn has_no_rules(context: &PushContext, name: &PolicyName) -> bool {
    let policy = context.access.request(&name.object);
    name.kind == PolicyKind::Request && policy.is_some_and(|policy| policy.rules.is_empty())
}

/// Returns the findings about a policy at ports that carry no requests.
fn at_ports(
    context: &PushContext,
    name: &PolicyName,
    proxies: &[&Proxy],
    workloads_known: bool,
) -> Vec<PolicyFinding> {
    let policy = context.access.authorization(&name.object);
    let policy = policy.filter(|_| name.kind == PolicyKind::Authorization);
    let ports = policy.map(|policy| PolicyPorts { context, policy, proxies, workloads_known });
    ports.map(|ports| ports.all()).unwrap_or_default()
}

fn concerned<'a>(
    context: &PushContext,
    name: &PolicyName,
    proxies: &[&'a Proxy],
) -> Vec<&'a Proxy> {
    proxies.iter().copied().filter(|proxy| is_for(context, name, proxy)).collect()
}

/// Returns whether a policy applies to the workload of a proxy.
pub fn is_for(context: &PushContext, name: &PolicyName, proxy: &Proxy) -> bool {
    let access = context.access_of(proxy);
    match name.kind {
        PolicyKind::Authorization => access.policies.iter().any(|one| one.name == name.object),
        PolicyKind::Request => access.requests.iter().any(|one| one.name == name.object),
        PolicyKind::Peer => {
            let modes = std::iter::once(&access.modes.rest).chain(access.modes.ports.values());
            modes.into_iter().any(|mode| mode.by.as_ref() == Some(&name.object))
        }
    }
}

/// Returns the time until which ports of the workload of a proxy still accept the previous mode
/// while they change to the mode of this policy. Returns `None` if no port is in transition.
pub fn transition_by(context: &PushContext, name: &PolicyName, proxy: &Proxy) -> Option<TimePoint> {
    if name.kind != PolicyKind::Peer {
        return None;
    }
    let modes = context.access_of(proxy).modes;
    let all = std::iter::once(&modes.rest).chain(modes.ports.values());
    let own = all.filter(|mode| mode.by.as_ref() == Some(&name.object));
    let ends = own.filter_map(|mode| Some(mode.transition?.ends));
    ends.max_by_key(|ends| ends.instant)
}

/// Returns the older policy for a whole namespace that applies instead of this one.
fn older(context: &PushContext, name: &PolicyName) -> Option<PolicyName> {
    let access = &context.access;
    let winner = access.whole_peer(&name.object.namespace)?;
    let own = access.report(name)?;
    let is_whole = name.kind == PolicyKind::Peer && own.selector == Some(PolicySelector::All);
    let older = PolicyName { kind: PolicyKind::Peer, object: winner.clone() };
    (is_whole && older != *name).then_some(older)
}

/// Returns whether the policy is a PeerAuthentication with a selector in the root namespace, which
/// applies to no workload.
fn selects_in_root(context: &PushContext, name: &PolicyName) -> bool {
    let report = context.access.report(name);
    let selector = report.and_then(|report| report.selector.as_ref());
    name.kind == PolicyKind::Peer
        && name.object.namespace == *context.access.root()
        && selector.is_some_and(|selector| *selector != PolicySelector::All)
}

/// Returns whether no target of a policy is supported. Its faults name the targets.
fn has_only_lost_targets(report: &PolicyReport) -> bool {
    report.selector.as_ref().is_some_and(PolicySelector::is_empty)
}

/// Returns whether some targets of a policy have no effect.
fn has_lost_targets(report: &PolicyReport) -> bool {
    let mut faults = report.faults.iter();
    faults.any(|fault| fault.path.starts_with("spec.targetRef"))
}

/// Returns whether the policy selects any known workload.
fn has_workloads(context: &PushContext, name: &PolicyName) -> bool {
    let Some(report) = context.access.report(name) else { return false };
    let Some(selector) = report.selector.as_ref().filter(|one| **one != PolicySelector::All) else {
        return true;
    };
    let own = &name.object.namespace;
    let of_mesh = own == context.access.root();
    let mut known = context.workload_labels((!of_mesh).then_some(own));
    known.any(|(namespace, labels)| {
        selector.selects(own, AccessSubject { namespace, labels, is_known: true })
    })
}

/// Returns the findings about a valid policy that has less effect than it states.
fn warnings(context: &PushContext, name: &PolicyName) -> Vec<PolicyFinding> {
    let mut found = Vec::new();
    if let Some(older) = older(context, name) {
        let text = format!("{older} is older and applies instead");
        found.push((&codes::ACCESS_SHADOWED, "metadata.creationTimestamp".to_owned(), text));
    }
    let report = context.access.report(name).filter(|report| !has_only_lost_targets(report));
    if let Some(report) = report.filter(|_| !has_workloads(context, name)) {
        let (path, text) = match &report.selector {
            Some(PolicySelector::Gateways(names)) => (
                "spec.targetRefs",
                format!("no known router belongs to Gateway {}", names.join(", ")),
            ),
            _ => ("spec.selector", "no known workload has these labels".to_owned()),
        };
        found.push((&codes::ACCESS_SELECTS_NOBODY, path.to_owned(), text));
    }
    found
}

/// Returns whether a rule applies only to ports that it names.
fn names_ports(rule: &AuthorizationRule) -> bool {
    rule.clauses()
        .any(|one| !one.negated && one.any.iter().all(|test| matches!(test, RequestTest::Port(_))))
}

/// Returns the reason why the provider of a CUSTOM policy cannot be called, from which proxies, or
/// for which connections.
fn of_provider(
    context: &PushContext,
    name: &PolicyName,
    proxies: &[&Proxy],
) -> Option<PolicyFinding> {
    let policy = context.access.authorization(&name.object)?;
    let AuthorizationAction::Custom(provider) = &policy.action else { return None };
    if name.kind != PolicyKind::Authorization {
        return None;
    }
    let path = "spec.provider".to_owned();
    let authorizers: Vec<_> = proxies
        .iter()
        .filter(|proxy| !proxy.is_proxyless() && is_for(context, name, proxy))
        .map(|proxy| context.authorizer_of(provider, proxy))
        .collect();
    let found = if authorizers.is_empty() {
        let cluster = context.settings.config_cluster.clone().unwrap_or_default();
        let client =
            RuleClient { namespace: &policy.name.namespace, selection: &Selection::default() };
        vec![context.authorizer(provider, client, &cluster)]
    } else {
        authorizers
    };
    let faults = found.iter().filter(|found| found.is_err()).count();
    if let Some(fault) = found.iter().find_map(|found| found.as_ref().err()) {
        let by = if faults < found.len() {
            format!(" from {faults} of {} proxies", found.len())
        } else {
            String::new()
        };
        let text = format!(
            "provider {provider} can't be called{by}, so requests that match the rules are denied there: {fault}"
        );
        return Some((&codes::ACCESS_PROVIDER, path, text));
    }
    let is_of_requests =
        found.iter().flatten().any(|found| found.reach() == ProviderReach::Requests);
    let everywhere = policy.rules.iter().any(|rule| !names_ports(rule));
    (is_of_requests && everywhere).then(|| {
        let text = format!(
            "provider {provider} uses HTTP: it is not called for connections to ports that are not HTTP, and they \
             pass as if this policy did not exist"
        );
        (&codes::ACCESS_PROVIDER_OF_REQUESTS, path, text)
    })
}

/// Returns the finding about a policy that has less effect on proxyless gRPC servers than it
/// states.
fn on_libraries(
    context: &PushContext,
    name: &PolicyName,
    proxies: &[&Proxy],
) -> Option<PolicyFinding> {
    let concerned = |proxy: &&&Proxy| proxy.is_proxyless() && is_for(context, name, proxy);
    let servers: Vec<_> = proxies.iter().filter(concerned).collect();
    let first = servers.first()?;
    let finding = |code, path: &str, what: &str| {
        let more = match servers.len() {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        Some((code, path.to_owned(), format!("gRPC without a proxy ({}{more}): {what}", first.id)))
    };
    match name.kind {
        PolicyKind::Authorization => {
            let policy = context.access.authorization(&name.object)?;
            let mut clauses = policy.rules.iter().flat_map(|rule| rule.clauses());
            let lost = clauses.find(|one| one.any.iter().any(|test| WireForm::Grpc.lacks(test)))?;
            let what = match policy.action {
                AuthorizationAction::Allow => "a rule with this condition allows nothing there",
                _ => "the rule ignores this condition there, and denies more",
            };
            finding(&codes::ACCESS_ON_LIBRARY, &format!("spec.{}", lost.place), what)
        }
        PolicyKind::Request => {
            let what =
                "tokens are not verified there, and no request is rejected because of a token";
            finding(&codes::ACCESS_ON_LIBRARY, "spec.jwtRules", what)
        }
        PolicyKind::Peer => {
            let refuses = |proxy: &&&&Proxy| {
                let modes = context.access_of(proxy).modes;
                let mut all = std::iter::once(&modes.rest).chain(modes.ports.values());
                proxy.grpc.is_some_and(|library| !library.mtls)
                    && all.any(|mode| mode.mode == PeerMode::Strict)
            };
            let server = servers.iter().find(refuses)?;
            let text = format!("{} has no certificate, so it rejects every request", server.id);
            Some((&codes::ACCESS_WITHOUT_CERTIFICATE, "spec.mtls.mode".to_owned(), text))
        }
    }
}
