//! Normalization of paths as Envoy does it before rules are evaluated (`normalize_path`,
//! `merge_slashes`, `path_with_escaped_slashes_action`), so that an explanation for a path agrees
//! with the handling of the request.

use super::config::PathNormalization;

/// How a proxy handles dot segments that carry parameters (`/..;a=1/`), before it resolves dot
/// segments. Escaped dots (`/%2e%2e;/`) remain in both cases. Applications may resolve all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DotParameters {
    /// They remain.
    Kept,
    /// Their parameters are removed (Envoy, CVE-2026-73551).
    Removed,
}

/// Regular expression of paths for which [`has_dot_parameter`] returns true.
pub const DOT_PARAMETER_REGEX: &str = r".*[/\\](\.|%2[eE]){1,2};.*";

/// Returns whether a path has a dot segment with a parameter, whose dots may be escaped.
pub fn has_dot_parameter(path: &str) -> bool {
    let mut segments = path.split(['/', '\\']).skip(1);
    segments.any(|segment| {
        let plain = decoded(segment, |byte| byte == b'.');
        plain.split_once(';').is_some_and(|(dots, _)| matches!(dots, "." | ".."))
    })
}

impl PathNormalization {
    /// Returns the effective normalization for a workload, given the mesh config's value. By
    /// default, slashes are merged if any rule matches paths.
    pub fn of(configured: Option<Self>, rules_match_paths: bool) -> Self {
        configured.unwrap_or(if rules_match_paths { Self::MergeSlashes } else { Self::Base })
    }

    /// Returns the normalized path, without its query, as rules see it.
    pub fn applied(self, path: &str, parameters: DotParameters) -> String {
        if self == Self::None || !path.starts_with('/') {
            return path.to_owned();
        }
        let unescaped = decoded(path, |byte| match byte {
            b'/' | b'\\' => self == Self::DecodeAndMergeSlashes,
            _ => false,
        });
        let unescaped = match parameters {
            DotParameters::Kept => unescaped,
            DotParameters::Removed => without_dot_parameters(&unescaped),
        };
        let plain = decoded(&unescaped, is_unreserved).replace('\\', "/");
        let resolved = escaped(&without_dots(&plain));
        if self < Self::MergeSlashes {
            return resolved;
        }
        // Envoy keeps the first and the last slash of a path that consists of slashes.
        if resolved.len() > 1 && resolved.bytes().all(|byte| byte == b'/') {
            return "//".to_owned();
        }
        let mut merged = String::with_capacity(resolved.len());
        for one in resolved.chars() {
            if one != '/' || !merged.ends_with('/') {
                merged.push(one);
            }
        }
        merged
    }
}

/// Returns whether a character needs no escape. (RFC 3986, 2.3)
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// Decodes those escaped characters (`%XX`) for which `is_to_be` returns true.
fn decoded(text: &str, is_to_be: impl Fn(u8) -> bool) -> String {
    let mut parts = text.split('%');
    let mut decoded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..2).and_then(|code| u8::from_str_radix(code, 16).ok());
        match code.filter(|byte| is_to_be(*byte)) {
            Some(byte) => {
                decoded.push(char::from(byte));
                decoded.push_str(&part[2..]);
            }
            None => {
                decoded.push('%');
                decoded.push_str(part);
            }
        }
    }
    decoded
}

/// Escapes the characters outside ASCII.
fn escaped(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for one in path.chars() {
        match one.is_ascii() {
            true => text.push(one),
            false => one
                .encode_utf8(&mut [0; 4])
                .bytes()
                .for_each(|byte| text.push_str(&format!("%{byte:02x}"))),
        }
    }
    text
}

/// Removes the parameters of the segments `.` and `..`.
fn without_dot_parameters(path: &str) -> String {
    let segments = path.split('/').map(|segment| match segment.split_once(';') {
        Some((dots @ ("." | ".."), _)) => dots,
        _ => segment,
    });
    segments.collect::<Vec<_>>().join("/")
}

/// Resolves the segments `.` and `..`. (RFC 3986, 5.2.4)
fn without_dots(path: &str) -> String {
    let mut resolved = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        if segment == ".." {
            resolved.pop();
        }
        match segment {
            // A path with this last segment ends with a slash.
            "." | ".." if segments.peek().is_none() => resolved.push(""),
            "." | ".." => {}
            segment => resolved.push(segment),
        }
    }
    format!("/{}", resolved.join("/"))
}

#[cfg(test)]
mod tests {
    use super::DotParameters::{Kept, Removed};
    use super::PathNormalization::{Base, DecodeAndMergeSlashes, MergeSlashes, None};
    use super::has_dot_parameter;

    /// `lds/tests/access_cases_envoy.rs` tests these paths with real Envoys.
    #[test]
    fn path_is_normalized_like_in_proxies() {
        for (path, expected) in [
            ("/x/../admin", ["/x/../admin", "/admin", "/admin", "/admin"]),
            ("/./a/.", ["/./a/.", "/a/", "/a/", "/a/"]),
            ("/../..", ["/../..", "/", "/", "/"]),
            ("/%61dmin", ["/%61dmin", "/admin", "/admin", "/admin"]),
            ("/%2e%2E/a", ["/%2e%2E/a", "/a", "/a", "/a"]),
            ("/\\admin", ["/\\admin", "//admin", "/admin", "/admin"]),
            ("//admin///x", ["//admin///x", "//admin///x", "/admin/x", "/admin/x"]),
            ("/%2Fa%5c..%2fb", ["/%2Fa%5c..%2fb", "/%2Fa%5c..%2fb", "/%2Fa%5c..%2fb", "/b"]),
            ("//", ["//", "//", "//", "//"]),
            ("/x/..//", ["/x/..//", "//", "//", "//"]),
            ("///.//", ["///.//", "////", "//", "//"]),
            ("//..", ["//..", "/", "/", "/"]),
            ("/%", ["/%", "/%", "/%", "/%"]),
            ("/%C3%A4%20", ["/%C3%A4%20", "/%C3%A4%20", "/%C3%A4%20", "/%C3%A4%20"]),
            ("/k\u{e4}se", ["/k\u{e4}se", "/k%c3%a4se", "/k%c3%a4se", "/k%c3%a4se"]),
            ("*", ["*", "*", "*", "*"]),
        ] {
            let found =
                [None, Base, MergeSlashes, DecodeAndMergeSlashes].map(|it| it.applied(path, Kept));
            assert_eq!(found, expected, "{path}");
        }
    }

    #[test]
    fn dot_segments_with_parameters_are_resolved_as_in_the_version_of_the_proxy() {
        for (path, kept, removed) in [
            ("/x/..;/admin", "/x/..;/admin", "/admin"),
            ("/x/..;a=1/.;b/admin", "/x/..;a=1/.;b/admin", "/admin"),
            ("/x/.;/admin", "/x/.;/admin", "/x/admin"),
            ("/x/..;", "/x/..;", "/"),
            ("/x/%2e%2e;/admin", "/x/..;/admin", "/x/..;/admin"),
        ] {
            assert_eq!([Kept, Removed].map(|it| MergeSlashes.applied(path, it)), [kept, removed]);
            assert!(has_dot_parameter(kept), "{path}");
            assert!(has_dot_parameter(path), "{path}");
        }
        for path in ["/x/...;/a", "/x/..a;/b", "/x;/..", "/a.;/", "..;/a"] {
            assert_eq!(None.applied(path, Removed), path);
            assert!(!has_dot_parameter(path), "{path}");
        }
    }
}
