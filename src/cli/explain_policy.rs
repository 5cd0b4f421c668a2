//! `strait explain policy`: which callers a workload accepts, and which policy decides.
//!
//! The command only renders the server's explanation.

use clap::Args;

use super::failure::{CommandResult, Exit};
use super::list::QueryArgs;
use super::output::{self, Format, text};
use super::proxy;
use strait_admin_api::{Access, PolicyExplanation};

/// `strait explain policy`.
#[derive(Debug, Args)]
pub(crate) struct ExplainPolicyArgs {
    /// Proxy of the called workload: NAME.NAMESPACE[@CLUSTER], a unique prefix of it,
    /// deploy/NAME.NAMESPACE, a node ID, or a key from 'proxy list -o json'
    proxy: String,
    /// Service account of the caller [default: a caller without a certificate, in plain text]
    #[arg(long, value_name = "NS/SA")]
    from: Option<String>,
    /// Path of the request [default: /]
    #[arg(long, value_name = "P")]
    path: Option<String>,
    /// Method of the request [default: GET]
    #[arg(long, value_name = "M")]
    method: Option<String>,
    /// Host of the request
    #[arg(long, value_name = "H")]
    host: Option<String>,
    /// Port of the workload
    #[arg(long, value_name = "N")]
    port: Option<u16>,
    #[command(flatten)]
    common: QueryArgs,
}

/// Runs `strait explain policy`. Exit code 2 means that the request is denied.
pub(crate) async fn run(args: &ExplainPolicyArgs) -> CommandResult {
    let proxy = proxy::one(&args.common, &args.proxy).await?;
    let key = &proxy.key;
    let port = args.port.map(|port| port.to_string());
    let given = [
        ("from", &args.from),
        ("path", &args.path),
        ("method", &args.method),
        ("host", &args.host),
        ("port", &port),
    ];
    let mut query = vec![("proxy", key.as_str())];
    query.extend(given.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))));
    let answer = args.common.request("/debug/explain/policy", &query).await?;
    let explanation: PolicyExplanation = answer.read()?;
    let allowed = explanation.http.verdict == Access::Allow;
    match args.common.show.output {
        Format::Json => output::print(&answer.raw)?,
        Format::Yaml => output::print(&output::yaml(&answer.value))?,
        _ => output::print(&render(&explanation))?,
    }
    Ok(if allowed { Exit::Fine } else { Exit::Unhealthy })
}

/// Renders the explanation as text.
pub(super) fn render(answer: &PolicyExplanation) -> String {
    let mode = &answer.mode;
    let by = match mode.by.as_str() {
        "" => "no PeerAuthentication applies".to_owned(),
        by => text(by),
    };
    let mut out = format!("mode  {}: {by}\n", text(&mode.value));
    if !answer.labels_known {
        out += "      the pod is unknown, so its labels are unverified: every restricting policy applies to it\n";
    }
    for note in &answer.notes {
        let [code, path, fact] = [&note.code, &note.path, &note.text].map(text);
        out += &format!("note  {code}: {path}: {fact}\n");
    }
    for (name, verdict) in [("http", &answer.http), ("tcp", &answer.tcp)] {
        let providers: Vec<_> = verdict
            .asks
            .iter()
            .map(|one| format!("{} (by {})", text(&one.provider), text(&one.rule)))
            .collect();
        let given = text(verdict.verdict.as_str());
        let unless = match (&*providers.join(" and "), verdict.verdict == Access::Allow) {
            ("", _) | (_, false) => String::new(),
            (providers, true) => format!(", if the provider allows it: {providers}; then"),
        };
        out += &format!("{name:<5} {given}{unless}: {}\n", text(&verdict.by));
        for step in &verdict.steps {
            let tried = if step.dry_run { ", dry run" } else { "" };
            let provider = match &step.provider {
                Some(provider) => format!(" by provider {provider}"),
                None => String::new(),
            };
            out += &format!(
                "      {}{provider} {}{tried} ({})\n",
                text(&step.action),
                text(&step.policy),
                text(&step.selected)
            );
            if let Some(fault) = &step.provider_fault {
                out += &format!(
                    "        the provider can't be called, so requests are denied: {fault}\n"
                );
            }
            for rule in &step.rules {
                let matches = if rule.matches { "matches" } else { "does not match" };
                out += &format!("        {} {matches}\n", text(&rule.rule));
                for field in rule.fields.iter().filter(|field| !field.ok) {
                    out += &format!("          {} does not match\n", text(&field.path));
                }
            }
        }
    }
    out
}
