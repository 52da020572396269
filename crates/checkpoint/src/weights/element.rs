//! Number formats of stored weights, and their conversion to and from `f32`.
//!
//! Widening to `f32` is exact, and narrowing a widened number restores its bits. Other numbers are
//! rounded to nearest, ties to even.

use half::{bf16, f16};
use safetensors::tensor::Dtype;

/// Number format of stored weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// IEEE single precision, the engine's own format.
    F32,
    /// bfloat16: the range of single precision, two to three digits.
    Bf16,
    /// IEEE half precision: three to four digits, up to 65,504.
    F16,
}

impl ElementType {
    /// All formats, the engine's own first.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::F16];

    /// Short name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }

    /// Name in PyTorch.
    pub const fn torch_name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
        }
    }

    /// Bytes per element.
    pub const fn num_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    pub(crate) const fn from_dtype(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F32 => Some(Self::F32),
            Dtype::BF16 => Some(Self::Bf16),
            Dtype::F16 => Some(Self::F16),
            _ => None,
        }
    }

    pub(crate) const fn dtype(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::Bf16 => Dtype::BF16,
            Self::F16 => Dtype::F16,
        }
    }

    /// Converts little-endian bytes to `f32`.
    pub(crate) fn widen(self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len(), out.len() * self.num_bytes(), "a piece holds whole elements");
        match self {
            Self::F32 => widen_each(bytes, out, f32::from_le_bytes),
            Self::Bf16 => widen_each(bytes, out, |pair| bf16::from_le_bytes(pair).to_f32()),
            Self::F16 => widen_each(bytes, out, |pair| f16::from_le_bytes(pair).to_f32()),
        }
    }

    /// Appends the elements as little-endian bytes.
    pub(crate) fn narrow(self, data: &[f32], out: &mut Vec<u8>) {
        match self {
            Self::F32 => out.extend(data.iter().flat_map(|value| value.to_le_bytes())),
            Self::Bf16 => {
                out.extend(data.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()));
            }
            Self::F16 => {
                out.extend(data.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()));
            }
        }
    }

    /// Index of the first element without a finite value in this format.
    pub(crate) fn first_not_finite(self, data: &[f32]) -> Option<usize> {
        data.iter().position(|value| match self {
            Self::F32 => !value.is_finite(),
            Self::Bf16 => !bf16::from_f32(*value).is_finite(),
            Self::F16 => !f16::from_f32(*value).is_finite(),
        })
    }
}

fn widen_each<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    let (elements, _) = bytes.as_chunks::<N>();
    for (out, element) in out.iter_mut().zip(elements) {
        *out = value(*element);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_two_byte_number_survives_widening_and_narrowing() {
        for format in [ElementType::Bf16, ElementType::F16] {
            for bits in 0..=u16::MAX {
                let bytes = bits.to_le_bytes();
                let mut wide = [0.0];
                format.widen(&bytes, &mut wide);
                if wide[0].is_finite() {
                    let mut narrow = Vec::new();
                    format.narrow(&wide, &mut narrow);
                    assert_eq!(narrow, bytes, "{} {bits:04x}", format.name());
                }
            }
        }
    }

    #[test]
    fn a_number_beyond_the_range_of_a_format_is_found() {
        let data = [1.0, 65_504.0, 65_536.0, f32::MAX];
        assert_eq!(ElementType::F32.first_not_finite(&data), None);
        assert_eq!(ElementType::F16.first_not_finite(&data), Some(2));
        assert_eq!(ElementType::Bf16.first_not_finite(&data), Some(3));
    }
}
