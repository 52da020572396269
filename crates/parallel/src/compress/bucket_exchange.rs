//! Compressed exchange of one bucket: encode, transfer in the background, decode.
//!
//! Backward fills buckets one after the other. Once a bucket is full, this rank adds residuals,
//! compresses its tensors and starts their calls; the sums are decoded when all passes are done.

mod formats;

use super::power_sgd::{LowRank, expand, orthonormalize, project, project_back};
use super::wire::Wire;
use super::{
    CompressionPlan, Method, Shape, dgc, half_precision, one_bit_adam, random_k, sign, top_k,
};
use crate::overlap::{Overlap, Pending};
use lockstep_comm::{Comm, CommError, Reduction};
use lockstep_optim::Slot;
use lockstep_tensor::Cpu;
use lockstep_tensor::random::Key;
use std::ops::Range;

/// Elements of a flat buffer that a thread handles at a time.
const PART_LEN: usize = 1 << 14;

/// One collective call of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Tensors that are sent uncompressed.
    Dense,
    /// Compressed tensors, or PowerSGD's P factors.
    Compressed,
    /// PowerSGD's Q factors, which need the sum of the P factors.
    SecondFactor,
}

/// One tensor of gradients.
pub(super) struct Tensor {
    pub(super) slot: Slot,
    pub(super) shape: Shape,
    /// Offset in the flat buffers of its bucket.
    pub(super) start: usize,
    /// Method; `None` where the tensor is always sent uncompressed.
    pub(super) method: Option<Method>,
    /// Method in effect in the current step.
    pub(super) now: Option<Method>,
    /// Range of its Q factor.
    pub(super) power: Range<usize>,
}

impl Tensor {
    pub(super) fn flat(&self) -> Range<usize> {
        self.start..self.start + self.shape.len
    }

    /// Random stream of the initial Q factor.
    pub(super) fn first_key(&self, seed: u64) -> Key {
        Key::new(seed, "power-sgd").with(self.shape.number)
    }

    /// Shape of its low-rank factors, with PowerSGD.
    pub(super) fn low_rank(&self) -> Option<LowRank> {
        match self.method {
            Some(Method::PowerSgd { rank }) => Some(self.shape.low_rank(rank)),
            _ => None,
        }
    }
}

/// Step of an exchange, and this rank's place in it.
#[derive(Clone, Copy)]
pub(super) struct ExchangeStep {
    pub(super) plan: CompressionPlan,
    pub(super) step: u64,
    /// Rank among those that exchange, and their number.
    pub(super) rank: usize,
    pub(super) num_workers: usize,
}

/// State of a rank for one bucket.
pub(super) struct BucketExchange {
    pub(super) bucket: usize,
    pub(super) tensors: Vec<Tensor>,
    /// Residuals of all tensors, concatenated.
    pub(super) residual: Vec<f32>,
    /// Momentum of 1-bit Adam, or the local velocities of DGC.
    pub(super) momentum: Vec<f32>,
    /// PowerSGD's Q factors of the last step.
    pub(super) power: Vec<f32>,
    /// Gradients plus residuals, before compression.
    pub(super) uncompressed: Vec<f32>,
    /// This rank's gradients as the others decode them.
    pub(super) sent: Vec<f32>,
    /// Sum over all ranks.
    pub(super) total: Vec<f32>,
    /// Uncompressed gradients while they are summed within a group.
    in_group: Option<Pending<Vec<f32>>>,
    /// Buffers of each stage's call.
    wires: [Option<Pending<Wire>>; 3],
    /// Calls of the current step, in order.
    pub(super) stages: Vec<Stage>,
}

impl BucketExchange {
    /// State of these tensors, of which a rank that `compresses` keeps residuals.
    pub(super) fn new(
        bucket: usize,
        tensors: Vec<Tensor>,
        plan: &CompressionPlan,
        compresses: bool,
    ) -> Self {
        let len = tensors.iter().map(|tensor| tensor.shape.len).sum();
        let zeros = |is_kept: bool| vec![0.0; if is_kept { len } else { 0 }];
        let floats = || Wire::F32(Vec::new());
        let compressed = match plan.method {
            Method::Bf16 => Wire::Bf16(Vec::new()),
            Method::F16 => Wire::F16(Vec::new()),
            Method::RandomK { .. } | Method::PowerSgd { .. } => floats(),
            _ => Wire::Messages { own: Vec::new(), all: Vec::new() },
        };
        let mut own = Self {
            bucket,
            tensors,
            residual: zeros(plan.error_feedback && compresses),
            momentum: zeros(plan.method.has_momentum()),
            power: Vec::new(),
            uncompressed: zeros(true),
            sent: zeros(true),
            total: zeros(true),
            in_group: None,
            wires: [floats(), compressed, floats()].map(|wire| Some(Pending::Done(wire))),
            stages: Vec::new(),
        };
        for tensor in &mut own.tensors {
            tensor.power = own.power.len()..own.power.len();
            if let Some(factors) = tensor.low_rank() {
                own.power.extend(factors.first_q(tensor.first_key(plan.seed)));
                tensor.power.end = own.power.len();
            }
        }
        own
    }

    /// Plans the calls of a step.
    pub(super) fn begin(&mut self, at: &ExchangeStep) {
        for tensor in &mut self.tensors {
            let now = |method: Method| method.at_step(at.step, &tensor.shape, at.num_workers);
            tensor.now = tensor.method.and_then(now);
        }
        self.stages.clear();
        if self.tensors.iter().any(|tensor| tensor.now.is_none()) {
            self.stages.push(Stage::Dense);
        }
        if self.tensors.iter().any(|tensor| tensor.now.is_some()) {
            self.stages.push(Stage::Compressed);
            if matches!(at.plan.method, Method::PowerSgd { .. }) {
                self.stages.push(Stage::SecondFactor);
            }
        }
    }

    /// Copies this rank's unreduced gradients.
    pub(super) fn load(&mut self, grads: &[f32]) {
        for tensor in &self.tensors {
            self.uncompressed[tensor.flat()].copy_from_slice(&grads[tensor.slot.grads.clone()]);
        }
    }

    /// Replaces the gradients by the sum of all ranks' compressed ones.
    pub(super) fn unload(&self, grads: &mut [f32]) {
        for tensor in &self.tensors {
            grads[tensor.slot.grads.clone()].copy_from_slice(&self.total[tensor.flat()]);
        }
    }

    /// Starts to sum the gradients within a group.
    pub(super) fn start_in_group(
        &mut self,
        group: &Comm,
        overlap: &mut Overlap,
    ) -> Result<(), CommError> {
        let values = std::mem::take(&mut self.uncompressed);
        let sum = |comm: &Comm, values: &mut Vec<f32>| {
            comm.reduce(values, 0, Reduction::Sum)?;
            if comm.group_rank() > 0 {
                values.fill(0.0);
            }
            Ok(())
        };
        self.in_group = Some(overlap.start_on(group, self.bucket, values, sum)?);
        Ok(())
    }

    /// Waits for the group's sum; ranks but the first are left with zeros.
    pub(super) fn finish_in_group(&mut self, overlap: &mut Overlap) -> Result<(), CommError> {
        if let Some(pending) = self.in_group.take() {
            self.uncompressed = overlap.finish(pending)?;
        }
        Ok(())
    }

    /// Starts the call of a stage; the second factor waits for the sum of the first.
    pub(super) fn start(
        &mut self,
        cpu: &Cpu,
        stage: Stage,
        leaders: &Comm,
        overlap: &mut Overlap,
    ) -> Result<(), CommError> {
        if stage == Stage::SecondFactor {
            self.finish(Stage::Compressed, overlap)?;
            self.encode_second_factor(cpu);
        }
        let Some(Pending::Done(wire)) = self.wires[stage as usize].take() else {
            unreachable!("a stage has one call a step")
        };
        let pending = overlap
            .start_on(leaders, self.bucket, wire, |comm, wire: &mut Wire| wire.transfer(comm))?;
        self.wires[stage as usize] = Some(pending);
        Ok(())
    }

    /// Waits for the call of a stage.
    fn finish(&mut self, stage: Stage, overlap: &mut Overlap) -> Result<(), CommError> {
        let slot = &mut self.wires[stage as usize];
        let pending = slot.take().expect("a stage keeps its buffers");
        *slot = Some(Pending::Done(overlap.finish(pending)?));
        Ok(())
    }

    /// Adds residuals to the gradients and compresses them.
    pub(super) fn encode(&mut self, cpu: &Cpu, at: &ExchangeStep) {
        self.add_state(cpu, at);
        self.total.fill(0.0);
        self.encode_dense();
        if !self.stages.contains(&Stage::Compressed) {
            return;
        }
        match at.plan.method {
            Method::Bf16 | Method::F16 => self.encode_half(cpu),
            Method::RandomK { .. } => self.encode_random_k(cpu, at),
            Method::PowerSgd { .. } => self.encode_first_factor(cpu),
            _ => self.encode_messages(cpu, at),
        }
    }

    /// Waits for the calls and adds up what all ranks have sent.
    pub(super) fn decode(
        &mut self,
        cpu: &Cpu,
        at: &ExchangeStep,
        overlap: &mut Overlap,
    ) -> Result<(), CommError> {
        for index in 0..self.stages.len() {
            self.finish(self.stages[index], overlap)?;
        }
        self.decode_dense();
        if self.stages.contains(&Stage::Compressed) {
            match at.plan.method {
                Method::Bf16 | Method::F16 => self.decode_half(cpu),
                Method::RandomK { .. } => self.decode_random_k(cpu, at),
                Method::PowerSgd { .. } => self.decode_second_factor(cpu),
                _ => self.decode_messages(cpu, at),
            }
        }
        Ok(())
    }

    /// Applies momentum and error feedback to the gradients.
    fn add_state(&mut self, cpu: &Cpu, at: &ExchangeStep) {
        let Self { uncompressed, residual, momentum, .. } = self;
        match at.plan.method {
            Method::OneBitAdam { beta1 } => {
                cpu.for_each_part(uncompressed, PART_LEN, |index, part| {
                    let momentum = &momentum[index * PART_LEN..];
                    one_bit_adam::momentum_share(beta1, at.num_workers, momentum, part);
                });
            }
            Method::Dgc { momentum: factor, .. } => {
                for_each_pair(cpu, momentum, uncompressed, |momentum, part| {
                    dgc::correct(factor, momentum, part);
                });
            }
            _ => {}
        }
        if at.plan.error_feedback {
            cpu.for_each_part(uncompressed, PART_LEN, |index, part| {
                let left = residual.get(index * PART_LEN..).unwrap_or_default();
                part.iter_mut().zip(left).for_each(|(grad, left)| *grad += left);
            });
        }
    }

    /// Ends an exchange: what was not sent becomes the residual. `is_finite` tells whether the sums
    /// of all buckets are: a step that will be skipped must not spoil the state.
    pub(super) fn end(&mut self, cpu: &Cpu, plan: &CompressionPlan, is_finite: bool) {
        if plan.error_feedback && is_finite {
            let (uncompressed, sent) = (&self.uncompressed, &self.sent);
            cpu.for_each_part(&mut self.residual, PART_LEN, |index, part| {
                let start = index * PART_LEN;
                let left = uncompressed[start..].iter().zip(&sent[start..]).map(|(all, s)| all - s);
                part.iter_mut().zip(left).for_each(|(kept, left)| *kept = left);
            });
        }
        match plan.method {
            Method::OneBitAdam { beta1 } if is_finite => {
                for_each_pair(cpu, &mut self.momentum, &mut self.total, |momentum, total| {
                    one_bit_adam::adopt_momentum(beta1, momentum, total);
                });
            }
            Method::Dgc { .. } if is_finite => self.mask_momentum(),
            // Non-finite values would persist.
            Method::Dgc { .. } => self.momentum.fill(0.0),
            Method::PowerSgd { .. } if !is_finite => self.reset_low_rank(plan.seed),
            _ => {}
        }
    }

    /// Restarts PowerSGD, because non-finite factors would persist.
    fn reset_low_rank(&mut self, seed: u64) {
        for tensor in &self.tensors {
            let Some(factors) = tensor.low_rank() else { continue };
            let q = factors.first_q(tensor.first_key(seed));
            self.power[tensor.power.clone()].copy_from_slice(&q);
        }
    }

    /// Clears the momentum of elements that were sent.
    fn mask_momentum(&mut self) {
        for tensor in self.tensors.iter().filter(|tensor| tensor.now.is_some()) {
            let sent = &self.sent[tensor.flat()];
            dgc::mask(self.momentum.get_mut(tensor.flat()).unwrap_or_default(), sent);
        }
    }

    /// Number of elements held.
    pub(super) fn elements_held(&self) -> usize {
        let flat = [&self.uncompressed, &self.sent, &self.total];
        let kept = [&self.residual, &self.momentum, &self.power];
        flat.into_iter().chain(kept).map(Vec::len).sum()
    }

    /// Bytes held for calls.
    pub(super) fn wire_bytes(&self) -> usize {
        let held = |wire: &Option<Pending<Wire>>| match wire {
            Some(Pending::Done(wire)) => wire.num_bytes(),
            _ => 0,
        };
        self.wires.iter().map(held).sum()
    }

    /// Bytes that this rank sends in a step.
    pub(super) fn message_bytes(&self) -> usize {
        let of = |tensor: &Tensor| match tensor.now {
            None => tensor.shape.len * size_of::<f32>(),
            Some(method) => method.written_bytes(&tensor.shape),
        };
        self.tensors.iter().map(of).sum()
    }
}

/// Buffers of a stage whose call has not begun or is finished.
fn wire_of(slot: &mut Option<Pending<Wire>>) -> &mut Wire {
    let Some(Pending::Done(wire)) = slot else { unreachable!("the call is finished") };
    wire
}

/// Runs `task` on corresponding parts of two buffers, on the threads of the device.
fn for_each_pair(
    cpu: &Cpu,
    left: &mut [f32],
    right: &mut [f32],
    task: impl Fn(&mut [f32], &mut [f32]) + Sync,
) {
    let mut jobs: Vec<_> = left.chunks_mut(PART_LEN).zip(right.chunks_mut(PART_LEN)).collect();
    cpu.for_each_part(&mut jobs, 1, |_, jobs| {
        for (left, right) in jobs {
            task(left, right);
        }
    });
}
