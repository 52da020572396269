//! Tests of the loader thread: slow, failing, panicking, dropped.

use std::sync::atomic::{AtomicU64, Ordering};

use lockstep_platform::{Clock, Entropy, Files, Host, Net, Platform, Processes, Shared, Threads};

use super::*;

const SHAPE: BatchShape =
    BatchShape { batch: 2, microbatch_size: 1, context: 4, has_documents: false, seqlen: None };
const LONG: Duration = Duration::from_secs(20);

fn start(
    world: &World,
    fill: impl FnMut(u64, &mut Batch) -> Result<(), DataError> + Send + 'static,
) -> Loader {
    let text = TextName { name: "test".to_owned(), fingerprint: "0".to_owned() };
    Loader::from_memory(SHAPE, world, text, Cursor::start(), Box::new(fill)).unwrap()
}

/// Fills only the step number.
fn stamp(step: u64, batch: &mut Batch) {
    batch.step = step;
}

#[test]
fn a_panic_in_the_thread_reaches_the_trainer_as_an_error() {
    let mut loader = start(&lockstep_platform::real(), |step, batch| {
        assert!(step < 2, "no third batch");
        stamp(step, batch);
        Ok(())
    });
    assert_eq!(loader.next_batch().unwrap().step, 0);
    assert_eq!(loader.next_batch().unwrap().step, 1);
    let error = loader.next_batch().unwrap_err();
    assert_eq!(error.to_string(), "the thread that makes batches panicked: no third batch");
    assert_eq!(error.blame(), lockstep_config::Blame::Storage);
    assert!(matches!(loader.next_batch(), Err(DataError::Ended)));
}

#[test]
fn an_error_in_the_thread_comes_after_the_good_batches_and_once() {
    let mut loader = start(&lockstep_platform::real(), |step, batch| {
        if step == 1 {
            return Err(DataError::EmptyFile { path: "gone.txt".into() });
        }
        stamp(step, batch);
        Ok(())
    });
    assert_eq!(loader.next_batch().unwrap().step, 0);
    assert!(matches!(loader.next_batch(), Err(DataError::EmptyFile { .. })));
    assert!(matches!(loader.next_batch(), Err(DataError::Ended)));
    assert_eq!(loader.cursor().next_step, 1);
}

#[test]
fn dropping_the_loader_ends_its_thread_at_any_moment() {
    let world = lockstep_platform::real();
    for num_taken in 0..4 {
        // The closure lives as long as the thread.
        let alive = Arc::new(());
        let held = Arc::clone(&alive);
        let mut loader = start(&world, move |step, batch| {
            assert_eq!(Arc::strong_count(&held), 2);
            stamp(step, batch);
            Ok(())
        });
        for _ in 0..num_taken {
            loader.next_batch().unwrap();
        }
        drop(loader);
        assert_eq!(Arc::strong_count(&alive), 1, "the thread outlived its loader");
    }
}

#[test]
fn the_same_two_batches_circulate() {
    let mut loader = start(&lockstep_platform::real(), |step, batch| {
        stamp(step, batch);
        Ok(())
    });
    let mut address = || loader.next_batch().unwrap().inputs.as_ptr();
    let addresses: Vec<_> = (0..10).map(|_| address()).collect();
    assert_ne!(addresses[0], addresses[1]);
    for (step, address) in addresses.iter().enumerate() {
        assert_eq!(*address, addresses[step % 2], "step {step}");
    }
}

#[test]
fn at_most_one_batch_is_made_ahead_of_the_one_in_use() {
    let num_made = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&num_made);
    let mut loader = start(&lockstep_platform::real(), move |step, batch| {
        counter.fetch_add(1, Ordering::SeqCst);
        stamp(step, batch);
        Ok(())
    });
    for num_taken in 1..50 {
        loader.next_batch().unwrap();
        let made = num_made.load(Ordering::SeqCst);
        assert!((num_taken..=num_taken + 1).contains(&made), "{made} made, {num_taken} taken");
    }
}

#[test]
fn the_wait_for_slow_data_is_measured() {
    // The clock stands still except for three seconds during the trainer's wait. Reading the clock
    // at the start of the wait releases the late batch.
    let world = Arc::new(SlowWorld::new());
    let (entered, permits) = (Arc::clone(&world.entered), Arc::clone(&world.permits));
    let now_ms = Arc::clone(&world.now_ms);
    let mut loader = start(&(Arc::clone(&world) as World), move |step, batch| {
        entered.send((), LONG).unwrap();
        permits.recv(LONG).map_err(|_| DataError::Ended)?;
        now_ms.fetch_add(3_000, Ordering::SeqCst);
        stamp(step, batch);
        Ok(())
    });
    world.entered.recv(LONG).unwrap();
    world.armed.store(1, Ordering::SeqCst);
    loader.next_batch().unwrap();
    assert!((loader.wait_seconds() - 3.0).abs() < 1e-9, "{}", loader.wait_seconds());

    // Closing the queue ends the thread, whose second batch waits for permission.
    world.permits.close();
}

/// The real world with a simulated clock.
struct SlowWorld {
    real: World,
    now_ms: Arc<AtomicU64>,
    armed: AtomicU64,
    entered: Arc<Queue<()>>,
    permits: Arc<Queue<()>>,
}

impl SlowWorld {
    fn new() -> Self {
        let real = lockstep_platform::real();
        Self {
            now_ms: Arc::default(),
            armed: AtomicU64::new(0),
            entered: Arc::new(Queue::new(&real, 4)),
            permits: Arc::new(Queue::new(&real, 4)),
            real,
        }
    }
}

impl Clock for SlowWorld {
    fn now(&self) -> Duration {
        let now = Duration::from_millis(self.now_ms.load(Ordering::SeqCst));
        if self.armed.swap(0, Ordering::SeqCst) == 1 {
            self.permits.send((), LONG).unwrap();
        }
        now
    }

    fn wall(&self) -> Duration {
        self.real.clock().wall()
    }

    fn sleep(&self, duration: Duration) {
        self.real.clock().sleep(duration);
    }

    fn process_age(&self) -> Duration {
        self.real.clock().process_age()
    }
}

impl Platform for SlowWorld {
    fn clock(&self) -> &dyn Clock {
        self
    }

    fn files(&self) -> &dyn Files {
        self.real.files()
    }

    fn threads(&self) -> &dyn Threads {
        self.real.threads()
    }

    fn net(&self) -> &dyn Net {
        self.real.net()
    }

    fn processes(&self) -> &dyn Processes {
        self.real.processes()
    }

    fn shared(&self) -> &dyn Shared {
        self.real.shared()
    }

    fn entropy(&self) -> &dyn Entropy {
        self.real.entropy()
    }

    fn host(&self) -> &dyn Host {
        self.real.host()
    }
}
