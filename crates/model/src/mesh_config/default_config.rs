//! The supported part of the mesh config's `defaultConfig`, the settings of proxies.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::yaml::{InvalidYaml, YamlFields};
use crate::{ForwardedCertificate, GatewayTopology};

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct RawTopology {
    num_trusted_proxies: u32,
    forward_client_cert_details: Option<String>,
    proxy_protocol: Option<Map<String, Value>>,
}

/// Takes `gatewayTopology`, and adds all other fields to `ignored`, because they are not supported.
pub(super) fn take(
    fields: &mut YamlFields,
    ignored: &mut Vec<String>,
) -> Result<Option<GatewayTopology>, InvalidYaml> {
    let topology = fields.take_with("defaultConfig", |mut settings: Map<String, Value>| {
        let topology = settings.remove("gatewayTopology").filter(|value| !value.is_null());
        let topology = topology.map(read).transpose()?;
        let ignored_settings = settings.into_iter().filter(|(_, value)| !value.is_null());
        ignored.extend(ignored_settings.map(|(name, _)| format!("defaultConfig.{name}")));
        Ok(topology)
    })?;
    Ok(topology.flatten())
}

fn read(value: Value) -> Result<GatewayTopology, String> {
    let raw: RawTopology =
        serde_json::from_value(value).map_err(|error| format!("gatewayTopology: {error}"))?;
    let client_certificate = match raw.forward_client_cert_details.as_deref() {
        None => ForwardedCertificate::default(),
        Some(text) => ForwardedCertificate::named(text).ok_or_else(|| {
            let supported = ForwardedCertificate::ALL.map(ForwardedCertificate::as_str).join(", ");
            format!("gatewayTopology.forwardClientCertDetails: {text:?} is not one of {supported}")
        })?,
    };
    Ok(GatewayTopology {
        trusted_proxies: raw.num_trusted_proxies,
        client_certificate,
        proxy_protocol: raw.proxy_protocol.is_some(),
    })
}

pub(super) fn to_json(topology: Option<&GatewayTopology>) -> Value {
    json!({
        "gatewayTopology": topology.map(|topology| json!({
            "numTrustedProxies": topology.trusted_proxies,
            "forwardClientCertDetails": topology.client_certificate.as_str(),
            "proxyProtocol": topology.proxy_protocol.then(|| json!({})),
        })),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh_config::{Defaults, MeshConfig};

    #[test]
    fn gateway_topology_is_parsed_from_the_default_config() {
        let text = "defaultConfig: {tracing: {}, gatewayTopology: {numTrustedProxies: 2, \
                    forwardClientCertDetails: APPEND_FORWARD, proxyProtocol: {}}}";
        let config = MeshConfig::parse(text, &Defaults::default()).expect("valid");
        let expected = GatewayTopology {
            trusted_proxies: 2,
            client_certificate: ForwardedCertificate::AppendForward,
            proxy_protocol: true,
        };
        assert_eq!(config.gateway_topology, Some(expected));
        assert_eq!(config.ignored, ["defaultConfig.tracing"]);
        for (topology, fact) in [
            ("{forwardClientCertDetails: SOME}", "is not one of SANITIZE"),
            ("{numTrustedProxies: many}", "invalid type"),
            ("{numTrustedHops: 1}", "unknown field"),
        ] {
            let text = format!("defaultConfig: {{gatewayTopology: {topology}}}");
            let error = MeshConfig::parse(&text, &Defaults::default()).expect_err(fact);
            assert!(error.to_string().contains(fact), "{error}");
        }
    }
}
