//! Checkpoint state of compression: residuals, momenta and PowerSGD factors.

use super::Method;
use super::exchange::Compression;
use crate::replica::Replica;

impl Replica {
    /// Visits all compression state, to save or to restore it: tensor name, state name, whether the
    /// values are this rank's own (or equal on all ranks), and the values.
    pub fn visit_compression<E>(
        &mut self,
        mut visit: impl FnMut(&str, &str, bool, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(compression) = &mut self.compression else { return Ok(()) };
        let Compression { plan, tensors, residual, momentum, power, .. } = compression;
        for tensor in tensors {
            let (name, flat) = (tensor.slot.name.as_str(), tensor.flat());
            if plan.error_feedback && tensor.method.is_some() {
                visit(name, "residual", true, &mut residual[flat.clone()])?;
            }
            match plan.method {
                Method::OneBitAdam { .. } => {
                    visit(name, "sent", false, &mut momentum[flat])?;
                }
                Method::Dgc { .. } if !momentum.is_empty() => {
                    visit(name, "momentum", true, &mut momentum[flat])?;
                }
                Method::PowerSgd { .. } if tensor.method.is_some() => {
                    visit(name, "power", false, &mut power[tensor.power.clone()])?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}
