//! The causes of a change: the objects that led to it.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use super::{ClusterId, ObjectKey};

/// The maximum number of named objects per change; further ones are only counted.
const NAMED_MAX: usize = 8;

/// An object that changed, or all objects of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// The cluster of the object; empty if it belongs to no known cluster.
    pub cluster: ClusterId,
    /// The kind, as in manifests.
    pub kind: Cow<'static, str>,
    /// The namespace; empty for kinds without one.
    pub namespace: Arc<str>,
    /// The name; empty if all objects of the kind were read again.
    pub name: Arc<str>,
}

impl Cause {
    /// Returns the cause for an object of the mesh configuration, in any store.
    pub fn of_object(kind: &'static str, key: &ObjectKey) -> Self {
        let (namespace, name) = (Arc::clone(&key.namespace), Arc::clone(&key.name));
        Self { cluster: ClusterId::default(), kind: Cow::Borrowed(kind), namespace, name }
    }

    /// Returns the cause for an object without a namespace.
    pub fn named(cluster: ClusterId, kind: &'static str, name: impl Into<Arc<str>>) -> Self {
        Self { cluster, kind: Cow::Borrowed(kind), namespace: "".into(), name: name.into() }
    }
}

impl fmt::Display for Cause {
    /// Formats it as `VirtualService shop/web of cluster east`, without empty parts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, kind, namespace, name } = self;
        write!(f, "{kind}")?;
        match (namespace.is_empty(), name.is_empty()) {
            (true, true) => {}
            (true, false) => write!(f, " {name}")?,
            (false, _) => write!(f, " {namespace}/{name}")?,
        }
        if cluster.is_empty() { Ok(()) } else { write!(f, " of cluster {cluster}") }
    }
}

/// The causes of one change, in order of arrival: the first ones by name, the others as a count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Causes {
    named: Vec<Cause>,
    more: usize,
}

impl Causes {
    /// Adds an object, unless it is already named.
    pub fn add(&mut self, cause: Cause) {
        if self.named.contains(&cause) {
            return;
        }
        if self.named.len() < NAMED_MAX {
            self.named.push(cause);
        } else {
            self.more += 1;
        }
    }

    /// Adds the causes of another change.
    pub fn merge(&mut self, other: Self) {
        if self.named.is_empty() {
            let more = self.more;
            *self = other;
            self.more += more;
            return;
        }
        other.named.into_iter().for_each(|cause| self.add(cause));
        self.more += other.more;
    }

    /// Adds `more` unnamed causes.
    #[must_use]
    pub fn and_more(mut self, more: usize) -> Self {
        self.more += more;
        self
    }

    /// Returns the named causes, at most eight.
    pub fn named_causes(&self) -> &[Cause] {
        &self.named
    }

    /// Returns the number of unnamed causes. An object that changed several times may be counted
    /// several times.
    pub fn more(&self) -> usize {
        self.more
    }
}

impl fmt::Display for Causes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, cause) in self.named.iter().enumerate() {
            write!(f, "{}{cause}", if at == 0 { "" } else { ", " })?;
        }
        match (self.named.is_empty(), self.more) {
            (true, 0) => write!(f, "the mesh"),
            (_, 0) => Ok(()),
            (_, more) => write!(f, " and {more} more"),
        }
    }
}

impl From<Cause> for Causes {
    fn from(cause: Cause) -> Self {
        Self { named: vec![cause], more: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(number: usize) -> Cause {
        Cause::named("east".into(), "Pod", format!("web-{number}"))
    }

    #[test]
    fn causes_are_displayed_with_their_kind_namespace_name_and_cluster() {
        let key = ObjectKey {
            kind: "VirtualService".into(),
            group: "networking.istio.io".into(),
            namespace: "shop".into(),
            name: "web".into(),
        };
        let mut causes = Causes::from(Cause::of_object("VirtualService", &key));
        causes.add(pod(1));
        assert_eq!(causes.to_string(), "VirtualService shop/web, Pod web-1 of cluster east");
        assert_eq!(causes.and_more(2).to_string().split(" and ").nth(1), Some("2 more"));
        assert_eq!(Causes::default().to_string(), "the mesh");
    }

    #[test]
    fn first_eight_causes_are_named_and_the_rest_counted() {
        let mut causes = Causes::default();
        (0..20).for_each(|number| causes.add(pod(number)));
        causes.add(pod(0));
        assert_eq!(causes.named_causes(), (0..8).map(pod).collect::<Vec<_>>());
        assert_eq!(causes.more(), 12);
        let mut all = Causes::from(pod(30));
        all.merge(causes);
        assert_eq!(all.named_causes().first(), Some(&pod(30)), "in the order they came");
        assert_eq!((all.named_causes().len(), all.more()), (8, 13));
        let mut no_causes = Causes::default();
        no_causes.merge(all.clone());
        assert_eq!(no_causes, all);
    }
}
