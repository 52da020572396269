//! Working memory of calls: scratch, buffers for messages that are reduced on arrival, and staging.
//!
//! Staging copies the caller's data to the arena before a call and back after it, where peers must
//! access buffers that are ordinary memory.

use std::sync::Arc;

use lockstep_platform::Block;

use crate::call_buffers::CallBuffers;
use crate::error::CommError;
use crate::prepared_schedule::PreparedSchedule;
use crate::segment_window::target;
use crate::transport::shared::SharedWorld;

/// Working memory, grown as needed and kept.
#[derive(Default)]
pub(crate) struct Workspace {
    /// Scratch in the arena, for schedules that access remote memory.
    scratch: Option<Block>,
    pub(crate) staging: Option<Block>,
    /// Blocks that a slow rank may still be reading, with the call that used them last.
    retired: Vec<(u64, Block)>,
    /// Private memory; in 8-byte words, so that every element type is aligned.
    pub(crate) private: Vec<u64>,
    pub(crate) incoming: Vec<u64>,
    pub(crate) lists: Lists,
}

/// Lists that every round refills, kept empty so that a call allocates nothing. Windows cannot be
/// sent to the thread of another call, so words of the same size stand for them in between.
#[derive(Default)]
pub(crate) struct Lists {
    pub(crate) sources: Vec<[usize; 2]>,
    pub(crate) targets: Vec<[usize; 2]>,
    pub(crate) sends: Vec<[usize; 3]>,
    pub(crate) recvs: Vec<[usize; 3]>,
}

/// Reuses the allocation of a list for elements of another type of the same size. The standard
/// library collects in place here.
#[inline]
pub(crate) fn reuse<A, B>(mut list: Vec<A>) -> Vec<B> {
    list.clear();
    list.into_iter().map(|_| unreachable!("the list is empty")).collect()
}

impl Workspace {
    /// Allocates the scratch and the staging of a call in the arena.
    #[inline]
    pub(crate) fn prepare(
        &mut self,
        shared: &Arc<SharedWorld>,
        prepared: &PreparedSchedule,
        number: u64,
        staging_bytes: usize,
    ) -> Result<(), CommError> {
        if !self.retired.is_empty() {
            // A rank in this call has left the call before the last.
            self.retired.retain(|(last_use, _)| last_use + 2 > number);
        }
        if prepared.scratch_bytes > 0 {
            // Two halves in turn: a slow rank may still read what the last call left there.
            let bytes = 2 * prepared.scratch_bytes;
            self.reserve(shared, number, bytes, |workspace| &mut workspace.scratch)?;
        }
        if staging_bytes > 0 {
            self.reserve(shared, number, staging_bytes, |workspace| &mut workspace.staging)?;
        }
        Ok(())
    }

    fn reserve(
        &mut self,
        shared: &Arc<SharedWorld>,
        number: u64,
        bytes: usize,
        slot: fn(&mut Self) -> &mut Option<Block>,
    ) -> Result<(), CommError> {
        let there = slot(self).as_ref().map_or(0, |block| block.range().len());
        if there < bytes {
            if let Some(old) = slot(self).take() {
                self.retired.push((number, old));
            }
            let arena = shared.arena();
            let block = arena.allocate(bytes).ok_or_else(|| CommError::ArenaFull {
                requested_bytes: bytes,
                largest_bytes: arena.largest_hole_bytes(),
            })?;
            *slot(self) = Some(block);
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn scratch_start(&self, number: u64) -> usize {
        self.scratch.as_ref().map_or(0, |block| {
            let half = block.range().len() / 2 / 64 * 64;
            block.range().start + if number.is_multiple_of(2) { 0 } else { half }
        })
    }
}

/// The caller's buffers that must be staged.
pub(crate) struct Staging {
    is_input_staged: bool,
    pub(crate) is_output_staged: bool,
    pub(crate) bytes: usize,
}

impl Staging {
    #[inline]
    pub(crate) fn new(prepared: &PreparedSchedule, buffers: &CallBuffers<'_>) -> Self {
        let is_hidden = |is_shared: bool, offset: Option<usize>, bytes: usize| {
            is_shared && offset.is_none() && bytes > 0
        };
        let input =
            is_hidden(prepared.facts.shares_input, buffers.input_offset, buffers.input.len());
        let output =
            is_hidden(prepared.facts.shares_output, buffers.output_offset, prepared.output_bytes);
        // An in-place call stages its one buffer once.
        let is_output_staged = output || (buffers.in_place && input && prepared.output_bytes > 0);
        let is_input_staged = input || (buffers.in_place && output);
        let mut bytes = 0;
        if is_input_staged {
            bytes += buffers.input.len().next_multiple_of(64);
        }
        if is_output_staged && !buffers.in_place {
            bytes += prepared.output_bytes;
        }
        Self { is_input_staged, is_output_staged, bytes }
    }

    /// Stages the caller's input at `start` in the segment; returns the buffers of the call.
    pub(crate) fn stage<'a>(
        &self,
        shared: &'a Arc<SharedWorld>,
        prepared: &PreparedSchedule,
        start: usize,
        buffers: CallBuffers<'a>,
    ) -> CallBuffers<'a> {
        let mut staged = buffers;
        let mut next = start;
        if self.is_input_staged {
            let input = target(shared.own(), start, buffers.input.len());
            input.copy_from(buffers.input);
            staged.input = input.as_source();
            staged.input_offset = Some(start);
            next += buffers.input.len().next_multiple_of(64);
        }
        if self.is_output_staged {
            let output_start = if buffers.in_place { start } else { next };
            staged.output = target(shared.own(), output_start, prepared.output_bytes);
            staged.output_offset = Some(output_start);
        }
        staged
    }
}

/// Grows a vector of words to at least `bytes` bytes.
pub(crate) fn grow(fields: &mut Vec<u64>, bytes: usize) {
    let len = bytes.div_ceil(size_of::<u64>());
    if fields.len() < len {
        fields.resize(len, 0);
    }
}

#[cfg(test)]
mod tests {
    use lockstep_mesh::Rank;
    use lockstep_platform::Source;

    use super::*;

    #[test]
    fn a_reused_list_keeps_its_allocation() {
        let mut list: Vec<[usize; 3]> = Vec::with_capacity(10);
        let place = list.as_ptr().addr();
        let bytes = vec![1, 2, 3];
        for _ in 0..3 {
            let mut round: Vec<(Rank, Source<'_, u8>)> = reuse(list);
            round.push((Rank(0), Source::of(&bytes)));
            list = reuse(round);
            assert_eq!((list.len(), list.capacity(), list.as_ptr().addr()), (0, 10, place));
        }
    }
}
