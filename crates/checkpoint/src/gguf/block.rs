//! Types of tensors in a GGUF file: floats, and blocks of eight-bit integers with a scale.

use crate::ElementType;
use half::f16;

/// Elements of a block of `q8_0`.
const BLOCK: usize = 32;

/// Type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorType {
    /// Floats.
    Floats(ElementType),
    /// Blocks of 32 eight-bit integers with a 16-bit scale: 8.5 bits an element.
    Q8Zero,
}

impl TensorType {
    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Floats(format) => format.name(),
            Self::Q8Zero => "q8_0",
        }
    }

    /// Number of the type in the format.
    pub(super) const fn code(self) -> u32 {
        match self {
            Self::Floats(ElementType::F32) => 0,
            Self::Floats(ElementType::F16) => 1,
            Self::Q8Zero => 8,
            Self::Floats(ElementType::Bf16) => 30,
        }
    }

    /// Number of a file whose matrices have this type.
    pub(super) const fn file_code(self) -> u32 {
        match self {
            Self::Floats(ElementType::F32) => 0,
            Self::Floats(ElementType::F16) => 1,
            Self::Q8Zero => 7,
            Self::Floats(ElementType::Bf16) => 32,
        }
    }

    /// Whether rows of this length are whole blocks.
    pub(super) const fn takes_rows_of(self, num_columns: usize) -> bool {
        match self {
            Self::Floats(_) => true,
            Self::Q8Zero => num_columns.is_multiple_of(BLOCK),
        }
    }

    pub(super) const fn num_bytes(self, num_elements: usize) -> usize {
        match self {
            Self::Floats(format) => num_elements * format.num_bytes(),
            Self::Q8Zero => num_elements / BLOCK * (BLOCK + 2),
        }
    }

    /// First element that has no finite value in this type.
    pub(super) fn first_not_finite(self, data: &[f32]) -> Option<usize> {
        match self {
            Self::Floats(format) => format.first_not_finite(data),
            Self::Q8Zero => data.iter().position(|x| !f16::from_f32(x.abs() / LARGEST).is_finite()),
        }
    }

    /// Appends the bytes of elements, whole blocks of them.
    pub(super) fn encode(self, data: &[f32], out: &mut Vec<u8>) {
        match self {
            Self::Floats(format) => format.narrow(data, out),
            Self::Q8Zero => data.chunks(BLOCK).for_each(|block| encode_block(block, out)),
        }
    }
}

/// Largest integer of a block.
const LARGEST: f32 = 127.0;

/// The largest element becomes 127 or -127; the scale is rounded only after the division, as the
/// readers' own quantization does it.
fn encode_block(block: &[f32], out: &mut Vec<u8>) {
    let largest = block.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let scale = largest / LARGEST;
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    out.extend(f16::from_f32(scale).to_le_bytes());
    out.extend(block.iter().map(|x| ((x * inverse).round() as i8).to_le_bytes()[0]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_decode_to_their_elements_within_half_a_step() {
        let data: Vec<f32> = (0..64).map(|i| ((i * 37 % 64) as f32 - 31.0) * 0.11).collect();
        let mut bytes = Vec::new();
        TensorType::Q8Zero.encode(&data, &mut bytes);
        assert_eq!(bytes.len(), TensorType::Q8Zero.num_bytes(data.len()));
        for (block, bytes) in data.chunks(32).zip(bytes.chunks(34)) {
            let scale = f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
            let largest = block.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
            assert!((scale - largest / 127.0).abs() <= scale / 2048.0, "{scale} of {largest}");
            for (x, byte) in block.iter().zip(&bytes[2..]) {
                let decoded = f32::from(i8::from_le_bytes([*byte])) * scale;
                // Half a step, and 127 times the rounding of the scale.
                assert!((x - decoded).abs() <= scale * (0.5 + 127.0 / 2048.0), "{x} {decoded}");
            }
        }
        let mut zeros = Vec::new();
        TensorType::Q8Zero.encode(&[0.0; 32], &mut zeros);
        assert_eq!(zeros, [0; 34]);
        assert_eq!(TensorType::Q8Zero.first_not_finite(&[1.0, 1e7]), Some(1));
    }
}
