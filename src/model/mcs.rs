//! Multi-cluster services: whether, and how, clusters say which of their services are for others.

/// What ServiceExports and ServiceImports mean (`--mcs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mcs {
    /// Nothing: services of one name are one service in all clusters.
    #[default]
    Off,
    /// A cluster's endpoints of a service are for others only where it exports it.
    Exports,
    /// The same, and what is exported or imported is `NAME.NAMESPACE.svc.clusterset.local` as well.
    Clusterset,
    /// The same, and under its own name a service is its cluster's alone, exported or not.
    Strict,
}
