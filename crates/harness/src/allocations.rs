//! Counts allocations of the whole process, to prove that a loop makes none.
//!
//! A test binary makes [`CountingAllocator`] its global allocator and reads [`count`] at two
//! moments. Every thread counts, because the threads of the pool and the one that makes batches
//! belong to the step; so such a binary holds one test, and nothing else happens meanwhile.

#![expect(unsafe_code, reason = "a global allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator, with a counter.
#[derive(Debug)]
pub struct CountingAllocator;

static NUM_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Allocations so far, growing included; 0 for ever where [`CountingAllocator`] is not in use.
pub fn count() -> u64 {
    NUM_ALLOCATIONS.load(Ordering::SeqCst)
}

fn count_one() {
    NUM_ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract;
// the counter beside it neither allocates nor touches the memory.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, num_bytes: usize) -> *mut u8 {
        count_one();
        // SAFETY: the pointer came from `System` with this layout.
        unsafe { System.realloc(pointer, layout, num_bytes) }
    }
}
