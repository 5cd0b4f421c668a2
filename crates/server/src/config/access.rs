//! The flags of `strait serve` about access policies.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use strait_rules::access::PolicyErrors;

/// Access policies and the keys of their tokens.
#[derive(Debug, Clone, Args)]
pub struct AccessFlags {
    /// Handling of an access rule that can't be read and has no last valid version: apply its
    /// readable part, or deny everything
    #[arg(long, env = "STRAIT_POLICY_ERRORS", value_name = "HOW", default_value = "narrow")]
    pub policy_errors: PolicyErrorsFlag,

    /// Addresses from which token keys are never fetched, even if a RequestAuthentication names them; repeatable
    #[arg(long, env = "STRAIT_JWKS_DENY", value_name = "CIDR", value_delimiter = ',')]
    pub jwks_deny: Vec<ipnet::IpNet>,

    /// Additional roots to verify servers of token keys, next to the system's: a PEM file, read for each fetch
    #[arg(long, env = "STRAIT_JWKS_ROOTS", value_name = "FILE")]
    pub jwks_roots: Option<PathBuf>,
}

/// Handling of unreadable access rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum PolicyErrorsFlag {
    /// Apply its readable part.
    #[default]
    Narrow,
    /// Deny everything that the policy selects.
    Strict,
}

impl From<PolicyErrorsFlag> for PolicyErrors {
    fn from(flag: PolicyErrorsFlag) -> Self {
        match flag {
            PolicyErrorsFlag::Narrow => Self::Narrow,
            PolicyErrorsFlag::Strict => Self::Strict,
        }
    }
}
