//! Decentralized SGD (Lian et al. 2017): one gossip round per step against an exact all-reduce.

use super::common::{bandwidth, latency, link};
use super::gossip::{GRAPHS, graph};
use super::prelude::*;
use crate::problem::{Quadratic, Stepper, mean, spread};
use lockstep_config::GraphName;
use lockstep_parallel::gossip::Graph;
use lockstep_planner::collective::ring;

experiment!(Consensus);

const DESCRIPTION: Description = Description {
    name: "consensus",
    title: "Decentralized SGD against all-reduce: iterations and seconds to a loss by graph",
    question: "Is it faster to average with neighbors only, once per step?",
    formula: "x_i <- sum_j W_ij x_j - lr g_i(x_i), W doubly stochastic; a step takes compute + \
              latency + degree d/B against compute + 2(n-1)(latency + d/(nB))",
    look: "seconds by graph over workers; consensus_distance; iterations, which grow first on \
           the ring with heterogeneous data",
    surprise: "gossip saves latency, not bytes: two neighbors get as many bytes as a ring \
               all-reduce sends; it pays with high latency and many workers",
    params: &[
        Param::count("workers", 16.0, (4.0, 256.0), "workers"),
        Param::number(
            "heterogeneity",
            Unit::Number,
            0.5,
            (0.0, 100.0),
            "distance between local optima",
        ),
        Param::number("lr", Unit::Number, 0.1, (1e-4, 1.0), "step size for curvature 1"),
        Param::number("noise", Unit::Number, 0.1, (0.0, 100.0), "gradient noise"),
        Param::number("target", Unit::Number, 0.05, (1e-6, 0.9), "target loss/initial loss"),
        Param::number("compute", Unit::Seconds, 5e-3, (0.0, 1e4), "compute time of a gradient"),
        Param::number("gradient", Unit::Bytes, 4e6, (0.0, 1e13), "size of the gradient (d)"),
        latency(1e-3),
        bandwidth(1.25e9),
    ],
    sweep: ("workers", &[4.0, 9.0, 16.0, 36.0, 64.0]),
    columns: &[
        Column::new("graph", Unit::Text, "communication graph"),
        Column::new("iterations", Unit::Count, "iterations until the mean loss reaches the target"),
        Column::new("step_seconds", Unit::Seconds, "time of a step with averaging"),
        Column::new("seconds", Unit::Seconds, "time to the target"),
        Column::new(
            "consensus_distance",
            Unit::Number,
            "distance of workers from their mean, at the end",
        ),
        Column::new("sent_bytes", Unit::Bytes, "bytes sent per worker and step"),
    ],
    chart: ChartSpec::lines("workers", &["seconds"]).by("graph").log(true, true),
};

const MAX_ITERATIONS: usize = 2000;
const DIM: usize = 4;

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let n = at.count("workers");
    let (link, bytes) = (link(at), at.bytes("gradient"));
    let compute = at.number("compute");
    let mut rows = Vec::new();
    for name in GRAPHS {
        let graph = graph(name, n);
        // A worker sends to all neighbors at once, through one port.
        let vectors = bytes * graph.max_degree() as u64;
        let step = compute + link.seconds(vectors).0;
        let name = if name == GraphName::Complete { "all to all" } else { name.name() };
        let (iterations, distance) = descend(at, &mut random.stream(0), &graph);
        rows.push(row![name, iterations, step, iterations * step, distance, vectors.0 as f64]);
    }
    let form = ring::all_reduce(n);
    let step = compute + form.seconds(bytes, link).0;
    // An exact average is one round on the complete graph, at the cost of an all-reduce.
    let all = graph(GraphName::Complete, n);
    let (iterations, distance) = descend(at, &mut random.stream(0), &all);
    let sent = form.bytes(bytes);
    rows.push(row!["all-reduce", iterations, step, iterations * step, distance, sent]);
    Ok(rows)
}

/// Iterations until the mean loss reaches the target, and the consensus distance then.
fn descend(at: &Settings, random: &mut Random, graph: &Graph) -> (f64, f64) {
    let (n, lr) = (at.count("workers"), at.number("lr"));
    let quadratic = Quadratic::new(DIM, 4.0, at.number("noise"));
    // Local optima vary along the ring and average to 0.
    let optimum = |worker: usize| {
        let turn = std::f64::consts::TAU * worker as f64 / n as f64;
        at.number("heterogeneity") * lockstep_tensor::math::scalar::cos(turn)
    };
    let mut all = vec![quadratic.start(); n];
    let mut steppers: Vec<Stepper> = (0..n).map(|_| Stepper::sgd(DIM)).collect();
    let goal = at.number("target") * quadratic.loss(&quadratic.start());
    for iteration in 0..MAX_ITERATIONS {
        let loss = all.iter().map(|x| quadratic.loss(x)).sum::<f64>() / n as f64;
        if loss <= goal {
            return (iteration as f64, spread(&all, &mean(&all)));
        }
        let mixed = |worker: usize| {
            let received = graph.in_neighbors(0, worker);
            let weighted = |i: usize| {
                let one = |(from, weight): &(usize, f64)| weight * f64::from(all[*from][i]);
                received.iter().map(one).sum::<f64>() as f32
            };
            (0..DIM).map(weighted).collect::<Vec<f32>>()
        };
        let mut next: Vec<Vec<f32>> = (0..n).map(mixed).collect();
        for (worker, x) in next.iter_mut().enumerate() {
            let own: Vec<f32> =
                all[worker].iter().map(|x| (f64::from(*x) - optimum(worker)) as f32).collect();
            let gradient = quadratic.gradient(&own, 1.0, random);
            steppers[worker].step(x, lr, &gradient);
        }
        all = next;
    }
    (f64::INFINITY, spread(&all, &mean(&all)))
}

fn findings(table: &Table) -> Vec<String> {
    let best = lowest(table, "seconds", last_point(table));
    let [ring, exact] = ["ring", "all-reduce"].map(|name| last_with(table, "graph", name));
    vec![
        format!(
            "{}{} is fastest: {}; all-reduce takes {}",
            at(table, best),
            cell(table, "graph", best),
            cell(table, "seconds", best),
            cell(table, "seconds", exact)
        ),
        format!(
            "on the ring the consensus distance is {}; iterations to the target: {}, with \
             all-reduce {}",
            cell(table, "consensus_distance", ring),
            cell(table, "iterations", ring),
            cell(table, "iterations", exact)
        ),
    ]
}
