//! RoPE angles in the memory of a device, shared by all layers of a model.
//!
//! They are computed when a layer first rotates: a blueprint that is only described has none.

use lockstep_tensor::device::{Buffer, Device, Dtype, Result, View, ViewMut};
use lockstep_tensor::rope::{Rotation, Table};
use std::sync::OnceLock;

/// Angles of every position of a context.
#[derive(Debug)]
pub(crate) struct RopeAngles {
    head_dim: usize,
    num_positions: usize,
    theta: f64,
    /// In the memory of the first device that rotates; a model runs on one.
    angles: OnceLock<Buffer>,
}

impl RopeAngles {
    pub(crate) const fn new(head_dim: usize, num_positions: usize, theta: f64) -> Self {
        Self { head_dim, num_positions, theta, angles: OnceLock::new() }
    }

    /// Rotates the heads of `rows` in place.
    pub(crate) fn rotate(
        &self,
        device: &dyn Device,
        rows: ViewMut<'_>,
        rotation: &Rotation,
    ) -> Result<()> {
        device.rotate(self.angles(device)?, self.head_dim, rows, rotation)
    }

    /// The angles, computed at the first call.
    pub(crate) fn angles(&self, device: &dyn Device) -> Result<View<'_>> {
        if let Some(angles) = self.angles.get() {
            return Ok(angles.view());
        }
        let host = Table::new(self.head_dim, self.num_positions, self.theta).angles();
        let mut angles = device.allocate(Dtype::F32, host.len())?;
        device.copy(View::of(&host), angles.view_mut())?;
        Ok(self.angles.get_or_init(|| angles).view())
    }
}
