//! The flags of `strait serve` about state on disk.

use std::path::PathBuf;

use clap::Args;

/// State on disk.
#[derive(Debug, Clone, Args)]
pub struct StateFlags {
    /// Directory of the built-in CA, the admin token and the last known state [default: /var/lib/strait if writable, otherwise none]
    #[arg(long, env = "STRAIT_STATE_DIR", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// Store the Secrets sent to gateways, including private keys, in --state-dir, so that gateways
    /// receive them after a restart while their API server is unreachable
    #[arg(long, env = "STRAIT_KEEP_GATEWAY_SECRETS")]
    pub keep_gateway_secrets: bool,
}
