//! Gossip averaging (Boyd et al. 2006): the spectral gap of the graph determines the rounds to
//! consensus.

use super::prelude::*;
use lockstep_config::GraphName;
use lockstep_parallel::gossip::Graph;
use lockstep_parallel::gossip::graph::torus_sides;
use lockstep_tensor::math::scalar::{cos, ln};
use std::f64::consts::TAU;

experiment!(Gossip);

const DESCRIPTION: Description = Description {
    name: "gossip",
    title: "Gossip averaging: rounds to consensus against the spectral gap of the graph",
    question: "How many gossip rounds replace an all-reduce?",
    formula: "distance shrinks by the second eigenvalue per round: rounds = ln(1/eps)/-ln(lambda); \
              ring: lambda = (1 + 2 cos(2 pi/n))/3, gap about 4 pi^2/(3 n^2)",
    look: "rounds of the ring (like n^2), of the torus (like n), of the exponential graph (like \
           log n) and of the complete graph (one)",
    surprise: "a gossip round on a ring sends 2d bytes per worker, as many as a whole ring \
               all-reduce; it saves synchronization, not bytes, and takes hundreds of rounds where \
               an all-reduce is exact",
    params: &[
        Param::count("workers", 64.0, (4.0, 4096.0), "workers"),
        Param::number("eps", Unit::Number, 1e-3, (1e-12, 0.5), "target distance/initial distance"),
    ],
    sweep: ("workers", &[4.0, 16.0, 36.0, 64.0, 144.0, 256.0]),
    columns: &[
        Column::new("graph", Unit::Text, "graph"),
        Column::new("degree", Unit::Count, "neighbors of a worker"),
        Column::new("rounds", Unit::Count, "rounds to consensus, simulated"),
        Column::new("expected_rounds", Unit::Number, "rounds by the second eigenvalue"),
        Column::new("spectral_gap", Unit::Number, "1 - second eigenvalue"),
        Column::new("vectors_sent", Unit::Times, "vectors sent per worker until consensus"),
    ],
    chart: ChartSpec::lines("workers", &["rounds"]).by("graph").log(true, true),
};

/// Graphs of the engine without random edges or directions.
pub(super) const GRAPHS: [GraphName; 4] =
    [GraphName::Ring, GraphName::Torus, GraphName::Exponential, GraphName::Complete];

/// The engine's graph of this name.
pub(super) fn graph(name: GraphName, num_workers: usize) -> Graph {
    Graph::new(name, num_workers, 0, 0)
}

fn run(at: &Settings, _: &mut Random) -> Result<Vec<Row>, LabError> {
    let (n, eps) = (at.count("workers"), at.number("eps"));
    let rows = GRAPHS.into_iter().map(|name| {
        let graph = graph(name, n);
        let sides = if name == GraphName::Torus { torus_sides(n) } else { [1, n] };
        let second = second_eigenvalue(&graph, sides);
        let rounds = consensus(&graph, eps);
        // A second eigenvalue of 0 shows as rounding error.
        let second = if second < 1e-12 { 0.0 } else { second };
        let expected = if second > 0.0 { ln(1.0 / eps) / -ln(second) } else { 1.0 };
        let degree = graph.max_degree();
        row![name.name(), degree, rounds, expected, 1.0 - second, rounds * degree as f64]
    });
    Ok(rows.collect())
}

/// Second eigenvalue of a graph that looks alike from each worker of a torus, or of a ring, which
/// is a torus of height 1: its eigenvectors are waves along both sides.
fn second_eigenvalue(graph: &Graph, [height, width]: [usize; 2]) -> f64 {
    let eigenvalue = |frequency: usize| {
        let turns = |worker: usize| {
            let down = (frequency / width * (worker / width)) as f64 / height as f64;
            down + (frequency % width * (worker % width)) as f64 / width as f64
        };
        let first = graph.in_neighbors(0, 0).iter();
        first.map(|(worker, weight)| weight * cos(TAU * turns(*worker))).sum::<f64>()
    };
    (1..graph.num_workers()).map(|frequency| eigenvalue(frequency).abs()).fold(0.0, f64::max)
}

/// Rounds until the distance from the mean has shrunk by `eps`.
fn consensus(graph: &Graph, eps: f64) -> f64 {
    let n = graph.num_workers();
    // A unit impulse excites all eigenvectors.
    let mut x: Vec<f64> = (0..n).map(|worker| f64::from(u8::from(worker == 0))).collect();
    let mean = 1.0 / n as f64;
    let distance = |x: &[f64]| x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>().sqrt();
    let first = distance(&x);
    for round in 1..=200_000 {
        let received = |worker| graph.in_neighbors(0, worker).iter();
        let mixed = |worker| received(worker).map(|(from, weight)| weight * x[*from]).sum();
        x = (0..n).map(mixed).collect();
        if distance(&x) <= eps * first {
            return f64::from(round);
        }
    }
    f64::INFINITY
}

fn findings(table: &Table) -> Vec<String> {
    let [ring, exponential] = ["ring", "exponential"].map(|name| last_with(table, "graph", name));
    vec![
        format!(
            "{}a ring needs {} rounds, an exponential graph {}",
            at(table, ring),
            cell(table, "rounds", ring),
            cell(table, "rounds", exponential)
        ),
        format!(
            "on the ring a worker sends {} the vector; an all-reduce sends 2x and is exact",
            cell(table, "vectors_sent", ring)
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waves_have_the_rate_of_the_engine() {
        for (name, n) in GRAPHS.into_iter().flat_map(|name| [4, 6, 12, 25].map(|n| (name, n))) {
            let graph = graph(name, n);
            let sides = if name == GraphName::Torus { torus_sides(n) } else { [1, n] };
            let off = (second_eigenvalue(&graph, sides) - graph.rate()).abs();
            assert!(off < 1e-6, "{name} of {n}: {off}");
        }
    }
}
