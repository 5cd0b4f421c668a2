//! Hosts as rules name them: exact, `*.suffix`, or `*`. (docs/reference/traffic.md, "Names".)

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use strait_model::Hostname;

/// A host, or all hosts under a suffix. Always lower-case. Sorts from the most specific to the least: exact hosts first,
/// then longer suffixes before shorter, equal lengths by their text, `*` last.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// This host.
    Exact(Hostname),
    /// All hosts that end with this, which begins with a dot; for `*` it is empty.
    Under(Hostname),
}

/// Why a text is no host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHost {
    /// Nothing.
    #[error("is empty")]
    Empty,
    /// A `*` that isn't the whole first label.
    #[error("has a * that is not its whole first label")]
    Wildcard,
    /// A character that no DNS name has, or an empty label.
    #[error("is no DNS name")]
    Name,
}

impl HostPattern {
    /// All hosts.
    pub fn all() -> Self {
        Self::Under(Hostname::from(""))
    }

    /// Reads a host. A name without a dot is that of a service in `namespace`: it becomes
    /// `name.namespace.svc.domain`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str, namespace: &str, domain: &str) -> Result<Self, InvalidHost> {
        let read = Self::written(text)?;
        Ok(match read.exact() {
            Some(name) if is_short(name.as_str()) => {
                Self::Exact(format!("{name}.{namespace}.svc.{domain}").into())
            }
            _ => read,
        })
    }

    /// Reads a host that is a full name, with a dot or without.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn written(text: &str) -> Result<Self, InvalidHost> {
        if text.is_empty() {
            return Err(InvalidHost::Empty);
        }
        let text = text.to_ascii_lowercase();
        if text == "*" {
            return Ok(Self::all());
        }
        if let Some(suffix) = text.strip_prefix('*') {
            return match suffix.strip_prefix('.') {
                Some(name) if is_name(name) => Ok(Self::Under(suffix.into())),
                Some(name) if name.contains('*') => Err(InvalidHost::Wildcard),
                Some(_) => Err(InvalidHost::Name),
                None => Err(InvalidHost::Wildcard),
            };
        }
        if text.contains('*') {
            return Err(InvalidHost::Wildcard);
        }
        if text.parse::<std::net::IpAddr>().is_ok() {
            return Ok(Self::Exact(text.into()));
        }
        if !is_name(&text) {
            return Err(InvalidHost::Name);
        }
        Ok(Self::Exact(text.into()))
    }

    /// A service's own name, which may be a wildcard.
    pub fn of_service(hostname: &Hostname) -> Self {
        let name = hostname.as_str().to_ascii_lowercase();
        match name.strip_prefix('*') {
            Some(suffix) => Self::Under(suffix.into()),
            None => Self::Exact(name.into()),
        }
    }

    /// Whether `host` is one of these.
    pub fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exact(exact) => exact.as_str().eq_ignore_ascii_case(host),
            Self::Under(suffix) => {
                let suffix = suffix.as_str().as_bytes();
                let start = host.len().checked_sub(suffix.len());
                // `.x` itself is not under `*.x`.
                start.filter(|start| *start > 0).is_some_and(|start| {
                    host.as_bytes().get(start..).is_some_and(|end| end.eq_ignore_ascii_case(suffix))
                })
            }
        }
    }

    /// Whether all hosts of `other` are among these.
    pub fn contains(&self, other: &Self) -> bool {
        match (self, other) {
            (_, Self::Exact(host)) => self.matches(host.as_str()),
            (Self::Exact(_), Self::Under(_)) => false,
            (Self::Under(suffix), Self::Under(other)) => other.as_str().ends_with(suffix.as_str()),
        }
    }

    /// Whether some host may be one of both.
    pub fn meets(&self, other: &Self) -> bool {
        self.contains(other) || other.contains(self)
    }

    /// The hosts that are in both; of two patterns that meet that is one of them.
    pub fn narrower<'a>(&'a self, other: &'a Self) -> Option<&'a Self> {
        match (self.contains(other), other.contains(self)) {
            (true, _) => Some(other),
            (false, true) => Some(self),
            (false, false) => None,
        }
    }

    /// The host, where it is one.
    pub fn exact(&self) -> Option<&Hostname> {
        match self {
            Self::Exact(host) => Some(host),
            Self::Under(_) => None,
        }
    }

    /// How specific it is: smaller is more.
    fn rank(&self) -> (bool, std::cmp::Reverse<usize>) {
        match self {
            Self::Exact(_) => (false, std::cmp::Reverse(0)),
            Self::Under(suffix) => (true, std::cmp::Reverse(suffix.as_str().len())),
        }
    }

    fn reversed(&self) -> Vec<u8> {
        self.text().as_str().bytes().rev().collect()
    }

    fn text(&self) -> &Hostname {
        match self {
            Self::Exact(host) | Self::Under(host) => host,
        }
    }
}

/// Hosts, in which those that meet another one are found without comparing all.
#[derive(Debug)]
pub struct HostSet<'a> {
    /// By their text from its end to its beginning: all hosts under a suffix are neighbours.
    by_end: BTreeMap<Vec<u8>, &'a HostPattern>,
}

impl<'a> HostSet<'a> {
    /// Whether one of the hosts contains `host`.
    pub fn has_wider(&self, host: &HostPattern) -> bool {
        let text = host.reversed();
        let is_end = |length: &usize| match length.checked_sub(1) {
            None => true,
            Some(last) => *length == text.len() || text[last] == b'.',
        };
        let mut ends = (0..=text.len()).filter(is_end);
        ends.any(|length| {
            let found = self.by_end.get(&text[..length]);
            found.is_some_and(|found| found.contains(host))
        })
    }

    /// The hosts that `host` contains.
    pub fn within<'s>(&'s self, host: &HostPattern) -> impl Iterator<Item = &'a HostPattern> + 's {
        let (text, host) = (host.reversed(), host.clone());
        let from = self.by_end.range(text.clone()..);
        let ends = from.take_while(move |(end, _)| end.starts_with(&text));
        let is_exact = host.exact().is_some();
        let ends = ends.take(if is_exact { 1 } else { usize::MAX });
        ends.map(|(_, found)| *found).filter(move |found| host.contains(found))
    }

    /// The hosts that are in `host` and in one of these: see [`HostPattern::narrower`].
    pub fn common<'s>(
        &'s self,
        host: &'a HostPattern,
    ) -> impl Iterator<Item = &'a HostPattern> + 's {
        let own = self.has_wider(host).then_some(host);
        own.into_iter().chain(self.within(host))
    }
}

impl<'a> FromIterator<&'a HostPattern> for HostSet<'a> {
    fn from_iter<I: IntoIterator<Item = &'a HostPattern>>(hosts: I) -> Self {
        Self { by_end: hosts.into_iter().map(|host| (host.reversed(), host)).collect() }
    }
}

/// Whether it is a name without a dot, which a service may have.
fn is_short(name: &str) -> bool {
    !name.contains('.') && name.parse::<std::net::IpAddr>().is_err()
}

/// A DNS name: labels of letters, digits, `-` and `_`, at most 253 bytes.
fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(legal)
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

impl Ord for HostPattern {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.rank(), self.text()).cmp(&(other.rank(), other.text()))
    }
}

impl PartialOrd for HostPattern {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(host) => write!(f, "{host}"),
            Self::Under(suffix) => write!(f, "*{suffix}"),
        }
    }
}

/// The wildcards that hold a host, or all hosts of another wildcard, the narrowest first.
pub(super) fn wider(host: &HostPattern) -> impl Iterator<Item = HostPattern> {
    let (HostPattern::Exact(text) | HostPattern::Under(text)) = host;
    let text = text.as_str();
    let dots = text.match_indices('.').map(|(at, _)| at).filter(|at| *at != 0);
    dots.filter_map(|at| Some(HostPattern::Under(text.get(at..)?.into())))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn pattern(text: &str) -> HostPattern {
        HostPattern::parse(text, "shop", "cluster.local").unwrap()
    }

    #[test]
    fn a_name_without_a_dot_is_a_service_of_the_objects_namespace() {
        for (text, read) in [
            ("reviews", "reviews.shop.svc.cluster.local"),
            ("Reviews.Sales", "reviews.sales"),
            ("*", "*"),
            ("*.Com", "*.com"),
            ("10.0.0.1", "10.0.0.1"),
        ] {
            assert_eq!(pattern(text).to_string(), read);
        }
    }

    #[test]
    fn what_is_no_host_says_why() {
        for (text, why) in [
            ("", InvalidHost::Empty),
            ("a.*", InvalidHost::Wildcard),
            ("*a.b", InvalidHost::Wildcard),
            ("*.*.b", InvalidHost::Wildcard),
            ("a..b", InvalidHost::Name),
            ("a b", InvalidHost::Name),
            ("*.", InvalidHost::Name),
        ] {
            assert_eq!(HostPattern::parse(text, "shop", "d"), Err(why), "{text}");
        }
    }

    #[test]
    fn the_most_specific_comes_first() {
        let sorted = ["a.b.com", "b.com", "*.a.b.com", "*.b.com", "*.c.com", "*.com", "*"];
        let mut patterns: Vec<_> = sorted.iter().rev().map(|text| pattern(text)).collect();
        patterns.sort();
        assert_eq!(patterns.iter().map(ToString::to_string).collect::<Vec<_>>(), sorted);
    }

    #[test]
    fn a_wildcard_holds_what_is_under_it_and_not_its_own_suffix() {
        let under = pattern("*.b.com");
        assert!(under.matches("a.b.com") && under.matches("x.a.B.com"));
        assert!(!under.matches("b.com") && !under.matches("ab.com") && !under.matches(".b.com"));
        assert!(pattern("*").matches("b.com"));
    }

    #[test]
    fn two_patterns_meet_in_the_narrower() {
        let of = |a: &str, b: &str| pattern(a).narrower(&pattern(b)).map(ToString::to_string);
        assert_eq!(of("*.b.com", "a.b.com").as_deref(), Some("a.b.com"));
        assert_eq!(of("*.a.b.com", "*.b.com").as_deref(), Some("*.a.b.com"));
        assert_eq!(of("*", "*.b.com").as_deref(), Some("*.b.com"));
        assert_eq!(of("*.b.com", "*.c.com"), None);
        assert_eq!(of("a.com", "b.com"), None);
    }

    #[test]
    fn host_set_finds_what_comparing_all_hosts_finds() {
        let texts = ["a", "a.b", "c.a.b", "ca.b", "x.b", "b", "*.b", "*.a.b", "*.ca.b", "*"];
        let hosts = texts.map(|text| HostPattern::written(text).expect("a host"));
        for chosen in 0_u32..1 << hosts.len() {
            let is_chosen = |at: &usize| chosen & (1 << at) != 0;
            let own: Vec<_> = (0..hosts.len()).filter(is_chosen).map(|at| &hosts[at]).collect();
            let set: HostSet<'_> = own.iter().copied().collect();
            for host in &hosts {
                let common: BTreeSet<_> = set.common(host).collect();
                let compared = own.iter().filter_map(|one| host.narrower(one)).collect();
                assert_eq!(common, compared, "{host} among {own:?}");
                assert_eq!(set.has_wider(host), own.iter().any(|one| one.contains(host)));
            }
        }
    }
}
