//! Parts of an operator file that are valid and certainly have no effect, or not the expected one.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{MemberSources, ServerPattern};

impl MemberSources {
    /// Returns a remark about each part that is certainly a mistake, with its field.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = self.shared_objects();
        let lists = self.identities.iter().map(|one| ("identities", &one.name, &one.servers));
        let proxies = self.proxies.iter().map(|one| ("proxies", &one.name, &one.servers));
        for (list, name, servers) in lists.chain(proxies) {
            let unused = servers.iter().filter_map(never_matches);
            remarks.extend(unused.map(|fact| format!("{list}.{name}.servers: {fact}")));
        }
        for (at, entry) in self.access.iter().enumerate() {
            let earlier = self.access[..at].iter().position(|one| one.provider == entry.provider);
            remarks.extend(earlier.map(|earlier| {
                let provider = &entry.provider;
                format!("access[{at}]: is never used, because access[{earlier}] is also for provider {provider}")
            }));
        }
        remarks
    }

    /// Returns a remark about each source whose objects an earlier source of the same kind selects.
    fn shared_objects(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        for (at, source) in self.sources.iter().enumerate() {
            let (own, is_profile) = source.selection();
            let selects_same = |earlier: &&super::Source| {
                let (other, of_profiles) = earlier.selection();
                let selector = other.selector.as_str();
                of_profiles == is_profile
                    && earlier.placement().is_none()
                    && other.namespace == own.namespace
                    && (selector.is_empty() || selector == own.selector.as_str())
            };
            if let Some(earlier) = self.sources[..at].iter().find(selects_same) {
                let (name, other) = (&source.name, &earlier.name);
                remarks.push(format!(
                    "sources.{name}: selects no other objects than the earlier source {other}, which defines their members"
                ));
            }
        }
        remarks
    }
}

/// Returns why no server ever matches a pattern, if that is certain.
fn never_matches(pattern: &ServerPattern) -> Option<String> {
    let ServerPattern::Range(range) = pattern else { return None };
    let IpNet::V6(v6) = range else { return None };
    let IpAddr::V4(v4) = IpAddr::V6(v6.addr()).to_canonical() else { return None };
    let length = v6.prefix_len().checked_sub(96)?;
    Some(format!(
        "{range} matches no server, because IPv4 addresses are compared as such; write {v4}/{length}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_without_effect_are_reported_with_their_field() {
        let remarks = |rest: &str| {
            let text = format!("apiVersion: strait.dev/v1\nkind: MemberSources\n{rest}");
            MemberSources::parse(&text).expect("a valid file").remarks()
        };
        let source = |name: &str, kind: &str, rest: &str| {
            format!("{{name: {name}, {kind}: {{namespace: ns1{rest}}}, ids: ['*']}}")
        };
        let sources = |sources: &[String]| remarks(&format!("sources: [{}]", sources.join(", ")));
        let [a, b] = ["a", "b"].map(|name| source(name, "secrets", ", selector: x=y"));
        let expected = "sources.b: selects no other objects than the earlier source a, which defines their members";
        assert_eq!(sources(&[a.clone(), b.clone()]), [expected]);
        let all = source("a", "secrets", "");
        assert_eq!(sources(&[all, b]), [expected]);
        for other in [
            source("b", "secrets", ", selector: x=z"),
            source("b", "secrets", ""),
            source("b", "clusterProfiles", ", selector: x=y"),
        ] {
            assert_eq!(sources(&[a.clone(), other]), [""; 0]);
        }

        let proxies = "proxies: [{name: p, url: 'http://p.example:1', servers: ['::ffff:10.0.0.0/104', 'fd00::/8', 10.0.0.0/8]}]";
        assert_eq!(
            remarks(proxies),
            [
                "proxies.p.servers: ::ffff:10.0.0.0/104 matches no server, because IPv4 addresses are compared as such; write 10.0.0.0/8"
            ]
        );
        let access = "access: [{provider: p, identity: i}, {provider: q, identity: i}, {provider: p, identity: i}]\nidentities: [{name: i, google: {}}]";
        assert_eq!(
            remarks(access),
            ["access[2]: is never used, because access[0] is also for provider p"]
        );
    }
}
