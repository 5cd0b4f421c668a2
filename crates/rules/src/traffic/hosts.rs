//! Host patterns of rules: exact, `*.suffix`, or `*` (docs/reference/traffic.md, "Names").

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use strait_model::Hostname;

/// A host, or all hosts under a suffix. Always lower-case. Sorts from the most specific to the
/// least: exact hosts first, then longer suffixes before shorter ones, equal lengths by text, `*`
/// last.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// A single host.
    Exact(Hostname),
    /// All hosts with this suffix, which begins with a dot; empty for `*`.
    Under(Hostname),
}

/// Error: a text is not a host pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHost {
    /// The text is empty.
    #[error("is empty")]
    Empty,
    /// A `*` is not the whole first label.
    #[error("has a * that is not its whole first label")]
    Wildcard,
    /// The text contains an invalid character for a DNS name, or an empty label.
    #[error("is not a DNS name")]
    Name,
}

impl HostPattern {
    /// Returns the pattern for all hosts.
    pub fn all() -> Self {
        Self::Under(Hostname::from(""))
    }

    /// Parses a host pattern. A name without a dot is a service in `namespace`, and becomes
    /// `name.namespace.svc.domain`.
    ///
    /// # Errors
    /// The text is not a host pattern.
    pub fn parse(text: &str, namespace: &str, domain: &str) -> Result<Self, InvalidHost> {
        let read = Self::written(text)?;
        Ok(match read.exact() {
            Some(name) if is_short(name.as_str()) => {
                Self::Exact(format!("{name}.{namespace}.svc.{domain}").into())
            }
            _ => read,
        })
    }

    /// Parses a host pattern that is a full name, with or without a dot.
    ///
    /// # Errors
    /// The text is not a host pattern.
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

    /// Returns the pattern for the name of a service, which may be a wildcard.
    pub fn for_service(hostname: &Hostname) -> Self {
        let name = hostname.as_str().to_ascii_lowercase();
        match name.strip_prefix('*') {
            Some(suffix) => Self::Under(suffix.into()),
            None => Self::Exact(name.into()),
        }
    }

    /// Returns whether the pattern matches `host`.
    pub fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exact(exact) => exact.as_str().eq_ignore_ascii_case(host),
            Self::Under(suffix) => {
                let suffix = suffix.as_str().as_bytes();
                let start = host.len().checked_sub(suffix.len());
                // `*.x` does not match `.x`.
                start.filter(|start| *start > 0).is_some_and(|start| {
                    host.as_bytes().get(start..).is_some_and(|end| end.eq_ignore_ascii_case(suffix))
                })
            }
        }
    }

    /// Returns whether the pattern matches all hosts that `other` matches.
    pub fn contains(&self, other: &Self) -> bool {
        match (self, other) {
            (_, Self::Exact(host)) => self.matches(host.as_str()),
            (Self::Exact(_), Self::Under(_)) => false,
            (Self::Under(suffix), Self::Under(other)) => other.as_str().ends_with(suffix.as_str()),
        }
    }

    /// Returns whether any host matches both patterns.
    pub fn meets(&self, other: &Self) -> bool {
        self.contains(other) || other.contains(self)
    }

    /// Returns the pattern for the hosts that match both. If the patterns overlap, the result is
    /// the narrower pattern.
    pub fn narrower<'a>(&'a self, other: &'a Self) -> Option<&'a Self> {
        match (self.contains(other), other.contains(self)) {
            (true, _) => Some(other),
            (false, true) => Some(self),
            (false, false) => None,
        }
    }

    /// Returns the host; `None` for a wildcard.
    pub fn exact(&self) -> Option<&Hostname> {
        match self {
            Self::Exact(host) => Some(host),
            Self::Under(_) => None,
        }
    }

    /// Returns the specificity: smaller is more specific.
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

/// A set of host patterns that finds overlapping patterns without comparing all of them.
#[derive(Debug)]
pub struct HostSet<'a> {
    /// Patterns by their reversed text, so that all hosts under a suffix are adjacent.
    by_end: BTreeMap<Vec<u8>, &'a HostPattern>,
}

impl<'a> HostSet<'a> {
    /// Returns whether any of the patterns contains `host`.
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

    /// Iterates over the patterns that `host` contains.
    pub fn within<'s>(&'s self, host: &HostPattern) -> impl Iterator<Item = &'a HostPattern> + 's {
        let (text, host) = (host.reversed(), host.clone());
        let from = self.by_end.range(text.clone()..);
        let ends = from.take_while(move |(end, _)| end.starts_with(&text));
        let is_exact = host.exact().is_some();
        let ends = ends.take(if is_exact { 1 } else { usize::MAX });
        ends.map(|(_, found)| *found).filter(move |found| host.contains(found))
    }

    /// Iterates over the intersections of `host` with the patterns: see [`HostPattern::narrower`].
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

/// Returns whether a name has no dot and may be the short name of a service.
fn is_short(name: &str) -> bool {
    !name.contains('.') && name.parse::<std::net::IpAddr>().is_err()
}

/// Returns whether a text is a DNS name: labels of letters, digits, `-` and `_`, at most 253 bytes.
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

/// Iterates over the wildcards that contain a host or another wildcard, the narrowest first.
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
    fn name_without_a_dot_is_a_service_in_the_namespace_of_the_object() {
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
    fn invalid_host_has_a_reason() {
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
    fn patterns_sort_from_the_most_specific() {
        let sorted = ["a.b.com", "b.com", "*.a.b.com", "*.b.com", "*.c.com", "*.com", "*"];
        let mut patterns: Vec<_> = sorted.iter().rev().map(|text| pattern(text)).collect();
        patterns.sort();
        assert_eq!(patterns.iter().map(ToString::to_string).collect::<Vec<_>>(), sorted);
    }

    #[test]
    fn wildcard_does_not_match_its_own_suffix() {
        let under = pattern("*.b.com");
        assert!(under.matches("a.b.com") && under.matches("x.a.B.com"));
        assert!(!under.matches("b.com") && !under.matches("ab.com") && !under.matches(".b.com"));
        assert!(pattern("*").matches("b.com"));
    }

    #[test]
    fn intersection_of_two_patterns_is_the_narrower() {
        let narrower = |a: &str, b: &str| pattern(a).narrower(&pattern(b)).map(ToString::to_string);
        assert_eq!(narrower("*.b.com", "a.b.com").as_deref(), Some("a.b.com"));
        assert_eq!(narrower("*.a.b.com", "*.b.com").as_deref(), Some("*.a.b.com"));
        assert_eq!(narrower("*", "*.b.com").as_deref(), Some("*.b.com"));
        assert_eq!(narrower("*.b.com", "*.c.com"), None);
        assert_eq!(narrower("a.com", "b.com"), None);
    }

    #[test]
    fn host_set_finds_the_same_hosts_as_comparing_all() {
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
