//! What telemetry calls a workload, in the form that Istio's own filters read.

/// What proxies are sent about an endpoint besides how to reach it (`--endpoint-metadata`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EndpointMetadata {
    /// How to speak to it, once for all that are spoken to alike.
    #[default]
    Lean,
    /// What Istio's control plane says: how to speak to it, and what telemetry calls it.
    Full,
}

/// `NAME;NAMESPACE;CANONICAL NAME;CANONICAL REVISION` of a workload that a controller calls `name`, as
/// Istio's telemetry has them; a label may name it otherwise. A revision of `latest`, which is what none
/// means, is left out. (Istio, "Telemetry labels": canonical service and revision.)
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
    fn labels_say_what_telemetry_calls_a_workload() {
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
