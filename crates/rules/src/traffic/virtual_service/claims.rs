//! Claims of tokens in conditions on headers of a VirtualService: `@request.auth.claims.NAME`, or
//! each level in brackets (Istio, "JWT claim based routing").

use std::collections::BTreeMap;

use super::super::route::ClaimPath;

/// Prefix of names of claims, in any case. No header name begins like this.
const CLAIMS: &str = "@request.auth.claims";

/// Splits conditions into those on claims and those on headers.
pub(super) fn divided<V>(raw: BTreeMap<String, V>) -> (BTreeMap<String, V>, BTreeMap<String, V>) {
    raw.into_iter().partition(|(name, _)| name.starts_with('@'))
}

/// Parses the name of a claim. Levels are separated by dots, or each is in brackets and may contain
/// dots.
///
/// # Errors
/// The reason why it is not a claim.
pub(super) fn claim_path(name: &str) -> Result<ClaimPath, &'static str> {
    let form = "is not a claim such as @request.auth.claims.NAME or \
                @request.auth.claims[NAME][NAME]";
    let begins = name.get(..CLAIMS.len()).is_some_and(|start| start.eq_ignore_ascii_case(CLAIMS));
    let rest = name.get(CLAIMS.len()..).filter(|_| begins).ok_or(form)?;
    let bracketed = rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let levels: Vec<&str> = match (rest.strip_prefix('.'), bracketed) {
        (Some(rest), _) => rest.split('.').collect(),
        (None, Some(rest)) => rest.split("][").collect(),
        (None, None) => return Err(form),
    };
    let is_name = |level: &&str| !level.is_empty() && !level.contains(['[', ']']);
    if !levels.iter().all(is_name) {
        return Err(form);
    }
    Ok(levels.into_iter().map(Into::into).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_separated_by_dots_or_in_brackets() {
        let read = |name: &str| claim_path(name).map(|levels| levels.join("|"));
        assert_eq!(read("@request.auth.claims.group").as_deref(), Ok("group"));
        assert_eq!(read("@Request.Auth.Claims.Group").as_deref(), Ok("Group"));
        assert_eq!(read("@request.auth.claims.a.b").as_deref(), Ok("a|b"));
        assert_eq!(read("@request.auth.claims[a.b][c]").as_deref(), Ok("a.b|c"));
        assert_eq!(read("@request.auth.claims[https://x/roles]").as_deref(), Ok("https://x/roles"));
        let wrong = ["", ".", ".a.", "[]", "[a][]", "[a]b", "[a", "a", "[a].b", ".a[b]"];
        for end in wrong {
            assert!(read(&format!("@request.auth.claims{end}")).is_err(), "{end}");
        }
        assert!(read("@request.auth.audiences").is_err());
    }
}
