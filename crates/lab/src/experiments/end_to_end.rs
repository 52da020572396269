//! A whole training run: compute, communication, checkpoints, failures, and the best improvement.

use super::checkpointing::exact;
use super::common::{bandwidth, latency, link};
use super::prelude::*;
use lockstep_config::interval::young;
use lockstep_config::units::{Bytes, Flops, FlopsPerSecond};
use lockstep_planner::collective::ring;

experiment!(EndToEnd);

const DESCRIPTION: Description = Description {
    name: "end-to-end",
    title: "A whole training run: duration, time breakdown and the most effective improvement",
    question: "How long does a run take, and which improvement helps most?",
    formula: "step = 6 P tokens/(n peak MFU) + exposed all-reduce + other; run = steps x step x \
              (1 + overhead of checkpoints and failures)",
    look: "days over devices; the shares; compute_gain, network_gain and reliability_gain: time \
           saved when one of them is twice as good",
    surprise: "6 P FLOP are per TOKEN: an estimate without tokens is a million times too short; \
               peak FLOP/s are never reached; with many GPUs network bandwidth matters most",
    params: &[
        Param::count("devices", 256.0, (1.0, 1e6), "GPUs"),
        Param::number("parameters", Unit::Number, 70e9, (1e3, 1e14), "parameters (P)"),
        Param::number("tokens", Unit::Number, 1.4e12, (1e3, 1e16), "tokens of the run"),
        Param::number("batch_tokens", Unit::Number, 4e6, (1.0, 1e10), "tokens per step"),
        Param::number("flops", Unit::Number, 312e12, (1e9, 1e17), "peak FLOP/s of a GPU"),
        Param::number("mfu", Unit::Share, 0.4, (0.01, 1.0), "model FLOP utilization"),
        Param::number(
            "overlap",
            Unit::Share,
            0.5,
            (0.0, 1.0),
            "share of communication that overlaps with compute",
        ),
        Param::number("other", Unit::Seconds, 0.0, (0.0, 1e4), "other time of a step"),
        Param::number(
            "device_mtbf",
            Unit::Seconds,
            1.6e8,
            (1e3, 1e12),
            "mean time between failures of a GPU",
        ),
        Param::number("write", Unit::Seconds, 120.0, (0.0, 1e6), "time to write a checkpoint"),
        Param::number(
            "restart",
            Unit::Seconds,
            600.0,
            (0.0, 1e6),
            "time to restart after a failure",
        ),
        Param::number(
            "device_hour",
            Unit::Number,
            2.0,
            (0.0, 1e4),
            "price of a GPU hour in dollars",
        ),
        latency(10e-6),
        bandwidth(25e9),
    ],
    sweep: ("devices", &[64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0]),
    columns: &[
        Column::new("days", Unit::Number, "duration of the run in days"),
        Column::new("step_seconds", Unit::Seconds, "time of a step"),
        Column::new("compute_share", Unit::Share, "compute share of the run"),
        Column::new("communication_share", Unit::Share, "exposed communication share of the run"),
        Column::new(
            "reliability_share",
            Unit::Share,
            "share of the run for checkpoints and lost work",
        ),
        Column::new("compute_gain", Unit::Share, "time saved with twice the FLOP/s"),
        Column::new("network_gain", Unit::Share, "time saved with twice the bandwidth"),
        Column::new("reliability_gain", Unit::Share, "time saved with half the failures"),
        Column::new("dollars", Unit::Number, "cost of the run"),
        Column::new("mtbf_seconds", Unit::Seconds, "mean time between failures of the cluster"),
    ],
    chart: ChartSpec::lines(
        "devices",
        &["compute_share", "communication_share", "reliability_share"],
    )
    .log(true, false)
    .named("share of the run"),
};

/// The parts of a run, in seconds.
struct Parts {
    compute: f64,
    communication: f64,
    other: f64,
    reliability: f64,
}

impl Parts {
    fn all(&self) -> f64 {
        self.compute + self.communication + self.other + self.reliability
    }
}

/// Time breakdown of a run with compute, bandwidth and MTBF scaled by factors.
fn parts(at: &Settings, compute_factor: f64, bandwidth_factor: f64, mtbf_factor: f64) -> Parts {
    let (n, parameters) = (at.count("devices"), at.number("parameters"));
    let steps = (at.number("tokens") / at.number("batch_tokens")).ceil();
    let flops = Flops(6.0 * parameters * at.number("batch_tokens"));
    let speed = FlopsPerSecond(at.number("flops") * at.number("mfu") * compute_factor * n as f64);
    let compute = (flops / speed).0;
    let mut link = link(at);
    link.bandwidth.0 *= bandwidth_factor;
    // Gradients have two bytes per parameter; one device needs no all-reduce.
    let sum = ring::all_reduce(n).seconds(Bytes((2.0 * parameters) as u64), link).0;
    let communication = sum * (1.0 - at.number("overlap"));
    let other = at.number("other");
    let mtbf = at.number("device_mtbf") * mtbf_factor / n as f64;
    let (write, restart) = (at.number("write"), at.number("restart"));
    let overhead = exact(young(write, mtbf).max(1.0), write, mtbf, restart);
    let step = compute + communication + other;
    Parts {
        compute: steps * compute,
        communication: steps * communication,
        other: steps * other,
        reliability: steps * step * overhead,
    }
}

fn run(at: &Settings, _: &mut Random) -> Result<Vec<Row>, LabError> {
    let now = parts(at, 1.0, 1.0, 1.0);
    let all = now.all();
    let steps = (at.number("tokens") / at.number("batch_tokens")).ceil();
    let gain = |improved: Parts| 1.0 - improved.all() / all;
    Ok(vec![row![
        all / 86_400.0,
        (all - now.reliability) / steps,
        now.compute / all,
        now.communication / all,
        now.reliability / all,
        gain(parts(at, 2.0, 1.0, 1.0)),
        gain(parts(at, 1.0, 2.0, 1.0)),
        gain(parts(at, 1.0, 1.0, 2.0)),
        all / 3600.0 * at.number("devices") * at.number("device_hour"),
        at.number("device_mtbf") / at.number("devices"),
    ]])
}

fn findings(table: &Table) -> Vec<String> {
    let end = last(table);
    let gains = ["compute_gain", "network_gain", "reliability_gain"];
    let best =
        gains.into_iter().max_by(|a, b| table.numbers(a)[end].total_cmp(&table.numbers(b)[end]));
    let best = best.unwrap_or("compute_gain");
    vec![
        format!(
            "{}the run takes {} days, {} of it exposed communication",
            at(table, end),
            cell(table, "days", end),
            cell(table, "communication_share", end)
        ),
        format!(
            "{} of it is compute; the best improvement is {}: {} less time",
            cell(table, "compute_share", end),
            best.trim_end_matches("_gain"),
            cell(table, best, end)
        ),
    ]
}
