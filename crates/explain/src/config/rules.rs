//! Status of DestinationRules: the clients to which each applies.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::clients::{
    Audience, RouterGroup, all_seen, audience, is_imported, of_clients, proxied, seen,
};
use super::objects::{SubsetPaths, port_path};
use super::{ConfigView, Finding};
use crate::standing::ObjectStanding;
use strait_base::codes;
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::subset::SubsetFilter;
use strait_mesh::push::view::is_exported;
use strait_model::{ExportTo, Hostname, Namespace, Port, Protocol, Resolution};
use strait_rules::traffic::destination_rule::{DestinationRule, RuleClient};
use strait_rules::traffic::object::ObjectMeta;
use strait_rules::traffic::policy::{Algorithm, PolicyGroups, TrafficPolicy};
use strait_rules::traffic::{HostPattern, Reason, Selection, TrafficObject};

impl ConfigView<'_> {
    pub(super) fn destination_rule(&self, rule: &DestinationRule, object: &Value) -> Finding {
        let own = rule.meta();
        if rule.export_to == ExportTo::Namespaces(Vec::new()) {
            let text = "it applies to no client";
            return Finding::unused(&codes::EXPORTED_TO_NOBODY, "spec.exportTo", text);
        }
        if !self.has_services(&rule.host) {
            if !self.is_none(&rule.host) {
                return Finding::default();
            }
            let text = format!("there is no service {}", rule.host);
            return Finding::unused(&codes::HOST_UNKNOWN, "spec.host", text);
        }
        if let Some(host) = rule.host.exact()
            && let Some(service) = self.context.services.get(host)
            && let Resolution::Alias(_) = &service.primary.resolution
        {
            let target = self.context.aliases.target(service.hostname());
            let text = format!(
                "{host} is an alias of {target}: only a DestinationRule of that name applies"
            );
            return Finding::unused(&codes::HOST_UNKNOWN, "spec.host", text);
        }
        if let Some(labels) = rule.selector.as_ref().filter(|_| self.services_known)
            && !self.is_carried(labels, &own.namespace)
        {
            let text = "no known workload has these labels";
            return Finding::unused(&codes::SELECTOR_UNUSED, "spec.workloadSelector", text);
        }
        let selection = match &rule.selector {
            Some(labels) => self.context.traffic.selection(&own.namespace, labels),
            None => Selection::default(),
        };
        let audience = self.audience(rule);
        let mut found = self.applied_rules(rule, &selection, &audience);
        if found.standing.is_some() {
            return found;
        }
        found.reasons.extend(self.refused_tls(rule, &selection, &audience, object));
        found.reasons.extend(self.ports_of_rule(rule, object));
        found.reasons.extend(self.upgrades_of_unknown_protocols(rule, object));
        let chosen = self.chosen_by_client(rule, object);
        if chosen.is_empty() {
            found.reasons.extend(self.empty_subsets(rule, object));
            found.reasons.extend(self.withheld_subsets(rule, object));
            found.reasons.extend(self.unplaced(rule));
        }
        found.reasons.extend(chosen);
        found.reasons.extend(self.policy_at_libraries(rule));
        found.proxies = self.clients.count(|namespace, selection| {
            let services = all_seen(self.context, &rule.host, namespace);
            let client = RuleClient { namespace, selection };
            services.into_iter().any(|service| {
                let is_given = is_imported(self.context, service, namespace, selection)
                    || self.context.leads_to(service.hostname(), namespace, selection);
                is_given && self.rule_of(service, client, own).is_ok()
            })
        });
        let routers = self.routers().iter().filter(|routers| self.decides_at(rule, routers));
        found.proxies += routers.map(|routers| routers.count).sum::<usize>();
        if self.clients.gateways() > 0 && self.applies_at_gateways(rule) {
            found.proxies += self.clients.gateways();
        }
        found
    }

    /// Returns whether a DestinationRule is active for a service to which routers route.
    fn decides_at(&self, rule: &DestinationRule, routers: &RouterGroup<'_>) -> bool {
        let RouterGroup { namespace, selection, leads_to, .. } = routers;
        let client = RuleClient { namespace, selection };
        let decides = |host: &&Hostname| {
            let service = seen(self.context, host.as_str(), namespace);
            service.is_some_and(|service| self.rule_of(service, client, rule.meta()).is_ok())
        };
        match rule.host.exact() {
            Some(host) => leads_to.get(host).is_some_and(decides),
            None => {
                let of_pattern =
                    |host: &&&Hostname| rule.host.contains(&HostPattern::for_service(host));
                leads_to.iter().filter(of_pattern).any(decides)
            }
        }
    }

    /// Returns the clients to which a DestinationRule applies, and the rules that apply instead for
    /// others.
    fn applied_rules(
        &self,
        rule: &DestinationRule,
        selection: &Selection,
        audience: &Audience,
    ) -> Finding {
        let own = rule.meta();
        let (mut held, mut lost) = (BTreeSet::new(), BTreeSet::new());
        let (mut winners, mut active) = (BTreeSet::new(), None);
        for namespace in audience {
            let client = RuleClient { namespace, selection };
            for service in all_seen(self.context, &rule.host, namespace) {
                match self.rule_of(service, client, own) {
                    Ok(rule) => {
                        held.insert(namespace.clone());
                        active = Some(rule);
                    }
                    Err(Some(other)) => {
                        lost.insert(namespace.clone());
                        winners.insert(other);
                    }
                    Err(None) => {}
                }
            }
        }
        let mut found = Finding::default();
        let winners: Vec<_> = winners.iter().map(ToString::to_string).collect();
        let named = winners.join(", ");
        if held.is_empty() && !winners.is_empty() {
            let text = format!("DestinationRule {named} applies to {} instead", rule.host);
            found.reasons.push(Reason::lost(&codes::RULE_SHADOWED, "spec.host", text));
            found.standing = Some(ObjectStanding::Shadowed);
        } else if held.is_empty() {
            let text = format!(
                "no client of {} to which it is exported uses rules of namespace {}",
                rule.host, own.namespace
            );
            found.reasons.push(Reason::lost(&codes::RULE_SHADOWED, "spec.host", text));
            found.standing = Some(ObjectStanding::Unused);
        } else if self.services_known
            && !held.iter().any(|namespace| self.may_have_clients(namespace))
            && !self.applies_at_gateways(rule)
        {
            let named: Vec<_> = held.iter().map(Namespace::as_str).collect();
            let text = format!(
                "clients use rules of their own namespace, of the service's namespace and of {}, and no workload of namespace {} \
                 is known",
                self.context.mesh.root_namespace,
                named.join(", ")
            );
            found.reasons.push(Reason::lost(&codes::RULE_SHADOWED, "metadata.namespace", text));
            found.standing = Some(ObjectStanding::Unused);
        } else {
            if !winners.is_empty() && rule.host.exact().is_some() {
                lost.retain(|namespace| !held.contains(namespace));
                let of_losers = of_clients(&lost, audience);
                if !lost.is_empty() && !of_losers.is_empty() {
                    let text = format!("DestinationRule {named} applies instead{of_losers}");
                    found.reasons.push(Reason::warning(&codes::RULE_SHADOWED, "spec.host", text));
                }
            }
            if let Some(active) = active.filter(|one| one.objects.len() > 1) {
                found.reasons.extend(self.merged_away(rule, &active));
            }
        }
        found
    }

    /// Returns the namespaces whose clients may find the DestinationRule: all, if it is in the
    /// namespace of the service or in the root namespace, or else only its own.
    fn audience(&self, rule: &DestinationRule) -> Audience {
        let own = &rule.meta().namespace;
        let is_in_own = |service: &MergedService| service.primary.namespace == *own;
        let is_general = own.as_str() == self.context.mesh.root_namespace
            || match rule.host.exact() {
                Some(host) => self.context.services.get(host).is_some_and(|one| is_in_own(one)),
                None => true,
            };
        let mut special: Audience = [own.clone()].into();
        if !is_general {
            let exported = rule.export_to.visible_to(own);
            return special.into_iter().filter(|_| exported).collect();
        }
        if let Some(host) = rule.host.exact() {
            let rules = self.context.traffic.destination_rules.of(host.as_str());
            special.extend(rules.namespaces().cloned());
        }
        audience(&rule.export_to, special.into_iter())
    }

    /// Returns the parts of an object that an older object for the same host replaces when they are
    /// merged.
    fn merged_away(&self, rule: &DestinationRule, active: &DestinationRule) -> Vec<Reason> {
        let own = rule.meta();
        let older = active.objects.iter().take_while(|one| *one != own);
        let older: Vec<&DestinationRule> =
            older.filter_map(|meta| self.rule_object(meta)).collect();
        let mut reasons = Vec::new();
        if rule.policy.is_some()
            && let Some(first) = older.iter().find(|one| one.policy.is_some())
        {
            let text = format!("the policy of {} is older and applies instead", first.meta());
            reasons.push(Reason::lost(&codes::RULE_SHADOWED, "spec.trafficPolicy", text));
        }
        for name in rule.subsets.keys() {
            if let Some(first) = older.iter().find(|one| one.subsets.contains_key(name)) {
                let text =
                    format!("subset {name} of {} is older and applies instead", first.meta());
                reasons.push(Reason::lost(&codes::RULE_SHADOWED, "spec.subsets", text));
            }
        }
        reasons
    }

    fn rule_object(&self, meta: &ObjectMeta) -> Option<&DestinationRule> {
        self.reports.traffic.values().find_map(|report| match report.good() {
            Some((_, TrafficObject::DestinationRule(rule))) if rule.meta() == meta => Some(&**rule),
            _ => None,
        })
    }

    /// Returns the active rule for a client of a service if `object` is a part of it, or else the
    /// object that is active instead.
    pub(super) fn rule_of(
        &self,
        service: &MergedService,
        client: RuleClient<'_>,
        object: &ObjectMeta,
    ) -> Result<Arc<DestinationRule>, Option<ObjectMeta>> {
        let rules = self.context.traffic.destination_rules.of(service.hostname().as_str());
        match rules.rule(client, &service.primary.namespace) {
            Some(rule) if rule.objects.contains(object) => Ok(Arc::clone(rule)),
            Some(rule) => Err(Some(rule.meta().clone())),
            None => Err(None),
        }
    }

    /// Returns whether a DestinationRule applies to east-west gateways.
    fn applies_at_gateways(&self, rule: &DestinationRule) -> bool {
        let no_namespace = Namespace::default();
        let services = all_seen(self.context, &rule.host, &no_namespace);
        services.into_iter().filter(|service| is_exported(self.context, service)).any(|service| {
            let rules = self.context.traffic.destination_rules.of(service.hostname().as_str());
            let owners = rules.owners(&service.primary.namespace);
            owners.is_some_and(|one| one.objects.contains(rule.meta()))
        })
    }

    fn has_services(&self, host: &HostPattern) -> bool {
        match host {
            HostPattern::Exact(host) => {
                self.context.services.contains_key(host.as_str())
                    || self.context.private.contains_key(host.as_str())
            }
            HostPattern::Under(_) => self
                .context
                .all_services()
                .any(|one| host.contains(&HostPattern::for_service(one.hostname()))),
        }
    }

    /// Reports locality settings for endpoints that proxies resolve by name, which all belong to
    /// one locality.
    fn unplaced(&self, rule: &DestinationRule) -> Option<Reason> {
        let service = rule.host.exact().and_then(|host| self.context.services.get(host))?;
        let sets_locality = |policy: &Arc<TrafficPolicy>| {
            let balancing = policy.groups.load_balancer.as_deref();
            balancing.is_some_and(|balancing| balancing.locality.is_some())
        };
        let is_by_name = match &service.primary.resolution {
            Resolution::ByName(named) => {
                let mut all = named.endpoints.iter().map(|one| &one.locality);
                let first = all.next();
                all.any(|other| Some(other) != first)
            }
            _ => false,
        };
        let text = "endpoints that proxies resolve by name (resolution DNS) belong to one locality: this has no effect on them";
        let path = "spec.trafficPolicy.loadBalancer.localityLbSetting";
        (is_by_name && rule.policy.as_ref().is_some_and(sets_locality))
            .then(|| Reason::lost(&codes::TRAFFIC_UNSUPPORTED, path, text))
    }

    /// Reports labels of subsets and settings for the choice of endpoints, if the clients of all
    /// services of the rule choose the endpoints themselves.
    fn chosen_by_client(&self, rule: &DestinationRule, object: &Value) -> Vec<Reason> {
        let policies = rule.policy.iter().map(|policy| (policy, "spec.trafficPolicy".to_owned()));
        let paths = SubsetPaths::of(object);
        let of_subsets = rule.subsets.iter().filter_map(|(name, subset)| {
            Some((subset.policy.as_ref()?, format!("{}.trafficPolicy", paths.path(name))))
        });
        let balances = |groups: &PolicyGroups| {
            let balancing = groups.load_balancer.as_deref();
            balancing.is_some_and(|one| one.algorithm != Algorithm::Passthrough)
        };
        let settings = policies.chain(of_subsets).flat_map(|(policy, path)| {
            let at_port = |port: &u16| port_path(object, &path, *port);
            let ports = policy.ports.iter().map(|(port, groups)| (groups, at_port(port)));
            let all = ports.chain([(&policy.groups, path.clone())]);
            let set = all.filter(|(groups, _)| balances(groups));
            set.map(|(_, path)| format!("{path}.loadBalancer")).collect::<Vec<_>>()
        });
        let labels = rule.subsets.keys().map(|name| format!("{}.labels", paths.path(name)));
        let lost: Vec<String> = labels.chain(settings).collect();
        if lost.is_empty() || !self.is_chosen_by_client(&rule.host) {
            return Vec::new();
        }
        let text = format!(
            "no effect: clients of {} choose the address of an endpoint themselves (headless, or resolution NONE)",
            rule.host
        );
        let reason = |path| Reason::lost(&codes::TRAFFIC_UNSUPPORTED, path, &text);
        lost.into_iter().map(reason).collect()
    }

    /// Returns whether the clients of all services of a host choose the endpoints themselves. A
    /// gRPC library chooses among the endpoints of a headless service.
    fn is_chosen_by_client(&self, host: &HostPattern) -> bool {
        let is_chosen =
            |service: &Arc<MergedService>| service.primary.resolution.is_chosen_by_client();
        let is_chosen_by_all = match host {
            HostPattern::Exact(host) => {
                let private = self.context.private.get(host.as_str());
                let private = private.into_iter().flat_map(|all| all.values());
                let mut all = self.context.services.get(host.as_str()).into_iter().chain(private);
                all.all(is_chosen)
            }
            HostPattern::Under(_) => {
                let all = self.context.all_services();
                let mut own =
                    all.filter(|one| host.contains(&HostPattern::for_service(one.hostname())));
                own.all(is_chosen)
            }
        };
        is_chosen_by_all && !self.clients.proxies().iter().any(|proxy| proxy.is_proxyless())
    }

    /// Reports subsets without endpoints, for a service that has endpoints.
    fn empty_subsets(&self, rule: &DestinationRule, object: &Value) -> Vec<Reason> {
        let service = rule.host.exact().and_then(|host| self.context.services.get(host));
        let Some(service) = service else { return Vec::new() };
        let by_name = match &service.primary.resolution {
            Resolution::ByName(by_name) => &by_name.endpoints[..],
            _ => &[],
        };
        if by_name.is_empty() && service.endpoints().next().is_none() {
            return Vec::new();
        }
        let rules = self.context.rules_for(service);
        let is_empty = |name: &&Arc<str>| {
            SubsetFilter::new(&rules, Some(rule), service, name).is_some_and(|subset| {
                let mut all = service.endpoints();
                !all.any(|(shard, one, network)| subset.contains(&shard.cluster, network, one))
                    && !by_name.iter().any(|one| subset.contains_named(one))
            })
        };
        let paths = SubsetPaths::of(object);
        let reason = |name: &Arc<str>| {
            let path = format!("{}.labels", paths.path(name));
            let text = format!(
                "no endpoint of {} has the labels of subset {name}: requests are answered with 503",
                rule.host
            );
            Reason::warning(&codes::SUBSET_EMPTY, path, text)
        };
        rule.subsets.keys().filter(is_empty).map(reason).collect()
    }

    /// Reports subsets with endpoints in several networks whose labels gateways do not know.
    fn withheld_subsets(&self, rule: &DestinationRule, object: &Value) -> Vec<Reason> {
        let service = rule.host.exact().and_then(|host| self.context.services.get(host));
        let Some(service) = service else { return Vec::new() };
        let rules = self.context.rules_for(service);
        let is_withheld = |name: &&Arc<str>| {
            let subset = SubsetFilter::new(&rules, Some(rule), service, name);
            subset.filter(SubsetFilter::is_near).is_some_and(|subset| {
                let all = service.endpoints();
                let own = all
                    .filter(|(shard, one, network)| subset.contains(&shard.cluster, network, *one));
                own.map(|(_, _, network)| network).collect::<BTreeSet<_>>().len() > 1
            })
        };
        let paths = SubsetPaths::of(object);
        let reason = |name: &Arc<str>| {
            let text = format!(
                "gateways don't know subset {name} of {} by these labels: clients receive only endpoints of their own network",
                rule.host
            );
            Reason::warning(&codes::SUBSET_WITHHELD, format!("{}.labels", paths.path(name)), text)
        };
        rule.subsets.keys().filter(is_withheld).map(reason).collect()
    }

    /// Reports settings for ports that no service of the rule has.
    fn ports_of_rule(&self, rule: &DestinationRule, object: &Value) -> Vec<Reason> {
        let policies = policies_of(rule, object);
        if policies.iter().all(|(policy, _)| policy.ports.is_empty()) {
            return Vec::new();
        }
        let has: BTreeSet<u16> = self.ports_of_host(rule).map(|port| port.number).collect();
        let list = has.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
        let mut reasons = Vec::new();
        for (policy, path) in policies {
            for port in policy.ports.keys().filter(|port| !has.contains(port)) {
                let text = format!("{} has no port {port}; it has {list}", rule.host);
                let path = port_path(object, &path, *port);
                reasons.push(Reason::lost(&codes::TRAFFIC_PORT, path, text));
            }
        }
        reasons
    }

    /// Iterates over the ports of the services with a rule's host.
    fn ports_of_host<'s>(&'s self, rule: &'s DestinationRule) -> impl Iterator<Item = &'s Port> {
        let is_of_host = |one: &&Arc<MergedService>| {
            rule.host.contains(&HostPattern::for_service(one.hostname()))
        };
        self.context.all_services().filter(is_of_host).flat_map(|one| proxied(one))
    }

    /// Reports upgrades to HTTP/2 that apply to no port, because the ports declare no protocol.
    fn upgrades_of_unknown_protocols(&self, rule: &DestinationRule, object: &Value) -> Vec<Reason> {
        let is_upgrade = |groups: &PolicyGroups| {
            let pool = groups.connection_pool.as_deref();
            pool.is_some_and(|pool| pool.h2_upgrade == Some(true) && !pool.use_client_protocol)
        };
        let mut reasons = Vec::new();
        let mut note = |path: String, number: Option<u16>| {
            let ports = self.ports_of_host(rule);
            let ports = ports.filter(|port| number.is_none_or(|number| port.number == number));
            let protocols: Vec<Protocol> = ports.map(|port| port.protocol).collect();
            let is_unknown = protocols.contains(&Protocol::Auto);
            if !is_unknown || protocols.iter().any(|protocol| protocol.is_http()) {
                return;
            }
            let text = format!(
                "a port of {} without a protocol keeps the protocol of the client: name the port http, or set its appProtocol",
                rule.host
            );
            let path = format!("{path}.connectionPool.http.h2UpgradePolicy");
            reasons.push(Reason::lost(&codes::TRAFFIC_UNSUPPORTED, path, text));
        };
        for (policy, path) in policies_of(rule, object) {
            for (port, _) in policy.ports.iter().filter(|(_, groups)| is_upgrade(groups)) {
                note(port_path(object, &path, *port), Some(*port));
            }
            if is_upgrade(&policy.groups) {
                note(path, None);
            }
        }
        reasons
    }
}

/// Returns the traffic policies of a rule and of its subsets, each with its path.
fn policies_of<'r>(
    rule: &'r DestinationRule,
    object: &Value,
) -> Vec<(&'r Arc<TrafficPolicy>, String)> {
    let paths = SubsetPaths::of(object);
    let policies = rule.policy.iter().map(|policy| (policy, "spec.trafficPolicy".to_owned()));
    let subsets = rule.subsets.iter().filter_map(|(name, subset)| {
        let path = format!("{}.trafficPolicy", paths.path(name));
        Some((subset.policy.as_ref()?, path))
    });
    policies.chain(subsets).collect()
}
