//! The step loop allocates nothing after its first step, on any thread of one or two workers.
//!
//! The whole trainer runs: data-loading thread, evaluations, event file, progress lines and records
//! for a launcher. A sink reads the allocation counter of the process at every step. A binary of
//! its own with one test: a second test would allocate meanwhile. So would the thread that draws
//! the live line of a terminal; that recording for it allocates nothing is a test of `telemetry`.
//!
//! Two workers are threads of this process. `LOCKSTEP_TRACE_ALLOCATIONS=1` prints a backtrace of
//! every allocation that the test would count.

use lockstep_harness::allocations::{self, CountingAllocator};
use lockstep_harness::recipes::{DROPOUT, GPT2, LLAMA, Small, THREE_MICROBATCHES, TINY};
use lockstep_harness::runs::{soak, some, train_on_threads};
use lockstep_platform::ScratchDir;
use lockstep_telemetry::{Console, Event, Sink, Stamped, Surface, TelemetryError};
use lockstep_trainer::Options;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const NUM_STEPS: usize = 12;

/// First and last step of two workers between which nothing may be allocated: one of them can be a
/// step behind the other, or have ended its last step before it.
const COUNTED: std::ops::Range<usize> = 3..NUM_STEPS - 1;

/// Telemetry of the thread that trains. The endpoint of Prometheus and the exporter of OTLP have
/// threads of their own, which allocate when they are called.
const TELEMETRY: [&str; 5] = [
    "telemetry.tensorboard=true",
    "telemetry.csv=true",
    "telemetry.trace=true",
    "telemetry.trace_every=1",
    "telemetry.noise_scale=1",
];

/// Frozen parameters between trained ones, and clipping by group.
const PARTLY_FROZEN: &str = "optim.groups=[{match=\"*.mlp.*\",frozen=true},{match=\"*\",clip=1}]";

/// The counter at each step, allocated before the run.
type Counts = Arc<[AtomicU64; NUM_STEPS]>;

struct Counter {
    counts: Counts,
    is_traced: bool,
}

impl Sink for Counter {
    fn write(&mut self, event: &Stamped) -> Result<(), TelemetryError> {
        if let Event::Step { step, .. } = event.event {
            let step = step as usize;
            self.counts[step - 1].store(allocations::count(), Ordering::SeqCst);
            allocations::trace(self.is_traced && COUNTED.contains(&step));
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

/// Allocations of one worker between the event of each step and that of the next.
fn allocations_by_step(small: &Small, num_threads: usize, sets: &[&str]) -> Vec<u64> {
    allocations_with(small, num_threads, sets, Vec::new())
}

/// Allocations of two workers in the counted steps.
fn allocations_of_two(small: &Small, sets: &[&str]) -> u64 {
    let sets = [&["run.workers=2"], sets].concat();
    let by_step = allocations_with(small, 1, &sets, Vec::new());
    by_step[COUNTED.start - 1..COUNTED.end - 1].iter().sum()
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
    let is_traced = world.host().env("LOCKSTEP_TRACE_ALLOCATIONS").is_some();
    sinks.push(Box::new(Counter { counts: Arc::clone(&counts), is_traced }));
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
            (GPT2, "data.documents=masked"),
            (LLAMA, PARTLY_FROZEN),
            (THREE_MICROBATCHES, "optim.clip=0"),
        ] {
            let found = allocations_by_step(&small, 2, &[set]);
            assert_eq!(found, [0; NUM_STEPS - 1], "{}, {set}", small.name);
        }
        for sets in [&TELEMETRY[..], &[&TELEMETRY[..], &["optim.name=lamb"]].concat()] {
            let found = allocations_by_step(&LLAMA, 2, sets);
            assert_eq!(found, [0; NUM_STEPS - 1], "{sets:?}");
        }
        distillation_allocates_nothing();
        no_zero_stage_allocates();
    }
}

/// A student whose teacher is an untrained model.
fn distillation_allocates_nothing() {
    let world = lockstep_platform::real();
    let scratch = ScratchDir::new(&world, "teacher").expect("a scratch folder can be created");
    let dir = scratch.path().join("run").display().to_string();
    let teacher = LLAMA.with(&["train.steps=1", "run.workers=1", &format!("run.dir={dir}")]);
    train_on_threads(&teacher, &world, Options::default()).expect("the run succeeds");
    let folder = format!("finetune.teacher={dir}");
    let model = format!("finetune.teacher_model={}", teacher.model.to_toml());
    let sets = ["finetune.method=distill", &folder, &model];
    let found = allocations_by_step(&LLAMA, 2, &sets);
    assert_eq!(found, [0; NUM_STEPS - 1], "a student");
}

/// Runs of two workers: blocking and overlapped, with both wire formats, and with what adds
/// collectives.
const VARIANTS: [(Small, &[&str]); 11] = [
    (LLAMA, &["parallel.overlap=false", "precision.wire=f32"]),
    (LLAMA, &["parallel.overlap=true", "precision.wire=bf16"]),
    (LLAMA, &["optim.name=lars", "train.eval_every=2"]),
    (THREE_MICROBATCHES, &[]),
    (LLAMA, &["parallel.overlap=true", "precision.wire=f32"]),
    (LLAMA, &["parallel.overlap=false", "precision.wire=bf16"]),
    (LLAMA, &["optim.name=lamb", PARTLY_FROZEN]),
    (GPT2, &[]),
    (LLAMA, &["optim.name=muon"]),
    (LLAMA, &["optim.name=adafactor"]),
    (LLAMA, &["optim.name=adamw-8bit"]),
];

/// One worker, then two, at every stage.
fn no_zero_stage_allocates() {
    let mut failures = Vec::new();
    let mut check = |small: Small, sets: &[&str]| match allocations_of_two(&small, sets) {
        0 => {}
        num => failures.push(format!("{num} allocations: {}, {}", small.name, sets.join(" "))),
    };
    for zero in ["parallel.zero=0", "parallel.zero=1", "parallel.zero=2", "parallel.zero=3"] {
        let found = allocations_by_step(&LLAMA, 1, &[zero]);
        assert_eq!(found, [0; NUM_STEPS - 1], "one worker, {zero}");
        for (small, sets) in some(VARIANTS, 4) {
            check(small, &[&[zero], sets].concat());
        }
    }
    for set in ["parallel.zero=0", "parallel.zero=3", "parallel.tensor=2", "parallel.pipeline=2"] {
        check(LLAMA, &[&TELEMETRY[..], &[set, "parallel.overlap=true"]].concat());
    }
    check(LLAMA, &["parallel.tensor=2"]);
    check(LLAMA, &["parallel.tensor=2", "parallel.sequence=true"]);
    check(LLAMA, &["parallel.pipeline=2"]);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
