//! Calibrations: the speed that hardware achieves, in a few constants.
//!
//! # Layout
//! - [`machine`]: this machine, measured by `lockstep plan calibrate`; [`machine_fit`]: from timed
//!   steps
//! - [`device_type`]: types of devices, fitted to published runs ([`crate::validate::fit`])

pub mod device_type;
pub mod machine;
pub mod machine_fit;

pub use device_type::Calibration;
pub use machine::Machine;
