//! ZeRO: what each stage leaves on a worker, and how many workers it takes to fit.

use super::prelude::*;
use lockstep_config::units::Bytes;
use lockstep_planner::memory::zero::PerParameter;

experiment!(ZeroMemory);

const CARD: Card = Card {
    name: "zero-memory",
    title: "ZeRO: bytes of weights, gradients and optimizer on a worker, by stage and workers",
    question: "How many workers does it take until the states of a model fit?",
    formula: "mixed Adam 16 P bytes: stage 1 divides 12 of them by n, stage 2 14, stage 3 all 16",
    look: "state_bytes by stage as workers grow; workers_to_fit",
    surprise: "stage 1 alone takes four of sixteen bytes to the limit of 4 P; plain data \
               parallelism saves nothing however many workers there are; activations are no part \
               of any of it",
    params: &[
        Param::count("workers", 8.0, (1.0, 1e6), "workers (n)"),
        Param::number("parameters", Unit::Number, 7.5e9, (1.0, 1e14), "parameters (P)"),
        Param::choice("optimizer", &["mixed-adam", "adam"], "16-bit weights with a copy, or 32"),
        Param::number("room", Unit::Bytes, 80e9, (1.0, 1e15), "memory for states of a worker"),
    ],
    sweep: ("workers", &[1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0, 1024.0]),
    columns: &[
        Column::new("stage", Unit::Word, "stage"),
        Column::new("state_bytes", Unit::Bytes, "states of a worker"),
        Column::new("fits", Unit::Word, "whether that is within the room"),
        Column::new("workers_to_fit", Unit::Count, "fewest workers that fit"),
        Column::new("vectors_sent", Unit::Times, "weights sent a step, of all weights"),
    ],
    picture: Picture::lines("workers", &["state_bytes"]).by("stage").log(true, true),
};

fn run(at: &Settings, _: &mut Random) -> Result<Vec<Row>, LabError> {
    let (n, parameters) = (at.count("workers") as u64, at.number("parameters") as u64);
    let room = at.bytes("room");
    let per = match at.word("optimizer") {
        "adam" => PerParameter::ADAM,
        _ => PerParameter::MIXED_ADAM,
    };
    let rows = (0..4_u8).map(|stage| {
        let bytes: Bytes = per.bytes(parameters, stage, n);
        let enough = per.workers_to_fit(parameters, stage, room);
        // Reduce-scatter and all-gather; stage 3 gathers weights once more for backward.
        let passes = if stage == 3 { 3.0 } else { 2.0 };
        row![
            format!("stage {stage}"),
            bytes.0 as f64,
            if bytes <= room { "yes" } else { "no" },
            enough.map_or(f64::INFINITY, |workers| workers as f64),
            passes * (n as f64 - 1.0) / n as f64,
        ]
    });
    Ok(rows.collect())
}

fn findings(table: &Table) -> Vec<String> {
    let end = last(table);
    let needed = |stage: usize| cell(table, "workers_to_fit", end - 3 + stage);
    vec![
        format!(
            "At {} a worker holds {} without ZeRO and {} with stage 3",
            place(table, end),
            cell(table, "state_bytes", end - 3),
            cell(table, "state_bytes", end)
        ),
        format!(
            "workers to fit by stage: {}, {}, {}, {}",
            needed(0),
            needed(1),
            needed(2),
            needed(3)
        ),
    ]
}
