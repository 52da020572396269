//! Tensor parallelism: what its all-reduces move and take, by degree.

use super::common::{bandwidth, latency, link};
use super::prelude::*;
use lockstep_config::units::{Bytes, Flops, FlopsPerSecond};
use lockstep_planner::collective::ring;

experiment!(TensorParallel);

const CARD: Card = Card {
    name: "tensor-parallel",
    title: "Tensor parallelism: bytes and time of a layer's all-reduces, by degree",
    question: "How far can a layer be split before communication takes over?",
    formula: "four all-reduces of b s h numbers a layer (two forward, two backward); wire \
              2(k-1)/k of each; computation 72 b s h^2 (1 + s/6h)/k FLOP",
    look: "share over degree, once with 600GB/s inside a node and once with 25GB/s between nodes; \
           width_per_device",
    surprise: "bytes do not shrink with the degree while computation does; bytes are per token, so \
               tables without batch and sequence are a thousand times too small; weights' \
               gradients need no all-reduce here",
    params: &[
        Param::count("degree", 8.0, (1.0, 1024.0), "devices that hold slices (k)"),
        Param::count("width", 12_288.0, (64.0, 1e6), "width of the model (h)"),
        Param::count("tokens", 2048.0, (1.0, 1e7), "tokens of a microbatch (b s)"),
        Param::count("sequence", 2048.0, (1.0, 1e7), "tokens of a sequence (s)"),
        Param::count("layers", 96.0, (1.0, 1000.0), "layers"),
        Param::count("element_bytes", 2.0, (1.0, 4.0), "bytes of a number on the wire"),
        Param::number("flops", Unit::Number, 312e12, (1e9, 1e17), "a device's peak FLOP/s"),
        Param::number("mfu", Unit::Share, 0.5, (0.01, 1.0), "of the peak that layers reach"),
        latency(2e-6),
        bandwidth(600e9),
    ],
    sweep: ("degree", &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]),
    columns: &[
        Column::new("layer_bytes", Unit::Bytes, "messages of a layer, forward and backward"),
        Column::new("step_bytes", Unit::Bytes, "messages of all layers"),
        Column::new("wire_bytes", Unit::Bytes, "sent by each device for a layer"),
        Column::new("compute_seconds", Unit::Seconds, "a layer's computation"),
        Column::new("communication_seconds", Unit::Seconds, "a layer's all-reduces"),
        Column::new("share", Unit::Share, "of a layer's time that is communication"),
        Column::new("width_per_device", Unit::Count, "columns of a slice"),
    ],
    picture: Picture::lines("degree", &["share"]).log(true, false),
};

fn run(at: &Settings, _: &mut Random) -> Result<Vec<Row>, LabError> {
    let (degree, width) = (at.count("degree"), at.number("width"));
    let (tokens, sequence) = (at.number("tokens"), at.number("sequence"));
    let message = Bytes((tokens * width * at.number("element_bytes")) as u64);
    let form = ring::all_reduce(degree);
    // Forward 24 and backward 48 FLOP a weight matrix entry, and attention's scores.
    let flops = Flops(72.0 * tokens * width * width * (1.0 + sequence / (6.0 * width)));
    let speed = FlopsPerSecond(at.number("flops") * at.number("mfu") * degree as f64);
    let compute = (flops / speed).0;
    let communication = 4.0 * form.seconds(message, link(at)).0;
    let layer = 4.0 * message.0 as f64;
    Ok(vec![row![
        layer,
        layer * at.number("layers"),
        4.0 * form.bytes(message),
        compute,
        communication,
        communication / (compute + communication),
        width / degree as f64,
    ]])
}

fn findings(table: &Table) -> Vec<String> {
    let shares = table.numbers("share");
    let end = last(table);
    let mut found = vec![format!(
        "At {}, {} of a layer's time is communication",
        place(table, end),
        cell(table, "share", end)
    )];
    if let Some(row) = (0..shares.len()).find(|row| shares[*row] > 0.1) {
        found.push(format!("more than a tenth from {} on", place(table, row)));
    }
    found
}
