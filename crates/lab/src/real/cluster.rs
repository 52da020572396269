//! A cluster on one machine: ranks are threads that speak TCP over emulated links, and computing
//! is sleeping, so that two cores host many ranks and the times are those of the sleeps and links.

use crate::failure::Failure;
use lockstep_bench::BenchError;
use lockstep_comm::transport::tcp::{TcpOptions, TcpTransport};
use lockstep_comm::{Comm, CommError, Reduction};
use lockstep_config::units::Seconds;
use lockstep_config::{Blame, Emulate, LinkConditions};
use lockstep_platform::World;
use lockstep_schedule::{Algorithm, Link};
use std::sync::Barrier;
use std::time::Duration;

/// Streams of a pair; one keeps a message in one piece.
const NUM_STREAMS: usize = 1;

/// One rank of the cluster.
pub(super) struct Rank<'a> {
    /// Its end of the group.
    pub(super) comm: Comm,
    world: &'a World,
}

impl Rank<'_> {
    /// Its number.
    pub(super) fn index(&self) -> usize {
        self.comm.group_rank()
    }

    /// Computes for so long, by sleeping.
    pub(super) fn compute(&self, seconds: f64) {
        if seconds > 0.0 {
            self.world.clock().sleep(Duration::from_secs_f64(seconds));
        }
    }

    /// Sums a vector of so many bytes over all ranks.
    pub(super) fn all_reduce(&self, algorithm: Algorithm, bytes: f64) -> Result<(), CommError> {
        let mut vector = vec![1.0_f32; (bytes / 4.0) as usize];
        self.comm.using(algorithm).all_reduce(&mut vector, Reduction::Sum)
    }
}

/// The same link between any two ranks.
pub(super) fn even(link: Link) -> Emulate {
    let default_link =
        LinkConditions { bandwidth: link.bandwidth, latency: link.latency, ..LinkConditions::NONE };
    Emulate { default_link, ..Emulate::none() }
}

/// Links over which a ring of so many ranks sums so many bytes in this time, a tenth of it latency.
pub(super) fn ring_of(num_ranks: usize, bytes: f64, seconds: f64) -> Emulate {
    let rounds = 2.0 * (num_ranks as f64 - 1.0);
    let latency = Seconds(0.1 * seconds / rounds);
    let bandwidth =
        lockstep_config::units::BytesPerSecond(rounds * bytes / num_ranks as f64 / (0.9 * seconds));
    even(Link { latency, bandwidth })
}

/// What every rank makes of a task that all begin together, `num_times` times and once before.
/// The time of each turn is that of the slowest rank.
pub(super) fn turns<R: Send>(
    world: &World,
    (num_ranks, emulate): (usize, &Emulate),
    num_times: usize,
    task: impl Fn(&Rank<'_>) -> Result<R, CommError> + Sync,
) -> Result<Vec<(f64, Vec<R>)>, Failure> {
    let options = TcpOptions { emulate: emulate.clone(), ..TcpOptions::default() };
    let wires = TcpTransport::loopback(world, num_ranks, NUM_STREAMS, &options)
        .map_err(|error| Failure::new(Blame::Peer(0), error.to_string()))?;
    let comms = wires
        .into_iter()
        .map(|channels| Comm::world(world, TcpTransport::into_channels(channels)))
        .collect::<Result<Vec<Comm>, CommError>>()
        .map_err(failed)?;
    let (barrier, task) = (Barrier::new(num_ranks), &task);
    let by_rank: Vec<Vec<(f64, Result<R, CommError>)>> = std::thread::scope(|scope| {
        let start = |comm: Comm| {
            let barrier = &barrier;
            scope.spawn(move || {
                let rank = Rank { comm, world };
                // Whoever fails comes to the barrier all the same, so nobody waits for ever.
                (0..=num_times)
                    .map(|_| {
                        barrier.wait();
                        let start = world.clock().now();
                        let made = task(&rank);
                        (world.clock().since(start).as_secs_f64(), made)
                    })
                    .collect::<Vec<_>>()
            })
        };
        let threads: Vec<_> = comms.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    });
    let mut turns: Vec<(f64, Vec<R>)> = (0..=num_times).map(|_| (0.0, Vec::new())).collect();
    for rank in by_rank {
        for ((seconds, made), turn) in rank.into_iter().zip(&mut turns) {
            turn.0 = turn.0.max(seconds);
            turn.1.push(made.map_err(failed)?);
        }
    }
    turns.remove(0);
    Ok(turns)
}

/// The shortest time of a task: what else runs on this machine only ever adds to it.
pub(super) fn seconds(
    world: &World,
    cluster: (usize, &Emulate),
    num_times: usize,
    task: impl Fn(&Rank<'_>) -> Result<(), CommError> + Sync,
) -> Result<f64, Failure> {
    let times = turns(world, cluster, num_times, task)?.into_iter().map(|(time, _)| time);
    Ok(times.fold(f64::INFINITY, f64::min))
}

fn failed(error: CommError) -> Failure {
    BenchError::from(error).into()
}
