//! RoPE angles in the memory of a device, shared by all layers of a model.
//!
//! They are computed when a layer first rotates: a blueprint that is only described has none.

use lockstep_config::{Model, RopeScalingKind};
use lockstep_tensor::device::{Buffer, Device, Dtype, Result, View, ViewMut};
use lockstep_tensor::rope::{Rotation, Table};
use lockstep_tensor::rope_frequencies::Scaling;
use std::sync::OnceLock;

/// Angles of every position of a context.
#[derive(Debug)]
pub(crate) struct RopeAngles {
    /// Elements of a head that are turned.
    pub(crate) dims: usize,
    num_positions: usize,
    theta: f64,
    scaling: Scaling,
    /// In the memory of the first device that rotates; a model runs on one.
    angles: OnceLock<Buffer>,
}

impl RopeAngles {
    /// Angles of a model's context.
    pub(crate) fn new(model: &Model) -> Self {
        Self {
            dims: model.rotary_dims(),
            num_positions: model.context,
            theta: model.rope_theta,
            scaling: scaling(model),
            angles: OnceLock::new(),
        }
    }

    /// Rotates the heads of `rows` in place.
    pub(crate) fn rotate(
        &self,
        device: &dyn Device,
        rows: ViewMut<'_>,
        rotation: &Rotation,
    ) -> Result<()> {
        device.rotate(self.angles(device)?, self.dims, rows, rotation)
    }

    /// The angles, computed at the first call.
    pub(crate) fn angles(&self, device: &dyn Device) -> Result<View<'_>> {
        if let Some(angles) = self.angles.get() {
            return Ok(angles.view());
        }
        let Self { dims, num_positions, theta, ref scaling, .. } = *self;
        let host = Table::scaled(dims, num_positions, theta, scaling).angles();
        let mut angles = device.allocate(Dtype::F32, host.len())?;
        device.copy(View::of(&host), angles.view_mut())?;
        Ok(self.angles.get_or_init(|| angles).view())
    }
}

/// Scaling of a model's angles. Dynamic scaling has none within the context.
fn scaling(model: &Model) -> Scaling {
    let rope = &model.variant.rope;
    let (factor, original) = (rope.factor, rope.original_context.unwrap_or(model.context) as f64);
    match rope.kind {
        RopeScalingKind::None | RopeScalingKind::Dynamic => Scaling::None,
        RopeScalingKind::Linear => Scaling::Linear { factor },
        RopeScalingKind::Llama3 => {
            let (low, high) = (rope.low_frequency, rope.high_frequency);
            Scaling::Llama3 { factor, original, low, high }
        }
        RopeScalingKind::Yarn => Scaling::Yarn {
            factor,
            original,
            fast: rope.beta_fast,
            slow: rope.beta_slow,
            truncate: rope.truncate,
            attention: rope.attention_factor,
        },
    }
}
