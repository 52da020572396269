//! The device every kernel runs on: an instruction set, a pool of threads, and reused buffers.
//!
//! One `Cpu` belongs to one rank, so that a process can host many ranks with a pool each. Work is
//! always cut into tasks that do not depend on the number of threads; threads only decide who
//! runs which task. The thread that trains enters the pool once ([`Cpu::install`]); after that a
//! parallel kernel costs no allocation.

use crate::simd::{Isa, Kernel, dispatch};
use rayon::prelude::*;
use std::sync::Mutex;

/// Elements in one cache line.
const CACHE_LINE: usize = 16;

/// Starts one thread; the platform supplies it, so that a simulated world can supply another.
pub type Spawn<'a> = &'a dyn Fn(usize, Box<dyn FnOnce() + Send>);

/// A rank's compute device.
pub struct Cpu {
    isa: Isa,
    num_threads: usize,
    pool: Option<rayon::ThreadPool>,
    packed: Mutex<Vec<f32>>,
}

impl Cpu {
    /// A device with `num_threads` threads, each started by `spawn`.
    ///
    /// # Panics
    /// When the CPU lacks `isa`, or a thread cannot be started.
    pub fn new(isa: Isa, num_threads: usize, spawn: Spawn<'_>) -> Self {
        assert!(isa.is_available(), "this CPU has no {isa}");
        let pool = (num_threads > 1).then(|| {
            rayon::ThreadPoolBuilder::new()
                .num_threads(num_threads)
                .spawn_handler(|thread| {
                    let index = thread.index();
                    spawn(index, Box::new(move || thread.run()));
                    Ok(())
                })
                .build()
                .expect("the pool's threads start")
        });
        Self { isa, num_threads, pool, packed: Mutex::new(Vec::new()) }
    }

    /// A device that runs everything on the calling thread.
    pub fn single(isa: Isa) -> Self {
        Self::new(isa, 1, &|_, _| unreachable!("one thread needs no spawn"))
    }

    /// The instruction set of every kernel on this device.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// How many threads share the work.
    pub fn num_threads(&self) -> usize {
        self.num_threads
    }

    /// Runs `body` inside the pool, so that the kernels it calls need no hand-over of their own.
    pub fn install<R: Send>(&self, body: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(body),
            None => body(),
        }
    }

    /// Runs `task(0)` to `task(num_tasks - 1)` in any order on any thread.
    pub fn for_each(&self, num_tasks: usize, task: impl Fn(usize) + Sync + Send) {
        match &self.pool {
            Some(pool) if num_tasks > 1 => {
                pool.install(|| {
                    (0..num_tasks).into_par_iter().with_max_len(1).for_each(&task);
                });
            }
            _ => (0..num_tasks).for_each(task),
        }
    }

    /// Runs `task(i, part)` for the i-th run of `part_len` elements of `data` (the last may be
    /// shorter), in any order on any thread.
    pub fn for_each_part<T: Send>(
        &self,
        data: &mut [T],
        part_len: usize,
        task: impl Fn(usize, &mut [T]) + Sync + Send,
    ) {
        match &self.pool {
            Some(pool) if data.len() > part_len => pool.install(|| {
                data.par_chunks_mut(part_len)
                    .with_max_len(1)
                    .enumerate()
                    .for_each(|(i, part)| task(i, part));
            }),
            _ => data.chunks_mut(part_len).enumerate().for_each(|(i, part)| task(i, part)),
        }
    }

    /// Runs a kernel with this device's instruction set, on the calling thread.
    pub fn run<K: Kernel>(&self, kernel: K) -> K::Out {
        dispatch(self.isa, kernel)
    }

    /// Lends `body` the buffer that matrix products pack into: `len` elements from the start of a
    /// cache line on, because vector loads that straddle two lines cost twice.
    ///
    /// Only one product runs on a device at a time: it spreads over all threads by itself. One that
    /// starts inside another's task would wait for a buffer its own thread holds, hence the panic.
    pub(crate) fn with_packing_buffer(&self, len: usize, body: impl FnOnce(&mut [f32])) {
        let mut buffer = self.packed.try_lock().expect("no product starts inside another's task");
        if buffer.len() < len + CACHE_LINE {
            buffer.resize(len + CACHE_LINE, 0.0);
        }
        let start = buffer.as_ptr().align_offset(CACHE_LINE * size_of::<f32>());
        body(&mut buffer[start..start + len]);
    }
}
