//! `/debug/clusters`: the status of each member cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use jiff::Timestamp;

use super::failure::{AdminResult, pretty};
use super::proxy_view::withheld;
use super::sources::{Sources, SourcesState};
use super::{same_ranges, views};
use crate::metrics::WithheldCounts;
use strait_admin_api::{self as api, CredentialKind};
use strait_model::{ClusterId, IgnoredClaim, ImportMode, SameAddress, SameRange, WorkloadKey};
use strait_sources::clusters::status::{
    ClusterStatus, CredentialKind as StoredKind, CredentialStatus, InventoryStatus, OutdatedStatus,
    UnreadStatus,
};
use strait_sources::registry::kube::{ImportsStatus, RootsStatus};

/// Returns the status of each member cluster.
pub(super) async fn clusters(State(sources): SourcesState) -> AdminResult {
    Ok(pretty(StatusCode::OK, &rows(&sources, &withheld(&sources))))
}

/// Returns the status of each member cluster in this replica, with these withheld endpoints.
pub(super) fn rows(sources: &Sources, counts: &WithheldCounts) -> Vec<api::Cluster> {
    statuses(sources, counts).into_iter().map(row).collect()
}

/// Returns the statuses with the facts that depend on the mesh and on the connected proxies.
fn statuses(sources: &Sources, counts: &WithheldCounts) -> Vec<ClusterStatus> {
    let statuses = Arc::clone(&sources.clusters.borrow());
    let context = sources.context.borrow().clone();
    let mut same_addresses = context.as_deref().map(views::same_addresses).unwrap_or_default();
    // Of several entries with one ID, the first one holds it.
    let mut seen = BTreeSet::new();
    let mut rows: Vec<ClusterStatus> = statuses
        .iter()
        .map(|status| {
            let id = ClusterId::from(status.id.as_str());
            let mut row = status.clone();
            let holds = seen.insert(id.clone());
            let relay = row.credential.as_mut().filter(|one| one.kind == StoredKind::Relay);
            if let Some(credential) = relay.filter(|_| holds) {
                let expires = sources.relays.expires(&id);
                credential.expires = expires.and_then(|time| time.try_into().ok());
            }
            if let Some(context) = context.as_ref().filter(|_| holds) {
                let by_code = counts.get(&id).into_iter().flatten();
                row.withheld_by = by_code.map(|(code, total)| (*code, total.endpoints)).collect();
                row.withheld = row.withheld_by.values().sum();
                row.ignored_claims = views::ignored_claims(context, &id);
                row.same_addresses = same_addresses.remove(&id).unwrap_or_default();
                let held = context.network_labels.contains_key(&id);
                row.network = row.network.or_else(|| held.then(|| context.network_of_cluster(&id)));
            }
            row
        })
        .collect();
    same_ranges::find_same_ranges(&mut rows);
    rows
}

fn row(status: ClusterStatus) -> api::Cluster {
    let text = |time: Timestamp| time.to_string();
    let last_contact = status.last_contact.get();
    let last_contact = last_contact.and_then(|time| Timestamp::try_from(time).ok());
    api::Cluster {
        id: status.id,
        secret: status.secret,
        source: status.source,
        source_kind: status.source_kind.map(str::to_owned),
        via: status.via.into_owned(),
        state: status.state.as_str().into(),
        reason: status.reason,
        since: status.since.map(text),
        network: status.network.map(|network| network.to_string()),
        trust_domain: status.trust_domain,
        last_contact: last_contact.map(text),
        outdated: status.outdated.into_iter().map(outdated).collect(),
        read_namespaces: status.read_namespaces.names().iter().map(ToString::to_string).collect(),
        unread_namespaces: status.unread.into_iter().map(unread).collect(),
        services: status.services,
        endpoints: status.endpoints,
        withheld: status.withheld,
        withheld_by: status.withheld_by.into_iter().map(|(code, n)| (code.to_owned(), n)).collect(),
        objects: status.objects,
        relists: status.relists,
        ignored_claims: status.ignored_claims.into_iter().map(ignored_claim).collect(),
        next_attempt: status.next_attempt.map(text),
        mode: status.mode.map(str::to_owned),
        kubeconfig_refused: status.kubeconfig_refused,
        credential: status.credential.map(credential),
        inventory: status.inventory.map(inventory),
        missing_rights: status.missing_rights,
        same_addresses: status.same_addresses.into_iter().map(same_addresses).collect(),
        same_ranges: status.same_ranges.into_iter().map(same_range).collect(),
        withdrawn: status.withdrawn.map(|why| why.to_string()),
        invalid_exports: invalid_exports(&status.imports.invalid_exports),
        leftover_imports: leftover_imports(&status.imports),
        roots: status.roots.map(roots),
        replicas: Vec::new(),
    }
}

/// Groups invalid exports by reason.
fn leftover_imports(status: &ImportsStatus) -> Option<api::LeftoverImports> {
    if status.mode != ImportMode::Off {
        return None;
    }
    let left = || status.imports.iter().filter(|(_, state)| state.present && state.ours);
    let (first, _) = left().next()?;
    let first = format!("{}/{}", first.namespace, first.name);
    Some(api::LeftoverImports { count: left().count(), first })
}

fn invalid_exports(exports: &BTreeMap<WorkloadKey, &'static str>) -> Vec<api::InvalidExports> {
    let mut groups: BTreeMap<&str, api::InvalidExports> = BTreeMap::new();
    for (key, reason) in exports {
        let group = groups.entry(reason).or_insert_with(|| api::InvalidExports {
            count: 0,
            first: format!("{}/{}", key.namespace, key.name),
            reason: (*reason).to_owned(),
        });
        group.count += 1;
    }
    groups.into_values().collect()
}

fn outdated(status: OutdatedStatus) -> api::OutdatedKind {
    api::OutdatedKind { kind: status.kind.to_owned(), since: status.since.to_string() }
}

fn unread(status: UnreadStatus) -> api::UnreadNamespace {
    api::UnreadNamespace {
        namespace: status.namespace.to_string(),
        since: status.since.to_string(),
        reason: status.reason,
    }
}

fn ignored_claim(claim: IgnoredClaim) -> api::IgnoredClaim {
    api::IgnoredClaim { claim: claim.claim, network: claim.network.to_string() }
}

fn same_addresses(same: SameAddress) -> api::SameAddresses {
    api::SameAddresses {
        network: same.network.to_string(),
        cluster: same.cluster.to_string(),
        addresses: same.addresses,
        first: same.first.to_string(),
        holder: same.holder.to_string(),
    }
}

fn same_range(same: SameRange) -> api::SameRange {
    let SameRange { network, cluster, range } = same;
    let (network, cluster, range) = (network.to_string(), cluster.to_string(), range.to_string());
    api::SameRange { network, cluster, range }
}

fn credential(status: CredentialStatus) -> api::ClusterCredential {
    api::ClusterCredential {
        kind: match status.kind {
            StoredKind::Token => CredentialKind::Token,
            StoredKind::ClientCertificate => CredentialKind::ClientCertificate,
            StoredKind::Basic => CredentialKind::Basic,
            StoredKind::Identity => CredentialKind::Identity,
            StoredKind::Relay => CredentialKind::Relay,
        },
        identity: status.identity,
        principal: status.principal,
        expires: status.expires.map(|time| time.to_string()),
        refresh_at: status.refresh_at.map(|time| time.to_string()),
        last_error: status.last_error,
        ends_soon: status.ends_soon,
        renews_itself: status.renews_itself,
    }
}

fn inventory(status: InventoryStatus) -> api::Inventory {
    api::Inventory {
        manager: status.manager,
        control_plane_healthy: status.control_plane_healthy.to_owned(),
        joined: status.joined.to_owned(),
        since: status.since.map(|time| time.to_string()),
    }
}

fn roots(status: RootsStatus) -> api::ClusterRoots {
    let RootsStatus { namespaces, current, foreign, foreign_first, beside, denied, trust_bundle } =
        status;
    let trust_bundle = trust_bundle.map(|state| state.as_str().to_owned());
    api::ClusterRoots { namespaces, current, foreign, foreign_first, beside, denied, trust_bundle }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_sources::clusters::status::ClusterState;

    #[test]
    fn every_state_of_a_cluster_has_a_name_in_the_api() {
        for state in ClusterState::ALL {
            let named = api::ClusterState::from(state.as_str());
            assert!(!matches!(named, api::ClusterState::Other(_)), "{named:?}");
        }
    }

    #[test]
    fn live_cluster_omits_fields_without_a_value() {
        let row = serde_json::to_value(row(ClusterStatus::live("east"))).expect("JSON");
        let expected = serde_json::json!({
            "id": "east", "secret": "strait-system/east", "source": "system",
            "sourceKind": "Secret", "via": "direct", "state": "live", "reason": null,
            "network": null, "trustDomain": "cluster.local", "lastContact": null, "services": 0,
            "endpoints": 0, "withheld": 0, "objects": 0, "relists": 0, "credential": null,
            "inventory": null, "missingRights": [],
        });
        assert_eq!(row, expected);
    }
}
