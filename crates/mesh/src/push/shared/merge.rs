//! Merges the exports of one service, as KEP-1645 specifies it. Pure.

use std::time::{Duration, UNIX_EPOCH};

use strait_base::time::rfc3339_seconds;
use strait_model::{
    Disagreement, ExportedPort, ExportedService, ImportedService, IpFamily, Labels, RankedExport,
    RawService,
};

/// `internalTrafficPolicy` of a Service that does not set it.
const CLUSTER: &str = "Cluster";
/// The field with the address families.
const FAMILIES: &str = "ipFamilies";

/// Merges exports, the deciding one first. Returns `None` without exports.
pub(super) fn merge(exports: &[RankedExport]) -> Option<ImportedService> {
    let first = exports.first()?;
    let own = &first.service.service;
    let (ip_families, _) = families(exports);
    Some(ImportedService {
        decided_by: first.name.clone(),
        service: RawService { ports: ports(exports), ip_families, ..RawService::clone(own) },
        labels: first.service.labels.clone(),
        annotations: first.service.annotations.clone(),
    })
}

/// Returns the union of the ports, sorted by name. A port whose name is taken by another number is
/// dropped. A port whose protocol and number are taken keeps the older name and application
/// protocol.
fn ports(exports: &[RankedExport]) -> Vec<ExportedPort> {
    let mut union: Vec<ExportedPort> = Vec::new();
    for port in exports.iter().flat_map(|export| &export.service.service.ports) {
        let is_taken = |taken: &ExportedPort| {
            taken.name == port.name
                || (&taken.protocol, taken.number) == (&port.protocol, port.number)
        };
        if !union.iter().any(is_taken) {
            union.push(port.clone());
        }
    }
    union.sort();
    union
}

/// Returns the families that all exports have, in the order of the first export, and whether each
/// export has one of these families. An export without a common family is skipped.
fn families(exports: &[RankedExport]) -> (Vec<IpFamily>, Vec<bool>) {
    let mut common = exports.first().map(|one| one.service.service.ip_families.clone());
    let has_one = exports.iter().map(|export| {
        let own = &export.service.service.ip_families;
        let all = common.get_or_insert_default();
        if all.is_empty() {
            all.clone_from(own);
        }
        let shared: Vec<_> = all.iter().copied().filter(|family| own.contains(family)).collect();
        // An API server that states no families has the primary one.
        let is_reached = !shared.is_empty() || own.is_empty();
        if !shared.is_empty() {
            *all = shared;
        }
        is_reached
    });
    let has_one = has_one.collect();
    (common.unwrap_or_default(), has_one)
}

/// A field on which exports can disagree.
struct Field {
    reason: &'static str,
    name: &'static str,
    /// Whether the value of an export differs from the deciding one.
    differs: fn(&ExportedService, &ExportedService) -> bool,
    /// The value as text.
    value: fn(&ExportedService) -> String,
}

/// The fields in the order of the reasons. The address families depend on all exports and are
/// treated separately.
const FIELDS: [Field; 8] = [
    Field {
        reason: "PortConflict",
        name: "ports",
        differs: |own, first| sorted_ports(own) != sorted_ports(first),
        value: |own| listed(&sorted_ports(own)),
    },
    Field {
        reason: "TypeConflict",
        name: "type",
        differs: |own, first| own.service.headless != first.service.headless,
        value: |own| if own.service.headless { "Headless" } else { "ClusterSetIP" }.into(),
    },
    Field {
        reason: "SessionAffinityConflict",
        name: "sessionAffinity",
        differs: |own, first| own.service.sticky != first.service.sticky,
        value: |own| if own.service.sticky { "ClientIP" } else { "None" }.into(),
    },
    Field {
        reason: "SessionAffinityConfigConflict",
        name: "sessionAffinityConfig",
        // Without affinity on both sides there is nothing to configure.
        differs: |own, first| {
            let seconds = |one: &ExportedService| one.service.sticky_seconds;
            own.service.sticky && first.service.sticky && seconds(own) != seconds(first)
        },
        value: |own| match own.service.sticky_seconds {
            Some(seconds) => format!("{seconds} s"),
            None => "none".into(),
        },
    },
    Field {
        reason: "InternalTrafficPolicyConflict",
        name: "internalTrafficPolicy",
        differs: |own, first| internal_policy(own) != internal_policy(first),
        value: |own| internal_policy(own).to_owned(),
    },
    Field {
        reason: "TrafficDistributionConflict",
        name: "trafficDistribution",
        differs: |own, first| {
            own.service.traffic_distribution != first.service.traffic_distribution
        },
        value: |own| own.service.traffic_distribution.as_deref().unwrap_or("none").to_owned(),
    },
    Field {
        reason: "LabelsConflict",
        name: "exportedLabels",
        differs: |own, first| own.labels != first.labels,
        value: |own| pairs(&own.labels),
    },
    Field {
        reason: "AnnotationsConflict",
        name: "exportedAnnotations",
        differs: |own, first| own.annotations != first.annotations,
        value: |own| pairs(&own.annotations),
    },
];

/// Returns the fields on which exports disagree, from [`RankedExport::conflicts`]; `None` if they
/// agree. The deciding export comes first.
pub(super) fn disagreement(exports: &[RankedExport]) -> Option<Disagreement> {
    let first = exports.first()?;
    let (mut reasons, mut sentences, mut fields) = (Vec::new(), Vec::new(), Vec::new());
    let mut note = |reason: &'static str, name: &'static str, value: &dyn Fn() -> String| {
        let count = exports.iter().filter(|one| one.conflicts.contains(&name)).count();
        if count > 0 {
            reasons.push(reason);
            fields.push(name);
            sentences.push(sentence(name, count, exports.len(), &value(), first));
        }
    };
    for Field { reason, name, value, .. } in FIELDS {
        note(reason, name, &|| value(&first.service));
    }
    note("IPFamilyConflict", FAMILIES, &|| {
        let (common, _) = families(exports);
        common.into_iter().map(IpFamily::as_str).collect::<Vec<_>>().join(", ")
    });
    let reason = reasons.join(",");
    (!reason.is_empty()).then(|| Disagreement { reason, message: sentences.join("; "), fields })
}

/// Returns the fields in which each export differs from the first one.
pub(super) fn differing_fields(exports: &[RankedExport]) -> Vec<Vec<&'static str>> {
    let Some(first) = exports.first() else { return Vec::new() };
    let (_, has_family) = families(exports);
    let fields = exports.iter().zip(has_family).map(|(export, has_family)| {
        let differing = FIELDS.iter().filter(|one| (one.differs)(&export.service, &first.service));
        let names = differing.map(|field| field.name);
        names.chain((!has_family).then_some(FAMILIES)).collect()
    });
    fields.collect()
}

fn sentence(field: &str, count: usize, all: usize, value: &str, first: &RankedExport) -> String {
    let seconds = u64::try_from(first.age).ok().filter(|_| first.age != i64::MAX);
    let time = seconds.and_then(|age| UNIX_EPOCH.checked_add(Duration::from_secs(age)));
    let time = time.map_or_else(|| "time unknown".into(), rfc3339_seconds);
    let name = &first.name;
    format!(
        "{field}: {count} of {all} clusters disagree; using {value} from the oldest export, in cluster {name} ({time})"
    )
}

fn sorted_ports(own: &ExportedService) -> Vec<&ExportedPort> {
    let mut ports: Vec<_> = own.service.ports.iter().collect();
    ports.sort();
    ports
}

fn internal_policy(own: &ExportedService) -> &str {
    own.service.internal_traffic_policy.as_deref().unwrap_or(CLUSTER)
}

fn listed(ports: &[&ExportedPort]) -> String {
    let ports: Vec<_> = ports.iter().map(ToString::to_string).collect();
    if ports.is_empty() { "none".into() } else { ports.join(", ") }
}

fn pairs(labels: &Labels) -> String {
    let pairs: Vec<_> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    if pairs.is_empty() { "none".into() } else { pairs.join(", ") }
}
