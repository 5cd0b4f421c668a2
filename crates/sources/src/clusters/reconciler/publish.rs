//! The reconciler's published state: the statuses of members, the clusters that belong to the mesh,
//! and whether all of them are settled. Only the parts that may have changed are recomputed.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::*;
use crate::clusters::formats::MemberReach;
use crate::clusters::secret::relayed_member;
use crate::clusters::status::{
    CredentialKind, CredentialStatus, DIRECT, InventoryStatus, RELAY, SYSTEM_SOURCE, outdated,
    unread,
};
use crate::lifetime::Lifetime;
use strait_base::latest::publish_change;

impl Reconciler {
    /// Publishes the status of these members after they were checked.
    pub(super) fn publish(&mut self, ids: &[ClusterId], look: MembersToCheck, now: Instant) {
        let wall = SystemTime::now();
        let withdrawn = self.withdrawn(wall);
        let is_all = look == MembersToCheck::All;
        let (mut status_changed, mut known_clusters_changed) = (is_all, is_all);
        for id in ids {
            let Some(member) = self.members.get(id) else { continue };
            let why = withdrawn.get(id).map(String::as_str);
            let mut shown = self.show(id, member, why, (now, wall));
            self.set_state_start(&mut shown.status, wall);
            let before = self.shown.get(id);
            status_changed |= before.is_none_or(|before| before.status != shown.status);
            known_clusters_changed |= before.is_none_or(|before| before.known != shown.known);
            self.shown.insert(id.clone(), shown);
        }
        if is_all {
            self.shown.retain(|id, _| self.members.contains_key(id));
            self.show_idle(wall);
            self.publish_relayed();
        }
        if known_clusters_changed {
            let known_entry =
                |(id, shown): (&ClusterId, &MemberView)| (id.clone(), shown.known.clone());
            let clusters = self.shown.iter().map(known_entry).collect();
            publish_change(&self.context.known, Arc::new(KnownClusters { clusters }));
        }
        if status_changed {
            let members = self.shown.values().map(|shown| &shown.status);
            let mut statuses: Vec<_> = members.chain(&self.idle).cloned().collect();
            statuses.sort_by(|a, b| order(a).cmp(&order(b)));
            publish_change(&self.context.statuses, Arc::new(statuses));
        }
        self.publish_clients(ids);
        let awaited = self.shown.iter().filter(|(_, shown)| shown.is_awaited);
        let awaited: Vec<_> = awaited.map(|(id, _)| id.clone()).collect();
        let read = self.planned_for.is_some() || self.assumed;
        let settled = match (read, awaited.is_empty()) {
            (false, _) => MembersSettled::ConfigurationUnread,
            (true, false) => MembersSettled::Waiting(awaited),
            (true, true) => MembersSettled::All,
        };
        publish_change(&self.context.settled, settled);
    }

    /// Publishes the members that may have relays. A Secret that became invalid keeps the relays of its member, unless the
    /// operator file no longer allows the member.
    fn publish_relayed(&self) {
        if self.planned_for.is_none() {
            return;
        }
        let before = self.context.relayed.borrow().clone().unwrap_or_default();
        let relayed = |(id, cluster): (&ClusterId, &PlannedCluster)| {
            cluster.access().filter(|access| access.is_relayed())?;
            if self.revoked(id, Some(cluster)).is_some() {
                return None;
            }
            let (secret, _) = self.read.get(&cluster.secret)?;
            let member = relayed_member(secret, cluster.uid.clone());
            Some((id.clone(), member.or_else(|| before.get(id).cloned())?))
        };
        let members = self.running.clusters.iter().filter_map(relayed).collect();
        publish_change(&self.context.relayed, Some(Arc::new(members)));
    }

    /// Publishes the clients of these members, and removes the clients of former members.
    fn publish_clients(&self, ids: &[ClusterId]) {
        let client_of = |id: &ClusterId| self.members.get(id).and_then(Member::client);
        self.context.clients.send_if_modified(|published| {
            let mut changes = Vec::new();
            for id in
                ids.iter().chain(published.keys().filter(|id| !self.members.contains_key(*id)))
            {
                let is_same = match (published.get(id), &client_of(id)) {
                    (Some(published), Some(now)) => published.is_same(now),
                    (published, now) => published.is_none() && now.is_none(),
                };
                if !is_same {
                    changes.push((id.clone(), client_of(id)));
                }
            }
            let is_modified = !changes.is_empty();
            for (id, client) in changes {
                let clients = Arc::make_mut(published);
                match client {
                    Some(client) => drop(clients.insert(id, client)),
                    None => drop(clients.remove(&id)),
                }
            }
            is_modified
        });
    }

    /// Returns the status of the credential that a member's run uses or would use.
    fn credential_status(
        &self,
        id: &ClusterId,
        member: &Member,
        cluster: Option<&PlannedCluster>,
        renews_itself: bool,
        wall: SystemTime,
    ) -> Option<CredentialStatus> {
        let run = member.shown_run();
        let planned = cluster.and_then(PlannedCluster::access);
        let access = run.map(|run| &run.how.access).or(planned)?;
        let kind = CredentialKind::of(&access.credential)?;
        let now = Timestamp::try_from(wall).unwrap_or(Timestamp::UNIX_EPOCH);
        let lifetime = match run {
            Some(run) => run.lifetime,
            None => Lifetime::from_access(access),
        };
        let whole_second = |time: SystemTime| {
            Timestamp::from_second(Timestamp::try_from(time).ok()?.as_second()).ok()
        };
        let annotated = self.reach(id, cluster).and_then(|reach| reach.expires);
        let annotated = annotated.map(|expires| Lifetime { issued: None, expires });
        let lifetime = lifetime.or(annotated);
        let not_renewed = cluster.and_then(|cluster| {
            let failures = self.renewal_failures.borrow();
            let fact = failures.get(&(cluster.secret.clone(), id.clone()))?;
            Some(format!("the token could not be renewed: {fact}"))
        });
        let principal = run.and_then(|run| run.principal.borrow().clone().flatten());
        let status = CredentialStatus {
            kind,
            identity: None,
            principal: principal.map(|name| name.to_string()),
            expires: lifetime.map(|lifetime| lifetime.expires),
            refresh_at: None,
            last_error: member.refused_credential().map(|why| why.to_string()).or(not_renewed),
            ends_soon: lifetime.is_some_and(|lifetime| lifetime.ends_soon(now)),
            renews_itself: renews_itself || kind == CredentialKind::Relay,
        };
        let ApiCredential::Issued(feed) = &access.credential else { return Some(status) };
        let issued = feed.current();
        let expires = issued.expires.and_then(whole_second);
        let is_failing = issued.error.is_some();
        Some(CredentialStatus {
            identity: Some(feed.identity().to_string()),
            expires,
            refresh_at: issued.refresh_at.and_then(whole_second),
            last_error: status.last_error.or(issued.error.map(|error| error.to_string())),
            // A token that is renewed as planned needs no action.
            ends_soon: is_failing && expires.is_some(),
            renews_itself: true,
            ..status
        })
    }

    /// Returns the Secret that holds a member, and its specification there.
    fn in_secret(
        &self,
        id: &ClusterId,
        cluster: Option<&PlannedCluster>,
    ) -> Option<(&WatchedSecret, &MemberSpec)> {
        let (watched, read) = self.read.get(&cluster?.secret)?;
        Some((&**watched, read.clusters.get(id)?.as_ref().ok()?))
    }

    /// Returns the part of a member's specification about its connection and its credential.
    fn reach(&self, id: &ClusterId, cluster: Option<&PlannedCluster>) -> Option<&MemberReach> {
        Some(&self.in_secret(id, cluster)?.1.reach)
    }

    /// Returns whether Strait renews the token in a member's Secret, and the parts of the Secret
    /// that are ignored.
    fn effects(
        &self,
        id: &ClusterId,
        cluster: Option<&PlannedCluster>,
    ) -> (bool, Vec<KubeconfigRefusal>) {
        let Some((secret, spec)) = self.in_secret(id, cluster) else { return (false, Vec::new()) };
        let renewal = renewal::effect(secret, id, spec, self.config_access.is_some());
        let renews_itself = renewal.as_ref().is_some_and(Result::is_ok);
        let ignored = spec.reach.remark.clone().into_iter().chain(renewal.and_then(Result::err));
        (renews_itself, ignored.collect())
    }

    /// Returns the part of a member's definition that differs from the one in use, for messages.
    fn changed_part(
        &self,
        id: &ClusterId,
        member: &Member,
        cluster: Option<&PlannedCluster>,
    ) -> &'static str {
        match self.plan.unused_secrets.get(id).map(|refusal| refusal.code) {
            Some(code) if code == &codes::ID_OUTSIDE_SOURCE => return "definition",
            Some(code) if [&codes::IDENTITY_UNKNOWN, &codes::IDENTITY_SERVER].contains(&code) => {
                return "identity";
            }
            Some(_) => {}
            None => {
                let planned = cluster.and_then(PlannedCluster::access);
                let used = member.shown_run().map(|run| &run.how.access);
                let is_identity = |planned: &Access, used: &Access| {
                    let credential = used.credential.clone();
                    matches!(planned.credential, ApiCredential::Issued(_))
                        && *used == Access { credential, ..planned.clone() }
                };
                if planned.zip(used).is_some_and(|(planned, used)| is_identity(planned, used)) {
                    return "identity";
                }
            }
        }
        match cluster.map(|cluster| self.source_kind(&cluster.secret)) {
            Some("ClusterProfile") => "access in the ClusterProfile",
            _ => "kubeconfig",
        }
    }

    /// Returns the published state of a member.
    fn show(
        &self,
        id: &ClusterId,
        member: &Member,
        withdrawn: Option<&str>,
        (now, wall): (Instant, SystemTime),
    ) -> MemberView {
        let cluster = self.running.clusters.get(id);
        let network = cluster.and_then(|cluster| cluster.network.clone());
        let (mode, mode_by) = self.effective_mode(id, cluster);
        let leaving_in = cluster.and_then(|cluster| match cluster.hold {
            Hold::Leaving { until } => Some(until.saturating_duration_since(now.into_std())),
            Hold::BySecret(_) | Hold::Assumed => None,
        });
        let limit = self.context.config.sync_timeout;
        let is_late = !member.has_data && now.duration_since(member.since) >= limit;
        let (status, successor) = member.shown();
        let refused_credential = member.refused_credential();
        let (renews_itself, remarks) = self.effects(id, cluster);
        let credential = self.credential_status(id, member, cluster, renews_itself, wall);
        let shown_kind = self.shown.get(id).and_then(|shown| shown.status.source_kind);
        let source_kind = cluster.map(|cluster| match cluster.hold {
            // Its object does not exist any more.
            Hold::Leaving { .. } => shown_kind.unwrap_or("Secret"),
            Hold::BySecret(_) | Hold::Assumed => self.source_kind(&cluster.secret),
        });
        let facts = MemberFacts {
            status: &status,
            has_data: member.has_data,
            restored: member.restored.as_ref(),
            timed_out: is_late.then_some(limit),
            leaving_in,
            kind: source_kind.unwrap_or("Secret"),
            deselected: self.deselected.get(id).map(String::as_str),
            mode,
            mode_by: &mode_by,
            flapping: member.flapping.stage(now.into_std()),
            delayed_loss: member.delayed_loss().map(|loss| loss.describe_at(now.into_std())),
            withdrawn,
            dark_tokens: self.policy.borrow().dark_token_grace(id),
            changed: self.changed_part(id, member, cluster),
            unused_secret: self.plan.unused_secrets.get(id),
            without_secret: cluster.is_some_and(|cluster| cluster.hold == Hold::Assumed),
            works_until: credential.as_ref().and_then(|credential| credential.expires),
            successor: successor.as_ref(),
            refused_credential: refused_credential.as_deref(),
            revoked: self.revoked(id, cluster),
            remarks: &remarks,
            barred: member.barred.as_ref(),
            stale_after: self.context.config.stale_after,
            now: wall,
        };
        let (state, reason) = evaluate(&facts);
        let kubeconfig_refused = refused_kubeconfig(&facts, state).is_some();
        let outdated = match state {
            ClusterState::Stale => outdated(&facts).collect(),
            _ => Vec::new(),
        };
        let unread_namespaces = match state {
            ClusterState::Stale => unread(&facts).collect(),
            _ => Vec::new(),
        };
        let never_synced = !member.has_data && !is_late && delays_readiness(state);
        let secret = cluster.map(|cluster| cluster.secret.to_string());
        let claimed = member.claimed.as_ref();
        let trust_domain = self.effective_trust_domain(id, cluster, claimed).unwrap_or_default();
        let known_cluster = KnownCluster {
            fixed_network: network.clone(),
            config: cluster.is_none(),
            created: cluster.and_then(|cluster| cluster.created),
            mode,
            withdrawn: withdrawn.map(Into::into),
            trust_domain: Arc::clone(&trust_domain),
            set_name: cluster.and_then(|cluster| cluster.set_name.clone()),
        };
        let place = (network, trust_domain);
        let data_owner = member.has_data.then(|| ClusterIdHolder {
            uid: member.uid.clone(),
            found_by: member.found_by.clone(),
            may_change: self.expected_cluster(id, cluster).may_change(member.found_by.as_ref()),
            followed: member.followed.clone(),
        });
        let source = cluster.map(|cluster| self.source_of(&cluster.secret));
        let inventory = cluster.and_then(|cluster| self.inventory(&cluster.secret));
        let entry = self.entry((id.as_str(), secret, source), (state, reason), place, &status);
        let mode = match mode {
            Mode::Normal => None,
            Mode::Drain => Some("drain"),
            Mode::Pause => Some("pause"),
        };
        let planned = cluster.and_then(PlannedCluster::access);
        let via = planned.map_or(DIRECT.into(), via);
        MemberView {
            status: ClusterStatus {
                via,
                kept: data_owner,
                mode,
                credential,
                kubeconfig_refused,
                outdated,
                read_namespaces: self.read_namespaces(id, cluster),
                unread: unread_namespaces,
                withdrawn: withdrawn.map(Into::into),
                inventory,
                source_kind,
                ..entry
            },
            known: known_cluster,
            is_awaited: never_synced || (self.fresh_until.is_some() && member.is_catching_up()),
        }
    }

    /// Publishes the status of data keys that hold no member, and forgets the start times of states
    /// no longer shown.
    fn show_idle(&mut self, wall: SystemTime) {
        let mut idle: Vec<_> = self.plan.idle.iter().map(|idle| self.idle_entry(idle)).collect();
        for status in &mut idle {
            self.set_state_start(status, wall);
        }
        self.idle = idle;
        let statuses = self.shown.values().map(|shown| &shown.status).chain(&self.idle);
        let shown_keys: BTreeSet<_> =
            statuses.map(|status| (status.id.clone(), status.secret.clone())).collect();
        self.states.retain(|key, _| shown_keys.contains(key));
    }

    /// Sets when the current state began.
    fn set_state_start(&mut self, status: &mut ClusterStatus, wall: SystemTime) {
        let key = (status.id.clone(), status.secret.clone());
        let current = self.states.get(&key).filter(|(state, _)| *state == status.state);
        let since = match current {
            Some((_, since)) => *since,
            None => {
                let now = Timestamp::try_from(wall).unwrap_or(Timestamp::UNIX_EPOCH);
                self.states.insert(key, (status.state, now));
                now
            }
        };
        status.since = (status.state != ClusterState::Live).then_some(since);
    }

    fn idle_entry(&self, idle: &Idle) -> ClusterStatus {
        let state = if idle.on_standby() { ClusterState::Conflict } else { ClusterState::Rejected };
        let reason = Some(idle.refusal.to_string());
        let secret = Some(idle.secret.to_string());
        let mesh = || self.trust_domain.borrow().clone();
        let trust_domain = idle.trust_domain.clone().or_else(mesh);
        let place = (idle.network.clone(), trust_domain.unwrap_or_default());
        let source = Some(self.source_of(&idle.secret));
        let key = (idle.key.as_str(), secret, source);
        ClusterStatus {
            inventory: self.inventory(&idle.secret),
            source_kind: Some(self.source_kind(&idle.secret)),
            ..self.entry(key, (state, reason), place, &RunStatus::starting())
        }
    }

    /// Returns the name of the source of a Secret.
    fn source_of(&self, secret: &ObjectName) -> String {
        let source = self.read.get(secret).and_then(|(_, secret)| secret.source.as_ref());
        source.map_or(SYSTEM_SOURCE.to_owned(), |name| name.to_string())
    }

    /// Returns the kind of the object that defines a member.
    pub(super) fn source_kind(&self, name: &ObjectName) -> &'static str {
        let object = self.read.get(name);
        match object.is_some_and(|(object, _)| object.profile.is_some()) {
            true => "ClusterProfile",
            false => "Secret",
        }
    }

    /// Returns the state in the inventory, for a ClusterProfile.
    fn inventory(&self, name: &ObjectName) -> Option<InventoryStatus> {
        let (object, _) = self.read.get(name)?;
        let state = &object.profile.as_ref()?.inventory;
        Some(InventoryStatus {
            manager: state.manager.clone(),
            control_plane_healthy: state.healthy.as_str(),
            joined: state.joined.as_str(),
            since: state.since,
        })
    }

    fn entry(
        &self,
        (id, secret, source): (&str, Option<String>, Option<String>),
        (state, reason): (ClusterState, Option<String>),
        (network, trust_domain): (Option<NetworkId>, Arc<str>),
        status: &RunStatus,
    ) -> ClusterStatus {
        ClusterStatus {
            id: id.to_owned(),
            secret,
            source_kind: source.as_ref().map(|_| "Secret"),
            source,
            via: DIRECT.into(),
            state,
            reason,
            since: None,
            network,
            trust_domain: trust_domain.to_string(),
            last_contact: status.last_contact.clone(),
            outdated: Vec::new(),
            read_namespaces: ReadNamespaces::default(),
            unread: Vec::new(),
            services: status.services,
            endpoints: status.endpoints,
            withheld: 0,
            withheld_by: BTreeMap::new(),
            objects: status.objects,
            relists: status.relists,
            doubts: status.doubts,
            errors: status.errors,
            sync_took: status.sync_took,
            ignored_claims: Vec::new(),
            memory_bytes: status.memory_bytes,
            next_attempt: status
                .next_attempt
                .filter(|_| state == ClusterState::Misbehaving)
                .and_then(|time| Timestamp::try_from(time).ok()),
            mode: None,
            credential: None,
            kubeconfig_refused: false,
            inventory: None,
            missing_rights: status.missing_rights.clone(),
            same_addresses: Vec::new(),
            same_ranges: Vec::new(),
            pod_ranges: Arc::clone(&status.pod_ranges),
            roots: status.roots.clone(),
            imports: Arc::clone(&status.imports),
            kept: None,
            withdrawn: None,
        }
    }
}

/// The sort key of a status: the config cluster, which has no Secret, first; then by ID, the holder
/// of the ID first.
fn order(status: &ClusterStatus) -> (bool, &str, bool, Option<&str>) {
    let idle = matches!(status.state, ClusterState::Conflict | ClusterState::Rejected);
    (status.secret.is_some(), &status.id, idle, status.secret.as_deref())
}

/// Whether a member in this state, which never synced, may still sync without intervention.
fn delays_readiness(state: ClusterState) -> bool {
    !matches!(
        state,
        ClusterState::AuthFailed
            | ClusterState::TlsFailed
            | ClusterState::Conflict
            | ClusterState::Paused
    )
}

/// Returns how an API server is reached.
fn via(access: &Access) -> Cow<'static, str> {
    match &access.proxy {
        _ if access.is_relayed() => RELAY.into(),
        Some(proxy) => format!("proxy {}", proxy.name).into(),
        None => DIRECT.into(),
    }
}
