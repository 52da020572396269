//! Devices that tests run on.
//!
//! Recorded bits are those of the CPU, so runs use it unless `LOCKSTEP_TEST_DEVICE` names another
//! value of `run.device`. Tests that compare with oracles run on every device of the machine.

use lockstep_tensor::device::open::{Choice, open_accelerator};
use lockstep_tensor::device::{Compute, NoCache};
use lockstep_tensor::{Cpu, Isa};
use std::sync::Arc;

/// The setting of `run.device` that recipes of tests start with.
pub fn default_device() -> String {
    let device = lockstep_platform::real().host().env("LOCKSTEP_TEST_DEVICE");
    format!("run.device={}", device.as_deref().unwrap_or("cpu"))
}

/// The CPU, and the accelerator if there is one.
pub fn computes() -> Vec<Compute> {
    let cpu = || Cpu::single(Isa::detect());
    let accelerator = open_accelerator(Choice::Auto, 0, Arc::new(NoCache));
    let accelerator = accelerator.unwrap_or_else(|error| panic!("{error}"));
    let accelerated = accelerator.map(|device| Compute::accelerated(cpu(), device));
    std::iter::once(cpu().into()).chain(accelerated).collect()
}
