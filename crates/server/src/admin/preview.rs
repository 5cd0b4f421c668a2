//! `POST /debug/diff` and `/debug/scope`: previews of the effect of hypothetical configuration
//! changes on connected proxies. Changes nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use super::failure::{AdminFailure, AdminResult, bad, pretty};
use super::json_fields::changed_fields;
use super::sources::{SourcesState, connected, current};
use strait_admin_api::{self as api, ObjectAction};
use strait_ads::connections::{OpenStream, newest_by};
use strait_ads::preview::{PreviewedProxies, TypePreview, preview};
use strait_explain::{CalledHosts, ConfigQuery, ConfigReason, ConfigView, dated, suggest_scope};
use strait_mesh::push::PushContext;
use strait_model::{Collection, Namespace, ObjectJson, ObjectKey};
use strait_xds::resource::{Resource, ResourceType};

/// Maximum size of a request in bytes.
pub(super) const QUESTION_BYTES_MAX: usize = 16 << 20;
/// Maximum number of objects in a request.
const OBJECTS_MAX: usize = 10_000;
/// Maximum duration of a preview; proxies that were not compared are only counted.
const LOOK: Duration = Duration::from_secs(20);
/// Maximum number of resources per response with details about fields; further resources are only
/// listed.
const FIELDS_MAX: usize = 2_000;

/// Maximum number of namespaces listed in an error about an unknown namespace.
const NAMESPACES_NAMED: usize = 20;

/// Query of a preview.
#[derive(Deserialize)]
pub(super) struct PreviewQuery {
    /// Only this proxy.
    proxy: Option<String>,
    /// Whether changed fields are included.
    #[serde(default)]
    fields: bool,
}

/// Body of a preview: the hypothetical changes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TriedObjects {
    /// Objects that would be stored, replacing objects of equal kind, namespace and name.
    #[serde(default)]
    objects: Vec<Arc<Value>>,
    /// Objects that would be deleted.
    #[serde(default)]
    remove: Vec<RemovedObject>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RemovedObject {
    kind: String,
    namespace: String,
    name: String,
}

/// An object of the preview.
struct TriedObject {
    key: ObjectKey,
    action: &'static str,
}

/// Previews which connected proxies would receive other resources if objects changed. Changes
/// nothing.
pub(super) async fn preview_change(
    State(sources): SourcesState,
    query: Result<Query<PreviewQuery>, QueryRejection>,
    body: Result<Bytes, BytesRejection>,
) -> AdminResult {
    let Query(query) =
        query.map_err(|_| bad("expected ?proxy=P, ?fields=true, both, or no query"))?;
    let body = body.map_err(|error| AdminFailure(error.status(), error.body_text()))?;
    let tried: TriedObjects = serde_json::from_slice(&body)
        .map_err(|error| bad(&format!("expected {{\"objects\":[…],\"remove\":[…]}}: {error}")))?;
    if tried.objects.len() + tried.remove.len() > OBJECTS_MAX {
        return Err(bad(&format!("more than {OBJECTS_MAX} objects; split the request")));
    }
    let context = current(&sources)?;
    let reports = Arc::clone(&sources.reports.borrow());
    let streams = match &query.proxy {
        Some(name) => vec![connected(&sources, name)?],
        None => newest_streams(sources.connections.list()),
    };
    let is_dated = context.settings.config_cluster.is_some();
    // During a hold, the stored objects are compared, not the held ones.
    let context = reports.judged(&context);
    let (objects, tried) = edited(&reports.objects, tried, is_dated)?;
    let mesh = sources.trials.with_objects(&context, &reports, &objects);
    let proxies: Vec<_> = streams.iter().map(|stream| stream.proxy()).collect();
    let view = ConfigView::new(&mesh.then, &mesh.reports, &proxies);
    let kept = mesh.kept_subsets();
    let rows = tried.iter().map(|one| row(one, &view, &kept)).collect();
    let found = preview([&mesh.before, &mesh.then], &streams, Instant::now() + LOOK);
    let mut decoded_max = if query.fields { FIELDS_MAX } else { 0 };
    let affected = found.affected().map(|one| of_proxies(one, &mut decoded_max));
    let answer = api::ChangePreview {
        objects: rows,
        affected: affected.collect(),
        unaffected: found.unaffected(),
        not_looked_at: found.skipped,
        missing_replicas: Vec::new(),
    };
    Ok(pretty(StatusCode::OK, &answer))
}

/// Returns the stream with the configuration of each proxy, oldest first. Proxies of two clusters
/// may have the same node ID.
pub(super) fn newest_streams(all: Vec<Arc<OpenStream>>) -> Vec<Arc<OpenStream>> {
    let newest = newest_by(&all, |one| (&*one.proxy().id, &one.proxy().cluster));
    newest.into_iter().map(Arc::clone).collect()
}

/// Returns the hypothetical objects of the stores, and the action on each.
fn edited(
    stored: &Collection,
    tried: TriedObjects,
    is_dated: bool,
) -> Result<(Collection, Vec<TriedObject>), AdminFailure> {
    let mut objects = stored.clone();
    let mut rows = Vec::new();
    for (at, object) in tried.objects.into_iter().enumerate() {
        let key = ObjectKey::of(&object).ok_or_else(|| {
            bad(&format!("objects[{at}] lacks an apiVersion, a kind or a name; set all three"))
        })?;
        let is_same = |old: &ObjectJson| {
            let old = &old.to_value();
            let labels = |one: &Value, field: &str| one["metadata"][field].clone();
            old.get("spec") == object.get("spec")
                && labels(old, "labels") == labels(&object, "labels")
        };
        let action = match stored.get(&key) {
            _ if !is_tried(&key) => "left",
            None => "new",
            Some(old) if is_same(old) => "same",
            Some(_) => "changed",
        };
        if action != "left" {
            let dated = dated(&object, stored.get(&key), is_dated);
            objects.insert(key.clone(), dated);
        }
        rows.push(TriedObject { key, action });
    }
    for one in tried.remove {
        let RemovedObject { kind, namespace, name } = one;
        let is_it = |key: &&ObjectKey| {
            *key.kind == *kind && *key.namespace == *namespace && *key.name == *name
        };
        let key = stored.iter().map(|(key, _)| key).find(is_it).cloned();
        let Some(key) = key else {
            let text = format!("there is no {kind} {namespace}/{name} to remove");
            return Err(AdminFailure(StatusCode::NOT_FOUND, text));
        };
        let action = if is_tried(&key) { "removed" } else { "left" };
        if action != "left" {
            objects.remove(&key);
        }
        rows.push(TriedObject { key, action });
    }
    Ok((objects, rows))
}

/// Returns whether previews cover this object: traffic rules and access policies, but not
/// descriptions of services.
fn is_tried(key: &ObjectKey) -> bool {
    !matches!(&*key.kind, "ServiceEntry" | "WorkloadEntry")
        && (key.group.ends_with(".istio.io") || &*key.group == strait_model::GATEWAY_API)
}

/// Returns an object with its status and the reasons about removed subsets.
fn row(
    TriedObject { key, action }: &TriedObject,
    view: &ConfigView<'_>,
    kept: &[([Arc<str>; 2], ConfigReason)],
) -> api::PreviewedObject {
    let own = [Arc::clone(&key.namespace), Arc::clone(&key.name)];
    let lost = kept.iter().filter(|(name, _)| *key.kind == *"DestinationRule" && *name == own);
    let lost = lost.map(|(_, reason)| reason.clone().into());
    let mut row = api::PreviewedObject {
        kind: key.kind.to_string(),
        namespace: key.namespace.to_string(),
        name: key.name.to_string(),
        action: (*action).into(),
        state: None,
        proxies: 0,
        reasons: lost.collect(),
    };
    if matches!(row.action, ObjectAction::Left | ObjectAction::Removed) {
        return row;
    }
    let query = ConfigQuery {
        kind: Some(row.kind.clone()),
        namespace: Some(row.namespace.clone()),
        name: Some(row.name.clone()),
    };
    match view.states(&query).into_iter().next() {
        Some(state) => {
            row.state = Some(state.state.into());
            row.proxies = state.proxies;
            row.reasons.splice(..0, state.reasons.into_iter().map(Into::into));
        }
        None => row.reasons.clear(),
    }
    row
}

pub(super) fn of_proxies(
    group: &PreviewedProxies,
    decoded_max: &mut usize,
) -> api::AffectedProxies {
    let types = group
        .types
        .iter()
        .map(|(kind, one)| (kind.short().to_owned(), of_type(*kind, one, decoded_max)));
    let types = types.collect();
    let api::ProxyTotals { bytes, proxies, resources } = totals(group);
    api::AffectedProxies { bytes, proxies, resources, types }
}

/// Returns proxies with their current and hypothetical totals.
fn totals(PreviewedProxies { streams, totals, .. }: &PreviewedProxies) -> api::ProxyTotals {
    let proxies = streams.iter().map(|stream| {
        let proxy = stream.proxy();
        api::StreamName {
            key: stream.key(),
            id: proxy.id.to_string(),
            cluster: proxy.cluster.to_string(),
        }
    });
    let [before, then] = totals;
    api::ProxyTotals {
        proxies: proxies.collect(),
        resources: api::BeforeAfter { before: before.resources, after: then.resources },
        bytes: api::BeforeAfter { before: before.bytes, after: then.bytes },
    }
}

fn of_type(kind: ResourceType, one: &TypePreview, decoded_max: &mut usize) -> api::TypeChanges {
    let changed = one.changed.iter().map(|(name, [old, new])| {
        let fields = (*decoded_max > 0).then(|| {
            *decoded_max -= 1;
            let [old, new] = [old, new].map(|one| decoded(kind, one));
            changed_fields(&old, &new)
        });
        api::ChangedResource { name: name.to_string(), fields }
    });
    api::TypeChanges {
        changed: changed.collect(),
        added: one.added.keys().map(ToString::to_string).collect(),
        removed: one.removed.keys().map(ToString::to_string).collect(),
    }
}

fn decoded(kind: ResourceType, resource: &Resource) -> Value {
    strait_proto::json::to_json(kind.url(), &resource.body.to_bytes()).unwrap_or_default()
}

/// Body of `/debug/scope`: the observed calls of a namespace's proxies.
#[derive(Deserialize)]
struct ScopeQuestion {
    namespace: String,
    #[serde(flatten)]
    called: CalledHosts,
}

/// Returns the Sidecar that allows the observed calls, and its savings.
pub(super) async fn scoped(
    State(sources): SourcesState,
    body: Result<Bytes, BytesRejection>,
) -> AdminResult {
    let body = body.map_err(|error| AdminFailure(error.status(), error.body_text()))?;
    let requested: ScopeQuestion = serde_json::from_slice(&body).map_err(|error| {
        bad(&format!("expected {{\"namespace\",\"hosts\",\"names\",\"passed\"}}: {error}"))
    })?;
    let reports = Arc::clone(&sources.reports.borrow());
    let context = reports.judged(&current(&sources)?);
    let namespace = Namespace::from(requested.namespace.as_str());
    let mut streams = newest_streams(sources.connections.list());
    known(&namespace, &context, &reports.objects, &streams)?;
    let suggestion = suggest_scope(&context, &reports.objects, &namespace, &requested.called);
    let mut objects = reports.objects.clone();
    let object = Arc::new(suggestion.object);
    if let Some(key) = ObjectKey::of(&object) {
        let is_dated = context.settings.config_cluster.is_some();
        let dated = dated(&object, reports.objects.get(&key), is_dated);
        objects.insert(key, dated);
    }
    let mesh = sources.trials.with_objects(&context, &reports, &objects);
    streams.retain(|one| {
        one.proxy().kind.serves_one_workload() && *one.proxy().namespace() == namespace
    });
    let found = preview([&mesh.before, &mesh.then], &streams, Instant::now() + LOOK);
    let answer = api::ScopePreview {
        object: Value::clone(&object),
        replaces: suggestion.replaces,
        unknown: suggestion.unknown.into_iter().collect(),
        others: suggestion.others,
        proxies: found.groups.iter().map(totals).collect(),
        not_looked_at: found.skipped,
        missing_replicas: Vec::new(),
    };
    Ok(pretty(StatusCode::OK, &answer))
}

/// Rejects an unknown namespace, listing the known ones.
fn known(
    namespace: &Namespace,
    context: &PushContext,
    objects: &Collection,
    streams: &[Arc<OpenStream>],
) -> Result<(), AdminFailure> {
    let name = namespace.as_str();
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = (1..=63).contains(&name.len())
        && name.bytes().all(plain)
        && !name.starts_with('-')
        && !name.ends_with('-');
    if !is_label {
        return Err(bad(&format!("{name:?} is not a valid name of a namespace")));
    }
    let of_services = context.services.values().map(|service| service.primary.namespace.as_str());
    let of_private = context.private.values().flat_map(|of| of.keys().map(Namespace::as_str));
    let of_objects = objects.iter().map(|(key, _)| &*key.namespace);
    let of_proxies = streams.iter().map(|stream| stream.proxy().namespace().as_str());
    let all: BTreeSet<&str> = of_services
        .chain(of_private)
        .chain(of_objects)
        .chain(of_proxies)
        .filter(|name| !name.is_empty())
        .collect();
    if all.contains(name) {
        return Ok(());
    }
    let mut first: Vec<&str> = all.iter().take(NAMESPACES_NAMED).copied().collect();
    if all.len() > first.len() {
        first.push("…");
    }
    let those = if first.is_empty() { "none".to_owned() } else { first.join(", ") };
    let text = format!("namespace {name} is unknown; known namespaces: {those}");
    Err(AdminFailure(StatusCode::NOT_FOUND, text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(kind: &str, name: &str, spec: u32) -> Value {
        let group = "networking.istio.io/v1";
        json!({
            "apiVersion": group, "kind": kind, "spec": spec,
            "metadata": { "namespace": "shop", "name": name },
        })
    }

    #[test]
    fn objects_replace_those_of_the_same_name() {
        let stored: Collection = ["old", "same", "gone"]
            .map(|name| Arc::new(object("VirtualService", name, 1)))
            .into_iter()
            .collect();
        let tried = |objects: Value, remove: Value| -> TriedObjects {
            serde_json::from_value(json!({ "objects": objects, "remove": remove })).expect("sound")
        };
        let remove =
            |name: &str| json!([{ "kind": "VirtualService", "namespace": "shop", "name": name }]);
        let objects = json!([
            object("VirtualService", "old", 2),
            object("VirtualService", "same", 1),
            object("VirtualService", "new", 1),
            object("ServiceEntry", "entry", 1),
        ]);
        let (now, rows) =
            edited(&stored, tried(objects, remove("gone")), false).ok().expect("sound");
        let actions: Vec<_> = rows.iter().map(|one| (&*one.key.name, one.action)).collect();
        assert_eq!(
            actions,
            [
                ("old", "changed"),
                ("same", "same"),
                ("new", "new"),
                ("entry", "left"),
                ("gone", "removed")
            ]
        );
        let names: Vec<_> =
            now.iter().map(|(key, one)| (&*key.name, one.to_value()["spec"].clone())).collect();
        assert_eq!(names, [("new", json!(1)), ("old", json!(2)), ("same", json!(1))]);
        for (objects, remove, expected) in [
            (json!([{ "kind": "VirtualService" }]), json!([]), "objects[0] lacks an apiVersion"),
            (json!([]), remove("absent"), "there is no VirtualService shop/absent"),
        ] {
            let AdminFailure(_, text) =
                edited(&stored, tried(objects, remove), false).err().expect("an error");
            assert!(text.contains(expected), "{text}");
        }
    }
}
