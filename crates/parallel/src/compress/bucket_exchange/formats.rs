//! Formats of a bucket on the wire: uncompressed, half precision, drawn values, messages, and
//! low-rank factors.

use super::{
    BucketExchange, ExchangeStep, LowRank, Method, Shape, Stage, Tensor, Wire, expand,
    half_precision, orthonormalize, project, project_back, random_k, sign, top_k, wire_of,
};
use half::{bf16, f16};
use lockstep_tensor::Cpu;
use lockstep_tensor::random::Key;
use std::ops::Range;

impl BucketExchange {
    /// Collects the uncompressed tensors.
    pub(super) fn encode_dense(&mut self) {
        let Self { tensors, uncompressed, sent, wires, .. } = self;
        let dense = tensors.iter().filter(|tensor| tensor.now.is_none()).map(Tensor::flat);
        let wire = wire_of(&mut wires[Stage::Dense as usize]).f32_mut();
        wire.clear();
        for flat in dense {
            sent[flat.clone()].copy_from_slice(&uncompressed[flat.clone()]);
            wire.extend(&uncompressed[flat]);
        }
    }

    /// Takes the sums of the uncompressed tensors.
    pub(super) fn decode_dense(&mut self) {
        let Self { tensors, total, wires, .. } = self;
        let mut rest = &wire_of(&mut wires[Stage::Dense as usize]).f32_mut()[..];
        for tensor in tensors.iter().filter(|tensor| tensor.now.is_none()) {
            let (own, behind) = rest.split_at(tensor.shape.len);
            total[tensor.flat()].copy_from_slice(own);
            rest = behind;
        }
    }

    /// Messages of the tensors, one after the other.
    pub(super) fn encode_messages(&mut self, cpu: &Cpu, at: &ExchangeStep) {
        let Self { tensors, uncompressed, sent, wires, .. } = self;
        let Wire::Messages { own, .. } = wire_of(&mut wires[Stage::Compressed as usize]) else {
            unreachable!("the method writes messages")
        };
        let key = Key::new(at.plan.seed, "compress").with(at.step).with(at.rank as u64);
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
    }

    /// Adds the messages of all ranks.
    pub(super) fn decode_messages(&mut self, cpu: &Cpu, at: &ExchangeStep) {
        let Self { tensors, total, wires, .. } = self;
        let Wire::Messages { own, all } = wire_of(&mut wires[Stage::Compressed as usize]) else {
            unreachable!("the method writes messages")
        };
        let is_vote = at.plan.method == Method::Sign && !at.plan.error_feedback;
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
    }

    /// Rounds to two bytes an element.
    pub(super) fn encode_half(&mut self, cpu: &Cpu) {
        let Self { tensors, uncompressed, sent, wires, .. } = self;
        match wire_of(&mut wires[Stage::Compressed as usize]) {
            Wire::Bf16(room) => round_to::<bf16>(cpu, tensors, uncompressed, sent, room),
            Wire::F16(room) => round_to::<f16>(cpu, tensors, uncompressed, sent, room),
            _ => unreachable!("the method rounds to half precision"),
        }
    }

    /// Widens the sums.
    pub(super) fn decode_half(&mut self, cpu: &Cpu) {
        let Self { tensors, total, wires, .. } = self;
        match wire_of(&mut wires[Stage::Compressed as usize]) {
            Wire::Bf16(sums) => widen::<bf16>(cpu, tensors, total, sums),
            Wire::F16(sums) => widen::<f16>(cpu, tensors, total, sums),
            _ => unreachable!("the method rounds to half precision"),
        }
    }

    /// Values at the drawn places.
    pub(super) fn encode_random_k(&mut self, cpu: &Cpu, at: &ExchangeStep) {
        let Self { tensors, uncompressed, sent, wires, .. } = self;
        let buffer = wire_of(&mut wires[Stage::Compressed as usize]).f32_mut();
        buffer.resize(num_drawn(tensors), 0.0);
        let mut jobs = drawn_parts(tensors, sent, buffer);
        for_each(cpu, &mut jobs, |(part, drawn)| {
            let own = &uncompressed[part.tensor.flat()];
            part.values.fill(0.0);
            // Values that are not drawn reach no other rank, so what is drawn reports them: all
            // ranks skip the step, as they would without compression.
            let is_finite = own.iter().all(|value| value.is_finite());
            let mark = if is_finite { 1.0 } else { f32::NAN };
            for ((place, scale), drawn) in places(part.tensor, at).zip(&mut **drawn) {
                part.values[place] = own[place] * scale * mark;
                *drawn = part.values[place];
            }
        });
    }

    /// Takes the sums at the drawn places.
    pub(super) fn decode_random_k(&mut self, cpu: &Cpu, at: &ExchangeStep) {
        let Self { tensors, total, wires, .. } = self;
        let buffer = wire_of(&mut wires[Stage::Compressed as usize]).f32_mut();
        let mut jobs = drawn_parts(tensors, total, buffer);
        for_each(cpu, &mut jobs, |(part, drawn)| {
            let places = places(part.tensor, at).map(|(place, _)| place);
            places.zip(&**drawn).for_each(|(place, sum)| part.values[place] = *sum);
        });
    }

    /// PowerSGD's P factor of every tensor.
    pub(super) fn encode_first_factor(&mut self, cpu: &Cpu) {
        let Self { tensors, uncompressed, power, wires, .. } = self;
        let buffer = wire_of(&mut wires[Stage::Compressed as usize]).f32_mut();
        buffer.resize(low_rank(tensors).map(|(_, shape)| shape.rows * shape.rank).sum(), 0.0);
        let mut factors = first_factors(tensors, buffer);
        for_each(cpu, &mut factors, |(tensor, shape, p)| {
            project(*shape, &uncompressed[tensor.flat()], &power[tensor.power.clone()], p);
        });
    }

    /// PowerSGD's Q factor of every tensor, from the summed P factors.
    pub(super) fn encode_second_factor(&mut self, cpu: &Cpu) {
        let Self { tensors, uncompressed, sent, power, wires, .. } = self;
        let [_, first, second] = wires;
        let buffer = wire_of(first).f32_mut();
        let q = split(power, low_rank(tensors).map(|(tensor, _)| tensor.power.len()));
        let own = split(sent, tensors.iter().map(|tensor| tensor.shape.len));
        let own = tensors.iter().zip(own).filter(|(tensor, _)| tensor.low_rank().is_some());
        let mut factors: Vec<_> =
            first_factors(tensors, buffer).into_iter().zip(q).zip(own).collect();
        for_each(cpu, &mut factors, |(((tensor, shape, p), q), (_, sent))| {
            orthonormalize(*shape, p);
            project_back(*shape, &uncompressed[tensor.flat()], p, q);
            expand(*shape, p, q, sent);
        });
        let room = wire_of(second).f32_mut();
        room.clear();
        room.extend_from_slice(power);
    }

    /// Multiplies both factors.
    pub(super) fn decode_second_factor(&mut self, cpu: &Cpu) {
        let Self { tensors, total, power, wires, .. } = self;
        let [_, first, second] = wires;
        power.copy_from_slice(wire_of(second).f32_mut());
        let sums = split(total, tensors.iter().map(|tensor| tensor.shape.len));
        let sums = tensors.iter().zip(sums).filter(|(tensor, _)| tensor.low_rank().is_some());
        let buffer = wire_of(first).f32_mut();
        let mut factors: Vec<_> = first_factors(tensors, buffer).into_iter().zip(sums).collect();
        for_each(cpu, &mut factors, |((tensor, shape, p), (_, total))| {
            expand(*shape, p, &power[tensor.power.clone()], total);
        });
    }
}

/// Rounds compressed tensors into the wire, and writes them widened to `sent`.
fn round_to<T: half_precision::Half>(
    cpu: &Cpu,
    tensors: &[Tensor],
    uncompressed: &[f32],
    sent: &mut [f32],
    room: &mut Vec<T>,
) {
    let compressed = tensors.iter().filter(|tensor| tensor.now.is_some());
    room.resize(compressed.map(|tensor| tensor.shape.len).sum(), T::default());
    let mut rounded = split_among(compressed_parts(tensors, sent), room, |part| part.values.len());
    for_each(cpu, &mut rounded, |(part, room)| {
        half_precision::round(&uncompressed[part.tensor.flat()], part.values, room);
    });
}

fn widen<T: half_precision::Half>(
    cpu: &Cpu,
    tensors: &[Tensor],
    total: &mut [f32],
    sums: &mut [T],
) {
    let mut sums = split_among(compressed_parts(tensors, total), sums, |part| part.values.len());
    for_each(cpu, &mut sums, |(part, sums)| T::widen(sums, part.values));
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
    len: impl Fn(&CompressedPart<'a>) -> usize,
) -> Vec<(CompressedPart<'a>, &'a mut [T])> {
    let parts: Vec<_> = parts.collect();
    let buffers: Vec<_> = split(buffer, parts.iter().map(len)).collect();
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

/// Drawn places of a tensor with the factors of their values.
fn places(tensor: &Tensor, at: &ExchangeStep) -> impl Iterator<Item = (usize, f32)> {
    let Shape { len, number, .. } = tensor.shape;
    let Some(Method::RandomK { ratio }) = tensor.now else {
        unreachable!("compressed tensors use random-k")
    };
    let error_feedback = at.plan.error_feedback;
    let scale = move |len: usize| if error_feedback { 1.0 } else { len as f32 };
    let key = Key::new(at.plan.seed, "random-k").with(at.step).with(number);
    random_k::places(len, ratio, key).map(move |(place, len)| (place, scale(len)))
}

/// Number of places that random-k draws of a tensor.
fn num_drawn_of(tensor: &Tensor) -> usize {
    match tensor.now {
        Some(Method::RandomK { ratio }) => top_k::num_sent(tensor.shape.len, ratio),
        _ => 0,
    }
}

fn num_drawn(tensors: &[Tensor]) -> usize {
    tensors.iter().map(num_drawn_of).sum()
}

/// Compressed tensors with their drawn values in a buffer.
fn drawn_parts<'a>(
    tensors: &'a [Tensor],
    flat: &'a mut [f32],
    buffer: &'a mut [f32],
) -> Vec<(CompressedPart<'a>, &'a mut [f32])> {
    split_among(compressed_parts(tensors, flat), buffer, |part| num_drawn_of(part.tensor))
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
    use lockstep_platform::{Deadline, real};
    use lockstep_tensor::Isa;
    use std::collections::BTreeSet;
    use std::sync::Mutex;
    use std::time::Duration;

    #[test]
    fn tensors_are_compressed_by_all_threads() {
        const NUM_THREADS: usize = 3;
        let world = real();
        let threads = Mutex::new(BTreeSet::new());
        let deadline = Deadline::after(world.clock(), Duration::from_mins(1));
        let spawn = |_, body: Box<dyn FnOnce() + Send>| {
            drop(world.threads().spawn("compute", body).expect("threads start"));
        };
        let cpu = Cpu::new(Isa::detect(), NUM_THREADS, &spawn);
        let num_observed = || threads.lock().unwrap().len();
        // Every task waits for all threads, so that none of them takes the task of another.
        for_each(&cpu, &mut [(); NUM_THREADS], |()| {
            threads.lock().unwrap().insert(format!("{:?}", std::thread::current().id()));
            while num_observed() < NUM_THREADS && !deadline.has_passed(world.clock()) {
                std::thread::yield_now();
            }
        });
        assert_eq!(num_observed(), NUM_THREADS);
    }
}
