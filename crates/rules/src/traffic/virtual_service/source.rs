//! Senders, gateways and delegates of a rule, by their full names.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::route::{MESH, SourceMatch};
use super::super::selection::selector;
use strait_model::{Namespace, WorkloadKey};

/// The object whose rules replace a rule.
pub type Delegate = WorkloadKey;

/// Returns the full name of a gateway: `NAMESPACE/NAME`, or [`MESH`]. Also accepts the older form
/// `NAME.NAMESPACE.svc.DOMAIN`.
pub(super) fn gateway_name(text: &str, own: &Namespace) -> Arc<str> {
    if text == MESH {
        return text.into();
    }
    match text.split_once('/') {
        Some((".", name)) => format!("{own}/{name}").into(),
        Some(_) => text.into(),
        None => match text.split_once('.').map(|(name, rest)| (name, rest.split('.').next())) {
            Some((name, Some(namespace))) => format!("{namespace}/{name}").into(),
            _ => format!("{own}/{text}").into(),
        },
    }
}

/// Parses the conditions on a sender.
pub(super) fn source(
    own: &Namespace,
    gateways: &[String],
    labels: &BTreeMap<String, String>,
    namespace: &str,
) -> SourceMatch {
    SourceMatch {
        gateways: gateways.iter().map(|name| gateway_name(name, own)).collect(),
        labels: selector(labels),
        namespace: Some(namespace).filter(|text| !text.is_empty()).map(Namespace::from),
    }
}
