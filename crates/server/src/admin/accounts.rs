//! Service accounts of the control plane's namespace whose tokens the admin API accepts.
//!
//! `strait --kube-context` requests such a token from the config cluster, so an operator needs only
//! rights in Kubernetes: to forward the admin port, and to request a token of one of the accounts.

use axum::http::{HeaderMap, header};
use tracing::debug;

use super::sources::Sources;

/// Audience of the tokens.
pub const AUDIENCE: &str = "strait-admin";
/// Account with the rights of the admin token.
pub const ADMIN_ACCOUNT: &str = "strait-admin";
/// Account with the rights of the reader token.
pub const VIEWER_ACCOUNT: &str = "strait-viewer";

/// Rights of a service account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AccountRights {
    /// The rights of the admin token.
    Admin,
    /// The rights of the reader token.
    Viewer,
}

/// Returns the header `Authorization`.
pub(super) fn authorization(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::AUTHORIZATION)?.to_str().ok()
}

/// Returns the rights of the account whose token a request carries.
pub(super) async fn rights(sources: &Sources, headers: &HeaderMap) -> Option<AccountRights> {
    let (scheme, token) = authorization(headers)?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    match sources.callers.system_account(token.trim(), AUDIENCE).await {
        Ok(account) if account == ADMIN_ACCOUNT => Some(AccountRights::Admin),
        Ok(account) if account == VIEWER_ACCOUNT => Some(AccountRights::Viewer),
        Ok(_) => None,
        Err(refusal) => {
            debug!(%refusal, "a token for the admin API was not accepted");
            None
        }
    }
}
