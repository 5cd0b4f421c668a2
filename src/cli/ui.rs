//! `strait ui`: opens the page in a browser, or prints its URL.
//!
//! The browser signs in with a code that works once and expires soon; the token stays in this
//! process. With a bundle, this process serves the page itself from the content of the bundle.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use clap::Args;
use tokio::process::Command;

use super::bundle::{ServedBundle, serve_bundle};
use super::client::{AdminClient, Connect};
use super::failure::{CommandFailure, CommandResult, Exit};
use super::{output, port_forward};
use strait_admin_api::LoginCode;
use strait_base::signal::signalled;

/// Time that a program that opens a browser has to report a failure. Some run as long as the
/// browser.
const OPENER_WAITS: Duration = Duration::from_secs(3);

/// `strait ui`.
#[derive(Debug, Args)]
pub(crate) struct UiArgs {
    /// Print the URL without opening a browser
    #[arg(long)]
    print: bool,
    /// Show the content of an archive of 'strait support-bundle', without a control plane, until
    /// Ctrl-C
    #[arg(long, value_name = "FILE")]
    bundle: Option<PathBuf>,
    #[command(flatten)]
    connect: Connect,
}

impl UiArgs {
    /// Returns whether the command may run until it is terminated.
    pub(crate) fn serves(&self) -> bool {
        self.bundle.is_some() || self.connect.may_forward()
    }
}

/// Runs `strait ui`.
pub(crate) async fn run(args: &UiArgs) -> CommandResult {
    let Some(file) = &args.bundle else {
        let shown = show(&args.connect, args.print).await?;
        if port_forward::is_open() {
            eprint_line!("Forwarding the port until Ctrl-C.");
            signalled().await;
        }
        return Ok(shown);
    };
    let ServedBundle { server, token_file, taken, serving, .. } = &mut serve_bundle(file).await?;
    let connect = Connect::to(server.clone(), token_file.clone());
    let shown = async {
        show(&connect, args.print).await?;
        eprint_line!(
            "Serving the mesh of {} as of {taken}, until Ctrl-C. To use other commands, run in another terminal:\n  export STRAIT_SERVER={server}\n  export STRAIT_TOKEN_FILE={}",
            file.display(),
            token_file.display()
        );
        signalled().await;
        Ok(Exit::Fine)
    };
    tokio::select! {
        ended = serving => match ended {
            Ok(()) => Ok(Exit::Fine),
            Err(error) => Err(CommandFailure::failed(format!("can't serve the page: {error}"))),
        },
        shown = shown => shown,
    }
}

/// Requests a login code, and opens the page in a browser if possible.
async fn show(connect: &Connect, print: bool) -> CommandResult {
    let client = AdminClient::new(connect).await?;
    let answer = client.get("/api/login-code", &[]).await?;
    let (url, seconds) = link(client.server(), &answer.read()?)?;
    if !print && has_display() && open(&url).await {
        eprint_line!("The page is open in your browser: {}", client.server());
        return Ok(Exit::Fine);
    }
    output::print(&format!("{url}\n"))?;
    eprint_line!("Open it in a browser on this machine: once, within {seconds} s.");
    Ok(Exit::Fine)
}

/// Returns the login URL and its lifetime in seconds.
fn link(server: &str, answer: &LoginCode) -> Result<(String, u64), CommandFailure> {
    let LoginCode { code, expires_seconds } = answer;
    match !code.is_empty() && code.bytes().all(|b| b.is_ascii_alphanumeric()) {
        true => Ok((format!("{server}/login?code={code}"), *expires_seconds)),
        false => Err(CommandFailure::failed(format!("{server} returned no login code"))),
    }
}

/// Returns whether this machine can show a browser.
fn has_display() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    cfg!(target_os = "macos") || set("DISPLAY") || set("WAYLAND_DISPLAY")
}

/// Returns whether a program opened the URL.
async fn open(url: &str) -> bool {
    let opener = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let mut command = Command::new(opener);
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return false };
    match tokio::time::timeout(OPENER_WAITS, child.wait()).await {
        Ok(ended) => ended.is_ok_and(|status| status.success()),
        // The program is still running, as the browser itself.
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::output::tests::typed;

    #[test]
    fn link_contains_only_the_code_of_the_response() {
        let answer = json!({ "code": "ab12", "expiresSeconds": 60 });
        let (url, seconds) = link("http://127.0.0.1:1", &typed(answer)).expect("a link");
        assert_eq!((url.as_str(), seconds), ("http://127.0.0.1:1/login?code=ab12", 60));
        for wrong in [json!({}), json!({ "code": "a b&c", "expiresSeconds": 60 }), json!([])] {
            assert!(link("http://127.0.0.1:1", &typed(wrong.clone())).is_err(), "{wrong}");
        }
    }
}
