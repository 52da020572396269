//! Gradients for servers in fewer bytes than they have.
//!
//! Each part that a server holds of a bucket is written as one tensor, by the methods of
//! [`crate::compress`] that need nobody else to be read. A worker keeps what it left out and adds
//! it to its next gradient; servers read what has come and know nothing of it. Weights travel back
//! as they are.

use crate::compress::{Method, Observed, Shape};
use crate::local::squared_distance;
use crate::replica::Replica;
use half::{bf16, f16};
use lockstep_comm::{Comm, CommError};
use lockstep_tensor::random::Key;

/// Elements that share a size where only signs travel.
const ROW: usize = 64;

/// How gradients are written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Squeeze {
    /// The method: one whose messages are read alone.
    pub method: Method,
    /// Whether what is left out is added to the next gradient.
    pub error_feedback: bool,
    /// Decides what is drawn.
    pub seed: u64,
}

impl Squeeze {
    /// Bytes of a part's message; nothing where the part itself is no longer.
    fn message_len(self, len: usize) -> Option<usize> {
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

    /// Whole rows; what is behind them travels as it is.
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
                self.method.encode(&shape, rows, key, message);
                message.extend(rest.iter().flat_map(wide));
            }
            method => method.encode(&Self::whole(values.len()), values, key, message),
        }
    }

    /// Adds what was written to zeros.
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

    /// Takes a worker's gradient of one part.
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

/// What a worker keeps to write its gradients.
pub(super) struct Writer {
    squeeze: Squeeze,
    /// What was left out so far, by bucket.
    pub(super) residual: Vec<Vec<f32>>,
    /// What it is being told to whom: by server and bucket, those parts that are written.
    messages: Vec<Vec<Option<Vec<u8>>>>,
    /// The squares of the error and of what was to be sent, of the step at work.
    error: f64,
    norm: f64,
    num_elements: usize,
    /// A part as it arrives.
    room: Vec<f32>,
}

impl Replica {
    /// Writes gradients for servers in this way from now on.
    pub fn squeeze_pushes(&mut self, squeeze: Squeeze) {
        let Self { client: Some(client), all, .. } = self else { return };
        let lens: Vec<usize> = all.list.iter().map(|bucket| bucket.len).collect();
        client.writer = Some(Writer::new(squeeze, client.num_servers(), &lens));
    }

    /// Gives what was left out so far, by bucket, to save or to fill in.
    pub fn visit_squeezed<E>(
        &mut self,
        mut visit: impl FnMut(&str, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let writer = self.client.as_mut().and_then(|client| client.writer.as_mut());
        let buckets = writer.into_iter().flat_map(|writer| &mut writer.residual).enumerate();
        for (bucket, values) in buckets.filter(|(_, values)| !values.is_empty()) {
            visit(&format!("bucket.{bucket}"), values)?;
        }
        Ok(())
    }

    /// What writing did to this worker's gradients in the step at work, where they were written.
    pub fn squeezed(&self) -> Option<Observed> {
        let writer = self.client.as_ref()?.writer.as_ref()?;
        let squares = writer.residual.iter().map(|values| squared_distance(values, &[]));
        let written: usize = writer.messages.iter().flatten().flatten().map(Vec::len).sum();
        Some(Observed {
            delta: if writer.norm > 0.0 { writer.error / writer.norm } else { 0.0 },
            residual_norm: squares.sum::<f64>().sqrt(),
            message_bytes: written as u64,
            dense_bytes: (writer.num_elements * size_of::<f32>()) as u64,
        })
    }
}

impl Writer {
    pub(super) fn new(squeeze: Squeeze, num_servers: usize, bucket_lens: &[usize]) -> Self {
        let room = |len: &usize| vec![0.0; if squeeze.error_feedback { *len } else { 0 }];
        Self {
            squeeze,
            residual: bucket_lens.iter().map(room).collect(),
            messages: vec![vec![None; bucket_lens.len()]; num_servers],
            error: 0.0,
            norm: 0.0,
            num_elements: 0,
            room: Vec::new(),
        }
    }

    /// Begins a step's gradient.
    pub(super) fn begin(&mut self) {
        (self.error, self.norm, self.num_elements) = (0.0, 0.0, 0);
    }

    /// Writes one server's part of a bucket's gradient. What is left out is kept.
    pub(super) fn write(
        &mut self,
        (server, bucket): (usize, usize),
        range: std::ops::Range<usize>,
        grads: &mut [f32],
        (step, worker): (u64, usize),
    ) {
        let Self { squeeze, residual, messages, error, norm, num_elements, room } = self;
        let message = &mut messages[server][bucket];
        let kept = residual[bucket].get_mut(range).unwrap_or_default();
        kept.iter().zip(&mut *grads).for_each(|(left, grad)| *grad += left);
        let Some(len) = squeeze.message_len(grads.len()) else {
            kept.fill(0.0);
            *message = None;
            return;
        };
        let key = Key::new(squeeze.seed, "squeeze").with(step).with(worker as u64);
        let mut written = message.take().unwrap_or_default();
        written.clear();
        squeeze.encode(grads, key.with(bucket as u64).with(server as u64), &mut written);
        assert_eq!(written.len(), len, "as long as its reader expects");
        room.clear();
        room.resize(grads.len(), 0.0);
        squeeze.decode(&written, room);
        *error += squared_distance(grads, room);
        *norm += squared_distance(grads, &[]);
        *num_elements += grads.len();
        for ((left, grad), arrived) in kept.iter_mut().zip(grads).zip(room) {
            *left = *grad - *arrived;
        }
        *message = Some(written);
    }

    /// Sends a part as it was written; returns whether it was.
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
    fn what_is_written_is_read_as_the_writer_saw_it_and_the_rest_is_kept() {
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
            let squeeze = Squeeze { method, error_feedback: true, seed: 1 };
            let mut writer = Writer::new(squeeze, 1, &[200]);
            let mut grads = values.clone();
            writer.write((0, 0), 0..200, &mut grads, (0, 0));
            let message = writer.messages[0][0].clone().expect("it is shorter");
            assert_eq!(Some(message.len()), squeeze.message_len(200), "{method:?}");
            let mut read = vec![0.0; 200];
            squeeze.decode(&message, &mut read);
            for ((value, read), left) in values.iter().zip(&read).zip(&writer.residual[0]) {
                assert!((value - read - left).abs() < 1e-6, "{method:?}: {value} {read} {left}");
            }
            // Written again and again, all of it arrives in the mean.
            let mut arrived: Vec<f64> = read.iter().map(|value| f64::from(*value)).collect();
            for step in 1..400 {
                let mut grads = values.clone();
                writer.write((0, 0), 0..200, &mut grads, (step, 0));
                let mut read = vec![0.0; 200];
                squeeze.decode(writer.messages[0][0].as_ref().expect("shorter"), &mut read);
                arrived.iter_mut().zip(read).for_each(|(sum, read)| *sum += f64::from(read));
            }
            for (value, sum) in values.iter().zip(arrived) {
                let mean = sum / 400.0;
                assert!((mean - f64::from(*value)).abs() < 0.6, "{method:?}: {value} {mean}");
            }
        }
    }

    #[test]
    fn a_part_that_is_no_longer_than_its_message_travels_as_it_is() {
        let squeeze = Squeeze { method: Method::Sign, error_feedback: true, seed: 1 };
        assert_eq!(squeeze.message_len(40), None, "there is no whole row");
        assert_eq!(squeeze.message_len(64), Some(12));
        let squeeze = Squeeze { method: Method::TopK { ratio: 0.9 }, ..squeeze };
        assert_eq!(squeeze.message_len(1000), None);
    }
}
