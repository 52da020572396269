//! The compressed exchange of a step: local gradients in, the sum of all ranks' compressed
//! gradients out.

use super::hierarchy::Hierarchy;
use super::power_sgd::{LowRank, expand, orthonormalize, project, project_back};
use super::{
    CompressionPlan, CompressionStats, Method, Shape, dgc, half_precision, one_bit_adam, random_k,
    sign,
};
use half::{bf16, f16};
use lockstep_comm::{CommError, Reduction};
use lockstep_optim::Slot;
use lockstep_tensor::random::Key;
use std::ops::Range;

/// Compression state of a rank.
pub(super) struct Compression {
    pub(super) plan: CompressionPlan,
    /// Step at which the second moments of 1-bit Adam freeze.
    pub(super) freezes_at: Option<u64>,
    pub(super) hierarchy: Hierarchy,
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
    pub(super) own: Vec<u8>,
    pub(super) all: Vec<u8>,
    pub(super) buffer: Vec<f32>,
    /// Calls of the current step, in order.
    pub(super) stages: Vec<Stage>,
    /// Statistics of the last step.
    pub(super) stats: Option<CompressionStats>,
}

/// One collective call of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Tensors that are sent uncompressed.
    Dense,
    /// Compressed tensors, or PowerSGD's P factors.
    Compressed,
    /// PowerSGD's Q factors.
    SecondFactor,
}

/// One tensor of gradients.
pub(super) struct Tensor {
    pub(super) slot: Slot,
    pub(super) shape: Shape,
    /// Offset in flat buffers.
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

impl Compression {
    /// Begins an exchange: adds residuals to the gradients, and plans the calls.
    pub(super) fn begin(&mut self, step: u64) {
        let num_workers = self.hierarchy.leaders.group_size();
        for tensor in &mut self.tensors {
            let now = |method: Method| method.at_step(step, &tensor.shape, num_workers);
            tensor.now = tensor.method.and_then(now);
        }
        match self.plan.method {
            Method::OneBitAdam { beta1 } => {
                one_bit_adam::momentum_share(
                    beta1,
                    num_workers,
                    &self.momentum,
                    &mut self.uncompressed,
                );
            }
            Method::Dgc { momentum, .. } => {
                dgc::correct(momentum, &mut self.momentum, &mut self.uncompressed);
            }
            _ => {}
        }
        if self.plan.error_feedback {
            self.uncompressed.iter_mut().zip(&self.residual).for_each(|(g, left)| *g += left);
        }
        self.total.fill(0.0);
        self.stages.clear();
        if self.tensors.iter().any(|tensor| tensor.now.is_none()) {
            self.stages.push(Stage::Dense);
        }
        if self.tensors.iter().any(|tensor| tensor.now.is_some()) {
            self.stages.push(Stage::Compressed);
            if matches!(self.plan.method, Method::PowerSgd { .. }) {
                self.stages.push(Stage::SecondFactor);
            }
        }
    }

    /// Makes one call of the exchange.
    pub(super) fn run_stage(&mut self, stage: Stage, step: u64) -> Result<(), CommError> {
        match (stage, self.plan.method) {
            (Stage::Dense, _) => self.exchange_dense(),
            (Stage::SecondFactor, _) => self.exchange_second_factor(),
            (Stage::Compressed, Method::Bf16) => self.exchange_half::<bf16>(),
            (Stage::Compressed, Method::F16) => self.exchange_half::<f16>(),
            (Stage::Compressed, Method::RandomK { .. }) => self.exchange_random_k(step),
            (Stage::Compressed, Method::PowerSgd { .. }) => self.exchange_first_factor(),
            (Stage::Compressed, _) => self.exchange_messages(step),
        }
    }

    /// Ends an exchange: what was not sent becomes the residual.
    pub(super) fn end(&mut self) {
        // A step that will be skipped must not spoil the state.
        let is_finite = self.total.iter().all(|value| value.is_finite());
        if self.plan.error_feedback && is_finite {
            let left = self
                .uncompressed
                .iter()
                .zip(&self.sent)
                .map(|(uncompressed, sent)| uncompressed - sent);
            self.residual.iter_mut().zip(left).for_each(|(kept, left)| *kept = left);
        }
        match self.plan.method {
            Method::OneBitAdam { beta1 } if is_finite => {
                one_bit_adam::adopt_momentum(beta1, &mut self.momentum, &mut self.total);
            }
            Method::Dgc { .. } if is_finite => self.mask_momentum(),
            // Non-finite values would persist.
            Method::Dgc { .. } => self.momentum.fill(0.0),
            Method::PowerSgd { .. } if !is_finite => self.reset_low_rank(),
            _ => {}
        }
    }

    /// Restarts PowerSGD, because non-finite factors would persist.
    fn reset_low_rank(&mut self) {
        for tensor in &self.tensors {
            let Some(buffer) = tensor.low_rank() else { continue };
            let q = buffer.first_q(tensor.first_key(self.plan.seed));
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

    /// All-reduces the uncompressed tensors in one call.
    fn exchange_dense(&mut self) -> Result<(), CommError> {
        let Self { tensors, uncompressed, sent, total, buffer, hierarchy, .. } = self;
        let all = || tensors.iter().filter(|tensor| tensor.now.is_none()).map(Tensor::flat);
        buffer.clear();
        all().for_each(|flat| buffer.extend(&uncompressed[flat]));
        hierarchy.leaders.all_reduce(buffer, Reduction::Sum)?;
        let mut rest = &buffer[..];
        for flat in all() {
            let (own, behind) = rest.split_at(flat.len());
            total[flat.clone()].copy_from_slice(own);
            sent[flat.clone()].copy_from_slice(&uncompressed[flat]);
            rest = behind;
        }
        Ok(())
    }

    /// Methods that all-gather messages.
    fn exchange_messages(&mut self, step: u64) -> Result<(), CommError> {
        let Self { plan, tensors, uncompressed, sent, total, own, all, hierarchy, .. } = self;
        let key =
            Key::new(plan.seed, "compress").with(step).with(hierarchy.leaders.group_rank() as u64);
        own.clear();
        for tensor in &*tensors {
            let Some(method) = tensor.now else { continue };
            let (shape, flat, start) = (&tensor.shape, tensor.flat(), own.len());
            method.encode(shape, &uncompressed[flat.clone()], key.with(shape.number), own);
            sent[flat.clone()].fill(0.0);
            method.decode(shape, &own[start..], &mut sent[flat]);
        }
        all.resize(own.len() * hierarchy.leaders.group_size(), 0);
        hierarchy.leaders.all_gather(own, all)?;
        let is_vote = plan.method == Method::Sign && !plan.error_feedback;
        let mut start = 0;
        for tensor in &*tensors {
            let Some(method) = tensor.now else { continue };
            let shape = &tensor.shape;
            let end = start + method.message_len(shape);
            let messages = all.chunks_exact(own.len()).map(|message| &message[start..end]);
            let into = &mut total[tensor.flat()];
            if is_vote {
                sign::vote(&messages.collect::<Vec<_>>(), shape.row_len, into);
            } else {
                messages.for_each(|message| method.decode(shape, message, into));
            }
            start = end;
        }
        Ok(())
    }

    /// Half precision: all-reduces two bytes an element.
    fn exchange_half<T: half_precision::Half>(&mut self) -> Result<(), CommError> {
        let Self { tensors, uncompressed, sent, total, hierarchy, .. } = self;
        let all = || tensors.iter().filter(|tensor| tensor.now.is_some()).map(Tensor::flat);
        let mut room: Vec<T> = Vec::new();
        for flat in all() {
            half_precision::round(&uncompressed[flat.clone()], &mut sent[flat], &mut room);
        }
        hierarchy.leaders.all_reduce(&mut room, Reduction::Sum)?;
        let mut sums = room.as_slice();
        for flat in all() {
            let (own, rest) = sums.split_at(flat.len());
            T::widen(own, &mut total[flat]);
            sums = rest;
        }
        Ok(())
    }

    /// Random-k: all-reduces the values at the drawn places.
    fn exchange_random_k(&mut self, step: u64) -> Result<(), CommError> {
        let Self { plan, tensors, uncompressed, sent, total, buffer, hierarchy, .. } = self;
        let key = Key::new(plan.seed, "random-k").with(step);
        let some = || tensors.iter().filter(|tensor| tensor.now.is_some());
        let places = |tensor: &Tensor| {
            let Shape { len, number, .. } = tensor.shape;
            let start = tensor.start;
            let Some(Method::RandomK { ratio }) = tensor.now else {
                unreachable!("all tensors use random-k")
            };
            let scale = |len: usize| if plan.error_feedback { 1.0 } else { len as f32 };
            random_k::places(len, ratio, key.with(number))
                .map(move |(place, len)| (start + place, scale(len)))
        };
        buffer.clear();
        for tensor in some() {
            sent[tensor.flat()].fill(0.0);
            // Values that are not drawn reach no other rank, so what is drawn reports them: all
            // ranks skip the step, as they would without compression.
            let is_finite = uncompressed[tensor.flat()].iter().all(|value| value.is_finite());
            let mark = if is_finite { 1.0 } else { f32::NAN };
            for (place, scale) in places(tensor) {
                sent[place] = uncompressed[place] * scale * mark;
                buffer.push(sent[place]);
            }
        }
        hierarchy.leaders.all_reduce(buffer, Reduction::Sum)?;
        let places = some().flat_map(|tensor| places(tensor).map(|(place, _)| place));
        places.zip(&*buffer).for_each(|(place, sum)| total[place] = *sum);
        Ok(())
    }

    /// PowerSGD: all-reduces the P factor of every tensor.
    fn exchange_first_factor(&mut self) -> Result<(), CommError> {
        let Self { tensors, uncompressed, power, buffer, hierarchy, .. } = self;
        buffer.resize(low_rank(tensors).map(|(_, shape)| shape.rows * shape.rank).sum(), 0.0);
        let mut at = 0;
        for (tensor, shape) in low_rank(tensors) {
            let p = &mut buffer[at..at + shape.rows * shape.rank];
            project(shape, &uncompressed[tensor.flat()], &power[tensor.power.clone()], p);
            at += p.len();
        }
        hierarchy.leaders.all_reduce(buffer, Reduction::Sum)
    }

    /// PowerSGD: all-reduces the Q factor of every tensor, and multiplies both.
    fn exchange_second_factor(&mut self) -> Result<(), CommError> {
        let Self { tensors, uncompressed, sent, total, power, buffer, hierarchy, .. } = self;
        let mut at = 0;
        for (tensor, shape) in low_rank(tensors) {
            let flat = tensor.flat();
            let p = &mut buffer[at..at + shape.rows * shape.rank];
            let q = &mut power[tensor.power.clone()];
            orthonormalize(shape, p);
            project_back(shape, &uncompressed[flat.clone()], p, q);
            expand(shape, p, q, &mut sent[flat]);
            at += p.len();
        }
        hierarchy.leaders.all_reduce(power, Reduction::Sum)?;
        at = 0;
        for (tensor, shape) in low_rank(tensors) {
            let p = &buffer[at..at + shape.rows * shape.rank];
            expand(shape, p, &power[tensor.power.clone()], &mut total[tensor.flat()]);
            at += p.len();
        }
        Ok(())
    }

    /// Squared norms of the compression error, the uncompressed gradients and the residual, on this
    /// rank.
    pub(super) fn observe(&self) -> [f64; 3] {
        let square = |value: f32| f64::from(value) * f64::from(value);
        let pairs = self.uncompressed.iter().zip(&self.sent);
        let error = pairs.fold(0.0, |sum, (uncompressed, sent)| sum + square(uncompressed - sent));
        let norm =
            self.uncompressed.iter().fold(0.0, |sum, uncompressed| sum + square(*uncompressed));
        let left = self.residual.iter().fold(0.0, |sum, left| sum + square(*left));
        [error, norm, left]
    }

    /// Bytes that this rank sends in a step.
    pub(super) fn message_bytes(&self) -> u64 {
        let of = |tensor: &Tensor| match tensor.now {
            None => tensor.shape.len * size_of::<f32>(),
            Some(method) => method.written_bytes(&tensor.shape),
        };
        self.tensors.iter().map(of).sum::<usize>() as u64
    }

    /// Number of elements held.
    pub(super) fn elements_held(&self) -> usize {
        let flat = [&self.uncompressed, &self.sent, &self.total];
        let kept = [&self.residual, &self.momentum, &self.power, &self.buffer];
        let messages = self.own.len() + self.all.len();
        let floats = flat.into_iter().chain(kept).map(Vec::len).sum::<usize>();
        floats + messages.div_ceil(size_of::<f32>())
    }
}

/// Tensors with low-rank factors, with the factors' shape.
fn low_rank(tensors: &[Tensor]) -> impl Iterator<Item = (&Tensor, LowRank)> {
    tensors.iter().filter_map(|tensor| Some((tensor, tensor.low_rank()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::on_workers;

    const LEN: usize = 64;

    /// Random-k with error feedback on one tensor.
    fn random_k(data: &lockstep_comm::Comm) -> Compression {
        let method = Method::RandomK { ratio: 1.0 / 16.0 };
        let slot = Slot {
            block: 0,
            name: "weight".to_owned(),
            tensor: 0,
            piece: 0,
            range: 0..LEN,
            grads: 0..LEN,
            first: 0,
            decay: false,
        };
        let shape = Shape { len: LEN, row_len: LEN, number: 0 };
        let method_of = Some(method);
        let tensor = Tensor { slot, shape, start: 0, method: method_of, now: None, power: 0..0 };
        let zeros = || vec![0.0; LEN];
        Compression {
            plan: CompressionPlan { method, error_feedback: true, seed: 7, group: 0 },
            freezes_at: None,
            hierarchy: Hierarchy::new(data, 0).unwrap(),
            tensors: vec![tensor],
            residual: zeros(),
            momentum: Vec::new(),
            power: Vec::new(),
            uncompressed: zeros(),
            sent: zeros(),
            total: zeros(),
            own: Vec::new(),
            all: Vec::new(),
            buffer: Vec::new(),
            stages: Vec::new(),
            stats: None,
        }
    }

    /// One exchange of gradients of ones, one of which is replaced by `other` on rank 1.
    fn exchange(state: &mut Compression, step: u64, (place, other): (usize, f32)) {
        state.uncompressed.fill(1.0);
        if state.hierarchy.leaders.group_rank() == 1 {
            state.uncompressed[place] = other;
        }
        state.begin(step);
        for stage in state.stages.clone() {
            state.run_stage(stage, step).unwrap();
        }
        state.end();
    }

    #[test]
    fn a_value_that_random_k_does_not_draw_is_reported_and_not_kept() {
        on_workers(2, false, |overlap| {
            let mut state = random_k(overlap.comm());
            exchange(&mut state, 0, (0, 1.0));
            let (sent, kept) = (state.sent.clone(), state.residual.clone());
            assert!(state.total.iter().all(|value| value.is_finite()));
            assert!(kept.iter().any(|value| *value > 0.0), "the rest is kept");
            let drawn = |step: u64| {
                let key = Key::new(7, "random-k").with(step).with(0);
                random_k::places(LEN, 1.0 / 16.0, key).map(|(place, _)| place).collect::<Vec<_>>()
            };
            let places = drawn(1);
            assert_eq!(sent.iter().filter(|value| **value != 0.0).count(), places.len());
            let elsewhere = (0..LEN).find(|place| !places.contains(place)).unwrap();
            for other in [f32::NAN, f32::INFINITY] {
                exchange(&mut state, 1, (elsewhere, other));
                assert!(state.total.iter().any(|value| !value.is_finite()), "all ranks skip");
                assert_eq!(state.residual, kept, "a skipped step leaves the residual as it is");
            }
            exchange(&mut state, 1, (elsewhere, 1.0));
            assert!(state.total.iter().chain(&state.residual).all(|value| value.is_finite()));
        });
    }
}
