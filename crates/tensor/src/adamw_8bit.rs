//! AdamW with moments of eight bits (Dettmers et al. 2022, "8-bit Optimizers via Block-wise
//! Quantization"): dynamic quantisation of blocks of 256 elements, each with its largest magnitude.
//!
//! A step decodes the moments of a block to `f32`, updates them and the parameters as
//! [`crate::adamw`] does, and encodes them again: no more than a block is ever in `f32`. The 256
//! codes of a map are the paper's dynamic tree: seven decades, of which the larger have more linear
//! steps. Two details differ from it:
//! - The map of the first moment has −1 in place of its smallest negative value. The largest
//!   element of a block is therefore exact, and encoding what was decoded gives equal codes:
//!   moments may be saved as `f32` and read again without a change.
//! - A second moment above zero is never rounded to zero, where the next step would divide by
//!   `eps` alone.
//!
//! Blocks are counted from the start of a piece of a tensor, and ranks own whole multiples of 4,096
//! of its elements: every layout has equal blocks, hence equal bits.

use crate::Cpu;
use crate::adamw::{AdamStep, Factors, update_part};
use crate::dynamic_map::{Map, Smallest};

/// Elements of a block.
pub const BLOCK_LEN: usize = 256;

/// Blocks of a task.
const BLOCKS: usize = 32;

/// A block whose largest magnitude is smaller is a block of zeros: products of the scale with the
/// values of a map would not be normal numbers.
const MIN_SCALE: f32 = 1e-29;

/// Moments of a block of elements; those behind the end of a tensor are zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MomentBlock {
    scales: [f32; 2],
    codes: [[u8; BLOCK_LEN]; 2],
}

/// Memory of a block in `f32` elements.
pub const BLOCK_FLOATS: usize = size_of::<MomentBlock>() / size_of::<f32>();

/// A moment of AdamW.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The first, with a sign.
    First,
    /// The second.
    Second,
}

impl MomentBlock {
    /// Moments of zero.
    pub const ZERO: Self =
        Self { scales: [0.0; 2], codes: [[SIGNED.zero; BLOCK_LEN], [UNSIGNED.zero; BLOCK_LEN]] };

    /// Decodes a moment of the first elements.
    pub fn decode(&self, moment: Moment, out: &mut [f32]) {
        let (map, at) = moment.map();
        let scale = self.scales[at];
        for (out, code) in out.iter_mut().zip(self.codes[at]) {
            *out = map.values[usize::from(code)] * scale;
        }
    }

    /// Encodes a moment of all elements of the block.
    pub fn encode(&mut self, moment: Moment, values: &[f32]) {
        let (map, at) = moment.map();
        let largest = values.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
        let scale = if largest < MIN_SCALE { 0.0 } else { largest };
        self.scales[at] = scale;
        if scale > 0.0 {
            for (code, value) in self.codes[at].iter_mut().zip(values) {
                // The smallest code of a second moment above zero is that of the smallest value.
                let is_above = moment == Moment::Second && *value > 0.0;
                *code = map.code(value / scale).max(u8::from(is_above));
            }
        } else {
            self.codes[at].fill(map.zero);
        }
    }
}

impl Moment {
    const fn map(self) -> (&'static Map, usize) {
        match self {
            Self::First => (&SIGNED, 0),
            Self::Second => (&UNSIGNED, 1),
        }
    }
}

/// One step: updates parameters `p` and the moments of their blocks from gradients `g`.
pub fn step(cpu: &Cpu, step: &AdamStep, p: &mut [f32], g: &[f32], blocks: &mut [MomentBlock]) {
    assert_eq!(p.len(), g.len(), "one gradient for each parameter");
    assert_eq!(p.len().div_ceil(BLOCK_LEN), blocks.len(), "moments of all parameters");
    let factors = Factors::new(step);
    let task_len = BLOCKS * BLOCK_LEN;
    cpu.for_each_pair((p, task_len), (blocks, BLOCKS), |task, p, blocks| {
        let g = g[task * task_len..].chunks(BLOCK_LEN);
        for ((p, g), block) in p.chunks_mut(BLOCK_LEN).zip(g).zip(blocks) {
            let (mut m, mut v) = ([0.0; BLOCK_LEN], [0.0; BLOCK_LEN]);
            let (m, v) = (&mut m[..p.len()], &mut v[..p.len()]);
            block.decode(Moment::First, m);
            block.decode(Moment::Second, v);
            update_part(cpu, factors, p, &g[..p.len()], m, v);
            block.encode(Moment::First, m);
            block.encode(Moment::Second, v);
        }
    });
}

static SIGNED: Map = Map::new(Smallest::MinusOne);
static UNSIGNED: Map = Map::new(Smallest::Zero);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_ascend_and_every_value_has_its_code() {
        for (map, least) in [(&SIGNED, -1.0), (&UNSIGNED, 0.0)] {
            assert!(map.values.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", map.values);
            let ends = [map.values[0], map.values[255]];
            assert_eq!(ends.map(f32::to_bits), [least, 1.0_f32].map(f32::to_bits));
            assert_eq!(map.values[usize::from(map.zero)].to_bits(), 0);
            for (code, value) in map.values.iter().enumerate() {
                assert_eq!(usize::from(map.code(*value)), code, "{value}");
            }
        }
    }

    #[test]
    fn decoded_moments_have_equal_codes_at_any_scale() {
        for exponent in -29..38 {
            for part in [1.0_f32, 1.234_567_9, 3.3, 7.777_777, 9.999_999] {
                let scale = part * 10.0_f32.powi(exponent);
                for moment in [Moment::First, Moment::Second] {
                    let at = moment.map().1;
                    let mut block = MomentBlock::ZERO;
                    block.scales[at] = scale;
                    block.codes[at] = std::array::from_fn(|code| code as u8);
                    let (mut values, mut encoded) = ([0.0; BLOCK_LEN], MomentBlock::ZERO);
                    block.decode(moment, &mut values);
                    encoded.encode(moment, &values);
                    encoded.codes[1 - at] = block.codes[1 - at];
                    assert_eq!(encoded, block, "{moment:?} of {scale:e}");
                }
            }
        }
    }
}
