//! `strait history pin|rollback|release`: holds a configuration for all proxies, so that changes to
//! objects wait.

use clap::Args;
use serde_json::{Value, json};

use super::client::{AdminClient, Connect};
use super::consent::Consent;
use super::diff;
use super::failure::{CommandResult, Exit};
use super::output::{self, Format, OutputStyle, Sent, Show, Shown, age, clean, text};
use strait_admin_api::{
    ChangePreview, HoldPreview, HoldReplicas, HoldSharing, HoldStatus, ObjectAction,
};

/// Number of shown digits of a configuration's name.
const DIGITS_SHOWN: usize = 12;

#[derive(Debug, Args)]
pub(crate) struct PinArgs {
    /// Configuration to hold: a version, or the name of a configuration, as 'history list' shows
    /// them [default: the active configuration]
    #[arg(value_name = "VERSION|CONFIGURATION")]
    configuration: Option<String>,
    #[command(flatten)]
    hold: HoldArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RollbackArgs {
    /// Configuration to go back to: a version, or the name of a configuration, as 'history list'
    /// shows them
    #[arg(value_name = "VERSION|CONFIGURATION")]
    configuration: String,
    #[command(flatten)]
    hold: HoldArgs,
}

#[derive(Debug, Args)]
struct HoldArgs {
    /// Reason, for users whose changes have no effect meanwhile
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// Hold access policies as well: a DENY that is added later takes effect only after the release
    #[arg(long)]
    with_access: bool,
    /// Name of the person who holds it [default: user and host of this command]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    connect: Connect,
    #[command(flatten)]
    show: Show,
}

#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    connect: Connect,
    #[command(flatten)]
    show: Show,
}

/// Runs `strait history pin`.
pub(super) async fn pin(args: &PinArgs) -> CommandResult {
    hold(args.configuration.as_deref(), &args.hold).await
}

/// Runs `strait history rollback`.
pub(super) async fn rollback(args: &RollbackArgs) -> CommandResult {
    hold(Some(&args.configuration), &args.hold).await
}

async fn hold(configuration: Option<&str>, args: &HoldArgs) -> CommandResult {
    let client = AdminClient::new(&args.connect).await?;
    let mut question = json!({ "withAccess": args.with_access });
    if let Some(configuration) = configuration {
        question["configuration"] = json!(configuration);
    }
    let preview = client.post("/debug/hold", &[], &question).await;
    let preview = preview.map_err(|failure| failure.or_next("strait history list"))?;
    let preview: HoldPreview = preview.read()?;
    let plan = plan(&preview, &OutputStyle::of_stdout());
    if !args.consent.is_confirmed(&plan).await? {
        return Ok(Exit::Fine);
    }
    // Exactly the configuration of the plan, even if another one is active by now.
    let looked_at = &preview.configuration;
    let by = args.by.clone().unwrap_or_else(user_and_host);
    let question = json!({
        "configuration": looked_at, "withAccess": args.with_access, "by": by, "reason": args.reason,
    });
    done(client.post("/api/hold", &[], &question).await?.value, &args.show)
}

/// Runs `strait history release`.
pub(super) async fn release(args: &ReleaseArgs) -> CommandResult {
    let client = AdminClient::new(&args.connect).await?;
    let state: HoldStatus = client.get("/debug/hold", &[]).await?.read()?;
    let plan = match (&state.held, &state.lost) {
        (None, Some(lost)) => format!("The current objects are already active: {}\n", text(lost)),
        _ => {
            let preview = client.post("/debug/hold", &[], &json!({ "release": true })).await?;
            let look = OutputStyle::of_stdout();
            let head = "The current objects would take effect again.\n";
            format!("{head}{}", changes(preview.read()?, &look))
        }
    };
    if !args.consent.is_confirmed(&plan).await? {
        return Ok(Exit::Fine);
    }
    done(client.post("/api/release", &[], &json!({})).await?.value, &args.show)
}

/// Prints the new state.
fn done(state: Value, show: &Show) -> CommandResult {
    let state: Sent<HoldStatus> = Sent::of(state)?;
    output::print(&match show.output {
        Format::Json => format!("{:#}\n", state.value),
        Format::Yaml => output::yaml(&state.value),
        _ => line(&state, &OutputStyle::of_stdout()).unwrap_or_else(|| {
            let others = match not_shared(&state.replicas) {
                Some(fact) => format!(" Other replicas may still hold it: {fact}"),
                None => String::new(),
            };
            format!("No configuration is held: the current objects are active.{others}\n")
        }),
    })?;
    Ok(Exit::Fine)
}

/// Returns a description of the held configuration, if any, in one or two lines.
pub(super) fn line(hold: &HoldStatus, look: &OutputStyle) -> Option<String> {
    let held = hold.held.as_ref()?;
    let (by, reason) = (text(&held.by), text(&held.reason));
    let access = match held.with_access {
        true => "Access policies are held as well.",
        false => "Access policies are not held.",
    };
    let restart = match held.durable {
        true => "",
        false => " It is lost at a restart, because there is no state directory.",
    };
    let others = match (not_shared(&held.replicas), &held.replicas.state) {
        (Some(fact), _) => format!(" Other replicas may not hold it: {fact}"),
        (None, HoldSharing::All) => " All replicas hold it.".to_owned(),
        (None, _) => String::new(),
    };
    let id = digits(&held.configuration);
    let since = age(&held.since, look);
    let waiting = match held.waiting {
        0 => "no changes wait".to_owned(),
        1 => "1 change waits".to_owned(),
        more => format!("{more} changes wait"),
    };
    Some(format!(
        "Configuration {id} has been held for {since} by {by}: {reason}; {waiting}. {access}{restart}{others}\n"
    ))
}

/// Returns the reason why other replicas may hold a different configuration.
pub(super) fn not_shared(replicas: &HoldReplicas) -> Option<String> {
    (replicas.state == HoldSharing::ThisOne).then(|| text(&replicas.fact))
}

/// Returns the first digits of a configuration's name.
pub(super) fn digits<T: Shown>(id: &T) -> String {
    text(id).chars().take(DIGITS_SHOWN).collect()
}

fn plan(preview: &HoldPreview, look: &OutputStyle) -> String {
    let id = digits(&preview.configuration);
    let what = match preview.with_access {
        true => "traffic rules, mesh config, mesh networks and access policies",
        false => "traffic rules, mesh config and mesh networks, not access policies",
    };
    let head = match preview.configuration == preview.in_force {
        true => format!("The active configuration {id} would be held: {what}.\n"),
        false => format!(
            "Configuration {id} would replace {} in all proxies and be held: {what}.\n",
            digits(&preview.in_force)
        ),
    };
    format!(
        "{head}Pods, endpoints, clusters, ServiceEntries and certificates are still updated. Later changes to objects wait.\n{}",
        changes(preview.clone(), look)
    )
}

/// Describes the changes and the affected proxies.
fn changes(preview: HoldPreview, look: &OutputStyle) -> String {
    let mut out = String::new();
    for (changes, name) in
        [(preview.mesh_config, "the mesh config"), (preview.mesh_networks, "the mesh networks")]
    {
        if changes {
            out += &format!("{name} would change\n");
        }
    }
    if preview.mesh_networks {
        out += "  the resulting gateways are not computed in advance\n";
    }
    for row in &preview.objects {
        let [kind, namespace, name] = [&row.kind, &row.namespace, &row.name].map(text);
        let action = match row.action {
            ObjectAction::New => "would take effect",
            ObjectAction::Removed => "would no longer take effect",
            _ => "would take effect in a different form",
        };
        out += &format!("{kind} {namespace}/{name} {action}\n");
    }
    let of_proxies = ChangePreview {
        affected: preview.affected,
        unaffected: preview.unaffected,
        not_looked_at: preview.not_looked_at,
        ..ChangePreview::default()
    };
    out + &diff::render(&of_proxies, false, look)
}

/// Returns `alice@bastion`, as far as the system provides it.
pub(super) fn user_and_host() -> String {
    let user = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let both = [user.unwrap_or_default(), host.trim().to_owned()];
    let known: Vec<_> =
        both.iter().filter(|part| !part.is_empty()).map(|part| clean(part)).collect();
    known.join("@")
}

#[cfg(test)]
mod tests {
    use super::super::output::tests::{LOOK, typed};
    use super::*;

    #[test]
    fn held_configuration_is_described_in_one_line() {
        let mut state = json!({ "held": null });
        let line = |state: &Value| line(&typed(state.clone()), &LOOK);
        assert_eq!(line(&state), None);
        state["held"] = json!({
            "configuration": "0123456789abcdef0123456789abcdef", "since": "2026-11-29T00:00:00Z", "by": "alice",
            "reason": "5xx since noon", "withAccess": false, "durable": true, "waiting": 2,
        });
        let text = line(&state).expect("a line");
        assert!(text.starts_with("Configuration 0123456789ab has been held for "), "{text}");
        let end = " by alice: 5xx since noon; 2 changes wait. Access policies are not held.\n";
        assert!(text.ends_with(end), "{text}");
        state["held"]["durable"] = json!(false);
        assert!(line(&state).expect("a line").contains("It is lost at a restart"));
        for (replicas, text) in [
            (json!({ "state": "all" }), "All replicas hold it.\n"),
            (json!({ "state": "thisOne", "fact": "403" }), "Other replicas may not hold it: 403\n"),
            (json!({ "state": "alone" }), "because there is no state directory.\n"),
        ] {
            state["held"]["replicas"] = replicas;
            let line = line(&state).expect("a line");
            assert!(line.ends_with(text), "{line}");
        }
    }

    #[test]
    fn plan_describes_the_held_configuration_and_its_effects() {
        let preview = json!({
            "configuration": "aaaaaaaaaaaaaaaa", "inForce": "bbbbbbbbbbbbbbbb", "withAccess": false,
            "objects": [{ "kind": "VirtualService", "namespace": "shop", "name": "web", "action": "changed" }],
            "meshConfig": true, "meshNetworks": false, "affected": [], "unaffected": 3, "notLookedAt": 0,
        });
        let text = plan(&typed(preview), &LOOK);
        let expected = "\
Configuration aaaaaaaaaaaa would replace bbbbbbbbbbbb in all proxies and be held: traffic rules, mesh config and mesh networks, not access policies.
Pods, endpoints, clusters, ServiceEntries and certificates are still updated. Later changes to objects wait.
the mesh config would change
VirtualService shop/web would take effect in a different form

the configuration of 3 proxies would not change
";
        assert_eq!(text, expected);
    }
}
