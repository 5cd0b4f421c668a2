//! Why something changed: the objects behind a change.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use super::{ClusterId, ObjectKey};

/// How many objects one change names; of further ones only the number is known.
const NAMED_MAX: usize = 8;

/// An object that changed, or all of its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// The cluster that it is in; empty where it is in none that is known here.
    pub cluster: ClusterId,
    /// Its kind, as manifests have it.
    pub kind: Cow<'static, str>,
    /// Its namespace; empty for kinds without.
    pub namespace: Arc<str>,
    /// Its name; empty where all of its kind were read anew.
    pub name: Arc<str>,
}

impl Cause {
    /// An object of the mesh's own, whichever store it is in.
    pub fn of_object(kind: &'static str, key: &ObjectKey) -> Self {
        let (namespace, name) = (Arc::clone(&key.namespace), Arc::clone(&key.name));
        Self { cluster: ClusterId::default(), kind: Cow::Borrowed(kind), namespace, name }
    }

    /// Something that is in no namespace.
    pub fn named(cluster: ClusterId, kind: &'static str, name: impl Into<Arc<str>>) -> Self {
        Self { cluster, kind: Cow::Borrowed(kind), namespace: "".into(), name: name.into() }
    }
}

impl fmt::Display for Cause {
    /// `VirtualService shop/web of cluster east`, without parts that are empty.
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

/// The objects behind one change, in the order in which they came: the first few by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Causes {
    named: Vec<Cause>,
    more: usize,
}

impl Causes {
    /// Adds an object; one that is named already counts once.
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

    /// Adds those of another change.
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

    /// The same with so many more.
    #[must_use]
    pub fn and_more(mut self, more: usize) -> Self {
        self.more += more;
        self
    }

    /// Those that are named, at most eight.
    pub fn named_causes(&self) -> &[Cause] {
        &self.named
    }

    /// How many there were beside these. One that changed several times may count as often.
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
    fn the_first_eight_are_named_and_the_rest_counted() {
        let mut causes = Causes::default();
        (0..20).for_each(|number| causes.add(pod(number)));
        causes.add(pod(0));
        assert_eq!(causes.named_causes(), (0..8).map(pod).collect::<Vec<_>>());
        assert_eq!(causes.more(), 12);
        let mut all = Causes::from(pod(30));
        all.merge(causes);
        assert_eq!(all.named_causes().first(), Some(&pod(30)), "in the order they came");
        assert_eq!((all.named_causes().len(), all.more()), (8, 13));
        let mut none = Causes::default();
        none.merge(all.clone());
        assert_eq!(none, all);
    }
}
