//! The objects that apply to the whole mesh by default.

use serde_json::Value;

use crate::ConfigReports;
use strait_mesh::push::PushContext;
use strait_model::{ISTIO_NETWORKING, ObjectKey};

/// The objects without `exportTo` that all namespaces see by default. The policy file can make them visible in their own
/// namespace only (`traffic.defaultVisibility`).
pub fn visible_by_default<'a>(
    context: &PushContext,
    reports: &'a ConfigReports,
) -> impl Iterator<Item = &'a ObjectKey> {
    let mesh = &context.mesh;
    let kinds = [
        ("VirtualService", &mesh.default_virtual_service_export_to),
        ("DestinationRule", &mesh.default_destination_rule_export_to),
        ("ServiceEntry", &mesh.default_service_export_to),
    ];
    let visible = kinds.into_iter().filter(|(_, default)| default.is_empty());
    let visible: Vec<_> = visible.map(|(kind, _)| kind).collect();
    let is_one_of =
        move |key: &ObjectKey| *key.group == *ISTIO_NETWORKING && visible.contains(&&*key.kind);
    let says_nothing = |object: &Value| {
        object["spec"]["exportTo"].as_array().is_none_or(|exported| exported.is_empty())
    };
    let objects = reports.objects.iter().filter(move |(key, _)| is_one_of(key));
    objects.filter(move |(_, object)| says_nothing(&object.to_value())).map(|(key, _)| key)
}
