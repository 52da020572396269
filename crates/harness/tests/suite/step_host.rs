//! Host of a single step, for tests that run a replica without the trainer.

use lockstep_comm::CommError;
use lockstep_model::{Microbatch, MicrobatchShape};
use lockstep_optim::{Clip, Update};
use lockstep_parallel::{Replica, StepHost};
use lockstep_tensor::device::View;

/// Host of a step whose micro-batches have equal tokens.
pub(crate) struct Host {
    pub(crate) shape: MicrobatchShape,
    /// Tokens of each micro-batch and one more.
    pub(crate) tokens: Vec<u32>,
    pub(crate) step: u64,
}

impl<'a> StepHost<'a> for &'a Host {
    type Error = CommError;

    fn microbatch(&self, _index: usize) -> Microbatch<'a> {
        Microbatch {
            shape: self.shape,
            inputs: View::of(&self.tokens[1..]),
            targets: View::of(&self.tokens[..self.tokens.len() - 1]),
            first_sample: 0,
            num_targets: self.shape.rows() as u64,
            documents: None,
            preferences: None,
        }
    }

    fn num_targets(&self, microbatches: Option<&[u32]>) -> u64 {
        microbatches.map_or(1, <[u32]>::len) as u64 * self.shape.rows() as u64
    }

    fn decide(&mut self, _: &mut Replica, clip: &Clip) -> Result<Option<Update>, CommError> {
        Ok(Some(Update { count: self.step + 1, lr: 1e-2, clip: *clip }))
    }
}
