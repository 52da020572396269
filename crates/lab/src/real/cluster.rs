//! A cluster on one machine: ranks are threads connected by TCP over emulated links.
//!
//! Compute is a sleep, so two cores host many ranks and sleeps and links determine all times.

use crate::error::LabError;
use lockstep_comm::transport::tcp::{TcpOptions, TcpTransport};
use lockstep_comm::{Comm, CommError, Reduction};
use lockstep_config::units::{BytesPerSecond, Seconds};
use lockstep_config::{Emulate, LinkConditions};
use lockstep_platform::World;
use lockstep_schedule::{Algorithm, Link};
use std::sync::Barrier;
use std::time::Duration;

/// TCP streams per pair; one stream does not split messages.
const NUM_STREAMS: usize = 1;

/// One rank of the cluster.
pub(super) struct Rank<'a> {
    /// Communicator of all ranks.
    pub(super) comm: Comm,
    world: &'a World,
}

impl Rank<'_> {
    /// Rank number.
    pub(super) fn index(&self) -> usize {
        self.comm.group_rank()
    }

    /// Emulates compute by sleeping.
    pub(super) fn compute(&self, seconds: f64) {
        if seconds > 0.0 {
            self.world.clock().sleep(Duration::from_secs_f64(seconds));
        }
    }

    /// All-reduces a vector of `bytes`.
    pub(super) fn all_reduce(&self, algorithm: Algorithm, bytes: f64) -> Result<(), CommError> {
        let mut vector = vec![1.0_f32; (bytes / 4.0) as usize];
        self.comm.using(algorithm).all_reduce(&mut vector, Reduction::Sum)
    }
}

/// One link between any two ranks.
pub(super) fn uniform_links(link: Link) -> Emulate {
    let default_link =
        LinkConditions { bandwidth: link.bandwidth, latency: link.latency, ..LinkConditions::NONE };
    Emulate { default_link, ..Emulate::none() }
}

/// Links over which a ring all-reduce of `bytes` takes `seconds`, a tenth of it latency.
pub(super) fn links_for_ring(num_ranks: usize, bytes: f64, seconds: f64) -> Emulate {
    let rounds = 2.0 * (num_ranks as f64 - 1.0);
    let latency = Seconds(0.1 * seconds / rounds);
    let bandwidth = BytesPerSecond(rounds * bytes / num_ranks as f64 / (0.9 * seconds));
    uniform_links(Link { latency, bandwidth })
}

/// Runs a task on all ranks `num_times` times after one warm-up; all ranks start each repetition
/// together. Returns the time of the slowest rank and the results of all ranks per repetition.
pub(super) fn run_repeated<R: Send>(
    world: &World,
    (num_ranks, emulate): (usize, &Emulate),
    num_times: usize,
    task: impl Fn(&Rank<'_>) -> Result<R, CommError> + Sync,
) -> Result<Vec<(f64, Vec<R>)>, LabError> {
    let options = TcpOptions { emulate: emulate.clone(), ..TcpOptions::default() };
    let wires = TcpTransport::loopback(world, num_ranks, NUM_STREAMS, &options)
        .map_err(LabError::Loopback)?;
    let comms = wires
        .into_iter()
        .map(|channels| Comm::world(world, TcpTransport::into_channels(channels)))
        .collect::<Result<Vec<Comm>, CommError>>()?;
    let (barrier, task) = (Barrier::new(num_ranks), &task);
    let by_rank: Vec<Vec<(f64, Result<R, CommError>)>> = std::thread::scope(|scope| {
        let start = |comm: Comm| {
            let barrier = &barrier;
            scope.spawn(move || {
                let rank = Rank { comm, world };
                // A failed rank still reaches the barrier, so no other rank waits forever.
                (0..=num_times)
                    .map(|_| {
                        barrier.wait();
                        let start = world.clock().now();
                        let result = task(&rank);
                        (world.clock().since(start).as_secs_f64(), result)
                    })
                    .collect::<Vec<_>>()
            })
        };
        let threads: Vec<_> = comms.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    });
    let mut repetitions: Vec<(f64, Vec<R>)> = (0..=num_times).map(|_| (0.0, Vec::new())).collect();
    for rank in by_rank {
        for ((seconds, result), repetition) in rank.into_iter().zip(&mut repetitions) {
            repetition.0 = repetition.0.max(seconds);
            repetition.1.push(result?);
        }
    }
    repetitions.remove(0);
    Ok(repetitions)
}

/// Shortest time of a task: other load on this machine only adds to it.
pub(super) fn shortest_seconds(
    world: &World,
    cluster: (usize, &Emulate),
    num_times: usize,
    task: impl Fn(&Rank<'_>) -> Result<(), CommError> + Sync,
) -> Result<f64, LabError> {
    let times = run_repeated(world, cluster, num_times, task)?.into_iter().map(|(time, _)| time);
    Ok(times.fold(f64::INFINITY, f64::min))
}
