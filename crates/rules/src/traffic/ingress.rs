//! Ingress and IngressClass of Kubernetes: hosts and paths, each with the Service that its requests go to. (Kubernetes,
//! "Ingress"; docs/reference/traffic.md, "Ingress".)
//!
//! Reads an object into the form of [`super::route`]. What comes of several for one host is put together in
//! `ingresses`.

mod raw;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use self::raw::{RawIngress, RawIngressBackend, RawIngressClass, RawIngressPath};
use super::hosts::HostPattern;
use super::kind::KindSettings;
use super::object::{self, ObjectMeta, Reason};
use super::route::{
    Destination, HttpRule, PathMatch, RareAtDestination, RequestMatch, RulePlace, RuleTerms,
    is_text, place,
};
use strait_base::codes;
use strait_model::Hostname;
use strait_model::mesh_config::{IngressMode, IngressSettings};

/// The controller that IngressClasses name where their Ingresses are the mesh's. (Istio, "Kubernetes Ingress".)
pub const INGRESS_CONTROLLER: &str = "istio.io/ingress-controller";
/// Names the class of an Ingress, before its `ingressClassName`.
const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";
/// Says of an IngressClass that it is that of Ingresses which name none.
const DEFAULT_ANNOTATION: &str = "ingressclass.kubernetes.io/is-default-class";

/// An Ingress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ingress {
    /// Which, and how old.
    pub meta: ObjectMeta,
    /// Whose it is.
    pub class: IngressClassName,
    /// What becomes of requests, as it is written; last what becomes of those that nothing else is said of.
    pub rules: Box<[IngressRule]>,
    /// What is served in TLS.
    pub tls: Box<[IngressTls]>,
}

/// How an Ingress says whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IngressClassName {
    /// Not at all.
    Unnamed,
    /// By the annotation `kubernetes.io/ingress.class`.
    Annotated(Arc<str>),
    /// By the name of an IngressClass.
    OfClass(Arc<str>),
}

/// What becomes of requests to a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IngressRule {
    /// The host.
    pub host: HostPattern,
    /// The rule, which has at most one match.
    pub rule: HttpRule,
}

/// Hosts that are served in TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IngressTls {
    /// Its place in the object.
    pub place: usize,
    /// The hosts; never empty.
    pub hosts: Box<[HostPattern]>,
    /// The Secret that holds the certificate, in the namespace of the routers.
    pub secret: Arc<str>,
}

/// An IngressClass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IngressClass {
    /// Which, and how old; in no namespace.
    pub meta: ObjectMeta,
    /// Who follows its Ingresses.
    pub controller: String,
    /// Whether Ingresses are of it that name none.
    pub is_default: bool,
}

impl IngressClass {
    /// Reads an object.
    ///
    /// # Errors
    /// Why it is refused whole.
    pub fn read(meta: ObjectMeta, object: &Value) -> Result<Self, Reason> {
        let (raw, _) = object::body::<RawIngressClass>(object)?;
        let is_default = annotation(object, DEFAULT_ANNOTATION) == Some("true");
        Ok(Self { meta, controller: raw.controller, is_default })
    }
}

impl Ingress {
    /// Reads an object, with what its owner should know.
    ///
    /// # Errors
    /// Why it is refused whole.
    pub fn read(
        meta: ObjectMeta,
        object: &Value,
        settings: &KindSettings,
    ) -> Result<(Self, Vec<Reason>), Reason> {
        let (raw, reasons) = object::body::<RawIngress>(object)?;
        let class = match (annotation(object, CLASS_ANNOTATION), raw.ingress_class_name) {
            (Some(class), _) => IngressClassName::Annotated(class.into()),
            (None, Some(class)) if !class.is_empty() => IngressClassName::OfClass(class.into()),
            (None, _) => IngressClassName::Unnamed,
        };
        let mut reader = IngressReader { meta: &meta, settings, reasons };
        let mut rules = Vec::new();
        let mut hosts = BTreeSet::from([HostPattern::all()]);
        for (at, raw) in raw.rules.into_iter().enumerate() {
            let path = format!("spec.rules[{at}].host");
            let Some(host) = reader.host(&raw.host, &path) else { continue };
            if host.exact().is_none() && host != HostPattern::all() {
                let text = format!(
                    "{host} also matches names with more than one label in place of the star, as in Istio; Kubernetes documents one label"
                );
                reader.reasons.push(Reason::warning(&codes::INGRESS_WILDCARD, path, text));
            }
            for (number, raw) in raw.http.paths.into_iter().enumerate() {
                let index = place(at);
                let place = RulePlace { index, path: Some(place(number)), ..RulePlace::default() };
                let rule = reader.rule(raw, place);
                rules.extend(rule.map(|rule| IngressRule { host: host.clone(), rule }));
            }
            hosts.insert(host);
        }
        if let Some(backend) = &raw.default_backend {
            // Of its own hosts what no path takes, and of all others what is nobody's.
            let destinations = reader.destinations(backend, "spec.defaultBackend");
            let rule = HttpRule { destinations, ..HttpRule::default() };
            let of = |host| IngressRule { host, rule: rule.clone() };
            rules.extend(hosts.into_iter().map(of));
        }
        // Stable: the rules of one host stay in the order in which they are written.
        rules.sort_by(|one, other| one.host.cmp(&other.host));
        let tls = raw.tls.into_iter().enumerate().filter_map(|(place, raw)| {
            let path = format!("spec.tls[{place}]");
            if raw.secret_name.is_empty() {
                let text = "names no Secret: nothing is served in TLS for it";
                reader.lost(format!("{path}.secretName"), text);
                return None;
            }
            let given = raw.hosts.iter().enumerate();
            let hosts =
                given.filter_map(|(at, host)| reader.host(host, &format!("{path}.hosts[{at}]")));
            let mut hosts: Vec<_> = hosts.collect();
            if raw.hosts.is_empty() {
                hosts.push(HostPattern::all());
            }
            let secret = raw.secret_name.into();
            (!hosts.is_empty()).then(|| IngressTls { place, hosts: hosts.into(), secret })
        });
        let tls: Box<[_]> = tls.collect();
        let mut reasons = reader.reasons;
        if rules.is_empty() {
            let text =
                "has neither a path nor a defaultBackend that can be used: nothing is served";
            reasons.push(Reason::lost(&codes::INGRESS_PART, "spec.rules", text));
        }
        Ok((Self { meta, class, rules: rules.into(), tls }, reasons))
    }

    /// The rules for a host, in their order.
    pub fn rules_of(&self, host: &HostPattern) -> &[IngressRule] {
        let start = self.rules.partition_point(|rule| rule.host < *host);
        let end = self.rules.partition_point(|rule| rule.host <= *host);
        &self.rules[start..end]
    }

    /// Whether it is followed, where there are these classes.
    ///
    /// # Errors
    /// Why it isn't.
    pub fn is_followed<'a>(
        &self,
        classes: impl Iterator<Item = &'a IngressClass>,
        settings: &IngressSettings,
    ) -> Result<(), String> {
        let IngressSettings { mode, class: own, .. } = settings;
        if *mode == IngressMode::Off {
            return Err("no Ingress is followed: ingressControllerMode is OFF".to_owned());
        }
        let mut classes = classes;
        match &self.class {
            IngressClassName::Annotated(class) if **class == **own => Ok(()),
            IngressClassName::Annotated(class) => {
                Err(format!("it is annotated with the class {class:?}, and the mesh's is {own}"))
            }
            IngressClassName::OfClass(name) => {
                match classes.find(|class| class.meta.name == *name) {
                    None => Err(format!("there is no IngressClass {name}")),
                    Some(class) if class.controller == INGRESS_CONTROLLER => Ok(()),
                    Some(class) => Err(format!(
                        "the controller of IngressClass {name} is {:?}, not {INGRESS_CONTROLLER}",
                        class.controller
                    )),
                }
            }
            IngressClassName::Unnamed => {
                // Of several API servers take the youngest, too.
                let default = classes.filter(|class| class.is_default);
                let default = default.max_by_key(|class| {
                    (class.meta.created, std::cmp::Reverse(class.meta.name.clone()))
                });
                let is_own = default.is_some_and(|class| class.controller == INGRESS_CONTROLLER);
                if is_own || *mode == IngressMode::Default {
                    return Ok(());
                }
                Err("it names no class, and the default class is not the mesh's".to_owned())
            }
        }
    }

    /// The hosts that it has rules for, in order; some more than once.
    pub fn hosts(&self) -> impl Iterator<Item = &HostPattern> {
        self.rules.iter().map(|rule| &rule.host)
    }

    /// The hosts that it serves in TLS; some more than once.
    pub fn tls_hosts(&self) -> impl Iterator<Item = &HostPattern> {
        self.tls.iter().flat_map(|tls| &tls.hosts)
    }
}

fn annotation<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object.get("metadata")?.get("annotations")?.get(name)?.as_str()
}

struct IngressReader<'a> {
    meta: &'a ObjectMeta,
    settings: &'a KindSettings,
    reasons: Vec<Reason>,
}

impl IngressReader<'_> {
    fn lost(&mut self, path: impl Into<String>, text: impl std::fmt::Display) {
        self.reasons.push(Reason::lost(&codes::INGRESS_PART, path, text));
    }

    /// A host; none stands for all.
    fn host(&mut self, text: &str, path: &str) -> Option<HostPattern> {
        if text.is_empty() {
            return Some(HostPattern::all());
        }
        let read = HostPattern::written(text);
        if let Err(error) = &read {
            self.lost(path, format!("{text:?} {error}; the other hosts hold"));
        }
        read.ok()
    }

    /// What becomes of requests to a path; `None` where no request has such a path.
    fn rule(&mut self, raw: RawIngressPath, place: RulePlace) -> Option<HttpRule> {
        let RulePlace { index, path, .. } = place;
        let at = format!("spec.rules[{index}].http.paths[{}]", path.unwrap_or_default());
        let path = match path_match(&raw.path_type, &raw.path) {
            Ok(path) => path,
            Err(fact) => {
                self.lost(format!("{at}.path"), format!("{fact}: no request fits it"));
                return None;
            }
        };
        let destinations = self.destinations(&raw.backend, &format!("{at}.backend"));
        let matches = [RequestMatch { path, ..RequestMatch::default() }].into();
        let terms = RuleTerms { matches, ..RuleTerms::default() };
        Some(HttpRule { place, destinations, ..terms.into() })
    }

    /// Where requests go; nowhere where that can't be followed, so that they are answered 500.
    fn destinations(&mut self, raw: &RawIngressBackend, path: &str) -> Box<[Destination]> {
        let Self { meta, settings, reasons } = self;
        let mut lost = |field: &str, fact: String| {
            let text = format!("{fact}: what goes there is answered 500");
            reasons.push(Reason::lost(&codes::INGRESS_PART, format!("{path}{field}"), text));
        };
        let Some(service) = &raw.service else {
            lost("", "leads to no Service, and nothing else is followed".to_owned());
            return Box::default();
        };
        let name = service.name.to_ascii_lowercase();
        if !matches!(HostPattern::written(&name), Ok(HostPattern::Exact(_))) {
            lost(".service.name", format!("{name:?} is no name of a Service"));
            return Box::default();
        }
        let host =
            Hostname::of_kubernetes_service(&name, meta.namespace.as_str(), &settings.domain);
        let port = match (service.port.number, &service.port.name) {
            (0, name) if !name.is_empty() => None,
            (number, _) => match u16::try_from(number).ok().filter(|number| *number != 0) {
                Some(number) => Some(number),
                None => {
                    lost(".service.port", format!("{number} is no port, and none is named"));
                    return Box::default();
                }
            },
        };
        let port_name =
            if port.is_none() { Arc::clone(&service.port.name) } else { Arc::default() };
        let more = RareAtDestination { port_name, ..RareAtDestination::default() }.into();
        [Destination { port, more, ..Destination::to(host) }].into()
    }
}

/// The paths that fit; `None` for all.
fn path_match(kind: &str, text: &str) -> Result<Option<PathMatch>, String> {
    // What a controller makes of these is its own: Istio takes stars at the end for anything.
    let legacy = matches!(kind, "" | "ImplementationSpecific");
    if legacy && matches!(text, "" | "*" | "/*" | ".*") {
        return Ok(None);
    }
    if !text.starts_with('/') || text.contains(['?', '#']) || !is_text(text) {
        return Err(format!("{text:?} is no path"));
    }
    match kind {
        "Exact" => Ok(Some(PathMatch::Exact(text.into()))),
        "Prefix" => {
            let prefix = text.trim_end_matches('/');
            Ok((!prefix.is_empty()).then(|| PathMatch::Segments(prefix.into())))
        }
        _ if legacy => Ok(Some(match text.strip_suffix(".*").or(text.strip_suffix("/*")) {
            Some(prefix) => PathMatch::Prefix(prefix.into()),
            None => PathMatch::Exact(text.into()),
        })),
        _ => Err(format!("{kind:?} is none of Exact, Prefix, ImplementationSpecific")),
    }
}

#[cfg(test)]
mod tests;
