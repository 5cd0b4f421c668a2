//! Which selectors of rules select a proxy.
//!
//! Rules that hold for some pods of a namespace only are few. The labels of proxies are no part of what resources are
//! kept by; instead it is found out once for a proxy which of the selectors in use select it, and that, which is
//! nearly always nothing, is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use imbl::OrdMap;

use crate::model::{Labels, Namespace};

/// Labels that a proxy must have, as a rule names them; never empty.
pub type RuleSelector = Arc<Labels>;

/// The selector that an object writes so; `None` for one that selects all.
pub(super) fn selector(raw: &BTreeMap<String, String>) -> Option<RuleSelector> {
    (!raw.is_empty()).then(|| Arc::new(labels(raw)))
}

/// Labels as an object writes them.
fn labels(raw: &BTreeMap<String, String>) -> Labels {
    raw.iter().map(|(key, value)| (key.as_str().into(), value.as_str().into())).collect()
}

/// Those of the selectors in use that select a proxy, sorted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selection(Arc<[RuleSelector]>);

static NOTHING: LazyLock<Selection> = LazyLock::new(|| Selection(Arc::new([])));

impl Selection {
    /// Whether this selector selects.
    pub fn contains(&self, selector: &RuleSelector) -> bool {
        self.0.binary_search(selector).is_ok()
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Default for Selection {
    fn default() -> Self {
        NOTHING.clone()
    }
}

/// The selectors in use: those of a namespace's own rules, which hold for its proxies alone, and those that rules of
/// any namespace have (`sourceLabels`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selectors {
    /// With the number of rules that have each.
    own: OrdMap<Namespace, OrdMap<RuleSelector, usize>>,
    everywhere: OrdMap<RuleSelector, usize>,
}

impl Selectors {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.own.is_empty() && self.everywhere.is_empty()
    }

    /// Those of what has the labels and is in that namespace.
    pub fn selection(&self, namespace: &Namespace, labels: &Labels) -> Selection {
        let own = self.own.get(namespace).into_iter().flat_map(|own| own.keys());
        let all = own.chain(self.everywhere.keys());
        let is_selecting = |selector: &&RuleSelector| {
            selector.iter().all(|(key, value)| labels.get(key) == Some(value))
        };
        let selecting: BTreeSet<_> = all.filter(is_selecting).cloned().collect();
        if selecting.is_empty() {
            Selection::default()
        } else {
            Selection(selecting.into_iter().collect())
        }
    }

    /// One more rule has it: of that namespace for itself, or of any for all (`None`). Whether it is new.
    pub fn add(&mut self, namespace: Option<&Namespace>, selector: RuleSelector) -> bool {
        let all = match namespace {
            Some(namespace) => self.own.entry(namespace.clone()).or_default(),
            None => &mut self.everywhere,
        };
        let count = all.entry(selector).or_insert(0);
        *count += 1;
        *count == 1
    }

    /// One rule less has it. Whether that was the last.
    pub fn remove(&mut self, namespace: Option<&Namespace>, selector: &RuleSelector) -> bool {
        let all = match namespace {
            Some(namespace) => self.own.get_mut(namespace),
            None => Some(&mut self.everywhere),
        };
        let Some(all) = all else { return false };
        let Some(count) = all.get_mut(selector) else { return false };
        *count -= 1;
        if *count != 0 {
            return false;
        }
        all.remove(selector);
        if let Some(namespace) = namespace
            && self.own.get(namespace).is_some_and(OrdMap::is_empty)
        {
            self.own.remove(namespace);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    #[test]
    fn only_selectors_in_use_count_and_only_where_they_hold() {
        let mut selectors = Selectors::default();
        let v1 = Arc::new(labels(&[("version", "v1")]));
        let web = Arc::new(labels(&[("app", "web")]));
        let pod = labels(&[("app", "web"), ("version", "v1")]);
        assert!(selectors.selection(&"shop".into(), &pod).is_empty());
        assert!(selectors.add(Some(&"shop".into()), Arc::clone(&v1)));
        assert!(!selectors.add(Some(&"shop".into()), Arc::clone(&v1)));
        assert!(selectors.add(None, Arc::clone(&web)));
        let of = selectors.selection(&"shop".into(), &pod);
        assert!(of.contains(&v1) && of.contains(&web));
        let elsewhere = selectors.selection(&"other".into(), &pod);
        assert!(!elsewhere.contains(&v1) && elsewhere.contains(&web));
        assert!(!selectors.remove(Some(&"shop".into()), &v1));
        assert!(selectors.remove(Some(&"shop".into()), &v1));
        assert!(!selectors.selection(&"shop".into(), &pod).contains(&v1));
    }
}
