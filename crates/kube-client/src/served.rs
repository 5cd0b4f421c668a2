//! In which version a server has a kind. Kinds outlive versions: what a reader knows in several is asked
//! for in the best of those that the server has.

use serde::Deserialize;

use super::{ApiClient, ApiError};

/// What a server says of an API group.
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
}

impl ApiClient {
    /// The first of `versions` in which the server has `plural` of `group`. Who may not ask which there are
    /// is given the last: the oldest, which servers have had for the longest.
    ///
    /// # Errors
    /// Those of asking; [`ApiError::NotFound`] where the server has none of them.
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
        for version in known(versions, &found) {
            match self.get::<ResourceList>(&format!("/apis/{group}/{version}")).await {
                Ok(list) if list.resources.iter().any(|one| one.name == plural) => {
                    return Ok(version);
                }
                // Other kinds of the group are in that version, or were a moment ago.
                Ok(_) | Err(ApiError::NotFound(_)) => {}
                Err(ApiError::Forbidden(_)) => return Ok(version),
                Err(error) => return Err(error),
            }
        }
        let served: Vec<_> = found.versions.iter().map(|one| one.version.as_str()).collect();
        let message = format!(
            "{plural}.{group} is served in none of {}; the group is, in {}",
            versions.join(", "),
            served.join(", ")
        );
        Err(ApiError::of_status(404, &message, None))
    }
}

/// Those of `versions` that the group has, the best first.
fn known(versions: &'static [&'static str], group: &ApiGroup) -> Vec<&'static str> {
    let is_served = |version: &&str| group.versions.iter().any(|one| one.version == *version);
    versions.iter().copied().filter(is_served).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_versions_that_a_server_has_the_best_known_ones_are_tried() {
        for (served, tried) in [
            (&["v1alpha1"][..], &["v1alpha1"][..]),
            (&["v1alpha1", "v1beta1"], &["v1beta1", "v1alpha1"]),
            (&["v1beta1"], &["v1beta1"]),
            (&["v1"], &[]),
            (&[], &[]),
        ] {
            let versions = served.iter().map(|one| GroupVersion { version: (*one).to_owned() });
            let group = ApiGroup { versions: versions.collect() };
            assert_eq!(known(&["v1beta1", "v1alpha1"], &group), tried, "{served:?}");
        }
    }
}
