//! Losses of single sequences, for evaluations that compare continuations.
//!
//! An evaluation keeps the number of rows of a micro-batch and cuts them into as many sequences as
//! its tokens need, so that short sequences leave few rows unused and no memory is allocated. The
//! loss of a sequence does not depend on the others of its micro-batch, so it has the same bits in
//! every cut and on every layout.

use crate::pipeline::Job;
use crate::replica::Replica;
use lockstep_comm::CommError;
use lockstep_model::{Microbatch, MicrobatchShape, Mode};
use lockstep_tensor::Cpu;

impl Replica {
    /// Shape of an evaluation's micro-batches whose sequences have at most `num_tokens` tokens: the
    /// rows of a training micro-batch in the shortest sequences that hold them.
    pub fn evaluation_shape(&self, num_tokens: usize) -> MicrobatchShape {
        let whole = self.plan.microbatch;
        let fits = |shape: MicrobatchShape| {
            self.blueprint.blocks.iter().all(|block| {
                block.saved_len(shape) == block.saved_len(whole)
                    && block.scratch_len(shape) <= block.scratch_len(whole)
            })
        };
        let mut shape = whole;
        while shape.tokens.is_multiple_of(2) && shape.tokens / 2 >= num_tokens.max(1) {
            let half = MicrobatchShape { sequences: 2 * shape.sequences, tokens: shape.tokens / 2 };
            if !fits(half) {
                break;
            }
            shape = half;
        }
        shape
    }

    /// Number of sequences of a micro-batch that may have targets: all, or one where the head
    /// computes its logits in chunks and keeps only the sum of their losses.
    pub fn num_evaluated_sequences(&self, shape: MicrobatchShape) -> usize {
        if self.keeps_row_losses() { shape.sequences } else { 1 }
    }

    fn keeps_row_losses(&self) -> bool {
        let head = self.blueprint.blocks.last().expect("a model has blocks");
        !head.defers_loss(self.plan.microbatch)
    }

    /// Runs micro-batches forward without dropout, divided among the ranks, and returns the sum of
    /// token losses of each of their sequences, in order. Collective; shapes are those of
    /// [`Self::evaluation_shape`].
    pub fn sequence_losses<'a>(
        &mut self,
        cpu: &Cpu,
        num_microbatches: usize,
        microbatch: &dyn Fn(usize) -> Microbatch<'a>,
    ) -> Result<Vec<f64>, CommError> {
        let data = self.groups.data();
        let (num_parts, part) = (data.group_size(), data.group_rank());
        let mut losses = Vec::new();
        for first in (0..num_microbatches).step_by(num_parts) {
            let round = first..(first + num_parts).min(num_microbatches);
            let lens: Vec<usize> =
                round.clone().map(|number| microbatch(number).shape.sequences).collect();
            let mut of_round = vec![0.0; lens.iter().sum()];
            let own = round.start + part;
            let own_microbatch = round.contains(&own).then(|| microbatch(own));
            let total = self.evaluate_one(cpu, own_microbatch.as_ref())?;
            if round.contains(&own) && self.reports_loss(self.groups.rank()) {
                let begin = lens[..part].iter().sum::<usize>();
                let own_losses = self.losses_of(cpu, total, microbatch(own).shape)?;
                of_round[begin..begin + lens[part]].copy_from_slice(&own_losses);
            }
            let ranks = 0..self.groups.world().group_size();
            let len_of = |rank| {
                let len = lens.get(self.groups.dp_rank_of(rank)).copied().unwrap_or(0);
                if self.reports_loss(rank) { len } else { 0 }
            };
            let by_rank: Vec<usize> = ranks.map(len_of).collect();
            self.store.overlap.call(|comm| comm.all_gather_parts(&mut of_round, &by_rank))?;
            losses.append(&mut of_round);
        }
        Ok(losses)
    }

    /// Evaluates at most one micro-batch; returns the sum of its losses on the rank that has it.
    fn evaluate_one(&mut self, cpu: &Cpu, own: Option<&Microbatch<'_>>) -> Result<f64, CommError> {
        let Self { blueprint, plan, store, device, scratch, programs, .. } = self;
        let of_plan = |_| {
            let microbatch = *own.expect("only this micro-batch runs");
            assert_eq!(microbatch.shape.rows(), plan.microbatch.rows(), "the memory is for these");
            microbatch
        };
        let mut total = 0.0;
        device.run(
            store,
            &mut Job {
                blueprint,
                cpu,
                mode: Mode::Evaluate,
                scratch,
                num_microbatches: usize::from(own.is_some()),
                microbatch: &of_plan,
                should_run: &|_| true,
                loss: &mut |_, loss| total = loss.sum,
                done: &|_| {},
            },
            &programs.evaluation,
            0..programs.evaluation.tasks.len() as u32,
        )?;
        Ok(total)
    }

    /// Losses of the sequences of the micro-batch that this rank has just evaluated.
    fn losses_of(
        &self,
        cpu: &Cpu,
        total: f64,
        shape: MicrobatchShape,
    ) -> Result<Vec<f64>, CommError> {
        if !self.keeps_row_losses() {
            let mut losses = vec![0.0; shape.sequences];
            losses[0] = total;
            return Ok(losses);
        }
        let rows = self.device.row_losses(cpu, shape.rows())?;
        let sum = |rows: &[f32]| rows.iter().fold(0.0, |sum, loss| sum + f64::from(*loss));
        Ok(rows.chunks_exact(shape.tokens).map(sum).collect())
    }
}
