//! Raw form of a traffic policy, and reasons for its invalid parts.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde::Deserialize;

use super::client_tls::RawClientTls;
use super::{
    Algorithm, ConsistentHash, HashKey, HashTable, LoadBalancing, OutlierDetection, PolicyGroups,
    PoolLimits, ProxyProtocol, RetryBudget, RuleScope, TrafficPolicy, Tunnel, Warmup,
};
use crate::traffic::object::Reason;
use strait_base::codes;
use strait_model::is_header_name;
use strait_model::mesh_config::{
    LimitFault, LocalityFault, LocalitySetting, PlaceLabel, WrittenDuration, WrittenLocalities,
    WrittenOutliers, WrittenPool,
};

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(in crate::traffic) struct RawTrafficPolicy {
    load_balancer: Option<RawLoadBalancer>,
    connection_pool: Option<WrittenPool>,
    outlier_detection: Option<WrittenOutliers>,
    tls: Option<RawClientTls>,
    port_level_settings: Vec<RawPortPolicy>,
    tunnel: Option<RawTunnel>,
    proxy_protocol: Option<RawProxyProtocol>,
    retry_budget: Option<RawRetryBudget>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawPortPolicy {
    port: RawPort,
    load_balancer: Option<RawLoadBalancer>,
    connection_pool: Option<WrittenPool>,
    outlier_detection: Option<WrittenOutliers>,
    tls: Option<RawClientTls>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawPort {
    number: u32,
}

/// Groups of a service and of each port. They are explicit fields of both, because a flattened
/// struct would lose the path of invalid fields.
struct RawGroups {
    load_balancer: Option<RawLoadBalancer>,
    connection_pool: Option<WrittenPool>,
    outlier_detection: Option<WrittenOutliers>,
    tls: Option<RawClientTls>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawProxyProtocol {
    version: Option<ProxyProtocol>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawRetryBudget {
    percent: Option<f64>,
    min_retry_concurrency: Option<u32>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawTunnel {
    protocol: String,
    target_host: String,
    target_port: u32,
}

#[derive(Deserialize, Default, Clone, Copy)]
enum RawSimple {
    #[default]
    #[serde(rename = "UNSPECIFIED", alias = "LEAST_CONN", alias = "LEAST_REQUEST")]
    LeastRequest,
    #[serde(rename = "ROUND_ROBIN")]
    RoundRobin,
    #[serde(rename = "RANDOM")]
    Random,
    #[serde(rename = "PASSTHROUGH")]
    Passthrough,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawLoadBalancer {
    simple: Option<RawSimple>,
    consistent_hash: Option<RawConsistentHash>,
    locality_lb_setting: Option<WrittenLocalities>,
    warmup: Option<RawWarmup>,
    warmup_duration_secs: Option<WrittenDuration>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawConsistentHash {
    http_header_name: Option<String>,
    http_cookie: Option<RawCookie>,
    use_source_ip: Option<bool>,
    http_query_parameter_name: Option<String>,
    ring_hash: Option<RawRingHash>,
    maglev: Option<RawMaglev>,
    minimum_ring_size: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawCookie {
    name: String,
    path: String,
    ttl: Option<WrittenDuration>,
    attributes: Vec<RawAttribute>,
}

/// An attribute of a new cookie.
#[derive(Deserialize, Default)]
#[serde(default)]
struct RawAttribute {
    name: String,
    value: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawRingHash {
    minimum_ring_size: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawMaglev {
    table_size: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawWarmup {
    duration: WrittenDuration,
    minimum_percent: Option<f64>,
    aggression: Option<f64>,
}

/// Maximum number of entries of Envoy's ring.
const RING_MAX: u64 = 8 << 20;
/// Number of entries from which a ring causes a warning: Envoy 1.40 builds a ring of 1 Mi in 0.13
/// s, in its main thread.
const RING_LARGE: u64 = 1 << 20;
/// Maximum number of entries of Envoy's Maglev table.
const MAGLEV_MAX: u64 = 5_000_011;

impl TrafficPolicy {
    pub(in crate::traffic) fn read(
        raw: RawTrafficPolicy,
        path: &str,
        scope: RuleScope,
        reasons: &mut Vec<Reason>,
    ) -> Self {
        let RawTrafficPolicy { load_balancer, connection_pool, outlier_detection, tls, .. } = raw;
        let groups = RawGroups { load_balancer, connection_pool, outlier_detection, tls };
        let mut groups = groups.read(path, scope, reasons);
        groups.proxy_protocol =
            raw.proxy_protocol.map(|raw| raw.version.unwrap_or(ProxyProtocol::V1));
        groups.retry_budget = raw.retry_budget.and_then(|raw| raw.read(path, reasons));
        groups.tunnel = raw.tunnel.and_then(|raw| raw.read(path, reasons)).map(Arc::new);
        if groups.tunnel.is_some() && groups.proxy_protocol.is_some() {
            let text = "tunnel is set too and takes precedence";
            let path = format!("{path}.proxyProtocol");
            reasons.push(Reason::lost(&codes::TRAFFIC_REPLACED, path, text));
            groups.proxy_protocol = None;
        }
        let mut ports = BTreeMap::new();
        for (at, raw) in raw.port_level_settings.into_iter().enumerate() {
            let path = format!("{path}.portLevelSettings[{at}]");
            match u16::try_from(raw.port.number) {
                Ok(number) if number != 0 => {
                    let RawPortPolicy {
                        load_balancer,
                        connection_pool,
                        outlier_detection,
                        tls,
                        ..
                    } = raw;
                    let groups =
                        RawGroups { load_balancer, connection_pool, outlier_detection, tls };
                    if ports.contains_key(&number) {
                        let text = format!(
                            "port {number} has settings already, which take \
                                            precedence"
                        );
                        let path = format!("{path}.port.number");
                        reasons.push(Reason::lost(&codes::TRAFFIC_REPLACED, path, text));
                        continue;
                    }
                    ports.insert(number, groups.read(&path, scope, reasons));
                }
                _ => {
                    let text = format!(
                        "{} is not a valid port; the settings are left out",
                        raw.port.number
                    );
                    let path = format!("{path}.port.number");
                    reasons.push(Reason::lost(&codes::TRAFFIC_PORT, path, text));
                }
            }
        }
        let has_more = groups.proxy_protocol.is_some()
            || groups.retry_budget.is_some()
            || groups.tunnel.is_some();
        if !ports.is_empty() && has_more {
            let text = "proxyProtocol, retryBudget and tunnel apply to none of these ports: the \
                        settings of a port replace all settings of the service";
            let path = format!("{path}.portLevelSettings");
            reasons.push(Reason::warning(&codes::TRAFFIC_REPLACED, path, text));
        }
        Self { groups, ports: ports.into_iter().collect() }
    }
}

impl RawGroups {
    fn read(self, path: &str, scope: RuleScope, reasons: &mut Vec<Reason>) -> PolicyGroups {
        let under = |name: &str| format!("{path}.{name}");
        PolicyGroups {
            load_balancer: self
                .load_balancer
                .map(|raw| Arc::new(raw.read(&under("loadBalancer"), reasons))),
            connection_pool: self
                .connection_pool
                .map(|raw| Arc::new(pool_limits(raw, &under("connectionPool"), reasons))),
            outlier_detection: self
                .outlier_detection
                .map(|raw| Arc::new(outlier_detection(raw, &under("outlierDetection"), reasons))),
            tls: self.tls.map(|raw| Arc::new(raw.read(&under("tls"), scope, reasons))),
            proxy_protocol: None,
            retry_budget: None,
            tunnel: None,
        }
    }
}

impl RawTunnel {
    fn read(self, path: &str, reasons: &mut Vec<Reason>) -> Option<Tunnel> {
        let mut lost = |field: &str, fact: String| {
            let text = format!("{fact}; connections go to the service itself");
            let path = format!("{path}.tunnel.{field}");
            reasons.push(Reason::lost(&codes::TRAFFIC_VALUE, path, text));
            None
        };
        let by_post = match &*self.protocol.to_ascii_uppercase() {
            "" | "CONNECT" => false,
            "POST" => true,
            _ => {
                return lost(
                    "protocol",
                    format!("{:?} is neither CONNECT nor POST", self.protocol),
                );
            }
        };
        let host = match self.target_host.parse::<IpAddr>() {
            Ok(IpAddr::V6(address)) => format!("[{address}]"),
            // Envoy interprets % as the beginning of a variable.
            _ if is_host(&self.target_host) => self.target_host,
            _ => {
                let fact = format!("{:?} is neither a host name nor an address", self.target_host);
                return lost("targetHost", fact);
            }
        };
        match u16::try_from(self.target_port).ok().filter(|port| *port != 0) {
            Some(port) => Some(Tunnel { target: format!("{host}:{port}"), by_post }),
            None => lost("targetPort", format!("{} is not a valid port", self.target_port)),
        }
    }
}

fn is_host(text: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    !text.is_empty() && text.len() <= 253 && text.bytes().all(legal)
}

/// Returns whether a cookie attribute contains no character that ends the attribute or the header
/// line.
fn is_attribute(attribute: &RawAttribute) -> bool {
    let legal = |text: &str| !text.contains(|c: char| c.is_control() || c == ';');
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    !attribute.name.is_empty() && attribute.name.chars().all(is_token) && legal(&attribute.value)
}

impl RawRetryBudget {
    fn read(self, path: &str, reasons: &mut Vec<Reason>) -> Option<RetryBudget> {
        let percent = self.percent.unwrap_or(20.0);
        if !(0.0..=100.0).contains(&percent) {
            let text = format!("{percent} is not a percentage; the budget is left out");
            let path = format!("{path}.retryBudget.percent");
            reasons.push(Reason::lost(&codes::TRAFFIC_VALUE, path, text));
            return None;
        }
        Some(RetryBudget {
            percent_hundredths: (percent * 100.0).round() as u32,
            min_retry_concurrency: self.min_retry_concurrency.unwrap_or(3),
        })
    }
}

impl RawLoadBalancer {
    fn read(self, path: &str, reasons: &mut Vec<Reason>) -> LoadBalancing {
        let hash = self.consistent_hash.and_then(|raw| raw.read(path, reasons));
        let algorithm = match (hash, self.simple) {
            (Some(hash), simple) => {
                if simple.is_some() {
                    let text = "consistentHash is set too and takes precedence";
                    let path = format!("{path}.simple");
                    reasons.push(Reason::lost(&codes::TRAFFIC_REPLACED, path, text));
                }
                Algorithm::ConsistentHash(hash)
            }
            (None, Some(RawSimple::RoundRobin)) => Algorithm::RoundRobin,
            (None, Some(RawSimple::Random)) => Algorithm::Random,
            (None, Some(RawSimple::Passthrough)) => Algorithm::Passthrough,
            (None, Some(RawSimple::LeastRequest) | None) => Algorithm::LeastRequest,
        };
        if self.warmup.is_some() && self.warmup_duration_secs.is_some() {
            let text = "warmup is set too and takes precedence";
            let path = format!("{path}.warmupDurationSecs");
            reasons.push(Reason::lost(&codes::TRAFFIC_REPLACED, path, text));
        }
        let lasts = self.warmup_duration_secs.map(|WrittenDuration(duration)| Warmup {
            duration,
            minimum_percent: 10,
            aggression_milli: 1000,
        });
        let warmup = self.warmup.map(|raw| raw.read(path, reasons)).or(lasts);
        if warmup.as_ref().is_some_and(|warmup| warmup.duration.is_zero()) {
            let text = "has no duration above 0s: endpoints are not warmed up";
            reasons.push(Reason::warning(&codes::TRAFFIC_VALUE, format!("{path}.warmup"), text));
        }
        let warmup = warmup.filter(|warmup| !warmup.duration.is_zero()).filter(|_| {
            let has = matches!(algorithm, Algorithm::LeastRequest | Algorithm::RoundRobin);
            if !has {
                let text = "only LEAST_REQUEST and ROUND_ROBIN support it; it is left out";
                let path = format!("{path}.warmup");
                reasons.push(Reason::lost(&codes::TRAFFIC_VALUE, path, text));
            }
            has
        });
        let locality = self.locality_lb_setting.map(|written| {
            let (setting, faults) = written.read();
            reasons.extend(failover_without_effect(&setting, path));
            reasons.extend(faults.into_iter().map(|fault| {
                let (code, field, text) = match fault {
                    LocalityFault::Unsupported(field, text) => {
                        (&codes::TRAFFIC_UNSUPPORTED, field, text)
                    }
                    LocalityFault::Value(field, text) => (&codes::TRAFFIC_VALUE, field, text),
                    LocalityFault::Replaced(field, text) => (&codes::TRAFFIC_REPLACED, field, text),
                };
                Reason::lost(code, format!("{path}.localityLbSetting.{field}"), text)
            }));
            setting
        });
        LoadBalancing { algorithm, locality, warmup }
    }
}

/// Returns warnings for entries of `failover` that match nothing or that `failoverPriority`
/// overrides.
fn failover_without_effect(setting: &LocalitySetting, path: &str) -> Vec<Reason> {
    let is_region = |text: &str| !text.is_empty() && !text.contains(['/', '*']);
    let path = |at: usize| format!("{path}.localityLbSetting.failover[{at}]");
    let pairs = setting.failover.iter().enumerate();
    let mut reasons: Vec<_> = pairs
        .filter(|(_, (from, to))| !is_region(from) || !is_region(to))
        .map(|(at, (from, to))| {
            let text = format!(
                "from {from:?} to {to:?}: both must be names of regions, without \
                                zones or *; the entry matches nothing"
            );
            Reason::lost(&codes::TRAFFIC_UNSUPPORTED, path(at), text)
        })
        .collect();
    let by_region = |label: &PlaceLabel| matches!(label, PlaceLabel::Region(_));
    if !setting.failover.is_empty() && setting.failover_priority.iter().any(by_region) {
        let text = "failoverPriority compares regions too and takes precedence";
        reasons.push(Reason::warning(&codes::TRAFFIC_REPLACED, path(0), text));
    }
    reasons
}

impl RawConsistentHash {
    /// Reports properties and tables in addition to the ones that apply.
    fn note_alternatives(&self, path: &str, reasons: &mut Vec<Reason>) {
        let is_named = |name: &Option<String>| name.as_ref().is_some_and(|name| !name.is_empty());
        let keys = [
            ("httpHeaderName", is_named(&self.http_header_name)),
            ("httpCookie", self.http_cookie.as_ref().is_some_and(|one| !one.name.is_empty())),
            ("useSourceIp", self.use_source_ip == Some(true)),
            ("httpQueryParameterName", is_named(&self.http_query_parameter_name)),
        ];
        let tables = [("ringHash", self.ring_hash.is_some()), ("maglev", self.maglev.is_some())];
        let ring_size = self.ring_hash.as_ref().and_then(|ring| ring.minimum_ring_size);
        let sizes = [
            ("ringHash.minimumRingSize", ring_size.is_some()),
            ("maglev", self.ring_hash.is_none() && self.maglev.is_some()),
            ("minimumRingSize", self.minimum_ring_size.is_some()),
        ];
        for alternatives in [&keys[..], &tables, &sizes] {
            let mut set = alternatives.iter().filter(|(_, is_set)| *is_set);
            let Some((first, _)) = set.next() else { continue };
            reasons.extend(set.map(|(field, _)| {
                let text = format!("{first} is set too and takes precedence");
                Reason::lost(&codes::TRAFFIC_REPLACED, format!("{path}.{field}"), text)
            }));
        }
    }

    fn read(self, path: &str, reasons: &mut Vec<Reason>) -> Option<ConsistentHash> {
        let path = format!("{path}.consistentHash");
        self.note_alternatives(&path, reasons);
        let named = |name: Option<String>| name.filter(|name| !name.is_empty());
        let key = if let Some(name) = named(self.http_header_name) {
            if !is_header_name(name.strip_prefix(':').unwrap_or(&name)) {
                let text = format!("{name:?} is not a valid header; consistentHash is ignored");
                let path = format!("{path}.httpHeaderName");
                reasons.push(Reason::lost(&codes::TRAFFIC_VALUE, path, text));
                return None;
            }
            HashKey::Header(name)
        } else if let Some(cookie) = self.http_cookie.filter(|cookie| !cookie.name.is_empty()) {
            let mut attributes = Vec::new();
            for (at, attribute) in cookie.attributes.into_iter().enumerate() {
                if is_attribute(&attribute) {
                    attributes.push((attribute.name, attribute.value));
                    continue;
                }
                let text = format!(
                    "{:?}={:?} is not a valid cookie attribute; it is left out",
                    attribute.name, attribute.value
                );
                let path = format!("{path}.httpCookie.attributes[{at}]");
                reasons.push(Reason::lost(&codes::TRAFFIC_VALUE, path, text));
            }
            let RawCookie { name, path, ttl, .. } = cookie;
            HashKey::Cookie { name, path, ttl: ttl.map(|WrittenDuration(ttl)| ttl), attributes }
        } else if self.use_source_ip == Some(true) {
            HashKey::SourceIp
        } else if let Some(name) = named(self.http_query_parameter_name) {
            HashKey::QueryParameter(name)
        } else {
            let text = "it has no property to hash; consistentHash is ignored";
            reasons.push(Reason::lost(&codes::TRAFFIC_VALUE, path, text));
            return None;
        };
        let table = match (self.ring_hash, self.maglev) {
            (None, Some(maglev)) => {
                let size = maglev.table_size;
                let fits = |size: &u64| {
                    let fits = (2..=MAGLEV_MAX).contains(size) && is_prime(*size);
                    if !fits {
                        let text = format!(
                            "{size} is not a prime up to {MAGLEV_MAX}; Envoy's default size \
                             applies"
                        );
                        let path = format!("{path}.maglev.tableSize");
                        reasons.push(Reason::lost(&codes::TRAFFIC_VALUE, path, text));
                    }
                    fits
                };
                HashTable::Maglev(size.filter(fits))
            }
            (ring, _) => {
                let size = ring.and_then(|ring| ring.minimum_ring_size);
                let size = size.or(self.minimum_ring_size).filter(|size| *size != 0);
                let size = size.unwrap_or(1024);
                let warning = if size > RING_MAX {
                    Some(format!("{size} exceeds the maximum; {RING_MAX} applies"))
                } else {
                    (size > RING_LARGE).then(|| {
                        format!(
                            "each proxy rebuilds a ring of {size} entries whenever an endpoint is \
                             added or removed, and handles no requests meanwhile: a ring of \
                             {RING_LARGE} takes a tenth of a second, of {RING_MAX} more than one \
                             second"
                        )
                    })
                };
                reasons.extend(warning.map(|text| {
                    let path = format!("{path}.ringHash.minimumRingSize");
                    Reason::warning(&codes::TRAFFIC_VALUE, path, text)
                }));
                HashTable::Ring { minimum_size: size.min(RING_MAX) }
            }
        };
        Some(ConsistentHash { key, table })
    }
}

fn is_prime(number: u64) -> bool {
    number >= 2
        && (2..).take_while(|one| one * one <= number).all(|one| !number.is_multiple_of(one))
}

impl RawWarmup {
    fn read(self, path: &str, reasons: &mut Vec<Reason>) -> Warmup {
        let percent = self.minimum_percent.unwrap_or(10.0);
        let aggression = self.aggression.unwrap_or(1.0);
        let mut within = |value: f64, least: f64, most: f64, name: &str| {
            if !(least..=most).contains(&value) {
                let near = value.max(least).min(most);
                let text = format!("{value} is not from {least} to {most}; {near} applies");
                let path = format!("{path}.warmup.{name}");
                reasons.push(Reason::warning(&codes::TRAFFIC_VALUE, path, text));
                return near;
            }
            value
        };
        Warmup {
            duration: self.duration.0,
            minimum_percent: within(percent, 1.0, 100.0, "minimumPercent").round() as u32,
            aggression_milli: (within(aggression, 1.0, 1000.0, "aggression") * 1000.0) as u32,
        }
    }
}

/// Parses connection pool limits, and adds reasons for invalid ones.
pub(in crate::traffic) fn pool_limits(
    written: WrittenPool,
    path: &str,
    reasons: &mut Vec<Reason>,
) -> PoolLimits {
    let (limits, faults) = written.read();
    reasons.extend(faults.into_iter().map(|fault| fault_at(path, fault)));
    limits
}

fn outlier_detection(
    written: WrittenOutliers,
    path: &str,
    reasons: &mut Vec<Reason>,
) -> OutlierDetection {
    let (outliers, faults) = written.read();
    reasons.extend(faults.into_iter().map(|fault| fault_at(path, fault)));
    outliers
}

fn fault_at(path: &str, fault: LimitFault) -> Reason {
    let at = |field: &str| format!("{path}.{field}");
    match fault {
        LimitFault::Unsupported(field, text) => {
            Reason::lost(&codes::TRAFFIC_UNSUPPORTED, at(field), text)
        }
        LimitFault::Value(field, text) => Reason::lost(&codes::TRAFFIC_VALUE, at(field), text),
        LimitFault::Bounded(field, text) => Reason::warning(&codes::TRAFFIC_VALUE, at(field), text),
        LimitFault::Zero(field) => {
            let text = "the shortest allowed duration is 1ms; the default applies";
            Reason::warning(&codes::TRAFFIC_VALUE, at(field), text)
        }
    }
}
