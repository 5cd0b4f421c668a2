//! Findings about the mesh that `strait check` and the control plane report. `strait check` computes
//! them from responses of the admin API, and the control plane from the same rows, so that the
//! metric of problems and the Kubernetes events contain the same codes.

mod certificates;
mod configuration;
mod imports;
mod members;
mod networks;
mod process;
mod sources;

pub use self::certificates::{of_certificates, of_root};
pub use self::configuration::{of_hold, of_lost_rollout};
pub use self::imports::of_imports;
pub use self::members::{of_member, of_same_addresses};
pub use self::networks::{of_claims, of_networks};
pub use self::process::of_process;
pub use self::sources::of_source;
use strait_base::codes::Code;

/// A finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshFinding {
    /// The category of `strait check`.
    pub category: &'static str,
    /// The code.
    pub code: &'static Code,
    /// The object, for example `network/n1`.
    pub object: String,
    /// The finding in words. It may contain text from users.
    pub fact: String,
    /// Whether it requires action.
    pub is_problem: bool,
}

impl MeshFinding {
    fn problem(category: &'static str, code: &'static Code, object: String, fact: String) -> Self {
        Self { category, code, object, fact, is_problem: true }
    }

    fn note(category: &'static str, code: &'static Code, object: String, fact: String) -> Self {
        Self { is_problem: false, ..Self::problem(category, code, object, fact) }
    }
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "<none>" } else { text }
}
