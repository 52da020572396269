//! Gossip averaging (Boyd et al. 2006): the spectral gap of the graph determines the rounds to
//! consensus.

use super::prelude::*;
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

/// Offsets of a worker's neighbors: all graphs are circulant.
pub(super) fn graphs(n: usize) -> [(&'static str, Vec<usize>); 4] {
    let doubling = std::iter::successors(Some(1), |hop| Some(2 * hop)).take_while(|hop| *hop < n);
    let mut exponential: Vec<usize> = doubling.flat_map(|hop| [hop, n - hop]).collect();
    exponential.sort_unstable();
    exponential.dedup();
    [
        ("ring", vec![1, n - 1]),
        ("torus", torus(n)),
        ("exponential", exponential),
        ("complete", (1..n).collect()),
    ]
}

/// Twisted torus as square as possible; on narrow tori the neighbors of both directions coincide.
fn torus(n: usize) -> Vec<usize> {
    let height = (1..=n).take_while(|h| h * h <= n).filter(|h| n.is_multiple_of(*h)).last();
    let width = n / height.unwrap_or(1);
    let mut offsets = match height {
        _ if n == 4 => vec![1, 3],
        Some(1) | None => vec![1, n - 1],
        Some(_) => vec![1, n - 1, width, n - width],
    };
    offsets.sort_unstable();
    offsets.dedup();
    offsets
}

fn run(at: &Settings, _: &mut Random) -> Result<Vec<Row>, LabError> {
    let (n, eps) = (at.count("workers"), at.number("eps"));
    let rows = graphs(n).into_iter().map(|(name, offsets)| {
        let weight = 1.0 / (offsets.len() as f64 + 1.0);
        let eigenvalue = |frequency: usize| {
            let turn = |offset: &usize| cos(TAU * (frequency * offset) as f64 / n as f64);
            weight * (1.0 + offsets.iter().map(turn).sum::<f64>())
        };
        let second = (1..n).map(|f| eigenvalue(f).abs()).fold(0.0, f64::max);
        let rounds = consensus(n, eps, &offsets, weight);
        // A second eigenvalue of 0 shows as rounding error.
        let second = if second < 1e-12 { 0.0 } else { second };
        let expected = if second > 0.0 { ln(1.0 / eps) / -ln(second) } else { 1.0 };
        row![name, offsets.len(), rounds, expected, 1.0 - second, rounds * offsets.len() as f64,]
    });
    Ok(rows.collect())
}

/// Rounds until the distance from the mean has shrunk by `eps`.
fn consensus(n: usize, eps: f64, offsets: &[usize], weight: f64) -> f64 {
    // A unit impulse excites all eigenvectors.
    let mut x: Vec<f64> = (0..n).map(|worker| f64::from(u8::from(worker == 0))).collect();
    let mean = 1.0 / n as f64;
    let distance = |x: &[f64]| x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>().sqrt();
    let first = distance(&x);
    for round in 1..=200_000 {
        let mixed = |worker: usize| {
            let received = offsets.iter().map(|offset| x[(worker + offset) % n]);
            weight * (x[worker] + received.sum::<f64>())
        };
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
