//! The namespaces to which the reader of a cluster is limited.

use std::collections::BTreeSet;
use std::sync::Arc;

use strait_base::dns_name::is_dns_label;

/// The maximum number of namespaces that are read one by one. Each takes a watch for every kind.
const NAMESPACES_MAX: usize = 32;

/// The namespaces to which the reader of a cluster is limited, sorted. Empty for the whole cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReadNamespaces(Arc<[Arc<str>]>);

impl ReadNamespaces {
    /// Limits a reader to these namespaces.
    ///
    /// # Errors
    /// Returns the fact and the next step if the list is empty or too long, or if a name is invalid
    /// or repeated.
    pub fn of<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> Result<Self, String> {
        let mut known = BTreeSet::new();
        let mut count = 0;
        for name in names {
            let name = name.as_ref();
            count += 1;
            if !is_dns_label(name) {
                return Err(format!(
                    "{name:?} is not a namespace; write the name as 'kubectl get namespaces' shows it"
                ));
            }
            if !known.insert(Arc::<str>::from(name)) {
                return Err(format!("{name} is listed twice; remove one"));
            }
        }
        match count {
            0 => Err(format!(
                "lists no namespace; list 1 to {NAMESPACES_MAX}, or remove it to read the whole cluster"
            )),
            1..=NAMESPACES_MAX => Ok(Self(known.into_iter().collect())),
            _ => Err(format!(
                "lists {count} namespaces, and at most {NAMESPACES_MAX} can be read one by one; \
                 remove it and grant the reader cluster-wide rights"
            )),
        }
    }

    /// Whether the reader reads the whole cluster.
    pub fn is_whole(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the namespaces; none for the whole cluster.
    pub fn names(&self) -> &[Arc<str>] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_has_at_most_32_valid_unique_names() {
        let numbered = |count: usize| (0..count).map(|number| format!("n{number}"));
        let read = ReadNamespaces::of(["shop", "edge"]).expect("valid");
        let names: Vec<_> = read.names().iter().map(|name| &**name).collect();
        assert_eq!(names, ["edge", "shop"]);
        assert!(ReadNamespaces::of(numbered(32)).is_ok());
        assert!(ReadNamespaces::default().is_whole() && !read.is_whole());
        let long = "a".repeat(64);
        for (names, fact) in [
            (Vec::new(), "lists no namespace; list 1 to 32"),
            (numbered(33).collect(), "lists 33 namespaces, and at most 32"),
            (vec!["a".into(), "a".into()], "a is listed twice; remove one"),
            (vec!["*".into()], "\"*\" is not a namespace; write"),
            (vec!["-a".into()], "\"-a\" is not a namespace"),
            (vec!["a-".into()], "\"a-\" is not a namespace"),
            (vec![String::new()], "\"\" is not a namespace"),
            (vec!["Shop".into()], "\"Shop\" is not a namespace"),
            (vec!["a.b".into()], "\"a.b\" is not a namespace"),
            (vec![long], "is not a namespace"),
        ] {
            let found = ReadNamespaces::of(&names).expect_err(fact);
            assert!(found.contains(fact), "{names:?}: {found}");
        }
    }
}
