//! Servers: every worker sends a part of its gradient to every server and gets the sum back.
//!
//! A server's card is shared by all workers: it asks them one after the other, and answers them one
//! after the other, so that one message at a time goes through it.

use super::{Point, Real, cluster};
use crate::failure::Failure;
use lockstep_comm::{Comm, CommError};

pub(super) const REAL: Real = Real {
    name: "parameter-server",
    column: "server_seconds",
    rows: None,
    params: &["servers=1", "bytes=400kB", "latency=0", "bandwidth=20MB/s"],
    sweep: "workers=2,4,6",
    measure,
};

const PUSH: u64 = 1;
const PULL: u64 = 2;

fn measure(point: &Point<'_>) -> Result<f64, Failure> {
    let at = point.at;
    let (num_workers, num_servers) = (at.count("workers"), at.count("servers"));
    let links = cluster::even(point.link());
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
    let mut vector = vec![1.0_f32; len];
    for server in servers.clone() {
        comm.wait_for(server, PUSH)?;
        comm.send(&vector, server, PUSH)?;
    }
    servers.into_iter().try_for_each(|server| comm.recv(&mut vector, server, PULL))
}

fn serve(comm: &Comm, num_workers: usize, len: usize) -> Result<(), CommError> {
    let (mut sum, mut part) = (vec![0.0_f32; len], vec![0.0_f32; len]);
    for worker in 0..num_workers {
        comm.signal(worker, PUSH)?;
        comm.recv(&mut part, worker, PUSH)?;
        sum.iter_mut().zip(&part).for_each(|(sum, part)| *sum += part);
    }
    (0..num_workers).try_for_each(|worker| comm.send(&sum, worker, PULL))
}
