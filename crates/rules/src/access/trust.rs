//! Trust domains that mean the same, and what names of principals become by that.

use super::text::TextForm;

/// The trust domain that policies mean when they name none of their own: a pointer to the mesh's.
const OWN: &str = TrustBundle::OWN;

/// The trust domains of the mesh: its own first, then its aliases.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TrustBundle(Vec<String>);

impl TrustBundle {
    /// The trust domain by which policies mean the mesh's own, whatever that is.
    pub const OWN: &'static str = "cluster.local";

    /// The mesh's own, and its aliases.
    pub fn new<'a>(domains: impl Iterator<Item = &'a str>) -> Self {
        let mut bundle = Vec::new();
        for domain in domains {
            if !bundle.iter().any(|held| held == domain) {
                bundle.push(domain.to_owned());
            }
        }
        Self(bundle)
    }

    /// All of them.
    pub fn domains(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Says what a principal's name, as policies write it, stands for: itself, or the same in each trust domain of the mesh.
    /// Names that say less than a whole SPIFFE ID are left as they are, unless `shorter` ones count as well; but
    /// `cluster.local` always points to the mesh, and never to a member's trust domain that is called so.
    pub(super) fn each_principal(&self, name: &str, shorter: bool, mut say: impl FnMut(&str)) {
        // Nearly always: that of the only trust domain there is.
        let is_of =
            |domain: &str| name.strip_prefix(domain).is_some_and(|rest| rest.starts_with('/'));
        if matches!(&self.0[..], [only] if is_of(only)) {
            return say(name);
        }
        let Some((domain, rest)) = name.split_once('/') else { return say(name) };
        let points = domain == OWN && !self.domains().any(|one| one == OWN);
        let is_whole = || rest.split('/').count() == 4;
        if domain == "*" || !(points || shorter || is_whole()) {
            return say(name);
        }
        let form = TextForm::read(domain);
        let covers = |one: &str| match form {
            TextForm::Present => true,
            TextForm::Exact(domain) => one == domain,
            TextForm::Prefix(prefix) => one.starts_with(prefix),
            TextForm::Suffix(suffix) => one.ends_with(suffix),
        };
        if !(points || self.domains().any(covers)) {
            return say(name);
        }
        let stays = |one: &str| one == domain || matches!(form, TextForm::Suffix(_)) && covers(one);
        let mut has_stayed = false;
        for one in self.domains() {
            if !stays(one) {
                say(&format!("{one}/{rest}"));
            } else if !has_stayed {
                has_stayed = true;
                say(name);
            }
        }
    }

    /// What a trust domain's name stands for.
    pub(super) fn same_as(&self, domain: &str) -> Vec<String> {
        if domain == OWN || self.domains().any(|one| one == domain) {
            return self.0.clone();
        }
        vec![domain.to_owned()]
    }
}
