//! Buckets and overlap: small buckets leave early and pay many latencies, large ones leave late.

use super::common::{bandwidth, latency, link};
use super::prelude::*;
use lockstep_config::units::{Bytes, Seconds};
use lockstep_planner::collective::ring;
use lockstep_planner::overlap::{Bucket, exposed, finish};

experiment!(Overlap, timeline);

const CARD: Card = Card {
    name: "overlap",
    title: "Buckets and overlap: the U curve of bucket size",
    question: "How many layers should a bucket of gradients hold?",
    formula: "bucket j starts at max(full, the one before arrived); T = end of the last; \
              ring of n: 2(n-1)(a + d/(nB)) a bucket",
    look: "step_seconds over bucket_layers: latency on the left, a late last bucket on the right; \
           exposed_seconds",
    surprise: "a bucket pays 2(n-1) latencies, not one: with 256 ranks and 10 us a bucket costs \
               5 ms before its first byte; no bucket size beats the computation itself",
    params: &[
        Param::count("bucket_layers", 4.0, (1.0, 1000.0), "layers of a bucket"),
        Param::count("layers", 96.0, (1.0, 1000.0), "layers"),
        Param::number("layer", Unit::Seconds, 5e-3, (0.0, 1e3), "backward of a layer"),
        Param::number("gradient", Unit::Bytes, 700e6, (1.0, 1e13), "gradients of all layers"),
        Param::count("workers", 256.0, (2.0, 1e5), "workers of the ring"),
        latency(10e-6),
        bandwidth(25e9),
    ],
    sweep: ("bucket_layers", &[1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 24.0, 48.0, 96.0]),
    columns: &[
        Column::new("step_seconds", Unit::Seconds, "backward and what sticks out"),
        Column::new("exposed_seconds", Unit::Seconds, "what sticks out"),
        Column::new("buckets", Unit::Count, "buckets"),
        Column::new("bucket_bytes", Unit::Bytes, "gradients of a bucket"),
        Column::new("transfer_seconds", Unit::Seconds, "all transfers together"),
        Column::new("latency_share", Unit::Share, "latencies in a transfer"),
    ],
    picture: Picture::lines("bucket_layers", &["step_seconds"]).log(true, false),
};

/// The last layer of every bucket, and when it is full and how long its ring takes.
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

/// What a worker computes, and what its network does meanwhile.
fn timeline(at: &Settings, _: &mut Random) -> Result<Timeline, LabError> {
    let (ends, buckets) = buckets(at);
    let (layer, mut begun) = (at.number("layer"), 0);
    let (mut computing, mut sending) = (Vec::new(), Vec::new());
    let mut free = 0.0_f64;
    for (index, (&end, bucket)) in ends.iter().zip(&buckets).enumerate() {
        let from = layer * begun as f64;
        computing.push(Span::new(Doing::Backward, from, bucket.ready.0).numbered(index));
        let start = free.max(bucket.ready.0);
        free = start + bucket.transfer.0;
        sending.push(Span::new(Doing::AllReduce, start, free).numbered(index));
        begun = end;
    }
    let backward = Seconds(layer * at.number("layers"));
    let title = format!(
        "{} buckets: {} of communication sticks out behind {} of backward",
        buckets.len(),
        Unit::Seconds.show(exposed(&buckets, backward).0),
        Unit::Seconds.show(backward.0)
    );
    let track = |name: &str, spans| Track { name: name.to_owned(), spans };
    Ok(Timeline { title, tracks: vec![track("computes", computing), track("network", sending)] })
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
    let end = last(table);
    vec![
        format!(
            "{} is best: {} a step, {} of it exposed",
            place(table, best),
            cell(table, "step_seconds", best),
            cell(table, "exposed_seconds", best)
        ),
        format!(
            "{} takes {}, {} takes {}",
            place(table, 0),
            cell(table, "step_seconds", 0),
            place(table, end),
            cell(table, "step_seconds", end)
        ),
    ]
}
