//! Parameter servers: every worker pushes a gradient shard to every server and pulls the sum.
//!
//! All workers share the NIC of a server: the server receives and answers one message at a time.

use super::cluster;
use super::measurement::{Measurement, Point};
use crate::error::LabError;
use lockstep_comm::{Comm, CommError};

pub(super) const MEASUREMENT: Measurement = Measurement {
    name: "parameter-server",
    column: "server_seconds",
    row_column: None,
    params: &["servers=1", "bytes=400kB", "latency=0", "bandwidth=20MB/s"],
    sweep: "workers=2,4,6",
    measure,
};

const PUSH: u64 = 1;
const PULL: u64 = 2;

fn measure(point: &Point<'_>) -> Result<f64, LabError> {
    let at = point.at;
    let (num_workers, num_servers) = (at.count("workers"), at.count("servers"));
    let links = cluster::uniform_links(point.link());
    let bytes = at.number("bytes") * at.number("density");
    let len = (bytes / 4.0 / num_servers as f64) as usize;
    cluster::shortest_seconds(point.world, (num_workers + num_servers, &links), 3, |rank| {
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
    let (mut sum, mut gradient) = (vec![0.0_f32; len], vec![0.0_f32; len]);
    for worker in 0..num_workers {
        comm.signal(worker, PUSH)?;
        comm.recv(&mut gradient, worker, PUSH)?;
        sum.iter_mut().zip(&gradient).for_each(|(sum, gradient)| *sum += gradient);
    }
    (0..num_workers).try_for_each(|worker| comm.send(&sum, worker, PULL))
}
