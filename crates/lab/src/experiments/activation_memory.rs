//! Activations: what a transformer keeps between forward and backward, and what recomputing saves.

use super::prelude::*;
use lockstep_planner::memory::activations::{
    Layer, SavedActivations, best_segments, segmented_bytes,
};

experiment!(ActivationMemory);

const CARD: Card = Card {
    name: "activation-memory",
    title: "Activation memory: keep all, all but scores, inputs only, or segments",
    question: "How much memory do activations take, and what does recomputing some of them cost?",
    formula: "a layer keeps sbh(34 + 5as/h) bytes in 16 bits; without scores 34 sbh; its input \
              2 sbh; segments of l/c layers: c inputs and one segment, least at c = sqrt(l A/Ain)",
    look: "total_bytes over sequence: scores grow with its square; extra_compute beside it",
    surprise: "scores are 70 % of what a layer of GPT-3 keeps and 3 % of what it computes, so \
               recomputing only them is nearly free; at long sequences it no longer is",
    params: &[
        Param::count("sequence", 2048.0, (1.0, 1e7), "tokens of a sequence (s)"),
        Param::count("sequences", 1.0, (1.0, 1e6), "sequences of a microbatch (b)"),
        Param::count("width", 12_288.0, (1.0, 1e6), "width of the model (h)"),
        Param::count("heads", 96.0, (1.0, 1e4), "heads of attention (a)"),
        Param::count("layers", 96.0, (1.0, 1e4), "layers (l)"),
        Param::count("degree", 1.0, (1.0, 1024.0), "devices that hold slices, rows divided (t)"),
    ],
    sweep: ("sequence", &[512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0, 32_768.0]),
    columns: &[
        Column::new("kept", Unit::Word, "what is kept"),
        Column::new("layer_bytes", Unit::Bytes, "kept of a layer"),
        Column::new("total_bytes", Unit::Bytes, "kept of all layers, at the most"),
        Column::new("saved", Unit::Share, "of what keeping all takes"),
        Column::new("extra_compute", Unit::Share, "operations that are done again, of a step's"),
    ],
    picture: Picture::lines("sequence", &["total_bytes"]).by("kept").log(true, true),
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
    let all = layer.bytes(SavedActivations::All { sequence_parallel: true });
    let scoreless = layer.bytes(SavedActivations::Selective { sequence_parallel: true });
    let input = layer.bytes(SavedActivations::Input) / at.number("degree");
    let segments = best_segments(layers, input, all).clamp(1.0, layers as f64).round();
    // Forward of a layer: 24 bsh^2 in products with weights, 4 bs^2h in scores; backward is twice.
    let (s, h) = (at.number("sequence"), at.number("width"));
    let scores = 4.0 * s / (24.0 * h + 4.0 * s) / 3.0;
    let total = layers as f64 * all;
    let rows = [
        ("all", all, total, 0.0),
        ("all but scores", scoreless, layers as f64 * scoreless, scores),
        ("segments", input, segmented_bytes(layers, segments, input, all), 1.0 / 3.0),
        // One layer at a time is whole while its backward runs.
        ("inputs", input, layers as f64 * input + all, 1.0 / 3.0),
    ];
    let row = |(name, each, sum, extra): (&str, f64, f64, f64)| {
        row![name, each, sum, 1.0 - sum / total, extra]
    };
    Ok(rows.into_iter().map(row).collect())
}

fn findings(table: &Table) -> Vec<String> {
    let (kept, end) = (table.words("kept"), last(table));
    let of = |name: &str| (0..=end).rev().find(|row| kept[*row] == name).unwrap_or(end);
    vec![
        format!(
            "At {} all activations take {}, without scores {}, inputs alone {}",
            place(table, end),
            cell(table, "total_bytes", of("all")),
            cell(table, "total_bytes", of("all but scores")),
            cell(table, "total_bytes", of("inputs"))
        ),
        format!(
            "computing scores again adds {} to a step, everything {}",
            cell(table, "extra_compute", of("all but scores")),
            cell(table, "extra_compute", of("inputs"))
        ),
    ]
}
