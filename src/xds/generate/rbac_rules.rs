//! Rules of policies as Envoy matches them, encoded once for each policy and shared by all workloads that enforce it.
//!
//! What is kept of a policy in one form is made of the policy, the trust domains of the mesh, and of how many rules say
//! which tokens a workload believes; nothing else goes into it. It is kept for as long as the policy is in force.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use ipnet::IpNet;
use prost::Message;
use prost::encoding::WireType::LengthDelimited;
use prost::encoding::{encode_key, encode_varint, encoded_len_varint, int32, key_len};
use strait_proto::envoy::envoy::config::core::v3::{CidrRange, TypedExtensionConfig};
use strait_proto::envoy::envoy::config::rbac::v3 as rbac;
use strait_proto::envoy::envoy::config::route::v3::{HeaderMatcher, header_matcher};
use strait_proto::envoy::envoy::extensions::path::r#match::uri_template::v3::UriTemplateMatchConfig;
use strait_proto::envoy::envoy::r#type::matcher::v3 as matcher;
use strait_proto::envoy::google::protobuf::UInt32Value;

use super::any;
use super::cache_table::{CacheTable, CacheValue};
use crate::access::{
    AccessPolicies, Atom, AuthorizationPolicy, EnforcedPolicy, MatchedClause, RuleMatcher,
    TextPart, TextPattern, TrustBundle, WireForm, rule_matchers,
};
use crate::model::WorkloadKey;

/// The rules of policies, by the policy's name, the form, and how many rules say which tokens are believed.
#[derive(Debug, Default)]
pub(super) struct EncodedPolicies(
    CacheTable<(WorkloadKey, WireForm, usize), PolicyInputs, Arc<EncodedPolicy>>,
);

/// What the rules of a policy are encoded from, besides the key.
#[derive(Debug, Clone)]
struct PolicyInputs {
    policy: Arc<AuthorizationPolicy>,
    trust: TrustBundle,
}

impl PartialEq for PolicyInputs {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.policy, &other.policy) && self.trust == other.trust
    }
}

impl CacheValue for Arc<EncodedPolicy> {}

/// The rules of one policy in one form.
#[derive(Debug)]
pub(super) struct EncodedPolicy {
    /// Each by its key, with where it stands in `text`.
    rules: Box<[(Box<str>, Range<u32>)]>,
    /// Messages of `envoy.config.rbac.v3.Policy`, one after the other.
    text: Box<[u8]>,
    looks_at_paths: bool,
}

/// A rule, ready to be written.
#[derive(Debug, Clone)]
pub(super) struct EncodedRule {
    /// How its key ends besides.
    key_end: &'static str,
    policy: Arc<EncodedPolicy>,
    place: usize,
}

/// How the rules of a workload are made ready.
pub(super) struct RuleEncoder<'a> {
    pub(super) kept: &'a EncodedPolicies,
    pub(super) trust: &'a TrustBundle,
    /// How many rules say which tokens it believes.
    pub(super) token_rules: usize,
}

impl RuleEncoder<'_> {
    /// The rules of a policy.
    pub(super) fn rules(&self, enforced: EnforcedPolicy<'_>, form: WireForm) -> Vec<EncodedRule> {
        let EnforcedPolicy { policy, key_end } = enforced;
        let key = (policy.name.clone(), form, self.token_rules);
        let inputs = PolicyInputs { policy: Arc::clone(policy), trust: self.trust.clone() };
        let policy = self.kept.0.get_or_make(key, inputs, || {
            Arc::new(EncodedPolicy::of(&rule_matchers(policy, form, self.trust, self.token_rules)))
        });
        let places = 0..policy.rules.len();
        places.map(|place| EncodedRule { key_end, policy: Arc::clone(&policy), place }).collect()
    }
}

impl EncodedPolicies {
    /// Lets go of what is of policies that are in force no more.
    pub(super) fn sweep(&self, policies: &AccessPolicies) {
        let held: HashSet<_> = policies.authorizations().map(Arc::as_ptr).collect();
        self.0.sweep(|inputs| held.contains(&Arc::as_ptr(&inputs.policy)));
    }
}

impl EncodedPolicy {
    fn of(matchers: &[RuleMatcher]) -> Self {
        let mut text = Vec::new();
        let encoded = |rule: &RuleMatcher| {
            let start = place(&text);
            policy(rule).encode(&mut text).expect("a vector takes any number of bytes");
            (rule.key.as_str().into(), start..place(&text))
        };
        Self {
            rules: matchers.iter().map(encoded).collect(),
            looks_at_paths: matchers.iter().any(RuleMatcher::looks_at_paths),
            text: text.into(),
        }
    }
}

fn place(text: &[u8]) -> u32 {
    u32::try_from(text.len()).expect("an object has less than 4 GiB")
}

impl EncodedRule {
    /// Whether its policy looks at paths.
    pub(super) fn looks_at_paths(&self) -> bool {
        self.policy.looks_at_paths
    }

    fn key(&self) -> &str {
        self.policy.rules.get(self.place).map_or("", |(key, _)| key)
    }

    /// The key without what comes before it in a filter.
    fn sort_key(&self) -> (&str, &str) {
        (self.key(), self.key_end)
    }

    fn text(&self) -> &[u8] {
        let range = self.policy.rules.get(self.place).map_or(0..0, |(_, range)| range.clone());
        self.policy.text.get(range.start as usize..range.end as usize).unwrap_or_default()
    }
}

/// A message of `envoy.config.rbac.v3.RBAC` whose rules have keys that begin with `prefix`, in the order of their keys: equal
/// rules make equal bytes. `None` where nothing comes of it: without rules, what allows lets in nobody.
pub(super) fn rbac_of(
    action: rbac::rbac::Action,
    prefix: &str,
    rules: &[EncodedRule],
) -> Option<Vec<u8>> {
    if rules.is_empty() && action != rbac::rbac::Action::Allow {
        return None;
    }
    let mut sorted: Vec<_> = rules.iter().collect();
    // They nearly always are.
    sorted.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
    let entries = sorted.into_iter().map(|rule| {
        let key_length = prefix.len() + rule.key().len() + rule.key_end.len();
        let text = rule.text();
        let length = field_length(1, key_length) + field_length(2, text.len());
        (rule, text, key_length, length)
    });
    let entries: Vec<_> = entries.collect();
    let mut out = Vec::with_capacity(
        16 + entries.iter().map(|(.., length)| field_length(2, *length)).sum::<usize>(),
    );
    if action != rbac::rbac::Action::default() {
        int32::encode(1, &action.into(), &mut out);
    }
    for (rule, text, key_length, length) in entries {
        begin(2, length, &mut out);
        begin(1, key_length, &mut out);
        for part in [prefix, rule.key(), rule.key_end] {
            out.extend_from_slice(part.as_bytes());
        }
        begin(2, text.len(), &mut out);
        out.extend_from_slice(text);
    }
    Some(out)
}

/// How many bytes a field takes whose content has so many.
fn field_length(tag: u32, content: usize) -> usize {
    key_len(tag) + encoded_len_varint(content as u64) + content
}

/// Begins a field whose content has so many bytes.
fn begin(tag: u32, content: usize, out: &mut Vec<u8>) {
    encode_key(tag, LengthDelimited, out);
    encode_varint(content as u64, out);
}

fn policy(rule: &RuleMatcher) -> rbac::Policy {
    let anything = permission(rbac::permission::Rule::Any(true));
    let anybody = principal(rbac::principal::Identifier::Any(true));
    if rule.never {
        return matching_never();
    }
    let permissions = rule.operations.iter().map(|clauses| {
        let rules: Vec<_> = clauses.iter().map(permission_of).collect();
        let rules = if rules.is_empty() { vec![anything.clone()] } else { rules };
        permission(rbac::permission::Rule::AndRules(rbac::permission::Set { rules }))
    });
    let principals = rule.sources.iter().map(|clauses| {
        let ids: Vec<_> = clauses.iter().map(principal_of).collect();
        let ids = if ids.is_empty() { vec![anybody.clone()] } else { ids };
        principal(rbac::principal::Identifier::AndIds(rbac::principal::Set { ids }))
    });
    rbac::Policy {
        permissions: permissions.collect(),
        principals: principals.collect(),
        ..Default::default()
    }
}

/// What matches nothing.
pub(super) fn matching_never() -> rbac::Policy {
    let anything = permission(rbac::permission::Rule::Any(true));
    let anybody = principal(rbac::principal::Identifier::Any(true));
    rbac::Policy {
        permissions: vec![permission(rbac::permission::Rule::NotRule(Box::new(anything)))],
        principals: vec![principal(rbac::principal::Identifier::NotId(Box::new(anybody)))],
        ..Default::default()
    }
}

pub(super) fn permission(rule: rbac::permission::Rule) -> rbac::Permission {
    rbac::Permission { rule: Some(rule) }
}

pub(super) fn principal(identifier: rbac::principal::Identifier) -> rbac::Principal {
    rbac::Principal { identifier: Some(identifier) }
}

fn permission_of(clause: &MatchedClause) -> rbac::Permission {
    use rbac::permission::{Rule, Set};
    let any = clause.any.iter().map(|atoms| {
        let mut rules: Vec<_> = atoms.iter().map(|atom| permission(permitted(atom))).collect();
        match rules.pop() {
            Some(only) if rules.is_empty() => only,
            last => {
                rules.extend(last);
                permission(Rule::AndRules(Set { rules }))
            }
        }
    });
    let rules: Vec<_> = any.collect();
    let any = if rules.is_empty() {
        permission(Rule::NotRule(Box::new(permission(Rule::Any(true)))))
    } else {
        permission(Rule::OrRules(Set { rules }))
    };
    if clause.negated { permission(Rule::NotRule(Box::new(any))) } else { any }
}

fn principal_of(clause: &MatchedClause) -> rbac::Principal {
    use rbac::principal::{Identifier, Set};
    let any = clause.any.iter().map(|atoms| {
        let mut ids: Vec<_> = atoms.iter().map(|atom| principal(identified(atom))).collect();
        match ids.pop() {
            Some(only) if ids.is_empty() => only,
            last => {
                ids.extend(last);
                principal(Identifier::AndIds(Set { ids }))
            }
        }
    });
    let ids: Vec<_> = any.collect();
    let any = if ids.is_empty() {
        principal(Identifier::NotId(Box::new(principal(Identifier::Any(true)))))
    } else {
        principal(Identifier::OrIds(Set { ids }))
    };
    if clause.negated { principal(Identifier::NotId(Box::new(any))) } else { any }
}

/// An atom about what is called. One that is about who calls is never among these, and matches nothing.
fn permitted(atom: &Atom) -> rbac::permission::Rule {
    use rbac::permission::Rule;
    match atom {
        Atom::Header(name, pattern) => Rule::Header(header(name, Some(pattern))),
        Atom::HeaderNowhere(name, pattern) => {
            let there = Rule::Header(header(name, Some(pattern)));
            Rule::NotRule(Box::new(permission(there)))
        }
        Atom::HeaderPresent(name) => Rule::Header(header(name, None)),
        Atom::Path(pattern) => Rule::UrlPath(path(pattern)),
        Atom::PathTemplate(template) => Rule::UriTemplate(TypedExtensionConfig {
            name: "uri-template".into(),
            typed_config: Some(any(&UriTemplateMatchConfig { path_template: template.clone() })),
        }),
        Atom::Port(port) => Rule::DestinationPort((*port).into()),
        Atom::DestinationAddress(range) => Rule::DestinationIp(cidr(range)),
        Atom::ServerName(pattern) => Rule::RequestedServerName(string(pattern)),
        Atom::Metadata(filter, path, pattern) => {
            Rule::SourcedMetadata(metadata(filter, path, pattern))
        }
        Atom::Identity(_) | Atom::PeerAddress(_) | Atom::ClientAddress(_) => {
            Rule::NotRule(Box::new(permission(Rule::Any(true))))
        }
    }
}

/// An atom about who calls.
fn identified(atom: &Atom) -> rbac::principal::Identifier {
    use rbac::principal::{Authenticated, Identifier};
    match atom {
        Atom::Identity(pattern) => {
            Identifier::Authenticated(Authenticated { principal_name: Some(string(pattern)) })
        }
        Atom::PeerAddress(range) => Identifier::DirectRemoteIp(cidr(range)),
        Atom::ClientAddress(range) => Identifier::RemoteIp(cidr(range)),
        Atom::Header(name, pattern) => Identifier::Header(header(name, Some(pattern))),
        Atom::HeaderNowhere(name, pattern) => {
            let there = Identifier::Header(header(name, Some(pattern)));
            Identifier::NotId(Box::new(principal(there)))
        }
        Atom::HeaderPresent(name) => Identifier::Header(header(name, None)),
        Atom::Path(pattern) => Identifier::UrlPath(path(pattern)),
        Atom::Metadata(filter, path, pattern) => {
            Identifier::SourcedMetadata(metadata(filter, path, pattern))
        }
        Atom::PathTemplate(_)
        | Atom::Port(_)
        | Atom::DestinationAddress(_)
        | Atom::ServerName(_) => Identifier::NotId(Box::new(principal(Identifier::Any(true)))),
    }
}

fn cidr(range: &IpNet) -> CidrRange {
    CidrRange {
        address_prefix: range.addr().to_string(),
        prefix_len: Some(UInt32Value { value: range.prefix_len().into() }),
    }
}

fn header(name: &str, pattern: Option<&TextPattern>) -> HeaderMatcher {
    use header_matcher::HeaderMatchSpecifier::{PresentMatch, StringMatch};
    HeaderMatcher {
        name: name.into(),
        header_match_specifier: Some(match pattern {
            Some(pattern) => StringMatch(string(pattern)),
            None => PresentMatch(true),
        }),
        ..Default::default()
    }
}

fn path(pattern: &TextPattern) -> matcher::PathMatcher {
    let rule = matcher::path_matcher::Rule::Path(string(pattern));
    matcher::PathMatcher { rule: Some(rule) }
}

/// A list of texts counts by its elements, as claims may be lists.
fn metadata(filter: &str, path: &[String], pattern: &TextPattern) -> rbac::SourcedMetadata {
    use matcher::metadata_matcher::{PathSegment, path_segment::Segment};
    use matcher::value_matcher::MatchPattern;
    let value = |pattern| matcher::ValueMatcher { match_pattern: Some(pattern) };
    let text = || value(MatchPattern::StringMatch(string(pattern)));
    let one_of = matcher::list_matcher::MatchPattern::OneOf(Box::new(text()));
    let list = matcher::ListMatcher { match_pattern: Some(one_of) };
    let either = vec![text(), value(MatchPattern::ListMatch(Box::new(list)))];
    let either = matcher::OrMatcher { value_matchers: either };
    let segment = |key: &String| PathSegment { segment: Some(Segment::Key(key.clone())) };
    let matcher = matcher::MetadataMatcher {
        filter: filter.into(),
        path: path.iter().map(segment).collect(),
        value: Some(value(MatchPattern::OrMatch(either))),
        ..Default::default()
    };
    let source = rbac::MetadataSource::Dynamic.into();
    rbac::SourcedMetadata { metadata_matcher: Some(matcher), metadata_source: source }
}

/// The plainest matcher that says the same.
fn string(pattern: &TextPattern) -> matcher::StringMatcher {
    use matcher::string_matcher::MatchPattern;
    let text = |text: &String| text.clone();
    let regex = || {
        MatchPattern::SafeRegex(matcher::RegexMatcher {
            regex: pattern.regex(),
            ..Default::default()
        })
    };
    // An empty prefix or suffix is none that Envoy takes.
    let plain = match &pattern.parts[..] {
        [TextPart::Text(one)] => MatchPattern::Exact(text(one)),
        [TextPart::Text(one), TextPart::Any] if !one.is_empty() => MatchPattern::Prefix(text(one)),
        [TextPart::Any, TextPart::Text(one)] if !one.is_empty() => MatchPattern::Suffix(text(one)),
        _ => regex(),
    };
    let is_regex = matches!(plain, MatchPattern::SafeRegex(_));
    matcher::StringMatcher {
        match_pattern: Some(plain),
        // Of a regular expression Envoy takes it from the expression alone.
        ignore_case: pattern.ignore_case && !is_regex,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::access::{AccessIndex, AccessSettings, PolicyErrors};
    use crate::model::Collection;

    fn object(name: &str, rules: &Value) -> Value {
        json!({
            "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
            "metadata": { "namespace": "shop", "name": name },
            "spec": { "action": "DENY", "rules": rules },
        })
    }

    fn policies(objects: &[Value]) -> Arc<AccessPolicies> {
        let settings = AccessSettings { root: "root".into(), errors: PolicyErrors::Narrow };
        let objects: Collection = objects.iter().cloned().map(Arc::new).collect();
        let mut index = AccessIndex::new(settings.clone());
        index.apply(&settings, &objects);
        index.policies()
    }

    fn trust(domain: &str) -> TrustBundle {
        TrustBundle::new([domain].into_iter())
    }

    /// The rules of all policies, as they are written, and as they are when they are read again.
    fn encoded(
        kept: &EncodedPolicies,
        policies: &AccessPolicies,
        domain: &str,
        token_rules: usize,
    ) -> (Vec<u8>, rbac::Rbac) {
        let trust = trust(domain);
        let encoder = RuleEncoder { kept, trust: &trust, token_rules };
        let rules: Vec<_> = policies
            .authorizations()
            .flat_map(|policy| {
                encoder.rules(EnforcedPolicy { policy, key_end: "-end" }, WireForm::Http)
            })
            .collect();
        let bytes = rbac_of(rbac::rbac::Action::Deny, "begin-", &rules).expect("rules");
        let read = rbac::Rbac::decode(&bytes[..]).expect("a message");
        (bytes, read)
    }

    #[test]
    fn what_is_put_together_is_the_message_of_all_rules_in_the_order_of_their_keys() {
        let path = |path: &str| json!({ "to": [{ "operation": { "paths": [path] } }] });
        let rules: Vec<Value> = (0..12).map(|at| path(&format!("/{at}"))).collect();
        let held = policies(&[object("b", &json!([path("/b")])), object("a", &json!(rules))]);
        let (bytes, read) = encoded(&EncodedPolicies::default(), &held, "mesh.example", 0);
        assert_eq!(read.action, i32::from(rbac::rbac::Action::Deny));
        assert_eq!(read.policies.len(), 13);
        for policy_held in held.authorizations() {
            let matchers = rule_matchers(policy_held, WireForm::Http, &trust("mesh.example"), 0);
            for rule in &matchers {
                let key = format!("begin-{}-end", rule.key);
                assert_eq!(read.policies.get(&key), Some(&policy(rule)), "{key}");
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        let places: Vec<_> = ["[a]-rule[0]", "[a]-rule[10]", "[a]-rule[2]", "[b]-rule[0]"]
            .map(|key| text.find(key).expect(key))
            .into();
        assert!(places.is_sorted(), "{places:?}");
    }

    #[test]
    fn what_is_kept_of_a_policy_is_made_anew_where_anything_it_is_made_of_is_another() {
        let from = |source: Value| json!([{ "from": [{ "source": source }] }]);
        let by_principal = from(json!({ "principals": ["cluster.local/ns/shop/sa/a"] }));
        let held = policies(&[object("a", &by_principal)]);
        let kept = EncodedPolicies::default();
        let first = encoded(&kept, &held, "mesh.example", 1).0;
        assert_eq!(encoded(&kept, &held, "mesh.example", 1).0, first);
        assert_eq!(kept.0.entries.len(), 1, "once for all who enforce it");
        let moved = encoded(&kept, &held, "other.example", 1).0;
        assert!(String::from_utf8_lossy(&moved).contains("other.example"));
        let edited = policies(&[object("a", &from(json!({ "namespaces": ["pay"] })))]);
        let edited = encoded(&kept, &edited, "mesh.example", 1).0;
        assert!(String::from_utf8_lossy(&edited).contains("pay"));
        let tokens = policies(&[object("a", &from(json!({ "requestPrincipals": ["a/*"] })))]);
        let [one, two] = [1, 2].map(|rules| encoded(&kept, &tokens, "mesh.example", rules).0);
        assert!(!String::from_utf8_lossy(&one).contains("payload-1"));
        assert!(String::from_utf8_lossy(&two).contains("payload-1"), "a key for each rule");
    }

    #[test]
    fn a_policy_that_has_gone_leaves_nothing_behind() {
        let held = policies(&[object("a", &json!([{}])), object("b", &json!([{}]))]);
        let kept = EncodedPolicies::default();
        encoded(&kept, &held, "mesh.example", 0);
        let left = policies(&[object("b", &json!([{}]))]);
        encoded(&kept, &left, "mesh.example", 0);
        kept.sweep(&left);
        let names: Vec<_> =
            kept.0.entries.iter().map(|entry| entry.key().0.name.to_string()).collect();
        assert_eq!(names, ["b"]);
    }
}
