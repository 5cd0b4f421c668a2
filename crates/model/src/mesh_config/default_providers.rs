//! `defaultProviders` of the mesh config: the telemetry providers that apply without a Telemetry,
//! and invalid names among them.

use std::sync::Arc;

use serde::Deserialize;

use super::providers::{ExtensionProvider, ProviderKind};

/// The built-in provider of metrics: each proxy's own metrics. (Istio, `prometheus`.)
const OWN_METRICS: &str = "prometheus";

/// An invalid name. The other names still apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultProviderFault {
    /// The location, for example `defaultProviders.tracing[0]`.
    pub path: String,
    /// The problem.
    pub text: String,
}

/// The names, as they are written.
#[derive(Debug, Clone, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct DefaultProviderNames {
    pub(super) access_logging: Vec<Arc<str>>,
    pub(super) tracing: Vec<Arc<str>>,
    metrics: Vec<Arc<str>>,
}

impl DefaultProviderNames {
    /// Returns the invalid names, given the providers and the name of the built-in log.
    pub(super) fn faults(
        &self,
        providers: &[ExtensionProvider],
        own_log: &str,
    ) -> Vec<DefaultProviderFault> {
        let named = |name: &str| -> Vec<&ProviderKind> {
            let named = providers.iter().filter(|one| *one.name == *name);
            named.map(|one| &one.kind).collect()
        };
        let is_any = |name: &str, fits: fn(&&ProviderKind) -> bool| named(name).iter().any(fits);
        let lists = [
            ("accessLogging", &self.access_logging, "logs"),
            ("tracing", &self.tracing, "spans"),
            ("metrics", &self.metrics, "metrics"),
        ];
        let mut faults = Vec::new();
        for (list, names, accepted) in lists {
            for (at, name) in names.iter().enumerate() {
                let is_usable = match list {
                    "accessLogging" => {
                        **name == *own_log
                            || is_any(name, |one| matches!(one, ProviderKind::Log(_)))
                    }
                    "tracing" => is_any(name, |one| matches!(one, ProviderKind::Tracing(_))),
                    _ => **name == *OWN_METRICS || is_any(name, |_| true),
                };
                if is_usable {
                    continue;
                }
                let why = match named(name).first() {
                    None => "extensionProviders has no entry with this name".to_owned(),
                    Some(ProviderKind::Broken(fact)) => {
                        format!("its entry in extensionProviders is invalid: {fact}")
                    }
                    Some(_) => format!(
                        "the entry of extensionProviders with this name does not accept {accepted}"
                    ),
                };
                let path = format!("defaultProviders.{list}[{at}]");
                faults.push(DefaultProviderFault { path, text: format!("{name:?}: {why}") });
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use crate::mesh_config::{Defaults, MeshConfig};

    #[test]
    fn invalid_names_are_reported_with_their_location() {
        let text = "
            extensionProviders:
            - { name: z, zipkin: { service: z.ns, port: 9411 } }
            - { name: bad, zipkin: { service: z.ns } }
            - { name: file, envoyFileAccessLog: { path: /dev/stdout } }
            defaultProviders:
              accessLogging: [envoy, file, z, gone]
              tracing: [z, file, bad]
              metrics: [prometheus, file, stackdriver]
        ";
        let config = MeshConfig::parse(text, &Defaults::default()).expect("it is not refused");
        let faults: Vec<_> =
            config.default_provider_faults.iter().map(|one| (&*one.path, &*one.text)).collect();
        let [not_a_log, missing, not_a_tracer, (broken_path, broken_text), missing_metrics] =
            faults[..]
        else {
            panic!("{faults:?}")
        };
        assert_eq!(
            not_a_log,
            (
                "defaultProviders.accessLogging[2]",
                "\"z\": the entry of extensionProviders with this name does not accept logs"
            )
        );
        assert_eq!(
            missing,
            (
                "defaultProviders.accessLogging[3]",
                "\"gone\": extensionProviders has no entry with this name"
            )
        );
        assert_eq!(
            not_a_tracer,
            (
                "defaultProviders.tracing[1]",
                "\"file\": the entry of extensionProviders with this name does not accept spans"
            )
        );
        assert_eq!(broken_path, "defaultProviders.tracing[2]");
        assert!(broken_text.contains("port"), "{broken_text}");
        assert_eq!(
            missing_metrics,
            (
                "defaultProviders.metrics[2]",
                "\"stackdriver\": extensionProviders has no entry with this name"
            )
        );
        assert_eq!(config.default_tracing.as_deref(), Some("z"), "the rest counts");
    }
}
