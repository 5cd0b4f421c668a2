//! Normalization of paths as Envoy does it before rules are evaluated (`normalize_path`,
//! `merge_slashes`, `path_with_escaped_slashes_action`), so that an explanation for a path agrees
//! with the handling of the request.

use super::config::PathNormalization;

impl PathNormalization {
    /// Returns the effective normalization for a workload, given the mesh config's value. By
    /// default, slashes are merged if any rule matches paths.
    pub fn of(configured: Option<Self>, rules_match_paths: bool) -> Self {
        configured.unwrap_or(if rules_match_paths { Self::MergeSlashes } else { Self::Base })
    }

    /// Returns the normalized path, without its query, as rules see it.
    pub fn applied(self, path: &str) -> String {
        if self == Self::None || !path.starts_with('/') {
            return path.to_owned();
        }
        let unescaped = decoded(path, |byte| match byte {
            b'/' | b'\\' => self == Self::DecodeAndMergeSlashes,
            _ => false,
        });
        let plain = decoded(&unescaped, is_unreserved).replace('\\', "/");
        let resolved = without_dots(&plain);
        if self < Self::MergeSlashes {
            return resolved;
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
    use super::PathNormalization::{Base, DecodeAndMergeSlashes, MergeSlashes, None};

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
            ("/%", ["/%", "/%", "/%", "/%"]),
            ("/%C3%A4%20", ["/%C3%A4%20", "/%C3%A4%20", "/%C3%A4%20", "/%C3%A4%20"]),
            ("*", ["*", "*", "*", "*"]),
        ] {
            let found =
                [None, Base, MergeSlashes, DecodeAndMergeSlashes].map(|it| it.applied(path));
            assert_eq!(found, expected, "{path}");
        }
    }
}
