//! Every task runs once; model-checked: no closure is used after its call.

use super::*;
use std::sync::atomic::AtomicUsize as Count;

#[cfg(not(feature = "model-check"))]
#[expect(clippy::disallowed_methods, reason = "a test may start threads itself")]
fn pool(num_helpers: usize) -> Pool {
    let (pool, helpers) = Pool::new(num_helpers);
    for helper in helpers {
        drop(std::thread::spawn(helper));
    }
    pool
}

#[cfg(not(feature = "model-check"))]
#[test]
fn every_task_runs_exactly_once() {
    for num_helpers in [1, 2, 5] {
        let pool = pool(num_helpers);
        for num_tasks in (0..40).chain([1000]) {
            let counts: Vec<Count> = (0..num_tasks).map(|_| Count::new(0)).collect();
            pool.run(num_tasks, &|task| {
                counts[task].fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            });
            assert!(counts.iter().all(|c| c.load(std::sync::atomic::Ordering::Relaxed) == 1));
        }
    }
}

#[cfg(not(feature = "model-check"))]
#[test]
fn a_kernel_inside_a_task_runs_on_its_own_thread() {
    let pool = pool(2);
    let count = Count::new(0);
    pool.run(8, &|_| {
        pool.run(8, &|_| {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        });
    });
    assert_eq!(count.into_inner(), 64);
}

#[cfg(not(feature = "model-check"))]
#[test]
#[expect(clippy::disallowed_methods, reason = "a test may wait itself")]
fn helpers_that_missed_a_kernel_sleep_as_well() {
    let pool = pool(3);
    // So short that it ends before most helpers join.
    (0..500).for_each(|_| pool.run(1, &|_| ()));
    let num_asleep = || pool.shared.num_asleep.load(Ordering::SeqCst);
    let has_slept = (0..10_000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        num_asleep() == 3
    });
    assert!(has_slept, "{} of 3 helpers sleep while there is nothing to do", num_asleep());
}

#[cfg(not(feature = "model-check"))]
#[test]
fn a_panic_in_any_task_reaches_the_caller_and_the_pool_stays_usable() {
    let pool = pool(1);
    for bad in 0..64 {
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(64, &|task| assert_ne!(task, bad));
        }));
        assert!(result.is_err(), "task {bad}");
    }
    let count = Count::new(0);
    pool.run(64, &|_| {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(count.into_inner(), 64);
}

/// Every interleaving of one caller with one helper over two kernels, and of shutdown: each task
/// runs once, the caller returns only when all are done, and a sleeping helper wakes or stops.
#[cfg(feature = "model-check")]
#[test]
fn no_interleaving_loses_a_task_or_outlives_its_caller() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (pool, helpers) = Pool::new(1);
        let threads: Vec<_> =
            helpers.into_iter().map(|helper| loom::thread::spawn(helper)).collect();
        for _ in 0..2 {
            let counts = [Count::new(0), Count::new(0)];
            pool.run(2, &|task| {
                counts[task].fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            });
            assert_eq!(counts.map(Count::into_inner), [1, 1]);
        }
        drop(pool);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}
