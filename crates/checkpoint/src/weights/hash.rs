//! Hash of a model's weights.

use std::convert::Infallible;

use super::{ElementType, NamedTensor, bytes, sorted};

/// BLAKE3, in hexadecimal, of the little-endian f32 elements of all tensors in the order of their
/// names. Names and shapes are not part of it. Tied weights are hashed once.
pub fn weights_hash(tensors: &[NamedTensor<'_>]) -> String {
    let mut hasher = WeightsHasher::default();
    for tensor in sorted(tensors) {
        hasher.update(tensor.data);
    }
    hasher.finish()
}

/// Incremental [`weights_hash`] of tensors in the order of their names.
#[derive(Default)]
pub struct WeightsHasher {
    hasher: blake3::Hasher,
    buffer: Vec<u8>,
}

impl WeightsHasher {
    /// Adds the next tensor.
    pub fn update(&mut self, data: &[f32]) {
        let hasher = &mut self.hasher;
        let hashed = bytes::for_each_piece(data, ElementType::F32, &mut self.buffer, |piece| {
            hasher.update(piece);
            Ok::<(), Infallible>(())
        });
        hashed.unwrap_or_else(|never| match never {});
    }

    /// The hash of all tensors so far.
    pub fn finish(&self) -> String {
        self.hasher.finalize().to_hex().to_string()
    }
}
