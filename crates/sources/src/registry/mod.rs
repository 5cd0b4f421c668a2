//! Registries: each turns the objects of one source into one shard (see [`strait_model::registry`]).

pub mod consul;
pub mod kube;
