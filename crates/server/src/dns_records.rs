//! Schedule of the DNS records: computes the hosts and the addresses of their routers while this
//! process writes. [`strait_sources::clusters::dns_endpoints`] writes them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::config::ServeArgs;
use super::source::ConfigOrigin;
use crate::admin::Readiness;
use strait_base::latest::publish_change;
use strait_base::task::Supervisor;
use strait_mesh::push::PushContext;
use strait_mesh::push::dns_hosts::dns_hosts;
use strait_model::{DnsHosts, WriterRole};
use strait_sources::clusters::dns_endpoints::{self, DnsSettings};

/// The minimum interval between two computations: an object is written at most every 10 s.
const PACE: Duration = Duration::from_secs(2);

/// Starts the tasks that compute and write the records, if flags ask for them.
pub(super) fn write_dns_records(
    args: &ServeArgs,
    source: &ConfigOrigin,
    role: watch::Receiver<WriterRole>,
    context: watch::Receiver<Option<Arc<PushContext>>>,
    readiness: watch::Receiver<Readiness>,
    tasks: &Supervisor,
) {
    let (Some(config_cluster), Some(namespace)) =
        (source.config_cluster(), &args.dns.dns_endpoints)
    else {
        return;
    };
    if args.dns.dns_domains.is_empty() {
        return;
    }
    let settings = Arc::new(DnsSettings {
        namespace: namespace.clone(),
        clusterset: args.mcs.clusterset.clone(),
        mode: args.dns.dns_mode,
        provider_key: args.dns.dns_provider_key.clone(),
    });
    let domains: Arc<[String]> = args.dns.dns_domains.clone().into();
    let (hosts, hosts_seen) = watch::channel(None);
    let looks = role.clone();
    tasks.spawn_restarting("dns hosts", Duration::from_secs(1), move || {
        follow(
            context.clone(),
            readiness.clone(),
            looks.clone(),
            Arc::clone(&domains),
            hosts.clone(),
        )
    });
    let access = config_cluster.access;
    tasks.spawn_restarting("dns records", Duration::from_secs(1), move || {
        dns_endpoints::run(access.clone(), role.clone(), hosts_seen.clone(), Arc::clone(&settings))
    });
}

async fn follow(
    mut context: watch::Receiver<Option<Arc<PushContext>>>,
    mut readiness: watch::Receiver<Readiness>,
    mut role: watch::Receiver<WriterRole>,
    domains: Arc<[String]>,
    hosts: watch::Sender<Option<Arc<DnsHosts>>>,
) {
    // Before readiness, a missing Gateway or router may not have been read yet.
    if readiness.wait_for(|readiness| readiness.ready).await.is_err() {
        return;
    }
    loop {
        if role.wait_for(|role| *role == WriterRole::Writes).await.is_err() {
            return;
        }
        let current = context.borrow_and_update().clone();
        if let Some(current) = current {
            let domains = Arc::clone(&domains);
            let compute = move || dns_hosts(&current, &domains);
            let Ok(new) = tokio::task::spawn_blocking(compute).await else { return };
            publish_change(&hosts, Some(Arc::new(new)));
        }
        sleep(PACE).await;
        if context.changed().await.is_err() {
            return;
        }
    }
}
