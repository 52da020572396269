//! Servers: every worker sends a part of its gradient to every server and gets the sum back.
//!
//! A server's card is shared by all workers; links between pairs are therefore as many times
//! narrower as there are workers.

use super::{Point, Real, cluster};
use crate::failure::Failure;
use lockstep_comm::{Comm, CommError};
use lockstep_config::units::BytesPerSecond;
use lockstep_schedule::Link;

pub(super) const REAL: Real = Real {
    name: "parameter-server",
    column: "server_seconds",
    rows: None,
    params: &["servers=2", "bytes=400kB", "latency=5ms", "bandwidth=20MB/s"],
    sweep: "workers=2,4,6",
    measure,
};

const PUSH: u64 = 1;
const PULL: u64 = 2;

fn measure(point: &Point<'_>) -> Result<f64, Failure> {
    let at = point.at;
    let (num_workers, num_servers) = (at.count("workers"), at.count("servers"));
    let link = point.link();
    let shared = BytesPerSecond(link.bandwidth.0 / num_workers as f64);
    let links = cluster::even(Link { bandwidth: shared, ..link });
    let bytes = at.number("bytes") * at.number("density");
    let len = (bytes / 4.0 / num_servers as f64) as usize;
    cluster::seconds(point.world, (num_workers + num_servers, &links), 3, |rank| {
        if rank.index() < num_workers {
            work(&rank.comm, num_workers..num_workers + num_servers, len)
        } else {
            serve(&rank.comm, num_workers, len)
        }
    })
}

fn work(comm: &Comm, servers: std::ops::Range<usize>, len: usize) -> Result<(), CommError> {
    let mut leaving = Vec::new();
    for server in servers.clone() {
        leaving.push(comm.start_send::<f32, _>(vec![1.0_f32; len], server, PUSH)?);
    }
    let mut arriving = Vec::new();
    for server in servers {
        arriving.push(comm.start_recv::<f32, _>(vec![0.0_f32; len], server, PULL)?);
    }
    leaving.into_iter().chain(arriving).try_for_each(|call| call.finish().map(drop))
}

fn serve(comm: &Comm, num_workers: usize, len: usize) -> Result<(), CommError> {
    let mut arriving = Vec::new();
    for worker in 0..num_workers {
        arriving.push(comm.start_recv::<f32, _>(vec![0.0_f32; len], worker, PUSH)?);
    }
    let mut sum = vec![0.0_f32; len];
    for call in arriving {
        let part = call.finish()?;
        sum.iter_mut().zip(&part).for_each(|(sum, part)| *sum += part);
    }
    let mut leaving = Vec::new();
    for worker in 0..num_workers {
        leaving.push(comm.start_send::<f32, _>(sum.clone(), worker, PULL)?);
    }
    leaving.into_iter().try_for_each(|call| call.finish().map(drop))
}
