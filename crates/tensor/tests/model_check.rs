//! The thread pool under loom, whose atomics replace the real ones with the feature `model-check`.

mod pool {
    use lockstep_tensor::internals::Pool;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Every interleaving of one caller with one helper over two kernels, and of shutdown: each
    /// task runs once, the caller returns only when all are done, and a sleeping helper wakes or
    /// stops.
    #[test]
    fn no_interleaving_loses_a_task_or_outlives_its_caller() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let (pool, helpers) = Pool::new(1);
            let threads: Vec<_> =
                helpers.into_iter().map(|helper| loom::thread::spawn(helper)).collect();
            for _ in 0..2 {
                let counts = [AtomicUsize::new(0), AtomicUsize::new(0)];
                pool.run(2, &|task| {
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert_eq!(counts.map(AtomicUsize::into_inner), [1, 1]);
            }
            drop(pool);
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }
}
