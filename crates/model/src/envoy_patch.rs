//! Detects security patches of Envoy that a proxy lacks and that access rules depend on, from the
//! version that it reports.

use super::Proxy;

/// Repeated headers are matched individually. An Envoy without the patch joins them with commas
/// first.
const REPEATED_HEADERS: &str = "CVE-2026-26308";

/// The first patched version of each minor release of Envoy; later minor releases include the
/// patch.
const PATCHED_ENVOYS: &[[u32; 3]] = &[[1, 34, 13], [1, 35, 9], [1, 36, 5], [1, 37, 1]];
/// The first patched versions of Istio's proxies. They are built from a patched Envoy and report
/// Envoy's next version.
const PATCHED_ISTIOS: &[[u32; 3]] = &[[1, 27, 8], [1, 28, 5], [1, 29, 1]];

impl Proxy {
    /// Returns the patches that the proxy lacks, as far as its reported version tells.
    pub fn missing_patches(&self) -> Vec<&'static str> {
        let by_istio = self
            .istio_version
            .as_deref()
            .and_then(numbers)
            .map(|version| lacks(version, PATCHED_ISTIOS));
        let by_envoy = || {
            self.envoy_release?;
            numbers(&self.envoy_version).map(|version| lacks(version, PATCHED_ENVOYS))
        };
        let lacks = by_istio.or_else(by_envoy).unwrap_or_default();
        lacks.then_some(REPEATED_HEADERS).into_iter().collect()
    }
}

/// Returns whether a version precedes the first patched version in the same minor release, or all
/// patched minor releases.
fn lacks(version: [u32; 3], patched: &[[u32; 3]]) -> bool {
    let line = patched.iter().find(|first| first[..2] == version[..2]);
    line.or(patched.first()).is_some_and(|first| version < *first)
}

/// Parses major, minor and patch of a version like `1.28.5` or `1.28.5-distroless`. Returns
/// `None` for a build that is no release.
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
            ("1.36.4", PATCHED_ENVOYS, Some(true)),
            ("1.36.5", PATCHED_ENVOYS, Some(false)),
            ("1.35.8", PATCHED_ENVOYS, Some(true)),
            ("1.37.0", PATCHED_ENVOYS, Some(true)),
            ("1.40.0", PATCHED_ENVOYS, Some(false)),
            ("1.33.19", PATCHED_ENVOYS, Some(true)),
            ("2.0.0", PATCHED_ENVOYS, Some(false)),
            ("1.28.4-distroless", PATCHED_ISTIOS, Some(true)),
            ("1.28.5", PATCHED_ISTIOS, Some(false)),
            ("1.30.0", PATCHED_ISTIOS, Some(false)),
            ("1.28-alpha.0f3c", PATCHED_ISTIOS, None),
            ("", PATCHED_ENVOYS, None),
            ("unknown", PATCHED_ENVOYS, None),
        ] {
            let found = numbers(version).map(|version| lacks(version, patched));
            assert_eq!(found, expected, "{version}");
        }
    }
}
