//! Experts: tokens choose, some experts are chosen too often, and the all-to-all waits for them.

use super::common::{bandwidth, latency, link};
use super::prelude::*;
use crate::sim::{Compiled, Fabric, play};
use lockstep_config::units::Bytes;
use lockstep_schedule::collective::{GroupSpec, build};
use lockstep_schedule::{Algorithm, Layout, Op};
use lockstep_tensor::math::scalar::powf;

experiment!(MoeRouting);

const CARD: Card = Card {
    name: "moe-routing",
    title: "Mixture of experts: skewed routing, capacity, dropped tokens and the all-to-all",
    question: "What does it cost when tokens prefer some experts?",
    formula: "capacity = factor x k x tokens/experts; time of the all-to-all by the rank that \
              receives most; imbalance = max/mean load",
    look: "imbalance and slowdown over skew without capacity (capacity=1000), dropped with it",
    surprise: "an all-to-all moves Theta(d) bytes a rank, not Theta(nd): only the rank of a hot \
               expert sees n times as much; capacity bounds the time and drops the tokens; top-2 \
               routing needs twice the capacity of top-1",
    params: &[
        Param::number(
            "skew",
            Unit::Number,
            1.0,
            (0.0, 4.0),
            "Zipf exponent of popularity; 0: even",
        ),
        Param::count("ranks", 8.0, (2.0, 128.0), "ranks that hold experts"),
        Param::count("experts", 64.0, (2.0, 4096.0), "experts, dealt out to ranks in turn"),
        Param::count("tokens", 8192.0, (1.0, 1e6), "tokens of a batch, over all ranks"),
        Param::count("top", 2.0, (1.0, 8.0), "experts of a token (k)"),
        Param::number(
            "capacity",
            Unit::Times,
            2.0,
            (0.1, 1e4),
            "tokens of an expert over the mean",
        ),
        Param::count("width", 4096.0, (1.0, 1e6), "numbers of a token, two bytes each"),
        latency(10e-6),
        bandwidth(25e9),
    ],
    sweep: ("skew", &[0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0]),
    columns: &[
        Column::new("imbalance", Unit::Times, "largest over mean load, before capacity"),
        Column::new("dropped", Unit::Share, "assignments over capacity"),
        Column::new("capacity_tokens", Unit::Count, "tokens that an expert takes"),
        Column::new("all_to_all_seconds", Unit::Seconds, "dispatch, simulated"),
        Column::new("balanced_seconds", Unit::Seconds, "dispatch of even loads"),
        Column::new("slowdown", Unit::Times, "dispatch over balanced"),
        Column::new("idle", Unit::Share, "time of experts' ranks that wait for the busiest"),
    ],
    picture: Picture::lines("skew", &["imbalance", "slowdown"]).named("over an even routing"),
};

/// Tokens that an expert takes.
pub(crate) fn capacity(factor: f64, top: usize, tokens: usize, experts: usize) -> usize {
    (factor * (top * tokens) as f64 / experts as f64).ceil() as usize
}

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let (n, experts) = (at.count("ranks"), at.count("experts"));
    let (tokens, top) = (at.count("tokens"), at.count("top"));
    let weights = (0..experts).map(|expert| powf(expert as f64 + 1.0, -at.number("skew")));
    let sums: Vec<f64> = weights
        .scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        })
        .collect();
    let room = capacity(at.number("capacity"), top, tokens, experts);
    let (mut loads, mut wanted) = (vec![0_usize; experts], vec![0_usize; experts]);
    // Elements from rank to rank; tokens lie on ranks in turn.
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
            wanted[expert] += 1;
            if loads[expert] < room {
                loads[expert] += 1;
                sent[token % n * n + expert % n] += at.count("width");
            }
        }
    }
    let all: usize = wanted.iter().sum();
    let mean = all as f64 / experts as f64;
    let most = wanted.iter().copied().max().unwrap_or(0) as f64;
    let seconds = |lens: &[usize]| {
        let schedule =
            build(Op::AllToAll, Algorithm::Pairwise, &GroupSpec::new(n)).expect("it exists");
        let layout = Layout::explicit(&schedule, lens);
        let compiled = Compiled::new(&schedule, &layout, Bytes(2));
        play(&compiled, Fabric::Even(link(at)), &vec![0.0; n]).end
    };
    let even = vec![all * at.count("width") / (n * n); n * n];
    let (skewed, balanced) = (seconds(&sent), seconds(&even));
    let by_rank = (0..n).map(|rank| loads.iter().skip(rank).step_by(n).sum::<usize>());
    let busiest = by_rank.clone().max().unwrap_or(1).max(1) as f64;
    let used: usize = by_rank.sum();
    Ok(vec![row![
        most / mean,
        1.0 - used as f64 / all as f64,
        room,
        skewed,
        balanced,
        skewed / balanced,
        1.0 - used as f64 / (n as f64 * busiest),
    ]])
}

fn findings(table: &Table) -> Vec<String> {
    let end = last(table);
    vec![
        format!(
            "At {} the hottest expert is wanted {} the mean, and {} of assignments are dropped",
            place(table, end),
            cell(table, "imbalance", end),
            cell(table, "dropped", end)
        ),
        format!(
            "the all-to-all takes {} that of even loads, where dropped tokens are not sent; ranks \
             idle {}",
            cell(table, "slowdown", end),
            cell(table, "idle", end)
        ),
    ]
}
