//! The providers that a proxy asks whether requests may pass (CUSTOM), or sends spans, as it reaches them: by the upstream cluster of their
//! service, as proxies of its namespace and cluster know it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::PushContext;
use crate::aggregate::MergedService;
use strait_model::mesh_config::{
    AuthorizationProtocol, AuthorizationProvider, ExtensionProvider, ProviderKind, ProviderService,
    TracingProvider,
};
use strait_model::{ClusterId, Hostname, Namespace, Proxy, ProxyType, Resolution};
use strait_rules::access::{ProviderReach, ReachableProviders, WorkloadAccess};
use strait_rules::traffic::destination_rule::{DestinationRule, RuleClient};
use strait_rules::traffic::envoy_filter::FilterUpstream;

/// A provider that can be asked.
#[derive(Debug, Clone)]
pub struct Authorizer<'a> {
    /// How.
    pub provider: &'a AuthorizationProvider,
    /// Its service.
    pub service: &'a Arc<MergedService>,
}

impl Authorizer<'_> {
    /// About what it can be asked.
    pub fn reach(&self) -> ProviderReach {
        match self.provider.protocol {
            AuthorizationProtocol::Http(_) => ProviderReach::Requests,
            AuthorizationProtocol::Grpc => ProviderReach::Everything,
        }
    }
}

/// A provider that can be sent spans.
#[derive(Debug, Clone)]
pub struct Tracer<'a> {
    /// How.
    pub provider: &'a Arc<TracingProvider>,
    /// Its service.
    pub service: &'a Arc<MergedService>,
}

/// Why a provider can't be asked, or sent spans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthorizerFault {
    /// The mesh config has none of that name.
    Unknown,
    /// It has several.
    Ambiguous,
    /// It has one that asks nobody.
    Other,
    /// It has one that takes no spans.
    TakesNoSpans,
    /// What the mesh config says of it makes no sense.
    Broken(String),
    /// Nobody knows its service.
    NoService(String),
    /// Its service is in another namespace than the mesh config says.
    OtherNamespace(String, Namespace),
    /// Its service is not for proxies of that namespace, or not for those of that cluster.
    NotVisible(String, Namespace),
    /// Its service has no such port.
    NoPort(String, u16),
    /// No rule in force has such a subset of its service.
    NoSubset(String, Arc<str>),
    /// Its service is a name for another.
    Alias(String),
    /// Proxies choose no endpoint of its service: requests about others would go where those were going, and so to nobody
    /// who can answer.
    NotChosen(String),
    /// The same, by the DestinationRule of that namespace and name.
    PassedThrough(String, Namespace, Arc<str>),
    /// The DestinationRule of that namespace and name asks for TLS that proxies can't speak.
    NotSpoken(String, Namespace, Arc<str>),
}

impl fmt::Display for AuthorizerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => {
                f.write_str("extensionProviders of the mesh config has none of that name")
            }
            Self::Ambiguous => {
                f.write_str("extensionProviders of the mesh config has several of that name")
            }
            Self::Other => f.write_str("what extensionProviders has of that name asks nobody"),
            Self::TakesNoSpans => {
                f.write_str("what extensionProviders has of that name takes no spans")
            }
            Self::Broken(fact) => write!(f, "extensionProviders of the mesh config: {fact}"),
            Self::NoService(host) => write!(f, "there is no service {host}"),
            Self::OtherNamespace(host, found) => {
                write!(f, "service {host} is in namespace {found}, not in the one that is named")
            }
            Self::NotVisible(host, namespace) => {
                write!(f, "service {host} is not visible to workloads of namespace {namespace}")
            }
            Self::NoPort(host, port) => write!(f, "service {host} has no port {port}"),
            Self::NoSubset(host, subset) => {
                write!(f, "no DestinationRule that holds for service {host} has a subset {subset}")
            }
            Self::Alias(host) => write!(f, "service {host} is a name for another; name that one"),
            Self::NotChosen(host) => {
                write!(
                    f,
                    "endpoints are not chosen for service {host}, which is headless or of resolution NONE; "
                )?;
                f.write_str("name one with an address of its own")
            }
            Self::PassedThrough(host, namespace, name) => {
                write!(
                    f,
                    "endpoints are not chosen for service {host}: its load balancer is PASSTHROUGH "
                )?;
                write!(f, "by DestinationRule {namespace}/{name}")
            }
            Self::NotSpoken(host, namespace, name) => {
                write!(
                    f,
                    "service {host} can't be spoken to by TLS as DestinationRule {namespace}/{name} says"
                )
            }
        }
    }
}

/// The providers that policies for one workload would have asked.
#[derive(Debug, Clone, Default)]
pub struct Authorizers<'a>(BTreeMap<Arc<str>, Result<Authorizer<'a>, AuthorizerFault>>);

impl<'a> Authorizers<'a> {
    /// Those of the workload of `proxy`, for which `access` holds.
    pub fn of(context: &'a PushContext, proxy: &Proxy, access: &WorkloadAccess<'_>) -> Self {
        let found = access
            .providers()
            .into_iter()
            .map(|name| (Arc::clone(name), context.authorizer_of(name, proxy)));
        Self(found.collect())
    }

    /// Those that can be asked, with their names.
    pub fn reachable(&self) -> impl Iterator<Item = (&Arc<str>, &Authorizer<'a>)> {
        self.0.iter().filter_map(|(name, found)| Some((name, found.as_ref().ok()?)))
    }

    /// About what each of these can be asked.
    pub fn reach(&self) -> ReachableProviders {
        self.reachable().map(|(name, found)| (Arc::clone(name), found.reach())).collect()
    }

    /// Why one can't be asked; `None` where it can.
    pub fn fault(&self, name: &str) -> Option<&AuthorizerFault> {
        self.0.get(name)?.as_ref().err()
    }
}

impl PushContext {
    /// The provider of that name, as a proxy reaches it.
    ///
    /// # Errors
    /// It can't ask it.
    pub fn authorizer_of(
        &self,
        name: &str,
        proxy: &Proxy,
    ) -> Result<Authorizer<'_>, AuthorizerFault> {
        let (namespace, selection) = (proxy.namespace(), &self.selection(proxy));
        self.authorizer(name, RuleClient { namespace, selection }, &proxy.cluster)
    }

    /// The provider of that name, as such clients of a cluster reach it.
    ///
    /// # Errors
    /// It can't be asked from there.
    pub fn authorizer(
        &self,
        name: &str,
        client: RuleClient<'_>,
        cluster: &ClusterId,
    ) -> Result<Authorizer<'_>, AuthorizerFault> {
        let provider = self.authorization_provider(name)?;
        let service = self.provider_service(&provider.service, client, cluster)?;
        Ok(Authorizer { provider, service })
    }

    /// The provider of that name that takes spans, as such clients of a cluster reach it.
    ///
    /// # Errors
    /// It can't be sent any from there.
    pub fn tracer(
        &self,
        name: &str,
        client: RuleClient<'_>,
        cluster: &ClusterId,
    ) -> Result<Tracer<'_>, AuthorizerFault> {
        let provider = match &self.extension_provider(name)?.kind {
            ProviderKind::Tracing(provider) => provider,
            ProviderKind::Broken(fact) => return Err(AuthorizerFault::Broken(fact.clone())),
            _ => return Err(AuthorizerFault::TakesNoSpans),
        };
        let service = self.provider_service(&provider.service, client, cluster)?;
        Ok(Tracer { provider, service })
    }

    /// Why such clients of a cluster can't ask whom a filter of users names; `None` where they can, and where the name is
    /// not that of a service.
    pub fn asking_fault(
        &self,
        upstream: &FilterUpstream,
        client: RuleClient<'_>,
        cluster: &ClusterId,
    ) -> Option<AuthorizerFault> {
        let (host, port, subset) = upstream.service.as_ref()?;
        let asked = ProviderService { namespace: None, host: host.to_string(), port: *port };
        let service = match self.provider_service(&asked, client, cluster) {
            Ok(service) => service,
            Err(fault) => return Some(fault),
        };
        let rules = self.rules_for(service);
        let rule = rules.rule(client, &service.primary.namespace);
        let has = subset.is_empty() || rule.is_some_and(|rule| rule.subsets.contains_key(subset));
        (!has).then(|| AuthorizerFault::NoSubset(asked.host, Arc::clone(subset)))
    }

    /// The service that a provider is, where such clients of a cluster choose among its endpoints.
    fn provider_service(
        &self,
        provider: &ProviderService,
        client: RuleClient<'_>,
        cluster: &ClusterId,
    ) -> Result<&Arc<MergedService>, AuthorizerFault> {
        let namespace = client.namespace;
        let host = || provider.host.clone();
        let service = self.service(&provider.host, namespace);
        let service = service.ok_or_else(|| AuthorizerFault::NoService(host()))?;
        let found = &service.primary.namespace;
        if provider.namespace.as_deref().is_some_and(|named| named != found.as_str()) {
            return Err(AuthorizerFault::OtherNamespace(host(), found.clone()));
        }
        if !self.shows(service, namespace, cluster) {
            return Err(AuthorizerFault::NotVisible(host(), namespace.clone()));
        }
        if matches!(service.primary.resolution, Resolution::Alias(_)) {
            return Err(AuthorizerFault::Alias(host()));
        }
        let mut ports = service.ports_in(cluster);
        if !ports.any(|port| port.number == provider.port) {
            return Err(AuthorizerFault::NoPort(host(), provider.port));
        }
        if service.primary.resolution.is_chosen_by_client() {
            return Err(AuthorizerFault::NotChosen(host()));
        }
        let rules = self.rules_for(service);
        if let Some(rule) = rules.rule(client, found) {
            check_rule(rule, provider)?;
        }
        Ok(service)
    }

    /// What the mesh config has of that name.
    fn extension_provider(&self, name: &str) -> Result<&ExtensionProvider, AuthorizerFault> {
        let mut named = self.mesh.extension_providers.iter().filter(|one| &*one.name == name);
        let first = named.next().ok_or(AuthorizerFault::Unknown)?;
        match named.next() {
            Some(_) => Err(AuthorizerFault::Ambiguous),
            None => Ok(first),
        }
    }

    /// The provider of that name, whoever asks it.
    fn authorization_provider(
        &self,
        name: &str,
    ) -> Result<&AuthorizationProvider, AuthorizerFault> {
        match &self.extension_provider(name)?.kind {
            ProviderKind::Authorization(provider) => Ok(provider),
            ProviderKind::Broken(fact) => Err(AuthorizerFault::Broken(fact.clone())),
            ProviderKind::Log(_) | ProviderKind::Tracing(_) | ProviderKind::Other => {
                Err(AuthorizerFault::Other)
            }
        }
    }

    /// Of these services those that any provider is, with the providers' names.
    pub fn providers_among<'a>(
        &'a self,
        hosts: impl Fn(&str) -> bool + 'a,
    ) -> impl Iterator<Item = (&'a Arc<str>, Hostname)> {
        self.mesh.extension_providers.iter().filter_map(move |one| {
            let service = match &one.kind {
                ProviderKind::Authorization(provider) => &provider.service,
                ProviderKind::Tracing(provider) => &provider.service,
                _ => return None,
            };
            hosts(&service.host).then(|| (&one.name, Hostname::from(service.host.as_str())))
        })
    }

    /// Whether proxies of a namespace and cluster may use a service at all.
    pub fn shows(
        &self,
        service: &MergedService,
        namespace: &Namespace,
        cluster: &ClusterId,
    ) -> bool {
        service.primary.export_to.visible_to(namespace)
            && (service.is_visible_in(cluster) || !self.mesh.cluster_local(service.hostname()))
    }
}

/// Whether proxies that follow a rule have an upstream cluster for a provider that chooses among its endpoints.
fn check_rule(rule: &DestinationRule, provider: &ProviderService) -> Result<(), AuthorizerFault> {
    let policy = rule.resolved("", provider.port);
    let by = || (provider.host.clone(), rule.namespace().clone(), Arc::clone(&rule.meta().name));
    if policy.passes_through() {
        let (host, namespace, name) = by();
        return Err(AuthorizerFault::PassedThrough(host, namespace, name));
    }
    // What routers alone can ask would leave the sidecars that ask it without an answer.
    if !policy.can_be_spoken_by(ProxyType::Sidecar) {
        let (host, namespace, name) = by();
        return Err(AuthorizerFault::NotSpoken(host, namespace, name));
    }
    Ok(())
}
