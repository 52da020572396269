//! Moments of eight bits (Dettmers et al. 2022): storage of the slots whose tensor is large, for
//! [`crate::Optimizer`]. Kernel in [`lockstep_tensor::adamw_8bit`].
//!
//! Files hold the moments as `f32`: encoding them again gives equal codes.

use crate::Slot;
use crate::rule::GroupOptions;
use lockstep_tensor::adamw_8bit::{BLOCK_FLOATS, BLOCK_LEN, Moment, MomentBlock};
use std::ops::Range;

/// Elements that are decoded or encoded at once: whole blocks.
pub(crate) const PART_LEN: usize = 256 * BLOCK_LEN;

/// Memory of the moments of a slot in `f32` elements.
pub(crate) fn planned_len(slot: &Slot) -> usize {
    slot.range.len().div_ceil(BLOCK_LEN) * BLOCK_FLOATS
}

/// Moments of one slot.
#[derive(Debug)]
pub(crate) struct CodedMoments {
    pub(crate) slot: Slot,
    pub(crate) options: GroupOptions,
    pub(crate) blocks: Vec<MomentBlock>,
}

impl CodedMoments {
    pub(crate) fn new(slot: &Slot, options: GroupOptions) -> Self {
        let num_blocks = slot.range.len().div_ceil(BLOCK_LEN);
        Self { slot: slot.clone(), options, blocks: vec![MomentBlock::ZERO; num_blocks] }
    }

    /// Calls `visit` with the moments of parts of the slot, decoded; `kind` is 0 for the first.
    pub(crate) fn read<E>(
        &self,
        kind: usize,
        within: Range<usize>,
        mut visit: impl FnMut(usize, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut block, mut values) = ([0.0; BLOCK_LEN], vec![0.0; PART_LEN.min(within.len())]);
        for first in within.clone().step_by(PART_LEN) {
            let end = within.end.min(first + PART_LEN);
            let mut at = first;
            while at < end {
                let (index, skipped) = (at / BLOCK_LEN, at % BLOCK_LEN);
                let len = (BLOCK_LEN - skipped).min(end - at);
                self.blocks[index].decode(moment(kind), &mut block);
                values[at - first..][..len].copy_from_slice(&block[skipped..][..len]);
                at += len;
            }
            visit(first, &values[..end - first])?;
        }
        Ok(())
    }

    /// Encodes the moments that `fill` writes for consecutive parts of the slot.
    pub(crate) fn write<E>(
        &mut self,
        kind: usize,
        mut fill: impl FnMut(usize, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let len = self.slot.range.len();
        let mut values = vec![0.0; PART_LEN.min(len)];
        for start in (0..len).step_by(PART_LEN) {
            let values = &mut values[..PART_LEN.min(len - start)];
            fill(start, values)?;
            let blocks = &mut self.blocks[start / BLOCK_LEN..];
            for (block, values) in blocks.iter_mut().zip(values.chunks(BLOCK_LEN)) {
                block.encode(moment(kind), values);
            }
        }
        Ok(())
    }
}

const fn moment(kind: usize) -> Moment {
    if kind == 0 { Moment::First } else { Moment::Second }
}
