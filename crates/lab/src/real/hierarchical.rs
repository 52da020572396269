//! Hierarchical all-reduce: reduce-scatter inside nodes, all-reduce between nodes, all-gather
//! inside nodes; fast links inside a node, slow links between nodes, one NIC per rank.

use super::cluster;
use super::measurement::{Measurement, Point};
use crate::error::LabError;
use lockstep_comm::{Comm, CommError, Reduction};
use lockstep_config::EmulatedLink;
use lockstep_mesh::{Group, Rank};
use lockstep_schedule::Algorithm;

pub(super) const MEASUREMENT: Measurement = Measurement {
    name: "hierarchical",
    column: "per_rank_nic_seconds",
    row_column: None,
    params: &[
        "per_node=2",
        "bytes=800kB",
        "node_latency=1ms",
        "node_bandwidth=40MB/s",
        "latency=5ms",
        "bandwidth=10MB/s",
    ],
    sweep: "nodes=2,4",
    measure,
};

fn measure(point: &Point<'_>) -> Result<f64, LabError> {
    let at = point.at;
    let (num_nodes, per_node) = (at.count("nodes"), at.count("per_node"));
    let num_ranks = num_nodes * per_node;
    let mut emulate = cluster::uniform_links(point.link());
    for one in 0..num_ranks {
        for other in (one + 1)..num_ranks {
            if one / per_node == other / per_node {
                emulate.links.push(EmulatedLink {
                    latency: Some(at.seconds("node_latency")),
                    bandwidth: Some(at.bandwidth("node_bandwidth")),
                    ..EmulatedLink::between(one, other)
                });
            }
        }
    }
    let whole = num_ranks * per_node;
    let len = (at.number("bytes") / 4.0) as usize / whole * whole;
    let group = |ranks: Vec<usize>| Group::new(ranks.into_iter().map(Rank).collect());
    let inside: Vec<Group> = (0..num_nodes)
        .map(|node| group((node * per_node..(node + 1) * per_node).collect()))
        .collect();
    let across: Vec<Group> =
        (0..per_node).map(|rail| group((rail..num_ranks).step_by(per_node).collect())).collect();
    let times = cluster::run_repeated(point.world, (num_ranks, &emulate), 1, |rank| {
        let inside = rank.comm.split(&inside, "node")?;
        let across = rank.comm.split(&across, "rail")?;
        let clock = point.world.clock();
        // The groups are created once; the shortest of a few all-reduces counts.
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            rank.comm.barrier()?;
            let start = clock.now();
            two_levels(&inside, &across, len)?;
            rank.comm.barrier()?;
            best = best.min(clock.since(start).as_secs_f64());
        }
        let start = clock.now();
        rank.comm.barrier()?;
        Ok(best - clock.since(start).as_secs_f64())
    })?;
    Ok(times[0].1.iter().copied().fold(0.0, f64::max))
}

fn two_levels(inside: &Comm, across: &Comm, len: usize) -> Result<(), CommError> {
    let mut vector = vec![1.0_f32; len];
    let mut part = vec![0.0_f32; len / inside.group_size()];
    // The algorithms of the engine's hierarchical all-reduce.
    let choose = |comm: &Comm, halving| {
        if comm.group_size().is_power_of_two() { halving } else { Algorithm::Pairwise }
    };
    let scatter = choose(inside, Algorithm::Halving);
    inside.using(scatter).reduce_scatter(&vector, &mut part, Reduction::Sum)?;
    let exchange = choose(across, Algorithm::Rabenseifner);
    across.using(exchange).all_reduce(&mut part, Reduction::Sum)?;
    inside.using(choose(inside, Algorithm::Doubling)).all_gather(&part, &mut vector)
}
