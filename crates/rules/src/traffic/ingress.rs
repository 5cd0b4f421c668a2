//! Ingress and IngressClass of Kubernetes: hosts and paths with the Services that serve them
//! (Kubernetes, "Ingress"; docs/reference/traffic.md, "Ingress").
//!
//! This module parses one object into the types of [`super::route`]. `ingresses` merges the
//! Ingresses of one host.

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

/// Controller name in IngressClasses whose Ingresses belong to the mesh (Istio, "Kubernetes
/// Ingress").
pub const INGRESS_CONTROLLER: &str = "istio.io/ingress-controller";
/// Annotation with the class of an Ingress. It takes precedence over `ingressClassName`.
const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";
/// Annotation of the IngressClass that applies to Ingresses without a class.
const DEFAULT_ANNOTATION: &str = "ingressclass.kubernetes.io/is-default-class";

/// A parsed Ingress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ingress {
    /// Name, namespace and age of the object.
    pub meta: ObjectMeta,
    /// Class of the Ingress, which decides its controller.
    pub class: IngressClassName,
    /// Rules for requests, in the order of the object; the default backend is last.
    pub rules: Box<[IngressRule]>,
    /// Hosts that are served with TLS.
    pub tls: Box<[IngressTls]>,
}

/// Reference of an Ingress to its class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IngressClassName {
    /// No class.
    Unnamed,
    /// The annotation `kubernetes.io/ingress.class`.
    Annotated(Arc<str>),
    /// The name of an IngressClass.
    Class(Arc<str>),
}

/// A rule for requests to a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IngressRule {
    /// The host.
    pub host: HostPattern,
    /// The rule, with at most one match.
    pub rule: HttpRule,
}

/// Hosts that are served with TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IngressTls {
    /// Index in the object.
    pub place: usize,
    /// The hosts; never empty.
    pub hosts: Box<[HostPattern]>,
    /// Secret with the certificate, in the namespace of the gateway proxies.
    pub secret: Arc<str>,
}

/// A parsed IngressClass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IngressClass {
    /// Name and age of the object, which has no namespace.
    pub meta: ObjectMeta,
    /// Name of the controller for its Ingresses.
    pub controller: String,
    /// Whether it applies to Ingresses without a class.
    pub is_default: bool,
}

impl IngressClass {
    /// Parses an object. Also returns the reasons for fields without an effect.
    ///
    /// # Errors
    /// The reason why the whole object is refused.
    pub fn read(meta: ObjectMeta, object: &Value) -> Result<(Self, Vec<Reason>), Reason> {
        let (raw, mut reasons) = object::body::<RawIngressClass>(object)?;
        if raw.controller != INGRESS_CONTROLLER {
            reasons.clear();
        } else if raw.parameters.is_some() {
            let text = "parameters of an IngressClass are not supported";
            reasons.push(Reason::lost(&codes::TRAFFIC_UNSUPPORTED, "spec.parameters", text));
        }
        let is_default = annotation(object, DEFAULT_ANNOTATION) == Some("true");
        Ok((Self { meta, controller: raw.controller, is_default }, reasons))
    }
}

impl Ingress {
    /// Parses an object. Also returns the reasons to report to its owner.
    ///
    /// # Errors
    /// The reason why the whole object is refused.
    pub fn read(
        meta: ObjectMeta,
        object: &Value,
        settings: &KindSettings,
    ) -> Result<(Self, Vec<Reason>), Reason> {
        let (raw, reasons) = object::body::<RawIngress>(object)?;
        let class = match (annotation(object, CLASS_ANNOTATION), raw.ingress_class_name) {
            (Some(class), _) => IngressClassName::Annotated(class.into()),
            (None, Some(class)) if !class.is_empty() => IngressClassName::Class(class.into()),
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
                    "{host} also matches names with several labels in place of the star, as in Istio; Kubernetes documents one label"
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
            // The default backend serves requests for the object's hosts that match no path, and
            // for hosts without a rule.
            let destinations = reader.destinations(backend, "spec.defaultBackend");
            let rule = HttpRule { destinations, ..HttpRule::default() };
            let to_backend = |host| IngressRule { host, rule: rule.clone() };
            rules.extend(hosts.into_iter().map(to_backend));
        }
        // The sort is stable: the rules of one host keep their order.
        rules.sort_by(|one, other| one.host.cmp(&other.host));
        let tls = raw.tls.into_iter().enumerate().filter_map(|(place, raw)| {
            let path = format!("spec.tls[{place}]");
            if raw.secret_name.is_empty() {
                let text = "has no Secret: its hosts are not served with TLS";
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
            let text = "has no usable path and no usable defaultBackend: nothing is served";
            reasons.push(Reason::lost(&codes::INGRESS_PART, "spec.rules", text));
        }
        Ok((Self { meta, class, rules: rules.into(), tls }, reasons))
    }

    /// Returns the rules for a host, in their order.
    pub fn rules_for(&self, host: &HostPattern) -> &[IngressRule] {
        let start = self.rules.partition_point(|rule| rule.host < *host);
        let end = self.rules.partition_point(|rule| rule.host <= *host);
        &self.rules[start..end]
    }

    /// Returns whether the Ingress belongs to the mesh, given all IngressClasses.
    ///
    /// # Errors
    /// The reason why it does not.
    pub fn is_followed<'a>(
        &self,
        classes: impl Iterator<Item = &'a IngressClass>,
        settings: &IngressSettings,
    ) -> Result<(), String> {
        let IngressSettings { mode, class: own, .. } = settings;
        if *mode == IngressMode::Off {
            return Err("Ingresses are ignored: ingressControllerMode is OFF".to_owned());
        }
        let mut classes = classes;
        match &self.class {
            IngressClassName::Annotated(class) if **class == **own => Ok(()),
            IngressClassName::Annotated(class) => Err(format!(
                "its annotation has the class {class:?}, but the class of the mesh is \
                             {own}"
            )),
            IngressClassName::Class(name) => match classes.find(|class| class.meta.name == *name) {
                None => Err(format!("IngressClass {name} does not exist")),
                Some(class) if class.controller == INGRESS_CONTROLLER => Ok(()),
                Some(class) => Err(format!(
                    "the controller of IngressClass {name} is {:?}, not {INGRESS_CONTROLLER}",
                    class.controller
                )),
            },
            IngressClassName::Unnamed => {
                // If there are several default classes, API servers use the youngest one, too.
                let default = classes.filter(|class| class.is_default);
                let default = default.max_by_key(|class| {
                    (class.meta.created, std::cmp::Reverse(class.meta.name.clone()))
                });
                let is_own = default.is_some_and(|class| class.controller == INGRESS_CONTROLLER);
                if is_own || *mode == IngressMode::Default {
                    return Ok(());
                }
                Err("it has no class, and the default class does not belong to the mesh".to_owned())
            }
        }
    }

    /// Iterates over the hosts of all rules, in order, possibly with duplicates.
    pub fn hosts(&self) -> impl Iterator<Item = &HostPattern> {
        self.rules.iter().map(|rule| &rule.host)
    }

    /// Iterates over the hosts that it serves with TLS, possibly with duplicates.
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

    /// Parses a host; an empty one matches all hosts.
    fn host(&mut self, text: &str, path: &str) -> Option<HostPattern> {
        if text.is_empty() {
            return Some(HostPattern::all());
        }
        let read = HostPattern::written(text);
        if let Err(error) = &read {
            self.lost(path, format!("{text:?} {error}; the other hosts apply"));
        }
        read.ok()
    }

    /// Parses the rule for a path; `None` if no request can match the path.
    fn rule(&mut self, raw: RawIngressPath, place: RulePlace) -> Option<HttpRule> {
        let RulePlace { index, path, .. } = place;
        let at = format!("spec.rules[{index}].http.paths[{}]", path.unwrap_or_default());
        let path = match path_match(&raw.path_type, &raw.path) {
            Ok(path) => path,
            Err(fact) => {
                self.lost(format!("{at}.path"), format!("{fact}: no request matches it"));
                return None;
            }
        };
        let destinations = self.destinations(&raw.backend, &format!("{at}.backend"));
        let matches = [RequestMatch { path, ..RequestMatch::default() }].into();
        let terms = RuleTerms { matches, ..RuleTerms::default() };
        Some(HttpRule { place, destinations, ..terms.into() })
    }

    /// Parses a backend. Empty if it is not supported, so that requests are answered with status
    /// 500.
    fn destinations(&mut self, raw: &RawIngressBackend, path: &str) -> Box<[Destination]> {
        let Self { meta, settings, reasons } = self;
        let mut lost = |field: &str, fact: String| {
            let text = format!("{fact}: its requests are answered with 500");
            reasons.push(Reason::lost(&codes::INGRESS_PART, format!("{path}{field}"), text));
        };
        let Some(service) = &raw.service else {
            lost("", "is not a Service, and other backends are not supported".to_owned());
            return Box::default();
        };
        let name = service.name.to_ascii_lowercase();
        if !matches!(HostPattern::written(&name), Ok(HostPattern::Exact(_))) {
            lost(".service.name", format!("{name:?} is not a valid name of a Service"));
            return Box::default();
        }
        let host =
            Hostname::of_kubernetes_service(&name, meta.namespace.as_str(), &settings.domain);
        let port = match (service.port.number, &service.port.name) {
            (0, name) if !name.is_empty() => None,
            (number, _) => match u16::try_from(number).ok().filter(|number| *number != 0) {
                Some(number) => Some(number),
                None => {
                    lost(
                        ".service.port",
                        format!(
                            "{number} is not a valid port, and no port name \
                                                   is set"
                        ),
                    );
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

/// Parses a path; `None` matches all paths.
fn path_match(kind: &str, text: &str) -> Result<Option<PathMatch>, String> {
    // The meaning of these types depends on the controller. In Istio, a trailing `*` matches any
    // path.
    let legacy = matches!(kind, "" | "ImplementationSpecific");
    if legacy && matches!(text, "" | "*" | "/*" | ".*") {
        return Ok(None);
    }
    if !text.starts_with('/') || text.contains(['?', '#']) || !is_text(text) {
        return Err(format!("{text:?} is not a valid path"));
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
        _ => Err(format!("{kind:?} is not valid; use Exact, Prefix or ImplementationSpecific")),
    }
}

#[cfg(test)]
mod tests;
