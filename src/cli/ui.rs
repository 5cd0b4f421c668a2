//! `strait ui`: opens the page in a browser, or says where it is.
//!
//! The browser is let in by a code that works once and soon ends; the token stays here. With a bundle it is this process that
//! serves the page, over what the bundle holds.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use tokio::process::Command;

use super::bundle::{ServedBundle, serve_bundle};
use super::client::{AdminClient, Connect};
use super::failure::{CommandFailure, CommandResult, Exit};
use super::output;
use strait_base::signal::signalled;

/// How long a program that opens a browser may take to say that it can't. Some stay for as long as the browser.
const OPENER_WAITS: Duration = Duration::from_secs(3);

/// `strait ui`.
#[derive(Debug, Args)]
pub(crate) struct UiArgs {
    /// Print the URL, and open nothing
    #[arg(long)]
    print: bool,
    /// Show what 'strait support-bundle' has written, without a control plane, until Ctrl-C
    #[arg(long, value_name = "FILE")]
    bundle: Option<PathBuf>,
    #[command(flatten)]
    connect: Connect,
}

impl UiArgs {
    /// Whether it goes on until it is ended.
    pub(crate) fn serves(&self) -> bool {
        self.bundle.is_some()
    }
}

/// Runs `strait ui`.
pub(crate) async fn run(args: &UiArgs) -> CommandResult {
    let Some(file) = &args.bundle else { return show(&args.connect, args.print).await };
    let ServedBundle { server, token_file, taken, serving, .. } = &mut serve_bundle(file).await?;
    let connect = Connect::to(server.clone(), token_file.clone());
    let shown = async {
        show(&connect, args.print).await?;
        tell!(
            "{} shows the mesh as it was at {taken}, until Ctrl-C. For other commands, in another terminal:\n  export STRAIT_SERVER={server}\n  export STRAIT_TOKEN_FILE={}",
            file.display(),
            token_file.display()
        );
        signalled().await;
        Ok(Exit::Fine)
    };
    tokio::select! {
        ended = serving => match ended {
            Ok(()) => Ok(Exit::Fine),
            Err(error) => Err(CommandFailure::failed(format!("the page can't be served: {error}"))),
        },
        shown = shown => shown,
    }
}

/// Lets a browser in, and opens it where there is one.
async fn show(connect: &Connect, print: bool) -> CommandResult {
    let client = AdminClient::new(connect)?;
    let answer = client.get("/api/login-code", &[]).await?;
    let (url, seconds) = link(client.server(), &answer.value)?;
    if !print && has_display() && open(&url).await {
        tell!("The page is open in your browser: {}", client.server());
        return Ok(Exit::Fine);
    }
    output::print(&format!("{url}\n"))?;
    tell!("Open it in a browser on this machine: once, within {seconds} s.");
    Ok(Exit::Fine)
}

/// Where a browser is let in, and how many seconds that holds.
fn link(server: &str, answer: &Value) -> Result<(String, u64), CommandFailure> {
    let code =
        answer["code"].as_str().filter(|code| code.bytes().all(|b| b.is_ascii_alphanumeric()));
    match (code, answer["expiresSeconds"].as_u64()) {
        (Some(code), Some(seconds)) => Ok((format!("{server}/login?code={code}"), seconds)),
        _ => Err(CommandFailure::failed(format!("{server} gave no code for a browser"))),
    }
}

/// Whether a browser could be seen here at all.
fn has_display() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    cfg!(target_os = "macos") || set("DISPLAY") || set("WAYLAND_DISPLAY")
}

/// Whether something took the URL to open it.
async fn open(url: &str) -> bool {
    let opener = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = Command::new(opener);
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return false };
    match tokio::time::timeout(OPENER_WAITS, child.wait()).await {
        Ok(ended) => ended.is_ok_and(|status| status.success()),
        // It has become the browser.
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_link_holds_the_code_and_nothing_else_that_a_server_sends() {
        let answer = json!({ "code": "ab12", "expiresSeconds": 60 });
        let (url, seconds) = link("http://127.0.0.1:1", &answer).expect("a link");
        assert_eq!((url.as_str(), seconds), ("http://127.0.0.1:1/login?code=ab12", 60));
        for wrong in [json!({}), json!({ "code": "a b&c", "expiresSeconds": 60 }), json!([])] {
            assert!(link("http://127.0.0.1:1", &wrong).is_err(), "{wrong}");
        }
    }
}
