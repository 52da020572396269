//! One data-parallel step: compute, then all-reduce of gradients.
//!
//! Compute times have jitter, gradient buckets overlap with the backward pass, and the all-reduce
//! is the engine's schedule, simulated message by message.

use super::common::{ELEMENT, all_reduce, bandwidth, compiled, latency, layout, link, two_levels};
use super::prelude::*;
use crate::random::Jitter;
use crate::sim::{Fabric, data_parallel_step, play_all_ranks};
use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};
use lockstep_planner::overlap::{Bucket, finish};
use lockstep_schedule::step::{Play, TaskOp};
use lockstep_schedule::{Algorithm, Costs, Link, Links, Schedule, price};

experiment!(DataParallel, timeline);

const DESCRIPTION: Description = Description {
    name: "data-parallel",
    title: "A data-parallel step: compute, all-reduce, efficiency and speed-up by workers",
    question: "How much more work do n workers do than one (weak scaling)?",
    formula: "T = forward + backward + exposed all-reduce; efficiency = T(1)/T(n); ring: \
              2(n-1)(latency + d/(n bandwidth))",
    look: "efficiency over workers for ring, tree and rabenseifner; exposed_seconds with 1 and \
           with 8 buckets; step_seconds with variation=0.1",
    surprise: "the bytes per worker of a ring hardly grow with n, so efficiency falls from 1 to 2 \
               workers and then stays until latency dominates; jitter costs more than the network",
    params: &[
        Param::count("workers", 64.0, (1.0, 512.0), "data-parallel workers"),
        Param::choice(
            "algorithm",
            &["ring", "tree", "butterfly", "rabenseifner", "hierarchical"],
            "all-reduce algorithm",
        ),
        Param::number("gradient", Unit::Bytes, 700e6, (4.0, 1e13), "bytes of the gradient"),
        Param::number("forward", Unit::Seconds, 0.05, (0.0, 1e4), "time of the forward pass"),
        Param::number("backward", Unit::Seconds, 0.075, (0.0, 1e4), "time of the backward pass"),
        Param::count("buckets", 1.0, (1.0, 64.0), "gradient buckets"),
        Param::number("variation", Unit::Number, 0.0, (0.0, 3.0), "log-normal jitter of compute"),
        latency(1e-6),
        bandwidth(50e9),
        Param::count("per_node", 8.0, (1.0, 512.0), "workers per node (hierarchical)"),
        Param::number(
            "node_bandwidth",
            Unit::BytesPerSecond,
            600e9,
            (1e3, 1e15),
            "bandwidth inside a node (hierarchical)",
        ),
    ],
    sweep: ("workers", &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]),
    columns: &[
        Column::new("step_seconds", Unit::Seconds, "time of a step"),
        Column::new("compute_seconds", Unit::Seconds, "compute time of the slowest worker"),
        Column::new("exposed_seconds", Unit::Seconds, "exposed communication"),
        Column::new("efficiency", Unit::Share, "share of linear speed-up"),
        Column::new("speed_up", Unit::Times, "throughput/throughput of one worker"),
        Column::new(
            "wait_share",
            Unit::Share,
            "share of the step that workers wait for the slowest",
        ),
        Column::new("planned_seconds", Unit::Seconds, "planner's estimate without jitter"),
    ],
    chart: ChartSpec::lines("workers", &["efficiency"]).log(true, false),
};

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let cluster = Cluster::new(at, random)?;
    let step = cluster.play(at).seconds().0;
    let Cluster { schedule, between, links, bytes, factors } = cluster;
    let (num_workers, num_buckets) = (factors.len(), at.count("buckets"));
    let compute = at.number("forward") + at.number("backward");
    let slowest = factors.iter().copied().fold(0.0, f64::max) * compute;
    let mean = factors.iter().sum::<f64>() / num_workers as f64 * compute;

    let mut costs = Costs::plain(between, BytesPerSecond(f64::INFINITY));
    costs.links = links.clone().unwrap_or_default();
    let transfer = price(&schedule, &layout(&schedule, bytes), ELEMENT, &costs, None);
    let buckets: Vec<Bucket> = (0..num_buckets)
        .map(|bucket| Bucket { ready: Seconds(ready(at, bucket)), transfer })
        .collect();
    Ok(vec![row![
        step,
        slowest,
        step - slowest,
        compute / step,
        num_workers as f64 * compute / step,
        (slowest - mean) / step,
        finish(&buckets).0,
    ]])
}

fn findings(table: &Table) -> Vec<String> {
    let end = last(table);
    vec![
        format!("{}efficiency is {}", at(table, end), cell(table, "efficiency", end)),
        format!(
            "speed-up {} over one worker; {} of exposed communication; workers wait {} of the step \
             for the slowest",
            cell(table, "speed_up", end),
            cell(table, "exposed_seconds", end),
            cell(table, "wait_share", end)
        ),
    ]
}

/// Workers of a step, their links and their jitter.
struct Cluster {
    schedule: Schedule,
    between: Link,
    /// Links by pair, where they differ.
    links: Option<Links>,
    /// Size of a bucket.
    bytes: Bytes,
    factors: Vec<f64>,
}

impl Cluster {
    fn new(at: &Settings, random: &mut Random) -> Result<Self, LabError> {
        let num_workers = at.count("workers");
        let algorithm: Algorithm =
            at.choice("algorithm").parse().expect("a choice of the parameter");
        let schedule = all_reduce(algorithm, num_workers, at.count("per_node"))?;
        let between = link(at);
        let links = match algorithm {
            Algorithm::Hierarchical => {
                let inside = Link { bandwidth: at.bandwidth("node_bandwidth"), ..between };
                Some(two_levels(num_workers, at.count("per_node"), inside, between))
            }
            _ => None,
        };
        let bytes = Bytes(at.bytes("gradient").0 / at.count("buckets") as u64);
        let jitter = match at.number("variation") {
            variation if variation > 0.0 => Jitter::LogNormal { variation },
            _ => Jitter::None,
        };
        let factors = (0..num_workers).map(|_| jitter.factor(random)).collect();
        Ok(Self { schedule, between, links, bytes, factors })
    }

    /// Plays the step program of every worker with its jitter.
    fn play(&self, at: &Settings) -> Play {
        let num_buckets = at.count("buckets");
        let programs = data_parallel_step(self.factors.len(), num_buckets);
        let sum = compiled(&self.schedule, self.bytes);
        let fabric = self.links.as_ref().map_or(Fabric::Uniform(self.between), Fabric::PerPair);
        let share = |key| at.number(key) / num_buckets as f64;
        let (forward, backward) = (share("forward"), share("backward"));
        play_all_ranks(&programs, &sum, fabric, |rank, op| {
            self.factors[rank] * if matches!(op, TaskOp::Forward(_)) { forward } else { backward }
        })
    }
}

/// Time at which a worker without jitter has filled a bucket.
fn ready(at: &Settings, bucket: usize) -> f64 {
    at.number("forward") + at.number("backward") * (bucket + 1) as f64 / at.number("buckets")
}

/// Two tracks per worker: compute and network.
fn timeline(at: &Settings, random: &mut Random) -> Result<Timeline, LabError> {
    let cluster = Cluster::new(at, random)?;
    let (play, factors) = (cluster.play(at), &cluster.factors);
    let num_buckets = at.count("buckets");
    let mut tracks = Vec::new();
    let reductions = |rank: usize| {
        let tasks = &play.ranks[rank].tasks[num_buckets..];
        tasks.chunks_exact(2).map(|pair| (pair[0], pair[1]))
    };
    for (rank, factor) in factors.iter().enumerate() {
        let forward = at.number("forward") * factor;
        let end = play.ranks[rank].compute.0;
        let spans = vec![
            Span::new(Activity::Forward, 0.0, forward),
            Span::new(Activity::Backward, forward, end),
        ];
        tracks.push(Track { name: format!("worker {rank}"), spans });
        let (mut network, mut free) = (Vec::new(), 0.0_f64);
        for (bucket, (backward, sum)) in reductions(rank).enumerate() {
            // The all-reduce cannot complete before the last worker enters it.
            let entered = free.max(backward.end.0);
            if sum.start.0 > entered {
                network.push(Span::new(Activity::Wait, entered, sum.start.0));
            }
            let span = Span::new(Activity::AllReduce, sum.start.0, sum.end.0);
            network.push(span.numbered(bucket));
            free = sum.end.0;
        }
        tracks.push(Track { name: "network".to_owned(), spans: network });
    }
    let slowest = (0..factors.len()).max_by(|a, b| factors[*a].total_cmp(&factors[*b]));
    let slowest = slowest.unwrap_or(0);
    let end = play.seconds().0;
    let title = format!(
        "A step of {} workers takes {}; the slowest is worker {}",
        factors.len(),
        Unit::Seconds.show(end),
        slowest
    );
    Ok(Timeline { title, tracks, named: vec![2 * slowest, 2 * slowest + 1] })
}
