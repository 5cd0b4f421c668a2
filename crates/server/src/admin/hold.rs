//! `/debug/hold`, `/api/hold` and `/api/release`: the active hold, a preview of another hold, and
//! the requests to hold and release. Writing requires the token; a browser's session only reads.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use serde::Deserialize;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::failure::{AdminFailure, AdminResult, bad, pretty};
use super::preview::{newest_streams, of_proxies};
use super::sources::{Sources, SourcesState, current};
use strait_admin_api as api;
use strait_ads::preview::preview;
use strait_base::time::rfc3339;
use strait_mesh::hold::{
    ConfigurationHold, HoldChange, HoldMark, HoldRefusal, HoldRequest, HoldScope, HoldSharing,
    HoldState, Waiting, now_to_the_millisecond,
};
use strait_mesh::push::PushContext;
use strait_mesh::rollout::STOPPED_BY;
use strait_model::mesh_config::Defaults;
use strait_model::{ConfigurationSnapshot, ObjectKey};

/// Maximum size of a request in bytes.
pub(super) const QUESTION_BYTES_MAX: usize = 64 << 10;
/// Maximum number of characters of a reason or a name.
const TEXT_MAX: usize = 1024;
/// Maximum duration of a preview; proxies that were not compared are only counted.
const LOOK: Duration = Duration::from_secs(20);
/// Maximum wait for the other replicas.
const SHARING_WAIT: Duration = Duration::from_secs(3);
/// Maximum number of waiting objects that are listed.
const OBJECTS_SHOWN: usize = 1000;

/// Body of a request.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct HoldQuestion {
    /// Version or ID of a configuration; the active one if absent.
    configuration: Option<String>,
    /// Whether the hold includes access policies.
    with_access: bool,
    /// Name of the requester, as given by the requester.
    by: String,
    /// Reason of the request.
    reason: String,
    /// For a preview: compares with a release instead of a hold.
    release: bool,
}

/// Returns the active hold, the waiting objects, and the stored configurations.
pub(super) async fn state(State(sources): SourcesState) -> AdminResult {
    Ok(pretty(StatusCode::OK, &answer(&sources, &sources.hold.borrow())))
}

fn answer(sources: &Sources, state: &HoldState) -> api::HoldStatus {
    let in_force = sources.context.borrow().as_ref().map(|now| Arc::clone(&now.configuration));
    let retained = sources.retained.all().into_iter().map(|one| api::RetainedConfiguration {
        id: one.configuration.id().to_string(),
        version: one.version,
        at: rfc3339(one.at),
        objects: one.configuration.objects().count(),
        in_force: in_force.as_ref().is_some_and(|now| *now == one.configuration),
    });
    let Waiting { objects, mesh_config, mesh_networks } = &*state.waiting;
    api::HoldStatus {
        held: in_short(sources, state),
        replicas: replicas(sources),
        lost: state.lost.as_deref().map(str::to_owned),
        live: state.live.as_ref().map(|live| live.id().to_string()),
        waiting: api::WaitingChanges {
            count: state.waiting.len(),
            objects: objects.iter().take(OBJECTS_SHOWN).map(name).collect(),
            mesh_config: *mesh_config,
            mesh_networks: *mesh_networks,
        },
        configurations: retained.collect(),
    }
}

/// Returns the name of an object.
pub(super) fn name(key: &ObjectKey) -> api::ObjectName {
    let ObjectKey { kind, namespace, name, .. } = key;
    let [kind, namespace, name] = [kind, namespace, name].map(ToString::to_string);
    api::ObjectName { kind, name, namespace }
}

/// Returns the active hold for other responses too.
pub(super) fn in_short(sources: &Sources, state: &HoldState) -> Option<api::HeldConfiguration> {
    let hold = state.held.as_ref()?;
    Some(api::HeldConfiguration {
        configuration: hold.configuration.id().to_string(),
        since: rfc3339(hold.since),
        by: hold.by.clone(),
        reason: hold.reason.clone(),
        with_access: hold.scope.is_with_access(),
        by_rollout: hold.by == STOPPED_BY,
        durable: state.is_durable,
        waiting: state.waiting.len(),
        replicas: replicas(sources),
    })
}

/// Returns whether the other replicas have the same hold.
pub(super) fn replicas(sources: &Sources) -> api::HoldReplicas {
    let (state, fact) = match &*sources.hold_sharing.borrow() {
        HoldSharing::Alone => (api::HoldSharing::Alone, None),
        HoldSharing::Shared(_) => (api::HoldSharing::All, None),
        HoldSharing::Failing(_, fact) => (api::HoldSharing::ThisOne, Some(fact.to_string())),
    };
    api::HoldReplicas { state, fact }
}

fn question(body: Result<Bytes, BytesRejection>) -> Result<HoldQuestion, AdminFailure> {
    let body = body.map_err(|error| AdminFailure(error.status(), error.body_text()))?;
    let form = "{\"configuration\",\"withAccess\",\"by\",\"reason\"}";
    let question: HoldQuestion = match body.is_empty() {
        true => HoldQuestion::default(),
        false => serde_json::from_slice(&body)
            .map_err(|error| bad(&format!("expected {form}: {error}")))?,
    };
    check_texts(&question.by, &question.reason)?;
    Ok(question)
}

/// Checks that the requester's name and reason can be displayed.
pub(super) fn check_texts(by: &str, reason: &str) -> Result<(), AdminFailure> {
    for (name, text) in [("by", by), ("reason", reason)] {
        if text.chars().count() > TEXT_MAX || text.chars().any(char::is_control) {
            let fact = "has control characters or more than";
            return Err(bad(&format!("{name} {fact} {TEXT_MAX} characters")));
        }
    }
    Ok(())
}

/// Returns the requested configuration.
fn wanted(
    sources: &Sources,
    question: &HoldQuestion,
) -> Result<Arc<ConfigurationSnapshot>, AdminFailure> {
    let Some(name) = &question.configuration else {
        return Ok(Arc::clone(&current(sources)?.configuration));
    };
    current(sources)?;
    let found = sources.retained.find(name);
    found
        .map(|retained| retained.configuration)
        .map_err(|unknown| AdminFailure(StatusCode::NOT_FOUND, unknown.to_string()))
}

/// Previews the effect of a hold or a release on proxies. Changes nothing.
pub(super) async fn preview_hold(
    State(sources): SourcesState,
    body: Result<Bytes, BytesRejection>,
) -> AdminResult {
    let question = question(body)?;
    let (context, state) = (current(&sources)?, Arc::clone(&sources.hold.borrow()));
    let (target, scope) = match (question.release, &state.held, &state.live) {
        (false, ..) => (wanted(&sources, &question)?, scope_of(&question)),
        (true, Some(hold), Some(live)) => (Arc::clone(live), hold.scope),
        (true, ..) => return Err(nothing_held()),
    };
    let defaults = Defaults {
        domain: context.settings.domain.clone(),
        trust_domain: context.settings.trust_domain.clone(),
        namespace: context.settings.system_namespace.clone(),
        gateway_scope: context.mesh.gateway_scope,
        host_sharing: context.mesh.host_sharing,
    };
    // A hold without access policies also releases the ones that were held before.
    let was_with_access = state.held.as_ref().is_some_and(|hold| hold.scope.is_with_access());
    let access = match (scope.is_with_access(), was_with_access, &state.live) {
        (true, ..) => Some(&target.access),
        (false, true, Some(live)) => Some(&live.access),
        _ => None,
    };
    let then = sources.trials.with_configuration(&context, &target, access, &defaults);
    let [before, then] = then.map_err(|error| unreadable(&error.to_string()))?;
    let streams = newest_streams(sources.connections.list());
    let found = preview([&before, &then], &streams, Instant::now() + LOOK);
    let affected = found.affected().map(|one| of_proxies(one, &mut 0));
    let differs = differing(&context, &target, scope);
    let answer = api::HoldPreview {
        configuration: target.id().to_string(),
        in_force: context.configuration.id().to_string(),
        with_access: scope.is_with_access(),
        objects: differs.objects.iter().map(|key| changed(key, &context, &target)).collect(),
        mesh_config: differs.mesh_config,
        mesh_networks: differs.mesh_networks,
        affected: affected.collect(),
        unaffected: found.unaffected(),
        not_looked_at: found.skipped,
        missing_replicas: Vec::new(),
    };
    Ok(pretty(StatusCode::OK, &answer))
}

/// Returns the objects and settings that differ between the active configuration and another one.
fn differing(
    context: &PushContext,
    target: &Arc<ConfigurationSnapshot>,
    scope: HoldScope,
) -> Waiting {
    let (by, reason) = (String::new(), String::new());
    let configuration = Arc::clone(target);
    let as_held = ConfigurationHold { configuration, since: SystemTime::now(), by, reason, scope };
    Waiting::between(&as_held, &context.configuration)
}

/// Returns the action on an object.
fn changed(
    key: &ObjectKey,
    context: &PushContext,
    target: &ConfigurationSnapshot,
) -> api::HeldObject {
    let is_in =
        |of: &ConfigurationSnapshot| of.traffic.get(key).or_else(|| of.access.get(key)).is_some();
    let action = match (is_in(&context.configuration), is_in(target)) {
        (_, false) => api::ObjectAction::Removed,
        (false, true) => api::ObjectAction::New,
        (true, true) => api::ObjectAction::Changed,
    };
    let api::ObjectName { kind, name, namespace } = name(key);
    api::HeldObject { action, kind, name, namespace }
}

/// Holds a configuration.
pub(super) async fn hold(
    State(sources): SourcesState,
    body: Result<Bytes, BytesRejection>,
) -> AdminResult {
    let question = question(body)?;
    if question.release {
        return Err(bad("use POST /api/release to release a hold"));
    }
    let hold = ConfigurationHold {
        configuration: wanted(&sources, &question)?,
        since: now_to_the_millisecond(),
        scope: scope_of(&question),
        by: question.by,
        reason: question.reason,
    };
    change(&sources, HoldChange::Hold(Arc::new(hold))).await
}

/// Releases the held configuration.
pub(super) async fn release(State(sources): SourcesState) -> AdminResult {
    let is_anything = {
        let state = sources.hold.borrow();
        state.held.is_some() || state.lost.is_some()
    };
    if !is_anything {
        return Err(nothing_held());
    }
    change(&sources, HoldChange::Release).await
}

async fn change(sources: &Sources, change: HoldChange) -> AdminResult {
    request_change(sources, change).await?;
    wait_for_sharing(sources).await;
    Ok(pretty(StatusCode::OK, &answer(sources, &sources.hold.borrow())))
}

/// Requests a change and waits for its result.
pub(super) async fn request_change(
    sources: &Sources,
    change: HoldChange,
) -> Result<(), AdminFailure> {
    let (answer_to, answered) = oneshot::channel();
    let ends = || {
        let text = "the process is shutting down; send the request to the next one";
        AdminFailure(StatusCode::SERVICE_UNAVAILABLE, text.into())
    };
    let request = HoldRequest { change, answer: answer_to };
    sources.holds.send(request).await.map_err(|_| ends())?;
    match answered.await.map_err(|_| ends())? {
        Ok(()) => Ok(()),
        Err(refusal @ HoldRefusal::Unwritable(_)) => {
            Err(AdminFailure(StatusCode::INSUFFICIENT_STORAGE, refusal.to_string()))
        }
        Err(refusal @ HoldRefusal::Unreadable(_)) => Err(unreadable(&refusal.to_string())),
        Err(refusal @ HoldRefusal::NoRollout) => {
            Err(AdminFailure(StatusCode::CONFLICT, refusal.to_string()))
        }
    }
}

/// Waits until it is known whether the other replicas have the change, at most [`SHARING_WAIT`].
async fn wait_for_sharing(sources: &Sources) {
    let mark = sources.hold.borrow().held.as_deref().map(HoldMark::of);
    let mut sharing = sources.hold_sharing.clone();
    let known = sharing.wait_for(|sharing| sharing.is_about(mark.as_ref()));
    // After the time limit, the response contains the previous state.
    let _ = timeout(SHARING_WAIT, known).await;
}

fn scope_of(question: &HoldQuestion) -> HoldScope {
    if question.with_access { HoldScope::WithAccess } else { HoldScope::WithoutAccess }
}

fn nothing_held() -> AdminFailure {
    AdminFailure(StatusCode::CONFLICT, "nothing is held".into())
}

fn unreadable(fact: &str) -> AdminFailure {
    AdminFailure(StatusCode::CONFLICT, format!("the configuration can't be held: {fact}"))
}
