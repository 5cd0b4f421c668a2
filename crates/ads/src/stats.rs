//! Counters of the ADS server. Counters only increase. Values that can decrease are read from the
//! module that owns them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::refused_proxies::RefusedProxies;
use strait_base::lock::lock;
use strait_identity::IssueStats;
use strait_xds::resource::ResourceType;

/// Reason of failed handshakes with other replicas of the control plane. They are not failures of
/// proxies.
pub(super) const FAILED_REPLICA: &str = "replica";

/// The counters of one server.
#[derive(Debug, Default)]
pub struct Stats {
    /// TCP connections accepted.
    pub connections: AtomicU64,
    /// Connections on which a replica of this control plane was to authenticate itself, part of
    /// `connections`.
    pub replica_connections: AtomicU64,
    /// Errors while accepting a connection.
    pub accept_errors: AtomicU64,
    /// Discovery requests received.
    pub requests: AtomicU64,
    /// Number of times that a large amount was due for a stream at once, usually for a first sync.
    pub large_syncs: AtomicU64,
    /// Streams refused because of the proxy's claims.
    pub refused: AtomicU64,
    /// The proxies of the refused streams.
    pub refused_proxies: RefusedProxies,
    /// Streams whose resources were compared with newly generated ones.
    pub(super) audited: AtomicU64,
    /// Resources that differed between the two.
    pub(super) audit_mismatches: AtomicU64,
    /// The time from a change to the responses that contain it.
    pub propagation: Histogram,
    by_type: [ByType; ResourceType::SERVED.len()],
    handshakes_failed: Mutex<BTreeMap<&'static str, u64>>,
    callers_refused: Mutex<BTreeMap<&'static str, u64>>,
    /// Counters of certificate requests.
    pub(super) issued: Arc<IssueStats>,
    closed: Mutex<BTreeMap<&'static str, u64>>,
}

#[derive(Debug, Default)]
struct ByType {
    responses: AtomicU64,
    resources: AtomicU64,
    bytes: AtomicU64,
    nacks: AtomicU64,
}

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct Histogram {
    /// The number of durations in each bucket: the first of [`Self::BOUNDS`] that is not exceeded,
    /// or the last bucket if all are exceeded.
    counts: [AtomicU64; Self::BOUNDS.len() + 1],
    /// The last duration of each bucket, packed so that both parts belong to the same event: the
    /// version of the mesh in the upper 32 bits, the duration in microseconds in the lower 32 bits.
    /// 0 if the bucket is empty.
    last: [AtomicU64; Self::BOUNDS.len() + 1],
    micros: AtomicU64,
}

/// A single event in a bucket.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exemplar {
    /// The version of the mesh.
    pub version: u32,
    /// The duration in seconds.
    pub seconds: f64,
}

impl Histogram {
    /// The bounds of the buckets, in microseconds.
    const BOUNDS: [u64; 14] = [
        1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
        2_500_000, 5_000_000, 10_000_000, 30_000_000,
    ];

    /// Counts a duration for a version of the mesh.
    pub(super) fn observe(&self, took: Duration, version: u64) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = Self::BOUNDS.partition_point(|bound| *bound < micros);
        let (Some(count), Some(last)) = (self.counts.get(bucket), self.last.get(bucket)) else {
            return;
        };
        count.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
        // A duration above one hour, or a version above 2^32, is counted but not stored as an
        // exemplar.
        if let (Ok(version), Ok(micros)) = (u32::try_from(version), u32::try_from(micros)) {
            last.store((u64::from(version) << 32) | u64::from(micros), Ordering::Relaxed);
        }
    }

    /// Returns the last event of each bucket, with the bucket's bound in seconds.
    pub fn exemplars(&self) -> Vec<(Option<f64>, Exemplar)> {
        let bounds = Self::BOUNDS.iter().map(|bound| Some(seconds(*bound))).chain([None]);
        let last = self.last.iter().map(|last| last.load(Ordering::Relaxed));
        let known = bounds.zip(last).filter(|(_, last)| *last != 0);
        known
            .filter_map(|(bound, last)| {
                let version = u32::try_from(last >> 32).ok()?;
                let seconds = seconds(last & u64::from(u32::MAX));
                Some((bound, Exemplar { version, seconds }))
            })
            .collect()
    }

    /// Returns the number of durations up to each bound in seconds, and finally the total number.
    pub fn cumulative(&self) -> Vec<(Option<f64>, u64)> {
        let mut sum = 0;
        let bounds = Self::BOUNDS.iter().map(|bound| Some(seconds(*bound))).chain([None]);
        let counted = bounds.zip(&self.counts).map(|(bound, count)| {
            sum += count.load(Ordering::Relaxed);
            (bound, sum)
        });
        counted.collect()
    }

    /// Returns the sum of all durations, in seconds.
    pub fn sum(&self) -> f64 {
        seconds(self.micros.load(Ordering::Relaxed))
    }
}

fn seconds(micros: u64) -> f64 {
    Duration::from_micros(micros).as_secs_f64()
}

/// A family of counters, for `/metrics`.
pub struct Counter {
    /// The name.
    pub name: &'static str,
    /// The help text.
    pub help: &'static str,
    /// The labels and value of each counter.
    pub samples: Vec<(Vec<(&'static str, &'static str)>, u64)>,
}

impl Stats {
    /// Counts a response.
    pub(super) fn sent(&self, kind: ResourceType, resources: usize, bytes: usize) {
        if let Some(counts) = self.of(kind) {
            counts.responses.fetch_add(1, Ordering::Relaxed);
            counts.resources.fetch_add(resources as u64, Ordering::Relaxed);
            counts.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Counts a rejection by a proxy.
    pub(super) fn nacked(&self, kind: ResourceType) {
        if let Some(counts) = self.of(kind) {
            counts.nacks.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts the end of a stream, by reason.
    pub(super) fn closed(&self, reason: &'static str) {
        *lock(&self.closed).entry(reason).or_default() += 1;
    }

    /// Counts a call whose caller could not be identified, by error code.
    pub(super) fn caller_refused(&self, code: &'static str) {
        let mut refused = lock(&self.callers_refused);
        *refused.entry(code).or_default() += 1;
    }

    /// Counts a failed handshake, by reason.
    pub(super) fn handshake_failed(&self, reason: &'static str) {
        let mut failed = lock(&self.handshakes_failed);
        *failed.entry(reason).or_default() += 1;
    }

    /// Returns the number of failed handshakes, except with other replicas.
    pub fn handshakes_failed(&self) -> u64 {
        let failed = lock(&self.handshakes_failed);
        failed.iter().filter(|(reason, _)| **reason != FAILED_REPLICA).map(|(_, count)| count).sum()
    }

    fn of(&self, kind: ResourceType) -> Option<&ByType> {
        self.by_type.get(kind as usize)
    }

    /// Returns all counters.
    pub fn counters(&self) -> Vec<Counter> {
        // Prometheus sees no increase in a series that begins with its first failures.
        for reason in ["refused", "timeout"] {
            lock(&self.handshakes_failed).entry(reason).or_default();
        }
        let single = |name, help, counter: &AtomicU64| Counter {
            name,
            help,
            samples: vec![(Vec::new(), counter.load(Ordering::Relaxed))],
        };
        let typed = |name, help, pick: fn(&ByType) -> &AtomicU64| Counter {
            name,
            help,
            samples: ResourceType::SERVED
                .into_iter()
                .zip(&self.by_type)
                .map(|(kind, counts)| {
                    (vec![("type", kind.short())], pick(counts).load(Ordering::Relaxed))
                })
                .collect(),
        };
        let labelled = |name, help, label: &'static str, counts: BTreeMap<&'static str, u64>| {
            let sample = |(value, count)| (vec![(label, value)], count);
            Counter { name, help, samples: counts.into_iter().map(sample).collect() }
        };
        let reasons = |name, help, map: &Mutex<BTreeMap<&'static str, u64>>| Counter {
            name,
            help,
            samples: lock(map)
                .iter()
                .map(|(reason, count)| (vec![("reason", *reason)], *count))
                .collect(),
        };
        vec![
            single("strait_xds_connections_total", "Connections accepted.", &self.connections),
            single("strait_xds_accept_errors_total", "Failures to accept.", &self.accept_errors),
            reasons(
                "strait_xds_handshakes_failed_total",
                "TLS handshakes that failed, by reason.",
                &self.handshakes_failed,
            ),
            reasons(
                "strait_callers_refused_total",
                "Calls refused because the caller could not be authenticated, by code.",
                &self.callers_refused,
            ),
            single("strait_xds_requests_total", "Discovery requests taken.", &self.requests),
            single(
                "strait_xds_refused_total",
                "Streams refused because of the proxy's claims.",
                &self.refused,
            ),
            typed("strait_xds_pushes_total", "Responses sent.", |counts| &counts.responses),
            typed("strait_xds_resources_total", "Resources sent.", |counts| &counts.resources),
            typed("strait_xds_push_bytes_total", "Bytes of responses.", |counts| &counts.bytes),
            typed("strait_xds_nacks_total", "Responses refused by proxies.", |counts| {
                &counts.nacks
            }),
            reasons(
                "strait_xds_streams_closed_total",
                "Streams that ended, by reason.",
                &self.closed,
            ),
            single(
                "strait_certificate_requests_total",
                "Requests for certificates.",
                &self.issued.requested,
            ),
            single(
                "strait_certificates_issued_total",
                "Certificates issued to callers.",
                &self.issued.issued,
            ),
            single(
                "strait_certificate_requests_refused_total",
                "Requests for certificates that were refused.",
                &self.issued.refused,
            ),
            single(
                "strait_audit_streams_total",
                "Streams whose resources were compared with newly generated ones.",
                &self.audited,
            ),
            single(
                "strait_audit_mismatch_total",
                "Resources of which a proxy had a different version than the audit generated.",
                &self.audit_mismatches,
            ),
            // The names of Istio's metrics, for dashboards that were made for Istio.
            single(
                "citadel_server_csr_count",
                "Requests for certificates.",
                &self.issued.requested,
            ),
            single(
                "citadel_server_success_cert_issuance_count",
                "Certificates issued to callers.",
                &self.issued.issued,
            ),
            labelled(
                "citadel_server_authentication_failure_count",
                "Requests for certificates whose caller could not be authenticated, by code.",
                "type",
                self.issued.unauthenticated_by_code(),
            ),
            labelled(
                "citadel_server_csr_sign_err_count",
                "Requests for certificates that failed before they were signed, by reason.",
                "error",
                self.issued.failed_by_reason(),
            ),
        ]
    }
}
