//! Events per second of the simulator on one core.

use super::{CompiledSchedule, Fabric, SharedLinks, simulate_collective, simulate_pipeline};
use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};
use lockstep_platform::World;
use lockstep_schedule::collective::{GroupSpec, build};
use lockstep_schedule::pipeline::{self, Kind, Shape};
use lockstep_schedule::{Algorithm, Layout, Link, Op};
use serde::Serialize;
use std::time::Duration;

/// Throughput of one simulation.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Throughput {
    /// Name.
    pub simulation: &'static str,
    /// Events of all repetitions.
    pub events: u64,
    /// Time of all repetitions.
    pub seconds: f64,
    /// Events per second.
    pub events_per_second: f64,
}

/// Time per simulation.
const BUDGET: Duration = Duration::from_millis(300);

const INSIDE: Link = Link { latency: Seconds(1e-6), bandwidth: BytesPerSecond(600e9) };
const BETWEEN: Link = Link { latency: Seconds(10e-6), bandwidth: BytesPerSecond(25e9) };

/// Measures collectives on uniform and shared links, and a pipeline.
pub fn throughput(world: &World) -> [Throughput; 3] {
    let ring = |num_ranks: usize| {
        let schedule =
            build(Op::AllReduce, Algorithm::RING, &GroupSpec::new(num_ranks)).expect("any ring");
        CompiledSchedule::new(&schedule, &Layout::even(&schedule, 1 << 24), Bytes(4))
    };
    let shape = Shape { num_devices: 16, num_chunks: 1, num_microbatches: 256 };
    let pipeline = pipeline::build(Kind::OneFOneB, shape).expect("any 1F1B");
    let (uniform, shared) = (ring(256), ring(64));
    let nics = SharedLinks::nodes(8, 8, 1, INSIDE, BETWEEN);
    [
        measure(world, "ring of 256 over uniform links", || {
            simulate_collective(&uniform, Fabric::Uniform(BETWEEN), &[0.0; 256]).num_events
        }),
        measure(world, "ring of 64, eight ranks per NIC", || {
            simulate_collective(&shared, Fabric::Shared(&nics), &[0.0; 64]).num_events
        }),
        measure(world, "1F1B of 16 devices and 256 micro-batches", || {
            simulate_pipeline(&pipeline, 0.0, |_, _| 1.0).expect("it ends").num_events
        }),
    ]
}

/// Repeats a simulation for the time budget.
fn measure(
    world: &World,
    simulation: &'static str,
    mut simulate: impl FnMut() -> u64,
) -> Throughput {
    let start = world.clock().now();
    let mut events = simulate();
    while world.clock().since(start) < BUDGET {
        events += simulate();
    }
    let seconds = world.clock().since(start).as_secs_f64();
    Throughput { simulation, events, seconds, events_per_second: events as f64 / seconds }
}
