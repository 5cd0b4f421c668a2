//! `/debug/explain/import`: whether a cluster has the ServiceImport of a service.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde::Deserialize;

use super::failure::{AdminFailure, AdminResult, bad, pretty};
use super::imports;
use super::sources::Sources;
use strait_model::WorkloadKey;

#[derive(Deserialize)]
pub(super) struct ImportQuery {
    namespace: String,
    name: String,
    cluster: String,
}

/// Explains whether a cluster has the ServiceImport of a service.
pub(super) async fn explained(
    State(sources): State<Arc<Sources>>,
    query: Result<Query<ImportQuery>, QueryRejection>,
) -> AdminResult {
    let Query(query) = query.map_err(|_| bad("expected ?namespace=NS&name=NAME&cluster=ID"))?;
    let shared = Arc::clone(&sources.shared_services.borrow());
    let clusters = Arc::clone(&sources.clusters.borrow());
    let id = shared.member(&query.cluster).map_or(&*query.cluster, |(id, _)| id.as_str());
    let Some(status) = clusters.iter().find(|status| status.id == id) else {
        let text = format!("no cluster has the ID or the name {:?}", query.cluster);
        return Err(AdminFailure(StatusCode::NOT_FOUND, text));
    };
    let key = WorkloadKey::new(query.namespace.as_str(), query.name.as_str());
    Ok(pretty(StatusCode::OK, &imports::explanation(&shared, status, &clusters, &key)))
}
