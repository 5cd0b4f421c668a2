//! Conditions of a rule on requests.

use super::*;

impl Reader<'_> {
    pub(super) fn request(&mut self, raw: RawRequestMatch, path: &str) -> RequestMatch {
        let mut refused = false;
        let uri = raw.uri.and_then(|raw| self.uri(raw, &format!("{path}.uri"), &mut refused));
        let mut text = |this: &mut Self, raw: Option<RawTextMatch>, field: &str| {
            this.text(raw?, &format!("{path}.{field}"), &mut refused)
        };
        let method = text(self, raw.method, "method");
        let authority = text(self, raw.authority, "authority");
        let scheme = text(self, raw.scheme, "scheme");
        self.never(uri.as_ref().and_then(PathMatch::never), &format!("{path}.uri"));
        self.never(method.as_ref().and_then(TextMatch::never_as_method), &format!("{path}.method"));
        let of_host = authority.as_ref().and_then(TextMatch::never_as_host);
        self.never(of_host, &format!("{path}.authority"));
        let field = format!("{path}.headers");
        let (claims, headers) = divided(raw.headers);
        let claims = self.claims(claims, &field, &mut refused);
        let headers = self.named(headers, &field, true, &mut refused);
        let field = format!("{path}.withoutHeaders");
        let (without_claims, without_headers) = divided(raw.without_headers);
        let without_claims = self.claims(without_claims, &field, &mut refused);
        let without_headers = self.named(without_headers, &field, true, &mut refused);
        let doubled = |(_, text): &&(Arc<str>, TextMatch)| text.takes_empty() && !text.takes_all();
        if without_headers.iter().filter(doubled).count() > WITHOUT_EMPTY_MAX {
            let text = format!(
                "more than {WITHOUT_EMPTY_MAX} patterns match the empty text, and each doubles the \
                 number of routes"
            );
            self.refuse_condition(&mut refused, &field, &text);
        }
        let query =
            self.named(raw.query_params, &format!("{path}.queryParams"), false, &mut refused);
        let port = self.port(raw.port, &format!("{path}.port"));
        let more = RareConditions {
            name: raw.name,
            without_headers,
            claims,
            without_claims,
            method,
            authority,
            scheme,
            query,
            source: source(
                self.namespace,
                &raw.gateways,
                &raw.source_labels,
                &raw.source_namespace,
            ),
            stat_prefix: raw.stat_prefix,
        };
        RequestMatch {
            path: uri,
            ignore_case: raw.ignore_uri_case,
            headers,
            // An invalid port matches nothing.
            port,
            refused,
            more: more.into(),
        }
    }

    /// Parses conditions on claims, which are written like header names.
    pub(super) fn claims(
        &mut self,
        raw: BTreeMap<String, RawTextMatch>,
        path: &str,
        refused: &mut bool,
    ) -> Box<[(ClaimPath, TextMatch)]> {
        let mut all = BTreeMap::new();
        for (name, raw) in raw {
            let path = format!("{path}[{name}]");
            match claim_path(&name) {
                Ok(claim) => {
                    let text = self.text(raw, &path, refused);
                    all.extend(text.map(|text| (claim, text)));
                }
                Err(fact) => self.refuse_condition(refused, &path, fact),
            }
        }
        all.into_iter().collect()
    }

    /// Reports conditions on claims in rules for sidecars, which do not know claims.
    pub(in super::super) fn claims_at_sidecars(&mut self, rule: &HttpRule, path: &str) {
        for (at, request) in rule.matches.iter().enumerate() {
            let gateways = &request.source.gateways;
            let is_for_mesh = gateways.is_empty() || gateways.iter().any(|name| **name == *MESH);
            if request.looks_at_claims() && is_for_mesh {
                let path = format!("{path}.match[{at}]");
                let text = "claims of tokens are known only at gateways; at sidecars, requests \
                            that match the other conditions are answered with 500";
                self.lost(&path, text);
            }
        }
    }

    pub(super) fn refuse_condition(&mut self, refused: &mut bool, path: &str, text: &str) {
        *refused = true;
        let text = format!("{text}; {ABSENT}");
        self.note(&codes::MATCH_REFUSED, path, &text);
    }

    /// Reports a condition that no request meets, for this reason.
    fn never(&mut self, fact: Option<impl std::fmt::Display>, path: &str) {
        if let Some(fact) = fact {
            self.note(&codes::MATCH_NEVER, path, &format!("{fact}; no request matches it"));
        }
    }

    /// Reports a condition with several values. Only the first applies. API servers reject it, but
    /// files may contain it.
    pub(super) fn note_ambiguous(&mut self, raw: &RawTextMatch, path: &str) {
        if raw.is_ambiguous() {
            let text = "has several of exact, prefix and regex: the first of these applies";
            self.lost(path, text);
        }
    }

    pub(super) fn uri(
        &mut self,
        raw: RawTextMatch,
        path: &str,
        refused: &mut bool,
    ) -> Option<PathMatch> {
        self.note_ambiguous(&raw, path);
        match raw {
            RawTextMatch { exact: Some(text), .. } => Some(PathMatch::Exact(text)),
            RawTextMatch { prefix: Some(text), .. } => {
                if text.is_empty() {
                    let text = "is empty and matches every path: the condition has no effect";
                    self.lost(&format!("{path}.prefix"), text);
                }
                Some(PathMatch::Prefix(text))
            }
            RawTextMatch { regex: Some(text), .. } => {
                if let Err(fact) = self.regex(&text, path) {
                    self.refuse_condition(
                        refused,
                        &format!("{path}.regex"),
                        &format!("{text:?} {fact}"),
                    );
                    return None;
                }
                Some(PathMatch::Regex(text))
            }
            RawTextMatch { .. } => None,
        }
    }

    /// Parses a condition on a text. An empty condition and the expression `*` require only that it
    /// is present.
    pub(super) fn text(
        &mut self,
        raw: RawTextMatch,
        path: &str,
        refused: &mut bool,
    ) -> Option<TextMatch> {
        self.note_ambiguous(&raw, path);
        match raw {
            RawTextMatch { exact: Some(text), .. } if is_text(&text) => {
                Some(TextMatch::Exact(text))
            }
            RawTextMatch { prefix: Some(text), .. } if is_text(&text) && !text.is_empty() => {
                Some(TextMatch::Prefix(text))
            }
            RawTextMatch { exact: Some(text), .. } | RawTextMatch { prefix: Some(text), .. } => {
                self.refuse_condition(
                    refused,
                    path,
                    &format!("{text:?} is empty or contains control characters"),
                );
                None
            }
            RawTextMatch { regex: Some(text), .. } if &*text == "*" => Some(TextMatch::Present),
            RawTextMatch { regex: Some(text), .. } => match self.regex(&text, path) {
                Ok(_) => Some(TextMatch::Regex(text)),
                Err(fact) => {
                    self.refuse_condition(
                        refused,
                        &format!("{path}.regex"),
                        &format!("{text:?} {fact}"),
                    );
                    None
                }
            },
            RawTextMatch { .. } => Some(TextMatch::Present),
        }
    }

    pub(super) fn named(
        &mut self,
        raw: BTreeMap<String, RawTextMatch>,
        path: &str,
        are_headers: bool,
        refused: &mut bool,
    ) -> Box<[(Arc<str>, TextMatch)]> {
        let mut all = BTreeMap::new();
        for (name, raw) in raw {
            let path = format!("{path}[{name}]");
            let is_valid = if are_headers {
                is_header_name(name.strip_prefix(':').unwrap_or(&name))
            } else {
                !name.is_empty() && name.len() <= QUERY_NAME_MAX
            };
            if !is_valid {
                self.refuse_condition(refused, &path, "cannot be a name in a request");
                continue;
            }
            let name = if are_headers { name.to_ascii_lowercase() } else { name };
            if let Some(found) = self.text(raw, &path, refused) {
                all.insert(name.into(), found);
            }
        }
        all.into_iter().collect()
    }
}
