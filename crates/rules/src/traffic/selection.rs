//! Selectors of rules, and the subset of them that matches a proxy.
//!
//! Few rules apply to only some pods of a namespace. Cache keys of resources therefore contain no
//! labels of proxies. Instead, the active selectors that match a proxy are computed once and become
//! part of the key; this set is usually empty.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use imbl::OrdMap;

use super::proxy_match::{ProxyFinder, ProxyMatch};
use strait_model::{Labels, Namespace, Proxy};

/// Labels that a rule requires of a proxy; never empty.
pub type RuleSelector = Arc<Labels>;

/// Parses the selector of an object; `None` if it matches everything.
pub(super) fn selector(raw: &BTreeMap<String, String>) -> Option<RuleSelector> {
    (!raw.is_empty()).then(|| Arc::new(labels(raw)))
}

/// Converts the labels of an object.
fn labels(raw: &BTreeMap<String, String>) -> Labels {
    raw.iter().map(|(key, value)| (key.as_str().into(), value.as_str().into())).collect()
}

/// The active selectors and proxy conditions that match a proxy, both sorted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selection {
    labels: Arc<[RuleSelector]>,
    proxies: Arc<[Arc<ProxyMatch>]>,
}

static NOTHING: LazyLock<Selection> =
    LazyLock::new(|| Selection { labels: Arc::new([]), proxies: Arc::new([]) });

impl Selection {
    /// Returns whether this selector matches.
    pub fn contains(&self, selector: &RuleSelector) -> bool {
        self.labels.binary_search(selector).is_ok()
    }

    /// Returns whether this proxy condition matches.
    pub fn matches_proxy(&self, wanted: &Arc<ProxyMatch>) -> bool {
        self.proxies.binary_search(wanted).is_ok()
    }

    /// Returns whether nothing matches.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.proxies.is_empty()
    }

    /// Adds the matching proxy conditions.
    #[must_use]
    pub(super) fn with_proxies(self, proxies: BTreeSet<Arc<ProxyMatch>>) -> Self {
        match proxies.is_empty() {
            true => self,
            false => Self { proxies: proxies.into_iter().collect(), ..self },
        }
    }
}

impl Default for Selection {
    fn default() -> Self {
        NOTHING.clone()
    }
}

/// The active selectors of all rules: selectors of a namespace's own rules, which match only its
/// proxies, and selectors for proxies of all namespaces (`sourceLabels`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selectors {
    /// Selectors, each with the number of rules that use it.
    own: OrdMap<Namespace, OrdMap<RuleSelector, usize>>,
    everywhere: OrdMap<RuleSelector, usize>,
    /// Proxy conditions, each for one namespace or for all.
    proxies: OrdMap<(Option<Namespace>, Arc<ProxyMatch>), UsedCondition>,
}

/// A compiled proxy condition, with the number of rules that use it.
#[derive(Debug, Clone)]
struct UsedCondition {
    finder: ProxyFinder,
    rules: usize,
}

impl PartialEq for UsedCondition {
    /// Ignores the finder, which depends only on the key.
    fn eq(&self, other: &Self) -> bool {
        self.rules == other.rules
    }
}

impl Eq for UsedCondition {}

impl Selectors {
    /// Returns whether there are no selectors and conditions.
    pub fn is_empty(&self) -> bool {
        self.own.is_empty() && self.everywhere.is_empty() && self.proxies.is_empty()
    }

    /// Returns the selectors and conditions that match a proxy with these labels.
    pub fn for_proxy(&self, proxy: &Proxy, labels: &Labels) -> Selection {
        let in_namespace = |namespace: Option<Namespace>| {
            let first = (namespace.clone(), Arc::<ProxyMatch>::default());
            let all = self.proxies.range(first..);
            all.take_while(move |((one, _), _)| *one == namespace)
        };
        let matching = in_namespace(None).chain(in_namespace(Some(proxy.namespace().clone())));
        let matching = matching.filter(|((_, wanted), one)| one.finder.finds(wanted, proxy));
        let matching = matching.map(|((_, wanted), _)| Arc::clone(wanted)).collect();
        self.selection(proxy.namespace(), labels).with_proxies(matching)
    }

    /// Adds a use of a proxy condition for one namespace or for all. Returns whether it is the
    /// first.
    pub fn add_condition(
        &mut self,
        namespace: Option<&Namespace>,
        wanted: Arc<ProxyMatch>,
    ) -> bool {
        let finder = wanted.finder();
        let condition = self.proxies.entry((namespace.cloned(), wanted));
        let condition = condition.or_insert(UsedCondition { finder, rules: 0 });
        condition.rules += 1;
        condition.rules == 1
    }

    /// Removes a use of a proxy condition. Returns whether it was the last.
    pub fn remove_condition(
        &mut self,
        namespace: Option<&Namespace>,
        wanted: &Arc<ProxyMatch>,
    ) -> bool {
        let key = (namespace.cloned(), Arc::clone(wanted));
        let Some(condition) = self.proxies.get_mut(&key) else { return false };
        condition.rules -= 1;
        let was_last = condition.rules == 0;
        if was_last {
            self.proxies.remove(&key);
        }
        was_last
    }

    /// Returns the selectors that match these labels in a namespace.
    pub fn selection(&self, namespace: &Namespace, labels: &Labels) -> Selection {
        // There may be thousands of selectors. Only selectors whose first label is among these
        // labels are compared.
        let beginning = |all| labels.iter().flat_map(move |label| beginning_with(all, label));
        let own = self.own.get(namespace).into_iter().flat_map(beginning);
        let all = own.chain(beginning(&self.everywhere));
        let is_selecting = |selector: &&RuleSelector| {
            selector.iter().all(|(key, value)| labels.get(key) == Some(value))
        };
        let selecting: BTreeSet<_> = all.filter(is_selecting).cloned().collect();
        if selecting.is_empty() {
            Selection::default()
        } else {
            Selection { labels: selecting.into_iter().collect(), ..Selection::default() }
        }
    }

    /// Adds a use of a selector for one namespace or for all (`None`). Returns whether it is the
    /// first.
    pub fn add(&mut self, namespace: Option<&Namespace>, selector: RuleSelector) -> bool {
        let all = match namespace {
            Some(namespace) => self.own.entry(namespace.clone()).or_default(),
            None => &mut self.everywhere,
        };
        let count = all.entry(selector).or_insert(0);
        *count += 1;
        *count == 1
    }

    /// Removes a use of a selector. Returns whether it was the last.
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

/// Iterates over the selectors whose first label is this one.
fn beginning_with<'a>(
    all: &'a OrdMap<RuleSelector, usize>,
    (key, value): (&'a Arc<str>, &'a Arc<str>),
) -> impl Iterator<Item = &'a RuleSelector> {
    // The selector with only this label sorts before selectors with more labels.
    let alone = Arc::new([(Arc::clone(key), Arc::clone(value))].into_iter().collect());
    let all = (!all.is_empty()).then(|| all.range::<_, RuleSelector>(alone..));
    let selectors = all.into_iter().flatten().map(|(selector, _)| selector);
    selectors.take_while(move |selector| selector.iter().next() == Some((key, value)))
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    #[test]
    fn only_active_selectors_match_in_their_namespace() {
        let mut selectors = Selectors::default();
        let v1 = Arc::new(labels(&[("version", "v1")]));
        let web = Arc::new(labels(&[("app", "web")]));
        let pod = labels(&[("app", "web"), ("version", "v1")]);
        assert!(selectors.selection(&"shop".into(), &pod).is_empty());
        assert!(selectors.add(Some(&"shop".into()), Arc::clone(&v1)));
        assert!(!selectors.add(Some(&"shop".into()), Arc::clone(&v1)));
        assert!(selectors.add(None, Arc::clone(&web)));
        let selection = selectors.selection(&"shop".into(), &pod);
        assert!(selection.contains(&v1) && selection.contains(&web));
        let elsewhere = selectors.selection(&"other".into(), &pod);
        assert!(!elsewhere.contains(&v1) && elsewhere.contains(&web));
        assert!(!selectors.remove(Some(&"shop".into()), &v1));
        assert!(selectors.remove(Some(&"shop".into()), &v1));
        assert!(!selectors.selection(&"shop".into(), &pod).contains(&v1));
    }

    #[test]
    fn selectors_found_by_their_first_label_equal_a_full_search() {
        let mut random = StdRng::seed_from_u64(1);
        let some = |random: &mut StdRng, least: usize| {
            let mut pairs = Vec::new();
            while pairs.len() < least || random.random_ratio(1, 2) {
                let key = ["a", "app", "b", "version"][random.random_range(0..4)];
                pairs.push((key, ["", "1", "2"][random.random_range(0..3)]));
            }
            pairs.iter().copied().collect::<BTreeMap<_, _>>()
        };
        let labels = |some: BTreeMap<&str, &str>| -> Labels {
            some.into_iter().map(|(key, value)| (key.into(), value.into())).collect()
        };
        for _ in 0..200 {
            let mut selectors = Selectors::default();
            let all: Vec<_> = (0..20).map(|_| Arc::new(labels(some(&mut random, 1)))).collect();
            for (at, selector) in all.iter().enumerate() {
                let namespace = (at % 2 == 0).then(|| "shop".into());
                selectors.add(namespace.as_ref(), Arc::clone(selector));
            }
            let pod = labels(some(&mut random, 0));
            let found = selectors.selection(&"shop".into(), &pod);
            for selector in &all {
                let selects = strait_model::labels_match(selector, &pod);
                assert_eq!(found.contains(selector), selects, "{selector:?} of {pod:?}");
            }
        }
    }
}
