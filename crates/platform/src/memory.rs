//! Segments of memory shared between ranks, and the safe ways to access them.
//!
//! A [`Segment`] is a range of bytes mapped by several threads or processes. Rust's references
//! promise exclusive or read-only access, which no compiler can check across processes. A segment
//! therefore never lends references to memory that a peer may access. It offers instead:
//!
//! - *words*: atomics in the first part of the segment, the header;
//! - [`Source`] and [`Target`]: windows whose elements are copied out and in, many at a time. To
//!   take one of a segment is unsafe: its user has a protocol that keeps others away meanwhile.
//!   Where a faulty process breaks it, a read gives arbitrary bits, never a dangling or ill-typed
//!   value, because only [`Plain`] types are allowed;
//! - [`Block`](crate::Block)s: ordinary slices that the segment's only [`Arena`](crate::Arena) has
//!   allocated to one owner. Peers access them only while the owner lends them to a collective
//!   call, and then the owner holds no slice.
#![expect(unsafe_code, reason = "windows into memory that other processes write")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Alignment of every segment, and the page size of supported machines.
pub const PAGE_BYTES: usize = 4096;

/// Plain data: every bit pattern is a valid value, without padding.
///
/// # Safety
/// Every bit pattern must be a valid value, and the type must have no padding and no interior
/// mutability.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}

macro_rules! plain {
    ($($t:ty),*) => { $(
        // SAFETY: numbers accept every bit pattern and have no padding.
        unsafe impl Plain for $t {}
    )* };
}
plain!(u8, u16, u32, u64, usize, i8, i16, i32, i64, isize, f32, f64, half::bf16, half::f16);

// SAFETY: an array is its elements, one after the other.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Memory mapped by several ranks. Clones are handles of the same mapping, which is unmapped with
/// the last one.
#[derive(Clone)]
pub struct Segment {
    mapping: Arc<Mapping>,
}

struct Mapping {
    base: NonNull<u8>,
    header_bytes: usize,
    bytes: usize,
    /// Descriptor that other processes can map, if there is one.
    descriptor: Option<OwnedFd>,
    /// Whether this process has an allocator for the space behind the header.
    is_claimed: AtomicBool,
    /// Releases the memory on drop.
    _keeper: Box<dyn Any + Send + Sync>,
}

// SAFETY: the base is only a number here; all access goes through atomics, copies and blocks.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Segment {
    /// Zeroed private memory, for ranks that are threads of this process.
    pub fn heap(header_bytes: usize, bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes.max(PAGE_BYTES), PAGE_BYTES)
            .expect("a segment fits the address space");
        // SAFETY: the layout is not of size zero.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        let keeper = Box::new(Heap { base, layout });
        // SAFETY: the allocation is that large, zeroed, aligned, and freed by its keeper only.
        unsafe { Self::from_raw(base, header_bytes, bytes, None, keeper) }
    }

    /// Segment over a mapping.
    ///
    /// # Safety
    /// `base` must be aligned to [`PAGE_BYTES`] and stay readable and writable for `bytes` bytes
    /// until `keeper` is dropped.
    pub(crate) unsafe fn from_raw(
        base: NonNull<u8>,
        header_bytes: usize,
        bytes: usize,
        descriptor: Option<OwnedFd>,
        keeper: Box<dyn Any + Send + Sync>,
    ) -> Self {
        assert!(header_bytes <= bytes && header_bytes.is_multiple_of(64));
        let is_claimed = AtomicBool::new(false);
        let mapping =
            Mapping { base, header_bytes, bytes, descriptor, is_claimed, _keeper: keeper };
        Self { mapping: Arc::new(mapping) }
    }

    /// Size in bytes, including the header.
    pub fn bytes(&self) -> usize {
        self.mapping.bytes
    }

    /// Size of the header in bytes.
    pub fn header_bytes(&self) -> usize {
        self.mapping.header_bytes
    }

    /// Byte offset of a slice in the segment, if it lies there.
    #[inline]
    pub fn offset_of<T>(&self, slice: &[T]) -> Option<usize> {
        let offset = slice.as_ptr().addr().checked_sub(self.mapping.base.addr().get())?;
        (offset.checked_add(size_of_val(slice))? <= self.mapping.bytes).then_some(offset)
    }

    /// Whether both handles refer to one mapping.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.mapping, &other.mapping)
    }

    pub(crate) fn descriptor(&self) -> Option<&OwnedFd> {
        self.mapping.descriptor.as_ref()
    }

    /// Word of the header; `offset` counts bytes and must be a multiple of eight.
    #[inline]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= self.mapping.header_bytes,
            "word {offset}"
        );
        // SAFETY: in bounds, aligned, and the header is only ever accessed as words or by copies
        // that the same protocol orders; never through a reference to plain memory.
        unsafe { self.mapping.base.add(offset).cast::<AtomicU64>().as_ref() }
    }

    /// Eight words of the header in one cache line; `offset` must be a multiple of 64.
    #[inline]
    pub fn line(&self, offset: usize) -> &[AtomicU64; 8] {
        assert!(
            offset.is_multiple_of(64) && offset + 64 <= self.mapping.header_bytes,
            "line {offset}"
        );
        // SAFETY: as in `word`.
        unsafe { self.mapping.base.add(offset).cast::<[AtomicU64; 8]>().as_ref() }
    }

    /// Prefetches a line of the header for writing.
    #[inline]
    pub fn fetch_line_for_writing(&self, offset: usize) {
        fetch_line(std::ptr::from_ref(self.line(offset)).cast());
    }

    /// Window for reading and writing; `offset` counts bytes and must suit the type.
    ///
    /// # Safety
    /// While the window is accessed, no slice of a [`Block`](crate::Block) covers the memory, and
    /// no other thread or process writes to it (or accesses it, if the window is written), except
    /// by [`Target::copy_each_from`] on both sides.
    #[inline]
    pub unsafe fn target<T: Plain>(&self, offset: usize, count: usize) -> Target<'_, T> {
        // SAFETY: as required of the caller.
        unsafe { self.try_target(offset, count) }.unwrap_or_else(|| {
            let (each, all) = (size_of::<T>(), self.mapping.bytes);
            panic!("{count} elements of {each} bytes at byte {offset} of {all}")
        })
    }

    /// As [`Self::target`], for an untrusted offset: none if there is no such window.
    ///
    /// # Safety
    /// As [`Self::target`].
    #[inline]
    pub unsafe fn try_target<T: Plain>(
        &self,
        offset: usize,
        count: usize,
    ) -> Option<Target<'_, T>> {
        let end = offset.checked_add(count.checked_mul(size_of::<T>())?)?;
        if end > self.mapping.bytes || !offset.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: in bounds, checked above.
        let base = unsafe { self.mapping.base.add(offset) }.cast();
        Some(Target { base, count, lifetime: PhantomData })
    }

    /// Claims the space behind the header for one allocator.
    ///
    /// # Panics
    /// If it was claimed before in this process.
    pub(crate) fn claim(&self) -> Range<usize> {
        let before = self.mapping.is_claimed.swap(true, Ordering::Relaxed);
        assert!(!before, "a segment has one allocator");
        self.mapping.header_bytes..self.mapping.bytes
    }

    /// Start of the mapping.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.mapping.base
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({} bytes)", self.mapping.bytes)
    }
}

struct Heap {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it is an owned allocation, freed once.
unsafe impl Send for Heap {}
// SAFETY: as above; nothing is done through a shared reference.
unsafe impl Sync for Heap {}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and no handle is left.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

/// Window for reading memory that other ranks may write. It stays on its thread: another one could
/// write through a [`Target`] of the same memory.
#[derive(Clone, Copy)]
pub struct Source<'a, T> {
    base: NonNull<T>,
    count: usize,
    lifetime: PhantomData<&'a T>,
}

/// Window for reading and writing memory that other ranks may access. Copies of it may overlap, so
/// it stays on its thread:
///
/// ```compile_fail,E0277
/// let mut numbers = [0_u8; 4];
/// let window = lockstep_platform::Target::of(&mut numbers);
/// std::thread::scope(|scope| {
///     scope.spawn(|| window.set(0, 1));
///     window.set(0, 2);
/// });
/// ```
#[derive(Clone, Copy)]
pub struct Target<'a, T> {
    base: NonNull<T>,
    count: usize,
    lifetime: PhantomData<&'a T>,
}

impl<'a, T: Plain> Source<'a, T> {
    /// Window over a local slice.
    pub fn of(slice: &'a [T]) -> Self {
        let base = NonNull::from(slice).cast();
        Self { base, count: slice.len(), lifetime: PhantomData }
    }

    /// Number of elements.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether it is empty.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Element at `index`.
    #[inline(always)]
    pub fn get(&self, index: usize) -> T {
        assert!(index < self.count, "element {index} of {}", self.count);
        // SAFETY: in bounds; any bits are a value of a plain type.
        unsafe { self.base.add(index).read_unaligned() }
    }

    /// Sub-window.
    #[inline(always)]
    pub fn part(&self, range: Range<usize>) -> Self {
        if range.start > range.end || range.end > self.count {
            no_such_part(range, self.count);
        }
        // SAFETY: the start is in bounds, or one past the end of an empty part.
        let base = unsafe { self.base.add(range.start) };
        Self { base, count: range.len(), lifetime: PhantomData }
    }

    /// Window over groups of `N` elements, and the remaining elements.
    #[inline(always)]
    pub fn as_chunks<const N: usize>(&self) -> (Source<'a, [T; N]>, Self) {
        let body = Source { base: self.base.cast(), count: self.count / N, lifetime: PhantomData };
        (body, self.part(self.count / N * N..self.count))
    }

    /// Copies everything into a slice of equal length.
    pub fn copy_to(&self, slice: &mut [T]) {
        Target::of(slice).copy_from(*self);
    }

    /// Window over the same memory as another plain type of equal size.
    #[inline(always)]
    pub fn cast<U: Plain>(&self) -> Source<'a, U> {
        let target = Target { base: self.base, count: self.count, lifetime: PhantomData };
        target.cast().as_source()
    }
}

impl<'a, T: Plain> Target<'a, T> {
    /// Window over a local slice.
    pub fn of(slice: &'a mut [T]) -> Self {
        let count = slice.len();
        Self { base: NonNull::from(slice).cast(), count, lifetime: PhantomData }
    }

    /// Window for reading only.
    #[inline(always)]
    pub fn as_source(&self) -> Source<'a, T> {
        Source { base: self.base, count: self.count, lifetime: PhantomData }
    }

    /// Number of elements.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether it is empty.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Sets the element at `index`.
    #[inline(always)]
    pub fn set(&self, index: usize, value: T) {
        assert!(index < self.count, "element {index} of {}", self.count);
        // SAFETY: in bounds; the owner lent the memory for writing.
        unsafe { self.base.add(index).write_unaligned(value) }
    }

    /// Prefetches the cache line of an element for writing, if it exists. A line modified by
    /// another core is then transferred once, instead of first for reading and again for writing.
    #[inline(always)]
    pub fn fetch_for_writing(&self, index: usize) {
        if index < self.count {
            // SAFETY: in bounds.
            fetch_line(unsafe { self.base.add(index) }.as_ptr().cast());
        }
    }

    /// Sub-window.
    #[inline(always)]
    pub fn part(&self, range: Range<usize>) -> Self {
        let part = self.as_source().part(range);
        Self { base: part.base, count: part.count, lifetime: PhantomData }
    }

    /// Window over groups of `N` elements, and the remaining elements.
    #[inline(always)]
    pub fn as_chunks<const N: usize>(&self) -> (Target<'a, [T; N]>, Self) {
        let body = Target { base: self.base.cast(), count: self.count / N, lifetime: PhantomData };
        (body, self.part(self.count / N * N..self.count))
    }

    /// Copies a window of equal length, which may overlap this one.
    pub fn copy_from(&self, source: Source<'_, T>) {
        assert_eq!(self.count, source.count, "both windows have one length");
        // SAFETY: both are in bounds; an overlap is allowed by `copy_from`.
        unsafe { self.base.copy_from(source.base, self.count) }
    }

    /// Copies a window of equal length element by element with relaxed atomics, so that other ranks
    /// may do the same to this memory: an element is always one that some rank has stored. Slower
    /// than [`Self::copy_from`].
    pub fn copy_each_from(&self, source: Source<'_, T>) {
        self.copy_each(source, true);
    }

    /// [`Self::copy_each_from`] a slice, which no other rank can access.
    pub fn copy_each_from_slice(&self, slice: &[T]) {
        self.copy_each(Source::of(slice), false);
    }

    /// Copies element by element; a source that is not shared may be read-only, and no atomic may
    /// refer to that.
    #[inline(always)]
    fn copy_each(&self, source: Source<'_, T>, is_shared: bool) {
        assert_eq!(self.count, source.count, "both windows have one length");
        assert!(self.base.is_aligned() && source.base.is_aligned(), "elements are aligned");
        macro_rules! copy_as {
            ($atomic:ty, $bits:ty) => {{
                let (into, from) = (self.base.cast::<$atomic>(), source.base.cast::<$bits>());
                let copy = |index: usize| {
                    // SAFETY: in bounds, and the atomic has the size and alignment of the element.
                    let into = unsafe { into.add(index).as_ref() };
                    // SAFETY: in bounds.
                    let from = unsafe { from.add(index) };
                    let bits = if is_shared {
                        // SAFETY: as above; shared memory is lent for writing.
                        unsafe { from.cast::<$atomic>().as_ref() }.load(Ordering::Relaxed)
                    } else {
                        // SAFETY: as above, and no other rank writes to it.
                        unsafe { from.read() }
                    };
                    into.store(bits, Ordering::Relaxed);
                };
                // In the direction in which overlapping windows overwrite only what was copied.
                if into.cast() <= from {
                    (0..self.count).for_each(copy);
                } else {
                    (0..self.count).rev().for_each(copy);
                }
            }};
        }
        const { assert!(align_of::<T>() == size_of::<T>(), "the element fits an atomic") };
        match size_of::<T>() {
            1 => copy_as!(AtomicU8, u8),
            2 => copy_as!(AtomicU16, u16),
            4 => copy_as!(AtomicU32, u32),
            8 => copy_as!(AtomicU64, u64),
            size => unreachable!("no element has {size} bytes"),
        }
    }

    /// Copies a slice of equal length.
    pub fn copy_from_slice(&self, slice: &[T]) {
        self.copy_from(Source::of(slice));
    }

    /// Window over the same memory as another plain type; sizes and alignment must match.
    #[inline(always)]
    pub fn cast<U: Plain>(&self) -> Target<'a, U> {
        let bytes = self.count * size_of::<T>();
        let base = self.base.cast::<U>();
        if !bytes.is_multiple_of(size_of::<U>()) || !base.is_aligned() {
            no_such_elements(bytes, size_of::<U>());
        }
        Target { base, count: bytes / size_of::<U>(), lifetime: PhantomData }
    }
}

// Kept out of line, so that the checks inline to a few instructions.
#[cold]
#[inline(never)]
fn no_such_part(range: Range<usize>, count: usize) -> ! {
    panic!("{range:?} of {count}")
}

#[cold]
#[inline(never)]
fn no_such_elements(bytes: usize, each: usize) -> ! {
    panic!("{bytes} bytes here are not whole elements of {each}, or do not suit them")
}

#[inline(always)]
fn fetch_line(address: *const i8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: a hint about an address reads and changes nothing.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(address) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

impl Source<'_, u8> {
    /// Writes bytes from the start of the window, as many as the writer accepts at once.
    pub fn write_to(&self, writer: &mut dyn io::Write) -> io::Result<usize> {
        // SAFETY: in bounds, and any bits are bytes. The slice lives for this call only, and a
        // writer does no more than copy it.
        writer.write(unsafe { NonNull::slice_from_raw_parts(self.base, self.count).as_ref() })
    }
}

impl Target<'_, u8> {
    /// Sets every byte to `value`.
    pub fn fill(&self, value: u8) {
        // SAFETY: in bounds; the owner lent the memory for writing.
        unsafe { self.base.write_bytes(value, self.count) }
    }

    /// Reads bytes to the start of the window, as many as the reader provides at once.
    pub fn read_from(&self, reader: &mut dyn io::Read) -> io::Result<usize> {
        // SAFETY: in bounds and initialised. The slice lives for this call only, and a reader does
        // no more than fill it.
        reader.read(unsafe { NonNull::slice_from_raw_parts(self.base, self.count).as_mut() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atomics_and_windows_see_the_same_bytes() {
        let segment = Segment::heap(128, 8192);
        segment.word(64).store(0x0102_0304_0506_0708, Ordering::Relaxed);
        // SAFETY: only this thread has the segment, and no block of it exists.
        let number = |offset| unsafe { segment.target::<u64>(offset, 1) }.as_source().get(0);
        assert_eq!(number(64), 0x0102_0304_0506_0708);
        // SAFETY: as above.
        let window = unsafe { segment.target::<f32>(4096, 40) };
        let (body, tail) = window.as_chunks::<16>();
        assert_eq!((body.len(), tail.len()), (2, 8));
        body.set(1, [2.5; 16]);
        tail.set(7, 1.5);
        let bits = |value: f32| u64::from(value.to_bits());
        assert_eq!(number(4096 + 31 * 4 - 4), bits(2.5) << 32 | bits(2.5));
        assert_eq!(number(4096 + 39 * 4 - 4) >> 32, bits(1.5));
    }

    #[test]
    #[should_panic(expected = "80 elements of 4 bytes at byte 8000 of 8192")]
    fn a_window_outside_the_segment_is_refused() {
        // SAFETY: nothing else has the segment.
        unsafe { Segment::heap(64, 8192).target::<f32>(8000, 80) };
    }

    #[test]
    fn an_untrusted_offset_is_checked() {
        let segment = Segment::heap(64, 8192);
        // SAFETY: nothing else has the segment.
        let exists = |offset, count| unsafe { segment.try_target::<f32>(offset, count) }.is_some();
        assert!(exists(8188, 1) && exists(8192, 0));
        for (offset, count) in [(8188, 2), (8190, 0), (usize::MAX, 1), (4, usize::MAX / 4 + 1)] {
            assert!(!exists(offset, count), "{count} at {offset}");
        }
    }

    #[test]
    #[should_panic(expected = "element 3 of 3")]
    fn an_element_outside_the_window_is_refused() {
        Source::of(&[1_u8, 2, 3]).get(3);
    }

    #[test]
    fn a_filled_window_ends_where_it_ends() {
        let mut bytes = [1_u8; 8];
        Target::of(&mut bytes).part(2..5).fill(9);
        assert_eq!(bytes, [1, 1, 9, 9, 9, 1, 1, 1]);
    }

    #[test]
    fn overlapping_windows_copy_as_if_through_a_third_place() {
        let mut numbers: Vec<u32> = (0..10).collect();
        let window = Target::of(&mut numbers);
        window.part(1..10).copy_from(window.part(0..9).as_source());
        assert_eq!(numbers, [0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        let window = Target::of(&mut numbers);
        window.part(0..9).copy_each_from(window.part(1..10).as_source());
        window.part(3..10).copy_each_from(window.part(2..9).as_source());
        assert_eq!(numbers, [0, 1, 2, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn elements_that_two_threads_copy_at_once_stay_whole() {
        let segment = Segment::heap(64, 8192);
        let put = |value: u64| {
            // SAFETY: both threads only copy each element.
            let window = unsafe { segment.target::<u64>(4096, 100) };
            for _ in 0..200 {
                window.copy_each_from_slice(&[value; 100]);
                let mut found = [0; 100];
                Target::of(&mut found).copy_each_from(window.as_source());
                assert!(found.iter().all(|x| [u64::MAX, 1].contains(x)), "{found:?}");
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| put(u64::MAX));
            put(1);
        });
    }
}
