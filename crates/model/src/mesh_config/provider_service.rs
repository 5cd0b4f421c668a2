//! The service of an extension provider. (Istio's `MeshConfig.ExtensionProvider`.)

/// The service of a provider.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ProviderService {
    /// The namespace that it must be in, if configured.
    pub namespace: Option<String>,
    /// The hostname.
    pub host: String,
    /// The port; never 0.
    pub port: u16,
}

impl ProviderService {
    /// Parses `[NAMESPACE/]HOST` and a port.
    pub(super) fn read(service: &str, port: u32) -> Result<Self, String> {
        let (namespace, host) = match service.split('/').collect::<Vec<_>>()[..] {
            [host] => (None, host),
            [namespace, host] if !namespace.is_empty() => (Some(namespace.to_owned()), host),
            _ => return Err(format!("service {service:?} is not [NAMESPACE/]HOST")),
        };
        if host.is_empty() || host.contains('*') {
            return Err(format!("service {service:?} names no host"));
        }
        let number = u16::try_from(port).ok().filter(|port| *port > 0);
        let port = number.ok_or_else(|| format!("port {port}: expected 1 to 65535"))?;
        Ok(Self { namespace, host: host.to_ascii_lowercase(), port })
    }
}
