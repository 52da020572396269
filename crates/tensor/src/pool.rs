//! A team of threads that share the tasks of one kernel after another.
//!
//! A training step is thousands of kernels of a fraction of a millisecond. So handing one out must
//! cost about a microsecond and allocate nothing: threads that have just worked spin for some tens
//! of microseconds before they sleep, and whoever sleeps is not waited for. Every member starts
//! with its own contiguous share of the tasks, which keeps the rows of an activation in the cache
//! of the core that wrote them; who is done takes from the end of another's share.
//!
//! The *gate* is one word: a generation, whether its tasks may still be joined, and how many
//! helpers are inside. A helper enters by raising the count while the gate is open; the caller
//! closes the gate when no task is left and returns when the count is zero. Between the two no
//! helper can see the caller's closure, which may therefore live on the caller's stack.
#![expect(unsafe_code, reason = "helpers borrow a closure from the caller's stack")]

#[cfg(not(feature = "model-check"))]
mod sync {
    pub(super) use std::hint::spin_loop;
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    pub(super) use std::sync::{Arc, Condvar, Mutex};
    pub(super) use std::thread::yield_now;

    /// The interface of loom's cell, which watches for races, around the real one.
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

/// How often a helper looks at the gate before it sleeps: some fifty microseconds.
#[cfg(not(feature = "model-check"))]
const SPINS: usize = 1000;
#[cfg(feature = "model-check")]
const SPINS: usize = 1;

/// The gate's word: generation << 16 | open << 15 | helpers inside.
const OPEN: u64 = 1 << 15;
const INSIDE: u64 = OPEN - 1;

/// What a helper thread runs until its pool is dropped.
pub(crate) type Helper = Box<dyn FnOnce() + Send>;

/// The caller and its helpers.
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    gate: AtomicU64,
    /// Each member's tasks: first << 32 | end.
    shares: Vec<Line>,
    task: UnsafeCell<Task>,
    /// A kernel is being shared: another one (inside a task, say) runs on its own thread.
    busy: AtomicBool,
    /// A task of a helper panicked.
    panicked: AtomicBool,
    num_asleep: AtomicUsize,
    stopped: Mutex<bool>,
    wake: Condvar,
}

/// A word with a cache line of its own, so that members do not slow each other down.
#[repr(align(64))]
struct Line(AtomicU64);

/// A closure on the caller's stack.
#[derive(Clone, Copy)]
struct Task(Option<*const (dyn Fn(usize) + Sync)>);

// SAFETY: `task` is written only while the gate is closed and nobody is inside, and read only by
// threads inside; the closure it points to is Sync. All other fields are made for sharing.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Pool {
    /// A pool of the caller and `num_helpers` threads, each of which must run one of the returned
    /// bodies.
    pub(crate) fn new(num_helpers: usize) -> (Self, Vec<Helper>) {
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
        let helper = |member: usize| -> Helper {
            let shared = Arc::clone(&shared);
            Box::new(move || shared.help(member))
        };
        let helpers = (1..=num_helpers).map(helper).collect();
        (Self { shared }, helpers)
    }

    /// Runs `task(0)` to `task(num_tasks - 1)`, each once, on any member; returns when all are
    /// done. Inside a task of the same pool everything runs on the calling thread.
    ///
    /// # Panics
    /// When a task does.
    pub(crate) fn run(&self, num_tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        if shared.busy.swap(true, Ordering::Acquire) {
            return (0..num_tasks).for_each(task);
        }
        let group_size = shared.shares.len();
        for (member, share) in shared.shares.iter().enumerate() {
            let [first, end] = [member, member + 1].map(|m| (m * num_tasks / group_size) as u64);
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
        // SAFETY: the gate is closed and nobody is inside (the last `Closing` saw to that), so this
        // is the only access.
        shared.task.with_mut(|cell| unsafe { *cell = Task(Some(task_forever)) });
        let generation = (shared.gate.load(Ordering::Relaxed) >> 16) + 1;
        // Both sides of the agreement with sleepers are sequentially consistent: either the caller
        // sees that a helper sleeps, or the helper sees the open gate before it does.
        shared.gate.store(generation << 16 | OPEN, Ordering::SeqCst);
        if shared.num_asleep.load(Ordering::SeqCst) > 0 {
            drop(shared.stopped.lock());
            shared.wake.notify_all();
        }
        let closing = Closing(shared);
        shared.work(0, task);
        drop(closing);
    }
}

/// Closes the gate and waits for those inside, also when the caller's own task panics.
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
    /// A helper's life.
    fn help(&self, member: usize) {
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
                    self.help_once(member);
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

    /// Takes part in the kernel of the open gate, and leaves.
    fn help_once(&self, member: usize) {
        // SAFETY: this thread is inside, so the caller stays in `run` and does not write.
        let task = self.task.with(|cell| unsafe { *cell }.0.expect("an open gate has a task"));
        // SAFETY: as above, hence the closure is alive.
        let task = unsafe { &*task };
        if catch_unwind(AssertUnwindSafe(|| self.work(member, task))).is_err() {
            self.panicked.store(true, Ordering::Relaxed);
        }
        self.gate.fetch_sub(1, Ordering::Release);
    }

    /// Runs the member's own share, then what others have left.
    fn work(&self, member: usize, task: &(dyn Fn(usize) + Sync)) {
        let group_size = self.shares.len();
        while let Some(index) = self.take(member, |first, end| (first, (first + 1, end))) {
            task(index);
        }
        for other in (member + 1..group_size).chain(0..member) {
            while let Some(index) = self.take(other, |first, end| (end - 1, (first, end - 1))) {
                task(index);
            }
        }
    }

    /// Takes a task out of a share; `choose` says which and what is left.
    fn take(&self, member: usize, choose: fn(u64, u64) -> (u64, (u64, u64))) -> Option<usize> {
        let share = &self.shares[member].0;
        let mut seen = share.load(Ordering::Relaxed);
        loop {
            let (first, end) = (seen >> 32, seen & u64::from(u32::MAX));
            if first >= end {
                return None;
            }
            let (index, (first, end)) = choose(first, end);
            let left = first << 32 | end;
            // Relaxed is enough: a share only says who runs a task; what a task needs was made
            // visible by entering the gate, and what it did is by leaving it.
            match share.compare_exchange_weak(seen, left, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(index as usize),
                Err(now) => seen = now,
            }
        }
    }

    /// Sleeps until a new generation can be joined; false when the pool is gone.
    fn sleep_until_open(&self, last_generation: u64) -> bool {
        let Ok(mut stopped) = self.stopped.lock() else { return false };
        self.num_asleep.fetch_add(1, Ordering::SeqCst);
        // A generation that was missed, and is closed again, is nothing to wake up for.
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

/// Whether the gate is open to a helper that was inside last in this generation.
fn may_join(gate: u64, last_generation: u64) -> bool {
    gate & OPEN > 0 && gate >> 16 != last_generation
}

/// Waits a moment: first on the core, then by letting somebody else have it.
fn pause(num_spins: &mut usize) {
    *num_spins += 1;
    if *num_spins < SPINS {
        sync::spin_loop();
    } else {
        sync::yield_now();
    }
}

#[cfg(test)]
mod tests;
