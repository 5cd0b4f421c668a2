//! HTTP rules of a VirtualService: raw form and conversion (Istio, "Virtual Service", `HTTPRoute`;
//! docs/reference/traffic.md, "VirtualService").

mod conditions;
mod silent;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::super::hosts::HostPattern;
use super::super::kind::KindSettings;
use super::super::object::Reason;
use super::super::re2::{self, Regex};
use super::super::route::{
    AbortStatus, ClaimPath, CrossOrigin, Destination, FixedResponse, HeaderChanges, HeaderEdits,
    HttpRule, InjectedFault, MESH, Mirror, PathMatch, PathRewrite, RareAtDestination,
    RareConditions, RareTerms, RedirectPath, RedirectPort, RedirectRule, RequestMatch, Rewrite,
    RuleTerms, TextMatch, is_set_by_proxies, is_text, place,
};
use super::claims::{claim_path, divided};
use super::raw::{
    RawCors, RawDestination, RawFault, RawHeaderEdits, RawHeaders, RawHttpDestination, RawHttpRule,
    RawPercent, RawRedirect, RawRequestMatch, RawResponse, RawRewrite, RawTextMatch, grpc_status,
};
use super::source::{Delegate, source};
use strait_base::codes::{self, Code};
use strait_model::mesh_config::{RetryFault, RetryRule, WrittenRetries, command_operators};
use strait_model::{Hostname, Namespace, is_header_name};

/// How a rule with an error is treated.
const ABSENT: &str = "without a valid version of the object, the rule is left out, or answers 500 \
                      if it blocks requests";

/// Removes a rule that contains an error, unless it blocks requests: blocked requests must not fall
/// through to another rule.
pub(super) fn leave_out_faulty(rule: &mut HttpRule) {
    let is_faulty = rule.refused || rule.matches.iter().any(|one| one.refused);
    if is_faulty && !blocks(rule) {
        rule.leave_out();
    }
}

/// Returns whether a rule keeps all requests from a destination.
fn blocks(rule: &RuleTerms) -> bool {
    let abort =
        rule.fault.as_ref().and_then(|fault| fault.abort).filter(|(_, share)| *share == ALL);
    let aborts = abort.is_some_and(|(status, _)| match status {
        AbortStatus::Http(status) => status >= 400,
        AbortStatus::Grpc(status) => status != 0,
    });
    aborts || rule.response.as_ref().is_some_and(|response| response.status >= 400)
}

/// All requests, per million.
const ALL: u32 = 1_000_000;

/// Maximum size in bytes of the body of a direct response.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Parser of the rules of one object, which collects reasons.
pub(super) struct Reader<'a> {
    pub(super) namespace: &'a Namespace,
    pub(super) settings: &'a KindSettings,
    pub(super) reasons: &'a mut Vec<Reason>,
    /// Hosts that the object has used so far. Most destinations are among these, and share their
    /// text.
    pub(super) known_hosts: BTreeSet<Hostname>,
}

impl Reader<'_> {
    /// Parses a rule, and the delegate that replaces it, if any.
    pub(super) fn rule(
        &mut self,
        mut raw: RawHttpRule,
        path: &str,
    ) -> (HttpRule, Option<Delegate>) {
        self.settings_without_effect(&raw, path);
        self.leave_out_for_own_answer(&mut raw, path);
        let matches = raw.r#match.into_iter().enumerate();
        let matches = matches.map(|(at, raw)| self.request(raw, &format!("{path}.match[{at}]")));
        let mut rule = HttpRule::from(RuleTerms {
            matches: matches.collect(),
            timeout: raw.timeout.map(|timeout| self.limit(timeout.0, &format!("{path}.timeout"))),
            more: RareTerms { name: raw.name, ..RareTerms::default() }.into(),
            ..RuleTerms::default()
        });
        let delegate = raw.delegate.filter(|_| {
            let alone =
                raw.route.is_empty() && raw.redirect.is_none() && raw.direct_response.is_none();
            if !alone {
                self.refuse(&mut rule.refused, path, "has a delegate in addition to an action");
            }
            alone
        });
        let delegate = delegate.map(|raw| Delegate {
            namespace: match &*raw.namespace {
                "" | "." => self.namespace.clone(),
                other => other.into(),
            },
            name: raw.name,
        });
        let kinds = [raw.redirect.is_some(), raw.direct_response.is_some(), !raw.route.is_empty()];
        if delegate.is_none() {
            match kinds.into_iter().filter(|is| *is).count() {
                0 => self.refuse(
                    &mut rule.refused,
                    path,
                    "has neither route nor redirect nor \
                                                           directResponse",
                ),
                1 => {}
                _ => self.lost(
                    path,
                    "has more than one of redirect, directResponse and route: the \
                                      first of these applies",
                ),
            }
        }
        self.destinations(raw.route, path, &mut rule);
        self.actions(raw.redirect, raw.direct_response, raw.rewrite, path, &mut rule);
        let RuleTerms { refused, retries, .. } = &mut *rule;
        *retries = raw
            .retries
            .map(|raw| self.retries(raw, &format!("{path}.retries"), refused))
            .map(Box::new);
        self.late_try_timeout(&rule, path);
        let RuleTerms { refused, more: terms, .. } = &mut *rule;
        let fault = raw.fault.map(|raw| self.fault(raw, &format!("{path}.fault"), refused));
        terms.fault = fault.map(Box::new);
        let cors =
            raw.cors_policy.map(|raw| self.cors(raw, &format!("{path}.corsPolicy"), refused));
        terms.cors = cors.map(Box::new);
        let headers = raw.headers.map(|raw| self.headers(raw, &format!("{path}.headers"), refused));
        terms.headers = headers.map(Box::new);
        // The default is 100 percent. The newer field takes precedence.
        if raw.mirror_percentage.is_some() && raw.mirror_percent.is_some() {
            self.replaced(&format!("{path}.mirrorPercent"), "mirrorPercentage");
        }
        let share = match (raw.mirror_percentage, raw.mirror_percent) {
            (Some(share), _) => {
                self.per_million(Some(share), 1_000_000, &format!("{path}.mirrorPercentage"))
            }
            (None, Some(share)) => share.min(100) * 10_000,
            (None, None) => 1_000_000,
        };
        let mut mirrors = Vec::new();
        if let Some(raw) = raw.mirror {
            let destination = self.destination(raw, &format!("{path}.mirror.host"));
            mirrors
                .extend(destination.map(|destination| Mirror { destination, per_million: share }));
        }
        let is_set = !mirrors.is_empty() || !raw.mirrors.is_empty();
        for (at, raw) in raw.mirrors.into_iter().enumerate() {
            let path = format!("{path}.mirrors[{at}]");
            let per_million =
                self.per_million(raw.percentage, 1_000_000, &format!("{path}.percentage"));
            let destination =
                self.destination(raw.destination, &format!("{path}.destination.host"));
            mirrors.extend(destination.map(|to| {
                let destination = Destination { index: place(at), ..to };
                Mirror { destination, per_million }
            }));
        }
        mirrors.retain(|mirror| mirror.per_million > 0);
        rule.mirrors = is_set.then(|| mirrors.into());
        if delegate.is_none() {
            leave_out_faulty(&mut rule);
        }
        rule.more.trim();
        (rule, delegate)
    }

    /// Removes the settings that only concern a destination from a rule that answers requests itself,
    /// and reports them. Envoy ignores them there (RouteAction; its CORS filter too).
    fn leave_out_for_own_answer(&mut self, raw: &mut RawHttpRule, path: &str) {
        let answer = match (&raw.redirect, &raw.direct_response) {
            (Some(_), _) => "redirect",
            (None, Some(_)) => "directResponse",
            (None, None) => return,
        };
        let ignored = [
            ("rewrite", raw.rewrite.take().is_some()),
            ("timeout", raw.timeout.take().is_some()),
            ("retries", raw.retries.take().is_some()),
            ("mirror", raw.mirror.take().is_some()),
            ("mirrors", !std::mem::take(&mut raw.mirrors).is_empty()),
            ("corsPolicy", raw.cors_policy.take().is_some()),
        ];
        for (field, _) in ignored.into_iter().filter(|(_, is_set)| *is_set) {
            let text = format!("has no effect, because {answer} answers the requests");
            self.lost(&format!("{path}.{field}"), &text);
        }
    }

    fn note(&mut self, code: &'static Code, path: &str, text: &str) {
        self.reasons.push(Reason::lost(code, path, text));
    }

    /// Reports a field that has no effect because an alternative to it is set too.
    fn replaced(&mut self, path: &str, by: &str) {
        let text = format!("{by} is set too and takes precedence");
        self.note(&codes::TRAFFIC_REPLACED, path, &text);
    }

    fn lost(&mut self, path: &str, text: &str) {
        self.note(&codes::ROUTE_PART_LOST, path, text);
    }

    /// Reports a value that Envoy rejects.
    fn refuse(&mut self, refused: &mut bool, path: &str, text: &str) {
        *refused = true;
        self.note(&codes::ROUTE_REFUSED, path, &format!("{text}; {ABSENT}"));
    }

    /// Parses an expression, and warns if only some Envoys accept it.
    fn regex(&mut self, text: &str, path: &str) -> Result<Regex, String> {
        let regex = re2::parse(text)?;
        if regex.size > re2::PLAIN_PROGRAM_MAX {
            let text = format!(
                "{text:?} compiles to about {} instructions: Envoy accepts it only if its \
                 bootstrap sets re2.max_program_size.error_level, as that of `strait proxy \
                 bootstrap` does",
                regex.size
            );
            self.reasons.push(Reason::warning(&codes::REGEX_LONG, path, text));
        }
        Ok(regex)
    }

    /// Parses an optional port.
    fn port(&mut self, number: Option<u32>, path: &str) -> Option<u16> {
        let number = number?;
        let text = match u16::try_from(number) {
            Ok(0) => "0 is not a valid port: it is treated as not set".to_owned(),
            Ok(port) => return Some(port),
            Err(_) => format!("{number} is not a valid port: it is treated as 65535"),
        };
        self.note(&codes::TRAFFIC_PORT, path, &text);
        (number != 0).then_some(u16::MAX)
    }

    /// Parses a destination; `None` if its host is invalid.
    pub(super) fn destination(&mut self, raw: RawDestination, path: &str) -> Option<Destination> {
        let host =
            match HostPattern::parse(&raw.host, self.namespace.as_str(), &self.settings.domain) {
                Ok(HostPattern::Exact(host)) => host,
                // The host of a ServiceEntry may be a wildcard.
                Ok(under @ HostPattern::Under(_)) if under != HostPattern::all() => {
                    Hostname::from(under.to_string())
                }
                other => {
                    let fact = other.map_or_else(
                        |error| error.to_string(),
                        |_| "matches every host".to_owned(),
                    );
                    let text =
                        format!("{:?} {fact}; the destination receives no traffic", raw.host);
                    self.note(&codes::DESTINATION_INVALID, path, &text);
                    return None;
                }
            };
        let is_label = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if !raw.subset.chars().all(is_label) {
            let text = format!(
                "{:?} is not a valid subset name; the destination receives no \
                                traffic",
                raw.subset
            );
            self.note(&codes::DESTINATION_INVALID, path, &text);
            return None;
        }
        let path = path.strip_suffix(".host").unwrap_or(path);
        let port = self.port(raw.port.map(|port| port.number), &format!("{path}.port.number"));
        let host = self.shared_host(host);
        Some(Destination { port, subset: raw.subset, ..Destination::to(host) })
    }

    /// Returns the shared copy of a host.
    fn shared_host(&mut self, host: Hostname) -> Hostname {
        if let Some(shared) = self.known_hosts.get(&host) {
            return shared.clone();
        }
        self.known_hosts.insert(host.clone());
        host
    }

    fn destinations(&mut self, raw: Vec<RawHttpDestination>, path: &str, rule: &mut HttpRule) {
        let only = raw.len() == 1;
        let is_route = !raw.is_empty();
        let mut all = Vec::with_capacity(raw.len());
        for (at, raw) in raw.into_iter().enumerate() {
            let path = format!("{path}.route[{at}]");
            let weight = if only && raw.weight >= 0 { Ok(1) } else { u32::try_from(raw.weight) };
            let Ok(weight) = weight else {
                self.refuse(
                    &mut rule.refused,
                    &path,
                    &format!("{} is not a valid weight", raw.weight),
                );
                continue;
            };
            if weight == 0 {
                continue;
            }
            let headers = raw
                .headers
                .map(|raw| self.headers(raw, &format!("{path}.headers"), &mut rule.refused));
            match self.destination(raw.destination, &format!("{path}.destination")) {
                Some(to) => {
                    let headers = headers.and_then(HeaderChanges::boxed);
                    let more = RareAtDestination { headers, ..RareAtDestination::default() }.into();
                    all.push(Destination { index: place(at), weight, more, ..to });
                }
                // Requests for this destination are answered with an error and not sent to the
                // others.
                None => {
                    all.push(Destination { index: place(at), weight, ..Destination::invalid() });
                }
            }
        }
        let sum: u64 = all.iter().map(|one| u64::from(one.weight)).sum();
        if !only && sum == 0 && !rule.refused && is_route {
            // Without any destination, requests are answered with 500.
            let text = "the sum of its weights is 0; requests are answered with 500";
            self.note(&codes::ROUTE_REFUSED, &format!("{path}.route"), text);
        }
        if u32::try_from(sum).is_err() {
            self.refuse(
                &mut rule.refused,
                path,
                &format!("the sum of the weights is {sum}, which exceeds 4294967295"),
            );
        }
        rule.destinations = all.into();
    }

    fn actions(
        &mut self,
        redirect: Option<RawRedirect>,
        response: Option<RawResponse>,
        rewrite: Option<RawRewrite>,
        path: &str,
        rule: &mut RuleTerms,
    ) {
        let RuleTerms { refused, more: rule, .. } = rule;
        let redirect = redirect.map(|raw| self.redirect(raw, &format!("{path}.redirect"), refused));
        rule.redirect = redirect.map(Box::new);
        let response = response.map(|raw| {
            let path = format!("{path}.directResponse");
            let status =
                u16::try_from(raw.status).ok().filter(|status| (200..600).contains(status));
            if status.is_none() {
                self.refuse(
                    refused,
                    &format!("{path}.status"),
                    &format!("{} is not from 200 to 599", raw.status),
                );
            }
            let body = raw.body.and_then(|body| match (body.string, body.bytes) {
                (Some(text), bytes) => {
                    if bytes.is_some() {
                        self.replaced(&format!("{path}.body.bytes"), "string");
                    }
                    Some(text.into_bytes())
                }
                (None, Some(text)) => STANDARD.decode(&text).ok().or_else(|| {
                    self.lost(
                        &format!("{path}.body.bytes"),
                        "is not base64: the response has no body",
                    );
                    None
                }),
                (None, None) => None,
            });
            let body = body.filter(|body| {
                let fits = body.len() <= BODY_BYTES_MAX;
                if !fits {
                    self.refuse(refused, &format!("{path}.body"), "is longer than 1 MiB");
                }
                fits
            });
            FixedResponse { status: status.unwrap_or(500), body: body.map(Into::into) }
        });
        rule.response = response.map(Box::new);
        let rewrite = rewrite.map(|raw| {
            let path = format!("{path}.rewrite");
            if !is_text(&raw.uri) || !is_text(&raw.authority) {
                self.refuse(refused, &path, "contains control characters");
            }
            match &raw.uri_regex_rewrite {
                Some(_) if !raw.uri.is_empty() => {
                    self.replaced(&format!("{path}.uriRegexRewrite"), "uri");
                }
                None if raw.uri.is_empty() && raw.authority.is_empty() => {
                    self.lost(&path, "sets neither a path nor a host: nothing is rewritten");
                }
                _ => {}
            }
            let regex = raw.uri_regex_rewrite.and_then(|raw| {
                if raw.rewrite.is_empty() {
                    let text = "is empty: the matched text is removed";
                    let path = format!("{path}.uriRegexRewrite.rewrite");
                    self.reasons.push(Reason::warning(&codes::ROUTE_PART_LOST, path, text));
                }
                let groups = self.regex(&raw.r#match, &path).map(|regex| regex.groups);
                let named = re2::highest_group(&raw.rewrite);
                let fact = match (groups, named) {
                    (Ok(groups), Ok(named)) if named <= groups && is_text(&raw.rewrite) => {
                        return Some(PathRewrite::Regex(raw.r#match, raw.rewrite));
                    }
                    (Ok(groups), Ok(named)) => format!(
                        "refers to group {named}, but the \
                                                        expression has {groups}"
                    ),
                    (Err(fact), _) | (_, Err(fact)) => fact,
                };
                self.refuse(refused, &format!("{path}.uriRegexRewrite"), &fact);
                None
            });
            let uri = Some(raw.uri).filter(|uri| !uri.is_empty()).map(PathRewrite::Matched);
            let authority = Some(raw.authority).filter(|authority| !authority.is_empty());
            Rewrite { path: uri.or(regex), authority }
        });
        rule.rewrite = rewrite.map(Box::new);
    }

    fn redirect(&mut self, raw: RawRedirect, path: &str, refused: &mut bool) -> RedirectRule {
        let status = match raw.redirect_code {
            0 => 301,
            code @ (301 | 302 | 303 | 307 | 308) => code as u16,
            other => {
                let text = format!("{other} is not valid; use 301, 302, 303, 307 or 308");
                self.refuse(refused, &format!("{path}.redirectCode"), &text);
                301
            }
        };
        let texts = [&raw.uri, &raw.prefix_rewrite, &raw.authority, &raw.scheme];
        if !texts.into_iter().all(|text| is_text(text)) {
            self.refuse(refused, path, "contains control characters");
        }
        if raw.port.is_some() && !raw.derive_port.is_empty() {
            self.replaced(&format!("{path}.derivePort"), "port");
        }
        let port = match (raw.port, &*raw.derive_port) {
            (Some(_), _) => self
                .port(raw.port, &format!("{path}.port"))
                .map_or(RedirectPort::Unset, RedirectPort::Number),
            (None, "FROM_REQUEST_PORT") => RedirectPort::FromRequest,
            (None, "FROM_PROTOCOL_DEFAULT") => RedirectPort::SchemeDefault,
            (None, "") => RedirectPort::Unset,
            (None, other) => {
                let text = format!(
                    "{other:?} is neither FROM_PROTOCOL_DEFAULT nor FROM_REQUEST_PORT: it is \
                     ignored"
                );
                self.lost(&format!("{path}.derivePort"), &text);
                RedirectPort::Unset
            }
        };
        let some = |text: Arc<str>| Some(text).filter(|text| !text.is_empty());
        if !raw.uri.is_empty() && !raw.prefix_rewrite.is_empty() {
            self.replaced(&format!("{path}.prefixRewrite"), "uri");
        }
        let path_redirect = match (some(raw.uri), some(raw.prefix_rewrite)) {
            (Some(whole), _) => RedirectPath::Whole(whole),
            (None, Some(prefix)) => RedirectPath::Prefix(prefix),
            (None, None) => RedirectPath::Unchanged,
        };
        let rule = RedirectRule {
            path: path_redirect,
            authority: some(raw.authority),
            scheme: some(raw.scheme),
            port,
            status,
        };
        let changes_target = rule.path != RedirectPath::Unchanged
            || rule.authority.is_some()
            || rule.scheme.is_some()
            || rule.port != RedirectPort::Unset;
        if !changes_target && !*refused {
            let text = "changes neither uri, authority, scheme nor port: clients would follow it \
                        endlessly";
            self.refuse(refused, path, text);
        }
        rule
    }

    fn retries(&mut self, raw: WrittenRetries, path: &str, refused: &mut bool) -> RetryRule {
        let (rule, faults) = raw.read();
        for RetryFault { field, text, is_fatal } in faults {
            let path = format!("{path}.{field}");
            if is_fatal {
                self.refuse(refused, &path, &text);
            } else {
                self.lost(&path, &text);
            }
        }
        if rule.attempts == 0 && rule != RetryRule::default() {
            let text = "is 0 by default: requests are not retried, whatever else is set";
            self.lost(&format!("{path}.attempts"), text);
        }
        rule
    }

    /// Parses a percentage, and returns it per million; `unset` if it is absent.
    fn per_million(&mut self, raw: Option<RawPercent>, unset: u32, path: &str) -> u32 {
        let Some(RawPercent { value }) = raw else { return unset };
        let share = (value * 10_000.0).round();
        if !(0.0..=1_000_000.0).contains(&share) {
            self.lost(
                path,
                &format!("{value} is not a percentage: the nearer of 0 and 100 applies"),
            );
        }
        // NaN becomes 0.
        share.clamp(0.0, 1_000_000.0) as u32
    }

    fn fault(&mut self, raw: RawFault, path: &str, refused: &mut bool) -> InjectedFault {
        if raw.delay.is_none() && raw.abort.is_none() {
            self.lost(path, "sets neither delay nor abort: it has no effect");
        }
        let delay = raw.delay.and_then(|raw| {
            let path = format!("{path}.delay");
            let fixed = raw.fixed_delay.map(|delay| delay.0).filter(|delay| !delay.is_zero());
            let Some(delay) = fixed else {
                self.lost(&path, "has no fixedDelay above 0s: no request is delayed");
                return None;
            };
            if raw.percent > 0 && raw.percentage.is_some() {
                self.replaced(&format!("{path}.percent"), "percentage");
            }
            let unset = raw.percent.min(100) * 10_000;
            if unset == 0 && raw.percentage.is_none() {
                self.lost(&path, "has no percentage: no request is delayed");
            }
            Some((delay, self.per_million(raw.percentage, unset, &format!("{path}.percentage"))))
        });
        let abort = raw.abort.and_then(|raw| {
            let path = format!("{path}.abort");
            if raw.http_status.is_some() && raw.grpc_status.is_some() {
                self.replaced(&format!("{path}.grpcStatus"), "httpStatus");
            }
            let status = match (raw.http_status, raw.grpc_status) {
                (Some(status), _) => {
                    match u16::try_from(status).ok().filter(|status| (200..600).contains(status)) {
                        Some(status) => AbortStatus::Http(status),
                        None => {
                            self.refuse(
                                refused,
                                &format!("{path}.httpStatus"),
                                &format!("{status} is not from 200 to 599"),
                            );
                            // The value has no effect: the rule answers with 500.
                            AbortStatus::Http(500)
                        }
                    }
                }
                (None, Some(name)) => match grpc_status(&name) {
                    Some(status) => AbortStatus::Grpc(status),
                    None => {
                        self.refuse(
                            refused,
                            &format!("{path}.grpcStatus"),
                            &format!("{name:?} is not a gRPC status such as UNAVAILABLE"),
                        );
                        AbortStatus::Http(500)
                    }
                },
                (None, None) => {
                    self.lost(&path, "has no status: no request is aborted");
                    return None;
                }
            };
            if raw.percentage.is_none() {
                self.lost(&path, "has no percentage: no request is aborted");
            }
            Some((status, self.per_million(raw.percentage, 0, &format!("{path}.percentage"))))
        });
        InjectedFault { delay, abort }
    }

    fn cors(&mut self, raw: RawCors, path: &str, refused: &mut bool) -> CrossOrigin {
        if !raw.allow_origin.is_empty() && !raw.allow_origins.is_empty() {
            self.replaced(&format!("{path}.allowOrigin"), "allowOrigins");
        }
        let old = raw.allow_origin.into_iter().map(|exact| match &*exact {
            "*" => TextMatch::Regex(".*".into()),
            _ => TextMatch::Exact(exact),
        });
        let mut origins: Vec<TextMatch> = Vec::new();
        if raw.allow_origins.is_empty() {
            origins.extend(old);
        }
        for (at, raw) in raw.allow_origins.into_iter().enumerate() {
            let path = format!("{path}.allowOrigins[{at}]");
            self.note_ambiguous(&raw, &path);
            match raw {
                RawTextMatch { exact: Some(text), .. } if is_text(&text) => {
                    origins.push(TextMatch::Exact(text));
                }
                RawTextMatch { prefix: Some(text), .. } if is_text(&text) && !text.is_empty() => {
                    origins.push(TextMatch::Prefix(text));
                }
                RawTextMatch { regex: Some(text), .. } if self.regex(&text, &path).is_ok() => {
                    origins.push(TextMatch::Regex(text));
                }
                // An invalid origin allows nothing.
                _ => self.lost(&path, "cannot be read: it allows no origin"),
            }
        }
        let mut joined = |this: &mut Self, list: Vec<String>, field: &str| -> Arc<str> {
            let mut names = Vec::with_capacity(list.len());
            for (at, name) in list.into_iter().enumerate() {
                let path = format!("{path}.{field}[{at}]");
                if !is_text(&name) {
                    this.refuse(refused, &path, "contains control characters");
                } else if !name.split(',').all(|one| is_header_name(one.trim_matches([' ', '\t'])))
                {
                    // Methods and header names are both tokens (RFC 9110, section 5.6.2), and so is
                    // *. Some users write a list as one name.
                    this.lost(
                        &path,
                        &format!("{name:?} is not a valid token: it is left out of responses"),
                    );
                } else {
                    names.push(name);
                }
            }
            names.join(",").into()
        };
        if !matches!(&*raw.unmatched_preflights, "" | "UNSPECIFIED" | "FORWARD" | "IGNORE") {
            let text = format!(
                "{:?} is neither FORWARD nor IGNORE: FORWARD applies",
                raw.unmatched_preflights
            );
            self.lost(&format!("{path}.unmatchedPreflights"), &text);
        }
        if raw.max_age.as_ref().is_some_and(|age| age.0.subsec_nanos() > 0) {
            self.lost(&format!("{path}.maxAge"), "is truncated to whole seconds in responses");
        }
        let cors = CrossOrigin {
            origins: origins.into(),
            methods: joined(self, raw.allow_methods, "allowMethods"),
            headers: joined(self, raw.allow_headers, "allowHeaders"),
            expose: joined(self, raw.expose_headers, "exposeHeaders"),
            max_age: raw.max_age.map(|age| age.0),
            credentials: raw.allow_credentials,
            answers_all_preflights: raw.unmatched_preflights == "IGNORE",
        };
        for field in cors.literal_stars() {
            self.lost(&format!("{path}.{field}"), CrossOrigin::LITERAL_STAR);
        }
        cors
    }

    /// Returns the host that header changes set, by either name of the host header: the first in
    /// `set`, or else in `add`.
    fn host_among_headers(&mut self, edits: &RawHeaderEdits, path: &str) -> Option<Arc<str>> {
        let entries = |what, map| BTreeMap::iter(map).map(move |(name, host)| (what, name, host));
        let all = entries("set", &edits.set).chain(entries("add", &edits.add));
        let mut found: Option<Arc<str>> = None;
        for (what, name, host) in all.filter(|(_, name, _)| names_host(name)) {
            let path = format!("{path}.{what}[{name}]");
            if found.is_some() {
                let text = "another header sets the host and takes precedence";
                self.note(&codes::TRAFFIC_REPLACED, &path, text);
            } else if host.is_empty() || !is_text(host) {
                self.lost(&path, "is not a valid host: the host does not change");
            } else {
                found = Some(Arc::clone(host));
            }
        }
        found
    }

    fn headers(&mut self, raw: RawHeaders, path: &str, refused: &mut bool) -> HeaderChanges {
        let host = self.host_among_headers(&raw.request, &format!("{path}.request"));
        let mut edits = |this: &mut Self, raw: RawHeaderEdits, part: &str| {
            let path = format!("{path}.{part}");
            let mut pairs = |this: &mut Self, map: BTreeMap<String, Arc<str>>, what: &str| {
                let mut changes = BTreeMap::new();
                for (name, value) in map {
                    if changes.len() == HEADERS_MAX {
                        // Reported once, however many there are.
                        let text = "are more than 250 headers, which is the maximum";
                        this.refuse(refused, &format!("{path}.{what}"), text);
                        break;
                    }
                    let path = format!("{path}.{what}[{name}]");
                    if part == "request" && names_host(&name) {
                        continue;
                    }
                    if part == "response" && name.eq_ignore_ascii_case("server") {
                        this.lost(&path, "proxies set this header themselves: it does not change");
                    }
                    if name.starts_with(':') || names_host(&name) {
                        this.lost(&path, "Envoy cannot change this header: it does not change");
                    } else if !is_header_name(&name) || !is_text(&value) {
                        this.refuse(refused, &path, "is not a valid header");
                    } else if value.len() > HEADER_VALUE_MAX {
                        this.refuse(refused, &path, "is longer than 16 KiB, the maximum in Envoy");
                    } else if let Err(fact) = command_operators::check(&value) {
                        this.refuse(refused, &path, &format!("{value:?} {fact}"));
                    } else {
                        changes.insert(name.to_ascii_lowercase().into(), value);
                    }
                }
                changes.into_iter().collect()
            };
            let set = pairs(this, raw.set, "set");
            let add = pairs(this, raw.add, "add");
            let mut remove: Vec<Arc<str>> = Vec::new();
            for name in raw.remove {
                let path = format!("{path}.remove[{name}]");
                if name.starts_with(':') || names_host(&name) {
                    this.lost(&path, "Envoy cannot remove this header: it stays");
                } else if !is_header_name(&name) {
                    this.refuse(refused, &path, "is not a valid header");
                } else {
                    if part == "response" && is_set_by_proxies(&name) {
                        this.lost(&path, "proxies set this header themselves: it stays");
                    }
                    remove.push(name.to_ascii_lowercase().into());
                }
            }
            HeaderEdits { set, add, remove: remove.into() }
        };
        let request = edits(self, raw.request, "request");
        let response = edits(self, raw.response, "response");
        HeaderChanges { request, response, host }
    }
}

/// Maximum number of patterns in `withoutHeaders` that match the empty text.
const WITHOUT_EMPTY_MAX: usize = 3;
/// Maximum length in bytes of a header value (Envoy's limit).
const HEADER_VALUE_MAX: usize = 16 << 10;
/// Maximum length in bytes of the name of a query parameter (Envoy's limit).
const QUERY_NAME_MAX: usize = 1 << 10;
/// Maximum number of headers to set, and of headers to add. Envoy accepts 1000 for a route, which a
/// rule and its destination share.
const HEADERS_MAX: usize = 250;

/// Returns whether a header is the host of a request, `:authority` or `host`.
fn names_host(name: &str) -> bool {
    name == ":authority" || name.eq_ignore_ascii_case("host")
}
