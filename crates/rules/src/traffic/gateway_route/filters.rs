//! Filters of rules and backends (Gateway API, `HTTPRouteFilter`, `GRPCRouteFilter`).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::object::Reason;
use super::super::re2;
use super::super::route::{
    CrossOrigin, HeaderEdits, Mirror, PathRewrite, RedirectPath, RedirectPort, RedirectRule,
    Rewrite, RuleTerms, TextMatch, is_set_by_proxies, is_text,
};
use super::RuleReader;
use super::raw::{
    RawCorsFilter, RawFilter, RawHeaderFilter, RawNamedValue, RawPathModifier, RawRedirectFilter,
};
use strait_base::codes;
use strait_model::is_header_name;
use strait_model::mesh_config::command_operators;

impl RuleReader<'_> {
    pub(super) fn filter(&mut self, raw: RawFilter, path: &str, rule: &mut RuleTerms) {
        let RuleTerms { refused, more: rule, .. } = rule;
        let headers = rule.headers.get_or_insert_default();
        match raw {
            RawFilter { request_header_modifier: Some(raw), .. } => {
                headers.request = self.edits(raw, path, refused, Some(&mut headers.host));
            }
            RawFilter { response_header_modifier: Some(raw), .. } => {
                headers.response = self.edits(raw, path, refused, None);
            }
            RawFilter { request_redirect: Some(raw), .. } => {
                rule.redirect = Some(Box::new(self.redirect(raw, path, refused)));
            }
            RawFilter { rewrite: Some(raw), .. } => {
                let path = format!("{path}.urlRewrite.path");
                let path_rewrite = match self.replaced(raw.path, &path, refused) {
                    RedirectPath::Whole(path) => Some(PathRewrite::Whole(path)),
                    RedirectPath::Segments(path) => Some(PathRewrite::Segments(path)),
                    RedirectPath::Unchanged | RedirectPath::Prefix(_) => None,
                };
                let rewrite = Rewrite { path: path_rewrite, authority: raw.hostname };
                rule.rewrite = Some(Box::new(rewrite));
            }
            RawFilter { request_mirror: Some(raw), .. } => {
                self.reasons.extend(raw.share_fault(path));
                let from_percent = raw.percent.map(|percent| u64::from(percent) * 10_000);
                let from_fraction = raw.fraction.map(|fraction| {
                    let denominator = u64::from(fraction.denominator.unwrap_or(100)).max(1);
                    u64::from(fraction.numerator) * 1_000_000 / denominator
                });
                let share = from_percent.or(from_fraction).unwrap_or(1_000_000).min(1_000_000);
                let backend =
                    self.backend(&raw.backend_ref, &format!("{path}.requestMirror.backendRef"));
                let mirror =
                    backend.map(|destination| Mirror { destination, per_million: share as u32 });
                let mut all = rule.mirrors.take().unwrap_or_default().into_vec();
                all.extend(mirror.filter(|mirror| mirror.per_million > 0));
                rule.mirrors = Some(all.into());
            }
            RawFilter { cors: Some(raw), .. } => {
                rule.cors = Some(Box::new(self.cors(raw, path, refused)));
            }
            // An unsupported filter must not be skipped.
            RawFilter { r#type, .. } => {
                let supported = "RequestHeaderModifier, ResponseHeaderModifier, RequestRedirect, URLRewrite, RequestMirror, CORS";
                let text = format!(
                    "{type:?} is not a supported filter; use {supported}, each with its field"
                );
                self.refuse(refused, path, &text);
            }
        }
    }

    fn redirect(&mut self, raw: RawRedirectFilter, path: &str, refused: &mut bool) -> RedirectRule {
        let status = raw.status_code.unwrap_or(302);
        if ![301, 302, 303, 307, 308].contains(&status) {
            self.refuse(
                refused,
                path,
                &format!(
                    "{status} is not valid; use 301, 302, 303, 307 or \
                                                 308"
                ),
            );
        }
        if !*refused && raw.is_without_change() {
            let text = "changes no part of the URL: clients follow it endlessly";
            let path = format!("{path}.requestRedirect");
            self.reasons.push(Reason::warning(&codes::ROUTE_PART_LOST, path, text));
        }
        let port = match (raw.port, &raw.scheme) {
            (Some(port), _) => RedirectPort::Number(port),
            (None, Some(_)) => RedirectPort::SchemeDefault,
            (None, None) => RedirectPort::FromRequest,
        };
        let path = self.replaced(raw.path, &format!("{path}.requestRedirect.path"), refused);
        RedirectRule { path, authority: raw.hostname, scheme: raw.scheme, port, status }
    }

    /// Parses a path modifier. An invalid one refuses the rule, and the path stays unchanged.
    fn replaced(
        &mut self,
        raw: Option<RawPathModifier>,
        path: &str,
        refused: &mut bool,
    ) -> RedirectPath {
        let replaced = raw.map(RawPathModifier::read).transpose();
        let replaced = replaced.unwrap_or_else(|fact| {
            self.refuse(refused, path, &fact);
            None
        });
        replaced.unwrap_or(RedirectPath::Unchanged)
    }

    fn cors(&mut self, raw: RawCorsFilter, path: &str, refused: &mut bool) -> CrossOrigin {
        let origins = raw.allow_origins.into_iter().map(|origin| match origin.split_once('*') {
            None => TextMatch::Exact(origin),
            Some((before, after)) => {
                let text = format!("{}.*{}", re2::escaped(before), re2::escaped(after));
                TextMatch::Regex(text.into())
            }
        });
        let origins = origins.collect();
        let mut joined = |list: Vec<String>| -> Arc<str> {
            let text = list.join(",");
            if !is_text(&text) {
                self.refuse(refused, path, "contains control characters");
                return Arc::default();
            }
            text.into()
        };
        let cors = CrossOrigin {
            origins,
            methods: joined(raw.allow_methods),
            headers: joined(raw.allow_headers),
            expose: joined(raw.expose_headers),
            max_age: Some(std::time::Duration::from_secs(raw.max_age.unwrap_or(5))),
            credentials: raw.allow_credentials,
            answers_all_preflights: true,
        };
        for field in cors.literal_stars() {
            let path = format!("{path}.cors.{field}");
            self.reasons.push(Reason::lost(
                &codes::ROUTE_PART_LOST,
                path,
                CrossOrigin::LITERAL_STAR,
            ));
        }
        cors
    }

    /// Parses header changes. For requests, `host` receives a new value of the host header.
    pub(super) fn edits(
        &mut self,
        raw: RawHeaderFilter,
        path: &str,
        refused: &mut bool,
        mut host: Option<&mut Option<Arc<str>>>,
    ) -> HeaderEdits {
        let is_response = host.is_none();
        let mut pairs = |this: &mut Self, list: Vec<RawNamedValue>| {
            let mut changes = BTreeMap::<Arc<str>, Arc<str>>::new();
            for header in list {
                let name = header.name.to_ascii_lowercase();
                if is_response && name == "server" {
                    let text = "proxies set the header \"server\" themselves: it does not change";
                    this.reasons.push(Reason::lost(&codes::ROUTE_PART_LOST, path, text));
                }
                match &mut host {
                    Some(host) if name == "host" => **host = Some(header.value),
                    _ if name == "host" || !is_header_name(&name) || !is_text(&header.value) => {
                        this.refuse(refused, path, &format!("{name:?} is not a valid header"));
                    }
                    // Envoy's operators (`%REQ(x)%`) work as in other gateways. Any other value is
                    // literal.
                    _ => {
                        let is_format = command_operators::check(&header.value).is_ok();
                        let escaped = || header.value.replace('%', "%%").into();
                        let value = if is_format { header.value.clone() } else { escaped() };
                        changes.entry(name.into()).or_insert(value);
                    }
                }
            }
            changes.into_iter().collect()
        };
        let set = pairs(self, raw.set);
        let add = pairs(self, raw.add);
        let names = raw.remove.iter().map(|name| name.to_ascii_lowercase());
        let (remove, kept): (Vec<String>, Vec<String>) =
            names.partition(|name| is_header_name(name) && name != "host");
        for name in remove.iter().filter(|name| is_response && is_set_by_proxies(name)) {
            let text = format!("proxies set the header {name:?} themselves: it stays");
            self.reasons.push(Reason::lost(&codes::ROUTE_PART_LOST, path, text));
        }
        for name in kept {
            let text = format!("Envoy cannot remove the header {name:?}: it stays");
            self.reasons.push(Reason::lost(&codes::ROUTE_PART_LOST, path, text));
        }
        HeaderEdits { set, add, remove: remove.into_iter().map(Arc::from).collect() }
    }
}
