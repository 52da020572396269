//! Where a rank computes: kernels of its CPU, and the accelerator that runs the blocks, if any.

use super::Device;
use crate::{Cpu, Isa};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Compute resources of a rank. Kernels of the host take it as a [`Cpu`].
pub struct Compute {
    cpu: Cpu,
    accelerator: Option<Arc<dyn Device>>,
}

impl Compute {
    /// Runs the blocks on an accelerator.
    pub const fn accelerated(cpu: Cpu, accelerator: Arc<dyn Device>) -> Self {
        Self { cpu, accelerator: Some(accelerator) }
    }

    /// Runs everything on the calling thread.
    pub fn single(isa: Isa) -> Self {
        Cpu::single(isa).into()
    }

    /// The accelerator; `None` where blocks run on the CPU.
    pub const fn accelerator(&self) -> Option<&Arc<dyn Device>> {
        self.accelerator.as_ref()
    }

    /// Device that runs the blocks.
    pub fn device(&self) -> &dyn Device {
        self.accelerator.as_deref().unwrap_or(&self.cpu)
    }
}

impl From<Cpu> for Compute {
    fn from(cpu: Cpu) -> Self {
        Self { cpu, accelerator: None }
    }
}

impl Deref for Compute {
    type Target = Cpu;

    fn deref(&self) -> &Cpu {
        &self.cpu
    }
}

impl fmt::Debug for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Compute({})", self.device().name())
    }
}
