//! What compression keeps from step to step, to save it and to fill it in again.

use super::Method;
use super::exchange::Compression;
use crate::replica::Replica;

impl Replica {
    /// Gives everything that compression keeps: the name of a tensor, the kind of what is kept of
    /// it, whether it is this worker's own (or the same on all), and the values.
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
