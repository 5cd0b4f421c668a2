//! Settings of a rule that have no effect because of their value or of other settings.

use super::*;

impl Reader<'_> {
    /// Reports the settings of a rule without effect.
    pub(super) fn settings_without_effect(&mut self, raw: &RawHttpRule, path: &str) {
        let is_zero =
            |share: &Option<RawPercent>| share.as_ref().is_some_and(|share| share.value == 0.0);
        let abort = raw.fault.as_ref().and_then(|fault| fault.abort.as_ref());
        if abort.is_some_and(|abort| is_zero(&abort.percentage)) {
            let path = format!("{path}.fault.abort.percentage");
            self.lost(&path, "is 0: no request is aborted");
        }
        let delay = raw.fault.as_ref().and_then(|fault| fault.delay.as_ref());
        if delay.is_some_and(|delay| is_zero(&delay.percentage)) {
            let path = format!("{path}.fault.delay.percentage");
            self.lost(&path, "is 0: no request is delayed");
        }
        for (field, is_set, is_zero) in [
            ("mirrorPercentage", raw.mirror_percentage.is_some(), is_zero(&raw.mirror_percentage)),
            (
                "mirrorPercent",
                raw.mirror_percent.is_some() && raw.mirror_percentage.is_none(),
                raw.mirror_percent == Some(0),
            ),
        ] {
            let path = format!("{path}.{field}");
            if is_set && raw.mirror.is_none() {
                self.lost(&path, "has no effect without mirror");
            } else if is_set && is_zero {
                self.lost(&path, "is 0: no request is mirrored");
            }
        }
        for (at, mirror) in raw.mirrors.iter().enumerate() {
            if is_zero(&mirror.percentage) {
                let path = format!("{path}.mirrors[{at}].percentage");
                self.lost(&path, "is 0: no request is mirrored");
            }
        }
        let cors = raw.cors_policy.as_ref();
        if cors.is_some_and(|cors| cors.allow_origins.is_empty() && cors.allow_origin.is_empty()) {
            let path = format!("{path}.corsPolicy.allowOrigins");
            self.lost(&path, "is empty: the policy allows no origin");
        }
        for (at, request) in raw.r#match.iter().enumerate() {
            if request.ignore_uri_case && request.uri.is_none() {
                let path = format!("{path}.match[{at}].ignoreUriCase");
                self.lost(&path, "has no effect without uri");
            }
        }
        for (field, authority) in [
            ("rewrite", raw.rewrite.as_ref().map(|rewrite| &rewrite.authority)),
            ("redirect", raw.redirect.as_ref().map(|redirect| &redirect.authority)),
        ] {
            // Envoy sends these characters as they are.
            let is_other = |one: char| one == ' ' || "/?#@\\<>\"".contains(one);
            if let Some(authority) = authority.filter(|authority| authority.contains(is_other)) {
                let path = format!("{path}.{field}.authority");
                let text = format!("{authority:?} is not a host: servers reject such requests");
                self.lost(&path, &text);
            }
        }
    }

    /// Reports a timeout of tries that the timeout of the whole request precedes.
    pub(super) fn late_try_timeout(&mut self, rule: &RuleTerms, path: &str) {
        let per_try = rule.retries.as_ref().and_then(|retries| retries.per_try_timeout);
        let whole = rule.timeout.filter(|timeout| !timeout.is_zero());
        if per_try.zip(whole).is_some_and(|(per_try, whole)| per_try > whole) {
            let text = "is longer than the timeout of the rule, which ends the request first";
            self.lost(&format!("{path}.retries.perTryTimeout"), text);
        }
    }
}
