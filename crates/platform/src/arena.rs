//! Allocator of shared segments.
//!
//! Buffers that ranks exchange are allocated in shared memory, so that nothing is copied on the
//! way. They are few, large and long-lived: first fit over a sorted list of free ranges is enough,
//! and adjacent free ranges merge.
#![expect(unsafe_code, reason = "slices of a segment, kept apart by the allocator")]

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, madvise};

use crate::memory::PAGE_BYTES;
use crate::{Plain, Segment};

/// Alignment of blocks: a cache line, so that no two blocks share one.
const LINE_BYTES: usize = 64;

/// Blocks of at least this size are aligned to it: a huge page.
const HUGE_BYTES: usize = 2 << 20;

/// Blocks of at least this size return their pages to the system when they are freed.
const RELEASED_BYTES: usize = 1 << 20;

/// Allocator of one segment.
pub struct Arena {
    segment: Segment,
    /// Start and end of every free range.
    holes: Mutex<BTreeMap<usize, usize>>,
}

/// Part of a segment with one owner; freed on drop.
pub struct Block {
    arena: Arc<Arena>,
    range: Range<usize>,
}

impl Arena {
    /// Allocator for everything behind the segment's header.
    ///
    /// # Panics
    /// If the segment has an allocator in this process already.
    pub fn new(segment: &Segment) -> Arc<Self> {
        let Range { start, end } = segment.claim();
        let holes = Mutex::new(BTreeMap::from([(start, end)]));
        Arc::new(Self { segment: segment.clone(), holes })
    }

    /// Segment of the allocator.
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Allocates at least `bytes` bytes; none if no free range is large enough. Reused memory may
    /// keep its old contents.
    pub fn allocate(self: &Arc<Self>, bytes: usize) -> Option<Block> {
        let bytes = bytes.max(1).checked_next_multiple_of(LINE_BYTES)?;
        let align = if bytes >= HUGE_BYTES { HUGE_BYTES } else { LINE_BYTES };
        let mut holes = self.holes();
        let (hole, start) = holes.iter().find_map(|(&hole, &end)| {
            let start = hole.checked_next_multiple_of(align)?;
            (start.checked_add(bytes)? <= end).then_some((hole, start))
        })?;
        let end = holes.remove(&hole).expect("it was found there");
        if hole < start {
            holes.insert(hole, start);
        }
        if start + bytes < end {
            holes.insert(start + bytes, end);
        }
        drop(holes);
        Some(Block { arena: Arc::clone(self), range: start..start + bytes })
    }

    /// Approximate size of the largest possible block, before alignment.
    pub fn largest_hole_bytes(&self) -> usize {
        self.holes().iter().map(|(start, end)| end - start).max().unwrap_or(0)
    }

    fn give_back(&self, range: &Range<usize>) {
        // Large blocks may not be needed second, and every process would keep their pages.
        if range.len() >= RELEASED_BYTES {
            release(&self.segment, range);
        }
        let mut holes = self.holes();
        let Range { mut start, mut end } = range.clone();
        let before = holes.range(..start).next_back().map(|(&start, &end)| (start, end));
        if let Some((hole, _)) = before.filter(|&(_, hole_end)| hole_end == start) {
            holes.remove(&hole);
            start = hole;
        }
        if let Some(hole_end) = holes.remove(&end) {
            end = hole_end;
        }
        holes.insert(start, end);
    }

    fn holes(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        // Every change completes before anything can panic.
        self.holes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the pages of a range to the system in every process that maps them; they read as zeros
/// afterwards. Private memory keeps its pages.
fn release(segment: &Segment, range: &Range<usize>) {
    let start = range.start.next_multiple_of(PAGE_BYTES);
    let end = range.end / PAGE_BYTES * PAGE_BYTES;
    if segment.descriptor().is_none() || start >= end {
        return;
    }
    // SAFETY: whole pages inside the mapping, which stays; their owner has no more use for what
    // they hold. Where the system declines they only go on to take room.
    let _ = unsafe {
        madvise(segment.base().add(start).as_ptr().cast(), end - start, Advice::LinuxRemove)
    };
}

impl Block {
    /// Range in the segment, in bytes.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Gives the block up without freeing its memory, which other ranks may still access.
    pub fn retire(mut self) {
        self.range = 0..0;
    }

    /// Segment of the block.
    pub fn segment(&self) -> &Segment {
        self.arena.segment()
    }

    /// The first `count` elements.
    #[inline]
    pub fn as_slice<T: Plain>(&self, count: usize) -> &[T] {
        let base = self.base::<T>(count);
        // SAFETY: in bounds and aligned; no other block overlaps this one, and peers touch it
        // only while the owner has lent it to a collective call.
        unsafe { std::slice::from_raw_parts(base, count) }
    }

    /// The first `count` elements, mutably.
    #[inline]
    pub fn as_mut_slice<T: Plain>(&mut self, count: usize) -> &mut [T] {
        let base = self.base::<T>(count);
        // SAFETY: as in `as_slice`, and `self` is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(base, count) }
    }

    #[inline]
    fn base<T: Plain>(&self, count: usize) -> *mut T {
        let bytes = count.checked_mul(size_of::<T>()).expect("a slice fits the address space");
        assert!(bytes <= self.range.len(), "{bytes} bytes of {}", self.range.len());
        const { assert!(align_of::<T>() <= LINE_BYTES, "blocks start at cache lines") };
        // SAFETY: the range is inside the mapping.
        unsafe { self.segment().base().add(self.range.start) }.cast().as_ptr()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if !self.range.is_empty() {
            self.arena.give_back(&self.range);
        }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({:?})", self.range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(bytes: usize) -> Arc<Arena> {
        Arena::new(&Segment::heap(64, 64 + bytes))
    }

    #[test]
    fn blocks_do_not_overlap_and_come_back() {
        let arena = arena(1 << 16);
        let whole = arena.largest_hole_bytes();
        let mut blocks: Vec<Block> = (1..20).map(|k| arena.allocate(k * 37).unwrap()).collect();
        for (k, block) in blocks.iter_mut().enumerate() {
            let len = block.range().len();
            block.as_mut_slice::<u8>(len).fill(k as u8);
        }
        for (k, block) in blocks.iter().enumerate() {
            let len = block.range().len();
            assert!(block.as_slice::<u8>(len).iter().all(|&byte| byte == k as u8));
        }
        // Free every second block first, so that ranges merge on both sides.
        let mut position = 0;
        blocks.retain(|_| {
            position += 1;
            position % 2 == 0
        });
        assert!(arena.largest_hole_bytes() < whole);
        blocks.clear();
        assert_eq!(arena.largest_hole_bytes(), whole);
    }

    #[test]
    fn a_full_arena_says_no_and_recovers() {
        let arena = arena(4096);
        let block = arena.allocate(4096).unwrap();
        assert!(arena.allocate(1).is_none());
        drop(block);
        assert!(arena.allocate(4096).is_some());
        assert!(arena.allocate(usize::MAX).is_none());
    }

    #[test]
    fn large_blocks_start_at_huge_pages() {
        let arena = arena(8 << 20);
        let small = arena.allocate(100).unwrap();
        let large = arena.allocate(3 << 20).unwrap();
        assert!(large.range().start.is_multiple_of(HUGE_BYTES));
        assert!(small.range().end <= large.range().start);
    }

    #[test]
    fn large_blocks_give_their_pages_back() {
        let segment = crate::real().shared().create(64, 8 << 20).unwrap();
        let arena = Arena::new(&segment);
        let sum_after_use = |bytes: usize| -> usize {
            let mut block = arena.allocate(bytes).unwrap();
            block.as_mut_slice::<u8>(bytes).fill(1);
            drop(block);
            let second = arena.allocate(bytes).unwrap();
            second.as_slice::<u8>(bytes).iter().map(|&byte| usize::from(byte)).sum()
        };
        assert_eq!(sum_after_use(2 << 20), 0);
        assert_eq!(sum_after_use(1 << 10), 1 << 10);
    }

    #[test]
    #[should_panic(expected = "one allocator")]
    fn two_allocators_of_one_segment_are_a_bug() {
        let segment = Segment::heap(64, 4096);
        let _first = Arena::new(&segment);
        let _second = Arena::new(&segment);
    }
}
