//! The configuration: the stored objects, and the part of them that is active.
//!
//! Pure. Both are equal except during a hold (`strait_mesh::hold`) or a rollout. During these, the
//! held configuration is active, and the stored objects are read and checked next to it. This
//! module owns the indexes of both. Trust is never held back: roots and trust domains always follow
//! the stored objects, and access policies do unless the hold includes them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::SystemTime;

use strait_explain::WaitingConfiguration;
use strait_mesh::hold::{ConfigurationHold, HoldChange, HoldRefusal, HoldScope, Waiting};
use strait_mesh::push::event_loop::MeshEvent;
use strait_mesh::rollout::STOPPED_BY;
use strait_model::fetched_keys::{KeyPlace, WantedKeys};
use strait_model::mesh_config::{Defaults, MeshSettings, MeshTexts};
use strait_model::policy::DefaultVisibility;
use strait_model::{Cause, ClusterId, Collection, ConfigurationSnapshot};
use strait_rules::access::{AccessChange, AccessIndex, AccessSettings, PolicyErrors, TimePoint};
use strait_rules::budget::ObjectBudget;
use strait_rules::traffic::{KindSettings, TrafficIndex, TrafficUpdate};

/// Number of digits of a configuration's ID in short texts.
const DIGITS_SHOWN: usize = 12;

/// Settings that determine how objects are read.
pub(super) struct ReadingRules {
    /// The DNS domain of services.
    pub(super) domain: String,
    /// Defaults from flags, for settings that the mesh config leaves out.
    pub(super) defaults: Defaults,
    /// Handling of unreadable access policies.
    pub(super) errors: PolicyErrors,
    /// CPU budget of each object.
    pub(super) budget: ObjectBudget,
    /// Namespaces that see an object without `exportTo`, by default of the policy file.
    pub(super) default_visibility: DefaultVisibility,
}

impl ReadingRules {
    /// Returns the mesh settings with the defaults of the policy file.
    fn effective(&self, written: MeshSettings) -> MeshSettings {
        match self.default_visibility {
            DefaultVisibility::Mesh => written,
            DefaultVisibility::Namespace => {
                MeshSettings { config: Arc::new(written.config.private_by_default()), ..written }
            }
        }
    }
}

/// The stored and the active configuration.
pub(super) struct ActiveConfiguration {
    rules: ReadingRules,
    /// The stored mesh settings.
    live: MeshSettings,
    /// The active mesh settings.
    settings: MeshSettings,
    /// The active traffic objects.
    traffic: TrafficIndex,
    access: AccessIndex,
    held: Option<HeldConfiguration>,
    snapshot: Arc<ConfigurationSnapshot>,
    is_snapshot_stale: bool,
}

/// A held configuration, and the stored objects meanwhile.
struct HeldConfiguration {
    hold: Arc<ConfigurationHold>,
    reason: HoldReason,
    settings: MeshSettings,
    /// The stored traffic objects.
    traffic: TrafficIndex,
    /// The stored access policies, if the hold includes access policies.
    access: Option<AccessIndex>,
}

/// Why the active configuration differs from the stored one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HoldReason {
    /// An operator holds it, or a rollout was stopped.
    Operator,
    /// The stored objects are being rolled out.
    Rollout,
}

impl ActiveConfiguration {
    /// Creates a configuration without objects. `remembered` contains the last valid versions of
    /// objects from before the start.
    pub(super) fn new(rules: ReadingRules, live: MeshSettings, remembered: &Collection) -> Self {
        let live = rules.effective(live);
        let kinds = KindSettings::for_domain(&rules.domain, &live.config);
        let root = live.config.root_namespace.as_str().into();
        let mut access = AccessIndex::new(AccessSettings { root, errors: rules.errors })
            .with_budget(rules.budget.clone());
        access.remember(remembered);
        let mut traffic = TrafficIndex::new(kinds).with_budget(rules.budget.clone());
        traffic.remember(remembered);
        Self {
            rules,
            settings: live.clone(),
            live,
            traffic,
            access,
            held: None,
            snapshot: Arc::default(),
            is_snapshot_stale: true,
        }
    }

    /// Sets the namespaces that see an object without `exportTo`. Returns whether this is a change,
    /// after which the settings must be [applied](Self::apply_settings) again.
    pub(super) fn apply_default_visibility(&mut self, visibility: DefaultVisibility) -> bool {
        std::mem::replace(&mut self.rules.default_visibility, visibility) != visibility
    }

    /// Returns the active mesh settings.
    pub(super) fn settings(&self) -> &MeshSettings {
        &self.settings
    }

    /// Returns the active access policies.
    pub(super) fn access(&self) -> &AccessIndex {
        &self.access
    }

    /// Returns the active access policies, to apply token keys and to end transitions.
    pub(super) fn access_mut(&mut self) -> &mut AccessIndex {
        &mut self.access
    }

    /// Returns the active traffic objects.
    pub(super) fn traffic(&self) -> &TrafficIndex {
        &self.traffic
    }

    /// Returns the stored traffic objects.
    pub(super) fn stored_traffic(&self) -> &TrafficIndex {
        self.held.as_ref().map_or(&self.traffic, |held| &held.traffic)
    }

    /// Returns the stored access policies.
    pub(super) fn stored_access(&self) -> &AccessIndex {
        let held = self.held.as_ref().and_then(|held| held.access.as_ref());
        held.unwrap_or(&self.access)
    }

    /// Returns the stored traffic objects, to take their news.
    pub(super) fn stored_traffic_mut(&mut self) -> &mut TrafficIndex {
        self.held.as_mut().map_or(&mut self.traffic, |held| &mut held.traffic)
    }

    /// Returns the token keys that active and waiting policies name. The keys of waiting policies
    /// are fetched in advance, so that their tokens are accepted as soon as these policies apply.
    pub(super) fn wanted_keys(&self) -> BTreeMap<KeyPlace, WantedKeys> {
        let mut wanted = self.access.wanted_keys();
        for (place, one) in self.stored_access().wanted_keys() {
            match wanted.entry(place) {
                Entry::Vacant(vacant) => drop(vacant.insert(one)),
                Entry::Occupied(mut held) => held.get_mut().join(one),
            }
        }
        wanted
    }

    /// Returns the hold, if an operator or a stopped rollout holds a configuration.
    pub(super) fn hold(&self) -> Option<&Arc<ConfigurationHold>> {
        let held = self.held.as_ref().filter(|held| held.reason == HoldReason::Operator);
        held.map(|held| &held.hold)
    }

    /// Returns whether a rollout runs or is about to start.
    pub(super) fn is_rolling_out(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.reason == HoldReason::Rollout)
    }

    /// Pins the active configuration for all proxies, so that further changes can be rolled out.
    /// Returns the events, which cause no change for proxies. Has no effect during a hold.
    pub(super) fn settle(&mut self, now: TimePoint) -> Vec<MeshEvent> {
        if self.held.is_some() {
            return Vec::new();
        }
        let hold = settled_hold(self.configuration());
        self.begin_with(&hold, HoldReason::Rollout, self.settings.clone(), now)
    }

    /// Restores the configuration that applied to all proxies before the start. Returns the events.
    ///
    /// # Errors
    /// If the configuration can't be read.
    pub(super) fn restore_settled(
        &mut self,
        hold: &ConfigurationHold,
        now: TimePoint,
    ) -> Result<Vec<MeshEvent>, HoldRefusal> {
        let settings = self.settings_of(hold)?;
        let hold = settled_hold(Arc::clone(&hold.configuration));
        Ok(self.begin_with(&hold, HoldReason::Rollout, settings, now))
    }

    /// Starts a rollout of the changes that wait for the end of a hold, instead of releasing them.
    /// Returns the events.
    pub(super) fn roll_out_waiting(&mut self, now: TimePoint) -> Vec<MeshEvent> {
        let Some(held) = self.held.take() else { return Vec::new() };
        let hold = settled_hold(Arc::clone(&held.hold.configuration));
        let stored = held.access;
        let reason = HoldReason::Rollout;
        self.held = Some(HeldConfiguration { hold, reason, access: None, ..held });
        let mut events = self.settle_settings();
        let change = stored.as_ref().and_then(|stored| self.follow_stored(stored, now));
        events.extend(change.map(|change| MeshEvent::Access(change.policies, change.causes)));
        events
    }

    /// Returns the configuration that is being rolled out and the events that build it from the
    /// active one. Returns `None` if no rollout runs.
    pub(super) fn next_head(&self) -> Option<(Arc<ConfigurationSnapshot>, Vec<MeshEvent>)> {
        let held = self.held.as_ref().filter(|held| held.reason == HoldReason::Rollout)?;
        let (live, MeshSettings { config, networks, .. }) = (self.live(), self.live.clone());
        let kinds = KindSettings::for_domain(&self.rules.domain, &config);
        let mut events = vec![
            MeshEvent::Configuration(Arc::clone(&live)),
            MeshEvent::MeshConfig(config),
            MeshEvent::MeshNetworks(networks),
        ];
        // Derived from the active index, so that the changed objects are known.
        let mut index = self.traffic.replica();
        events.extend(index.set(kinds).map(MeshEvent::Traffic));
        events.extend(index.restore(held.traffic.counting()).map(MeshEvent::Traffic));
        Some((live, events))
    }

    /// Applies the rolled out configuration to all proxies. Returns the events.
    pub(super) fn promote(&mut self, now: TimePoint) -> Vec<MeshEvent> {
        if self.is_rolling_out() { self.release(now) } else { Vec::new() }
    }

    /// Applies new stored mesh settings. Returns the events.
    pub(super) fn apply_settings(&mut self, live: MeshSettings) -> Vec<MeshEvent> {
        self.live = self.rules.effective(live);
        let kinds = KindSettings::for_domain(&self.rules.domain, &self.live.config);
        if let Some(held) = &mut self.held {
            held.traffic.set(kinds);
        }
        self.settle_settings()
    }

    /// Computes the active settings from the stored and the held ones. Returns the events.
    fn settle_settings(&mut self) -> Vec<MeshEvent> {
        self.settings = match &self.held {
            None => self.live.clone(),
            Some(held) => {
                let is_access_held = held.hold.scope.is_with_access();
                let config = held.settings.config.with_trust_of(&self.live.config, is_access_held);
                let config = Arc::new(config);
                self.rules.effective(MeshSettings { config, ..held.settings.clone() })
            }
        };
        self.is_snapshot_stale = true;
        let MeshSettings { config, networks, .. } = self.settings.clone();
        let kinds = KindSettings::for_domain(&self.rules.domain, &config);
        let mut events = vec![MeshEvent::MeshConfig(config), MeshEvent::MeshNetworks(networks)];
        events.extend(self.traffic.set(kinds).map(MeshEvent::Traffic));
        events
    }

    /// Applies the stored access policies. Returns the change of the active policies, or `None` if
    /// they stay the same.
    pub(super) fn apply_access(
        &mut self,
        objects: &Collection,
        now: TimePoint,
    ) -> Option<AccessChange> {
        let settings = self.access_settings(&self.live);
        let held = self.held.as_mut().and_then(|held| held.access.as_mut());
        if let Some(stored) = held {
            stored.apply(&settings, objects);
            return None;
        }
        let change = self.access.apply_at(&settings, objects, now);
        self.is_snapshot_stale |= change.is_some();
        change
    }

    /// Applies the stored traffic objects. Returns the change of the active objects, or `None` if
    /// they stay the same.
    pub(super) fn apply_traffic(&mut self, objects: &Collection) -> Option<TrafficUpdate> {
        if let Some(held) = &mut self.held {
            held.traffic.apply(objects);
            return None;
        }
        let update = self.traffic.apply(objects);
        self.is_snapshot_stale |= update.is_some();
        update
    }

    fn access_settings(&self, of: &MeshSettings) -> AccessSettings {
        let root = of.config.root_namespace.as_str().into();
        AccessSettings { root, errors: self.rules.errors }
    }

    /// Checks whether a change is possible.
    ///
    /// # Errors
    /// If the configuration to hold can't be read, or if there is no rollout to promote or abort.
    pub(super) fn check(&self, change: &HoldChange) -> Result<(), HoldRefusal> {
        match change {
            HoldChange::Hold(hold) => self.settings_of(hold).map(drop),
            HoldChange::Release => Ok(()),
            HoldChange::Promote | HoldChange::Abort { .. } if self.is_rolling_out() => Ok(()),
            HoldChange::Promote | HoldChange::Abort { .. } => Err(HoldRefusal::NoRollout),
        }
    }

    fn settings_of(&self, hold: &ConfigurationHold) -> Result<MeshSettings, HoldRefusal> {
        let texts = MeshTexts {
            config: hold.configuration.mesh.clone(),
            networks: hold.configuration.networks.clone(),
        };
        let read = MeshSettings::parse(texts, &self.rules.defaults);
        read.map_err(|error| HoldRefusal::Unreadable(error.to_string()))
    }

    /// Holds a configuration or releases the held one. Returns the events.
    ///
    /// # Errors
    /// The errors of [`Self::check`]; nothing changes in that case.
    pub(super) fn change(
        &mut self,
        change: &HoldChange,
        now: TimePoint,
    ) -> Result<Vec<MeshEvent>, HoldRefusal> {
        let mut events = match change {
            HoldChange::Hold(hold) => self.begin(hold, now)?,
            HoldChange::Release => self.release(now),
            HoldChange::Promote => return Ok(self.promote(now)),
            // The active configuration stays; the caller then holds it.
            HoldChange::Abort { .. } => return Err(HoldRefusal::NoRollout),
        };
        let cause = match change {
            HoldChange::Hold(hold) => {
                let id = hold.configuration.id();
                Cause::named(ClusterId::default(), "Hold", id.get(..DIGITS_SHOWN).unwrap_or(&id))
            }
            _ => Cause::named(ClusterId::default(), "Hold", "released"),
        };
        for event in &mut events {
            // The changed objects are known in advance; the author of the change is known only
            // here.
            match event {
                MeshEvent::Traffic(update) => update.causes = cause.clone().into(),
                MeshEvent::Access(_, causes) => *causes = cause.clone().into(),
                _ => {}
            }
        }
        Ok(events)
    }

    fn begin(
        &mut self,
        hold: &Arc<ConfigurationHold>,
        now: TimePoint,
    ) -> Result<Vec<MeshEvent>, HoldRefusal> {
        let settings = self.settings_of(hold)?;
        Ok(self.begin_with(hold, HoldReason::Operator, settings, now))
    }

    fn begin_with(
        &mut self,
        hold: &Arc<ConfigurationHold>,
        reason: HoldReason,
        settings: MeshSettings,
        now: TimePoint,
    ) -> Vec<MeshEvent> {
        let is_access_held = hold.scope.is_with_access();
        let (traffic, access) = match self.held.take() {
            // Until now, the active configuration is the stored one.
            None => {
                let replica = self.traffic.replica();
                let stored = std::mem::replace(&mut self.traffic, replica);
                (stored, is_access_held.then(|| self.access.unsent()))
            }
            Some(held) => {
                let access = held.access.or_else(|| is_access_held.then(|| self.access.unsent()));
                (held.traffic, access)
            }
        };
        let (stored_access, access) = if is_access_held { (None, access) } else { (access, None) };
        let held = HeldConfiguration { hold: Arc::clone(hold), reason, settings, traffic, access };
        let settings = self.access_settings(&held.settings);
        self.held = Some(held);
        let mut events = self.settle_settings();
        let update = self.traffic.restore(&hold.configuration.traffic);
        self.traffic.take_new_reasons();
        events.extend(update.map(MeshEvent::Traffic));
        let change = match &stored_access {
            _ if is_access_held => self.access.restore(&settings, &hold.configuration.access, now),
            // The policies were held until now.
            Some(stored) => self.follow_stored(stored, now),
            None => None,
        };
        events.extend(change.map(|change| MeshEvent::Access(change.policies, change.causes)));
        events
    }

    fn release(&mut self, now: TimePoint) -> Vec<MeshEvent> {
        let Some(held) = self.held.take() else { return Vec::new() };
        let mut events = self.settle_settings();
        let update = self.traffic.restore(held.traffic.counting());
        self.traffic = held.traffic;
        events.extend(update.map(MeshEvent::Traffic));
        let change = held.access.as_ref().and_then(|stored| self.follow_stored(stored, now));
        events.extend(change.map(|change| MeshEvent::Access(change.policies, change.causes)));
        events
    }

    /// Activates the stored access policies. As with any change of policies, servers accept for a
    /// while what clients sent before.
    fn follow_stored(&mut self, stored: &AccessIndex, now: TimePoint) -> Option<AccessChange> {
        let settings = self.access_settings(&self.live);
        let counting = self.access.restore(&settings, stored.counting(), now);
        // Reads the invalid policies again, so that they are reported.
        self.access.apply_at(&settings, stored.objects(), now).or(counting)
    }

    /// Returns the active configuration if it changed since the last call.
    pub(super) fn take_snapshot(&mut self) -> Option<Arc<ConfigurationSnapshot>> {
        if !self.is_snapshot_stale {
            return None;
        }
        self.snapshot = self.configuration();
        self.is_snapshot_stale = false;
        Some(Arc::clone(&self.snapshot))
    }

    /// Returns the active configuration.
    pub(super) fn configuration(&self) -> Arc<ConfigurationSnapshot> {
        if !self.is_snapshot_stale {
            return Arc::clone(&self.snapshot);
        }
        let texts = &self.settings.texts;
        Arc::new(ConfigurationSnapshot::new(
            self.traffic.counting().clone(),
            self.access.counting().clone(),
            texts.config.clone(),
            texts.networks.clone(),
        ))
    }

    /// Returns the configuration that would be active without a hold or rollout.
    pub(super) fn live(&self) -> Arc<ConfigurationSnapshot> {
        if self.held.is_none() {
            return Arc::clone(&self.snapshot);
        }
        let texts = &self.live.texts;
        Arc::new(ConfigurationSnapshot::new(
            self.stored_traffic().counting().clone(),
            self.stored_access().counting().clone(),
            texts.config.clone(),
            texts.networks.clone(),
        ))
    }

    /// Returns the part of the live configuration that waits for the end of a hold or rollout.
    pub(super) fn waiting(&self, live: &ConfigurationSnapshot) -> Option<WaitingConfiguration> {
        let held = self.held.as_ref()?;
        Some(WaitingConfiguration {
            traffic: Arc::new(held.traffic.traffic().clone()),
            access: held.access.as_ref().map(AccessIndex::policies),
            mesh: Arc::clone(&self.live.config),
            rolls_out_gradually: held.reason == HoldReason::Rollout,
            what: Arc::new(Waiting::between(&held.hold, live)),
        })
    }
}

/// Returns the hold that pins the configuration for all during a rollout. It excludes access
/// policies.
fn settled_hold(configuration: Arc<ConfigurationSnapshot>) -> Arc<ConfigurationHold> {
    Arc::new(ConfigurationHold {
        configuration,
        since: SystemTime::now(),
        by: STOPPED_BY.to_owned(),
        reason: String::new(),
        scope: HoldScope::WithoutAccess,
    })
}

#[cfg(test)]
mod tests;
