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
use lockstep_tensor::random::Key;
use lockstep_tensor::simd::Isa;

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

    fn encode(self, values: &[f32], key: Key, message: &mut Vec<u8>) {
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
                self.method.encode(Isa::detect(), &shape, rows, key, message);
                message.extend(rest.iter().flat_map(wide));
            }
            method => {
                let shape = Self::whole(values.len());
                method.encode(Isa::detect(), &shape, values, key, message);
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
    /// A decoded part.
    pub(super) room: Vec<f32>,
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
            room: Vec::new(),
        }
    }

    /// Starts the gradient of a step.
    pub(super) fn begin(&mut self) {
        (self.error, self.norm, self.num_elements) = (0.0, 0.0, 0);
    }

    /// Compresses one server's part of a bucket's gradient and keeps the residual.
    pub(super) fn compress(
        &mut self,
        (server, bucket): (usize, usize),
        range: std::ops::Range<usize>,
        grads: &mut [f32],
        (step, worker): (u64, usize),
    ) {
        let Self { compression, residual, messages, error, norm, num_elements, room } = self;
        let message = &mut messages[server][bucket];
        let kept = residual[bucket].get_mut(range).unwrap_or_default();
        kept.iter().zip(&mut *grads).for_each(|(left, grad)| *grad += left);
        let Some(len) = compression.message_len(grads.len()) else {
            kept.fill(0.0);
            *message = None;
            return;
        };
        // The label selects the random stream: another spelling would change the results of runs.
        let key = Key::new(compression.seed, "squeeze").with(step).with(worker as u64);
        let mut written = message.take().unwrap_or_default();
        written.clear();
        compression.encode(grads, key.with(bucket as u64).with(server as u64), &mut written);
        assert_eq!(written.len(), len, "the length that the server expects");
        room.clear();
        room.resize(grads.len(), 0.0);
        compression.decode(&written, room);
        *error += squared_distance(grads, room);
        *norm += squared_distance(grads, &[]);
        *num_elements += grads.len();
        for ((left, grad), arrived) in kept.iter_mut().zip(grads).zip(room) {
            *left = *grad - *arrived;
        }
        *message = Some(written);
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
            let mut grads = values.clone();
            compressor.compress((0, 0), 0..200, &mut grads, (0, 0));
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
                let mut grads = values.clone();
                compressor.compress((0, 0), 0..200, &mut grads, (step, 0));
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
    fn a_part_shorter_than_its_message_is_sent_uncompressed() {
        let compression = PushCompression { method: Method::Sign, error_feedback: true, seed: 1 };
        assert_eq!(compression.message_len(40), None, "there is no whole row");
        assert_eq!(compression.message_len(64), Some(12));
        let compression = PushCompression { method: Method::TopK { ratio: 0.9 }, ..compression };
        assert_eq!(compression.message_len(1000), None);
    }
}
