//! Activation memory of a transformer with and without recomputation (Korthikanti et al. 2022; Chen
//! et al. 2016).

use super::prelude::*;
use lockstep_config::Recompute;
use lockstep_planner::memory::activations::{Layer, best_segments, segmented_bytes};

experiment!(ActivationMemory);

const DESCRIPTION: Description = Description {
    name: "activation-memory",
    title: "Activation memory: no, selective, segmented or full recomputation",
    question: "How much memory do activations take, and how much compute does recomputation add?",
    formula: "16-bit bytes per layer: sbh(34 + 5as/h) without recomputation, 34 sbh selective, \
              2 sbh (its input) full; c segments of l/c layers: c inputs and one segment, minimal \
              at c = sqrt(l A/Ain)",
    look: "total_bytes over sequence: attention scores grow quadratically; extra_compute",
    surprise: "attention scores are 70 % of the activations of a GPT-3 layer and 3 % of its \
               compute, so selective recomputation is nearly free; at long sequences it is not",
    params: &[
        Param::count("sequence", 2048.0, (1.0, 1e7), "sequence length (s)"),
        Param::count("sequences", 1.0, (1.0, 1e6), "micro-batch size in sequences (b)"),
        Param::count("width", 12_288.0, (1.0, 1e6), "hidden size (h)"),
        Param::count("heads", 96.0, (1.0, 1e4), "attention heads (a)"),
        Param::count("layers", 96.0, (1.0, 1e4), "layers (l)"),
        Param::count(
            "degree",
            1.0,
            (1.0, 1024.0),
            "tensor-parallel degree with sequence parallelism (t)",
        ),
    ],
    sweep: ("sequence", &[512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0, 32_768.0]),
    columns: &[
        Column::new("policy", Unit::Text, "recomputation policy"),
        Column::new("layer_bytes", Unit::Bytes, "saved activations per layer"),
        Column::new("total_bytes", Unit::Bytes, "peak of all layers"),
        Column::new("saved", Unit::Share, "memory saved relative to no recomputation"),
        Column::new("extra_compute", Unit::Share, "recomputed operations relative to a step"),
    ],
    chart: ChartSpec::lines("sequence", &["total_bytes"]).by("policy").log(true, true),
};

fn run(at: &Settings, _: &mut Random) -> Result<Vec<Row>, LabError> {
    let number = |key: &str| at.count(key) as u64;
    let layer = Layer {
        tokens: number("sequence"),
        sequences: number("sequences"),
        width: number("width"),
        heads: number("heads"),
        tensor_degree: number("degree"),
    };
    let layers = number("layers");
    let all = layer.bytes(Recompute::None, true);
    let selective = layer.bytes(Recompute::Selective, true);
    let input = layer.bytes(Recompute::Full, false) / at.number("degree");
    let segments = best_segments(layers, input, all).clamp(1.0, layers as f64).round();
    // Forward FLOP of a layer: 24 bsh^2 in weights, 4 bs^2h in scores; backward is twice that.
    let (s, h) = (at.number("sequence"), at.number("width"));
    let scores = 4.0 * s / (24.0 * h + 4.0 * s) / 3.0;
    let total = layers as f64 * all;
    let rows = [
        ("no recompute", all, total, 0.0),
        ("selective", selective, layers as f64 * selective, scores),
        ("segments", input, segmented_bytes(layers, segments, input, all), 1.0 / 3.0),
        // The layer in its backward pass has all its activations.
        ("full", input, layers as f64 * input + all, 1.0 / 3.0),
    ];
    let row = |(name, each, sum, extra): (&str, f64, f64, f64)| {
        row![name, each, sum, 1.0 - sum / total, extra]
    };
    Ok(rows.into_iter().map(row).collect())
}

fn findings(table: &Table) -> Vec<String> {
    let [none, selective, full] =
        ["no recompute", "selective", "full"].map(|name| last_with(table, "policy", name));
    vec![
        format!(
            "{}activations take {} without recomputation, {} selective, {} full",
            at(table, none),
            cell(table, "total_bytes", none),
            cell(table, "total_bytes", selective),
            cell(table, "total_bytes", full)
        ),
        format!(
            "selective recomputation adds {} compute to a step, full recomputation {}",
            cell(table, "extra_compute", selective),
            cell(table, "extra_compute", full)
        ),
    ]
}
