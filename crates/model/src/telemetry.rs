//! Telemetry names of workloads, in the form that Istio's own filters read.

/// The endpoint metadata that proxies receive (`--endpoint-metadata`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EndpointMetadata {
    /// How to connect to the endpoint, shared by all endpoints with the same settings.
    #[default]
    Lean,
    /// Like Istio's control plane: how to connect to the endpoint, and its telemetry
    /// name.
    Full,
}

/// Returns `NAME;NAMESPACE;CANONICAL NAME;CANONICAL REVISION` of a workload whose controller has
/// the name `name`, as in Istio's telemetry; labels can override the parts. A revision of `latest`,
/// which is the default, is omitted. (Istio, "Telemetry labels": canonical service and revision.)
pub fn telemetry<'a>(
    name: &'a str,
    namespace: &str,
    label: impl Fn(&str) -> Option<&'a str>,
) -> String {
    let first = |names: &[&str]| {
        names.iter().find_map(|name| label(name).filter(|value| !value.is_empty()))
    };
    let name = first(&["service.istio.io/workload-name"]).unwrap_or(name);
    let canonical = ["service.istio.io/canonical-name", "app.kubernetes.io/name", "app"];
    let revision = ["service.istio.io/canonical-revision", "app.kubernetes.io/version", "version"];
    let canonical = first(&canonical).unwrap_or(name);
    let revision = first(&revision).filter(|revision| *revision != "latest").unwrap_or_default();
    format!("{name};{namespace};{canonical};{revision}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_override_the_telemetry_name_of_a_workload() {
        let cases: [(&[(&str, &str)], &str); 6] = [
            (&[], "web;shop;web;"),
            (&[("app", "cart"), ("version", "v2")], "web;shop;cart;v2"),
            (&[("app", "cart"), ("app.kubernetes.io/name", "kart")], "web;shop;kart;"),
            (&[("service.istio.io/canonical-name", "c"), ("app", "cart")], "web;shop;c;"),
            (&[("service.istio.io/canonical-revision", "latest")], "web;shop;web;"),
            (&[("service.istio.io/workload-name", "other"), ("app", "")], "other;shop;other;"),
        ];
        for (labels, expected) in cases {
            let label = |name: &str| labels.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
            assert_eq!(telemetry("web", "shop", label), expected);
        }
    }
}
