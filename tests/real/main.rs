//! Strait with real components: kube-apiserver and etcd, Envoy sidecars and gateways in network
//! namespaces, two networks with the same pod addresses, and redirection by iptables as in a mesh.
//!
//! One rig is started for all scenarios, which run in the order of [`SCENARIOS`]: scenarios that
//! break something come last. So this target has its own main function, which also stops
//! everything. If a component is missing, the scenarios are skipped with a message; with
//! `STRAIT_REAL=required` a skip is a failure.
//!
//! `cargo test --test real [FILTER]`; `STRAIT_REAL_KEEP=1` keeps logs and configurations of a run.
//! `--part first` and `--part second` run the scenarios before [`SECOND_PART`] and the others, so
//! that two processes share the work. With `STRAIT_REAL_TRIES=2` a failed scenario is tried again in a
//! new mesh and reported as flaky if it passes, as in the profile `ci` of cargo-nextest.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test target with its own main: clippy does not see that all of it is tests"
)]

mod apiserver;
mod authorizers;
mod canary;
mod certs;
mod consul;
mod dark_hours;
mod demo;
mod envoy;
mod examples;
mod five_percent;
mod gateway_ejection;
mod grpc;
mod grpc_access;
mod helper;
mod holding;
mod host;
mod ingress;
mod injection;
mod istio_agent;
mod kube;
mod mode_rollout;
mod moving;
mod namespaces;
mod netns;
mod one_by_one;
mod outages;
mod outside;
mod process;
mod remote_pods;
mod renewal;
mod rig_check;
mod rollout;
mod scenarios;
mod service_metrics;
mod shared;
mod steering;
mod strait;
mod tls_modes;
mod topology;
mod trust_bundle;
mod wait;
mod warming;
mod world;

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::time::Instant;

use crate::host::Host;
use crate::world::World;

/// The state that scenarios share.
struct Rig {
    /// Started by the first scenario that needs it. If that fails, the other scenarios fail
    /// immediately.
    world: Option<World>,
    tried: bool,
    /// The number of failed attempts.
    failures: usize,
    host: Host,
}

impl Rig {
    fn world(&mut self) -> &mut World {
        if !self.tried {
            self.tried = true;
            self.world = Some(World::create(&self.host));
        }
        self.world
            .as_mut()
            .expect("the mesh did not come up: the first scenario that needs it says why")
    }

    /// Runs a scenario once and prints its result. Returns why it failed.
    fn attempt(&mut self, name: &str, scenario: Scenario) -> Result<(), String> {
        let started = Instant::now();
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| match scenario {
            Machine(scenario) => scenario(&self.host),
            Mesh(scenario) => scenario(self.world()),
            Both(scenario) => {
                self.world();
                scenario(self.world.as_mut().expect("brought up above"), &self.host);
            }
        }));
        let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!("test {name} ... {verdict} ({:.1} s)", started.elapsed().as_secs_f32());
        outcome.map_err(|panic| {
            // The world and the files of a failed scenario are not reused: the next scenario that
            // needs a world creates a new one.
            if self.world.take().is_some() {
                self.tried = false;
            }
            self.failures += 1;
            self.host.set_aside(&format!("before-failure-{}-ended", self.failures));
            panic_text(panic.as_ref())
        })
    }
}

/// A scenario, by the environment that it needs.
#[derive(Clone, Copy)]
enum Scenario {
    Machine(fn(&Host)),
    Mesh(fn(&mut World)),
    Both(fn(&mut World, &Host)),
}

use Scenario::{Both, Machine, Mesh};

/// All scenarios in their order: destructive ones come last.
const SCENARIOS: &[(&str, Scenario)] = &[
    ("rig_carries_mtls_from_sidecar_through_gateway_to_sidecar", Machine(rig_check::run)),
    ("demo_sends_real_requests_to_both_networks", Machine(demo::real_requests)),
    ("consul_services_are_added_and_removed_and_survive_an_outage", Machine(consul::run)),
    ("real_api_server_injects_rejects_and_skips_pods", Machine(injection::run)),
    ("real_api_server_stores_the_roots_in_a_cluster_trust_bundle", Machine(trust_bundle::run)),
    ("reader_with_roles_in_some_namespaces_reads_exactly_these", Machine(namespaces::run)),
    (
        "namespace_whose_role_is_lost_stays_unchanged_until_it_is_back",
        Machine(namespaces::lost_namespace),
    ),
    ("grpc_libraries_call_each_other_with_mtls_and_in_plain_text", Machine(grpc::run)),
    ("grpc_libraries_enforce_policies_like_the_evaluator", Machine(grpc_access::run)),
    ("hours_without_an_api_server_stop_no_pod", Machine(dark_hours::run)),
    ("ingress_gateway_serves_gateways_and_secrets", Machine(ingress::run)),
    ("warming_cluster_becomes_active_after_the_stream_breaks", Machine(warming::broken_stream)),
    ("every_envoy_accepts_its_configuration", Mesh(scenarios::configuration)),
    ("tcp_connections_reach_every_endpoint_by_weight", Mesh(scenarios::tcp_shares)),
    ("http_requests_reach_both_clusters_by_weight", Mesh(scenarios::http_shares)),
    ("http_over_few_connections_reaches_every_pod", Mesh(scenarios::few_connections)),
    ("pod_reaches_its_own_service_as_its_only_endpoint", Mesh(scenarios::own_service)),
    (
        "server_in_the_other_network_sees_the_identity_of_the_client",
        Mesh(scenarios::client_identity),
    ),
    ("delta_and_sotw_end_with_the_same_configuration", Mesh(scenarios::delta_equals_sotw)),
    ("node_that_contradicts_its_certificate_is_denied", Mesh(scenarios::contradicting_node)),
    ("client_of_a_foreign_ca_fails_its_handshake", Mesh(scenarios::foreign_ca)),
    ("server_with_the_wrong_identity_costs_its_client_a_503", Mesh(scenarios::wrong_server)),
    ("clients_follow_a_change_of_a_workloads_tls_mode_immediately", Both(tls_modes::run)),
    ("modes_of_policies_are_rolled_out_without_a_failed_request", Both(mode_rollout::run)),
    ("providers_in_the_other_network_are_called_and_fail_closed", Both(authorizers::run)),
    ("requests_follow_rules_that_change_under_load", Mesh(steering::run)),
    ("weights_that_canary_tools_patch_under_load_lose_no_request", Mesh(canary::run)),
    ("failing_pod_behind_a_gateway_does_not_eject_its_network", Mesh(gateway_ejection::run)),
    ("pods_of_a_headless_service_are_reached_one_by_one_in_both_networks", Both(remote_pods::run)),
    ("gateways_move_and_clusters_are_drained_under_load", Both(moving::run)),
    ("individually_sent_virtual_hosts_change_under_load", Both(one_by_one::run)),
    ("service_metrics_equal_the_counted_requests", Both(service_metrics::run)),
    ("examples_of_the_field_guides_work_in_both_networks", Both(examples::run)),
    ("held_configuration_survives_bad_changes_and_restarts", Mesh(holding::run)),
    ("rejected_change_stops_at_the_first_step", Both(rollout::run)),
    ("bad_change_reaches_only_one_of_twenty_proxies", Both(five_percent::run)),
    ("renewed_certificate_is_used_without_a_restart", Mesh(renewal::run)),
    ("istio_agent_runs_envoy_with_only_a_token", Both(istio_agent::run)),
    ("unready_pod_receives_no_connection", Mesh(scenarios::not_ready)),
    ("restart_of_strait_changes_nothing_in_running_envoys", Mesh(scenarios::restart)),
    ("unreachable_api_server_loses_no_request", Mesh(scenarios::dark_cluster)),
    ("deleted_secret_withdraws_its_cluster_after_the_grace", Mesh(scenarios::removed_cluster)),
    ("kubernetes_and_consul_services_are_equal_for_all_proxies", Both(shared::all_clients)),
    ("with_all_api_servers_dead_a_restart_loses_no_request", Mesh(outages::everything_dies)),
    ("failing_credentials_affect_no_request", Mesh(outages::bad_credentials)),
    ("api_server_restored_from_a_backup_is_listed_again", Mesh(outages::restored_backup)),
    ("no_envoy_has_rejected_a_response", Mesh(scenarios::no_complaints)),
];

/// The first scenario of the second part.
const SECOND_PART: &str = "examples_of_the_field_guides_work_in_both_networks";
/// The last scenario of both parts.
const LAST: &str = "no_envoy_has_rejected_a_response";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == helper::COMMAND) {
        return helper::main(&arguments[1..]);
    }
    let selected = select(&arguments);
    if arguments.iter().any(|argument| argument == "--list") {
        for (name, _) in &selected {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    match Host::find() {
        Ok(host) => run(Rig { world: None, tried: false, failures: 0, host }, &selected),
        Err(reason) => skip(&selected, &reason),
    }
}

/// Selects scenarios as libtest does: by any of the given substrings, or all without one. `--part
/// first` and `--part second` each select a part of them.
fn select(arguments: &[String]) -> Vec<(&'static str, Scenario)> {
    let at = |wanted: &str| arguments.iter().position(|argument| argument == wanted);
    let exact = at("--exact").is_some();
    let part = at("--part").map(|at| at + 1);
    let cut = SCENARIOS.iter().position(|(name, _)| *name == SECOND_PART).expect("it is listed");
    let (before, after) = SCENARIOS.split_at(cut);
    let (scenarios, last) = match part.and_then(|at| arguments.get(at)).map(String::as_str) {
        None => (SCENARIOS, None),
        Some("first") => (before, after.iter().find(|(name, _)| *name == LAST)),
        Some("second") => (after, None),
        Some(other) => panic!("--part is first or second, not {other}"),
    };
    let filters: Vec<&String> = (0..)
        .zip(arguments)
        .filter(|(at, argument)| !argument.starts_with('-') && Some(*at) != part)
        .map(|(_, argument)| argument)
        .collect();
    let matches = |name: &str| {
        filters.is_empty()
            || filters
                .iter()
                .any(|filter| if exact { name == *filter } else { name.contains(*filter) })
    };
    scenarios.iter().chain(last).filter(|(name, _)| matches(name)).copied().collect()
}

fn run(mut rig: Rig, selected: &[(&str, Scenario)]) -> ExitCode {
    let tries = match std::env::var("STRAIT_REAL_TRIES") {
        Ok(tries) => tries.parse().expect("STRAIT_REAL_TRIES is a number"),
        Err(_) => 1,
    };
    println!("\nrunning {} tests", selected.len());
    let (mut failed, mut flaky) = (Vec::new(), Vec::new());
    for (name, scenario) in selected {
        let mut reasons: Vec<String> = (0..tries)
            .map_while(|_| rig.attempt(name, *scenario).err())
            .map(|reason| format!("{name}: {reason}"))
            .collect();
        match reasons.pop() {
            Some(last) if reasons.len() + 1 == tries => failed.push(last),
            earlier => flaky.extend(earlier),
        }
    }
    for each in flaky {
        println!("FLAKY, passed at the next try: {each}");
    }
    finish(selected.len(), &failed, 0)
}

fn skip(selected: &[(&str, Scenario)], reason: &str) -> ExitCode {
    println!("\nrunning {} tests", selected.len());
    let mut lines = String::new();
    for (name, _) in selected {
        println!("test {name} ... ignored");
        lines.push_str(&format!("SKIPPED real::{name}: {reason}\n"));
    }
    host::note_skip(lines.trim_end());
    if host::required() && !selected.is_empty() {
        return finish(0, &[format!("real tests are required here, and can't run: {reason}")], 0);
    }
    finish(0, &[], selected.len())
}

/// Prints the closing lines of libtest, so that tools that parse them work.
fn finish(ran: usize, failed: &[String], ignored: usize) -> ExitCode {
    if !failed.is_empty() {
        println!("\nfailures:");
        for each in failed {
            println!("    {each}");
        }
    }
    let verdict = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {} passed; {} failed; {ignored} ignored; 0 measured; 0 filtered out\n",
        ran.saturating_sub(failed.len()),
        failed.len()
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panicked").to_owned()
}
