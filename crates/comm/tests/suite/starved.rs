//! Deadlines on a loaded host, where a yield returns late.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockstep_comm::{Comm, CommError, Options};
use lockstep_platform::{
    Clock, Entropy, Files, Host, LocalListener, LocalStream, Net, Platform, Processes, Segment,
    Shared, SharedError, SpinPolicy, Threads, World, real,
};

/// Duration of a yield: the time slices of four computing processes.
const TURN: Duration = Duration::from_millis(12);

/// A platform whose time passes only in yields and sleeps.
struct Starved {
    real: World,
    now_micros: AtomicU64,
}

impl Starved {
    fn pass(&self, duration: Duration) {
        self.now_micros.fetch_add(duration.as_micros() as u64, Ordering::SeqCst);
    }
}

impl Clock for Starved {
    fn now(&self) -> Duration {
        Duration::from_micros(self.now_micros.load(Ordering::SeqCst))
    }

    fn wall(&self) -> Duration {
        self.real.clock().wall()
    }

    fn sleep(&self, duration: Duration) {
        self.pass(duration);
    }

    fn process_age(&self) -> Duration {
        self.real.clock().process_age()
    }
}

impl Shared for Starved {
    fn create(&self, header_bytes: usize, bytes: usize) -> Result<Segment, SharedError> {
        self.real.shared().create(header_bytes, bytes)
    }

    fn listen(&self, name: &str) -> Result<Box<dyn LocalListener>, SharedError> {
        self.real.shared().listen(name)
    }

    fn connect(&self, name: &str, timeout: Duration) -> Result<Box<dyn LocalStream>, SharedError> {
        self.real.shared().connect(name, timeout)
    }

    fn wait(&self, _: &AtomicU64, _: u64, timeout: Duration) {
        self.pass(timeout);
    }

    fn wake(&self, word: &AtomicU64) {
        self.real.shared().wake(word);
    }

    fn join_fences(&self) -> bool {
        self.real.shared().join_fences()
    }

    fn fence_all(&self) {
        self.real.shared().fence_all();
    }

    fn yield_now(&self) {
        self.pass(TURN);
    }

    fn spin_policy(&self, _: usize) -> SpinPolicy {
        // The policy for more ranks than cores.
        SpinPolicy { num_spins: 40, num_yields: 3000 }
    }
}

impl Platform for Starved {
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
        self
    }

    fn entropy(&self) -> &dyn Entropy {
        self.real.entropy()
    }

    fn host(&self) -> &dyn Host {
        self.real.host()
    }
}

#[test]
fn a_missing_rank_is_reported_in_time_however_long_a_yield_takes() {
    let starved = Arc::new(Starved { real: real(), now_micros: AtomicU64::new(0) });
    let world: World = Arc::clone(&starved) as World;
    let timeout = Duration::from_secs(4);
    let ends = Comm::threads(&world, 2, &Options { arena_bytes: 1 << 20, timeout });
    let ends = ends.expect("a world of two");
    let error = ends[0].recv(&mut [0_u64], 1, 1).expect_err("no rank sends");
    let took = starved.now();
    let CommError::Failed(verdict) = &error else { panic!("{error}") };
    assert_eq!(verdict.culprit.0, 1, "{error}");
    // Sixteen yields may pass between two readings of the clock.
    let most = timeout + 17 * TURN;
    assert!(took >= timeout && took <= most, "{took:?} of {timeout:?}");
}
