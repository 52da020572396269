//! Thread pool with work stealing: threads share the tasks of one kernel after another.
//!
//! A training step is thousands of kernels of a fraction of a millisecond, so starting one must
//! cost about a microsecond and allocate nothing. Threads spin for some tens of microseconds after
//! work before they sleep, and a kernel does not wait for sleeping threads. Every thread starts
//! with its own contiguous share of the tasks, which keeps the rows of an activation in the cache
//! of the core that wrote them; a thread that is done steals from the end of another's share.
//!
//! The *gate* is one word: a generation, whether its kernel can still be joined, and the number of
//! helpers inside. A helper enters by incrementing the count while the gate is open; the caller
//! closes the gate when no task is left and returns when the count is zero. Outside of that span no
//! helper can access the caller's closure, which may therefore be on the caller's stack.
#![expect(unsafe_code, reason = "helpers borrow a closure from the caller's stack")]

#[cfg(not(feature = "model-check"))]
mod sync {
    pub(super) use std::hint::spin_loop;
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    pub(super) use std::sync::{Arc, Condvar, Mutex};
    pub(super) use std::thread::yield_now;

    /// `std`'s cell with the interface of loom's, which detects races.
    pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(super) fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        pub(super) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
            read(self.0.get())
        }

        pub(super) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
            write(self.0.get())
        }
    }
}
#[cfg(feature = "model-check")]
mod sync {
    pub(super) use loom::cell::UnsafeCell;
    pub(super) use loom::hint::spin_loop;
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    pub(super) use loom::sync::{Arc, Condvar, Mutex};
    pub(super) use loom::thread::yield_now;
}

use std::panic::{AssertUnwindSafe, catch_unwind};
use sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, Ordering, UnsafeCell};

/// Polls of the gate before a helper sleeps: some fifty microseconds.
#[cfg(not(feature = "model-check"))]
const SPINS: usize = 1000;
#[cfg(feature = "model-check")]
const SPINS: usize = 1;

/// The gate's word: generation << 16 | open << 15 | helpers inside.
const OPEN: u64 = 1 << 15;
const INSIDE: u64 = OPEN - 1;

/// Body of a helper thread; it returns when the pool is dropped.
pub type Helper = Box<dyn FnOnce() + Send>;

/// Thread pool of the caller and its helpers.
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    gate: AtomicU64,
    /// Remaining tasks of each thread: first << 32 | end.
    shares: Vec<Line>,
    task: UnsafeCell<Task>,
    /// A kernel is running on the pool; a nested one runs on its own thread.
    busy: AtomicBool,
    /// Whether a task of a helper panicked.
    panicked: AtomicBool,
    num_asleep: AtomicUsize,
    stopped: Mutex<bool>,
    wake: Condvar,
}

/// A word on its own cache line, to avoid false sharing.
#[repr(align(64))]
struct Line(AtomicU64);

/// A closure on the caller's stack.
#[derive(Clone, Copy)]
struct Task(Option<*const (dyn Fn(usize) + Sync)>);

// SAFETY: `task` is written only while the gate is closed and no helper is inside, and read only by
// threads inside; the closure it points to is Sync. All other fields are Sync.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Pool {
    /// Makes a pool of the caller and `num_helpers` threads, each of which must run one of the
    /// returned bodies.
    pub fn new(num_helpers: usize) -> (Self, Vec<Helper>) {
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            shares: (0..=num_helpers).map(|_| Line(AtomicU64::new(0))).collect(),
            task: UnsafeCell::new(Task(None)),
            busy: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            num_asleep: AtomicUsize::new(0),
            stopped: Mutex::new(false),
            wake: Condvar::new(),
        });
        let helper = |thread: usize| -> Helper {
            let shared = Arc::clone(&shared);
            Box::new(move || shared.help(thread))
        };
        let helpers = (1..=num_helpers).map(helper).collect();
        (Self { shared }, helpers)
    }

    /// Runs `task(0)` to `task(num_tasks - 1)`, each once, on any thread; returns when all are
    /// done. Inside a task of the same pool everything runs on the calling thread.
    ///
    /// # Panics
    /// When a task does.
    pub fn run(&self, num_tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        if shared.busy.swap(true, Ordering::Acquire) {
            return (0..num_tasks).for_each(task);
        }
        let num_threads = shared.shares.len();
        for (thread, share) in shared.shares.iter().enumerate() {
            let [first, end] = [thread, thread + 1].map(|m| (m * num_tasks / num_threads) as u64);
            share.0.store(first << 32 | end, Ordering::Relaxed);
        }
        // SAFETY: only the type changes; `Closing` keeps the caller here until no helper can use
        // the closure any more.
        let task_forever = unsafe {
            std::mem::transmute::<
                &(dyn Fn(usize) + Sync + '_),
                *const (dyn Fn(usize) + Sync + 'static),
            >(task)
        };
        // SAFETY: the gate is closed and no helper is inside (the last `Closing` waited for that),
        // so this is the only access.
        shared.task.with_mut(|cell| unsafe { *cell = Task(Some(task_forever)) });
        let generation = (shared.gate.load(Ordering::Relaxed) >> 16) + 1;
        // Both sides are sequentially consistent: either the caller sees a sleeping helper, or the
        // helper sees the open gate before it sleeps.
        shared.gate.store(generation << 16 | OPEN, Ordering::SeqCst);
        if shared.num_asleep.load(Ordering::SeqCst) > 0 {
            drop(shared.stopped.lock());
            shared.wake.notify_all();
        }
        let closing = Closing(shared);
        shared.work(0, task);
        drop(closing);
    }

    /// Number of helpers that sleep.
    pub fn num_asleep(&self) -> usize {
        self.shared.num_asleep.load(Ordering::SeqCst)
    }
}

/// Closes the gate and waits for the helpers inside, also when the caller's own task panics.
struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let shared = self.0;
        shared.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut num_spins = 0;
        while shared.gate.load(Ordering::Acquire) & INSIDE > 0 {
            pause(&mut num_spins);
        }
        let panicked = shared.panicked.swap(false, Ordering::Relaxed);
        shared.busy.store(false, Ordering::Release);
        assert!(!panicked || std::thread::panicking(), "a task panicked on another thread");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Ok(mut stopped) = self.shared.stopped.lock() {
            *stopped = true;
        }
        self.shared.wake.notify_all();
    }
}

impl Shared {
    /// Loop of a helper thread.
    fn help(&self, thread: usize) {
        let mut last_generation = 0;
        let mut num_spins = 0;
        loop {
            let gate = self.gate.load(Ordering::Acquire);
            if may_join(gate, last_generation) {
                let entered = gate + 1;
                let order = (Ordering::AcqRel, Ordering::Relaxed);
                if self.gate.compare_exchange(gate, entered, order.0, order.1).is_ok() {
                    last_generation = gate >> 16;
                    num_spins = 0;
                    self.help_once(thread);
                }
            } else if num_spins < SPINS {
                num_spins += 1;
                sync::spin_loop();
            } else {
                if !self.sleep_until_open(last_generation) {
                    return;
                }
                num_spins = 0;
            }
        }
    }

    /// Runs tasks of the kernel behind the open gate, then leaves.
    fn help_once(&self, thread: usize) {
        // SAFETY: this thread is inside, so the caller stays in `run` and does not write.
        let task = self.task.with(|cell| unsafe { *cell }.0.expect("an open gate has a task"));
        // SAFETY: as above, hence the closure is alive.
        let task = unsafe { &*task };
        if catch_unwind(AssertUnwindSafe(|| self.work(thread, task))).is_err() {
            self.panicked.store(true, Ordering::Relaxed);
        }
        self.gate.fetch_sub(1, Ordering::Release);
    }

    /// Runs the thread's own share, then steals from the others.
    fn work(&self, thread: usize, task: &(dyn Fn(usize) + Sync)) {
        let num_threads = self.shares.len();
        while let Some(index) = self.take(thread, |first, end| (first, (first + 1, end))) {
            task(index);
        }
        for other in (thread + 1..num_threads).chain(0..thread) {
            while let Some(index) = self.take(other, |first, end| (end - 1, (first, end - 1))) {
                task(index);
            }
        }
    }

    /// Takes a task from a share; `choose` returns the task and the remaining share.
    fn take(&self, thread: usize, choose: fn(u64, u64) -> (u64, (u64, u64))) -> Option<usize> {
        let share = &self.shares[thread].0;
        let mut current = share.load(Ordering::Relaxed);
        loop {
            let (first, end) = (current >> 32, current & u64::from(u32::MAX));
            if first >= end {
                return None;
            }
            let (index, (first, end)) = choose(first, end);
            let left = first << 32 | end;
            // Relaxed is enough: a share only assigns tasks. Entering the gate makes the inputs of
            // a task visible, and leaving it the results.
            match share.compare_exchange_weak(current, left, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(index as usize),
                Err(now) => current = now,
            }
        }
    }

    /// Sleeps until a new generation can be joined; false when the pool is gone.
    fn sleep_until_open(&self, last_generation: u64) -> bool {
        let Ok(mut stopped) = self.stopped.lock() else { return false };
        self.num_asleep.fetch_add(1, Ordering::SeqCst);
        // A missed generation that is already closed must not wake the helper.
        while !*stopped && !may_join(self.gate.load(Ordering::SeqCst), last_generation) {
            match self.wake.wait(stopped) {
                Ok(guard) => stopped = guard,
                Err(_) => return false,
            }
        }
        self.num_asleep.fetch_sub(1, Ordering::SeqCst);
        !*stopped
    }
}

/// Whether the gate is open to a helper whose last generation was this one.
fn may_join(gate: u64, last_generation: u64) -> bool {
    gate & OPEN > 0 && gate >> 16 != last_generation
}

/// Waits: first by spinning, then by yielding the core.
fn pause(num_spins: &mut usize) {
    *num_spins += 1;
    if *num_spins < SPINS {
        sync::spin_loop();
    } else {
        sync::yield_now();
    }
}
