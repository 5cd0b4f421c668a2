//! The reference evaluator for access policies, which tests compare with the product. It is slow,
//! works directly on the text of the policies, and shares no code with `strait::access`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;

/// A request, as received by a server.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// Trust domain, namespace and account of the client's certificate.
    pub(crate) identity: Option<(String, String, String)>,
    pub(crate) from: IpAddr,
    /// The client's address according to X-Forwarded-For, or the peer's address without that
    /// header.
    pub(crate) client: IpAddr,
    pub(crate) host: String,
    pub(crate) method: String,
    /// The path without the query.
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) port: u16,
    pub(crate) address: IpAddr,
    pub(crate) sni: String,
    /// Whether the server treats it as HTTP.
    pub(crate) is_http: bool,
    /// The tokens in its headers.
    pub(crate) tokens: Vec<Token>,
}

/// A token of a request.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    /// The name of the header that contains it.
    pub(crate) place: String,
    /// The issuer that it names.
    pub(crate) issuer: String,
    /// The issuer whose key signed it.
    pub(crate) signer: String,
    pub(crate) subject: String,
    pub(crate) groups: Vec<String>,
    pub(crate) has_ended: bool,
}

/// The result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    Passes,
    Denied,
    /// The call contains a token that is not accepted.
    Unauthorized,
    /// The port does not accept connections of this kind (mTLS or plain text).
    Closed,
}

/// The workload that receives the call.
pub(crate) struct Server<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) labels: &'a [(&'a str, &'a str)],
    pub(crate) root: &'a str,
    /// The trust domains of the mesh, its own first.
    pub(crate) domains: &'a [&'a str],
    /// The known authorization providers, each with whether it can also check connections (not only
    /// requests).
    pub(crate) providers: &'a [(&'a str, bool)],
}

/// Returns the result of a call: first the mTLS mode applies, then the tokens, then the policies.
pub(crate) fn outcome(policies: &[Value], server: &Server<'_>, call: &Call) -> Outcome {
    match (mode(policies, server, call.port), &call.identity) {
        ("STRICT", None) | ("DISABLE", Some(_)) => return Outcome::Closed,
        _ => {}
    }
    let is_believed = |token: &Token| {
        let places = token_rules(policies, server);
        let is_looked_for = places.iter().any(|(place, _)| *place == token.place);
        !is_looked_for || holds(policies, server, token)
    };
    if call.is_http && !call.tokens.iter().all(is_believed) {
        return Outcome::Unauthorized;
    }
    if passes(policies, server, call) { Outcome::Passes } else { Outcome::Denied }
}

/// Returns the mTLS mode of a port. More specific levels override less specific ones; in each level
/// the oldest policy applies. A policy without a mode has no effect.
fn mode<'a>(policies: &'a [Value], server: &Server<'_>, port: u16) -> &'a str {
    let oldest = |is_in_level: &dyn Fn(&Value) -> bool| {
        let modes = policies.iter().filter(|policy| policy["kind"] == "PeerAuthentication");
        modes.filter(|policy| is_in_level(policy)).min_by_key(|policy| {
            let text = |field: &str| policy["metadata"][field].as_str().unwrap_or_default();
            (text("creationTimestamp"), text("name"))
        })
    };
    let lies_in = |policy: &Value, namespace: &str| policy["metadata"]["namespace"] == namespace;
    let selects = |policy: &Value| policy["spec"]["selector"].is_object();
    let mesh = oldest(&|policy| lies_in(policy, server.root) && !selects(policy));
    let own = oldest(&|policy| lies_in(policy, server.namespace) && !selects(policy));
    let workload = oldest(&|policy| {
        lies_in(policy, server.namespace) && selects(policy) && is_for(policy, server)
    });
    let mode_set = |mode: &'a Value| mode["mode"].as_str().filter(|mode| *mode != "UNSET");
    let levels = [mesh, own, workload].into_iter().flatten();
    let levels = levels.filter_map(|policy| mode_set(&policy["spec"]["mtls"]));
    let port_mode =
        workload.and_then(|one| mode_set(&one["spec"]["portLevelMtls"][port.to_string()]));
    levels.chain(port_mode).last().unwrap_or("PERMISSIVE")
}

/// Returns the headers that may contain tokens, each with the issuer that is accepted there.
fn token_rules<'a>(policies: &'a [Value], server: &Server<'_>) -> Vec<(String, &'a str)> {
    let authentications =
        policies.iter().filter(|policy| policy["kind"] == "RequestAuthentication");
    let rules = authentications.filter(|policy| is_for(policy, server));
    let rules =
        rules.flat_map(|policy| policy["spec"]["jwtRules"].as_array().into_iter().flatten());
    let place = |rule: &Value| match rule["fromHeaders"][0]["name"].as_str() {
        Some(name) => name.to_lowercase(),
        None => "authorization".to_owned(),
    };
    rules.map(|rule| (place(rule), rule["issuer"].as_str().unwrap_or_default())).collect()
}

/// Returns whether a token is valid and its issuer is accepted in its header.
fn holds(policies: &[Value], server: &Server<'_>, token: &Token) -> bool {
    let rules = token_rules(policies, server);
    let is_accepted = rules.iter().any(|(place, by)| *place == token.place && *by == token.issuer);
    is_accepted && token.signer == token.issuer && !token.has_ended
}

/// Returns whether the policies allow the call, assuming that all providers allow it.
pub(crate) fn passes(policies: &[Value], server: &Server<'_>, call: &Call) -> bool {
    let policies_with = |action| active(policies, action, server);
    let denied = policies_with("DENY").any(|policy| hit(policies, policy, server, call));
    // A provider that is not configured cannot allow a call.
    let unanswered = policies_with("CUSTOM")
        .any(|policy| provider(policy, server).is_none() && hit(policies, policy, server, call));
    let allowed = policies_with("ALLOW").any(|policy| hit(policies, policy, server, call));
    !denied && !unanswered && (allowed || policies_with("ALLOW").next().is_none())
}

/// Returns the providers that are called for the call.
pub(crate) fn queried_providers<'a>(
    policies: &'a [Value],
    server: &Server<'a>,
    call: &Call,
) -> BTreeSet<&'a str> {
    let custom = active(policies, "CUSTOM", server);
    let custom = custom.filter(|policy| hit(policies, policy, server, call));
    let providers = custom.filter_map(|policy| provider(policy, server));
    providers
        .filter(|(_, connections)| call.is_http || *connections)
        .map(|(name, _)| name)
        .collect()
}

/// Returns the provider that a policy names, if it is configured.
fn provider<'a>(policy: &Value, server: &Server<'a>) -> Option<(&'a str, bool)> {
    let named = &policy["spec"]["provider"]["name"];
    server.providers.iter().copied().find(|(name, _)| named == name)
}

/// Returns the policies with an action that apply to the server, without dry runs.
fn active<'a>(
    policies: &'a [Value],
    action: &'a str,
    server: &Server<'_>,
) -> impl Iterator<Item = &'a Value> {
    policies.iter().filter(move |policy| {
        let own_action = policy["spec"]["action"].as_str().unwrap_or("ALLOW");
        let tried = policy["metadata"]["annotations"]["istio.io/dry-run"] == "true";
        let is_it = policy["kind"] == "AuthorizationPolicy" && own_action == action && !tried;
        is_it && is_for(policy, server)
    })
}

/// Returns whether any rule of a policy matches the call.
fn hit(policies: &[Value], policy: &Value, server: &Server<'_>, call: &Call) -> bool {
    let valid_tokens = call.tokens.iter().filter(|token| holds(policies, server, token));
    let valid_tokens: Vec<&Token> = valid_tokens.collect();
    let namespace = policy["metadata"]["namespace"].as_str().unwrap_or_default();
    let denies = policy["spec"]["action"].as_str().is_some_and(|action| action != "ALLOW");
    let judge = Judge { namespace, denies, server, call, tokens: &valid_tokens };
    let rules = policy["spec"]["rules"].as_array();
    rules.into_iter().flatten().any(|rule| applies(rule, &judge))
}

fn is_for(policy: &Value, server: &Server<'_>) -> bool {
    let namespace = policy["metadata"]["namespace"].as_str().unwrap_or_default();
    if namespace != server.namespace && namespace != server.root {
        return false;
    }
    let Some(wanted) = policy["spec"]["selector"]["matchLabels"].as_object() else { return true };
    wanted.iter().all(|(key, value)| {
        server.labels.iter().any(|(own, has)| own == key && value.as_str() == Some(has))
    })
}

fn applies(rule: &Value, judge: &Judge<'_>) -> bool {
    if !judge.denies && !judge.call.is_http && names_http(rule) {
        return false;
    }
    let any = |list: &Value, inner: &str| {
        let Some(list) = list.as_array() else { return true };
        list.iter().any(|item| {
            let fields = item[inner].as_object().cloned().unwrap_or_default();
            fields.iter().all(|(field, values)| judge.field(field, values))
        })
    };
    let when = rule["when"].as_array().cloned().unwrap_or_default();
    any(&rule["from"], "source")
        && any(&rule["to"], "operation")
        && when.iter().all(|condition| {
            let key = condition["key"].as_str().unwrap_or_default();
            let has = |values: &Value, not: bool| values.is_null() || judge.key(key, values, not);
            has(&condition["values"], false) && has(&condition["notValues"], true)
        })
}

fn names_http(rule: &Value) -> bool {
    let text = rule.to_string();
    ["hosts", "notHosts", "methods", "notMethods", "paths", "notPaths", "equestPrincipals"]
        .iter()
        .any(|field| text.contains(&format!("{field}\":")))
        || text.contains("\"request.")
}

struct Judge<'a> {
    namespace: &'a str,
    denies: bool,
    server: &'a Server<'a>,
    call: &'a Call,
    /// The valid tokens.
    tokens: &'a [&'a Token],
}

impl Judge<'_> {
    fn field(&self, field: &str, values: &Value) -> bool {
        let not = field.starts_with("not");
        let plain = if not {
            let mut name = field[3..].to_owned();
            name[..1].make_ascii_lowercase();
            name
        } else {
            field.to_owned()
        };
        let key = match &*plain {
            "principals" => "source.principal",
            "namespaces" => "source.namespace",
            "serviceAccounts" => "source.serviceAccount",
            "trustDomains" => "source.trustDomain",
            "ipBlocks" => "source.ip",
            "remoteIpBlocks" => "remote.ip",
            "ports" => "destination.port",
            "requestPrincipals" => "request.auth.principal",
            other => other,
        };
        self.key(key, values, not)
    }

    fn key(&self, key: &str, values: &Value, not: bool) -> bool {
        let is_http = ["hosts", "methods", "paths"].contains(&key) || key.starts_with("request.");
        if is_http && !self.call.is_http {
            // Only rules of DENY policies get here.
            return true;
        }
        let values = values.as_array().expect("a list");
        let mut values = values.iter().map(|value| value.as_str().expect("text"));
        // An uncertain match is decided against the caller.
        let doubt = self.denies != not;
        values.any(|value| self.value_matches(key, value, doubt)) != not
    }

    fn value_matches(&self, key: &str, value: &str, doubt: bool) -> bool {
        let Call {
            identity, from, client, host, method, path, headers, port, address, sni, ..
        } = self.call;
        let mut tokens = self.tokens.iter();
        let own = |domain: &str| self.server.domains.contains(&domain);
        match key {
            "source.principal" => identity.as_ref().is_some_and(|(domain, namespace, account)| {
                let rest = format!("ns/{namespace}/sa/{account}");
                if let Some(wanted_rest) = value.strip_prefix("cluster.local/")
                    && !own("cluster.local")
                {
                    // The trust domains of the mesh, and not a member's trust domain that has the
                    // same name.
                    return own(domain) && like(wanted_rest, &rest);
                }
                if like(value, &format!("{domain}/{rest}")) {
                    return true;
                }
                // A name in one trust domain of the mesh matches in all of them.
                let Some((wanted_domain, wanted_rest)) = value.split_once('/') else {
                    return false;
                };
                let names_mesh = wanted_domain != "*"
                    && self.server.domains.iter().any(|one| like(wanted_domain, one));
                let whole = wanted_rest.split('/').count() == 4;
                names_mesh && (whole || doubt) && own(domain) && like(wanted_rest, &rest)
            }),
            "source.namespace" => identity.as_ref().is_some_and(|(domain, namespace, _)| {
                (own(domain) || doubt) && glob(value, namespace)
            }),
            "source.serviceAccount" => {
                let (namespace, account) = value.split_once('/').unwrap_or((self.namespace, value));
                identity.as_ref().is_some_and(|(domain, in_namespace, is)| {
                    (own(domain) || doubt) && in_namespace == namespace && is == account
                })
            }
            "source.trustDomain" => identity.as_ref().is_some_and(|(domain, ..)| {
                let is_mesh = value == "cluster.local" || own(value);
                if is_mesh { own(domain) } else { like(value, domain) }
            }),
            "request.auth.principal" => tokens.any(|token| {
                let halves = value.rsplit_once('/');
                let matches_both = halves.is_some_and(|(issuer, subject)| {
                    like(issuer, &token.issuer) && like(subject, &token.subject)
                });
                let matches_half = match (value.strip_suffix('*'), value.strip_prefix('*')) {
                    (Some(start), _) => token.issuer.starts_with(start),
                    (_, Some(end)) => token.subject.ends_with(end),
                    _ => false,
                };
                matches_both || matches_half && (doubt || halves.is_none())
            }),
            "request.auth.claims[groups]" => {
                tokens.any(|token| token.groups.iter().any(|group| like(value, group)))
            }
            "source.ip" => within(value, *from),
            "remote.ip" => within(value, *client),
            "destination.ip" => within(value, *address),
            "destination.port" => value == port.to_string(),
            "connection.sni" => like(value, sni),
            "methods" if doubt => like(&value.to_lowercase(), &method.to_lowercase()),
            "methods" => like(value, method),
            "paths" if value.contains('{') => template(value, path),
            "paths" => like(value, path),
            "hosts" => {
                let (value, host) = (value.to_lowercase(), host.to_lowercase());
                if doubt && value != "*" {
                    return host.split(',').any(|one| may_be_host(&value, one.trim()));
                }
                let named_port =
                    value.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
                if named_port || value == "*" || value.ends_with('*') {
                    return like(&value, &host);
                }
                let bare = match host.rsplit_once(':') {
                    Some((bare, port))
                        if port.bytes().all(|one| one.is_ascii_digit()) && !port.is_empty() =>
                    {
                        bare
                    }
                    _ => &host,
                };
                let bare = bare.strip_suffix('.').unwrap_or(bare);
                like(value.strip_suffix('.').unwrap_or(&value), bare)
            }
            _ => {
                let name =
                    key.strip_prefix("request.headers[").and_then(|rest| rest.strip_suffix(']'));
                let name = name.expect("a key that the oracle knows");
                let mut given = headers.iter().filter(|(one, _)| one.eq_ignore_ascii_case(name));
                if value == "*" {
                    return given.next().is_some();
                }
                let all: Vec<&str> = given.map(|(_, value)| &**value).collect();
                if all.is_empty() {
                    return false;
                }
                if !doubt {
                    // The joined values must match. If the pattern has a wildcard, each value must
                    // match too.
                    let joined = all.join(",");
                    let is_whole = !(value.starts_with('*') || value.ends_with('*'));
                    let each = |text: &str| {
                        text.split(',').all(|one| like(value, one.trim_matches([' ', '\t'])))
                    };
                    return like(value, &joined) && (is_whole || each(&joined));
                }
                all.join(",").split(',').any(|one| like(value, one.trim_matches([' ', '\t'])))
                    || like(value, &all.join(","))
            }
        }
    }
}

/// Returns whether some server may treat `host` as the host that a policy names, with any port and
/// user.
fn may_be_host(value: &str, host: &str) -> bool {
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    if value.ends_with('*') {
        return like(value, host);
    }
    let without_dot = |text: &str| text.strip_suffix('.').unwrap_or(text).to_owned();
    let (bare, port) = host.split_once(':').map_or((host, None), |(bare, port)| (bare, Some(port)));
    match value.rsplit_once(':') {
        Some((named, wanted_port)) if wanted_port.parse::<u16>().is_ok() => {
            port == Some(wanted_port) && like(&without_dot(named), &without_dot(bare))
        }
        _ => like(&without_dot(value), &without_dot(bare)),
    }
}

/// Matches a pattern with `*` alone, at the start, or at the end.
fn like(pattern: &str, text: &str) -> bool {
    match (pattern, pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        ("*", ..) => !text.is_empty(),
        (_, Some(end), _) => text.ends_with(end),
        (_, None, Some(start)) => text.starts_with(start),
        _ => text == pattern,
    }
}

/// Matches a pattern with `*` at any position.
fn glob(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|tail| {
            (0..=tail.len()).any(|at| tail.is_char_boundary(at) && glob(rest, &tail[at..]))
        }),
    }
}

fn within(range: &str, address: IpAddr) -> bool {
    let (base, length) = match range.split_once('/') {
        Some((base, length)) => (base, Some(length.parse::<u32>().expect("a length"))),
        None => (range, None),
    };
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => (32, u128::from(address.to_bits()) << 96),
        IpAddr::V6(address) => (128, address.to_bits()),
    };
    let ((width, base), (other, address)) =
        (bits(base.parse().expect("an address")), bits(address));
    let length = length.unwrap_or(width);
    width == other && (length == 0 || (base ^ address) >> (128 - length) == 0)
}

/// Matches a path template: `{*}` is one segment, `{**}` is any number of segments before the
/// following text.
fn template(pattern: &str, path: &str) -> bool {
    let (mut wanted, mut found) = (pattern.split('/'), path.split('/'));
    loop {
        match (wanted.next(), found.next()) {
            (None, None) => return true,
            (Some("{**}"), Some(first)) => {
                let rest: String = wanted.map(|text| format!("/{text}")).collect();
                let remaining: String = found.map(|text| format!("/{text}")).collect();
                return format!("{first}{remaining}").ends_with(&rest);
            }
            (Some("{*}"), Some(segment)) if !segment.is_empty() => {}
            (Some(segment), Some(other)) if segment == other => {}
            _ => return false,
        }
    }
}
