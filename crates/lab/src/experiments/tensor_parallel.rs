//! Tensor parallelism (Megatron-LM, Shoeybi et al. 2019): bytes and time of its all-reduces.

use super::common::{bandwidth, latency, link};
use super::prelude::*;
use lockstep_config::units::{Bytes, Flops, FlopsPerSecond};
use lockstep_planner::collective::ring;

experiment!(TensorParallel);

const DESCRIPTION: Description = Description {
    name: "tensor-parallel",
    title: "Tensor parallelism: bytes and time of all-reduces per layer, by degree",
    question: "Up to which degree does tensor parallelism pay off?",
    formula: "four all-reduces of b s h elements per layer (two forward, two backward); 2(k-1)/k \
              of each sent per GPU; compute 72 b s h^2 (1 + s/6h)/k FLOP",
    look: "communication_share over degree, with 600GB/s inside a node and with 25GB/s between \
           nodes; width_per_device",
    surprise: "bytes do not shrink with the degree while compute does; bytes are per token, so \
               estimates without batch and sequence are a thousand times too small; weight \
               gradients need no tensor-parallel all-reduce",
    params: &[
        Param::count("degree", 8.0, (1.0, 1024.0), "tensor-parallel degree (k)"),
        Param::count("width", 12_288.0, (64.0, 1e6), "hidden size (h)"),
        Param::count("tokens", 2048.0, (1.0, 1e7), "tokens per micro-batch (b s)"),
        Param::count("sequence", 2048.0, (1.0, 1e7), "sequence length (s)"),
        Param::count("layers", 96.0, (1.0, 1000.0), "layers"),
        Param::count("element_bytes", 2.0, (1.0, 4.0), "bytes per element on the wire"),
        Param::number("flops", Unit::Number, 312e12, (1e9, 1e17), "peak FLOP/s of a GPU"),
        Param::number("mfu", Unit::Share, 0.5, (0.01, 1.0), "share of the peak that layers reach"),
        latency(2e-6),
        bandwidth(600e9),
    ],
    sweep: ("degree", &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]),
    columns: &[
        Column::new("layer_bytes", Unit::Bytes, "bytes of the all-reduces per layer"),
        Column::new("step_bytes", Unit::Bytes, "bytes of the all-reduces of all layers"),
        Column::new("wire_bytes", Unit::Bytes, "bytes sent per GPU and layer"),
        Column::new("compute_seconds", Unit::Seconds, "compute time per layer"),
        Column::new("communication_seconds", Unit::Seconds, "communication time per layer"),
        Column::new(
            "communication_share",
            Unit::Share,
            "communication share of the time per layer",
        ),
        Column::new("width_per_device", Unit::Count, "columns per shard"),
    ],
    chart: ChartSpec::lines("degree", &["communication_share"]).log(true, false),
};

fn run(at: &Settings, _: &mut Random) -> Result<Vec<Row>, LabError> {
    let (degree, width) = (at.count("degree"), at.number("width"));
    let (tokens, sequence) = (at.number("tokens"), at.number("sequence"));
    let message = Bytes((tokens * width * at.number("element_bytes")) as u64);
    let form = ring::all_reduce(degree);
    // 24 b s h^2 FLOP forward and 48 backward, plus the attention scores.
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
    let (shares, end) = (table.numbers("communication_share"), last(table));
    let share = cell(table, "communication_share", end);
    let mut findings = vec![format!("{}the communication share is {share}", at(table, end))];
    if let Some(extent) = extent(table, &each_point(table), |row| shares[row] > 0.1) {
        findings.push(format!("it exceeds 10 %{extent}"));
    }
    findings
}
