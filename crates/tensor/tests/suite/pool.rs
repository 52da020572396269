//! The thread pool: every task runs once, a panic reaches the caller, and idle helpers sleep.

use lockstep_tensor::internals::Pool;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

#[expect(clippy::disallowed_methods, reason = "a test may start threads itself")]
fn pool(num_helpers: usize) -> Pool {
    let (pool, helpers) = Pool::new(num_helpers);
    for helper in helpers {
        drop(std::thread::spawn(helper));
    }
    pool
}

#[test]
fn every_task_runs_exactly_once() {
    for num_helpers in [1, 2, 5] {
        let pool = pool(num_helpers);
        for num_tasks in (0..40).chain([1000]) {
            let counts: Vec<AtomicUsize> = (0..num_tasks).map(|_| AtomicUsize::new(0)).collect();
            pool.run(num_tasks, &|task| {
                counts[task].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
        }
    }
}

#[test]
fn a_kernel_inside_a_task_runs_on_its_own_thread() {
    let pool = pool(2);
    let count = AtomicUsize::new(0);
    pool.run(8, &|_| {
        pool.run(8, &|_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(count.into_inner(), 64);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test may wait itself")]
fn helpers_that_missed_a_kernel_sleep_as_well() {
    let pool = pool(3);
    // So short that it ends before most helpers join.
    (0..500).for_each(|_| pool.run(1, &|_| ()));
    let has_slept = (0..10_000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        pool.num_asleep() == 3
    });
    assert!(has_slept, "{} of 3 helpers sleep while there is nothing to do", pool.num_asleep());
}

#[test]
fn a_panic_in_any_task_reaches_the_caller_and_the_pool_stays_usable() {
    let pool = pool(1);
    for bad in 0..64 {
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(64, &|task| assert_ne!(task, bad));
        }));
        assert!(result.is_err(), "task {bad}");
    }
    let count = AtomicUsize::new(0);
    pool.run(64, &|_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(count.into_inner(), 64);
}
