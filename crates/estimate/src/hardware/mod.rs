//! Clusters as numbers: devices, the nodes they sit in, the network between nodes.
//!
//! # Layout
//! - [`device`]: accelerators by name
//! - [`cluster`]: nodes, links, networks, prices, and clusters by name
//! - [`mod@file`]: a cluster as a TOML file, with every mistake in it told at once

pub mod cluster;
pub mod device;
pub mod file;

pub use cluster::{Cluster, Network, Shared, Topology, Unit, named, names};
pub use device::{DEVICES, Device};
