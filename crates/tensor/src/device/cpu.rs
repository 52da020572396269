//! The CPU as a device: every operation is a kernel of this crate, run at once, with its bits.

mod flat;
mod layers;
mod losses;
mod memory;
mod products;
