//! Equivalent trust domains, and expansion of principals to them.

use super::text::TextForm;

/// Trust domain that represents the mesh's own in policies.
const OWN: &str = TrustBundle::OWN;

/// The trust domains of the mesh: its own first, then its aliases.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TrustBundle(Vec<String>);

impl TrustBundle {
    /// Trust domain that represents the mesh's own in policies, whatever its name is.
    pub const OWN: &'static str = "cluster.local";

    /// Creates a bundle from the mesh's own trust domain and its aliases. Duplicates are dropped.
    pub fn new<'a>(domains: impl Iterator<Item = &'a str>) -> Self {
        let mut bundle = Vec::new();
        for domain in domains {
            if !bundle.iter().any(|known| known == domain) {
                bundle.push(domain.to_owned());
            }
        }
        Self(bundle)
    }

    /// Iterates over all trust domains.
    pub fn domains(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Calls `emit` with each name that a principal in a policy is equivalent to: the name itself,
    /// or the same name in each trust domain of the mesh. Names that are no whole SPIFFE ID are not
    /// expanded, except if `shorter`. `cluster.local` always represents the mesh, never a member's
    /// trust domain of that name.
    pub(super) fn each_principal(&self, name: &str, shorter: bool, mut emit: impl FnMut(&str)) {
        // Fast path: the name is in the only trust domain.
        let has_domain =
            |domain: &str| name.strip_prefix(domain).is_some_and(|rest| rest.starts_with('/'));
        if matches!(&self.0[..], [only] if has_domain(only)) {
            return emit(name);
        }
        let Some((domain, rest)) = name.split_once('/') else { return emit(name) };
        let points = domain == OWN && !self.domains().any(|one| one == OWN);
        let is_whole = || rest.split('/').count() == 4;
        if domain == "*" || !(points || shorter || is_whole()) {
            return emit(name);
        }
        let form = TextForm::read(domain);
        let covers = |candidate: &str| match form {
            TextForm::Present => true,
            TextForm::Exact(domain) => candidate == domain,
            TextForm::Prefix(prefix) => candidate.starts_with(prefix),
            TextForm::Suffix(suffix) => candidate.ends_with(suffix),
        };
        if !(points || self.domains().any(covers)) {
            return emit(name);
        }
        let stays = |one: &str| one == domain || matches!(form, TextForm::Suffix(_)) && covers(one);
        let mut has_stayed = false;
        for own_domain in self.domains() {
            if !stays(own_domain) {
                emit(&format!("{own_domain}/{rest}"));
            } else if !has_stayed {
                has_stayed = true;
                emit(name);
            }
        }
    }

    /// Returns the trust domains that are equivalent to a name.
    pub(super) fn same_as(&self, domain: &str) -> Vec<String> {
        if domain == OWN || self.domains().any(|one| one == domain) {
            return self.0.clone();
        }
        vec![domain.to_owned()]
    }
}
