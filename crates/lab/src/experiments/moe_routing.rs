//! Mixture of experts with skewed routing: capacity, dropped tokens and all-to-all (Fedus et al.
//! 2021).

use super::common::{bandwidth, latency, link};
use super::prelude::*;
use crate::sim::{CompiledSchedule, Fabric, simulate_collective};
use lockstep_config::units::Bytes;
use lockstep_schedule::collective::{GroupSpec, build};
use lockstep_schedule::{Algorithm, Layout, Op};
use lockstep_tensor::math::scalar::powf;

experiment!(MoeRouting);

const DESCRIPTION: Description = Description {
    name: "moe-routing",
    title: "Mixture of experts: skewed routing, capacity, dropped tokens and the all-to-all",
    question: "What does a load imbalance of experts cost?",
    formula: "capacity = factor x k x tokens/experts; the rank that receives most determines the \
              time of the all-to-all; imbalance = max/mean load",
    look: "dropped and idle over skew; slowdown without capacity (capacity=1000)",
    surprise: "an all-to-all sends Theta(d) bytes per rank, not Theta(nd): only the rank of a hot \
               expert receives n times as much; capacity bounds the time and drops tokens; top-2 \
               routing needs twice the capacity of top-1",
    params: &[
        Param::number(
            "skew",
            Unit::Number,
            1.0,
            (0.0, 4.0),
            "Zipf exponent of expert popularity; 0: uniform",
        ),
        Param::count("ranks", 8.0, (2.0, 128.0), "expert-parallel ranks"),
        Param::count("experts", 64.0, (2.0, 4096.0), "experts, assigned to ranks round-robin"),
        Param::count("tokens", 8192.0, (1.0, 1e6), "tokens per batch over all ranks"),
        Param::count("top_k", 2.0, (1.0, 8.0), "experts per token (k)"),
        Param::number("capacity", Unit::Times, 2.0, (0.1, 1e4), "capacity factor"),
        Param::count("width", 4096.0, (1.0, 1e6), "hidden size, two bytes per element"),
        latency(10e-6),
        bandwidth(25e9),
    ],
    sweep: ("skew", &[0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0]),
    columns: &[
        Column::new("imbalance", Unit::Times, "largest/mean expert load, before capacity"),
        Column::new("dropped", Unit::Share, "share of assignments dropped over capacity"),
        Column::new("capacity_tokens", Unit::Count, "capacity of an expert in tokens"),
        Column::new("all_to_all_seconds", Unit::Seconds, "time of the dispatch, simulated"),
        Column::new("balanced_seconds", Unit::Seconds, "time of the dispatch with uniform routing"),
        Column::new(
            "slowdown",
            Unit::Times,
            "time per processed assignment/that with uniform routing",
        ),
        Column::new("idle", Unit::Share, "idle share of ranks that wait for the busiest"),
    ],
    chart: ChartSpec::lines("skew", &["dropped", "idle"])
        .named("assignments dropped, time of ranks idle"),
};

/// Capacity of an expert in tokens.
pub(crate) fn capacity(factor: f64, top: usize, tokens: usize, experts: usize) -> usize {
    (factor * (top * tokens) as f64 / experts as f64).ceil() as usize
}

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let (n, experts) = (at.count("ranks"), at.count("experts"));
    let (tokens, top) = (at.count("tokens"), at.count("top_k"));
    let weights = (0..experts).map(|expert| powf(expert as f64 + 1.0, -at.number("skew")));
    let sums: Vec<f64> = weights
        .scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        })
        .collect();
    let limit = capacity(at.number("capacity"), top, tokens, experts);
    let (mut loads, mut requested) = (vec![0_usize; experts], vec![0_usize; experts]);
    // Elements from rank to rank; tokens are distributed round-robin.
    let mut sent = vec![0_usize; n * n];
    for token in 0..tokens {
        let mut taken = Vec::with_capacity(top);
        while taken.len() < top.min(experts) {
            let draw = random.uniform() * sums[experts - 1];
            let expert = sums.partition_point(|sum| *sum <= draw).min(experts - 1);
            if !taken.contains(&expert) {
                taken.push(expert);
            }
        }
        for expert in taken {
            requested[expert] += 1;
            if loads[expert] < limit {
                loads[expert] += 1;
                sent[token % n * n + expert % n] += at.count("width");
            }
        }
    }
    let all: usize = requested.iter().sum();
    let mean = all as f64 / experts as f64;
    let most = requested.iter().copied().max().unwrap_or(0) as f64;
    let seconds = |lens: &[usize]| {
        let schedule =
            build(Op::AllToAll, Algorithm::Pairwise, &GroupSpec::new(n)).expect("it exists");
        let layout = Layout::explicit(&schedule, lens);
        let compiled = CompiledSchedule::new(&schedule, &layout, Bytes(2));
        simulate_collective(&compiled, Fabric::Uniform(link(at)), &vec![0.0; n]).end
    };
    let even = vec![all * at.count("width") / (n * n); n * n];
    let (skewed, balanced) = (seconds(&sent), seconds(&even));
    let by_rank = (0..n).map(|rank| loads.iter().skip(rank).step_by(n).sum::<usize>());
    let busiest = by_rank.clone().max().unwrap_or(1).max(1) as f64;
    let used: usize = by_rank.sum();
    Ok(vec![row![
        most / mean,
        1.0 - used as f64 / all as f64,
        limit,
        skewed,
        balanced,
        // A dropped assignment is not sent, which is no gain: time counts per processed one.
        skewed / balanced * all as f64 / used as f64,
        1.0 - used as f64 / (n as f64 * busiest),
    ]])
}

fn findings(table: &Table) -> Vec<String> {
    let end = last(table);
    vec![
        format!(
            "{}the hottest expert gets {} the mean load, and {} of assignments are dropped",
            at(table, end),
            cell(table, "imbalance", end),
            cell(table, "dropped", end)
        ),
        format!(
            "a processed assignment takes {} the time of uniform routing in the all-to-all; ranks \
             idle {}",
            cell(table, "slowdown", end),
            cell(table, "idle", end)
        ),
    ]
}
