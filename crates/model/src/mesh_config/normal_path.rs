//! What a path comes to before rules look at it, as Envoy has it (`normalize_path`, `merge_slashes`,
//! `path_with_escaped_slashes_action`): so that a question about one is answered as the request is.

use super::config::PathNormalization;

impl PathNormalization {
    /// What holds for a workload where the mesh config says so much: with rules on paths slashes don't count twice.
    pub fn of(said: Option<Self>, looks_at_paths: bool) -> Self {
        said.unwrap_or(if looks_at_paths { Self::MergeSlashes } else { Self::Base })
    }

    /// The path, without its query, as rules see it.
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

/// What need not be escaped. (RFC 3986, 2.3)
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// With those of the escaped characters (`%XX`) as they are that are to be.
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

/// Without segments that stand for this one or the one above. (RFC 3986, 5.2.4)
fn without_dots(path: &str) -> String {
    let mut kept = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        if segment == ".." {
            kept.pop();
        }
        match segment {
            // What ends so ends with a slash.
            "." | ".." if segments.peek().is_none() => kept.push(""),
            "." | ".." => {}
            segment => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::PathNormalization::{Base, DecodeAndMergeSlashes, MergeSlashes, None};

    /// What real Envoys make of these paths is in `lds/tests/access_cases_envoy.rs`.
    #[test]
    fn a_path_is_what_proxies_make_of_it() {
        for (path, of) in [
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
            assert_eq!(found, of, "{path}");
        }
    }
}
