//! Inputs of update rules that need more than the gradients of the elements they step: directions,
//! norms of whole tensors (LARS, LAMB), orthogonalised whole matrices (Muon), and factored moments
//! of whole tensors (Adafactor).
//!
//! Ranks that step shards gather norms over all ranks, and each matrix over the data-parallel ranks
//! that own parts of it and the tensor-parallel ranks that hold its pieces, one matrix after the
//! other.

use super::{ELEMENT, RankPlan, StepBuilder};
use crate::trained_matrices::TrainedMatrix;
use lockstep_config::units::Bytes;
use lockstep_mesh::Axis;
use lockstep_optim::{UpdateInputs, WholeTensors, newton_schulz};
use lockstep_schedule::Op;
use lockstep_schedule::step::{
    Access, BufferId, Call, Contents, Lengths, Normed, Queue, TaskId, TaskOp, Use,
};

impl RankPlan<'_> {
    /// Work for each of the tensors that the rank's tasks number.
    pub fn whole_work(&self) -> Vec<WholeWork> {
        let matrices = TrainedMatrix::list(self.blueprint, &self.buckets, self.plan);
        let work = |matrix: &TrainedMatrix<'_>| match self.plan.update_inputs.whole {
            WholeTensors::All => WholeWork::Factoring(matrix.shape[0] * matrix.shape[1]),
            _ => WholeWork::Products(newton_schulz::flops(matrix.shape)),
        };
        matrices.iter().map(work).collect()
    }
}

/// Work to turn the gradients of a whole tensor into the direction of its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WholeWork {
    /// FLOPs of products.
    Products(u64),
    /// Elements whose moments are factored.
    Factoring(usize),
}

impl StepBuilder<'_> {
    /// Adds the tasks in front of the updates of these buckets. Returns the buffers that each
    /// update uses besides.
    pub(super) fn add_update_inputs(
        &mut self,
        buckets: &[usize],
        agree: TaskId,
    ) -> Vec<Vec<Access>> {
        let UpdateInputs { directions, norms, whole } = self.at.plan.update_inputs;
        let mut uses = vec![Vec::new(); buckets.len()];
        if directions {
            for (uses, &bucket) in uses.iter_mut().zip(buckets) {
                let buffer = self.add_direction(bucket, agree);
                uses.push(Access { buffer, mode: Use::Take });
            }
        }
        if norms {
            for of in [Normed::Params, Normed::Steps] {
                let Some(buffer) = self.add_norms(of, buckets, agree) else { continue };
                for (index, uses) in uses.iter_mut().enumerate() {
                    let is_last = index + 1 == buckets.len();
                    let mode = if is_last { Use::Take } else { Use::Read };
                    uses.push(Access { buffer, mode });
                }
            }
        }
        if whole != WholeTensors::None {
            let at = self.at;
            let list = TrainedMatrix::list(at.blueprint, &at.buckets, at.plan);
            for (number, matrix) in list.iter().enumerate() {
                let buffer = self.add_matrix(number as u32, matrix, agree);
                let bucket = buckets.iter().position(|bucket| *bucket == matrix.bucket);
                let bucket = bucket.expect("a trained matrix has gradients");
                uses[bucket].push(Access { buffer, mode: Use::Take });
            }
        }
        uses
    }

    /// Turns the gradients of a bucket into directions; returns the mark of that.
    fn add_direction(&mut self, bucket: usize, agree: TaskId) -> BufferId {
        let (params, grads, state) =
            (self.params(bucket), self.grads(bucket), self.optimizer_state(bucket));
        let mark = self.tasks.buffer(Contents::Direction { bucket: bucket as u32 }, 0);
        let op = TaskOp::Direction { bucket: bucket as u32 };
        let task = self.tasks.task(op, Queue::Compute).guarded_by(agree);
        task.reads(params).updates(grads).updates(state).writes(mark);
        mark
    }

    /// Measures the norms of all tensors; returns them, if this rank updates anything.
    fn add_norms(&mut self, of: Normed, buckets: &[usize], agree: TaskId) -> Option<BufferId> {
        let at = self.at;
        let values: Vec<_> = buckets
            .iter()
            .map(|&bucket| match of {
                Normed::Params => self.params(bucket),
                Normed::Steps => self.grads(bucket),
            })
            .collect();
        let num_tensors = at.blueprint.num_tensors();
        let norms = self.tasks.buffer(Contents::TensorNorms { of }, num_tensors);
        let norms = (!buckets.is_empty()).then_some(norms);
        let is_whole = at.plan.is_replicated();
        let lens = if is_whole { Vec::new() } else { at.plan.norm_lens(at.blueprint) };
        let sums = lens.get(at.rank).map(|len| {
            let sums = Contents::NormSums { of };
            self.tasks.buffer(sums, *len)
        });
        let op = TaskOp::TensorNorms(of);
        let mut measure = self.tasks.task(op, Queue::Compute).guarded_by(agree);
        for values in values {
            measure = measure.reads(values);
        }
        if let Some(written) = sums.or(norms) {
            measure.writes(written);
        }
        if let Some(sums) = sums {
            let lengths = Lengths::Parts(lens.into());
            let call = Call { group: self.world, op: Op::AllGather, lengths, element: Bytes(8) };
            let op = TaskOp::GatherNorms(of);
            let gather = self.tasks.task(op, Queue::Control).guarded_by(agree);
            let gather = gather.takes(sums).calls(call);
            if let Some(norms) = norms {
                gather.writes(norms);
            }
        }
        norms
    }

    /// Gathers a tensor, unless this rank has all of it, and turns its gradients into the direction
    /// of its step; returns the mark of that.
    fn add_matrix(&mut self, number: u32, matrix: &TrainedMatrix<'_>, agree: TaskId) -> BufferId {
        let grads = self.grads(matrix.bucket);
        let is_sharded = self.at.plan.zero > 0;
        let mut gathered = Vec::new();
        let mut owns_part = !is_sharded;
        for piece in (0..matrix.pieces.len()).filter(|_| is_sharded) {
            let lens = matrix.part_lens(&self.at.buckets, piece);
            owns_part |= lens[self.at.part] > 0;
            let contents = Contents::MatrixPiece { piece: piece as u32 };
            let buffer = self.tasks.buffer(contents, matrix.pieces[piece].len());
            let call = self.data_call(Op::AllGather, Lengths::Parts(lens.into()), ELEMENT);
            let op = TaskOp::GatherMatrix { matrix: number, piece: piece as u32 };
            let task = self.tasks.task(op, Queue::Link(Axis::Data)).guarded_by(agree);
            task.reads(grads).writes(buffer).calls(call);
            gathered.push(buffer);
        }
        if matrix.num_pieces() > 1 {
            let [rows, cols] = matrix.shape;
            let whole = self.tasks.buffer(Contents::Matrix, rows * cols);
            let lengths = Lengths::Even(rows * cols);
            let call = Call { group: self.tensor, op: Op::AllGather, lengths, element: ELEMENT };
            let op = TaskOp::GatherPieces { matrix: number };
            let task = self.tasks.task(op, Queue::Link(Axis::Tensor)).guarded_by(agree);
            let mut task = task.reads(grads).writes(whole).calls(call);
            for piece in gathered.drain(..) {
                task = task.takes(piece);
            }
            gathered.push(whole);
        }
        let mark = self.tasks.buffer(Contents::WholeDirection { matrix: number }, 0);
        let op = match self.at.plan.update_inputs.whole {
            WholeTensors::All => TaskOp::FactorMoments { matrix: number },
            _ => TaskOp::Orthogonalize { matrix: number },
        };
        let mut task = self.tasks.task(op, Queue::Compute).guarded_by(agree).writes(mark);
        for buffer in gathered {
            task = task.takes(buffer);
        }
        if owns_part {
            task.updates(grads);
        }
        mark
    }
}
