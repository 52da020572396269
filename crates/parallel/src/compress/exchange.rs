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
use lockstep_tensor::Cpu;
use lockstep_tensor::random::Key;
use std::ops::Range;

/// Elements of a flat buffer that a thread handles at a time.
const PART_LEN: usize = 1 << 14;

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
    pub(super) fn begin(&mut self, cpu: &Cpu, step: u64) {
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
            let residual = &self.residual;
            cpu.for_each_part(&mut self.uncompressed, PART_LEN, |index, part| {
                let left = residual.get(index * PART_LEN..).unwrap_or_default();
                part.iter_mut().zip(left).for_each(|(grad, left)| *grad += left);
            });
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
    pub(super) fn run_stage(
        &mut self,
        cpu: &Cpu,
        stage: Stage,
        step: u64,
    ) -> Result<(), CommError> {
        match (stage, self.plan.method) {
            (Stage::Dense, _) => self.exchange_dense(),
            (Stage::SecondFactor, _) => self.exchange_second_factor(cpu),
            (Stage::Compressed, Method::Bf16) => self.exchange_half::<bf16>(cpu),
            (Stage::Compressed, Method::F16) => self.exchange_half::<f16>(cpu),
            (Stage::Compressed, Method::RandomK { .. }) => self.exchange_random_k(step),
            (Stage::Compressed, Method::PowerSgd { .. }) => self.exchange_first_factor(cpu),
            (Stage::Compressed, _) => self.exchange_messages(cpu, step),
        }
    }

    /// Ends an exchange: what was not sent becomes the residual.
    pub(super) fn end(&mut self, cpu: &Cpu) {
        // A step that will be skipped must not spoil the state.
        let is_finite = self.total.iter().all(|value| value.is_finite());
        if self.plan.error_feedback && is_finite {
            let (uncompressed, sent) = (&self.uncompressed, &self.sent);
            cpu.for_each_part(&mut self.residual, PART_LEN, |index, part| {
                let start = index * PART_LEN;
                let left = uncompressed[start..].iter().zip(&sent[start..]).map(|(all, s)| all - s);
                part.iter_mut().zip(left).for_each(|(kept, left)| *kept = left);
            });
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
    fn exchange_messages(&mut self, cpu: &Cpu, step: u64) -> Result<(), CommError> {
        let Self { plan, tensors, uncompressed, sent, total, own, all, hierarchy, .. } = self;
        let key =
            Key::new(plan.seed, "compress").with(step).with(hierarchy.leaders.group_rank() as u64);
        let mut messages: Vec<(CompressedPart<'_>, Vec<u8>)> =
            compressed_parts(tensors, sent).map(|part| (part, Vec::new())).collect();
        for_each(cpu, &mut messages, |(part, message)| {
            let &mut CompressedPart { tensor, method, ref mut values } = part;
            let (shape, key) = (&tensor.shape, key.with(tensor.shape.number));
            method.encode(cpu.isa(), shape, &uncompressed[tensor.flat()], key, message);
            values.fill(0.0);
            method.decode(shape, message, values);
        });
        own.clear();
        for (_, message) in &messages {
            own.extend_from_slice(message);
        }
        all.resize(own.len() * hierarchy.leaders.group_size(), 0);
        hierarchy.leaders.all_gather(own, all)?;
        let is_vote = plan.method == Method::Sign && !plan.error_feedback;
        let (all, len, mut start) = (&*all, own.len(), 0);
        let mut sums: Vec<(CompressedPart<'_>, Range<usize>)> = compressed_parts(tensors, total)
            .map(|part| {
                let end = start + part.method.message_len(&part.tensor.shape);
                (part, std::mem::replace(&mut start, end)..end)
            })
            .collect();
        for_each(cpu, &mut sums, |(part, place)| {
            let &mut CompressedPart { tensor, method, ref mut values } = part;
            let messages = all.chunks_exact(len).map(|message| &message[place.clone()]);
            if is_vote {
                sign::vote(&messages.collect::<Vec<_>>(), tensor.shape.row_len, values);
            } else {
                messages.for_each(|message| method.decode(&tensor.shape, message, values));
            }
        });
        Ok(())
    }

    /// Half precision: all-reduces two bytes an element.
    fn exchange_half<T: half_precision::Half>(&mut self, cpu: &Cpu) -> Result<(), CommError> {
        let Self { tensors, uncompressed, sent, total, hierarchy, .. } = self;
        let len = compressed_parts(tensors, sent).map(|part| part.values.len()).sum();
        let mut room = vec![T::default(); len];
        let mut rounded = split_among(compressed_parts(tensors, sent), &mut room);
        for_each(cpu, &mut rounded, |(part, room)| {
            half_precision::round(&uncompressed[part.tensor.flat()], part.values, room);
        });
        hierarchy.leaders.all_reduce(&mut room, Reduction::Sum)?;
        let mut sums = split_among(compressed_parts(tensors, total), &mut room);
        for_each(cpu, &mut sums, |(part, sums)| T::widen(sums, part.values));
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
    fn exchange_first_factor(&mut self, cpu: &Cpu) -> Result<(), CommError> {
        let Self { tensors, uncompressed, power, buffer, hierarchy, .. } = self;
        buffer.resize(low_rank(tensors).map(|(_, shape)| shape.rows * shape.rank).sum(), 0.0);
        let mut factors = first_factors(tensors, buffer);
        for_each(cpu, &mut factors, |(tensor, shape, p)| {
            project(*shape, &uncompressed[tensor.flat()], &power[tensor.power.clone()], p);
        });
        hierarchy.leaders.all_reduce(buffer, Reduction::Sum)
    }

    /// PowerSGD: all-reduces the Q factor of every tensor, and multiplies both.
    fn exchange_second_factor(&mut self, cpu: &Cpu) -> Result<(), CommError> {
        let Self { tensors, uncompressed, sent, total, power, buffer, hierarchy, .. } = self;
        let second = split(power, low_rank(tensors).map(|(tensor, _)| tensor.power.len()));
        let own = split(sent, tensors.iter().map(|tensor| tensor.shape.len));
        let own = tensors.iter().zip(own).filter(|(tensor, _)| tensor.low_rank().is_some());
        let mut factors: Vec<_> =
            first_factors(tensors, buffer).into_iter().zip(second).zip(own).collect();
        for_each(cpu, &mut factors, |(((tensor, shape, p), q), (_, sent))| {
            orthonormalize(*shape, p);
            project_back(*shape, &uncompressed[tensor.flat()], p, q);
            expand(*shape, p, q, sent);
        });
        hierarchy.leaders.all_reduce(power, Reduction::Sum)?;
        let sums = split(total, tensors.iter().map(|tensor| tensor.shape.len));
        let sums = tensors.iter().zip(sums).filter(|(tensor, _)| tensor.low_rank().is_some());
        let mut factors: Vec<_> = first_factors(tensors, buffer).into_iter().zip(sums).collect();
        for_each(cpu, &mut factors, |((tensor, shape, p), (_, total))| {
            expand(*shape, p, &power[tensor.power.clone()], total);
        });
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

/// A tensor that is compressed in the current step, with its part of a flat buffer.
struct CompressedPart<'a> {
    tensor: &'a Tensor,
    method: Method,
    values: &'a mut [f32],
}

/// Compressed tensors with their parts of a flat buffer of all tensors.
fn compressed_parts<'a>(
    tensors: &'a [Tensor],
    flat: &'a mut [f32],
) -> impl Iterator<Item = CompressedPart<'a>> {
    let parts = split(flat, tensors.iter().map(|tensor| tensor.shape.len));
    tensors
        .iter()
        .zip(parts)
        .filter_map(|(tensor, values)| Some(CompressedPart { tensor, method: tensor.now?, values }))
}

/// Pairs tensors with consecutive parts of a buffer that holds these tensors alone.
fn split_among<'a, T>(
    parts: impl Iterator<Item = CompressedPart<'a>>,
    buffer: &'a mut [T],
) -> Vec<(CompressedPart<'a>, &'a mut [T])> {
    let parts: Vec<_> = parts.collect();
    let buffers: Vec<_> = split(buffer, parts.iter().map(|part| part.values.len())).collect();
    parts.into_iter().zip(buffers).collect()
}

/// Consecutive parts of a buffer.
fn split<T>(buffer: &mut [T], lens: impl Iterator<Item = usize>) -> impl Iterator<Item = &mut [T]> {
    lens.scan(buffer, |rest, len| {
        let (part, behind) = std::mem::take(rest).split_at_mut(len);
        *rest = behind;
        Some(part)
    })
}

/// Runs `task` on every job, on the threads of the device. Tensors are independent, so no bit
/// depends on the threads.
fn for_each<T: Send>(cpu: &Cpu, jobs: &mut [T], task: impl Fn(&mut T) + Sync) {
    cpu.for_each_part(jobs, 1, |_, jobs| jobs.iter_mut().for_each(&task));
}

/// Tensors with low-rank factors, with the factors' shape and the P factor in a flat buffer.
fn first_factors<'a>(
    tensors: &'a [Tensor],
    buffer: &'a mut [f32],
) -> Vec<(&'a Tensor, LowRank, &'a mut [f32])> {
    let factors = split(buffer, low_rank(tensors).map(|(_, shape)| shape.rows * shape.rank));
    low_rank(tensors).zip(factors).map(|((tensor, shape), p)| (tensor, shape, p)).collect()
}

/// Tensors with low-rank factors, with the factors' shape.
fn low_rank(tensors: &[Tensor]) -> impl Iterator<Item = (&Tensor, LowRank)> {
    tensors.iter().filter_map(|tensor| Some((tensor, tensor.low_rank()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::on_workers;
    use lockstep_tensor::Isa;

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
        let cpu = Cpu::single(Isa::detect());
        state.begin(&cpu, step);
        for stage in state.stages.clone() {
            state.run_stage(&cpu, stage, step).unwrap();
        }
        state.end(&cpu);
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
