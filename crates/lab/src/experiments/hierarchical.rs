//! Hierarchical all-reduce over two levels of links, with one NIC per node or per rank.

use super::common::{ELEMENT, all_reduce, bandwidth, compiled, latency, layout, link};
use super::prelude::*;
use crate::sim::{Fabric, SharedLinks, simulate_collective};
use lockstep_config::units::BytesPerSecond;
use lockstep_planner::collective::crossings::bytes_between_nodes;
use lockstep_planner::collective::hierarchical::Nodes;
use lockstep_planner::collective::ring;
use lockstep_schedule::{Algorithm, Link};

experiment!(Hierarchical);

const DESCRIPTION: Description = Description {
    name: "hierarchical",
    title: "Hierarchical all-reduce against a flat ring, by nodes and NICs",
    question: "When is a hierarchical all-reduce faster than a flat ring?",
    formula: "inside 2 log2(g) a + 2(g-1)/g d/B, between 2 log2(m) a' + 2(m-1)/m d/(gB') with one \
              NIC per rank: by halving and doubling, where g or m is no power of two in g-1 or m-1 \
              rounds each way; the slow hops limit a flat ring of n = gm",
    look: "flat_seconds, shared_nic_seconds and per_rank_nic_seconds; the simulated columns, \
           where flows share NICs; inter_node_bytes of both algorithms",
    surprise: "a flat ring in node order sends only m/(m-1) times the bytes of a hierarchical \
               all-reduce between nodes: on many nodes the gain is in latency and in NICs used at \
               the same time",
    params: &[
        Param::count("nodes", 4.0, (1.0, 64.0), "nodes"),
        Param::count("per_node", 8.0, (1.0, 16.0), "ranks per node"),
        Param::number("bytes", Unit::Bytes, 700e6, (4.0, 1e13), "size of the vector"),
        latency(10e-6),
        bandwidth(25e9),
        Param::number("node_latency", Unit::Seconds, 1e-6, (0.0, 1.0), "latency inside a node"),
        Param::number(
            "node_bandwidth",
            Unit::BytesPerSecond,
            600e9,
            (1e3, 1e15),
            "bandwidth inside a node",
        ),
    ],
    sweep: ("nodes", &[1.0, 2.0, 4.0, 8.0]),
    columns: &[
        Column::new("flat_seconds", Unit::Seconds, "flat ring, closed form"),
        Column::new(
            "shared_nic_seconds",
            Unit::Seconds,
            "hierarchical, closed form, one NIC per node",
        ),
        Column::new(
            "per_rank_nic_seconds",
            Unit::Seconds,
            "hierarchical, closed form, one NIC per rank",
        ),
        Column::new("flat_simulated", Unit::Seconds, "flat ring, simulated, one NIC per node"),
        Column::new(
            "shared_nic_simulated",
            Unit::Seconds,
            "hierarchical, simulated, one NIC per node",
        ),
        Column::new(
            "per_rank_nic_simulated",
            Unit::Seconds,
            "hierarchical, simulated, one NIC per rank",
        ),
        Column::new("inter_node_bytes_flat", Unit::Bytes, "bytes between nodes, flat ring"),
        Column::new(
            "inter_node_bytes_hierarchical",
            Unit::Bytes,
            "bytes between nodes, hierarchical",
        ),
    ],
    chart: ChartSpec::lines(
        "nodes",
        &["flat_simulated", "shared_nic_simulated", "per_rank_nic_simulated"],
    )
    .log(true, false)
    .named("time of an all-reduce"),
};

fn run(at: &Settings, _: &mut Random) -> Result<Vec<Row>, LabError> {
    let (num_nodes, per_node) = (at.count("nodes"), at.count("per_node"));
    let (n, bytes, between) = (num_nodes * per_node, at.bytes("bytes"), link(at));
    let inside =
        Link { latency: at.seconds("node_latency"), bandwidth: at.bandwidth("node_bandwidth") };
    // Ranks that share a NIC have equal parts of its bandwidth.
    let closed = |nics_per_node: usize| {
        let share = BytesPerSecond(between.bandwidth.0 / per_node.div_ceil(nics_per_node) as f64);
        let between = Link { bandwidth: share, ..between };
        Nodes { num_nodes, ranks_per_node: per_node, nics_per_node, inside, between }
    };
    let slowest = if num_nodes == 1 { inside } else { between };
    let hierarchical = all_reduce(Algorithm::Hierarchical, n, per_node)?;
    let flat = all_reduce(Algorithm::RING, n, per_node)?;
    let simulated = |schedule, nics| {
        let shared = SharedLinks::nodes(num_nodes, per_node, nics, inside, between);
        simulate_collective(&compiled(schedule, bytes), Fabric::Shared(&shared), &vec![0.0; n]).end
    };
    let inter_node_bytes = |schedule| {
        let node_of = |rank| rank / per_node;
        bytes_between_nodes(schedule, &layout(schedule, bytes), ELEMENT, node_of).0 as f64
    };
    Ok(vec![row![
        ring::all_reduce(n).seconds(bytes, slowest).0,
        closed(1).all_reduce_as_scheduled(bytes).0,
        closed(per_node).all_reduce_as_scheduled(bytes).0,
        simulated(&flat, 1),
        simulated(&hierarchical, 1),
        simulated(&hierarchical, per_node),
        inter_node_bytes(&flat),
        inter_node_bytes(&hierarchical),
    ]])
}

fn findings(table: &Table) -> Vec<String> {
    let end = last(table);
    let ratio = |column: &str| table.numbers("flat_simulated")[end] / table.numbers(column)[end];
    vec![
        format!(
            "{}a hierarchical all-reduce is {:.1}x as fast as a flat ring with one NIC per \
             rank, {:.1}x with one per node",
            at(table, end),
            ratio("per_rank_nic_simulated"),
            ratio("shared_nic_simulated")
        ),
        format!(
            "the ring sends {} between nodes, the hierarchical all-reduce {}",
            cell(table, "inter_node_bytes_flat", end),
            cell(table, "inter_node_bytes_hierarchical", end)
        ),
    ]
}
