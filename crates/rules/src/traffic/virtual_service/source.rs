//! Who a rule is for, and what stands in its place, by full names.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::route::{MESH, SourceMatch};
use super::super::selection::selector;
use strait_model::{Namespace, WorkloadKey};

/// The object whose rules stand in the place of a rule.
pub type Delegate = WorkloadKey;

/// The full name of a gateway: `NAMESPACE/NAME`, or [`MESH`]. An older form is `NAME.NAMESPACE.svc.DOMAIN`.
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

/// What of a sender has to fit.
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
