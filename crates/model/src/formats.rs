//! Number formats of a model: its products, and the activations between them in memory.
//!
//! Memory is counted in `f32` elements everywhere: a buffer is allocated as such, and blocks take
//! views of other types from it ([`crate::scratch::Frame`]). Activations are `f32` on a CPU, whose
//! products round their operands, and of the operands' type on an accelerator: half the memory and
//! traffic, and nothing to round. In fp8 they are bf16 there, and the linear layers of blocks
//! quantise them; embedding, attention and head compute in bf16. Statistics, losses, gradients of
//! parameters and sums over tensor-parallel shards are `f32` always.

use lockstep_tensor::device::Dtype;
use lockstep_tensor::gemm::Precision;

/// Number formats of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Formats {
    /// Precision of products.
    pub products: Precision,
    /// Type of activations in memory.
    pub activations: Dtype,
}

impl Formats {
    /// Products in a precision, activations in `f32`.
    pub const fn on_cpu(products: Precision) -> Self {
        Self { products, activations: Dtype::F32 }
    }

    /// Formats of embedding and head, which are not quantised.
    pub(crate) const fn unquantised(self) -> Self {
        Self { products: self.products.unquantised(), activations: self.activations }
    }

    /// Memory of `len` activations.
    pub const fn floats(self, len: usize) -> usize {
        floats(self.activations, len)
    }

    /// Whether sums over shards have another type than activations.
    pub(crate) fn has_wide_sums(self, num_shards: usize) -> bool {
        num_shards > 1 && self.activations != Dtype::F32
    }
}

/// Elements of `f32` whose memory holds `len` elements of a type, 16 bytes at a time: the next ones
/// are then aligned for the widest accesses.
pub const fn floats(dtype: Dtype, len: usize) -> usize {
    match dtype.size() {
        2 => len.div_ceil(8) * 4,
        4 => len,
        _ => 2 * len,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_elements_take_whole_pieces_of_16_bytes() {
        let lens = |dtype| [0, 1, 8, 9].map(|len| floats(dtype, len));
        assert_eq!(lens(Dtype::F32), [0, 1, 8, 9]);
        assert_eq!(lens(Dtype::Bf16), [0, 4, 4, 8]);
        assert_eq!(lens(Dtype::F64), [0, 2, 16, 18]);
    }
}
