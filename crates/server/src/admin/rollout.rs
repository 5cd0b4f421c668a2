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

use super::failure::{AdminFailure, AdminResult, bad, pretty};
use super::hold;
use super::sources::{Sources, SourcesState};
use strait_admin_api as api;
use strait_base::time::rfc3339;
use strait_mesh::hold::HoldChange;
use strait_mesh::rollout::{RolloutState, RunningRollout, STOPPED_BY};
use strait_model::Proxy;
use strait_model::policy::{RolloutLimits, RolloutPlan};

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

/// Returns the rollout without its plan and its proxies.
pub(super) fn in_short(sources: &Sources) -> api::RolloutInShort {
    let api::Rollout { running, lost, .. } = answer(sources);
    let running = running.map(|running| api::RunningRolloutInShort {
        configuration: running.configuration,
        step: running.step,
        percent: running.percent,
        proxies: running.proxies,
        connected: running.connected,
        refused: running.refused,
    });
    api::RolloutInShort { running, lost }
}

/// Promotes or aborts the rollout.
pub(super) async fn change(
    State(sources): SourcesState,
    body: Result<Bytes, BytesRejection>,
) -> AdminResult {
    let body = body.map_err(|error| AdminFailure(error.status(), error.body_text()))?;
    let requested: RolloutQuestion = serde_json::from_slice(&body).map_err(|error| {
        bad(&format!("expected {{\"action\": promote or abort,\"by\",\"reason\"}}: {error}"))
    })?;
    hold::check_texts(&requested.by, &requested.reason)?;
    let change = match requested.action {
        RolloutAction::Promote => HoldChange::Promote,
        RolloutAction::Abort => HoldChange::Abort { by: requested.by, reason: requested.reason },
    };
    hold::request_change(&sources, change).await?;
    Ok(pretty(StatusCode::OK, &answer(&sources)))
}

fn answer(sources: &Sources) -> api::Rollout {
    let state = Arc::clone(&sources.rollout.borrow());
    let RolloutState { plan, running, stopped, completed, lost } = &*state;
    let held = sources.hold.borrow().held.clone();
    let by_rollout = held.filter(|held| held.by == STOPPED_BY);
    api::Rollout {
        plan: plan.as_ref().map(|plan| of_plan(plan)),
        running: running.as_ref().map(|running| of_running(sources, running)),
        stopped: by_rollout.map(|hold| api::StoppedRollout {
            at: rfc3339(hold.since),
            configuration: hold.configuration.id().to_string(),
            reason: hold.reason.clone(),
        }),
        stopped_total: *stopped,
        completed_total: *completed,
        lost: lost.as_deref().map(str::to_owned),
    }
}

fn of_plan(plan: &RolloutPlan) -> api::RolloutPlan {
    let RolloutLimits { refused, lost_endpoints } = plan.stop_at;
    api::RolloutPlan {
        steps: plan.steps.clone(),
        every_seconds: plan.every.as_secs(),
        stop_at: api::RolloutLimits { refused, lost_endpoints },
    }
}

fn of_running(sources: &Sources, running: &RunningRollout) -> api::RunningRollout {
    let cohort = &running.cohort;
    let streams = sources.connections.list();
    let proxies: BTreeMap<_, _> =
        streams.iter().map(|one| (one.proxy().id.to_string(), one.proxy())).collect();
    // Before the first step no proxy has the new configuration, though the cohort may be known from
    // before a restart.
    let is_given = |proxy: &Proxy| running.step.is_some() && cohort.contains(proxy);
    let share: Vec<&String> =
        proxies.iter().filter(|(_, proxy)| is_given(proxy)).map(|(id, _)| id).collect();
    let head = sources.heads.next().filter(|head| head.number == running.number);
    let refusals = head.map(|head| head.refusals().borrow().clone()).unwrap_or_default();
    let refused = refusals.iter().take(PROXIES_SHOWN).map(|(proxy, error)| api::ProxyRefusal {
        proxy: proxy.to_string(),
        error: error.to_string(),
    });
    let next = running.next_step_at();
    let left = next.and_then(|next| next.duration_since(SystemTime::now()).ok());
    api::RunningRollout {
        configuration: running.next.id().to_string(),
        settled: running.settled.id().to_string(),
        begun: rfc3339(running.begun),
        plan: of_plan(&running.plan),
        step: running.step.map(|step| step.at + 1),
        percent: running.percent(),
        step_since: running.step.map(|step| rfc3339(step.since)),
        next_step_at: next.map(rfc3339),
        next_step_in_seconds: left.map(|left: Duration| left.as_secs()),
        proxies: share.len(),
        connected: proxies.len(),
        share: share.iter().take(PROXIES_SHOWN).map(ToString::to_string).collect(),
        refused: refusals.len(),
        refusals: refused.collect(),
        durable: running.is_durable,
    }
}
