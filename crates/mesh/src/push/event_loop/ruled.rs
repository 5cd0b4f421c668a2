//! The active traffic rules, and their changes that wait for the next version: rules for the
//! proxies of all clusters, or for the proxies of one cluster with its own traffic objects
//! ([`ClusterOverrides`]).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use imbl::OrdMap;

use super::outputs::VariantOutputs;
use crate::aggregate::MergedService;
use crate::push::aliases::ServiceAliases;
use crate::push::context::{Private, PushContext};
use crate::push::subscription_index::{ChangedItem, Changes};
use crate::push::withholding::{Withholding, WithholdingInputs};
use strait_model::{Cause, Causes, ClusterId, Hostname};
use strait_rules::traffic::destination_rule::DestinationRule;
use strait_rules::traffic::retained_subsets::{MissedSubsets, RetainedSubsets};
use strait_rules::traffic::{HostPattern, Traffic, TrafficChanges, TrafficUpdate};

/// The start of an edition: the traffic rules for the proxies of a cluster whose
/// own traffic objects are active.
pub struct BegunEdition {
    /// The cluster.
    pub cluster: ClusterId,
    /// The traffic rules for the cluster's proxies.
    pub traffic: Arc<Traffic>,
    /// The receivers of the versions.
    pub outputs: VariantOutputs,
}

impl std::fmt::Debug for BegunEdition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BegunEdition").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

/// A version of an edition, with its changes and receivers.
#[derive(Clone)]
pub(super) struct EditionVersion {
    pub(super) cluster: ClusterId,
    pub(super) context: Arc<PushContext>,
    pub(super) changes: Changes,
    pub(super) outputs: VariantOutputs,
}

/// The mesh for the proxies of one cluster, with different traffic rules.
#[derive(Clone)]
pub(super) struct ClusterOverrides {
    pub(super) rules: RulesInUse,
    pub(super) outputs: VariantOutputs,
}

/// How long rules wait for a subset that no object defines. Objects of two kinds arrive by two
/// watches, so a VirtualService may arrive before the DestinationRule that was applied first.
const AWAITED_FOR: Duration = Duration::from_secs(1);
/// The time without waiting after a wait that timed out, so that a missing subset delays other
/// changes only once.
const NOT_AWAITED_FOR: Duration = Duration::from_secs(30);

/// Rules that route to a subset which proxies do not have yet. They wait, together with all later
/// updates, until a version with the subset has been published, or for at most [`AWAITED_FOR`] if
/// no object defines the subset. Until then, the previous routes remain.
#[derive(Clone)]
struct AwaitingRules {
    /// The latest update, combined with all earlier waiting changes.
    update: TrafficUpdate,
    /// Whether no object defines the subset.
    is_unknown: bool,
    /// The deadline; `None` until [`RulesInUse::expire`] is called.
    until: Option<Instant>,
}

/// The active rules, and the changes that wait for the next version.
#[derive(Clone, Default)]
pub(super) struct RulesInUse {
    pub(super) traffic: Arc<Traffic>,
    subsets: RetainedSubsets,
    /// Rules that are not active yet.
    awaiting: Option<AwaitingRules>,
    /// Until this time, rules do not wait for undefined subsets, because a recent wait timed out.
    waits_no_more_until: Option<Instant>,
    /// Changes that wait for the next version.
    touched: TrafficChanges,
    withholding: Withholding,
    /// See [`PushContext::definitions`].
    pub(super) definitions: u64,
}

impl RulesInUse {
    /// Returns the rules of an edition that starts after `version`. No stream has received any
    /// other rules there.
    pub(super) fn of(traffic: Arc<Traffic>, version: u64) -> Self {
        let mut subsets = RetainedSubsets::default();
        subsets.take(Arc::clone(&traffic), Hostname::clone);
        Self { traffic, subsets, definitions: version, ..Self::default() }
    }

    /// Activates new rules unless they must [wait](AwaitingRules). Returns the objects that caused
    /// the activated changes.
    pub(super) fn apply(
        &mut self,
        mut update: TrafficUpdate,
        aliases: &ServiceAliases,
        domain: &str,
    ) -> Causes {
        let mut until = None;
        if let Some(before) = self.awaiting.take() {
            until = before.until;
            update = before.update.followed_by(update);
        }
        let target = |host: &Hostname| aliases.target(host).clone();
        let missed = match self.definitions {
            // No version has been published yet.
            0 => MissedSubsets::default(),
            _ => self.subsets.missed(&update.traffic, target),
        };
        let is_unknown = missed.is_unknown && self.waits_no_more_until.is_none();
        let is_delayed = is_unknown || missed.is_unpublished;
        let ahead = self.subsets.put_ahead(missed);
        if !is_delayed && ahead.is_empty() {
            return self.activate(update, aliases, domain);
        }
        self.touched.hosts.extend(ahead);
        self.traffic = self.subsets.active(domain);
        self.awaiting = Some(AwaitingRules { update, is_unknown, until });
        Causes::default()
    }

    fn activate(
        &mut self,
        update: TrafficUpdate,
        aliases: &ServiceAliases,
        domain: &str,
    ) -> Causes {
        self.touched.merge(update.changes);
        let dropped = self.subsets.take(update.traffic, |host| aliases.target(host).clone());
        self.drop_expired(&dropped, domain);
        update.causes
    }

    /// Drops [subsets](RetainedSubsets) that were retained until `now`, and activates rules whose
    /// [wait](AwaitingRules) is over. Returns when the next such change is due.
    pub(super) fn expire(
        &mut self,
        now: Instant,
        aliases: &ServiceAliases,
        domain: &str,
        causes: &mut Causes,
    ) -> Option<Instant> {
        self.waits_no_more_until.take_if(|until| *until <= now);
        let is_published = self.touched.is_empty();
        let has_ended = |awaiting_rules: &mut AwaitingRules| match awaiting_rules.is_unknown {
            true => *awaiting_rules.until.get_or_insert(now + AWAITED_FOR) <= now,
            false => is_published,
        };
        if let Some(AwaitingRules { update, is_unknown, .. }) = self.awaiting.take_if(has_ended) {
            if is_unknown {
                self.waits_no_more_until = Some(now + NOT_AWAITED_FOR);
            }
            causes.merge(self.activate(update, aliases, domain));
        }
        let dropped = self.subsets.expire(now);
        if !dropped.is_empty() {
            self.drop_expired(&dropped, domain);
            let cause_of = |rule: &Arc<DestinationRule>| Cause {
                namespace: rule.namespace().as_str().into(),
                ..Cause::named(ClusterId::default(), "DestinationRule", &*rule.meta().name)
            };
            dropped.iter().for_each(|rule| causes.add(cause_of(rule)));
        }
        let awaiting = self.awaiting.as_ref().filter(|awaiting_rules| awaiting_rules.is_unknown);
        let awaiting = awaiting.and_then(|awaiting_rules| awaiting_rules.until);
        [self.subsets.due(), awaiting, self.waits_no_more_until].into_iter().flatten().min()
    }

    /// Activates the current rules and retained subsets, without the dropped ones.
    fn drop_expired(&mut self, dropped: &[Arc<DestinationRule>], domain: &str) {
        self.touched.hosts.extend(dropped.iter().map(|rule| rule.host.clone()));
        self.traffic = self.subsets.active(domain);
    }

    pub(super) fn is_dirty(&self) -> bool {
        !self.touched.is_empty()
    }

    /// Returns whether rules are waiting; see [`AwaitingRules`].
    pub(super) fn awaits(&self) -> bool {
        self.awaiting.is_some()
    }

    /// Adds the services that the changed rules affect. For wildcards, adds all matching services.
    /// `renamed` are aliases whose target changed.
    pub(super) fn note(
        &mut self,
        (mesh, withholding): (ServiceNamesInUse<'_>, WithholdingInputs<'_>),
        renamed: &BTreeSet<Hostname>,
        changes: &mut Changes,
    ) {
        let mut touched = std::mem::take(&mut self.touched);
        let withheld = self.withholding.take(&mut self.traffic, withholding, changes);
        touched.hosts.extend(withheld.hosts);
        touched.gateways |= withheld.gateways;
        let TrafficChanges { hosts, scopes, every_scope, logging, filters, selectors, gateways } =
            touched;
        hosts.iter().for_each(|pattern| mesh.note_ruled(pattern, changes));
        if selectors {
            changes.deps.insert(ChangedItem::Selectors);
        }
        if every_scope {
            changes.deps.insert(ChangedItem::Mesh);
        }
        changes.deps.extend(scopes.into_iter().map(ChangedItem::Imports));
        changes.deps.extend(logging.into_iter().map(ChangedItem::Logging));
        changes.deps.extend(filters.into_iter().map(ChangedItem::Filters));
        if gateways {
            changes.deps.insert(ChangedItem::Gateways);
        }
        // Routes without a port use the only port of the destination and choose endpoints by the
        // rules of the destination.
        let Traffic { virtual_services: services, destination_rules: rules, .. } = &*self.traffic;
        let aliases = mesh.aliases;
        let mut depending = BTreeSet::new();
        for dep in &changes.deps {
            let (host, all_routes) = match dep {
                ChangedItem::Definition(host) => (host, !rules.of(host.as_str()).is_empty()),
                ChangedItem::Traffic(host) => (host, true),
                _ => continue,
            };
            for name in std::iter::once(host).chain(&aliases.names_of(host)) {
                match all_routes {
                    true => depending.extend(services.leading_to(name)),
                    false => depending.extend(services.depending_on(name)),
                }
            }
        }
        // Routes to an alias now go to a different service, and other services may enter scopes
        // because of that.
        for host in renamed {
            for name in std::iter::once(host).chain(&aliases.names_of(host)) {
                depending.extend(services.leading_to(name));
            }
        }
        depending.into_iter().for_each(|pattern| mesh.note_ruled(pattern, changes));
    }

    /// Records whether a version changed more than assignments.
    pub(super) fn settle(&mut self, version: u64, changes: &Changes) {
        self.subsets.published();
        if changes.is_everything() || changes.affects_services() {
            self.definitions = version;
        }
    }
}

/// The services that rules may match.
#[derive(Clone, Copy)]
pub(super) struct ServiceNamesInUse<'a> {
    pub(super) services: &'a OrdMap<Hostname, Arc<MergedService>>,
    pub(super) private: &'a Private,
    pub(super) aliases: &'a ServiceAliases,
}

impl ServiceNamesInUse<'_> {
    /// Records a host pattern whose rules changed, and all matching services if it is a wildcard.
    fn note_ruled(self, pattern: &HostPattern, changes: &mut Changes) {
        // A wildcard may have its own routes.
        changes.deps.insert(ChangedItem::Traffic(pattern.to_string().into()));
        if pattern.exact().is_none() {
            let names = self.services.keys().chain(self.private.keys());
            let matching = names.filter(|host| pattern.matches(host.as_str()));
            changes.deps.extend(matching.cloned().map(ChangedItem::Traffic));
        }
    }
}
