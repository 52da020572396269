//! The fingerprint of a model's weights.

use std::convert::Infallible;

use super::{NamedTensor, bytes, sorted};

/// BLAKE3, in hexadecimal, of the little-endian f32 elements of all tensors in the order of their
/// names. Names and shapes are not part of it. A tensor that the model uses twice (tied
/// embeddings) is given once.
pub fn weights_hash(tensors: &[NamedTensor<'_>]) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = Vec::with_capacity(bytes::PIECE_BYTES);
    for tensor in sorted(tensors) {
        let hashed = bytes::for_each_piece(tensor.data, &mut buffer, |piece| {
            hasher.update(piece);
            Ok::<(), Infallible>(())
        });
        hashed.unwrap_or_else(|never| match never {});
    }
    hasher.finalize().to_hex().to_string()
}
