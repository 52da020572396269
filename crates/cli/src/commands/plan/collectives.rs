//! `lockstep plan collectives`: cost of all-reduce algorithms by closed form and by schedule.

use crate::failure::Failure;
use crate::output;
use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};
use lockstep_planner::collective::{ClosedForm, butterfly, rabenseifner, ring, tree};
use lockstep_schedule::collective::{GroupSpec, build};
use lockstep_schedule::{Algorithm, Costs, Layout, Link, Op, price};
use serde::Serialize;
use std::fmt::Write;

/// Predict the cost of all-reduce algorithms on a link, and where they cross
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep plan collectives                                   8 ranks, 10 us, 12.5 GB/s
  lockstep plan collectives --ranks 64 --latency 5 --bandwidth 50 --bytes 1KiB,1MiB,1GiB
  lockstep plan collectives --ranks 256 --json")]
pub(crate) struct Arguments {
    /// Number of ranks
    #[arg(long, default_value_t = 8)]
    ranks: usize,
    /// Latency of a message in microseconds
    #[arg(long, default_value_t = 10.0, value_name = "US", allow_negative_numbers = true)]
    latency: f64,
    /// Bandwidth of a link in GB/s (100 Gbit/s is 12.5)
    #[arg(long, default_value_t = 12.5, value_name = "GB/S", allow_negative_numbers = true)]
    bandwidth: f64,
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
    bytes: u64,
    algorithm: String,
    closed_form_seconds: f64,
    schedule_seconds: f64,
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

fn report(arguments: &Arguments) -> Result<Report, Failure> {
    let (n, latency, bandwidth) = (arguments.ranks, arguments.latency, arguments.bandwidth);
    let mut wrong = Vec::new();
    if !(2..=MAX_RANKS).contains(&n) {
        wrong.push(format!("--ranks {n} is not between 2 and {MAX_RANKS}; try 8"));
    }
    if !(latency >= 0.0 && latency.is_finite()) {
        wrong.push(format!("--latency {latency} is not a latency; try 10"));
    }
    if !(bandwidth > 0.0 && bandwidth.is_finite()) {
        wrong.push(format!("--bandwidth {bandwidth} is not a bandwidth; try 12.5"));
    }
    let mut lengths: Vec<Bytes> = Vec::new();
    for text in &arguments.bytes {
        match text.parse() {
            Ok(bytes) => lengths.push(bytes),
            Err(error) => wrong.push(format!("--bytes: {error}")),
        }
    }
    if !wrong.is_empty() {
        return Err(Failure::user(wrong.join("\n")));
    }
    let link =
        Link { latency: Seconds(latency * 1e-6), bandwidth: BytesPerSecond(bandwidth * 1e9) };
    let mut rows = Vec::new();
    for bytes in lengths {
        let all = forms(n).into_iter();
        rows.extend(all.map(|(algorithm, form)| row(n, algorithm, form, bytes, link)));
    }
    let crossover = ring::all_reduce(n).crossover(tree::all_reduce(n), link);
    let crossover_ring_tree_bytes = crossover.map(|bytes| bytes.0);
    Ok(Report { ranks: n, rows, crossover_ring_tree_bytes })
}

/// Algorithms with a closed form for `n` ranks.
fn forms(n: usize) -> Vec<(Algorithm, ClosedForm)> {
    let mut forms =
        vec![(Algorithm::RING, ring::all_reduce(n)), (Algorithm::Tree, tree::all_reduce(n))];
    if n.is_power_of_two() {
        forms.push((Algorithm::Butterfly, butterfly::all_reduce(n)));
        forms.push((Algorithm::Rabenseifner, rabenseifner::all_reduce(n)));
    }
    forms
}

fn row(n: usize, algorithm: Algorithm, form: ClosedForm, bytes: Bytes, link: Link) -> Row {
    let costs = Costs::plain(link, BytesPerSecond(f64::INFINITY));
    let schedule = build(Op::AllReduce, algorithm, &GroupSpec::new(n))
        .expect("the algorithm supports all-reduce");
    let layout = Layout::even(&schedule, bytes.0 as usize);
    Row {
        bytes: bytes.0,
        algorithm: algorithm.to_string(),
        closed_form_seconds: form.seconds(bytes, link).0,
        schedule_seconds: price(&schedule, &layout, Bytes(1), &costs, None).0,
    }
}

fn render(report: &Report) -> String {
    let mut text = format!("{:>10}  {:<13} {:>12} {:>12}\n", "", "", "closed form", "schedule");
    for Row { bytes, algorithm, closed_form_seconds, schedule_seconds } in &report.rows {
        let cell = |seconds: f64| Seconds(seconds).to_string();
        let _ = writeln!(
            text,
            "{:>10}  {algorithm:<13} {:>12} {:>12}",
            Bytes(*bytes).to_string(),
            cell(*closed_form_seconds),
            cell(*schedule_seconds),
        );
    }
    if let Some(bytes) = report.crossover_ring_tree_bytes {
        let _ =
            writeln!(text, "below {} a tree is faster than a ring, above it a ring", Bytes(bytes));
    }
    text
}
