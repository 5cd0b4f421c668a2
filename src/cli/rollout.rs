//! `strait history rollout`: shows the change that is being rolled out gradually, and ends the
//! rollout on request.

use clap::Args;
use serde_json::json;

use super::client::{AdminClient, Connect};
use super::consent::Consent;
use super::failure::{CommandResult, Exit};
use super::hold::{digits, user_and_host};
use super::output::{self, Format, OutputStyle, Sent, Show, age, clean, text};
use strait_admin_api::{Rollout, RolloutLimits, RolloutPlan, RunningRollout};

#[derive(Debug, Args)]
pub(crate) struct RolloutArgs {
    /// Roll the change out to all proxies now
    #[arg(long, conflicts_with = "abort")]
    promote: bool,
    /// Withdraw the change from all proxies, and hold the previous configuration
    #[arg(long)]
    abort: bool,
    /// Reason, for users whose changes have no effect meanwhile
    #[arg(long, value_name = "TEXT", default_value = "", requires = "abort")]
    reason: String,
    /// Name of the person who ends it [default: user and host of this command]
    #[arg(long, value_name = "NAME", requires = "abort")]
    by: Option<String>,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    connect: Connect,
    #[command(flatten)]
    show: Show,
}

/// Runs `strait history rollout`.
pub(super) async fn run(args: &RolloutArgs) -> CommandResult {
    let client = AdminClient::new(&args.connect).await?;
    let state: Sent<Rollout> = Sent::of(client.get("/debug/rollout", &[]).await?.value)?;
    let look = OutputStyle::of_stdout();
    if !args.promote && !args.abort {
        return shown(&state, &args.show, &look);
    }
    let running = state.running.clone().unwrap_or_default();
    let id = digits(&running.configuration);
    let (left, all) = (running.connected.saturating_sub(running.proxies), running.connected);
    let (action, plan) = match args.promote {
        true => (
            "promote",
            format!(
                "Configuration {id} would be sent to the other {left} of {all} proxies at once.\n"
            ),
        ),
        false => (
            "abort",
            format!(
                "Configuration {id} would be withdrawn from {} of {all} proxies, and configuration {} would be held for all.\n",
                running.proxies,
                digits(&running.settled),
            ),
        ),
    };
    if state.running.is_some() && !args.consent.is_confirmed(&plan).await? {
        return Ok(Exit::Fine);
    }
    let by = args.by.clone().unwrap_or_else(user_and_host);
    let question = json!({ "action": action, "by": by, "reason": args.reason });
    let answer = client.post("/api/rollout", &[], &question).await;
    let answer = answer.map_err(|failure| failure.or_next("strait history rollout"))?.value;
    shown(&Sent::of(answer)?, &args.show, &look)
}

fn shown(state: &Sent<Rollout>, show: &Show, look: &OutputStyle) -> CommandResult {
    output::print(&match show.output {
        Format::Json => format!("{:#}\n", state.value),
        Format::Yaml => output::yaml(&state.value),
        _ => lines(state, look),
    })?;
    Ok(Exit::Fine)
}

/// Describes the state of the rollout in some lines.
fn lines(state: &Rollout, look: &OutputStyle) -> String {
    let mut out = line(state, look).unwrap_or_else(|| "No rollout is running.\n".to_owned());
    for row in state.running.iter().flat_map(|running| &running.refusals) {
        out += &format!("  {} refused it: {}\n", text(&row.proxy), clean(&text(&row.error)));
    }
    if let Some(stopped) = &state.stopped {
        out += &format!(
            "Stopped {} ago and held since then: {}\nNext: fix the objects, then run strait history release\n",
            age(&stopped.at, look),
            text(&stopped.reason)
        );
    }
    out += &match state.plan.as_ref().map(plan) {
        None => "The policy has no rollout: changes are sent to all proxies at once.\n".to_owned(),
        Some(plan) => format!("Changes are rolled out {plan}.\n"),
    };
    out
}

/// Describes a running rollout in one line. Returns `None` if none is running.
pub(super) fn line(state: &Rollout, look: &OutputStyle) -> Option<String> {
    let running = state.running.as_ref()?;
    let id = digits(&running.configuration);
    let Some(step) = running.step else {
        return Some(format!(
            "Configuration {id} is about to be rolled out: no proxy has it yet.\n"
        ));
    };
    let restart = match running.durable {
        true => "",
        false => {
            " A restart sends it to all proxies, because the previous configuration can't be stored."
        }
    };
    let RunningRollout { percent, proxies, connected, refused, .. } = running;
    let steps = running.plan.steps.len();
    Some(format!(
        "Configuration {id} has been active on {percent}% for {} (step {step} of {steps}: {proxies} of {connected} proxies; {refused} refused it); the next step is in {}s.{restart}\n",
        age(&running.step_since, look),
        text(&running.next_step_in_seconds),
    ))
}

/// Describes the steps of rollouts.
fn plan(plan: &RolloutPlan) -> String {
    let steps: Vec<_> = plan.steps.iter().map(|step| format!("{step}%")).collect();
    let RolloutLimits { refused, lost_endpoints } = &plan.stop_at;
    format!(
        "to {} of proxies, one step every {}s; stopped if the number of refusing proxies reaches {refused}, or more than {lost_endpoints}% of a service's endpoints are lost",
        steps.join(", "),
        plan.every_seconds,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::output::tests::{LOOK, typed};
    use super::*;

    #[test]
    fn running_rollout_is_described_in_one_line() {
        let mut state = json!({ "running": null, "plan": null, "stopped": null });
        let line = |state: &Value| line(&typed(state.clone()), &LOOK);
        let lines = |state: &Value| lines(&typed(state.clone()), &LOOK);
        assert_eq!(line(&state), None);
        let nothing = "No rollout is running.\nThe policy has no rollout: changes are sent to all proxies at once.\n";
        assert_eq!(lines(&state), nothing);
        let plan = json!({
            "steps": [5, 25, 100], "everySeconds": 600,
            "stopAt": { "refused": 1, "lostEndpoints": 20 },
        });
        state["running"] = json!({
            "configuration": "0123456789abcdef0123456789abcdef", "plan": plan, "step": null,
            "percent": 5, "proxies": 2, "connected": 40, "refused": 1, "durable": true,
            "stepSince": null, "nextStepInSeconds": 90,
            "refusals": [{ "proxy": "sidecar~1", "error": "no such filter" }],
        });
        state["plan"] = plan;
        let summary = line(&state).expect("a line");
        assert!(summary.contains("0123456789ab is about to be rolled out"), "{summary}");
        state["running"]["step"] = json!(1);
        let summary = lines(&state);
        for part in [
            "Configuration 0123456789ab has been active on 5% for ",
            "(step 1 of 3: 2 of 40 proxies; 1 refused it); the next step is in 90s.\n",
            "  sidecar~1 refused it: no such filter\n",
            "Changes are rolled out to 5%, 25%, 100% of proxies, one step every 600s; stopped if the number of refusing proxies reaches 1",
        ] {
            assert!(summary.contains(part), "{part}: {summary}");
        }
        state["running"]["durable"] = json!(false);
        assert!(line(&state).expect("a line").contains("A restart sends it to all"));
    }
}
