//! `configSources` of the mesh config: the stores of configuration objects. Data only.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Value, json};

/// A store of configuration objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSource {
    /// The address of the store.
    pub place: StoreAddress,
    /// The TLS settings of the connection, if configured.
    pub tls: Option<SourceTls>,
}

/// The address of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreAddress {
    /// `k8s://`: the default store, which is the config cluster or `--config-dir`.
    Own,
    /// `fs:///PATH`: a directory of manifests.
    Directory(PathBuf),
    /// `xds://HOST:PORT`: a server of MCP over xDS.
    Xds(String),
}

/// The supported part of `tlsSettings`. Without them, the connection uses plain text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceTls {
    /// The file with the CAs that verify the server's certificate, PEM.
    pub ca_certificates: PathBuf,
    /// The files of the client certificate chain and its key, PEM, if configured.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The name that the certificate must have; `None` for the host of the address.
    pub server_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawSource {
    #[serde(default)]
    address: String,
    tls_settings: Option<RawTls>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawTls {
    mode: String,
    ca_certificates: String,
    client_certificate: String,
    private_key: String,
    sni: String,
    subject_alt_names: Vec<String>,
}

impl StoreSource {
    /// Parses the list; a duplicate store is an error.
    pub(super) fn read_all(sources: Vec<RawSource>) -> Result<Vec<Self>, String> {
        let mut read: Vec<Self> = Vec::with_capacity(sources.len());
        for source in sources {
            let source = source.read()?;
            if read.iter().any(|one| one.place == source.place) {
                return Err(format!("{} is listed twice", source.address()));
            }
            read.push(source);
        }
        Ok(read)
    }

    /// Returns the address, as written.
    pub fn address(&self) -> String {
        match &self.place {
            StoreAddress::Own => "k8s://".to_owned(),
            StoreAddress::Directory(path) => format!("fs://{}", path.display()),
            StoreAddress::Xds(server) => format!("xds://{server}"),
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let mut source = json!({"address": self.address()});
        if let Some(SourceTls { ca_certificates, client, server_name }) = &self.tls {
            source["tlsSettings"] = json!({
                "mode": if client.is_some() { "MUTUAL" } else { "SIMPLE" },
                "caCertificates": ca_certificates,
                "sni": server_name.clone().unwrap_or_default(),
            });
            if let Some((certificate, key)) = client {
                source["tlsSettings"]["clientCertificate"] = json!(certificate);
                source["tlsSettings"]["privateKey"] = json!(key);
            }
        }
        source
    }
}

impl RawSource {
    fn read(self) -> Result<StoreSource, String> {
        let address = &self.address;
        let wrong = || format!("expected k8s://, fs:///PATH or xds://HOST:PORT, found {address:?}");
        let (scheme, rest) = address.split_once("://").ok_or_else(wrong)?;
        let place = match scheme {
            "k8s" if rest.trim_end_matches('/').is_empty() => StoreAddress::Own,
            "fs" if rest.starts_with('/') => StoreAddress::Directory(PathBuf::from(rest)),
            "xds" => {
                let server = rest.trim_end_matches('/');
                let authority: http::uri::Authority = server.parse().map_err(|_| wrong())?;
                if authority.port_u16().is_none() || server.contains('@') {
                    return Err(wrong());
                }
                StoreAddress::Xds(server.to_owned())
            }
            _ => return Err(wrong()),
        };
        let tls = self.tls_settings.map(RawTls::read).transpose()?.flatten();
        Ok(StoreSource { place, tls })
    }
}

impl RawTls {
    fn read(self) -> Result<Option<SourceTls>, String> {
        let mutual = match self.mode.as_str() {
            "" | "DISABLE" => return Ok(None),
            "SIMPLE" => false,
            "MUTUAL" => true,
            other => {
                return Err(format!(
                    "tlsSettings.mode may be DISABLE, SIMPLE or MUTUAL, not {other:?}"
                ));
            }
        };
        let file = |text: &str, field: &str| match text {
            "" => Err(format!("tlsSettings.{field} is missing")),
            path => Ok(PathBuf::from(path)),
        };
        let name = match (self.subject_alt_names.as_slice(), self.sni.as_str()) {
            ([], "") => None,
            ([], name) => Some(name.to_owned()),
            ([name], _) if !name.contains("://") => Some(name.clone()),
            _ => {
                return Err("tlsSettings.subjectAltNames must be one DNS name".to_owned());
            }
        };
        Ok(Some(SourceTls {
            ca_certificates: file(&self.ca_certificates, "caCertificates")?,
            client: match mutual {
                false => None,
                true => Some((
                    file(&self.client_certificate, "clientCertificate")?,
                    file(&self.private_key, "privateKey")?,
                )),
            },
            server_name: name,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Defaults, MeshConfig};
    use super::*;

    fn parse(text: &str) -> Result<Vec<StoreSource>, String> {
        MeshConfig::parse(text, &Defaults::default())
            .map(|parsed| parsed.config_sources)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn sources_are_parsed_in_order() {
        let text = "configSources:\n- address: xds://mcp.example:15010\n- address: k8s://\n- address: fs:///etc/mesh\n\
            - {address: 'xds://10.0.0.1:443', tlsSettings: {mode: MUTUAL, caCertificates: /ca, clientCertificate: /c, privateKey: /k, sni: mcp}}\n";
        let sources = parse(text).expect("sound");
        let addresses: Vec<_> = sources.iter().map(StoreSource::address).collect();
        let expected =
            ["xds://mcp.example:15010", "k8s://", "fs:///etc/mesh", "xds://10.0.0.1:443"];
        assert_eq!(addresses, expected);
        let tls = sources[3].tls.clone().expect("TLS");
        assert_eq!(tls.server_name.as_deref(), Some("mcp"));
        assert_eq!(tls.client, Some(("/c".into(), "/k".into())));
        let json: Vec<_> = sources.iter().map(StoreSource::to_json).collect();
        let reparsed = parse(&json!({ "configSources": json }).to_string()).expect("its own words");
        assert_eq!(reparsed, sources);
    }

    #[test]
    fn invalid_source_is_reported() {
        for (source, expected) in [
            ("{address: 'http://a:1'}", "expected k8s://"),
            ("{address: 'xds://a'}", "expected k8s://"),
            ("{address: 'xds://u:p@a:1'}", "expected k8s://"),
            ("{address: 'fs://relative'}", "expected k8s://"),
            ("{}", "expected k8s://"),
            ("{address: 'k8s://'}, {address: 'k8s:///'}", "listed twice"),
            ("{address: 'xds://a:1', tlsSettings: {mode: ISTIO_MUTUAL}}", "not \"ISTIO_MUTUAL\""),
            ("{address: 'xds://a:1', tlsSettings: {mode: SIMPLE}}", "caCertificates is missing"),
        ] {
            let message = parse(&format!("configSources: [{source}]")).expect_err(source);
            assert!(message.contains(expected) && message.contains("configSources"), "{message}");
        }
    }
}
