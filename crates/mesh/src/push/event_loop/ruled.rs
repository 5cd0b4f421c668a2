//! The traffic rules in force for some proxies, and what of them waits for the next version: for those of all clusters, or
//! for those of one that has traffic objects of its own ([`Edition`]).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use imbl::OrdMap;

use super::outputs::HeadOutputs;
use crate::aggregate::MergedService;
use crate::push::aliases::ServiceAliases;
use crate::push::context::{Private, PushContext};
use crate::push::interest::{Changes, Dep};
use crate::push::withholding::{Withholding, WithholdingInputs};
use strait_model::{Cause, Causes, ClusterId, Hostname};
use strait_rules::traffic::destination_rule::DestinationRule;
use strait_rules::traffic::kept_subsets::{KeptSubsets, MissedSubsets};
use strait_rules::traffic::{HostPattern, Traffic, TrafficChanges, TrafficUpdate};

/// An edition of the mesh that begins: for the proxies of a cluster whose own traffic objects count for them.
pub struct BegunEdition {
    /// Whose proxies.
    pub cluster: ClusterId,
    /// What holds for them.
    pub traffic: Arc<Traffic>,
    /// Where its versions go.
    pub outputs: HeadOutputs,
}

impl std::fmt::Debug for BegunEdition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BegunEdition").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

/// A version of an edition, what it changed, and where it goes.
#[derive(Clone)]
pub(super) struct EditionVersion {
    pub(super) cluster: ClusterId,
    pub(super) context: Arc<PushContext>,
    pub(super) changes: Changes,
    pub(super) outputs: HeadOutputs,
}

/// The mesh as proxies of one cluster are given it: with other rules.
#[derive(Clone)]
pub(super) struct Edition {
    pub(super) rules: RulesInUse,
    pub(super) outputs: HeadOutputs,
}

/// How long rules wait for a subset that they lead to. Objects of two kinds come by two watches, so that a VirtualService may be
/// heard of before the DestinationRule that was applied ahead of it.
const AWAITED_FOR: Duration = Duration::from_secs(1);
/// How long none do after they have waited in vain: a subset that nobody has delays others' edits once, and not one after
/// the other.
const NOT_AWAITED_FOR: Duration = Duration::from_secs(30);

/// Rules that lead to a subset which proxies don't have yet. They wait, with all that is heard meanwhile, until a version has been
/// published with it; where no object has it, for [`AWAITED_FOR`] at most. Until then requests go where they went.
#[derive(Clone)]
struct AwaitingRules {
    /// The last that objects said, and all that it changes.
    update: TrafficUpdate,
    /// Whether no object has it.
    is_unknown: bool,
    /// `None` until the time is first told.
    until: Option<Instant>,
}

/// Rules in force, and what of them waits for the next version.
#[derive(Clone, Default)]
pub(super) struct RulesInUse {
    pub(super) traffic: Arc<Traffic>,
    kept: KeptSubsets,
    /// What objects say that is not in force yet.
    awaiting: Option<AwaitingRules>,
    /// Until when what no object has is not waited for: it was in vain a moment ago.
    waits_no_more_until: Option<Instant>,
    /// What waits for the next version.
    touched: TrafficChanges,
    withholding: Withholding,
    /// See [`PushContext::definitions`].
    pub(super) definitions: u64,
}

impl RulesInUse {
    /// Those of an edition that begins after that version. Nobody was given anything else there.
    pub(super) fn of(traffic: Arc<Traffic>, version: u64) -> Self {
        let mut kept = KeptSubsets::default();
        kept.take(Arc::clone(&traffic), Hostname::clone);
        Self { traffic, kept, definitions: version, ..Self::default() }
    }

    /// Takes what objects say now, and puts it in force, unless it [awaits](AwaitingRules) more. The objects behind what is in
    /// force since.
    pub(super) fn take(
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
            // Nobody has been given anything yet.
            0 => MissedSubsets::default(),
            _ => self.kept.missed(&update.traffic, target),
        };
        let is_unknown = missed.is_unknown && self.waits_no_more_until.is_none();
        let waits = is_unknown || missed.is_unpublished;
        let ahead = self.kept.put_ahead(missed);
        if !waits && ahead.is_empty() {
            return self.put_in_force(update, aliases, domain);
        }
        self.touched.hosts.extend(ahead);
        self.traffic = self.kept.in_force(domain);
        self.awaiting = Some(AwaitingRules { update, is_unknown, until });
        Causes::default()
    }

    fn put_in_force(
        &mut self,
        update: TrafficUpdate,
        aliases: &ServiceAliases,
        domain: &str,
    ) -> Causes {
        self.touched.merge(update.changes);
        let gone = self.kept.take(update.traffic, |host| aliases.target(host).clone());
        self.go_without(&gone, domain);
        update.causes
    }

    /// Has [subsets](KeptSubsets) go that were kept until `now`, and rules be in force that [await](AwaitingRules) more no
    /// longer. When there is the next one to do so.
    pub(super) fn expire(
        &mut self,
        now: Instant,
        aliases: &ServiceAliases,
        domain: &str,
        causes: &mut Causes,
    ) -> Option<Instant> {
        self.waits_no_more_until.take_if(|until| *until <= now);
        let is_published = self.touched.is_empty();
        let is_over = |one: &mut AwaitingRules| match one.is_unknown {
            true => *one.until.get_or_insert(now + AWAITED_FOR) <= now,
            false => is_published,
        };
        if let Some(AwaitingRules { update, is_unknown, .. }) = self.awaiting.take_if(is_over) {
            if is_unknown {
                self.waits_no_more_until = Some(now + NOT_AWAITED_FOR);
            }
            causes.merge(self.put_in_force(update, aliases, domain));
        }
        let gone = self.kept.expire(now);
        if !gone.is_empty() {
            self.go_without(&gone, domain);
            let of = |rule: &Arc<DestinationRule>| Cause {
                namespace: rule.namespace().as_str().into(),
                ..Cause::named(ClusterId::default(), "DestinationRule", &*rule.meta().name)
            };
            gone.iter().for_each(|rule| causes.add(of(rule)));
        }
        let awaiting = self.awaiting.as_ref().filter(|one| one.is_unknown);
        let awaiting = awaiting.and_then(|one| one.until);
        [self.kept.due(), awaiting, self.waits_no_more_until].into_iter().flatten().min()
    }

    /// Puts in force what objects say and what is kept, which is nothing more of these rules.
    fn go_without(&mut self, gone: &[Arc<DestinationRule>], domain: &str) {
        self.touched.hosts.extend(gone.iter().map(|rule| rule.host.clone()));
        self.traffic = self.kept.in_force(domain);
    }

    pub(super) fn is_dirty(&self) -> bool {
        !self.touched.is_empty()
    }

    /// Whether objects say what is not in force yet: see [`AwaitingRules`].
    pub(super) fn awaits(&self) -> bool {
        self.awaiting.is_some()
    }

    /// The services that changed rules are about. Of wildcards these are all that there are of them. `renamed` are names that
    /// stand for something else than before.
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
            changes.deps.insert(Dep::Selectors);
        }
        if every_scope {
            changes.deps.insert(Dep::Mesh);
        }
        changes.deps.extend(scopes.into_iter().map(Dep::Imports));
        changes.deps.extend(logging.into_iter().map(Dep::Logging));
        changes.deps.extend(filters.into_iter().map(Dep::Filters));
        if gateways {
            changes.deps.insert(Dep::Gateways);
        }
        // Routes that name no port lead to the only one that a service has, and choose endpoints as rules of their
        // destinations say.
        let Traffic { virtual_services: services, destination_rules: rules, .. } = &*self.traffic;
        let aliases = mesh.aliases;
        let mut depending = BTreeSet::new();
        for dep in &changes.deps {
            let (host, by_any) = match dep {
                Dep::Definition(host) => (host, !rules.of(host.as_str()).is_empty()),
                Dep::Traffic(host) => (host, true),
                _ => continue,
            };
            for name in std::iter::once(host).chain(&aliases.names_of(host)) {
                match by_any {
                    true => depending.extend(services.leading_to(name)),
                    false => depending.extend(services.depending_on(name)),
                }
            }
        }
        // What led to an alias leads elsewhere now, and other services may come into scopes for that.
        for host in renamed {
            for name in std::iter::once(host).chain(&aliases.names_of(host)) {
                depending.extend(services.leading_to(name));
            }
        }
        depending.into_iter().for_each(|pattern| mesh.note_ruled(pattern, changes));
    }

    /// Takes note of whether a version changed more than assignments.
    pub(super) fn settle(&mut self, version: u64, changes: &Changes) {
        self.kept.published();
        if changes.is_everything() || changes.is_of_services() {
            self.definitions = version;
        }
    }
}

/// The services that rules may be about.
#[derive(Clone, Copy)]
pub(super) struct ServiceNamesInUse<'a> {
    pub(super) services: &'a OrdMap<Hostname, Arc<MergedService>>,
    pub(super) private: &'a Private,
    pub(super) aliases: &'a ServiceAliases,
}

impl ServiceNamesInUse<'_> {
    /// A host of which rules changed, or all that there are of a wildcard.
    fn note_ruled(self, pattern: &HostPattern, changes: &mut Changes) {
        // A wildcard may have routes of its own.
        changes.deps.insert(Dep::Traffic(pattern.to_string().into()));
        if pattern.exact().is_none() {
            let names = self.services.keys().chain(self.private.keys());
            let held = names.filter(|host| pattern.matches(host.as_str()));
            changes.deps.extend(held.cloned().map(Dep::Traffic));
        }
    }
}
