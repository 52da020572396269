//! Overlap of gradient buckets with the backward pass (Li et al. 2020): small buckets start early
//! and pay more latency, large buckets start late.

use super::common::{bandwidth, latency, link};
use super::prelude::*;
use crate::sim::{data_parallel_step, play_one_rank};
use lockstep_config::units::{Bytes, Seconds};
use lockstep_planner::collective::ring;
use lockstep_planner::overlap::{Bucket, finish};
use lockstep_schedule::step::{Play, TaskOp};

experiment!(Overlap, timeline);

const DESCRIPTION: Description = Description {
    name: "overlap",
    title: "Overlap: step time by bucket size",
    question: "How many layers should a gradient bucket have?",
    formula: "bucket j starts at max(full, end of bucket j-1); T = end of the last bucket; \
              ring of n: 2(n-1)(a + d/(nB)) per bucket",
    look: "step_seconds over bucket_layers: latency on the left, exposed communication of the \
           last bucket on the right",
    surprise: "a bucket pays 2(n-1) latencies, not one: 5 ms with 256 ranks and 10 us; no bucket \
               size makes a step shorter than its compute",
    params: &[
        Param::count("bucket_layers", 4.0, (1.0, 1000.0), "layers per bucket"),
        Param::count("layers", 96.0, (1.0, 1000.0), "layers"),
        Param::number("layer", Unit::Seconds, 5e-3, (0.0, 1e3), "backward time of a layer"),
        Param::number("gradient", Unit::Bytes, 700e6, (1.0, 1e13), "bytes of the gradient"),
        Param::count("workers", 256.0, (2.0, 1e5), "data-parallel workers"),
        latency(10e-6),
        bandwidth(25e9),
    ],
    sweep: ("bucket_layers", &[1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 24.0, 48.0, 96.0]),
    columns: &[
        Column::new("step_seconds", Unit::Seconds, "backward pass and exposed communication"),
        Column::new("exposed_seconds", Unit::Seconds, "exposed communication"),
        Column::new("buckets", Unit::Count, "number of buckets"),
        Column::new("bucket_bytes", Unit::Bytes, "size of a bucket"),
        Column::new("transfer_seconds", Unit::Seconds, "total time of all transfers"),
        Column::new("latency_share", Unit::Share, "latency share of a transfer"),
        Column::new("closed_form_seconds", Unit::Seconds, "step_seconds by the formula"),
    ],
    chart: ChartSpec::lines("bucket_layers", &["step_seconds"]).log(true, false),
};

/// A step of one of the workers, which stands for all.
struct Step {
    /// Layers of every bucket, in the order of the backward pass.
    layers: Vec<usize>,
    /// Duration of every bucket's transfer.
    transfers: Vec<f64>,
    play: Play,
}

impl Step {
    fn new(at: &Settings) -> Self {
        let (num_layers, per_bucket) = (at.count("layers"), at.count("bucket_layers"));
        let form = ring::all_reduce(at.count("workers"));
        let layer_bytes = at.number("gradient") / num_layers as f64;
        let num_buckets = num_layers.div_ceil(per_bucket);
        let layers: Vec<usize> =
            (0..num_buckets).map(|b| per_bucket.min(num_layers - b * per_bucket)).collect();
        let transfer = |layers: &usize| {
            form.seconds(Bytes((layer_bytes * *layers as f64).round() as u64), link(at)).0
        };
        let transfers: Vec<f64> = layers.iter().map(transfer).collect();
        let [program] = &data_parallel_step(1, num_buckets)[..] else { unreachable!("one rank") };
        // Backward fills the last bucket of the program first.
        let place = |block: u32| num_buckets - 1 - block as usize;
        let pass = |op| match op {
            TaskOp::Backward(pass) => at.number("layer") * layers[place(pass.block)] as f64,
            _ => 0.0,
        };
        let play = play_one_rank(program, pass, |bucket| transfers[place(bucket)]);
        Self { layers, transfers, play }
    }

    /// Spans of the backward pass and of the reductions, by bucket.
    fn spans(&self) -> impl Iterator<Item = [lockstep_schedule::step::Span; 2]> + '_ {
        let tasks = &self.play.ranks[0].tasks[self.layers.len()..];
        tasks.chunks_exact(2).map(|pair| [pair[0], pair[1]])
    }
}

/// Compute and network of one worker.
fn timeline(at: &Settings, _: &mut Random) -> Result<Timeline, LabError> {
    let step = Step::new(at);
    let (mut compute, mut network) = (Vec::new(), Vec::new());
    for (index, [backward, sum]) in step.spans().enumerate() {
        let span = |activity, span: lockstep_schedule::step::Span| {
            Span::new(activity, span.start.0, span.end.0).numbered(index)
        };
        compute.push(span(Activity::Backward, backward));
        network.push(span(Activity::AllReduce, sum));
    }
    let rank = &step.play.ranks[0];
    let title = format!(
        "{} buckets: {} of exposed communication after {} of backward",
        step.layers.len(),
        Unit::Seconds.show(rank.exposed.0),
        Unit::Seconds.show(rank.compute.0)
    );
    let track = |name: &str, spans| Track { name: name.to_owned(), spans };
    let tracks = vec![track("compute", compute), track("network", network)];
    Ok(Timeline { title, tracks, named: Vec::new() })
}

fn run(at: &Settings, _: &mut Random) -> Result<Vec<Row>, LabError> {
    let (num_layers, per_bucket) = (at.count("layers"), at.count("bucket_layers"));
    let form = ring::all_reduce(at.count("workers"));
    let layer_bytes = at.number("gradient") / num_layers as f64;
    let step = Step::new(at);
    let transfers: f64 = step.transfers.iter().sum();
    let latencies = link(at).latency.0 * form.rounds as f64 * step.layers.len() as f64;
    // The closed form: a bucket starts when it is full and its predecessor has arrived.
    let mut ready = 0.0;
    let bucket = |(layers, transfer): (&usize, &f64)| {
        ready += at.number("layer") * *layers as f64;
        Bucket { ready: Seconds(ready), transfer: Seconds(*transfer) }
    };
    let buckets: Vec<Bucket> = step.layers.iter().zip(&step.transfers).map(bucket).collect();
    Ok(vec![row![
        step.play.seconds().0,
        step.play.ranks[0].exposed.0,
        step.layers.len(),
        layer_bytes * per_bucket.min(num_layers) as f64,
        transfers,
        latencies / transfers,
        finish(&buckets).0,
    ]])
}

fn findings(table: &Table) -> Vec<String> {
    let Some(best) = table.best("step_seconds", 1.0) else { return Vec::new() };
    vec![
        format!(
            "{}{} per step, {} of it exposed communication",
            best_is(table, best, "best"),
            cell(table, "step_seconds", best),
            cell(table, "exposed_seconds", best)
        ),
        format!("time of a step: {}", across(table, "step_seconds", 0, last(table))),
    ]
}
