//! Explanations of endpoints that the control plane does not send: names that the proxy resolves,
//! sockets on its own host, and arbitrary addresses that the client requests. They match the
//! upstream clusters of `strait_envoy::cds`.

use std::net::IpAddr;

use super::lines::{ClusterLine, EndpointLine, StepLine, quoted};
use strait_base::codes;
use strait_mesh::aggregate::MergedService;
use strait_mesh::push::PushContext;
use strait_mesh::push::view::{Role, ViewKey, WithholdingStep};
use strait_model::{ByName, NamedEndpoint, Port, Resolution, TlsMode};

/// Describes how a proxy finds the endpoints of `service`, if it finds them itself.
pub(super) fn how(
    context: &PushContext,
    view: &ViewKey,
    service: &MergedService,
) -> Option<String> {
    match (view.role, &service.primary.resolution) {
        (Role::Client, Resolution::ByName(by_name)) => Some(
            match (has_sockets(by_name), by_name.just_then) {
                (true, _) => "sockets on the proxy's own host",
                (false, true) => {
                    "the proxy resolves the name itself, and uses the first address of the current response (DNS_ROUND_ROBIN)"
                }
                (false, false) => {
                    "the proxy resolves names itself, and balances between all their addresses (DNS)"
                }
            }
            .to_owned(),
        ),
        (Role::Client, Resolution::Passthrough) => {
            Some("the proxy forwards requests to the address that the client requests (NONE)".into())
        }
        (_, Resolution::Alias(target)) if context.services.contains_key(target) => {
            Some(format!("the name is an alias of {target}: explain that name instead"))
        }
        (_, Resolution::Alias(target)) => Some(format!(
            "the name is an alias of {target}, which no cluster has as a service: the client's resolver follows the alias, and the proxy treats it like any unknown host"
        )),
        _ => None,
    }
}

fn has_sockets(by_name: &ByName) -> bool {
    by_name.endpoints.iter().any(NamedEndpoint::is_socket)
}

/// Returns the lines about the endpoints of a port; with `address`, only about that endpoint.
pub(super) fn lines(
    view: &ViewKey,
    service: &MergedService,
    port: &Port,
    address: Option<&str>,
) -> (Vec<ClusterLine>, Vec<EndpointLine>) {
    let (Role::Client, Resolution::ByName(by_name)) = (view.role, &service.primary.resolution)
    else {
        return (Vec::new(), Vec::new());
    };
    // One definition provides all endpoints, and all of them are ready: others are dropped when the
    // definition is read.
    let of =
        service.shards.iter().find(|shard| shard.service.resolution == service.primary.resolution);
    let cluster = of.map(|shard| shard.key.cluster.to_string()).unwrap_or_default();
    let mut lines = NameAnswer { view, service, by_name, cluster, taken: false };
    let endpoints: Vec<_> = by_name
        .endpoints
        .iter()
        .filter_map(|one| lines.line(one, *one.ports.get(&port.name)?))
        .collect();
    let mut clusters: Vec<ClusterLine> = Vec::new();
    for endpoint in &endpoints {
        let found = clusters.iter_mut().find(|line| line.network == endpoint.network);
        let line = match found {
            Some(line) => line,
            None => {
                clusters.push(ClusterLine::empty(&endpoint.cluster, &endpoint.network));
                let Some(last) = clusters.last_mut() else { continue };
                last
            }
        };
        line.total += 1;
        line.ready += 1;
        match endpoint.steps.iter().find(|step| !step.ok) {
            None => {
                line.sent += 1;
                line.via = Some("direct".to_owned());
            }
            Some(refused) if line.reason.is_none() => {
                line.reason = Some(refused.detail.clone());
                line.code = Some(codes::NOT_EXPORTED.id);
            }
            Some(_) => {}
        }
    }
    clusters.sort_by(|a, b| a.network.cmp(&b.network));
    let wanted = |line: &EndpointLine| address.is_none_or(|wanted| line.address == wanted);
    (clusters, endpoints.into_iter().filter(wanted).collect())
}

struct NameAnswer<'a> {
    view: &'a ViewKey,
    service: &'a MergedService,
    by_name: &'a ByName,
    cluster: String,
    /// Whether an endpoint has been shown, in case only the first one is used.
    taken: bool,
}

impl NameAnswer<'_> {
    fn line(&mut self, one: &NamedEndpoint, port: u16) -> Option<EndpointLine> {
        let mut steps = Vec::new();
        for step in WithholdingStep::ALL {
            let found = self.step(step, one);
            let (ok, detail) = match found {
                Ok(detail) => (true, detail),
                Err(detail) => (false, detail),
            };
            steps.push(StepLine { step: step.as_str(), ok, detail });
            if !ok {
                break;
            }
        }
        let passed = steps.iter().all(|step| step.ok);
        self.taken |= passed;
        Some(EndpointLine {
            additional: None,
            address: one.address.to_string(),
            port,
            cluster: self.cluster.clone(),
            network: one.network.clone().unwrap_or_default(),
            verdict: if passed { "direct" } else { "withheld" },
            via: Vec::new(),
            priority: None,
            steps,
        })
    }

    fn step(&self, step: WithholdingStep, one: &NamedEndpoint) -> Result<String, String> {
        let name = &one.address;
        match step {
            WithholdingStep::Ready if self.by_name.just_then && self.taken => {
                Err("only the first of several names is used (DNS_ROUND_ROBIN)".into())
            }
            WithholdingStep::Ready => Ok("ready".into()),
            WithholdingStep::Pod => Ok("no pod: the proxy resolves the name itself".into()),
            WithholdingStep::Export
                if !self.service.primary.export_to.visible_to(&self.view.namespace) =>
            {
                Err(format!("not visible to namespace {}", self.view.namespace))
            }
            WithholdingStep::Export => Ok(format!("visible to namespace {}", self.view.namespace)),
            WithholdingStep::Network => match &one.network {
                None => Ok("outside the mesh: reached from every network".into()),
                Some(network) if *network == self.view.network => {
                    Ok(format!("same network as the proxy, {}", quoted(network)))
                }
                Some(network) => Err(format!(
                    "in network {}, the proxy is in {}, and no gateway serves endpoints that are resolved by name",
                    quoted(network),
                    quoted(&self.view.network)
                )),
            },
            WithholdingStep::Gateway => Ok("not needed".into()),
            WithholdingStep::Family if one.is_socket() => {
                Ok("a socket on the proxy's own host".into())
            }
            WithholdingStep::Family if name.parse::<IpAddr>().is_ok() => {
                Ok("a literal address".into())
            }
            WithholdingStep::Family if has_sockets(self.by_name) => {
                Err(format!("names are not resolved next to a socket, so {name} is not used"))
            }
            WithholdingStep::Family => Ok(format!("the proxy resolves {name}")),
            WithholdingStep::Mtls => Ok(match one.tls_mode {
                TlsMode::Istio => "takes mTLS".into(),
                TlsMode::Changing | TlsMode::Disabled => "plain text".into(),
            }),
        }
    }
}
