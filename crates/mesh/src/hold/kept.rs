//! The recently active configurations that can be restored.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use strait_model::ConfigurationSnapshot;

/// The maximum number of configurations, including the active one; the oldest are dropped first.
const CONFIGURATIONS_MAX: usize = 100;
/// The maximum size in bytes of the configurations before the active one, without the parts that
/// they share.
const BYTES_MAX: usize = 32 << 20;
/// The minimum number of digits of a configuration's name in a request.
const DIGITS_MIN: usize = 6;

/// The configurations of recent versions of the mesh, in memory. A restart loses them, except for a
/// held one.
#[derive(Debug, Default)]
pub struct RetainedConfigurations(Mutex<RetainedTable>);

#[derive(Debug, Default)]
struct RetainedTable {
    configurations: VecDeque<RetainedConfiguration>,
    bytes: usize,
    /// The last published version.
    last: u64,
}

/// A configuration, and since when it was active.
#[derive(Debug, Clone)]
pub struct RetainedConfiguration {
    /// The first version of the mesh with this configuration.
    pub version: u64,
    /// When that version was published.
    pub at: SystemTime,
    /// The configuration.
    pub configuration: Arc<ConfigurationSnapshot>,
    /// The size in bytes without the parts that it shares with the next configuration.
    bytes: usize,
}

/// Why a configuration cannot be restored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownConfiguration {
    /// The requested version is in the future.
    #[error("version {requested} does not exist yet; the last version is {last}")]
    Later {
        /// The requested version.
        requested: u64,
        /// The last published version.
        last: u64,
    },
    /// The requested version is older than the oldest retained configuration.
    #[error(
        "the configuration of version {requested} is no longer retained; the oldest retained version is {oldest}"
    )]
    Earlier {
        /// The requested version.
        requested: u64,
        /// The oldest version with a retained configuration.
        oldest: u64,
    },
    /// No retained configuration has a name with this prefix.
    #[error(
        "no retained configuration is named {0:?}; a restart loses all configurations except a held one"
    )]
    NoName(String),
    /// Several retained configurations have names with this prefix.
    #[error("the names of several retained configurations start with {0:?}; enter more digits")]
    Several(String),
    /// The request is neither a version nor a name.
    #[error(
        "{0:?} is neither a version nor a configuration name of at least {DIGITS_MIN} hexadecimal digits"
    )]
    NoForm(String),
}

impl RetainedConfigurations {
    /// Records the configuration with which the newest version of the mesh was published.
    pub fn note(&self, version: u64, configuration: &Arc<ConfigurationSnapshot>) {
        let mut table = self.table();
        table.last = version;
        let last = table.configurations.back_mut();
        if last.as_ref().is_some_and(|last| Arc::ptr_eq(&last.configuration, configuration)) {
            return;
        }
        // The newest configuration is in use elsewhere, so its size does not count.
        let unshared_bytes = last.map_or(0, |last| {
            last.bytes = last.configuration.unshared_bytes(Some(configuration));
            last.bytes
        });
        table.bytes += unshared_bytes;
        table.configurations.push_back(RetainedConfiguration {
            version,
            at: SystemTime::now(),
            configuration: Arc::clone(configuration),
            bytes: 0,
        });
        while table.configurations.len() > CONFIGURATIONS_MAX || table.bytes > BYTES_MAX {
            let Some(oldest) = table.configurations.pop_front() else { break };
            table.bytes -= oldest.bytes;
        }
    }

    /// Returns all retained configurations, oldest first.
    pub fn all(&self) -> Vec<RetainedConfiguration> {
        self.table().configurations.iter().cloned().collect()
    }

    /// Returns the configuration of a version, or the configuration with this name or name prefix.
    ///
    /// # Errors
    /// If no retained configuration matches, or several do.
    pub fn find(&self, requested: &str) -> Result<RetainedConfiguration, UnknownConfiguration> {
        let table = self.table();
        let (configurations, last) = (table.configurations.clone(), table.last);
        drop(table);
        // Names that consist only of decimal digits are much longer than versions.
        if let Ok(version) = requested.parse::<u64>()
            && requested.len() < 2 * DIGITS_MIN
        {
            if version > last {
                return Err(UnknownConfiguration::Later { requested: version, last });
            }
            let found =
                configurations.iter().rev().find(|configuration| configuration.version <= version);
            let oldest = configurations.front().map_or(0, |configuration| configuration.version);
            let earlier = UnknownConfiguration::Earlier { requested: version, oldest };
            return found.cloned().ok_or(earlier);
        }
        let requested = requested.to_ascii_lowercase();
        if requested.len() < DIGITS_MIN || !requested.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(UnknownConfiguration::NoForm(requested));
        }
        let mut matching = configurations
            .iter()
            .rev()
            .filter(|configuration| configuration.configuration.id().starts_with(&requested));
        let Some(newest) = matching.next() else {
            return Err(UnknownConfiguration::NoName(requested));
        };
        match matching.any(|configuration| configuration.configuration != newest.configuration) {
            true => Err(UnknownConfiguration::Several(requested)),
            false => Ok(newest.clone()),
        }
    }

    /// A panic while the lock was held can't leave it half-changed, so poison is ignored.
    fn table(&self) -> MutexGuard<'_, RetainedTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;
    use strait_model::Collection;

    fn configuration(spec: &str) -> Arc<ConfigurationSnapshot> {
        let object = json!({
            "apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "spec": spec,
            "metadata": { "namespace": "shop", "name": "one" },
        });
        let traffic: Collection = [Arc::new(object)].into_iter().collect();
        Arc::new(ConfigurationSnapshot::new(traffic, Collection::default(), None, None))
    }

    #[test]
    fn version_is_resolved_to_the_configuration_active_then() {
        let retained = RetainedConfigurations::default();
        let [one, two] = ["one", "two"].map(configuration);
        for (version, configuration) in
            [(3, &one), (4, &one), (7, &two), (9, &configuration("one"))]
        {
            retained.note(version, configuration);
        }
        retained.note(12, &retained.all()[2].configuration);
        let versions: Vec<_> = retained.all().iter().map(|one| one.version).collect();
        assert_eq!(versions, [3, 7, 9], "versions with the same configuration share an entry");
        let at = |requested: &str| retained.find(requested).map(|one| one.configuration.id());
        for (requested, expected) in
            [("3", &one), ("6", &one), ("7", &two), ("8", &two), ("12", &one)]
        {
            assert_eq!(at(requested), Ok(expected.id()), "{requested}");
        }
        assert_eq!(at("13"), Err(UnknownConfiguration::Later { requested: 13, last: 12 }));
        assert_eq!(at("2"), Err(UnknownConfiguration::Earlier { requested: 2, oldest: 3 }));
        for digits in [6, 32] {
            assert_eq!(at(&two.id()[..digits]), Ok(two.id()));
        }
        assert_eq!(
            at(&one.id().to_uppercase()),
            Ok(one.id()),
            "equal configurations are not ambiguous"
        );
        assert_eq!(at("zzzzzz"), Err(UnknownConfiguration::NoForm("zzzzzz".into())));
        assert_eq!(at("abc"), Err(UnknownConfiguration::NoForm("abc".into())));
        let strange = "0".repeat(32);
        assert_eq!(at(&strange), Err(UnknownConfiguration::NoName(strange.clone())));
    }

    #[test]
    fn retained_configurations_are_bounded_in_number_and_bytes() {
        let retained = RetainedConfigurations::default();
        for version in 1..=(CONFIGURATIONS_MAX as u64 + 20) {
            retained.note(version, &configuration(&version.to_string()));
        }
        assert_eq!((retained.all().len(), retained.all()[0].version), (CONFIGURATIONS_MAX, 21));
        // Random letters, because repeated text would be compressed.
        let letter = |at: usize| b'a' + (xxh3_64(&at.to_le_bytes()) % 26) as u8;
        let large: String = (0..BYTES_MAX * 2 / 7).map(|at| char::from(letter(at))).collect();
        for version in 1000..1010 {
            retained.note(version, &configuration(&format!("{large}{version}")));
        }
        let versions: Vec<_> = retained.all().iter().map(|one| one.version).collect();
        assert_eq!(versions, [1006, 1007, 1008, 1009], "three besides the active one");
        assert!(retained.table().bytes <= BYTES_MAX);
        // An active configuration is stored even if it is larger than the limit.
        retained.note(2000, &configuration(&large.repeat(5)));
        retained.note(2001, &configuration("small"));
        let versions: Vec<_> = retained.all().iter().map(|one| one.version).collect();
        assert_eq!((versions, retained.table().bytes), (vec![2001], 0));
    }
}
