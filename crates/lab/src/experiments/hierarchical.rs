//! Two levels of links: summing inside nodes first, with one card a node or one a rank.

use super::common::{ELEMENT, all_reduce, bandwidth, compiled, latency, layout, link};
use super::prelude::*;
use crate::sim::{Fabric, Shared, play};
use lockstep_planner::collective::crossings::bytes_between_nodes;
use lockstep_planner::collective::hierarchical::Nodes;
use lockstep_schedule::{Algorithm, Link};

experiment!(Hierarchical);

const CARD: Card = Card {
    name: "hierarchical",
    title: "Hierarchical all-reduce against a flat ring, by nodes and network cards",
    question: "When is it worth summing inside nodes first?",
    formula: "inside 2(g-1)(a + d/(gB)), between 2(m-1)(a' + d/(g m B')) with a card for each \
              rank; a flat ring of n = gm is paced by its slow hops",
    look: "flat_seconds, one_card_seconds and cards_seconds; the simulated ones share cards as \
           real flows do; crossing_flat beside crossing_hierarchical",
    surprise: "a flat ring that goes through one node after the other sends no more between nodes \
               than a hierarchical sum does: the gain is in latency and in cards that are used \
               at the same time",
    params: &[
        Param::count("nodes", 4.0, (1.0, 64.0), "nodes"),
        Param::count("per_node", 8.0, (1.0, 16.0), "ranks of a node"),
        Param::number("bytes", Unit::Bytes, 700e6, (4.0, 1e13), "length of the vector"),
        latency(10e-6),
        bandwidth(25e9),
        Param::number("node_latency", Unit::Seconds, 1e-6, (0.0, 1.0), "latency inside a node"),
        Param::number(
            "node_bandwidth",
            Unit::BytesPerSecond,
            600e9,
            (1e3, 1e15),
            "bytes a second inside a node",
        ),
    ],
    sweep: ("nodes", &[1.0, 2.0, 4.0, 8.0]),
    columns: &[
        Column::new("flat_seconds", Unit::Seconds, "flat ring, closed form"),
        Column::new("one_card_seconds", Unit::Seconds, "two levels, a card for each node"),
        Column::new("cards_seconds", Unit::Seconds, "two levels, a card for each rank"),
        Column::new("flat_simulated", Unit::Seconds, "flat ring, simulated, a card for each node"),
        Column::new("one_card_simulated", Unit::Seconds, "two levels, simulated, one card"),
        Column::new("cards_simulated", Unit::Seconds, "two levels, simulated, a card each"),
        Column::new("crossing_flat", Unit::Bytes, "bytes between nodes, flat ring"),
        Column::new("crossing_hierarchical", Unit::Bytes, "bytes between nodes, two levels"),
    ],
    picture: Picture::lines("nodes", &["flat_simulated", "one_card_simulated", "cards_simulated"])
        .log(true, false)
        .named("time of an all-reduce"),
};

fn run(at: &Settings, _: &mut Random) -> Result<Vec<Row>, LabError> {
    let (num_nodes, per_node) = (at.count("nodes"), at.count("per_node"));
    let (n, bytes, between) = (num_nodes * per_node, at.bytes("bytes"), link(at));
    let inside =
        Link { latency: at.seconds("node_latency"), bandwidth: at.bandwidth("node_bandwidth") };
    let closed = |nics_per_node| Nodes {
        num_nodes,
        ranks_per_node: per_node,
        nics_per_node,
        inside,
        between,
    };
    let two = all_reduce(Algorithm::Hierarchical, n, per_node)?;
    let flat = all_reduce(Algorithm::RING, n, per_node)?;
    let simulated = |schedule, cards| {
        let shared = Shared::nodes(num_nodes, per_node, cards, inside, between);
        play(&compiled(schedule, bytes), Fabric::Shared(&shared), &vec![0.0; n]).end
    };
    let crossing = |schedule| {
        let node_of = |rank| rank / per_node;
        bytes_between_nodes(schedule, &layout(schedule, bytes), ELEMENT, node_of).0 as f64
    };
    Ok(vec![row![
        closed(1).flat_ring(bytes).0,
        closed(1).all_reduce(bytes).0,
        closed(per_node).all_reduce(bytes).0,
        simulated(&flat, 1),
        simulated(&two, 1),
        simulated(&two, per_node),
        crossing(&flat),
        crossing(&two),
    ]])
}

fn findings(table: &Table) -> Vec<String> {
    let end = last(table);
    let ratio = |column: &str| table.numbers("flat_simulated")[end] / table.numbers(column)[end];
    vec![
        format!(
            "At {}, two levels are {:.1}x as fast as a flat ring with a card for each rank, \
             {:.1}x with one for the node",
            place(table, end),
            ratio("cards_simulated"),
            ratio("one_card_simulated")
        ),
        format!(
            "{} cross between nodes in the ring, {} in two levels",
            cell(table, "crossing_flat", end),
            cell(table, "crossing_hierarchical", end)
        ),
    ]
}
