//! ZeRO (Rajbhandari et al. 2020): model states per worker by stage, and workers to fit a model.

use super::prelude::*;
use lockstep_config::units::Bytes;
use lockstep_planner::memory::zero::PerParameter;

experiment!(ZeroMemory);

const DESCRIPTION: Description = Description {
    name: "zero-memory",
    title: "ZeRO: bytes of weights, gradients and optimizer states per worker, by stage",
    question: "How many workers does a model need for its states to fit?",
    formula: "mixed Adam 16 P bytes: stage 1 divides 12 of them by n, stage 2 14, stage 3 all 16",
    look: "state_bytes by stage as workers grow; workers_to_fit",
    surprise: "stage 1 alone reduces 16 P bytes to a limit of 4 P; plain data parallelism saves \
               nothing with any number of workers; ZeRO does not shard activations",
    params: &[
        Param::count("workers", 8.0, (1.0, 1e6), "workers (n)"),
        Param::number("parameters", Unit::Number, 7.5e9, (1.0, 1e14), "parameters (P)"),
        Param::choice(
            "optimizer",
            &["mixed-adam", "adam"],
            "16-bit weights with a 32-bit copy, or 32-bit",
        ),
        Param::number(
            "memory",
            Unit::Bytes,
            80e9,
            (1.0, 1e15),
            "memory per worker for model states",
        ),
    ],
    sweep: ("workers", &[1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0, 1024.0]),
    columns: &[
        Column::new("stage", Unit::Text, "ZeRO stage"),
        Column::new("state_bytes", Unit::Bytes, "model states per worker"),
        Column::new("fits", Unit::Text, "whether the states fit in memory"),
        Column::new("workers_to_fit", Unit::Count, "fewest workers that fit"),
        Column::new("vectors_sent", Unit::Times, "bytes sent per step/bytes of all weights"),
    ],
    chart: ChartSpec::lines("workers", &["state_bytes"]).by("stage").log(true, true),
};

fn run(at: &Settings, _: &mut Random) -> Result<Vec<Row>, LabError> {
    let (n, parameters) = (at.count("workers") as u64, at.number("parameters") as u64);
    let memory = at.bytes("memory");
    let per = match at.choice("optimizer") {
        "adam" => PerParameter::ADAM,
        _ => PerParameter::MIXED_ADAM,
    };
    let rows = (0..4_u8).map(|stage| {
        let bytes: Bytes = per.bytes(parameters, stage, n);
        let enough = per.workers_to_fit(parameters, stage, memory);
        // Reduce-scatter and all-gather; stage 3 gathers weights again for the backward pass.
        let num_collectives = if stage == 3 { 3.0 } else { 2.0 };
        row![
            format!("stage {stage}"),
            bytes.0 as f64,
            if bytes <= memory { "yes" } else { "no" },
            enough.map_or(f64::INFINITY, |workers| workers as f64),
            num_collectives * (n as f64 - 1.0) / n as f64,
        ]
    });
    Ok(rows.collect())
}

fn findings(table: &Table) -> Vec<String> {
    let [none, one, two, three] =
        ["stage 0", "stage 1", "stage 2", "stage 3"].map(|name| last_with(table, "stage", name));
    let fit = |row: usize| cell(table, "workers_to_fit", row);
    vec![
        format!(
            "{}a worker has {} of model states without ZeRO and {} with stage 3",
            at(table, none),
            cell(table, "state_bytes", none),
            cell(table, "state_bytes", three)
        ),
        format!(
            "workers to fit by stage: {}, {}, {}, {}",
            fit(none),
            fit(one),
            fit(two),
            fit(three)
        ),
    ]
}
