//! `strait cluster`: shows and changes the member clusters.
//!
//! Commands that show clusters query the control plane. Commands that change clusters call the API
//! servers with the operator's own kubeconfig; the control plane then applies the changes, because
//! it watches the Secrets.

mod add;
pub(super) mod api;
mod change;
mod export_conditions;
mod fleet;
mod follow;
mod gateway;
mod import;
mod invite;
mod istio_service;
mod manifests;
mod mcs_purge;
mod membership;
mod mode;
mod preview;
mod purged_cluster;
mod remove;
mod rights;
mod rotate;
pub(super) mod webhook;

use clap::{Args, Subcommand};

pub(super) use self::add::{Manifests, check_network};
pub(super) use self::change::{ClusterChange, done};
pub(super) use self::gateway::NAMESPACE as GATEWAY_NAMESPACE;
use super::failure::{CommandResult, Exit};
use super::list::{GetOne, ListArgs, ListedKind};
use super::output::{self, Cell, Column, OutputStyle, Show, TableLayout, age, text, until};
use strait_admin_api::{
    Cluster, ClusterCredential, ClusterInReplica, ClusterState, CredentialKind, SameAddresses,
    SameRange,
};
use strait_base::codes;

/// Show and change member clusters.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Add one or many clusters to the mesh: creates a reader in each and a Secret with its token,
    /// and on request a gateway and injection
    Add(Box<add::AddArgs>),
    /// Invite a cluster that the control plane cannot dial: prints the chart values for the relay
    Invite(invite::InviteArgs),
    /// List member clusters
    List(ListArgs),
    /// Show one member cluster; exit code 2 if it is unhealthy
    Get(ClusterGetArgs),
    /// Remove a cluster from the mesh
    Remove(remove::RemoveArgs),
    /// Give the control plane a new token for one cluster, or for all clusters whose token expires
    /// soon
    Rotate(rotate::RotateArgs),
    /// Withdraw a cluster's endpoints from all proxies; the cluster is still watched
    Drain(mode::ModeArgs),
    /// Freeze a cluster at its last known state
    Pause(mode::ModeArgs),
    /// End 'drain' or 'pause'
    Resume(mode::ModeArgs),
    /// Delete the ServiceImports, derived Services and EndpointSlices that Strait wrote into a cluster
    McsPurge(mcs_purge::McsPurgeArgs),
    /// Add the clusters of a kubeconfig or of an Istio remote secret to the mesh
    Import(import::ImportArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ClusterGetArgs {
    /// ID of the cluster
    name: String,
    #[command(flatten)]
    one: GetOne,
}

/// The member clusters, as the admin API lists them.
pub(crate) const CLUSTERS: ListedKind<Cluster> = ListedKind {
    path: "/debug/clusters",
    does: "is a member",
    next: "strait cluster list",
    find: |rows, id| Ok(follow::find(rows, id)),
    describe,
    listing: TableLayout {
        kind: "cluster",
        name: |row| text(&row.id),
        columns: &[
            Column::new("CLUSTER", |row, _| text(&row.id).into()),
            Column::new("NETWORK", |row, _| text(&row.network).into()),
            Column::new("STATE", |row, _| state(row)),
            Column::new("LAST CONTACT", |row, look| age(&row.last_contact, look).into()),
            Column::new("SERVICES", |row, _| text(&row.services).into()),
            Column::new("ENDPOINTS", |row, _| match &row.withdrawn {
                Some(_) => Cell::doubtful(format!("{} withdrawn", text(&row.endpoints))),
                None => text(&row.endpoints).into(),
            }),
            Column::new("WITHHELD", |row, _| match row.withheld {
                0 => "0".into(),
                count => Cell::doubtful(count.to_string()),
            }),
            Column::new("CREDENTIAL ENDS IN", credential_ends),
            Column::wide("SINCE", |row, look| age(&row.since, look).into()),
            Column::wide("SECRET", |row, _| text(&row.secret).into()),
            Column::wide("SOURCE", |row, _| text(&row.source).into()),
            Column::wide("VIA", |row, _| text(&row.via).into()),
            Column::wide("INVENTORY", |row, _| inventory_manager(row).into()),
            Column::wide("TRUST DOMAIN", |row, _| text(&row.trust_domain).into()),
            Column::wide("OBJECTS", |row, _| text(&row.objects).into()),
            Column::wide("RELISTS", |row, _| text(&row.relists).into()),
            Column::wide("MISSING RIGHTS", |row, _| missing_rights(row)),
            Column::new("REASON", |row, _| reason(row)),
        ],
    },
};

/// Returns whether a cluster's state is healthy or requested by its operator. A cluster that syncs
/// is not healthy if its requests fail. A cluster that drains is not healthy if the operator file no
/// longer selects it: its Secret still exists.
pub(crate) fn is_well(row: &Cluster) -> bool {
    let code = codes::named(row.reason.as_deref().unwrap_or_default());
    match row.state {
        ClusterState::Syncing => code.is_none(),
        ClusterState::Draining => code != Some(&codes::MEMBER_DESELECTED),
        ClusterState::Live | ClusterState::Paused => true,
        _ => false,
    }
}

/// Returns the reason of the state, or the state in each replica if they differ.
fn reason(row: &Cluster) -> Cell {
    let in_replica = |one: &ClusterInReplica| {
        let state = one.state.as_ref().map_or("not a member", ClusterState::as_str);
        let reason = one.reason.iter().map(|reason| format!(": {reason}"));
        format!("{state} in {}{}", one.replica, reason.collect::<String>())
    };
    match &*row.replicas {
        [] => text(&row.reason).into(),
        states => Cell::bad(states.iter().map(in_replica).collect::<Vec<_>>().join("; ")),
    }
}

/// Returns the permissions that the reader lacks.
fn missing_rights(row: &Cluster) -> Cell {
    match row.missing_rights.is_empty() {
        true => "<none>".into(),
        false => Cell::doubtful(row.missing_rights.join(", ")),
    }
}

/// Returns the manager of the inventory that the cluster comes from.
fn inventory_manager(row: &Cluster) -> String {
    text(&row.inventory.as_ref().map(|inventory| inventory.manager.clone()))
}

/// Returns the remaining lifetime of the cluster's credential, if it expires.
fn credential_ends(row: &Cluster, look: &OutputStyle) -> Cell {
    let credential = row.credential.as_ref();
    credential_cell(credential, until(&credential.and_then(|one| one.expires.clone()), look))
}

/// Returns a cell about the expiry of a credential, marked if it expires soon.
fn credential_cell(credential: Option<&ClusterCredential>, shown: String) -> Cell {
    let ends_soon = credential.is_some_and(|credential| credential.ends_soon);
    if ends_soon { Cell::bad(shown) } else { shown.into() }
}

fn state(row: &Cluster) -> Cell {
    let shown = text(row.state.as_str());
    match row.state {
        ClusterState::Live => Cell::good(shown),
        ClusterState::Syncing
        | ClusterState::Paused
        | ClusterState::Draining
        | ClusterState::Stale
        | ClusterState::Restored => Cell::doubtful(shown),
        _ => Cell::bad(shown),
    }
}

/// Runs `strait cluster`.
pub(crate) async fn run(command: ClusterCommand) -> CommandResult {
    match command {
        ClusterCommand::Add(args) if args.from.is_some() => Box::pin(fleet::run(&args)).await,
        ClusterCommand::Add(args) => Box::pin(add::run(&args)).await,
        ClusterCommand::Invite(args) => Box::pin(invite::run(&args)).await,
        ClusterCommand::List(list) => list.run(CLUSTERS.path, &CLUSTERS.listing).await,
        ClusterCommand::Get(ClusterGetArgs { name, one }) => {
            let settled = |row: &Cluster| is_well(row) && row.state != ClusterState::Syncing;
            let row = one.run(&CLUSTERS, &name, settled).await?;
            Ok(if is_well(&row) { Exit::Fine } else { Exit::Unhealthy })
        }
        ClusterCommand::Remove(args) => Box::pin(remove::run(&args)).await,
        ClusterCommand::Rotate(args) => Box::pin(rotate::run(&args)).await,
        ClusterCommand::Drain(args) => Box::pin(mode::run(&args, Some("drain"))).await,
        ClusterCommand::Pause(args) => Box::pin(mode::run(&args, Some("pause"))).await,
        ClusterCommand::Resume(args) => Box::pin(mode::run(&args, None)).await,
        ClusterCommand::McsPurge(args) => Box::pin(mcs_purge::run(&args)).await,
        ClusterCommand::Import(args) => Box::pin(import::run(&args)).await,
    }
}

fn describe(row: &Cluster, _: &Show, look: &OutputStyle) -> String {
    let mut fields: Vec<(&str, Cell)> =
        vec![("Cluster", text(&row.id).into()), ("State", state(row))];
    if row.reason.as_ref().is_some_and(|reason| !reason.is_empty()) {
        fields.push(("Reason", text(&row.reason).into()));
    }
    fields.extend([
        (
            "Since",
            row.since
                .as_ref()
                .map_or("<none>".to_owned(), |since| format!("{} ago", age(since, look)))
                .into(),
        ),
        (
            "Last contact",
            format!("{} ago", age(&row.last_contact, look)).replace("<none> ago", "never").into(),
        ),
    ]);
    if let Some(next) = &row.next_attempt {
        fields.push(("Next attempt", format!("in {}", until(next, look)).into()));
    }
    let used = row.credential.as_ref();
    fields.extend([
        ("Network", text(&row.network).into()),
        ("Trust domain", text(&row.trust_domain).into()),
        ("Secret", text(&row.secret).into()),
        ("Source", text(&row.source).into()),
        ("Via", text(&row.via).into()),
        ("Credential", used.map_or("<none>".to_owned(), credential).into()),
        ("Credential ends", {
            let ends = match used.and_then(|used| used.expires.as_ref()) {
                Some(time) => {
                    let shown = format!("{time} (in {})", until(time, look));
                    credential_cell(used, shown)
                }
                None => "<none>".to_owned().into(),
            };
            match used.filter(|used| used.renews_itself).map(|used| &used.kind) {
                Some(CredentialKind::Relay) => ends.with(", renewed by the relay"),
                Some(_) => ends.with(", renewed by the control plane"),
                None => ends,
            }
        }),
        ("Services", text(&row.services).into()),
        ("Endpoints", text(&row.endpoints).into()),
        ("Withheld", text(&row.withheld).into()),
        ("Objects", text(&row.objects).into()),
        ("Relists", text(&row.relists).into()),
    ]);
    if let Some(inventory) = &row.inventory {
        let manager = text(&inventory.manager);
        let since = match &inventory.since {
            Some(since) => format!(" since {since}"),
            None => String::new(),
        };
        let (healthy, joined) = (text(&inventory.control_plane_healthy), text(&inventory.joined));
        let shown = format!("{manager}: control plane healthy {healthy}{since}, joined {joined}");
        fields.push(("Inventory", shown.into()));
    }
    if let Some(error) = used.and_then(|used| used.last_error.as_ref()) {
        fields.push(("Credential error", Cell::bad(error.clone())));
    }
    if !row.read_namespaces.is_empty() {
        fields.push(("Namespaces read", text(&row.read_namespaces.join(", ")).into()));
    }
    fields.extend(row.unread_namespaces.iter().map(|unread| {
        let (namespace, since) = (text(&unread.namespace), age(&unread.since, look));
        let shown = format!("{namespace} for {since}: {}", text(&unread.reason));
        ("Namespace not read", Cell::bad(shown))
    }));
    let missing = row.missing_rights.iter();
    fields.extend(missing.map(|right| {
        let lost = rights::lost(right).map(|lost| format!("; lost: {lost}")).unwrap_or_default();
        ("Missing right", Cell::doubtful(format!("{}{lost}", text(right))))
    }));
    fields.extend(row.ignored_claims.iter().map(|claim| {
        let (claim, network) = (text(&claim.claim), text(&claim.network));
        ("Ignored claim", Cell::doubtful(format!("{claim}: {network}")))
    }));
    fields.extend(
        row.same_addresses.iter().map(|same| ("Same address", Cell::bad(same_addresses(same)))),
    );
    let withdrawn = row.withdrawn.iter();
    fields.extend(withdrawn.map(|why| ("Endpoints withdrawn", Cell::bad(text(why)))));
    fields.extend(row.invalid_exports.iter().map(|invalid| {
        let (count, first, reason) = (invalid.count, text(&invalid.first), text(&invalid.reason));
        ("Invalid exports", Cell::doubtful(format!("{count}, such as {first}: {reason}")))
    }));
    fields.extend(row.leftover_imports.iter().map(|left| {
        let shown = format!("{}, such as {}", left.count, text(&left.first));
        ("Leftover imports", Cell::doubtful(shown))
    }));
    let ranges = row.same_ranges.iter();
    fields.extend(ranges.map(|same| ("Same range", Cell::doubtful(same_range(same)))));
    output::describe(fields, look)
}

/// Describes a credential: its kind, the identity that provides it, and its user.
fn credential(credential: &ClusterCredential) -> String {
    let mut shown = text(credential.kind.as_str());
    if let Some(name) = &credential.identity {
        shown += &format!(" {name}");
    }
    if let Some(user) = &credential.principal {
        shown += &format!(", user {user}");
    }
    shown
}

/// Describes an entry of `sameAddresses`: pods of another cluster that have the addresses of this
/// cluster's pods.
fn same_addresses(same: &SameAddresses) -> String {
    let network = &same.network;
    let (count, first) = (text(&same.addresses), text(&same.first));
    let (other, holder) = (text(&same.cluster), text(&same.holder));
    format!(
        "same address: {count} of its pods have addresses of pods of {other} in network {network:?} (first {first}); proxies of other clusters receive the pods of {holder}"
    )
}

/// Describes an entry of `sameRanges`: nodes of another cluster that assign pod addresses of the
/// same range.
pub(super) fn same_range(same: &SameRange) -> String {
    let network = &same.network;
    let (other, range) = (text(&same.cluster), text(&same.range));
    format!(
        "same addresses are possible: its nodes and the nodes of {other} assign pod addresses of {range} in network {network:?}"
    )
}
