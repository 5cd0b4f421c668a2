//! Delegation: rules of a delegate that replace a rule (docs/reference/traffic.md, "Delegation").

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::object::Reason;
use super::super::route::{
    HttpRoutes, HttpRule, PathMatch, RareConditions, RareTerms, RequestMatch, RulePlace, RuleTerms,
    SourceMatch, TextMatch,
};
use super::bound::{JOINED_MAX, ROUTED_BYTES_MAX, megabytes};
use super::http::leave_out_faulty;
use super::{Delegate, VirtualService};
use strait_base::codes;
use strait_model::Labels;

impl VirtualService {
    /// Returns the HTTP rules and the reasons to report to the owner. Delegating rules are replaced
    /// by the rules of their delegates. If a delegate does not exist or is not exported to the
    /// object's namespace, its rule is removed.
    pub fn routes<'a>(
        &self,
        find: impl Fn(&Delegate) -> Option<&'a Self>,
    ) -> (HttpRoutes, Vec<Reason>) {
        let origin = Arc::clone(&self.origin);
        if self.delegates.is_empty() {
            return (HttpRoutes { origin, rules: Arc::clone(&self.http) }, Vec::new());
        }
        let (mut rules, mut reasons) = (Vec::new(), Vec::new());
        let for_all_hosts = ROUTED_BYTES_MAX / self.hosts.len().max(1);
        let own =
            self.lengths.iter().enumerate().filter(|(at, _)| !self.delegates.contains_key(at));
        let (mut bytes, mut pairs) = (own.map(|(_, rule)| rule.routed()).sum::<usize>(), 0);
        for (at, rule) in self.http.iter().enumerate() {
            let path = format!("spec.http[{at}].delegate");
            let Some(name) = self.delegates.get(&at) else {
                rules.push(rule.clone());
                continue;
            };
            let visible = |found: &&Self| {
                found.hosts.is_empty()
                    && (found.meta.namespace == self.meta.namespace
                        || found.export_to.visible_to(&self.meta.namespace))
            };
            let Some(delegate) = find(name).filter(visible) else {
                let text = format!(
                    "there is no VirtualService {}/{} without hosts that is exported to {}: the \
                     rule is left out",
                    name.namespace, name.name, self.meta.namespace
                );
                reasons.push(Reason::lost(&codes::DELEGATE_MISSING, path, text));
                continue;
            };
            let mut with_its = [bytes, pairs];
            if let Some(length) = self.lengths.get(at) {
                for its in &delegate.lengths {
                    with_its[0] = with_its[0].saturating_add(length.joined(its));
                    with_its[1] += length.count * its.count;
                }
            }
            if with_its[0] > for_all_hosts || with_its[1] > JOINED_MAX {
                let text = format!(
                    "with the rules of {}, the rules of all delegates exceed {} for all hosts, or \
                     {JOINED_MAX} pairs of conditions: the rule is left out",
                    delegate.meta,
                    megabytes(ROUTED_BYTES_MAX)
                );
                reasons.push(Reason::lost(&codes::ROUTES_SURPLUS, path, text));
                continue;
            }
            [bytes, pairs] = with_its;
            for (position, its) in
                delegate.http.iter().enumerate().filter(|(_, its)| !its.is_absent)
            {
                if delegate.delegates.contains_key(&position) {
                    let text = format!(
                        "spec.http[{position}] of {} delegates too, which is not supported: it is left \
                         out",
                        delegate.meta
                    );
                    reasons.push(Reason::lost(&codes::DELEGATE_CONFLICT, &path, text));
                    continue;
                }
                let joined = merged(rule, its);
                for unmatched in joined.iter().flat_map(|_| without_partner(rule, its)) {
                    let text = format!(
                        "no request can match both this rule and spec.http[{position}].match[{unmatched}] of \
                         {}: that match is left out",
                        delegate.meta
                    );
                    reasons.push(Reason::lost(&codes::DELEGATE_CONFLICT, &path, text));
                }
                match joined {
                    Some(mut merged) => {
                        let via = Some(rule.place.index);
                        let index = its.place.index;
                        let origin = Some(Arc::clone(&delegate.origin));
                        merged.place = RulePlace { index, origin, via, path: None };
                        leave_out_faulty(&mut merged);
                        rules.push(merged);
                    }
                    None => {
                        let text = format!(
                            "no request can match both this rule and spec.http[{position}] of {}: that \
                             rule is left out",
                            delegate.meta
                        );
                        reasons.push(Reason::lost(&codes::DELEGATE_CONFLICT, &path, text));
                    }
                }
            }
        }
        (HttpRoutes { origin, rules: rules.into() }, reasons)
    }
}

/// Returns the indexes of the matches of a delegate's rule that are compatible with no match of the
/// root.
fn without_partner(root: &HttpRule, its: &HttpRule) -> Vec<usize> {
    let is_alone =
        |its: &RequestMatch| root.matches.iter().all(|root| intersect(root, its).is_none());
    let all = its.matches.iter().enumerate().filter(|_| !root.matches.is_empty());
    all.filter(|(_, its)| is_alone(its)).map(|(at, _)| at).collect()
}

/// Combines a rule with a rule of the delegate; `None` if no request can satisfy both.
fn merged(root: &HttpRule, its: &HttpRule) -> Option<HttpRule> {
    let matches: Vec<RequestMatch> = match (root.matches.is_empty(), its.matches.is_empty()) {
        (true, _) => its.matches.to_vec(),
        (false, true) => root.matches.to_vec(),
        (false, false) => {
            let both =
                its.matches.iter().flat_map(|its| root.matches.iter().map(move |root| (root, its)));
            let both: Vec<_> = both.filter_map(|(root, its)| intersect(root, its)).collect();
            if both.is_empty() {
                return None;
            }
            both
        }
    };
    let joined = joined(&root.name, &its.name);
    let more = RareTerms {
        name: joined,
        redirect: its.redirect.clone(),
        response: its.response.clone(),
        rewrite: its.rewrite.clone().or_else(|| root.rewrite.clone()),
        fault: its.fault.clone().or_else(|| root.fault.clone()),
        mirrors: its.mirrors.clone().or_else(|| root.mirrors.clone()),
        cors: its.cors.clone().or_else(|| root.cors.clone()),
        headers: its.headers.clone().or_else(|| root.headers.clone()),
    };
    let terms = RuleTerms {
        matches: matches.into(),
        timeout: its.timeout.or(root.timeout),
        retries: its.retries.clone().or_else(|| root.retries.clone()),
        refused: root.refused || its.refused,
        is_absent: false,
        is_strict: root.is_strict || its.is_strict,
        more: more.into(),
    };
    Some(HttpRule { destinations: its.destinations.clone(), ..terms.into() })
}

fn joined(root: &Arc<str>, its: &Arc<str>) -> Arc<str> {
    match (root.is_empty(), its.is_empty()) {
        (false, false) => format!("{root}-{its}").into(),
        (true, _) => Arc::clone(its),
        (false, true) => Arc::clone(root),
    }
}

/// Combines two matches; `None` if no request can satisfy both.
fn intersect(root: &RequestMatch, its: &RequestMatch) -> Option<RequestMatch> {
    let path = match (&root.path, &its.path) {
        (Some(root), Some(its)) if !paths_agree(root, its) => return None,
        (root, its) => its.clone().or_else(|| root.clone()),
    };
    if root.path.is_some() && its.path.is_some() && root.ignore_case != its.ignore_case {
        return None;
    }
    let port = match (root.port, its.port) {
        (Some(root), Some(its)) if root != its => return None,
        (root, its) => its.or(root),
    };
    let more = RareConditions {
        name: joined(&root.name, &its.name),
        without_headers: named(&root.without_headers, &its.without_headers)?,
        claims: named(&root.claims, &its.claims)?,
        without_claims: named(&root.without_claims, &its.without_claims)?,
        method: text(root.method.as_ref(), its.method.as_ref())?,
        authority: text(root.authority.as_ref(), its.authority.as_ref())?,
        scheme: text(root.scheme.as_ref(), its.scheme.as_ref())?,
        query: named(&root.query, &its.query)?,
        source: sources(&root.source, &its.source)?,
        stat_prefix: Arc::clone(if its.stat_prefix.is_empty() {
            &root.stat_prefix
        } else {
            &its.stat_prefix
        }),
    };
    Some(RequestMatch {
        path,
        ignore_case: root.ignore_case || its.ignore_case,
        headers: named(&root.headers, &its.headers)?,
        port,
        refused: root.refused || its.refused,
        more: more.into(),
    })
}

fn paths_agree(root: &PathMatch, its: &PathMatch) -> bool {
    match (root, its) {
        (PathMatch::Prefix(root), PathMatch::Prefix(its) | PathMatch::Exact(its)) => {
            its.starts_with(&**root)
        }
        // The intersection of two expressions is unknown and cannot be expressed.
        (root, its) => root == its && !matches!(root, PathMatch::Regex(_)),
    }
}

/// Returns the condition of the delegate if both have one; `None` if the two contradict each other.
fn text(root: Option<&TextMatch>, its: Option<&TextMatch>) -> Option<Option<TextMatch>> {
    match (root, its) {
        (Some(root), Some(its)) if !texts_agree(root, its) => None,
        (root, its) => Some(its.or(root).cloned()),
    }
}

fn texts_agree(root: &TextMatch, its: &TextMatch) -> bool {
    match (root, its) {
        (TextMatch::Present, _) => true,
        (TextMatch::Prefix(root), TextMatch::Prefix(its) | TextMatch::Exact(its)) => {
            its.starts_with(&**root)
        }
        (root, its) => root == its && !matches!(root, TextMatch::Regex(_)),
    }
}

type NamedMatches<N> = Box<[(N, TextMatch)]>;

fn named<N: Ord + Clone>(root: &NamedMatches<N>, its: &NamedMatches<N>) -> Option<NamedMatches<N>> {
    let mut all: BTreeMap<N, TextMatch> = root.iter().cloned().collect();
    for (name, its) in its {
        let both = text(all.get(name), Some(its))?;
        all.extend(both.map(|both| (name.clone(), both)));
    }
    Some(all.into_iter().collect())
}

fn sources(root: &SourceMatch, its: &SourceMatch) -> Option<SourceMatch> {
    let namespace = match (&root.namespace, &its.namespace) {
        (Some(root), Some(its)) if root != its => return None,
        // Without a condition, the delegate inherits that of the root.
        (root, its) => its.clone().or_else(|| root.clone()),
    };
    let within = |name: &Arc<str>| root.gateways.is_empty() || root.gateways.contains(name);
    if !its.gateways.iter().all(within) {
        return None;
    }
    let labels = match (&root.labels, &its.labels) {
        (Some(root), Some(its)) => {
            let contradicts = |(key, value): (&Arc<str>, &Arc<str>)| {
                root.get(key).is_some_and(|other| other != value)
            };
            if its.iter().any(contradicts) {
                return None;
            }
            let both: Labels = root
                .iter()
                .chain(its.iter())
                .map(|(key, value)| (Arc::clone(key), Arc::clone(value)))
                .collect();
            Some(Arc::new(both))
        }
        (root, its) => its.clone().or_else(|| root.clone()),
    };
    let gateways = if its.gateways.is_empty() { &root.gateways } else { &its.gateways };
    Some(SourceMatch { gateways: gateways.clone(), labels, namespace })
}
