//! Selects the version of a kind. Kinds outlive versions: a reader that supports several uses the
//! best version of the server.

use serde::Deserialize;

use super::{ApiClient, ApiError};

/// The versions of an API group on a server.
#[derive(Debug, Deserialize)]
struct ApiGroup {
    versions: Vec<GroupVersion>,
}

#[derive(Debug, Deserialize)]
struct GroupVersion {
    version: String,
}

/// The kinds of one version of a group.
#[derive(Debug, Deserialize)]
struct ResourceList {
    resources: Vec<ApiResource>,
}

#[derive(Debug, Deserialize)]
struct ApiResource {
    name: String,
    #[serde(default)]
    verbs: Vec<String>,
}

impl ApiResource {
    /// Whether the server is removing this kind: until its objects are deleted, it accepts no writes.
    fn is_being_removed(&self) -> bool {
        !self.verbs.is_empty() && self.verbs.iter().all(|verb| verb != "create")
    }
}

impl ApiClient {
    /// Returns the first of `versions` in which the server has `plural` of `group`, a kind with
    /// writable objects that the server is not removing. If the discovery is forbidden, returns the last one: the oldest, which servers have supported for
    /// the longest time.
    ///
    /// # Errors
    /// Fails if a request fails; [`ApiError::NotFound`] if the server has none of them.
    pub async fn served(
        &self,
        group: &str,
        versions: &'static [&'static str],
        plural: &str,
    ) -> Result<&'static str, ApiError> {
        let found = match self.get::<ApiGroup>(&format!("/apis/{group}")).await {
            Ok(found) => found,
            Err(ApiError::Forbidden(message)) => {
                return versions.last().copied().ok_or(ApiError::Forbidden(message));
            }
            Err(error) => return Err(error),
        };
        let is_there = |one: &ApiResource| one.name == plural && !one.is_being_removed();
        for version in served_versions(versions, &found) {
            match self.get::<ResourceList>(&format!("/apis/{group}/{version}")).await {
                Ok(list) if list.resources.iter().any(is_there) => return Ok(version),
                // The version has other kinds of the group, or had them a moment ago.
                Ok(_) | Err(ApiError::NotFound(_)) => {}
                Err(ApiError::Forbidden(_)) => return Ok(version),
                Err(error) => return Err(error),
            }
        }
        let served: Vec<_> = found.versions.iter().map(|one| one.version.as_str()).collect();
        let message = format!(
            "{plural}.{group} is not served in the supported versions ({}); the server has versions {} of the group",
            versions.join(", "),
            served.join(", ")
        );
        Err(ApiError::from_status(404, &message, None))
    }
}

/// Returns the `versions` that the group has, preferred first.
fn served_versions(versions: &'static [&'static str], group: &ApiGroup) -> Vec<&'static str> {
    let is_served = |version: &&str| group.versions.iter().any(|one| one.version == *version);
    versions.iter().copied().filter(is_served).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supported_versions_of_a_server_are_tried_in_order_of_preference() {
        for (served, tried) in [
            (&["v1alpha1"][..], &["v1alpha1"][..]),
            (&["v1alpha1", "v1beta1"], &["v1beta1", "v1alpha1"]),
            (&["v1beta1"], &["v1beta1"]),
            (&["v1"], &[]),
            (&[], &[]),
        ] {
            let versions = served.iter().map(|one| GroupVersion { version: (*one).to_owned() });
            let group = ApiGroup { versions: versions.collect() };
            assert_eq!(served_versions(&["v1beta1", "v1alpha1"], &group), tried, "{served:?}");
        }
    }

    #[test]
    fn kind_that_accepts_no_objects_is_being_removed() {
        for (verbs, expected) in [
            (&["create", "get", "list"][..], false),
            (&["delete", "get", "list"], true),
            (&[], false),
        ] {
            let verbs = verbs.iter().map(|verb| (*verb).to_owned()).collect();
            let kind = ApiResource { name: "serviceexports".to_owned(), verbs };
            assert_eq!(kind.is_being_removed(), expected, "{kind:?}");
        }
    }
}
