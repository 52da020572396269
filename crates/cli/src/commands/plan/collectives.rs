//! `lockstep plan collectives`: cost of every operation and algorithm, by schedule and closed form.

use crate::failure::Failure;
use crate::output;
use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};
use lockstep_planner::collective::forms::closed_form;
use lockstep_planner::collective::hierarchical::Nodes;
use lockstep_planner::collective::{parameter_server, ring, tree};
use lockstep_schedule::collective::{GroupSpec, algorithms, build};
use lockstep_schedule::{
    Algorithm, Costs, Layout, Link, Links, Medium, Op, Schedule, Topology, price,
};
use serde::Serialize;
use std::fmt::Write;

/// Predict the cost of collective algorithms on a link, and where they cross
#[derive(clap::Args)]
#[command(after_help = "\
Prices the schedules that the engine runs; --json has the textbook's closed forms beside them.
Ranks of a node exchange over --node-latency and --node-bandwidth, others over --latency and
--bandwidth. direct and one-shot read the memory of other ranks at the cost of a message, and are
listed where all ranks are on one node. A parameter server has no schedule: all ranks push to it and
pull from it. The size is that of the whole vector, of an all-to-all that of each rank.

Examples:
  lockstep plan collectives                                   8 ranks, 10 us, 12.5 GB/s
  lockstep plan collectives --ranks 64 --latency 5 --bandwidth 50 --bytes 1KiB,1MiB,1GiB
  lockstep plan collectives --op all-gather,all-to-all --ranks 12
  lockstep plan collectives --ranks 64 --per-node 8 --node-latency 2 --node-bandwidth 300
  lockstep plan collectives --op all-reduce --ranks 16 --servers 4 --json")]
pub(crate) struct Arguments {
    /// Operations, separated by commas: all, or all-reduce, reduce-scatter, all-gather, broadcast,
    /// reduce, scatter, gather, all-to-all, barrier
    #[arg(long, default_value = "all", value_delimiter = ',')]
    op: Vec<String>,
    /// Number of ranks
    #[arg(long, default_value_t = 8)]
    ranks: usize,
    /// Ranks of a node, which `hierarchical` reduces among first (default: all, then half of them)
    #[arg(long)]
    per_node: Option<usize>,
    /// Parameter servers beside the ranks
    #[arg(long, default_value_t = 1)]
    servers: usize,
    /// Latency of a message in microseconds
    #[arg(long, default_value_t = 10.0, value_name = "US", allow_negative_numbers = true)]
    latency: f64,
    /// Bandwidth of a link in GB/s (100 Gbit/s is 12.5)
    #[arg(long, default_value_t = 12.5, value_name = "GB/S", allow_negative_numbers = true)]
    bandwidth: f64,
    /// Latency inside a node in microseconds (default: --latency)
    #[arg(long, value_name = "US", allow_negative_numbers = true)]
    node_latency: Option<f64>,
    /// Bandwidth inside a node in GB/s (default: --bandwidth)
    #[arg(long, value_name = "GB/S", allow_negative_numbers = true)]
    node_bandwidth: Option<f64>,
    /// Sizes of the vector, separated by commas
    #[arg(long, default_value = "1KiB,64KiB,1MiB,16MiB,256MiB", value_delimiter = ',')]
    bytes: Vec<String>,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

/// Largest number of ranks, because schedules grow with it.
const MAX_RANKS: usize = 512;

#[derive(Serialize)]
struct Row {
    op: String,
    bytes: u64,
    algorithm: String,
    /// By the textbook's closed form, where there is one.
    closed_form_seconds: Option<f64>,
    /// By the engine's schedule, where there is one.
    schedule_seconds: Option<f64>,
}

#[derive(Serialize)]
struct Report {
    ranks: usize,
    rows: Vec<Row>,
    /// Size below which a tree is faster than a ring.
    crossover_ring_tree_bytes: Option<u64>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let report = report(arguments)?;
    if arguments.json { output::json(&report) } else { output::text(&render(&report)) }
}

/// Ranks, their nodes and links, and the sizes to price.
struct Setting {
    num_ranks: usize,
    per_node: usize,
    num_servers: usize,
    inside: Link,
    between: Link,
    lengths: Vec<Bytes>,
}

/// Name of an operation without its root.
fn name(op: Op) -> String {
    let text = op.to_string();
    text.split_once(" (").map_or(text.clone(), |(name, _)| name.to_owned())
}

/// The requested operations, or an error for each unknown one.
fn ops(names: &[String], wrong: &mut Vec<String>) -> Vec<Op> {
    let mut found = Vec::new();
    for text in names.iter().map(|text| text.trim()) {
        match Op::FROM_RANK_0.into_iter().find(|op| name(*op) == text) {
            Some(op) => found.push(op),
            None if text == "all" => found.extend(Op::FROM_RANK_0),
            None => {
                let all = Op::FROM_RANK_0.map(name).join(", ");
                wrong.push(format!("--op {text} is no operation; try all, or one of {all}"));
            }
        }
    }
    found
}

fn report(arguments: &Arguments) -> Result<Report, Failure> {
    let (n, latency, bandwidth) = (arguments.ranks, arguments.latency, arguments.bandwidth);
    let mut wrong = Vec::new();
    let ops = ops(&arguments.op, &mut wrong);
    if !(2..=MAX_RANKS).contains(&n) {
        wrong.push(format!("--ranks {n} is not between 2 and {MAX_RANKS}; try 8"));
    }
    if arguments.servers == 0 {
        wrong.push("--servers 0 serve nothing; try 1".into());
    }
    let per_node = arguments.per_node.unwrap_or(n).max(1);
    if arguments.per_node == Some(0) || (n > 0 && !n.is_multiple_of(per_node)) {
        let fits = (1..=per_node.min(n)).rev().find(|part| n.is_multiple_of(*part)).unwrap_or(1);
        wrong.push(format!("--per-node {per_node} does not divide --ranks {n}; try {fits}"));
    }
    let (inside, fast) =
        (arguments.node_latency.unwrap_or(latency), arguments.node_bandwidth.unwrap_or(bandwidth));
    for (key, value) in [("--latency", latency), ("--node-latency", inside)] {
        if !(value >= 0.0 && value.is_finite()) {
            wrong.push(format!("{key} {value} is not a latency; try 10"));
        }
    }
    for (key, value) in [("--bandwidth", bandwidth), ("--node-bandwidth", fast)] {
        if !(value > 0.0 && value.is_finite()) {
            wrong.push(format!("{key} {value} is not a bandwidth; try 12.5"));
        }
    }
    let mut lengths: Vec<Bytes> = Vec::new();
    for text in &arguments.bytes {
        match text.parse() {
            Ok(bytes) => lengths.push(bytes),
            Err(error) => wrong.push(format!("--bytes: {error}")),
        }
    }
    // Values by default repeat the errors of those that they default to.
    wrong.dedup_by_key(|line| line.replace("--node-", "--"));
    if !wrong.is_empty() {
        return Err(Failure::user(wrong.join("\n")));
    }
    let link = |latency: f64, bandwidth: f64| Link {
        latency: Seconds(latency * 1e-6),
        bandwidth: BytesPerSecond(bandwidth * 1e9),
    };
    let between = link(latency, bandwidth);
    let num_servers = arguments.servers;
    let inside = link(inside, fast);
    let setting = Setting { num_ranks: n, per_node, num_servers, inside, between, lengths };
    let rows = ops.into_iter().flat_map(|op| setting.rows(op)).collect();
    let crossover = ring::all_reduce(n).crossover(tree::all_reduce(n), between);
    let is_flat = per_node == n;
    let crossover_ring_tree_bytes = crossover.filter(|_| is_flat).map(|bytes| bytes.0);
    Ok(Report { ranks: n, rows, crossover_ring_tree_bytes })
}

impl Setting {
    /// Whether all ranks have the same link.
    const fn is_flat(&self) -> bool {
        self.per_node == self.num_ranks
    }

    /// All algorithms of an operation at all sizes.
    fn rows(&self, op: Op) -> Vec<Row> {
        let mut rows: Vec<Row> =
            algorithms(op).iter().flat_map(|algorithm| self.algorithm(op, *algorithm)).collect();
        if op == Op::AllReduce {
            rows.extend(self.lengths.iter().map(|bytes| self.parameter_server(*bytes)));
        }
        rows
    }

    /// An algorithm at all sizes; none where it does not suit the ranks.
    fn algorithm(&self, op: Op, algorithm: Algorithm) -> Vec<Row> {
        let mut group = GroupSpec::new(self.num_ranks);
        if algorithm == Algorithm::Hierarchical {
            let Some(per_node) = self.inner_group() else { return Vec::new() };
            group.topology = Some(topology(self.num_ranks, per_node));
        }
        let Ok(schedule) = build(op, algorithm, &group) else { return Vec::new() };
        // A barrier has no vector.
        let lengths = if op == Op::Barrier { &[Bytes(0)][..] } else { &self.lengths[..] };
        let row = |bytes: &Bytes| Row {
            op: name(op),
            bytes: bytes.0,
            algorithm: algorithm.to_string(),
            closed_form_seconds: self.closed_form(op, algorithm, *bytes).map(|time| time.0),
            schedule_seconds: Some(self.schedule_seconds(op, &schedule, *bytes))
                .filter(|seconds| seconds.is_finite()),
        };
        let rows = lengths.iter().map(row);
        rows.filter(|row| row.schedule_seconds.is_some()).collect()
    }

    /// Ranks of the inner level of a hierarchy: a node, or half of all ranks where they are one.
    fn inner_group(&self) -> Option<usize> {
        let half = self.num_ranks / 2;
        match self.per_node {
            per_node if per_node < self.num_ranks => Some(per_node),
            _ => (self.num_ranks.is_multiple_of(2) && half > 1).then_some(half),
        }
    }

    fn schedule_seconds(&self, op: Op, schedule: &Schedule, bytes: Bytes) -> f64 {
        let mut costs = Costs::plain(self.between, BytesPerSecond(f64::INFINITY));
        if !self.is_flat() {
            let node = |rank: usize| rank / self.per_node;
            costs.links = Links::new(self.num_ranks, |from, to| {
                if node(from) == node(to) { self.inside } else { self.between }
            });
        }
        if schedule.memory_pairs().next().is_some() && self.is_flat() {
            costs.memory = Some(self.inside);
        }
        let ranks = if op == Op::AllToAll { self.num_ranks } else { 1 };
        let layout = Layout::even(schedule, bytes.0 as usize * ranks);
        price(schedule, &layout, Bytes(1), &costs, None).0
    }

    /// The closed form, which assumes one link for all ranks, or two levels of them.
    fn closed_form(&self, op: Op, algorithm: Algorithm, bytes: Bytes) -> Option<Seconds> {
        if algorithm == Algorithm::Hierarchical {
            let ranks_per_node = self.inner_group()?;
            let nodes = Nodes {
                num_nodes: self.num_ranks / ranks_per_node,
                ranks_per_node,
                nics_per_node: ranks_per_node,
                inside: if self.is_flat() { self.between } else { self.inside },
                between: self.between,
            };
            return Some(nodes.all_reduce_as_scheduled(bytes));
        }
        let form = closed_form(op, algorithm, self.num_ranks).filter(|_| self.is_flat())?;
        Some(form.seconds(bytes, self.between))
    }

    /// Push and pull of all ranks.
    fn parameter_server(&self, bytes: Bytes) -> Row {
        let form = parameter_server::push_and_pull(self.num_ranks, self.num_servers);
        Row {
            op: name(Op::AllReduce),
            bytes: bytes.0,
            algorithm: format!("parameter-server:{}", self.num_servers),
            closed_form_seconds: Some(form.seconds(bytes, self.between).0),
            schedule_seconds: None,
        }
    }
}

/// Nodes of equal size, whose ranks exchange messages on both levels.
fn topology(num_ranks: usize, per_node: usize) -> Topology {
    let group = |children| Topology::Group { medium: Medium::Messages, children };
    let node = |first: usize| group((first..first + per_node).map(Topology::Rank).collect());
    group((0..num_ranks).step_by(per_node).map(node).collect())
}

/// A table for each operation: algorithms by size, the fastest of each size with a star.
fn render(report: &Report) -> String {
    let mut text = String::new();
    let mut ops: Vec<&str> = report.rows.iter().map(|row| row.op.as_str()).collect();
    ops.dedup();
    for op in ops {
        let rows: Vec<&Row> = report.rows.iter().filter(|row| row.op == op).collect();
        let mut sizes: Vec<u64> = rows.iter().map(|row| row.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let _ = write!(text, "{:<20}", format!("{op}, {} ranks", report.ranks));
        for bytes in sizes.iter().filter(|bytes| **bytes > 0) {
            let _ = write!(text, " {:>10}", Bytes(*bytes).to_string());
        }
        text.push('\n');
        let seconds = |row: &Row| row.schedule_seconds.or(row.closed_form_seconds);
        let fastest = |bytes: u64| {
            let all = rows.iter().filter(|row| row.bytes == bytes).filter_map(|row| seconds(row));
            all.fold(f64::INFINITY, f64::min)
        };
        let mut algorithms: Vec<&str> = rows.iter().map(|row| row.algorithm.as_str()).collect();
        algorithms.dedup();
        for algorithm in algorithms {
            let _ = write!(text, "  {algorithm:<18}");
            for row in rows.iter().filter(|row| row.algorithm == algorithm) {
                let Some(time) = seconds(row) else { continue };
                let star = if time <= fastest(row.bytes) { "*" } else { "" };
                let _ = write!(text, " {:>10}", format!("{}{star}", Seconds(time)));
            }
            text.push('\n');
        }
    }
    if let Some(bytes) = report.crossover_ring_tree_bytes {
        let _ =
            writeln!(text, "below {} a tree is faster than a ring, above it a ring", Bytes(bytes));
    }
    text
}
