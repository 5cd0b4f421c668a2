//! Detects security patches of Envoy that a proxy lacks and that access rules depend on, from the
//! version that it reports.

use super::Proxy;
use super::mesh_config::DotParameters;
use strait_base::codes::{self, Code};

/// Repeated headers are matched individually. An Envoy without the patch joins them with commas
/// first.
const REPEATED_HEADERS: &str = "CVE-2026-26308";

/// Parameters of dot segments in paths are removed. An Envoy without the patch does not resolve such
/// segments.
const DOT_PARAMETERS: &str = "CVE-2026-73551";

/// A security patch.
struct SecurityPatch {
    id: &'static str,
    /// The code of a proxy without it.
    code: &'static Code,
    /// The first patched version of each minor release of Envoy; later minor releases include the
    /// patch.
    envoys: &'static [[u32; 3]],
    /// The first patched versions of Istio's proxies. They are built from a patched Envoy and report
    /// Envoy's next version.
    istios: &'static [[u32; 3]],
}

const PATCHES: [SecurityPatch; 2] = [
    SecurityPatch {
        id: REPEATED_HEADERS,
        code: &codes::ENVOY_UNPATCHED,
        envoys: &[[1, 34, 13], [1, 35, 9], [1, 36, 5], [1, 37, 1]],
        istios: &[[1, 27, 8], [1, 28, 5], [1, 29, 1]],
    },
    SecurityPatch {
        id: DOT_PARAMETERS,
        code: &codes::ENVOY_DOT_SEGMENTS,
        envoys: &[[1, 36, 10], [1, 37, 6], [1, 38, 4], [1, 39, 1]],
        istios: &[[1, 29, 7], [1, 30, 4]],
    },
];

/// Returns the code of proxies without a patch. `None` if this version does not know the patch.
pub fn code_of_patch(id: &str) -> Option<&'static Code> {
    PATCHES.iter().find(|patch| patch.id == id).map(|patch| patch.code)
}

impl Proxy {
    /// Returns the patches that the proxy lacks, as far as its reported version tells.
    pub fn missing_patches(&self) -> Vec<&'static str> {
        let missing = PATCHES.iter().filter(|patch| self.lacks(patch));
        missing.map(|patch| patch.id).collect()
    }

    /// Returns how the proxy normalizes dot segments with parameters.
    pub fn dot_parameters(&self) -> DotParameters {
        match self.missing_patches().contains(&DOT_PARAMETERS) {
            true => DotParameters::Kept,
            false => DotParameters::Removed,
        }
    }

    fn lacks(&self, patch: &SecurityPatch) -> bool {
        let istio = self.istio_version.as_deref().and_then(numbers);
        let by_istio = istio.map(|version| lacks(version, patch.istios));
        let by_envoy = || {
            self.envoy_release?;
            numbers(&self.envoy_version).map(|version| lacks(version, patch.envoys))
        };
        by_istio.or_else(by_envoy).unwrap_or_default()
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
        let [headers, dots] = &PATCHES;
        for (version, patched, expected) in [
            ("1.36.9", dots.envoys, Some(true)),
            ("1.36.10", dots.envoys, Some(false)),
            ("1.35.20", dots.envoys, Some(true)),
            ("1.40.0", dots.envoys, Some(false)),
            ("1.28.9", dots.istios, Some(true)),
            ("1.30.4", dots.istios, Some(false)),
            ("1.36.4", headers.envoys, Some(true)),
            ("1.36.5", headers.envoys, Some(false)),
            ("1.35.8", headers.envoys, Some(true)),
            ("1.37.0", headers.envoys, Some(true)),
            ("1.40.0", headers.envoys, Some(false)),
            ("1.33.19", headers.envoys, Some(true)),
            ("2.0.0", headers.envoys, Some(false)),
            ("1.28.4-distroless", headers.istios, Some(true)),
            ("1.28.5", headers.istios, Some(false)),
            ("1.30.0", headers.istios, Some(false)),
            ("1.28-alpha.0f3c", headers.istios, None),
            ("", headers.envoys, None),
            ("unknown", headers.envoys, None),
        ] {
            let found = numbers(version).map(|version| lacks(version, patched));
            assert_eq!(found, expected, "{version}");
        }
    }
}
