//! All-reduce algorithms by vector size and ranks: latency-optimal against bandwidth-optimal
//! (Thakur, Rabenseifner and Gropp 2005).

use super::common::{ELEMENT, all_reduce, bandwidth, compiled, latency, layout, link};
use super::prelude::*;
use crate::sim::{Fabric, simulate_collective};
use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};
use lockstep_planner::collective::{butterfly, rabenseifner, ring, tree};
use lockstep_schedule::{Algorithm, Costs, Link, price};

experiment!(AllReduce);

const DESCRIPTION: Description = Description {
    name: "all-reduce",
    title: "All-reduce: ring, trees, butterfly, recursive halving-doubling, by size and ranks",
    question: "Which all-reduce algorithm is fastest for a vector size and a number of ranks?",
    formula: "ring 2(n-1)(a + d/(nB)); tree 2 log2(n)(a + d/B); butterfly log2(n)(a + d/B); \
              rabenseifner 2 log2(n) a + 2(n-1)/n d/B; double-tree with S segments of each half \
              (3 log2(n) + 2(S-1)) a + (4 log2(n) + 6(S-1)) d/(2SB), shortest for S^2 = (log2(n) \
              - 3/2) d/(aB)",
    look: "where the lines cross: trees are faster below a size, rings above it; rabenseifner is \
           never far from the fastest on powers of two; double-tree with ranks=192",
    surprise: "trees are faster for SHORT vectors and rings for LONG ones (many tables claim the \
               opposite); a ring sends hardly more bytes per rank on 256 ranks than on 8; a double \
               tree with segments by size is fastest for some sizes, but never on a power of two",
    params: &[
        Param::count("ranks", 64.0, (2.0, 512.0), "ranks"),
        Param::number("bytes", Unit::Bytes, 1e6, (4.0, 1e12), "size of the vector"),
        latency(10e-6),
        bandwidth(50e9),
    ],
    sweep: ("bytes", &[1e3, 1e4, 1e5, 3e5, 1e6, 3e6, 1e7, 3e7, 1e8, 1e9]),
    columns: &[
        Column::new("algorithm", Unit::Text, "algorithm"),
        Column::new("seconds", Unit::Seconds, "simulated time"),
        Column::new("planned_seconds", Unit::Seconds, "planner's estimate of the schedule"),
        Column::new("closed_form_seconds", Unit::Seconds, "closed form"),
        Column::new(
            "separate_links_seconds",
            Unit::Seconds,
            "simulated time if every pair of ranks had its own link",
        ),
        Column::new("segments", Unit::Count, "segments of each half of the vector (double-tree)"),
        Column::new("rounds", Unit::Count, "sequential messages"),
        Column::new("sent_bytes", Unit::Bytes, "bytes sent by the busiest rank"),
        Column::new("bus_bandwidth", Unit::BytesPerSecond, "bus bandwidth: 2(n-1)/n bytes/time"),
    ],
    chart: ChartSpec::lines("bytes", &["seconds"]).by("algorithm").log(true, true),
};

const ALGORITHMS: [&str; 5] = ["ring", "tree", "double-tree", "butterfly", "rabenseifner"];

const HOP: Link = Link { latency: Seconds(1.0), bandwidth: BytesPerSecond(f64::INFINITY) };

/// Most segments of a double tree: more shorten the longest vectors by a few percent only.
const MAX_SEGMENTS: usize = 256;

/// Levels of the double tree below its roots.
fn height(num_ranks: usize) -> f64 {
    f64::from(num_ranks.ilog2())
}

/// Segments with which a double tree takes the shortest time by its closed form.
fn segments(num_ranks: usize, bytes: Bytes, link: Link) -> usize {
    let in_latencies = bytes.0 as f64 / (link.latency.0 * link.bandwidth.0);
    let best = ((height(num_ranks) - 1.5).max(0.0) * in_latencies).sqrt();
    // Without latency any number of segments is free; a segment has one element at least.
    let most = MAX_SEGMENTS.min((bytes.0 / (2 * ELEMENT.0)) as usize).max(1);
    (best.round() as usize).clamp(1, most)
}

/// Pipelined double tree, in parts of which each half of the vector has one per segment. A level
/// takes two rounds of one part up, one for each child, and one round of two parts down. A further
/// segment takes two rounds of three parts: a rank serves two children in one tree and is a leaf of
/// the other.
fn double_tree_seconds(num_ranks: usize, segments: usize, bytes: Bytes, link: Link) -> f64 {
    let (height, further) = (height(num_ranks), segments as f64 - 1.0);
    let part = bytes.0 as f64 / (2.0 * segments as f64 * link.bandwidth.0);
    (3.0 * height + 2.0 * further) * link.latency.0 + (4.0 * height + 6.0 * further) * part
}

/// Algorithm of a row.
pub(crate) fn algorithm(name: &str, num_ranks: usize, bytes: Bytes, link: Link) -> Algorithm {
    match name {
        "double-tree" => Algorithm::DoubleTree { segments: segments(num_ranks, bytes, link) },
        name => name.parse().expect("a name of the table"),
    }
}

fn run(at: &Settings, _: &mut Random) -> Result<Vec<Row>, LabError> {
    let (n, bytes, link) = (at.count("ranks"), at.bytes("bytes"), link(at));
    let costs = Costs::plain(link, BytesPerSecond(f64::INFINITY));
    let minimum = ring::all_reduce(n).bytes(bytes);
    let row = |name: &str| {
        let algorithm = algorithm(name, n, bytes, link);
        let schedule = all_reduce(algorithm, n, 1)?;
        let layout = layout(&schedule, bytes);
        let compiled = compiled(&schedule, bytes);
        let simulate = |fabric| simulate_collective(&compiled, fabric, &vec![0.0; n]).end;
        let seconds = simulate(Fabric::Uniform(link));
        let closed = match algorithm {
            Algorithm::Ring { .. } => Some(ring::all_reduce(n)),
            Algorithm::Tree => Some(tree::all_reduce(n)),
            Algorithm::Butterfly if n.is_power_of_two() => Some(butterfly::all_reduce(n)),
            Algorithm::Rabenseifner if n.is_power_of_two() => Some(rabenseifner::all_reduce(n)),
            _ => None,
        };
        let closed = closed.map_or(f64::NAN, |form| form.seconds(bytes, link).0);
        let (closed, segments) = match algorithm {
            Algorithm::DoubleTree { segments } => {
                (double_tree_seconds(n, segments, bytes, link), segments as f64)
            }
            _ => (closed, f64::NAN),
        };
        Ok(row![
            name,
            seconds,
            price(&schedule, &layout, ELEMENT, &costs, None).0,
            closed,
            simulate(Fabric::Separate(link)),
            segments,
            // With a latency of 1 s and infinite bandwidth, the time is the number of rounds.
            simulate(Fabric::Uniform(HOP)),
            compiled.sent_bytes().into_iter().max().unwrap_or_default().0 as f64,
            minimum / seconds,
        ])
    };
    ALGORITHMS.into_iter().map(row).collect()
}

fn findings(table: &Table) -> Vec<String> {
    let seconds = table.numbers("seconds");
    let mut findings = vec![winners(table, "algorithm", "seconds")];
    let [rings, trees] = ["ring", "tree"].map(|name| rows_with(table, "algorithm", name));
    let is_faster = |ring: usize| {
        let tree = rings.iter().zip(&trees).find(|(row, _)| **row == ring);
        tree.is_some_and(|(_, tree)| seconds[ring] < seconds[*tree])
    };
    if let Some(extent) = extent(table, &rings, is_faster) {
        findings.push(format!("a ring is faster than a tree{extent}"));
    }
    findings
}
