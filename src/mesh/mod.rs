//! stub
use crate::model::*;
/// s
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MeshConfig {}
impl MeshConfig {
    /// s
    pub fn cluster_local(&self, host: &Hostname) -> bool {
        host.as_str().contains(".kube-system.")
    }
}
/// s
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MeshNetworks {}
