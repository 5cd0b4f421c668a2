//! `strait demo`: runs the whole product on one machine without any installation.
//!
//! The demo starts simulated clusters on two networks with the same pod addresses, a control plane
//! that finds them through Secrets, and a proxy in each network that connects over mTLS. It shows
//! the configuration of each proxy and the reasons, and then stops an endpoint and an API server.
//! If a real Envoy is on PATH, it also sends real requests ([`traffic`]). After each step it
//! compares the configuration of every proxy with [`expected`].

mod app;
mod expected;
mod mesh;
mod netns;
mod pod;
mod show;
mod traffic;
mod world;

use std::net::Ipv4Addr;
use std::time::Instant;

use clap::Args;

use self::expected::SettledProxy;
use self::mesh::DemoMesh;
use self::traffic::{Part, Ran};
use self::world::{NETWORKS, World};
use super::failure::{CommandFailure, CommandResult, Exit};
use super::output::{OutputStyle, print, unread};
use strait_base::signal::signalled;

/// Run a complete mesh on this machine, with nothing installed
#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// Number of simulated clusters; they alternate between two networks
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=50))]
    clusters: u8,
    /// End without waiting for Ctrl-C; exit code 0 only if every proxy had exactly the expected
    /// configuration after each step
    #[arg(long)]
    once: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

/// The cluster whose endpoint and API server the demo stops.
const VICTIM: &str = "west";
const POD: &str = "web-2";

/// Runs the demo once or, without `--once`, until Ctrl-C.
pub(super) async fn run(args: &DemoArgs) -> CommandResult {
    if let Some(part) = &args.part {
        return traffic::part(part).await;
    }
    let mut interrupted = std::pin::pin!(signalled());
    let began = Instant::now();
    let world = World::new(args.clusters);
    let mut mesh = tokio::select! {
        mesh = DemoMesh::start(world, Ipv4Addr::LOCALHOST.into()) => mesh?,
        () = &mut interrupted => return Ok(Exit::Interrupted),
        () = unread() => return Ok(Exit::Unread),
    };
    let shown = tokio::select! {
        shown = show_all(&mut mesh, began) => shown.map(|()| Exit::Fine),
        () = &mut interrupted => Ok(Exit::Interrupted),
        () = unread() => Ok(Exit::Unread),
    };
    if !args.once && matches!(shown, Ok(Exit::Fine)) {
        print(&invitation(&mesh))?;
        interrupted.await;
    }
    // Always, because tasks that still run would write files while the folder is removed.
    mesh.shut_down().await;
    shown
}

async fn show_all(mesh: &mut DemoMesh, began: Instant) -> Result<(), CommandFailure> {
    let look = OutputStyle::of_stdout();
    mesh.connect_proxies().await?;
    introduce(mesh, &look)?;
    let steps = story(mesh, &look).await?;
    heading(steps + 1, "Real requests through real Envoys")?;
    let real = match traffic::run(mesh.folder()).await? {
        Ran::Passed => "; real requests reached both networks",
        Ran::Skipped(why) => {
            print(&format!("Skipped: {why}\n"))?;
            ""
        }
    };
    print(&format!(
        "\n{} {} proxies had exactly the expected configuration after each of {steps} steps{real} ({:.1} s)\n",
        look.sign(true).paint(&look),
        mesh.proxies.len(),
        began.elapsed().as_secs_f64(),
    ))
}

fn introduce(mesh: &DemoMesh, look: &OutputStyle) -> Result<(), CommandFailure> {
    let url = |cluster: &world::DemoCluster| mesh.api_server(&cluster.id).url();
    print(&format!(
        "{} simulated clusters on networks {}. Both networks use the same pod addresses:\n\
         10.1.0.11 is one pod in east and another in west.\n\n{}\n\
         A control plane found them through Secrets with their kubeconfigs. A proxy in each network\n\
         has connected over mTLS as spiffe://cluster.local/ns/shop/sa/client.\n",
        mesh.world.clusters.len(),
        NETWORKS.join(" and "),
        show::clusters(&mesh.world, url, look),
    ))
}

/// Runs all steps and returns their number.
async fn story(mesh: &mut DemoMesh, look: &OutputStyle) -> Result<usize, CommandFailure> {
    let first = mesh.settle(Instant::now()).await?;
    heading(1, "The endpoints of each proxy, and why")?;
    let mut shown = Vec::new();
    for (proxy, settled) in mesh.proxies.iter().zip(&first) {
        let mut explanations = Vec::new();
        for service in services(&mesh.world) {
            let answer = mesh.explain(proxy, &service.hostname()).await?;
            explanations.push((service.title(), answer));
        }
        shown.push(format!(
            "Proxy {}, in network {}:\n\n{}\n{}",
            settled.proxy,
            proxy.network,
            show::reasons(&explanations, look),
            show::holdings(settled, look),
        ));
    }
    print(&shown.join("\n"))?;

    heading(2, &format!("Pod {POD} in {VICTIM} turns unready"))?;
    let now = Instant::now();
    mesh.set_ready(VICTIM, POD, false)?;
    let second = mesh.settle(now).await?;
    print(&show::changes(&first, &second, look))?;

    heading(3, &format!("The API server of {VICTIM} stops, and {POD} turns ready unseen"))?;
    mesh.api_server(VICTIM).stop().await;
    // The control plane cannot receive this change yet, so the expected configuration stays the
    // same.
    let seen = mesh.world.clone();
    mesh.set_ready(VICTIM, POD, true)?;
    let unseen = std::mem::replace(&mut mesh.world, seen);
    mesh.wait_for_state(VICTIM, "stale").await?;
    let third = mesh.settle(Instant::now()).await?;
    // Ages are relative to the current time, not to the start of the demo.
    let look_now = OutputStyle::of_stdout();
    print(&format!("{}\n", show::states(&mesh.clusters().await?, &look_now)))?;
    print(&kept(&second, &third)?)?;

    heading(4, &format!("The API server of {VICTIM} is back"))?;
    mesh.world = unseen;
    let now = Instant::now();
    mesh.api_server(VICTIM).restart().await;
    let fourth = mesh.settle(now).await?;
    print(&show::changes(&third, &fourth, look))?;
    mesh.wait_for_state(VICTIM, "live").await?;
    Ok(4)
}

/// Checks that an unreachable cluster affects no proxy: nothing may have been sent at all.
fn kept(before: &[SettledProxy], after: &[SettledProxy]) -> Result<String, CommandFailure> {
    let disturbed: Vec<_> = before
        .iter()
        .zip(after)
        .filter(|(before, after)| before.responses != after.responses)
        .map(|(_, after)| after.proxy.as_str())
        .collect();
    if disturbed.is_empty() {
        return Ok("No proxy lost anything; nothing was sent to any.\n".into());
    }
    Err(CommandFailure::failed(format!(
        "an unreachable API server caused updates to {}",
        disturbed.join(", ")
    )))
}

/// Returns each service once, even if several clusters have it.
fn services(world: &World) -> impl Iterator<Item = &world::DemoService> {
    let mut seen = std::collections::BTreeSet::new();
    let all = world.clusters.iter().flat_map(|cluster| &cluster.services);
    all.filter(move |service| seen.insert(service.name))
}

fn heading(number: usize, text: &str) -> Result<(), CommandFailure> {
    print(&format!("\n{number}. {text}\n\n"))
}

fn invitation(mesh: &DemoMesh) -> String {
    format!(
        "\nEverything stays up. In another shell:\n\n{}\n  \
         strait status\n  strait explain client.shop@east db.shop\n  strait ui\n\nCtrl-C ends it.\n",
        mesh.exports()
    )
}
