//! The step loop allocates nothing after its first step, on any thread.
//!
//! The whole trainer runs: data-loading thread, evaluations, event file, progress lines and records
//! for a launcher. A sink reads the allocation counter of the process at every step. A binary of
//! its own with one test: a second test would allocate meanwhile. So would the thread that draws
//! the live line of a terminal; that recording for it allocates nothing is a test of `telemetry`.

use lockstep_harness::allocations::{self, CountingAllocator};
use lockstep_harness::recipes::{DROPOUT, LLAMA, Small, THREE_MICROBATCHES, TINY};
use lockstep_harness::runs::{soak, train_on_threads};
use lockstep_platform::ScratchDir;
use lockstep_telemetry::{Console, Event, Sink, Stamped, Surface, TelemetryError};
use lockstep_trainer::Options;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const NUM_STEPS: usize = 12;

/// The counter at each step, allocated before the run.
type Counts = Arc<[AtomicU64; NUM_STEPS]>;

struct Counter {
    counts: Counts,
}

impl Sink for Counter {
    fn write(&mut self, event: &Stamped) -> Result<(), TelemetryError> {
        if let Event::Step { step, .. } = event.event {
            self.counts[step as usize - 1].store(allocations::count(), Ordering::SeqCst);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TelemetryError> {
        Ok(())
    }
}

/// Sink that allocates at every step, to prove that the counter detects it.
struct AllocatingSink;

impl Sink for AllocatingSink {
    fn write(&mut self, event: &Stamped) -> Result<(), TelemetryError> {
        drop(std::hint::black_box(Box::new(event.rank)));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TelemetryError> {
        Ok(())
    }
}

/// Allocations between the event of each step and that of the next.
fn allocations_by_step(small: &Small, num_threads: usize, sets: &[&str]) -> Vec<u64> {
    allocations_with(small, num_threads, sets, Vec::new())
}

fn allocations_with(
    small: &Small,
    num_threads: usize,
    sets: &[&str],
    mut sinks: Vec<Box<dyn Sink>>,
) -> Vec<u64> {
    let world = lockstep_platform::real();
    let scratch = ScratchDir::new(&world, "allocations").expect("a scratch folder can be created");
    let own = [
        "run.workers=1".to_owned(),
        format!("train.steps={NUM_STEPS}"),
        format!("run.threads={num_threads}"),
        format!("run.dir={}", scratch.path().join("run").display()),
    ];
    let sets: Vec<&str> = own.iter().map(String::as_str).chain(sets.iter().copied()).collect();
    let recipe = small.with(&sets);
    let counts = Counts::default();
    let console = |surface| -> Box<dyn Sink> { Box::new(Console::new(surface, String::new())) };
    sinks.push(Box::new(Counter { counts: Arc::clone(&counts) }));
    let nowhere = || Box::new(std::io::sink());
    sinks
        .extend([console(Surface::Launcher(nowhere())), console(Surface::Plain(nowhere(), false))]);
    let options = Options { sinks, ..Options::default() };
    train_on_threads(&recipe, &world, options).expect("the run succeeds");
    let counts: Vec<u64> = counts.iter().map(|count| count.load(Ordering::SeqCst)).collect();
    counts.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[test]
fn the_step_loop_allocates_nothing_after_the_first_step() {
    let found = allocations_with(&LLAMA, 2, &[], vec![Box::new(AllocatingSink)]);
    assert_eq!(found, [1; NUM_STEPS - 1], "one allocation a step is counted");

    // Shorter than a minute, after which the test runner allocates to report a slow test.
    let num_rounds = if soak() { 10 } else { 1 };
    for _ in 0..num_rounds {
        for small in TINY {
            for num_threads in [1, 2] {
                let found = allocations_by_step(&small, num_threads, &[]);
                assert_eq!(found, [0; NUM_STEPS - 1], "{}, {num_threads} threads", small.name);
            }
        }
        for (small, set) in [
            (LLAMA, "train.eval_every=2"),
            (DROPOUT, "optim.name=momentum"),
            (LLAMA, "optim.name=lamb"),
            (LLAMA, "optim.groups=[{match=\"*.mlp.*\",frozen=true},{match=\"*\",clip=1}]"),
            (THREE_MICROBATCHES, "optim.clip=0"),
        ] {
            let found = allocations_by_step(&small, 2, &[set]);
            assert_eq!(found, [0; NUM_STEPS - 1], "{}, {set}", small.name);
        }
    }
}
