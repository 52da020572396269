//! Recording a step allocates no memory, as the step loop requires.

#![expect(unsafe_code, reason = "a global allocator that counts is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use lockstep_platform::{ScratchDir, World};
use lockstep_telemetry::console::Terminal;
use lockstep_telemetry::{
    Console, Csv, Event, JsonLines, Otlp, Prometheus, Sink, Stamped, Surface, Telemetry,
    TensorBoard, VERSION, load_events,
};

/// Counts the allocations of the current thread; the test harness has other threads.
struct Counting;

thread_local! {
    static NUM_ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // The counter may be destroyed at the end of a thread.
    let _ = NUM_ALLOCATIONS.try_with(|counter| counter.set(counter.get() + 1));
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract;
// the counter beside it neither allocates nor touches the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, num_bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the pointer came from `System` with this layout.
        unsafe { System.realloc(pointer, layout, num_bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations_of(action: impl FnOnce()) -> u64 {
    let before = NUM_ALLOCATIONS.get();
    action();
    NUM_ALLOCATIONS.get() - before
}

/// Steps whose numbers have many digits, and sometimes are not numbers.
fn step(step: u64) -> Event {
    let share = step as f64 / 7.0;
    Event::Step {
        step: step * 1_000_003,
        loss: if step.is_multiple_of(10) { f64::NAN } else { 1.0 / share },
        lr: 3e-4 / share,
        grad_norm: if step.is_multiple_of(11) { f64::NEG_INFINITY } else { share.sqrt() },
        tokens_per_second: 12_345.678_9 * share,
        step_seconds: share,
        data_wait_seconds: 1e-7 * share,
        exposed_communication_seconds: 0.0,
        straggler_wait_seconds: 0.0,
        is_skipped: false,
        loss_scale: None,
        zeroed_fraction: None,
        preference_accuracy: None,
        preference_margin: None,
        seqlen: None,
    }
}

fn started() -> Event {
    Event::RunStarted {
        recipe_hash: "recipe".to_owned(),
        kernel_class: "f32-fma".to_owned(),
        num_params: 1,
        tokens_per_step: 1,
        num_steps: u64::MAX,
        num_threads: 1,
        workers: 2,
        device: None,
        microbatch: None,
        recompute: None,
        flops_per_token: Some(1e6),
        peak_flops_per_second: Some(1e11),
    }
}

fn sinks(world: &World, scratch: &ScratchDir) -> Vec<Box<dyn Sink>> {
    let path = scratch.path().join("events.jsonl");
    // The terminal is drawn by its own thread, whose allocations do not count.
    let terminal =
        Terminal::new(world, Box::new(std::io::sink()), std::sync::Arc::new(|| 80), true);
    let console = |surface| -> Box<dyn Sink> { Box::new(Console::new(surface, String::new())) };
    let folder = scratch.path().join("tensorboard");
    let csv = scratch.path().join("metrics.csv");
    // The exporters' threads render for themselves. Nothing listens at the collector's address.
    let collector = "http://127.0.0.1:9".parse().expect("a URL");
    vec![
        Box::new(TensorBoard::create(world, &folder, &[]).expect("a scratch file is created")),
        Box::new(Csv::create(world, &csv).expect("a scratch file is created")),
        Box::new(Prometheus::listen(world, "127.0.0.1:0").expect("a port is free")),
        Box::new(Otlp::start(world, collector).expect("a thread starts")),
        Box::new(JsonLines::open(world, &path).expect("a scratch file is created")),
        console(Surface::Terminal(terminal)),
        console(Surface::Launcher(Box::new(std::io::sink()))),
        console(Surface::Plain(Box::new(std::io::sink()), false)),
    ]
}

#[test]
fn recording_a_step_allocates_nothing_after_the_first() {
    let world = lockstep_platform::real();
    let scratch = ScratchDir::new(&world, "allocation").expect("a scratch folder is created");
    let mut telemetry = Telemetry::start(world.clone(), 0, sinks(&world, &scratch));
    telemetry.record(&started());
    telemetry.record(&step(1));

    let num_allocations = allocations_of(|| {
        for index in 2..=500 {
            telemetry.record(&step(index));
        }
    });
    assert_eq!(num_allocations, 0);
    assert_eq!(telemetry.failures(), []);
    let path = scratch.path().join("events.jsonl");
    assert_eq!(load_events(&world, &path).expect("the events are whole").len(), 501);
}

#[test]
fn drawing_progress_allocates_nothing_after_the_first() {
    let world = lockstep_platform::real();
    let scratch = ScratchDir::new(&world, "allocation").expect("a scratch folder is created");
    let mut sinks = sinks(&world, &scratch);
    // Three seconds between steps: every one of them is drawn on every surface.
    let stamped =
        |index, event| Stamped { v: VERSION, seconds: 3.0 * index as f64, rank: 0, event };
    let mut give = |event: &Stamped| {
        for sink in &mut sinks {
            sink.write(event).expect("the sinks have room");
        }
    };
    give(&stamped(0, started()));
    give(&stamped(1, step(1)));

    let num_allocations = allocations_of(|| {
        for index in 2..=500 {
            give(&stamped(index, step(index)));
        }
    });
    assert_eq!(num_allocations, 0);
}

#[test]
fn the_counter_sees_an_allocation() {
    assert!(allocations_of(|| drop(std::hint::black_box(Box::new(1_u64)))) > 0);
}
