//! The operator's settings for the whole mesh: mesh config and mesh networks, in Istio's YAML.
//!
//! This module parses both texts. It knows no cluster, service or proxy. An invalid text never
//! takes effect: it is reported as a [`SourceProblem`], and the last valid value stays active.

mod access_log;
pub mod command_operators;
mod config;
mod default_config;
mod default_providers;
pub(crate) mod discovery;
mod duration;
mod ingress;
mod limits;
mod localities;
mod networks;
mod normal_path;
mod protobuf_json;
mod provider_service;
mod providers;
mod retries;
mod service_scopes;
mod settings;
mod sources;
mod tls;
mod traces;
mod yaml;

pub use access_log::{AccessLog, AccessLogEncoding, AccessLogFormat};
pub use config::{
    Defaults, GatewayScope, HostSharing, MeshConfig, OutboundTrafficPolicy, PathNormalization,
    WrittenOutboundMode, own_trust_domain,
};
pub use default_providers::DefaultProviderFault;
pub use duration::{
    SHORTER, WrittenDuration, at_least_a_millisecond, format_duration, parse_duration,
};
pub use ingress::{IngressMode, IngressSettings};
pub use limits::{
    Http2Pings, LimitFault, OutlierDetection, PoolLimits, RareLimits, RareOutlierSettings,
    TcpKeepalive, UsualLimits, WrittenOutliers, WrittenPool, WrittenUpgrade,
};
pub use localities::{Distribute, LocalityFault, LocalitySetting, PlaceLabel, WrittenLocalities};
pub use networks::{GatewayConfig, GatewayTarget, MeshNetworks, Network};
pub use normal_path::{DOT_PARAMETER_REGEX, DotParameters, has_dot_parameter};
pub use provider_service::ProviderService;
pub use providers::{
    AuthorizationProtocol, AuthorizationProvider, AuthorizationRequest, CheckedBody,
    ExtensionProvider, HeaderNames, ProviderKind,
};
pub use retries::{RareRetrySettings, RetryFault, RetryRule, WrittenRetries};
pub use service_scopes::{ObjectSelectors, ServiceScopes};
pub use settings::{MeshSettings, MeshTexts, SourceProblem, normalize_text};
pub use sources::{SourceTls, StoreAddress, StoreSource};
pub use tls::{CIPHERS, MeshTls};
pub use traces::{SpanProtocol, TracingProvider};
pub use yaml::InvalidYaml;
pub(crate) use yaml::plain;
