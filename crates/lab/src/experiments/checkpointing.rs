//! Checkpoint interval under failures: Monte Carlo against Young (1974) and Daly (2006).

use super::prelude::*;
use lockstep_config::interval::young;
use lockstep_tensor::math::scalar::exp;

experiment!(Checkpointing);

const DESCRIPTION: Description = Description {
    name: "checkpointing",
    title: "Checkpoint interval with failures: Monte Carlo against Young and Daly",
    question: "How often should a run write checkpoints when machines fail?",
    formula: "Young I = sqrt(2CM); overhead C/I + (I/2 + R)/M to first order; exact: \
              M e^(R/M)(e^((I+C)/M) - 1)/I - 1",
    look: "the flat minimum around Young's interval; overhead simulated, exact and to first \
           order",
    surprise: "an interval off by a factor of two costs little, by ten a lot; the MTBF of a \
               cluster is that of a node divided by the number of nodes; a cheaper checkpoint \
               means checkpointing MORE often, not less",
    params: &[
        Param::number(
            "interval",
            Unit::Seconds,
            6735.0,
            (1.0, 1e8),
            "compute time between checkpoints (I)",
        ),
        Param::number("write", Unit::Seconds, 300.0, (0.0, 1e6), "time to write a checkpoint (C)"),
        Param::number(
            "mtbf",
            Unit::Seconds,
            75_600.0,
            (10.0, 1e10),
            "mean time between failures (M)",
        ),
        Param::number("restart", Unit::Seconds, 0.0, (0.0, 1e6), "time to restart (R)"),
        Param::count("failures", 4000.0, (10.0, 1e6), "number of simulated failures"),
    ],
    sweep: ("interval", &[900.0, 1800.0, 3600.0, 5400.0, 6735.0, 9000.0, 12_000.0, 24_000.0]),
    columns: &[
        Column::new("overhead", Unit::Share, "lost time/useful time, simulated"),
        Column::new("exact_overhead", Unit::Share, "lost time/useful time, exact"),
        Column::new("first_order_overhead", Unit::Share, "C/I + (I/2 + R)/M"),
        Column::new("write_share", Unit::Share, "checkpoint time/useful time"),
        Column::new("young_seconds", Unit::Seconds, "Young's interval"),
        Column::new("daly_seconds", Unit::Seconds, "Young's interval less the write time"),
        Column::new("best_seconds", Unit::Seconds, "interval with the lowest exact overhead"),
        Column::new(
            "failed_interval_share",
            Unit::Share,
            "probability that a failure interrupts an interval",
        ),
    ],
    chart: ChartSpec::lines("interval", &["overhead", "exact_overhead", "first_order_overhead"])
        .log(true, false)
        .named("lost time/useful time"),
};

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let (interval, write) = (at.number("interval"), at.number("write"));
    let (mtbf, restart) = (at.number("mtbf"), at.number("restart"));
    let (mut useful, mut elapsed, mut written) = (0.0, 0.0, 0.0);
    for _ in 0..at.count("failures") {
        let failure = random.exponential(mtbf);
        // A failure may also interrupt the restart.
        if failure < restart {
            elapsed += failure;
            continue;
        }
        let saved = ((failure - restart) / (interval + write)).floor();
        useful += saved * interval;
        written += saved * write;
        elapsed += failure;
    }
    let young = young(write, mtbf);
    Ok(vec![row![
        elapsed / useful - 1.0,
        exact(interval, write, mtbf, restart),
        write / interval + (interval / 2.0 + restart) / mtbf,
        written / useful,
        young,
        (young - write).max(0.0),
        best(write, mtbf, restart),
        1.0 - exp(-(interval + write) / mtbf),
    ]])
}

/// Lost time/useful time for memoryless failures, which may also hit restarts.
pub(crate) fn exact(interval: f64, write: f64, mtbf: f64, restart: f64) -> f64 {
    mtbf * exp(restart / mtbf) * (exp((interval + write) / mtbf) - 1.0) / interval - 1.0
}

/// Interval with the lowest exact overhead, by ternary search around Young's.
pub(crate) fn best(write: f64, mtbf: f64, restart: f64) -> f64 {
    let (mut low, mut high) = (young(write, mtbf) / 20.0, 3.0 * young(write, mtbf));
    for _ in 0..200 {
        let (a, b) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
        if exact(a, write, mtbf, restart) < exact(b, write, mtbf, restart) {
            high = b;
        } else {
            low = a;
        }
    }
    f64::midpoint(low, high)
}

fn findings(table: &Table) -> Vec<String> {
    let Some(least) = table.best("overhead", 1.0) else { return Vec::new() };
    let end = last(table);
    vec![
        format!(
            "{}the overhead is {}",
            best_is(table, least, "best"),
            cell(table, "overhead", least)
        ),
        format!(
            "{}the interval of Young is {}, of Daly {}, the exact optimum {}",
            at(table, end),
            cell(table, "young_seconds", end),
            cell(table, "daly_seconds", end),
            cell(table, "best_seconds", end)
        ),
    ]
}
