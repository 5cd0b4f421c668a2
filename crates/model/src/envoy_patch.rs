//! Which patches of Envoy a proxy lacks that rules of access count on, by the versions that it says.

use super::Proxy;

/// Headers that come twice are looked at one by one. Whoever lacks it joins them by commas before.
const REPEATED_HEADERS: &str = "CVE-2026-26308";

/// The first patched version of each line of Envoy's releases that has one; later lines have it from the start.
const OF_ENVOY: &[[u32; 3]] = &[[1, 34, 13], [1, 35, 9], [1, 36, 5], [1, 37, 1]];
/// The same of Istio's, whose proxies are built of an Envoy with patches and call themselves by its next version.
const OF_ISTIO: &[[u32; 3]] = &[[1, 27, 8], [1, 28, 5], [1, 29, 1]];

impl Proxy {
    /// The patches that it lacks, as far as it says which version it is.
    pub fn missing_patches(&self) -> Vec<&'static str> {
        let by_istio =
            self.istio_version.as_deref().and_then(numbers).map(|is| lacks(is, OF_ISTIO));
        let by_envoy = || {
            self.envoy_release?;
            numbers(&self.envoy_version).map(|is| lacks(is, OF_ENVOY))
        };
        let lacks = by_istio.or_else(by_envoy).unwrap_or_default();
        lacks.then_some(REPEATED_HEADERS).into_iter().collect()
    }
}

/// Whether a version is older than the first patched one of its line, or of a line before all that were patched.
fn lacks(version: [u32; 3], patched: &[[u32; 3]]) -> bool {
    let line = patched.iter().find(|first| first[..2] == version[..2]);
    line.or(patched.first()).is_some_and(|first| version < *first)
}

/// Major, minor and patch of a version such as `1.28.5` or `1.28.5-distroless`; `None` of a build that is no release.
fn numbers(version: &str) -> Option<[u32; 3]> {
    let mut parts = version.splitn(3, '.');
    let (major, minor) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let patch = parts.next()?.split(['-', '+']).next()?.parse().ok()?;
    Some([major, minor, patch])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_before_the_patch_of_their_line_lack_it() {
        for (version, patched, expected) in [
            ("1.36.4", OF_ENVOY, Some(true)),
            ("1.36.5", OF_ENVOY, Some(false)),
            ("1.35.8", OF_ENVOY, Some(true)),
            ("1.37.0", OF_ENVOY, Some(true)),
            ("1.40.0", OF_ENVOY, Some(false)),
            ("1.33.19", OF_ENVOY, Some(true)),
            ("2.0.0", OF_ENVOY, Some(false)),
            ("1.28.4-distroless", OF_ISTIO, Some(true)),
            ("1.28.5", OF_ISTIO, Some(false)),
            ("1.30.0", OF_ISTIO, Some(false)),
            ("1.28-alpha.0f3c", OF_ISTIO, None),
            ("", OF_ENVOY, None),
            ("unknown", OF_ENVOY, None),
        ] {
            let found = numbers(version).map(|version| lacks(version, patched));
            assert_eq!(found, expected, "{version}");
        }
    }
}
