//! Hardware description: devices, nodes, and the network between nodes.
//!
//! # Layout
//! - [`device`]: accelerators by their data sheets; [`device_name`]: by the names in use
//! - [`cluster`]: nodes, links, networks, prices, and clusters by name
//! - [`mod@file`]: clusters from TOML files

pub mod cluster;
pub mod device;
pub mod device_name;
pub mod file;

pub use cluster::{Cluster, LinkDomain, Network, Topology, named, names};
pub use device::{DEVICES, Device};
pub use device_name::DeviceNameError;
