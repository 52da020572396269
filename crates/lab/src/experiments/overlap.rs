//! Overlap of gradient buckets with the backward pass (Li et al. 2020): small buckets start early
//! and pay more latency, large buckets start late.

use super::common::{bandwidth, latency, link};
use super::prelude::*;
use lockstep_config::units::{Bytes, Seconds};
use lockstep_planner::collective::ring;
use lockstep_planner::overlap::{Bucket, exposed, finish};

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
    ],
    chart: ChartSpec::lines("bucket_layers", &["step_seconds"]).log(true, false),
};

/// Last layer of every bucket, and the buckets with ready and transfer times.
fn buckets(at: &Settings) -> (Vec<usize>, Vec<Bucket>) {
    let (num_layers, per_bucket) = (at.count("layers"), at.count("bucket_layers"));
    let form = ring::all_reduce(at.count("workers"));
    let layer_bytes = at.number("gradient") / num_layers as f64;
    let ends: Vec<usize> = (0..num_layers.div_ceil(per_bucket))
        .map(|b| ((b + 1) * per_bucket).min(num_layers))
        .collect();
    let bucket = |(index, &end): (usize, &usize)| {
        let bytes = (layer_bytes * (end - index * per_bucket) as f64).round() as u64;
        let transfer = form.seconds(Bytes(bytes), link(at));
        Bucket { ready: Seconds(at.number("layer") * end as f64), transfer }
    };
    let buckets = ends.iter().enumerate().map(bucket).collect();
    (ends, buckets)
}

/// Compute and network of one worker.
fn timeline(at: &Settings, _: &mut Random) -> Result<Timeline, LabError> {
    let (ends, buckets) = buckets(at);
    let (layer, mut first_layer) = (at.number("layer"), 0);
    let (mut compute, mut network) = (Vec::new(), Vec::new());
    let mut free = 0.0_f64;
    for (index, (&end, bucket)) in ends.iter().zip(&buckets).enumerate() {
        let from = layer * first_layer as f64;
        compute.push(Span::new(Activity::Backward, from, bucket.ready.0).numbered(index));
        let start = free.max(bucket.ready.0);
        free = start + bucket.transfer.0;
        network.push(Span::new(Activity::AllReduce, start, free).numbered(index));
        first_layer = end;
    }
    let backward = Seconds(layer * at.number("layers"));
    let title = format!(
        "{} buckets: {} of exposed communication after {} of backward",
        buckets.len(),
        Unit::Seconds.show(exposed(&buckets, backward).0),
        Unit::Seconds.show(backward.0)
    );
    let track = |name: &str, spans| Track { name: name.to_owned(), spans };
    let tracks = vec![track("compute", compute), track("network", network)];
    Ok(Timeline { title, tracks, named: Vec::new() })
}

fn run(at: &Settings, _: &mut Random) -> Result<Vec<Row>, LabError> {
    let (num_layers, per_bucket) = (at.count("layers"), at.count("bucket_layers"));
    let form = ring::all_reduce(at.count("workers"));
    let layer_bytes = at.number("gradient") / num_layers as f64;
    let layer = at.number("layer");
    let (_, buckets) = buckets(at);
    let backward = Seconds(layer * num_layers as f64);
    let transfers: f64 = buckets.iter().map(|bucket| bucket.transfer.0).sum();
    let latencies = link(at).latency.0 * form.rounds as f64 * buckets.len() as f64;
    Ok(vec![row![
        finish(&buckets).max(backward).0,
        exposed(&buckets, backward).0,
        buckets.len(),
        layer_bytes * per_bucket.min(num_layers) as f64,
        transfers,
        latencies / transfers,
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
