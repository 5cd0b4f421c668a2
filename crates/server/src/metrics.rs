//! Metrics in the text format of Prometheus: prefix `strait_`, base units, labels for clusters but
//! never for proxies.
//!
//! Computed on request from the state of other modules: gauges from statuses and the snapshot,
//! counters from the counts of the servers. This module owns no counter.

mod family;
mod imports;
mod open_metrics;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

pub use self::family::Family;
use self::open_metrics::open_metrics;
pub use self::open_metrics::{CONTENT_TYPE as OPEN_METRICS, is_asked_for};
use strait_ads::connections::Connections;
use strait_ads::{Histogram, Stats};
use strait_base::descriptors::Descriptors;
use strait_base::process::{self, ProcessUsage};
use strait_base::source_status::SourceStatusTable;
use strait_base::task::Supervisor;
use strait_envoy::heads::ConfigVariants;
use strait_explain::validation::ValidationCounts;
use strait_identity::ServerIdentity;
use strait_injection::InjectionCounts;
use strait_lkg::Writes;
use strait_mesh::hold::{HoldSharing, HoldState};
use strait_mesh::network::PendingCause;
use strait_mesh::push::PushContext;
use strait_mesh::push::event_loop::LoopCounters;
use strait_mesh::rollout::RolloutState;
use strait_model::{ClusterId, Hostname};
use strait_sources::clusters::events::LastingProblem;
use strait_sources::clusters::status::{ClusterState, ClusterStatus};

/// Inputs of the metrics.
pub struct Metrics {
    /// Counters of the ADS server.
    pub xds: Arc<Stats>,
    /// Connected proxies.
    pub connections: Arc<Connections>,
    /// The supervised tasks.
    pub tasks: Supervisor,
    /// The current certificates.
    pub identity: tokio::sync::watch::Receiver<Arc<ServerIdentity>>,
    /// Number of ServiceEntries and WorkloadEntries that can't be used unchanged.
    pub faulty_objects: tokio::sync::watch::Receiver<usize>,
    /// Statuses of the sources that are not member clusters.
    pub source_statuses: SourceStatusTable,
    /// Results of writing the last known state, if it is stored.
    pub writes: Option<tokio::sync::watch::Receiver<Writes>>,
    /// Use of file descriptors.
    pub descriptors: Arc<Descriptors>,
    /// Counts of injections, if the webhook is served.
    pub injections: Option<Arc<InjectionCounts>>,
    /// Counts of validations, if the webhook is served.
    pub validations: Option<Arc<ValidationCounts>>,
    /// The active hold.
    pub hold: tokio::sync::watch::Receiver<Arc<HoldState>>,
    /// Whether the other replicas have the same hold.
    pub hold_sharing: tokio::sync::watch::Receiver<HoldSharing>,
    /// The running rollout.
    pub rollout: tokio::sync::watch::Receiver<Arc<RolloutState>>,
    /// Assigns proxies to configurations.
    pub heads: Arc<ConfigVariants>,
    /// The problems that no other metric shows.
    pub problems: tokio::sync::watch::Receiver<Arc<Vec<LastingProblem>>>,
}

/// Metric of the time from the receipt of a change to the response that sends it to a proxy.
const PROPAGATION: &str = "strait_propagation_seconds";

/// The withheld endpoints by cluster (empty for entries) and code of the reason.
pub type WithheldCounts = BTreeMap<ClusterId, BTreeMap<&'static str, WithheldTotal>>;

/// Endpoints that are withheld for one reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WithheldTotal {
    /// The number of endpoints.
    pub endpoints: usize,
    /// Services that have such endpoints, at most three, the first ones by name.
    pub services: BTreeSet<Hostname>,
}

impl WithheldTotal {
    /// The maximum number of named services.
    const SERVICES_MAX: usize = 3;

    /// Adds endpoints of a service.
    pub(crate) fn add(&mut self, service: &Hostname, endpoints: usize) {
        self.endpoints += endpoints;
        self.services.insert(service.clone());
        if self.services.len() > Self::SERVICES_MAX {
            self.services.pop_last();
        }
    }
}

impl Metrics {
    /// Converts the text of `/metrics` to OpenMetrics, with an exemplar for each bucket.
    pub fn in_open_metrics(&self, text: &str) -> String {
        let all = self.xds.propagation.exemplars().into_iter();
        let exemplars: Vec<_> = all.map(|(bound, one)| (bucket(PROPAGATION, bound), one)).collect();
        open_metrics(text, &exemplars)
    }

    /// Renders the text of `/metrics`.
    ///
    /// # Errors
    /// Never in practice, because it writes into a string.
    pub fn render(
        &self,
        context: Option<&PushContext>,
        clusters: &[ClusterStatus],
        withheld: &WithheldCounts,
        figures: LoopCounters,
    ) -> Result<String, fmt::Error> {
        let mut text = String::new();
        let out = &mut text;
        let version = env!("CARGO_PKG_VERSION");
        Family::gauge(out, "strait_build_info", "The running build.")?
            .sample(&[("version", version)], 1)?;
        self.clusters(out, clusters)?;
        self.sources(out)?;
        if let Some(context) = context {
            mesh(out, context)?;
        }
        let help = "Ready endpoints that some connected proxy can't receive because of networks or the policy, by cluster and code; up to a minute old.";
        let mut family = Family::gauge(out, "strait_endpoints_withheld", help)?;
        for (cluster, reasons) in withheld {
            for (reason, total) in reasons {
                let labels = [("cluster", cluster.as_str()), ("reason", reason)];
                family.sample(&labels, total.endpoints)?;
            }
        }
        Family::gauge(
            out,
            "strait_config_objects_faulty",
            "ServiceEntries and WorkloadEntries with faults; the log names them.",
        )?
        .sample(&[], *self.faulty_objects.borrow())?;
        let help = "Objects with a problem that strait check reports without requests to API servers, by category and code.";
        let mut family = Family::gauge(out, "strait_problems", help)?;
        for problem in self.problems.borrow().iter() {
            let (category, code) = (problem.category, problem.code.id);
            family.sample(&[("category", category), ("code", code)], problem.count)?;
        }
        self.streams(out)?;
        Family::gauge(out, "strait_context_version", "The current version of the mesh.")?
            .sample(&[], figures.version)?;
        let age = figures.published.and_then(|at| SystemTime::now().duration_since(at).ok());
        if let Some(age) = age {
            let help = "Age of the current version of the mesh.";
            Family::gauge(out, "strait_snapshot_age_seconds", help)?
                .sample(&[], age.as_secs_f64())?;
        }
        Family::counter(out, "strait_events_total", "Events taken by the event loop.")?
            .sample(&[], figures.events)?;
        let help = "Streams woken by new versions of the mesh, counted once per version.";
        Family::counter(out, "strait_streams_woken_total", help)?
            .sample(&[], figures.woken_total)?;
        Family::counter(out, "strait_task_panics_total", "Tasks that ended by a panic.")?
            .sample(&[], self.tasks.panics())?;
        let help = "Loops that are stuck; /livez names them and their work.";
        Family::gauge(out, "strait_loops_stuck", help)?
            .sample(&[], self.tasks.loops().stuck().len())?;
        if let Some(counts) = &self.injections {
            let help = "Pods reviewed by the injection webhook, by result.";
            let mut family = Family::counter(out, "strait_injections_total", help)?;
            for (result, count) in counts.all() {
                family.sample(&[("result", result)], count)?;
            }
        }
        if let Some(counts) = &self.validations {
            let help = "Objects reviewed by the validation webhook, by result.";
            let mut family = Family::counter(out, "strait_validations_total", help)?;
            for (result, count) in counts.all() {
                family.sample(&[("result", result)], count)?;
            }
        }
        self.hold(out)?;
        self.rollout(out)?;
        self.state(out)?;
        self.process(out)?;
        Ok(text)
    }

    /// Renders metrics about the process, with the names of Prometheus client libraries.
    fn process(&self, out: &mut String) -> fmt::Result {
        if let Some(usage) = ProcessUsage::now() {
            let help = "Total user and system CPU time spent in seconds.";
            Family::counter(out, "process_cpu_seconds_total", help)?
                .sample(&[], usage.cpu.as_secs_f64())?;
            let help = "Resident memory size in bytes.";
            Family::gauge(out, "process_resident_memory_bytes", help)?
                .sample(&[], usage.resident_bytes)?;
            let help = "Virtual memory size in bytes.";
            Family::gauge(out, "process_virtual_memory_bytes", help)?
                .sample(&[], usage.virtual_bytes)?;
            let help = "Start time of the process since unix epoch in seconds.";
            Family::gauge(out, "process_start_time_seconds", help)?
                .sample(&[], usage.began.as_secs_f64())?;
            let help = "Number of OS threads in the process.";
            Family::gauge(out, "process_threads", help)?.sample(&[], usage.threads)?;
        }
        let help = "Maximum amount of virtual memory available in bytes, -1 if there is no limit.";
        let name = "process_virtual_memory_max_bytes";
        let mut family = Family::gauge(out, name, help)?;
        match process::virtual_bytes_max() {
            Some(bytes) => family.sample(&[], bytes)?,
            None => family.sample(&[], -1)?,
        };
        let figures = self.descriptors.figures();
        if let Some(open) = figures.open {
            let help = "Number of open file descriptors.";
            Family::gauge(out, "process_open_fds", help)?.sample(&[], open)?;
        }
        if let Some(limit) = figures.limit {
            let help = "Maximum number of open file descriptors.";
            Family::gauge(out, "process_max_fds", help)?.sample(&[], limit)?;
        }
        let help = "Incoming connections for which no file descriptor was free (STR0810).";
        Family::counter(out, "strait_descriptors_exhausted_total", help)?
            .sample(&[], figures.exhausted)?;
        Ok(())
    }

    /// Renders metrics about holds.
    fn hold(&self, out: &mut String) -> fmt::Result {
        let state = Arc::clone(&self.hold.borrow());
        let help = "1 during a hold of a configuration, when changes of objects wait.";
        Family::gauge(out, "strait_configuration_held", help)?
            .sample(&[], u8::from(state.held.is_some()))?;
        let help = "Start time of the hold.";
        let mut family =
            Family::gauge(out, "strait_configuration_held_since_timestamp_seconds", help)?;
        if let Some(since) = state.held.as_ref().and_then(|hold| seconds(hold.since)) {
            family.sample(&[], since)?;
        }
        let help = "Objects and mesh settings whose changes wait for the end of the hold.";
        Family::gauge(out, "strait_configuration_waiting", help)?
            .sample(&[], state.waiting.len())?;
        let help = "1 if the hold from before the start could not be restored.";
        Family::gauge(out, "strait_configuration_hold_lost", help)?
            .sample(&[], u8::from(state.lost.is_some()))?;
        let help = "1 while holding or releasing can't be synchronized with the other replicas.";
        let fails = matches!(*self.hold_sharing.borrow(), HoldSharing::Failing(..));
        Family::gauge(out, "strait_configuration_hold_not_shared", help)?
            .sample(&[], u8::from(fails))?;
        Ok(())
    }

    /// Renders metrics about rollouts.
    fn rollout(&self, out: &mut String) -> fmt::Result {
        let state = Arc::clone(&self.rollout.borrow());
        let help = "1 while a configuration change is rolled out gradually.";
        Family::gauge(out, "strait_rollout_running", help)?
            .sample(&[], u8::from(state.running.is_some()))?;
        let help = "Ratio of proxies that receive the change, from 0 to 1.";
        let percent = state.running.as_ref().map_or(0, |running| running.percent());
        Family::gauge(out, "strait_rollout_share_ratio", help)?
            .sample(&[], f64::from(percent) / 100.0)?;
        let help = "Proxies that refused the configuration that is rolled out.";
        let refused = self.heads.next().map_or(0, |head| head.refusals().borrow().len());
        Family::gauge(out, "strait_rollout_refused_proxies", help)?.sample(&[], refused)?;
        let help = "Gradual rollouts that have ended, by result.";
        let mut family = Family::counter(out, "strait_rollouts_total", help)?;
        family.sample(&[("result", "completed")], state.completed)?;
        family.sample(&[("result", "stopped")], state.stopped)?;
        Ok(())
    }

    fn state(&self, out: &mut String) -> fmt::Result {
        let Some(writes) = self.writes.as_ref().map(|writes| writes.borrow().clone()) else {
            return Ok(());
        };
        let help = "1 while writing the last known state to the state directory fails.";
        Family::gauge(out, "strait_state_unwritable", help)?
            .sample(&[], u8::from(writes.failing.is_some()))?;
        let help = "Failed writes of the last known state.";
        Family::counter(out, "strait_state_write_failures_total", help)?
            .sample(&[], writes.failures)?;
        let help = "Time of the last successful write of the last known state.";
        let mut family = Family::gauge(out, "strait_state_last_write_timestamp_seconds", help)?;
        if let Some(at) = writes.last.and_then(seconds) {
            family.sample(&[], at)?;
        }
        Ok(())
    }

    fn clusters(&self, out: &mut String, clusters: &[ClusterStatus]) -> fmt::Result {
        let mut states = BTreeMap::new();
        for cluster in clusters {
            *states.entry(cluster.state.as_str()).or_insert(0) += 1;
        }
        let mut family = Family::gauge(out, "strait_clusters", "Member clusters by state.")?;
        for (state, count) in states {
            family.sample(&[("state", state)], count)?;
        }
        let mut seen = BTreeSet::new();
        // Of several entries with one ID, the first one holds it.
        let holders: Vec<_> = clusters.iter().filter(|one| seen.insert(&one.id)).collect();
        let help = "1 for the current state of a cluster.";
        let mut family = Family::gauge(out, "strait_cluster_state", help)?;
        for cluster in &holders {
            family.sample(&[("cluster", &cluster.id), ("state", cluster.state.as_str())], 1)?;
        }
        let name = "strait_cluster_state_since_timestamp_seconds";
        let mut family = Family::gauge(
            out,
            name,
            "Time since which a cluster is in its state, unless it is live.",
        )?;
        for cluster in &holders {
            if let Some(since) = cluster.since {
                family.sample(&[("cluster", &cluster.id)], since.as_second())?;
            }
        }
        let name = "strait_cluster_last_contact_timestamp_seconds";
        let mut family =
            Family::gauge(out, name, "Time of the last response of a cluster's API server.")?;
        for cluster in &holders {
            if let Some(at) = cluster.last_contact.get().and_then(seconds) {
                family.sample(&[("cluster", &cluster.id)], at)?;
            }
        }
        let name = "strait_cluster_credential_expiry_timestamp_seconds";
        let help = "Expiry of the credential with which a cluster is read.";
        let mut family = Family::gauge(out, name, help)?;
        for cluster in &holders {
            if let Some(expires) = cluster.credential.as_ref().and_then(|one| one.expires) {
                family.sample(&[("cluster", &cluster.id)], expires.as_second())?;
            }
        }
        self.identities(out, &holders)?;
        let mut family = Family::gauge(out, "strait_cluster_objects", "Kubernetes objects held.")?;
        for cluster in &holders {
            family.sample(&[("cluster", &cluster.id)], cluster.objects)?;
        }
        let mut family =
            Family::gauge(out, "strait_cluster_endpoints", "Endpoints held, ready or not.")?;
        for cluster in &holders {
            family.sample(&[("cluster", &cluster.id)], cluster.endpoints)?;
        }
        let mut family =
            Family::counter(out, "strait_cluster_relists_total", "Full lists after the first.")?;
        for cluster in &holders {
            family.sample(&[("cluster", &cluster.id)], cluster.relists)?;
        }
        let help = "Approximate memory use of a cluster's data; the policy limits it.";
        let mut family = Family::gauge(out, "strait_cluster_memory_bytes", help)?;
        for cluster in &holders {
            family.sample(&[("cluster", &cluster.id)], cluster.memory_bytes)?;
        }
        let help = "Lists that lacked most known objects and were read again before they applied.";
        let mut family = Family::counter(out, "strait_cluster_doubted_lists_total", help)?;
        for cluster in &holders {
            family.sample(&[("cluster", &cluster.id)], cluster.doubts)?;
        }
        let help = "Duration of the first complete sync.";
        let mut family = Family::gauge(out, "strait_cluster_sync_duration_seconds", help)?;
        for cluster in &holders {
            if let Some(took) = cluster.sync_took {
                family.sample(&[("cluster", &cluster.id)], took.as_secs_f64())?;
            }
        }
        let help = "Failed lists, watches and probes.";
        let mut family = Family::counter(out, "strait_cluster_watch_errors_total", help)?;
        for cluster in &holders {
            family.sample(&[("cluster", &cluster.id)], cluster.errors)?;
        }
        imports::render(out, &holders)?;
        let mut rejected = BTreeMap::new();
        for cluster in clusters.iter().filter(|one| one.state == ClusterState::Rejected) {
            // The reason of a rejection begins with its code.
            let code = cluster.reason.as_deref().and_then(|reason| reason.get(..7));
            *rejected.entry(code.unwrap_or_default()).or_insert(0) += 1;
        }
        let help = "Rejected clusters of Secrets, by the code of the reason.";
        let mut family = Family::gauge(out, "strait_secrets_rejected", help)?;
        for (code, count) in rejected {
            family.sample(&[("code", code)], count)?;
        }
        Ok(())
    }

    fn sources(&self, out: &mut String) -> fmt::Result {
        let figures = self.source_statuses.figures();
        let name = "strait_source_state";
        let mut family = Family::gauge(out, name, "1 for the current state of a source.")?;
        for (source, figures) in &figures {
            family.sample(&[("source", source), ("state", figures.state.as_str())], 1)?;
        }
        let name = "strait_source_last_contact_timestamp_seconds";
        let mut family = Family::gauge(out, name, "Time of the last valid response of a source.")?;
        for (source, figures) in &figures {
            if let Some(at) = figures.last_contact.and_then(seconds) {
                family.sample(&[("source", source)], at)?;
            }
        }
        let name = "strait_source_failures_total";
        let mut family = Family::counter(out, name, "Failed reads of a source.")?;
        for (source, figures) in &figures {
            family.sample(&[("source", source)], figures.failures)?;
        }
        let name = "strait_source_doubted_answers_total";
        let help =
            "Responses that lacked most known objects and were read again before they applied.";
        let mut family = Family::counter(out, name, help)?;
        for (source, figures) in &figures {
            family.sample(&[("source", source)], figures.doubts)?;
        }
        self.keys_of_tokens(out)
    }

    /// Renders the expiry of the tokens of identities.
    fn identities(&self, out: &mut String, clusters: &[&ClusterStatus]) -> fmt::Result {
        let mut first: BTreeMap<&str, i64> = BTreeMap::new();
        for credential in clusters.iter().filter_map(|cluster| cluster.credential.as_ref()) {
            if let (Some(name), Some(expires)) = (&credential.identity, credential.expires) {
                let expires = expires.as_second();
                let entry = first.entry(name).or_insert(expires);
                *entry = expires.min(*entry);
            }
        }
        let name = "strait_identity_token_expiry_timestamp_seconds";
        let help = "Expiry of the first token of an identity that expires.";
        let mut family = Family::gauge(out, name, help)?;
        for (identity, expires) in first {
            family.sample(&[("identity", identity)], expires)?;
        }
        Ok(())
    }

    /// Renders the number and the age of fetched token keys.
    fn keys_of_tokens(&self, out: &mut String) -> fmt::Result {
        let lines = self.source_statuses.lines();
        let lines = lines.borrow().clone();
        let places = || lines.values().filter(|facts| facts.kind == "jwks");
        let help = "Token keys fetched from an address; 0 while its tokens are refused.";
        let mut family = Family::gauge(out, "strait_jwks_keys", help)?;
        for facts in places() {
            family.sample(&[("place", &facts.address)], facts.objects)?;
        }
        let help = "Time since the last fetch of token keys from an address.";
        let mut family = Family::gauge(out, "strait_jwks_age_seconds", help)?;
        for facts in places() {
            let age = facts.last_contact.and_then(|at| SystemTime::now().duration_since(at).ok());
            if let Some(age) = age {
                family.sample(&[("place", &facts.address)], age.as_secs_f64())?;
            }
        }
        let help = "Failed fetches of token keys from an address.";
        let mut family = Family::counter(out, "strait_jwks_failures_total", help)?;
        for facts in places() {
            family.sample(&[("place", &facts.address)], facts.failures)?;
        }
        Ok(())
    }

    /// Renders metrics about the memory limit and shed load.
    fn memory(&self, out: &mut String) -> fmt::Result {
        let figures = self.connections.budgets().figures();
        Family::gauge(out, "strait_memory_limit_bytes", "Memory limit of the process.")?
            .sample(&[], figures.limit)?;
        if figures.used > 0 {
            let help = "Memory use that counts towards the limit, without reclaimable file pages.";
            Family::gauge(out, "strait_memory_used_bytes", help)?.sample(&[], figures.used)?;
        }
        let help = "1 for the current level of memory pressure: low, raised (no new proxies are admitted), high (the costliest streams are ended).";
        Family::gauge(out, "strait_memory_pressure", help)?
            .sample(&[("level", figures.pressure.as_str())], 1)?;
        let help = "Streams that were asked to retry later because memory was short.";
        Family::counter(out, "strait_xds_streams_deferred_total", help)?
            .sample(&[], figures.deferred)?;
        let help = "Identities whose streams were ended because memory was almost exhausted.";
        Family::counter(out, "strait_xds_identities_shed_total", help)?
            .sample(&[], figures.shed)?;
        let help = "Streams that requested more than the budget of their identity.";
        Family::counter(out, "strait_xds_over_budget_total", help)?
            .sample(&[], figures.over_budget)?;
        Ok(())
    }

    fn streams(&self, out: &mut String) -> fmt::Result {
        Family::gauge(out, "strait_xds_streams", "Open ADS streams.")?
            .sample(&[], self.connections.len())?;
        self.memory(out)?;
        for counter in self.xds.counters() {
            let mut family = Family::counter(out, counter.name, counter.help)?;
            for (labels, value) in &counter.samples {
                family.sample(labels, value)?;
            }
        }
        let help = "Time from the receipt of a change to the response that sends it to a proxy.";
        histogram(out, PROPAGATION, help, &self.xds.propagation)?;
        let identity = self.identity.borrow();
        let name = "strait_cert_expiry_timestamp_seconds";
        let mut family = Family::gauge(out, name, "Expiry of a certificate in use.")?;
        if let Some(at) = seconds(identity.serving_not_after) {
            family.sample(&[("cert", "serving")], at)?;
        }
        let now = SystemTime::now();
        let lives = identity.root_lives();
        let help = "Remaining lifetime of a root of the CA; negative once it has expired.";
        let mut family = Family::gauge(out, "strait_ca_root_expiry_seconds", help)?;
        let left = |ends: SystemTime| match ends.duration_since(now) {
            Ok(left) => left.as_secs_f64(),
            Err(past) => -past.duration().as_secs_f64(),
        };
        let mut ends = BTreeMap::new();
        for life in &lives {
            // A root and its successor often have one name; the earlier end is reported.
            let end = ends.entry(&life.subject).or_insert(life.ends);
            *end = life.ends.min(*end);
        }
        for (subject, ends) in ends {
            family.sample(&[("root", subject)], left(ends))?;
        }
        let help = "Remaining lifetime of the CA; with label member, of the member's dedicated CA.";
        let mut family = Family::gauge(out, "strait_ca_expiry_seconds", help)?;
        if let Some(authority) = &identity.authority {
            family.sample(&[], left(authority.not_after()))?;
        }
        for (member, own) in identity.members.iter() {
            if let Some(authority) = &own.authority {
                family.sample(&[("member", member.as_str())], left(authority.not_after()))?;
            }
        }
        let help = "1 if the dedicated CA of a member issues certificates; 0 if it was removed or is invalid.";
        let mut family = Family::gauge(out, "strait_ca_member_signs", help)?;
        for (member, own) in identity.members.iter() {
            let signs = u8::from(own.authority.is_some());
            family.sample(&[("member", member.as_str())], signs)?;
        }
        let help = "Certificates issued by the dedicated CA of a member.";
        let mut family = Family::counter(out, "strait_member_certificates_issued_total", help)?;
        for (member, own) in identity.members.iter() {
            let issued = own.issued.load(Ordering::Relaxed);
            family.sample(&[("member", member.as_str())], issued)?;
        }
        // Names of istiod's metrics, for existing dashboards.
        let roots = lives.iter().map(|life| life.ends).min();
        let chain = identity.authority.as_ref().map(|authority| authority.not_after());
        if let Some(at) = roots.and_then(seconds) {
            let name = "citadel_server_root_cert_expiry_timestamp";
            let help = "Expiry of the CA's root that expires first.";
            Family::gauge(out, name, help)?.sample(&[], at)?;
        }
        if let Some(at) = chain.and_then(seconds) {
            let name = "citadel_server_cert_chain_expiry_timestamp";
            Family::gauge(out, name, "Expiry of the CA.")?.sample(&[], at)?;
        }
        Ok(())
    }
}

fn histogram(out: &mut String, name: &str, help: &str, of: &Histogram) -> fmt::Result {
    writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram")?;
    let counts = of.cumulative();
    for (bound, count) in &counts {
        writeln!(out, "{}{count}", bucket(name, *bound))?;
    }
    let count = counts.last().map_or(0, |(_, count)| *count);
    writeln!(out, "{name}_sum {}\n{name}_count {count}", of.sum())
}

/// Returns the beginning of a bucket's line.
fn bucket(name: &str, bound: Option<f64>) -> String {
    let bound = bound.map_or("+Inf".to_owned(), |bound| bound.to_string());
    format!("{name}_bucket{{le=\"{bound}\"}} ")
}

fn mesh(out: &mut String, context: &PushContext) -> fmt::Result {
    Family::gauge(out, "strait_services", "Merged services.")?
        .sample(&[], context.services.len())?;
    let mut endpoints = BTreeMap::new();
    for service in context.services.values() {
        for (shard, _, network) in service.endpoints() {
            *endpoints.entry((shard.cluster.clone(), network.clone())).or_insert(0_u64) += 1;
        }
    }
    let mut family =
        Family::gauge(out, "strait_endpoints", "Endpoints by cluster and network, ready or not.")?;
    for ((cluster, network), count) in endpoints {
        family.sample(&[("cluster", cluster.as_str()), ("network", network.as_str())], count)?;
    }
    let mut gateways = BTreeMap::new();
    for gateway in context.networks.iter() {
        let (all, dead) = gateways.entry(gateway.network.clone()).or_insert((0_u64, 0_u64));
        *all += 1;
        *dead += u64::from(gateway.dead);
    }
    let mut family =
        Family::gauge(out, "strait_network_gateways", "Gateway addresses by network.")?;
    for (network, (count, _)) in &gateways {
        family.sample(&[("network", network.as_str())], count)?;
    }
    let help = "Gateway addresses that don't respond, by network (--probe-gateways).";
    let mut family = Family::gauge(out, "strait_network_gateways_dead", help)?;
    for (network, (_, dead)) in &gateways {
        family.sample(&[("network", network.as_str())], dead)?;
    }
    let mut pending = BTreeMap::new();
    for gateway in context.networks.pending() {
        let (all, unserved) = pending.entry(gateway.network.clone()).or_insert((0_u64, 0_u64));
        *all += 1;
        *unserved += u64::from(gateway.cause == PendingCause::Unserved);
    }
    let help = "Gateways that can't be dialled, for example because their name does not resolve.";
    let mut family = Family::gauge(out, "strait_network_gateways_pending", help)?;
    for (network, (count, _)) in &pending {
        family.sample(&[("network", network.as_str())], count)?;
    }
    let help = "Gateways that are not used because no pod serves them, by network.";
    let mut family = Family::gauge(out, "strait_network_gateways_unserved", help)?;
    for (network, (_, unserved)) in &pending {
        family.sample(&[("network", network.as_str())], unserved)?;
    }
    Ok(())
}

fn seconds(time: SystemTime) -> Option<f64> {
    time.duration_since(SystemTime::UNIX_EPOCH).ok().map(|since| since.as_secs_f64())
}
