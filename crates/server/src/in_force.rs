//! The configuration: what operators' objects say, and what of that is in force.
//!
//! Pure. The two are one, but while a configuration is held (`strait_mesh::hold`): then what is held is in force, and what objects say is
//! read and judged beside it. Owns the indexes that read them. Never holds back what says who is trusted: roots and trust
//! domains, and access policies unless these are held as well.

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

/// How many digits of a configuration's name are shown where there is little room.
const DIGITS_SHOWN: usize = 12;

/// What the configuration is read by, beside the objects.
pub(super) struct ReadingRules {
    /// The DNS domain of services.
    pub(super) domain: String,
    /// What flags say where the mesh config doesn't.
    pub(super) defaults: Defaults,
    /// What becomes of access policies that can't be read.
    pub(super) errors: PolicyErrors,
    /// What each object may cost.
    pub(super) budget: ObjectBudget,
    /// The namespaces that see an object without `exportTo`, by the policy file.
    pub(super) default_visibility: DefaultVisibility,
}

impl ReadingRules {
    /// The mesh settings with the defaults of the policy file.
    fn effective(&self, written: MeshSettings) -> MeshSettings {
        match self.default_visibility {
            DefaultVisibility::Mesh => written,
            DefaultVisibility::Namespace => {
                MeshSettings { config: Arc::new(written.config.private_by_default()), ..written }
            }
        }
    }
}

/// What objects say, and what of it is in force.
pub(super) struct ConfigurationInForce {
    rules: ReadingRules,
    /// The mesh settings as they are written.
    live: MeshSettings,
    /// Those in force.
    settings: MeshSettings,
    /// What is in force.
    traffic: TrafficIndex,
    access: AccessIndex,
    held: Option<HeldConfiguration>,
    snapshot: Arc<ConfigurationSnapshot>,
    is_snapshot_stale: bool,
}

/// What is held, and what objects say meanwhile.
struct HeldConfiguration {
    hold: Arc<ConfigurationHold>,
    reason: HoldReason,
    settings: MeshSettings,
    /// The objects as they are stored.
    traffic: TrafficIndex,
    /// The access policies as they are stored, where these are held as well.
    access: Option<AccessIndex>,
}

/// Why another configuration is in force than what objects say.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HoldReason {
    /// An operator holds it, or it is held since a roll-out was stopped.
    Asked,
    /// What objects say is being let out to a share of proxies.
    Rollout,
}

impl ConfigurationInForce {
    /// Of no objects yet. `remembered` are the forms that objects had before the process started.
    pub(super) fn new(rules: ReadingRules, live: MeshSettings, remembered: &Collection) -> Self {
        let live = rules.effective(live);
        let kinds = KindSettings::of(&rules.domain, &live.config);
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

    /// Sets the namespaces that see an object without `exportTo`. Returns whether this is a change, after which the settings must
    /// be [taken](Self::take_settings) again.
    pub(super) fn take_default_visibility(&mut self, visibility: DefaultVisibility) -> bool {
        std::mem::replace(&mut self.rules.default_visibility, visibility) != visibility
    }

    /// The mesh settings in force.
    pub(super) fn settings(&self) -> &MeshSettings {
        &self.settings
    }

    /// The access policies in force.
    pub(super) fn access(&self) -> &AccessIndex {
        &self.access
    }

    /// The same, for what is no matter of objects: keys, and the end of transitions.
    pub(super) fn access_mut(&mut self) -> &mut AccessIndex {
        &mut self.access
    }

    /// What of the objects of the traffic configuration is in force.
    pub(super) fn traffic(&self) -> &TrafficIndex {
        &self.traffic
    }

    /// What the objects of the traffic configuration say as they are stored.
    pub(super) fn stored_traffic(&self) -> &TrafficIndex {
        self.held.as_ref().map_or(&self.traffic, |held| &held.traffic)
    }

    /// What the access policies say as they are stored.
    pub(super) fn stored_access(&self) -> &AccessIndex {
        let held = self.held.as_ref().and_then(|held| held.access.as_ref());
        held.unwrap_or(&self.access)
    }

    /// The same, to take news from.
    pub(super) fn stored_traffic_mut(&mut self) -> &mut TrafficIndex {
        self.held.as_mut().map_or(&mut self.traffic, |held| &mut held.traffic)
    }

    /// The keys of tokens that policies name, those in force and those that wait: whoever is let in by one that waits should not
    /// be refused when it counts.
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

    /// What is held.
    pub(super) fn hold(&self) -> Option<&Arc<ConfigurationHold>> {
        let held = self.held.as_ref().filter(|held| held.reason == HoldReason::Asked);
        held.map(|held| &held.hold)
    }

    /// Whether what objects say is being let out, or about to be.
    pub(super) fn is_rolling_out(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.reason == HoldReason::Rollout)
    }

    /// Has what is in force count for all from now on, whatever objects say next, so that this can be let out to a share: what
    /// others have to hear, though it makes no difference to anybody. Not where something is held.
    pub(super) fn settle(&mut self, now: TimePoint) -> Vec<MeshEvent> {
        if self.held.is_some() {
            return Vec::new();
        }
        let hold = settled_hold(self.configuration());
        self.begin_with(&hold, HoldReason::Rollout, self.settings.clone(), now)
    }

    /// Has a configuration of before the start count for all: what others have to hear.
    ///
    /// # Errors
    /// When it can't be read.
    pub(super) fn restore_settled(
        &mut self,
        hold: &ConfigurationHold,
        now: TimePoint,
    ) -> Result<Vec<MeshEvent>, HoldRefusal> {
        let settings = self.settings_of(hold)?;
        let hold = settled_hold(Arc::clone(&hold.configuration));
        Ok(self.begin_with(&hold, HoldReason::Rollout, settings, now))
    }

    /// Lets out what waits for the release of a hold, in the place of releasing it: what others have to hear.
    pub(super) fn let_out(&mut self, now: TimePoint) -> Vec<MeshEvent> {
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

    /// What is let out, as another head is to be told: the configuration in full, beside the one in force. `None` where nothing is.
    pub(super) fn next_head(&self) -> Option<(Arc<ConfigurationSnapshot>, Vec<MeshEvent>)> {
        let held = self.held.as_ref().filter(|held| held.reason == HoldReason::Rollout)?;
        let (live, MeshSettings { config, networks, .. }) = (self.live(), self.live.clone());
        let kinds = KindSettings::of(&self.rules.domain, &config);
        let mut events = vec![
            MeshEvent::Configuration(Arc::clone(&live)),
            MeshEvent::MeshConfig(config),
            MeshEvent::MeshNetworks(networks),
        ];
        // From what is in force, so that it is known what differs, and which objects those are.
        let mut index = self.traffic.replica();
        events.extend(index.set(kinds).map(MeshEvent::Traffic));
        events.extend(index.restore(held.traffic.counting()).map(MeshEvent::Traffic));
        Some((live, events))
    }

    /// Has what was let out count for all: what others have to hear.
    pub(super) fn promote(&mut self, now: TimePoint) -> Vec<MeshEvent> {
        if self.is_rolling_out() { self.release(now) } else { Vec::new() }
    }

    /// Takes the mesh settings as they are written now.
    pub(super) fn take_settings(&mut self, live: MeshSettings) -> Vec<MeshEvent> {
        self.live = self.rules.effective(live);
        let kinds = KindSettings::of(&self.rules.domain, &self.live.config);
        if let Some(held) = &mut self.held {
            held.traffic.set(kinds);
        }
        self.settle_settings()
    }

    /// Has those settings be in force that are to be.
    fn settle_settings(&mut self) -> Vec<MeshEvent> {
        self.settings = match &self.held {
            None => self.live.clone(),
            Some(held) => {
                let is_access_held = held.hold.scope.is_with_access();
                let config = held.settings.config.trusting(&self.live.config, is_access_held);
                let config = Arc::new(config);
                self.rules.effective(MeshSettings { config, ..held.settings.clone() })
            }
        };
        self.is_snapshot_stale = true;
        let MeshSettings { config, networks, .. } = self.settings.clone();
        let kinds = KindSettings::of(&self.rules.domain, &config);
        let mut events = vec![MeshEvent::MeshConfig(config), MeshEvent::MeshNetworks(networks)];
        events.extend(self.traffic.set(kinds).map(MeshEvent::Traffic));
        events
    }

    /// Takes the access policies as they are stored now. What is in force from now on; `None` where that is what was.
    pub(super) fn take_access(
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

    /// Takes the objects of the traffic configuration as they are stored now. What is in force from now on; `None` where that is
    /// what was.
    pub(super) fn take_traffic(&mut self, objects: &Collection) -> Option<TrafficUpdate> {
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

    /// Whether a change can be made.
    ///
    /// # Errors
    /// When what is to be held can't be read.
    pub(super) fn check(&self, change: &HoldChange) -> Result<(), HoldRefusal> {
        match change {
            HoldChange::Hold(hold) => self.settings_of(hold).map(drop),
            HoldChange::Release => Ok(()),
            HoldChange::Promote | HoldChange::Abort { .. } if self.is_rolling_out() => Ok(()),
            HoldChange::Promote | HoldChange::Abort { .. } => Err(HoldRefusal::NothingLetOut),
        }
    }

    fn settings_of(&self, hold: &ConfigurationHold) -> Result<MeshSettings, HoldRefusal> {
        let texts = MeshTexts {
            config: hold.configuration.mesh.clone(),
            networks: hold.configuration.networks.clone(),
        };
        let read = MeshSettings::of_texts(texts, &self.rules.defaults);
        read.map_err(|error| HoldRefusal::Unreadable(error.to_string()))
    }

    /// Holds a configuration, or releases what is held: what others have to hear.
    ///
    /// # Errors
    /// As [`Self::check`]; nothing has changed then.
    pub(super) fn change(
        &mut self,
        change: &HoldChange,
        now: TimePoint,
    ) -> Result<Vec<MeshEvent>, HoldRefusal> {
        let mut events = match change {
            HoldChange::Hold(hold) => self.begin(hold, now)?,
            HoldChange::Release => self.release(now),
            HoldChange::Promote => return Ok(self.promote(now)),
            // What is in force stays: the caller says how it is held.
            HoldChange::Abort { .. } => return Err(HoldRefusal::NothingLetOut),
        };
        let cause = match change {
            HoldChange::Hold(hold) => {
                let id = hold.configuration.id();
                Cause::named(ClusterId::default(), "Hold", id.get(..DIGITS_SHOWN).unwrap_or(&id))
            }
            _ => Cause::named(ClusterId::default(), "Hold", "released"),
        };
        for event in &mut events {
            // Which objects differ can be seen beforehand; who did it, only here.
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
        Ok(self.begin_with(hold, HoldReason::Asked, settings, now))
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
            // What was in force until now is what objects say.
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
        self.traffic.take_news();
        events.extend(update.map(MeshEvent::Traffic));
        let change = match &stored_access {
            _ if is_access_held => self.access.restore(&settings, &hold.configuration.access, now),
            // They were held until now.
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

    /// Has the access policies be in force that are stored. What clients were sent before counts for them as for every change.
    fn follow_stored(&mut self, stored: &AccessIndex, now: TimePoint) -> Option<AccessChange> {
        let settings = self.access_settings(&self.live);
        let counting = self.access.restore(&settings, stored.counting(), now);
        // What can't be read is known again as such.
        self.access.apply_at(&settings, stored.objects(), now).or(counting)
    }

    /// What the configuration in force is, where that is another than was told last.
    pub(super) fn take_snapshot(&mut self) -> Option<Arc<ConfigurationSnapshot>> {
        if !self.is_snapshot_stale {
            return None;
        }
        self.snapshot = self.configuration();
        self.is_snapshot_stale = false;
        Some(Arc::clone(&self.snapshot))
    }

    /// What the configuration in force is now.
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

    /// What would be in force if nothing were held.
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

    /// What of the live configuration waits while another is held, by which objects are judged.
    pub(super) fn waiting(&self, live: &ConfigurationSnapshot) -> Option<WaitingConfiguration> {
        let held = self.held.as_ref()?;
        Some(WaitingConfiguration {
            traffic: Arc::new(held.traffic.traffic().clone()),
            access: held.access.as_ref().map(AccessIndex::policies),
            mesh: Arc::clone(&self.live.config),
            is_let_out: held.reason == HoldReason::Rollout,
            what: Arc::new(Waiting::between(&held.hold, live)),
        })
    }
}

/// What counts for all while something else is let out to a share. Access policies go on.
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
