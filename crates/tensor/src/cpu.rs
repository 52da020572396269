//! Device of every kernel: an instruction set, a thread pool and reused buffers.
//!
//! One `Cpu` belongs to one rank, so that a process can host many ranks with a pool each. The
//! division of work into tasks does not depend on the number of threads.
#![expect(unsafe_code, reason = "tasks borrow disjoint parts of one slice")]

use crate::amx::Amx;
use crate::pool::Pool;
use crate::simd::{Isa, Kernel, Simd, VECTOR_LEN, dispatch, dispatch_tiles};
use std::marker::PhantomData;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Elements in one cache line.
const CACHE_LINE: usize = 16;

/// Smallest capacity of the packing buffer in elements: 2 MiB, the size from which memory can come
/// in huge pages.
const MIN_PACKING_LEN: usize = 512 * 1024;

/// Starts one thread; supplied by the platform, so that simulations can replace it.
pub type Spawn<'a> = &'a dyn Fn(usize, Box<dyn FnOnce() + Send>);

/// Compute device of a rank.
pub struct Cpu {
    isa: Isa,
    amx: Option<Amx>,
    num_threads: usize,
    pool: Option<Pool>,
    packed: Mutex<Vec<f32>>,
}

impl Cpu {
    /// Makes a device with `num_threads` threads: the caller, and others started by `spawn`.
    ///
    /// # Panics
    /// When the CPU lacks `isa`.
    pub fn new(isa: Isa, num_threads: usize, spawn: Spawn<'_>) -> Self {
        assert!(isa.is_available(), "this CPU has no {isa}");
        assert!(num_threads > 0, "at least one thread");
        let pool = (num_threads > 1).then(|| {
            let (pool, helpers) = Pool::new(num_threads - 1);
            for (index, helper) in helpers.into_iter().enumerate() {
                spawn(index + 1, helper);
            }
            pool
        });
        let amx = if isa == Isa::Avx512 { Amx::detect() } else { None };
        Self { isa, amx, num_threads, pool, packed: Mutex::new(Vec::new()) }
    }

    /// Makes a device that runs everything on the calling thread.
    pub fn single(isa: Isa) -> Self {
        Self::new(isa, 1, &|_, _| unreachable!("one thread needs no spawn"))
    }

    /// Instruction set of every kernel on this device.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Disables the CPU's matrix units: slower, with equal results.
    #[must_use]
    pub fn without_matrix_units(mut self) -> Self {
        self.amx = None;
        self
    }

    /// Whether products in bf16 run on the CPU's matrix units (AMX).
    pub fn has_matrix_units(&self) -> bool {
        self.amx.is_some()
    }

    /// Number of threads.
    pub fn num_threads(&self) -> usize {
        self.num_threads
    }

    /// Runs `task(0)` to `task(num_tasks - 1)` in any order on any thread.
    pub fn for_each(&self, num_tasks: usize, task: impl Fn(usize) + Sync) {
        match &self.pool {
            Some(pool) if num_tasks > 1 => pool.run(num_tasks, &task),
            _ => (0..num_tasks).for_each(task),
        }
    }

    /// Runs `task(i, part)` for the i-th run of `part_len` elements of `data` (the last may be
    /// shorter), in any order on any thread.
    pub fn for_each_part<T: Send>(
        &self,
        data: &mut [T],
        part_len: usize,
        task: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let parts = Parts::new(data, part_len);
        // SAFETY: every index comes once.
        self.for_each(parts.count(), |i| task(i, unsafe { parts.part(i) }));
    }

    /// Runs `task(i, parts)` where part k is the i-th run of `part_lens[k]` elements of buffer k
    /// (the last run may be shorter), in any order on any thread: for kernels that write several
    /// buffers at once.
    ///
    /// # Panics
    /// When the buffers do not have equally many parts.
    pub(crate) fn for_each_split<const K: usize>(
        &self,
        buffers: [&mut [f32]; K],
        part_lens: [usize; K],
        task: impl Fn(usize, [&mut [f32]; K]) + Sync,
    ) {
        let mut part_lens = part_lens.into_iter();
        let mut next_len = || part_lens.next().expect("a length for each buffer");
        let buffers = buffers.map(|buffer| Parts::new(buffer, next_len()));
        let num_parts = buffers[0].count();
        assert!(buffers.iter().all(|parts| parts.count() == num_parts), "equally many parts");
        self.for_each(num_parts, |i| {
            // SAFETY: every index comes once, and the buffers do not overlap.
            task(i, std::array::from_fn(|k| unsafe { buffers[k].part(i) }));
        });
    }

    /// Like [`Self::for_each_split`], for two buffers of different types.
    pub(crate) fn for_each_pair<A: Send, B: Send>(
        &self,
        (one, one_len): (&mut [A], usize),
        (other, other_len): (&mut [B], usize),
        task: impl Fn(usize, &mut [A], &mut [B]) + Sync,
    ) {
        let (one, other) = (Parts::new(one, one_len), Parts::new(other, other_len));
        assert_eq!(one.count(), other.count(), "equally many parts");
        // SAFETY: every index comes once, and the buffers do not overlap.
        self.for_each(one.count(), |i| unsafe { task(i, one.part(i), other.part(i)) });
    }

    /// Runs `task(0, workspace)` to `task(num_tasks - 1, workspace)` in any order on any thread;
    /// tasks that run at the same time get different runs of `workspace_len` elements of `scratch`,
    /// with the contents that an earlier task left. A thread keeps its workspace, so its cache
    /// stays warm.
    pub(crate) fn for_each_with_workspace(
        &self,
        num_tasks: usize,
        scratch: &mut [f32],
        workspace_len: usize,
        task: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        let workspaces = &mut scratch[..num_tasks.min(self.num_threads) * workspace_len];
        let next = AtomicUsize::new(0);
        self.for_each_part(workspaces, workspace_len, |_, workspace| {
            loop {
                // Relaxed is enough: the counter only assigns tasks to threads.
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= num_tasks {
                    return;
                }
                task(index, workspace);
            }
        });
    }

    /// Runs a kernel with this device's instruction set, on the calling thread.
    pub fn run<K: Kernel>(&self, kernel: K) -> K::Out {
        dispatch(self.isa, kernel)
    }

    /// Runs a kernel that multiplies tiles of bf16, on the matrix units if there are any.
    pub(crate) fn run_tiles<K: Kernel>(&self, kernel: K) -> K::Out {
        dispatch_tiles(self.isa, self.amx, kernel)
    }

    /// Calls `body` with the buffer that matrix products pack into: `len` elements aligned to a
    /// cache line, because vector loads that straddle two lines cost twice.
    ///
    /// Only one product runs on a device at a time, on all threads. A product inside another's task
    /// would wait for a buffer that its own thread holds, hence the panic.
    pub(crate) fn with_packing_buffer(&self, len: usize, body: impl FnOnce(&mut [f32])) {
        let mut buffer = self.packed.try_lock().expect("no product starts inside another's task");
        if buffer.len() < len + CACHE_LINE {
            let missing = MIN_PACKING_LEN.saturating_sub(buffer.len());
            buffer.reserve_exact(missing);
            buffer.resize(len + CACHE_LINE, 0.0);
        }
        let start = buffer.as_ptr().align_offset(CACHE_LINE * size_of::<f32>());
        body(&mut buffer[start..start + len]);
    }
}

/// A slice divided into runs of equal length (the last may be shorter), borrowed one by one.
struct Parts<'a, T> {
    data: *mut T,
    len: usize,
    part_len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: callers of `part` guarantee that each part is borrowed once, so sharing `Parts` between
// threads only sends disjoint parts to them.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    fn new(data: &'a mut [T], part_len: usize) -> Self {
        let (len, data) = (data.len(), data.as_mut_ptr());
        assert!(part_len > 0, "parts have elements");
        Self { data, len, part_len, lifetime: PhantomData }
    }

    fn count(&self) -> usize {
        self.len.div_ceil(self.part_len)
    }

    /// # Safety
    /// No index may be borrowed twice at a time.
    unsafe fn part(&self, index: usize) -> &'a mut [T] {
        let start = index * self.part_len;
        assert!(start < self.len, "part {index} of {}", self.count());
        let len = self.part_len.min(self.len - start);
        // SAFETY: the range is inside the slice that `new` borrowed, and the caller guarantees that
        // it is borrowed once.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(start), len) }
    }
}

/// A matrix of contiguous rows divided into blocks of equal shape, borrowed one by one: block i is
/// the i-th in row-major order.
pub(crate) struct Blocks<'a> {
    data: *mut f32,
    len: usize,
    width: usize,
    block_rows: usize,
    block_cols: usize,
    lifetime: PhantomData<&'a mut [f32]>,
}

// SAFETY: as for `Parts`.
unsafe impl Sync for Blocks<'_> {}

impl<'a> Blocks<'a> {
    /// Divides `data`, rows of `width` elements, into blocks of `block` rows and columns.
    ///
    /// # Panics
    /// When the shape does not divide the matrix.
    pub(crate) fn new(data: &'a mut [f32], width: usize, block: (usize, usize)) -> Self {
        let (len, data) = (data.len(), data.as_mut_ptr());
        let (block_rows, block_cols) = block;
        assert!(width.is_multiple_of(block_cols), "blocks of {block_cols} columns in {width}");
        assert!(len.is_multiple_of(width * block_rows), "blocks of {block_rows} rows");
        Self { data, len, width, block_rows, block_cols, lifetime: PhantomData }
    }

    /// # Safety
    /// No index may be borrowed twice at a time.
    pub(crate) unsafe fn block(&self, index: usize) -> Block<'_> {
        let per_row = self.width / self.block_cols;
        let start = index / per_row * self.block_rows * self.width;
        assert!(start < self.len, "block {index} of a matrix of {} elements", self.len);
        // SAFETY: the start of the block is inside the matrix.
        let data = unsafe { self.data.add(start + index % per_row * self.block_cols) };
        Block { blocks: self, data }
    }
}

/// One block of a matrix.
pub(crate) struct Block<'a> {
    blocks: &'a Blocks<'a>,
    data: *mut f32,
}

impl Block<'_> {
    /// Prefetches a row that is written soon.
    #[inline(always)]
    pub(crate) fn prefetch<S: Simd>(&mut self, s: S, row: usize) {
        for line in self.row(row).chunks(VECTOR_LEN) {
            s.prefetch(line.as_ptr());
        }
    }

    /// One row of the block.
    #[inline(always)]
    pub(crate) fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.blocks.block_rows, "row {row} of {}", self.blocks.block_rows);
        // SAFETY: the row is inside the block, which `Blocks` lends once.
        unsafe {
            let start = self.data.add(row * self.blocks.width);
            std::slice::from_raw_parts_mut(start, self.blocks.block_cols)
        }
    }
}
