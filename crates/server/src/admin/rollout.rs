//! `/debug/rollout` and `/api/rollout`: the running rollout and its progress, and requests to
//! promote or abort it. Writing requires the token.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::failure::{AdminFailure, AdminResult, bad, pretty};
use super::hold;
use super::sources::{Sources, SourcesState};
use strait_base::time::rfc3339;
use strait_mesh::hold::HoldChange;
use strait_mesh::rollout::{RolloutState, RunningRollout, STOPPED_BY};
use strait_model::Proxy;
use strait_model::policy::RolloutPlan;

/// Maximum number of listed proxies of the rollout, and of listed refusals.
const PROXIES_SHOWN: usize = 100;

/// Body of a request.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RolloutQuestion {
    action: RolloutAction,
    /// Name of the requester, as given by the requester.
    #[serde(default)]
    by: String,
    /// Reason of the request.
    #[serde(default)]
    reason: String,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "camelCase")]
enum RolloutAction {
    /// All proxies receive the new configuration now.
    Promote,
    /// No proxy receives it any more, and the configuration for all is held.
    Abort,
}

/// Returns the rollout, its plan and its progress.
pub(super) async fn state(State(sources): SourcesState) -> AdminResult {
    Ok(pretty(StatusCode::OK, &answer(&sources)))
}

/// Renders the rollout without its plan and its proxies.
pub(super) fn in_short(sources: &Sources) -> Value {
    let mut all = answer(sources);
    let mut running = all["running"].take();
    if let Some(fields) = running.as_object_mut() {
        let shown = ["configuration", "step", "percent", "proxies", "connected", "refused"];
        fields.retain(|name, _| shown.contains(&name.as_str()));
    }
    json!({ "running": running, "lost": all["lost"] })
}

/// Promotes or aborts the rollout.
pub(super) async fn change(
    State(sources): SourcesState,
    body: Result<Bytes, BytesRejection>,
) -> AdminResult {
    let body = body.map_err(|error| AdminFailure(error.status(), error.body_text()))?;
    let asked: RolloutQuestion = serde_json::from_slice(&body).map_err(|error| {
        bad(&format!("expected {{\"action\": promote or abort,\"by\",\"reason\"}}: {error}"))
    })?;
    hold::check_texts(&asked.by, &asked.reason)?;
    let change = match asked.action {
        RolloutAction::Promote => HoldChange::Promote,
        RolloutAction::Abort => HoldChange::Abort { by: asked.by, reason: asked.reason },
    };
    hold::ask(&sources, change).await?;
    Ok(pretty(StatusCode::OK, &answer(&sources)))
}

fn answer(sources: &Sources) -> Value {
    let state = Arc::clone(&sources.rollout.borrow());
    let RolloutState { plan, running, stopped, completed, lost } = &*state;
    let held = sources.hold.borrow().held.clone();
    let by_rollout = held.filter(|held| held.by == STOPPED_BY);
    json!({
        "plan": plan.as_ref().map(|plan| of_plan(plan)),
        "running": running.as_ref().map(|running| of_running(sources, running)),
        "stopped": by_rollout.map(|hold| json!({
            "at": rfc3339(hold.since), "configuration": hold.configuration.id(), "reason": hold.reason,
        })),
        "stoppedTotal": stopped,
        "completedTotal": completed,
        "lost": lost,
    })
}

fn of_plan(plan: &RolloutPlan) -> Value {
    json!({
        "steps": plan.steps,
        "everySeconds": plan.every.as_secs(),
        "stopAt": { "refused": plan.stop_at.refused, "lostEndpoints": plan.stop_at.lost_endpoints },
    })
}

fn of_running(sources: &Sources, running: &RunningRollout) -> Value {
    let cohort = &running.cohort;
    let streams = sources.connections.list();
    let proxies: BTreeMap<_, _> =
        streams.iter().map(|one| (one.proxy().id.to_string(), one.proxy())).collect();
    // Before the first step no proxy has the new configuration, though the cohort may be known from
    // before a restart.
    let is_given = |proxy: &Proxy| running.step.is_some() && cohort.contains(proxy);
    let share: Vec<_> =
        proxies.iter().filter(|(_, proxy)| is_given(proxy)).map(|(id, _)| id).collect();
    let head = sources.heads.next().filter(|head| head.number == running.number);
    let refusals = head.map(|head| head.refusals().borrow().clone()).unwrap_or_default();
    let refused = refusals.iter().take(PROXIES_SHOWN);
    let next = running.next_step_at();
    let left = next.and_then(|next| next.duration_since(SystemTime::now()).ok());
    json!({
        "configuration": running.next.id(),
        "settled": running.settled.id(),
        "begun": rfc3339(running.begun),
        "plan": of_plan(&running.plan),
        "step": running.step.map(|step| step.at + 1),
        "percent": running.percent(),
        "stepSince": running.step.map(|step| rfc3339(step.since)),
        "nextStepAt": next.map(rfc3339),
        "nextStepInSeconds": left.map(|left: Duration| left.as_secs()),
        "proxies": share.len(),
        "connected": proxies.len(),
        "share": share.iter().take(PROXIES_SHOWN).collect::<Vec<_>>(),
        "refused": refusals.len(),
        "refusals": refused.map(|(proxy, error)| json!({ "proxy": proxy, "error": error })).collect::<Vec<_>>(),
        "durable": running.is_durable,
    })
}
