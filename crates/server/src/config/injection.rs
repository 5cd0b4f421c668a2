//! The flags of `strait serve` that configure injected sidecars.

use std::collections::BTreeMap;

use clap::Args;
use clap::builder::FalseyValueParser;

use strait_injection::server::WebhookSettings;
use strait_injection::{InjectSettings, PodDefaults, Redirection, default_image};
use strait_model::ClusterId;

/// Settings of injected sidecars.
#[derive(Debug, Clone, Default, Args)]
pub struct InjectFlags {
    /// Address of the control plane for injected proxies, in one cluster or in all others; repeatable [default: strait.NAMESPACE.svc:15012]
    #[arg(long = "inject-discovery", env = "STRAIT_INJECT_DISCOVERY", value_name = "[CLUSTER=]HOST:PORT", value_delimiter = ',', value_parser = parse_discovery)]
    pub discovery: Vec<(Option<ClusterId>, String)>,

    /// Image of injected sidecars, with strait-agent and envoy [default: strait-agent of this version]
    #[arg(long = "inject-image", env = "STRAIT_INJECT_IMAGE", value_name = "IMAGE")]
    pub image: Option<String>,

    /// Image of the init container that redirects pod traffic, with strait-agent and iptables or nft [default: --inject-image]
    #[arg(
        long = "inject-redirect-image",
        env = "STRAIT_INJECT_REDIRECT_IMAGE",
        value_name = "IMAGE"
    )]
    pub redirect_image: Option<String>,

    /// Leave traffic redirection to Istio's CNI plugin
    #[arg(long = "inject-istio-cni", env = "STRAIT_INJECT_ISTIO_CNI", value_parser = FalseyValueParser::new())]
    pub istio_cni: bool,

    /// Inject ordinary containers instead of native sidecars, for Kubernetes before 1.29
    #[arg(long = "inject-ordinary-sidecars", env = "STRAIT_INJECT_ORDINARY_SIDECARS", value_parser = FalseyValueParser::new())]
    pub ordinary_sidecars: bool,

    /// Let agents answer the DNS queries of their pods, so that host names of other clusters resolve
    #[arg(long = "inject-dns", env = "STRAIT_INJECT_DNS", value_parser = FalseyValueParser::new())]
    pub dns: bool,

    /// Let injected proxies report service metrics such as istio_requests_total, and send them the workload names of
    /// endpoints as --endpoint-metadata full does
    #[arg(long = "inject-service-metrics", env = "STRAIT_INJECT_SERVICE_METRICS", value_parser = FalseyValueParser::new())]
    pub service_metrics: bool,

    /// Accept Istio's injection labels in addition to Strait's
    #[arg(long, env = "STRAIT_ISTIO_LABELS", value_parser = FalseyValueParser::new())]
    pub istio_labels: bool,
}

impl InjectFlags {
    /// Returns the settings of the webhook for a mesh with this system namespace, config cluster
    /// and domain.
    pub fn settings(&self, namespace: &str, config_cluster: &str, domain: &str) -> WebhookSettings {
        let image = self.image.clone().unwrap_or_else(default_image);
        let mut of_clusters: BTreeMap<ClusterId, String> = BTreeMap::new();
        let mut of_others = String::new();
        for (cluster, address) in &self.discovery {
            let addresses = match cluster {
                Some(cluster) => of_clusters.entry(cluster.clone()).or_default(),
                None => &mut of_others,
            };
            addresses.push_str(if addresses.is_empty() { "" } else { "," });
            addresses.push_str(address);
        }
        if of_others.is_empty() {
            of_others = format!("strait.{namespace}.svc:15012");
        }
        let inject = InjectSettings {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cluster: config_cluster.to_owned(),
            network: None,
            discovery: of_others,
            domain: domain.to_owned(),
            redirect_image: self.redirect_image.clone().unwrap_or_else(|| image.clone()),
            image,
            redirection: Redirection::for_cni(self.istio_cni),
            native_sidecars: !self.ordinary_sidecars,
            dns: self.dns,
            service_metrics: self.service_metrics,
            istio_labels: self.istio_labels,
            system_namespace: namespace.to_owned(),
            defaults: PodDefaults::default(),
        };
        WebhookSettings { inject, discovery: of_clusters }
    }
}

fn parse_discovery(text: &str) -> Result<(Option<ClusterId>, String), String> {
    let (cluster, address) = match text.split_once('=') {
        Some((id, address)) => {
            let id = ClusterId::parse(id).map_err(|error| format!("{id:?}: {error}"))?;
            (Some(id), address)
        }
        None => (None, text),
    };
    let is_host = |host: &str| {
        !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._:[]".contains(c))
    };
    let (host, port) = address.rsplit_once(':').unwrap_or_default();
    match is_host(host) && port.parse::<u16>().is_ok_and(|port| port > 0) {
        true => Ok((cluster, address.to_owned())),
        false => Err("expected [CLUSTER=]HOST:PORT".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        inject: InjectFlags,
    }

    #[test]
    fn discovery_address_of_a_cluster_overrides_the_general_one() {
        let settings = |flags: &[&str]| {
            let line = Line::try_parse_from(["x"].iter().chain(flags))?;
            Ok::<_, clap::Error>(line.inject.settings("mesh", "hub", "cluster.local"))
        };
        let usual = settings(&[]).expect("no flag is needed");
        assert_eq!(usual.inject.discovery, "strait.mesh.svc:15012");
        let several = "--inject-discovery=east=10.0.0.1:1,strait.example:15012,east=[fd00::1]:2";
        let settings = |flags| settings(flags).expect("it parses");
        let several = settings(&[several, "--inject-image=proxy:1"]);
        assert_eq!(several.inject.redirect_image, "proxy:1");
        let of_path = |path: &str| several.settings_for_path(path);
        let east = of_path("/inject/cluster/east/net/n1").expect("a path");
        assert_eq!((&*east.cluster, east.network.as_deref()), ("east", Some("n1")));
        assert_eq!(east.discovery, "10.0.0.1:1,[fd00::1]:2");
        let west = of_path("/inject/cluster/west").expect("a path");
        assert_eq!((west.network, &*west.discovery), (None, "strait.example:15012"));
        assert_eq!(of_path("/inject").map(|it| it.cluster).as_deref(), Some("hub"));
        for path in
            ["/", "/injected", "/validate", "/inject/cluster", "/inject/cluster/-", "/inject/x/y"]
        {
            assert!(of_path(path).is_none(), "{path}");
        }
    }

    #[test]
    fn invalid_discovery_address_is_rejected() {
        for text in ["strait", "strait:0", ":15012", "a=b=c:1", "-=h:1", "a b:1"] {
            assert!(parse_discovery(text).is_err(), "{text}");
        }
    }
}
