//! External authorization providers (CUSTOM) and tracing providers, as a proxy reaches them: by the
//! upstream cluster of the provider's service, in the version for proxies in the same namespace and
//! cluster.

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

/// A reachable authorization provider.
#[derive(Debug, Clone)]
pub struct Authorizer<'a> {
    /// The provider's configuration.
    pub provider: &'a AuthorizationProvider,
    /// The provider's service.
    pub service: &'a Arc<MergedService>,
}

impl Authorizer<'_> {
    /// Returns which kinds of traffic the provider can authorize.
    pub fn reach(&self) -> ProviderReach {
        match self.provider.protocol {
            AuthorizationProtocol::Http(_) => ProviderReach::Requests,
            AuthorizationProtocol::Grpc => ProviderReach::Everything,
        }
    }
}

/// A reachable tracing provider.
#[derive(Debug, Clone)]
pub struct Tracer<'a> {
    /// The provider's configuration.
    pub provider: &'a Arc<TracingProvider>,
    /// The provider's service.
    pub service: &'a Arc<MergedService>,
}

/// Why a provider is not reachable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthorizerFault {
    /// The mesh config has no provider with this name.
    Unknown,
    /// The mesh config has several providers with this name.
    Ambiguous,
    /// The provider is not an authorization provider.
    Other,
    /// The provider is not a tracing provider.
    TakesNoSpans,
    /// The provider's configuration is invalid, for this reason.
    Broken(String),
    /// The provider's service does not exist.
    NoService(String),
    /// The provider's service is in a different namespace than the mesh config says.
    OtherNamespace(String, Namespace),
    /// The provider's service is not visible to proxies in that namespace, or in that cluster.
    NotVisible(String, Namespace),
    /// The provider's service has no such port.
    NoPort(String, u16),
    /// No active rule defines this subset of the provider's service.
    NoSubset(String, Arc<str>),
    /// The provider's service is an alias of another service.
    Alias(String),
    /// Proxies choose no endpoint for the service: a request to the provider would go to the
    /// destination of the original connection, which cannot respond to it.
    NotLoadBalanced(String),
    /// Like [`Self::NotLoadBalanced`], because of the DestinationRule with this namespace and name.
    PassedThrough(String, Namespace, Arc<str>),
    /// The DestinationRule with this namespace and name requires TLS that proxies do not support.
    UnsupportedTls(String, Namespace, Arc<str>),
}

impl fmt::Display for AuthorizerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => {
                f.write_str("extensionProviders of the mesh config has no entry with this name")
            }
            Self::Ambiguous => f.write_str(
                "extensionProviders of the mesh config has several entries with this name",
            ),
            Self::Other => f.write_str(
                "the entry of extensionProviders with this name is no authorization provider",
            ),
            Self::TakesNoSpans => {
                f.write_str("the entry of extensionProviders with this name is no tracing provider")
            }
            Self::Broken(fact) => write!(f, "extensionProviders of the mesh config: {fact}"),
            Self::NoService(host) => write!(f, "service {host} does not exist"),
            Self::OtherNamespace(host, found) => {
                write!(f, "service {host} is in namespace {found}, not in the configured one")
            }
            Self::NotVisible(host, namespace) => {
                write!(f, "service {host} is not visible to workloads of namespace {namespace}")
            }
            Self::NoPort(host, port) => write!(f, "service {host} has no port {port}"),
            Self::NoSubset(host, subset) => {
                write!(f, "no active DestinationRule for service {host} has a subset {subset}")
            }
            Self::Alias(host) => {
                write!(f, "service {host} is an alias of another service; configure that service")
            }
            Self::NotLoadBalanced(host) => {
                write!(
                    f,
                    "proxies do not load-balance service {host}, which is headless or has resolution NONE; "
                )?;
                f.write_str("configure a service with a virtual address")
            }
            Self::PassedThrough(host, namespace, name) => {
                write!(
                    f,
                    "proxies do not load-balance service {host}: its load balancer is PASSTHROUGH "
                )?;
                write!(f, "by DestinationRule {namespace}/{name}")
            }
            Self::UnsupportedTls(host, namespace, name) => {
                write!(
                    f,
                    "proxies cannot reach service {host} with the TLS settings of DestinationRule {namespace}/{name}"
                )
            }
        }
    }
}

/// The authorization providers that the policies for one workload use.
#[derive(Debug, Clone, Default)]
pub struct Authorizers<'a>(BTreeMap<Arc<str>, Result<Authorizer<'a>, AuthorizerFault>>);

impl<'a> Authorizers<'a> {
    /// Returns the providers for the workload of `proxy`, whose policies are `access`.
    pub fn of(context: &'a PushContext, proxy: &Proxy, access: &WorkloadAccess<'_>) -> Self {
        let found = access
            .providers()
            .into_iter()
            .map(|name| (Arc::clone(name), context.authorizer_of(name, proxy)));
        Self(found.collect())
    }

    /// Returns the reachable providers with their names.
    pub fn reachable(&self) -> impl Iterator<Item = (&Arc<str>, &Authorizer<'a>)> {
        self.0.iter().filter_map(|(name, found)| Some((name, found.as_ref().ok()?)))
    }

    /// Returns which kinds of traffic each reachable provider can authorize.
    pub fn reach(&self) -> ReachableProviders {
        self.reachable().map(|(name, found)| (Arc::clone(name), found.reach())).collect()
    }

    /// Returns why a provider is not reachable, or `None` if it is.
    pub fn fault(&self, name: &str) -> Option<&AuthorizerFault> {
        self.0.get(name)?.as_ref().err()
    }
}

impl PushContext {
    /// Returns the authorization provider with this name, as a proxy reaches it.
    ///
    /// # Errors
    /// If the proxy cannot reach it.
    pub fn authorizer_of(
        &self,
        name: &str,
        proxy: &Proxy,
    ) -> Result<Authorizer<'_>, AuthorizerFault> {
        let (namespace, selection) = (proxy.namespace(), &self.selection(proxy));
        self.authorizer(name, RuleClient { namespace, selection }, &proxy.cluster)
    }

    /// Returns the authorization provider with this name, as these clients in a cluster reach it.
    ///
    /// # Errors
    /// If these clients cannot reach it.
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

    /// Returns the tracing provider with this name, as these clients in a cluster reach it.
    ///
    /// # Errors
    /// If these clients cannot reach it.
    pub fn tracer(
        &self,
        name: &str,
        client: RuleClient<'_>,
        cluster: &ClusterId,
    ) -> Result<Tracer<'_>, AuthorizerFault> {
        let provider = self.tracing_provider(name)?;
        let service = self.provider_service(&provider.service, client, cluster)?;
        Ok(Tracer { provider, service })
    }

    /// Returns the tracing provider with this name.
    ///
    /// # Errors
    /// If there is no such provider, or it is invalid.
    pub fn tracing_provider(&self, name: &str) -> Result<&Arc<TracingProvider>, AuthorizerFault> {
        match &self.extension_provider(name)?.kind {
            ProviderKind::Tracing(provider) => Ok(provider),
            ProviderKind::Broken(fact) => Err(AuthorizerFault::Broken(fact.clone())),
            _ => Err(AuthorizerFault::TakesNoSpans),
        }
    }

    /// Returns why these clients in a cluster cannot reach the upstream of a user's filter, or
    /// `None` if they can or the upstream is no service.
    pub fn upstream_fault(
        &self,
        upstream: &FilterUpstream,
        client: RuleClient<'_>,
        cluster: &ClusterId,
    ) -> Option<AuthorizerFault> {
        let (host, port, subset) = upstream.service.as_ref()?;
        let upstream_service =
            ProviderService { namespace: None, host: host.to_string(), port: *port };
        let service = match self.provider_service(&upstream_service, client, cluster) {
            Ok(service) => service,
            Err(fault) => return Some(fault),
        };
        let rules = self.rules_for(service);
        let rule = rules.rule(client, &service.primary.namespace);
        let has_subset =
            subset.is_empty() || rule.is_some_and(|rule| rule.subsets.contains_key(subset));
        (!has_subset).then(|| AuthorizerFault::NoSubset(upstream_service.host, Arc::clone(subset)))
    }

    /// Returns the provider's service, if these clients in a cluster choose among its endpoints.
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
            return Err(AuthorizerFault::NotLoadBalanced(host()));
        }
        let rules = self.rules_for(service);
        if let Some(rule) = rules.rule(client, found) {
            check_rule(rule, provider)?;
        }
        Ok(service)
    }

    /// Returns the provider with this name from the mesh config.
    fn extension_provider(&self, name: &str) -> Result<&ExtensionProvider, AuthorizerFault> {
        let mut named = self.mesh.extension_providers.iter().filter(|one| &*one.name == name);
        let first = named.next().ok_or(AuthorizerFault::Unknown)?;
        match named.next() {
            Some(_) => Err(AuthorizerFault::Ambiguous),
            None => Ok(first),
        }
    }

    /// Returns the authorization provider with this name, regardless of the client.
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

    /// Returns the providers whose service matches `hosts`, as pairs of provider name and hostname.
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

    /// Returns whether proxies of a namespace and cluster may use a service at all.
    pub fn shows(
        &self,
        service: &MergedService,
        namespace: &Namespace,
        cluster: &ClusterId,
    ) -> bool {
        service.primary.export_to.visible_to(namespace)
            && (self.is_at_home(service, cluster)
                || !(self.mesh.cluster_local(service.hostname()) || service.is_of_local_entry()))
    }

    /// Returns whether `cluster` itself has the service. A ServiceEntry belongs to all clusters,
    /// unless it is local to the cluster whose store has it.
    pub(super) fn is_at_home(&self, service: &MergedService, cluster: &ClusterId) -> bool {
        match service.is_of_local_entry() {
            true => self.settings.config_cluster.as_ref() == Some(cluster),
            false => service.is_visible_in(cluster),
        }
    }
}

/// Checks whether proxies that follow this rule have an upstream cluster for the provider that
/// chooses among its endpoints.
fn check_rule(rule: &DestinationRule, provider: &ProviderService) -> Result<(), AuthorizerFault> {
    let policy = rule.resolved("", provider.port);
    let by = || (provider.host.clone(), rule.namespace().clone(), Arc::clone(&rule.meta().name));
    if policy.passes_through() {
        let (host, namespace, name) = by();
        return Err(AuthorizerFault::PassedThrough(host, namespace, name));
    }
    // TLS that only routers support is not sufficient, because sidecars use the provider, too.
    if !policy.can_be_used_by(ProxyType::Sidecar) {
        let (host, namespace, name) = by();
        return Err(AuthorizerFault::UnsupportedTls(host, namespace, name));
    }
    Ok(())
}
