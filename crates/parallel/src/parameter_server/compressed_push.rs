//! Compressed pushes: gradients for the servers by the methods of [`crate::compress`] whose
//! messages decode alone.
//!
//! Each server's part of a bucket is compressed as one tensor. The worker keeps the residual for
//! error feedback; servers decode and hold no state. Pulled weights are not compressed.

use crate::compress::{Method, Shape};
use crate::distance::squared_distance;
use crate::from_recipe;
use half::{bf16, f16};
use lockstep_comm::{Comm, CommError};
use lockstep_config::Recipe;
use lockstep_tensor::Cpu;
use lockstep_tensor::random::Key;
use lockstep_tensor::simd::Isa;
use std::ops::Range;

/// Elements that share a magnitude in sign compression.
const ROW: usize = 64;

/// Push compression settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PushCompression {
    /// Compression method, one whose messages decode alone.
    pub method: Method,
    /// Whether the residual is added to the next gradient.
    pub error_feedback: bool,
    /// Seed of stochastic methods.
    pub seed: u64,
}

impl PushCompression {
    /// Push compression of a recipe, if it compresses.
    pub fn of(recipe: &Recipe) -> Option<Self> {
        let (error_feedback, seed) = (recipe.compress.error_feedback, recipe.train.seed);
        from_recipe::method_of(recipe).map(|method| Self { method, error_feedback, seed })
    }

    /// Bytes of a part's message; `None` where the part itself is not longer.
    pub(crate) fn message_len(self, len: usize) -> Option<usize> {
        let message_len = match self.method {
            Method::Bf16 | Method::F16 => len * size_of::<u16>(),
            Method::Sign => self.method.message_len(&Self::rows(len)) + Self::rest(len),
            method => method.message_len(&Self::whole(len)),
        };
        (message_len < len * size_of::<f32>()).then_some(message_len)
    }

    fn whole(len: usize) -> Shape {
        Shape { len, row_len: len, number: 0 }
    }

    /// Shape of the whole rows; the remainder is sent uncompressed.
    fn rows(len: usize) -> Shape {
        Shape { len: len / ROW * ROW, row_len: ROW, number: 0 }
    }

    fn rest(len: usize) -> usize {
        len % ROW * size_of::<f32>()
    }

    /// Encodes a part with an instruction set, on which no bit depends.
    fn encode(self, isa: Isa, values: &[f32], key: Key, message: &mut Vec<u8>) {
        let wide = |value: &f32| value.to_le_bytes();
        match self.method {
            Method::Bf16 => {
                message.extend(values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()));
            }
            Method::F16 => {
                message.extend(values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()));
            }
            Method::Sign => {
                let shape = Self::rows(values.len());
                let (rows, rest) = values.split_at(shape.len);
                self.method.encode(isa, &shape, rows, key, message);
                message.extend(rest.iter().flat_map(wide));
            }
            method => {
                let shape = Self::whole(values.len());
                method.encode(isa, &shape, values, key, message);
            }
        }
    }

    /// Decodes a message into zeros.
    fn decode(self, message: &[u8], into: &mut [f32]) {
        let halves = || message.as_chunks::<2>().0.iter().copied();
        match self.method {
            Method::Bf16 => {
                let values = halves().map(|bytes| bf16::from_le_bytes(bytes).to_f32());
                into.iter_mut().zip(values).for_each(|(into, value)| *into = value);
            }
            Method::F16 => {
                let values = halves().map(|bytes| f16::from_le_bytes(bytes).to_f32());
                into.iter_mut().zip(values).for_each(|(into, value)| *into = value);
            }
            Method::Sign => {
                let shape = Self::rows(into.len());
                let (rows, rest) = into.split_at_mut(shape.len);
                let (signs, wide) = message.split_at(self.method.message_len(&shape));
                self.method.decode(&shape, signs, rows);
                let values = wide.as_chunks::<4>().0.iter().copied().map(f32::from_le_bytes);
                rest.iter_mut().zip(values).for_each(|(into, value)| *into = value);
            }
            method => method.decode(&Self::whole(into.len()), message, into),
        }
    }

    /// Receives a worker's gradient of one part.
    pub(super) fn receive(
        self,
        comm: &Comm,
        from: usize,
        tag: u64,
        part: &mut [f32],
    ) -> Result<(), CommError> {
        let Some(len) = self.message_len(part.len()) else { return comm.recv(part, from, tag) };
        let mut message = vec![0_u8; len];
        comm.recv(&mut message, from, tag)?;
        part.fill(0.0);
        self.decode(&message, part);
        Ok(())
    }
}

/// Push compression state of a worker.
pub(super) struct PushCompressor {
    pub(super) compression: PushCompression,
    /// Residuals, by bucket.
    pub(super) residual: Vec<Vec<f32>>,
    /// Messages by server and bucket; `None` for parts sent uncompressed.
    pub(super) messages: Vec<Vec<Option<Vec<u8>>>>,
    /// Squared norms of the error and of the gradient, in the current step.
    pub(super) error: f64,
    pub(super) norm: f64,
    pub(super) num_elements: usize,
    /// A decoded part of each server.
    rooms: Vec<Vec<f32>>,
}

/// One server's part of a bucket while it is compressed.
struct PushPart<'a> {
    grads: &'a mut [f32],
    residual: &'a mut [f32],
    message: &'a mut Option<Vec<u8>>,
    room: &'a mut Vec<f32>,
    key: Key,
    /// Squared norms of the error and of the gradient, if it is compressed.
    norms: Option<[f64; 2]>,
}

impl PushPart<'_> {
    /// Adds the residual, encodes the sum, and keeps what the message lacks.
    fn compress(&mut self, isa: Isa, compression: PushCompression) {
        let Self { grads, residual, message, room, key, .. } = self;
        residual.iter().zip(&mut **grads).for_each(|(left, grad)| *grad += left);
        let Some(len) = compression.message_len(grads.len()) else {
            residual.fill(0.0);
            **message = None;
            return;
        };
        let mut written = message.take().unwrap_or_default();
        written.clear();
        compression.encode(isa, grads, *key, &mut written);
        assert_eq!(written.len(), len, "the length that the server expects");
        room.clear();
        room.resize(grads.len(), 0.0);
        compression.decode(&written, room);
        self.norms = Some([squared_distance(grads, room), squared_distance(grads, &[])]);
        for ((left, grad), arrived) in residual.iter_mut().zip(&**grads).zip(&**room) {
            *left = *grad - *arrived;
        }
        **message = Some(written);
    }
}

impl PushCompressor {
    pub(super) fn new(
        compression: PushCompression,
        num_servers: usize,
        bucket_lens: &[usize],
    ) -> Self {
        let room = |len: &usize| vec![0.0; if compression.error_feedback { *len } else { 0 }];
        Self {
            compression,
            residual: bucket_lens.iter().map(room).collect(),
            messages: vec![vec![None; bucket_lens.len()]; num_servers],
            error: 0.0,
            norm: 0.0,
            num_elements: 0,
            rooms: vec![Vec::new(); num_servers],
        }
    }

    /// Starts the gradient of a step.
    pub(super) fn begin(&mut self) {
        (self.error, self.norm, self.num_elements) = (0.0, 0.0, 0);
    }

    /// Compresses a bucket's gradient, the parts of all servers on the threads of the device, and
    /// keeps the residual. `cuts` are the consecutive parts of the servers.
    pub(super) fn compress(
        &mut self,
        cpu: &Cpu,
        bucket: usize,
        cuts: &[Range<usize>],
        grads: &mut [f32],
        (step, worker): (u64, usize),
    ) {
        let Self { compression, residual, messages, rooms, .. } = self;
        let compression = *compression;
        // The label selects the random stream: another spelling would change the results of runs.
        let key = Key::new(compression.seed, "squeeze").with(step).with(worker as u64);
        let lens = || cuts.iter().map(Range::len);
        let start = cuts.first().map_or(0, |cut| cut.start);
        let grads = split(&mut grads[start..], lens());
        let residual = residual[bucket].get_mut(start..).unwrap_or_default();
        let mut residuals = split(residual, lens().filter(|_| compression.error_feedback));
        let targets = messages.iter_mut().zip(rooms).enumerate();
        let parts = targets.zip(grads).map(|((server, (messages, room)), grads)| PushPart {
            grads,
            residual: residuals.next().unwrap_or_default(),
            message: &mut messages[bucket],
            room,
            key: key.with(bucket as u64).with(server as u64),
            norms: None,
        });
        let mut parts: Vec<_> = parts.filter(|part| !part.grads.is_empty()).collect();
        cpu.for_each_part(&mut parts, 1, |_, parts| {
            for part in parts {
                part.compress(cpu.isa(), compression);
            }
        });
        for PushPart { grads, norms, .. } in &parts {
            let Some([error, norm]) = norms else { continue };
            self.error += error;
            self.norm += norm;
            self.num_elements += grads.len();
        }
    }

    /// Sends a compressed part; returns false if it is uncompressed.
    pub(super) fn send(
        &self,
        comm: &Comm,
        (server, bucket): (usize, usize),
        to: usize,
        tag: u64,
    ) -> Result<bool, CommError> {
        let Some(message) = &self.messages[server][bucket] else { return Ok(false) };
        comm.send(message, to, tag)?;
        Ok(true)
    }
}

/// Consecutive parts of a buffer.
fn split(
    buffer: &mut [f32],
    lens: impl Iterator<Item = usize>,
) -> impl Iterator<Item = &mut [f32]> {
    lens.scan(buffer, |rest, len| {
        let (part, behind) = std::mem::take(rest).split_at_mut(len);
        *rest = behind;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_decode_as_the_worker_expects_and_the_residual_is_kept() {
        let values: Vec<f32> = (0..200).map(|n| ((n * 37 % 101) as f32 - 50.0) / 8.0).collect();
        let methods = [
            Method::Bf16,
            Method::F16,
            Method::Int8,
            Method::Qsgd { bits: 4 },
            Method::TopK { ratio: 0.05 },
            Method::Sign,
        ];
        for method in methods {
            let compression = PushCompression { method, error_feedback: true, seed: 1 };
            let mut compressor = PushCompressor::new(compression, 1, &[200]);
            let cpu = Cpu::single(Isa::Portable);
            let compress = |compressor: &mut PushCompressor, step| {
                let whole = std::slice::from_ref(&(0..200));
                compressor.compress(&cpu, 0, whole, &mut values.clone(), (step, 0));
            };
            compress(&mut compressor, 0);
            let message = compressor.messages[0][0].clone().expect("it is shorter");
            assert_eq!(Some(message.len()), compression.message_len(200), "{method:?}");
            let mut read = vec![0.0; 200];
            compression.decode(&message, &mut read);
            for ((value, read), left) in values.iter().zip(&read).zip(&compressor.residual[0]) {
                assert!((value - read - left).abs() < 1e-6, "{method:?}: {value} {read} {left}");
            }
            // With error feedback the mean of many messages converges to the input.
            let mut arrived: Vec<f64> = read.iter().map(|value| f64::from(*value)).collect();
            for step in 1..400 {
                compress(&mut compressor, step);
                let mut read = vec![0.0; 200];
                compression.decode(compressor.messages[0][0].as_ref().expect("shorter"), &mut read);
                arrived.iter_mut().zip(read).for_each(|(sum, read)| *sum += f64::from(read));
            }
            for (value, sum) in values.iter().zip(arrived) {
                let mean = sum / 400.0;
                assert!((mean - f64::from(*value)).abs() < 0.6, "{method:?}: {value} {mean}");
            }
        }
    }

    #[test]
    fn messages_depend_neither_on_the_instruction_set_nor_on_threads() {
        let values: Vec<f32> = (0..600).map(|n| ((n * 37 % 101) as f32 - 50.0) / 8.0).collect();
        let world = lockstep_platform::real();
        let spawn = |_, body: Box<dyn FnOnce() + Send>| {
            drop(world.threads().spawn("compute", body).expect("threads start"));
        };
        let devices = [Cpu::single(Isa::Portable), Cpu::new(Isa::detect(), 3, &spawn)];
        for method in [Method::Int8, Method::Qsgd { bits: 4 }, Method::Sign] {
            let compression = PushCompression { method, error_feedback: true, seed: 1 };
            let [one, other] = devices.each_ref().map(|cpu| {
                let mut compressor = PushCompressor::new(compression, 3, &[600]);
                let cuts = [0..256, 256..320, 320..600];
                (0..3).for_each(|step| {
                    compressor.compress(cpu, 0, &cuts, &mut values.clone(), (step, 1));
                });
                (compressor.messages, compressor.residual)
            });
            assert_eq!(one, other, "{method:?}");
        }
    }

    #[test]
    fn a_part_shorter_than_its_message_is_sent_uncompressed() {
        let compression = PushCompression { method: Method::Sign, error_feedback: true, seed: 1 };
        assert_eq!(compression.message_len(40), None, "there is no whole row");
        assert_eq!(compression.message_len(64), Some(12));
        let compression = PushCompression { method: Method::TopK { ratio: 0.9 }, ..compression };
        assert_eq!(compression.message_len(1000), None);
    }
}
