//! Checkpoints against failures: too often costs writing, too seldom costs lost work.

use super::prelude::*;
use lockstep_config::interval::young;
use lockstep_tensor::math::scalar::exp;

experiment!(Checkpointing);

const CARD: Card = Card {
    name: "checkpointing",
    title: "Checkpoint interval with failures: Monte Carlo against Young and Daly",
    question: "How often should a run save, when machines fail?",
    formula: "Young I = sqrt(2CM); overhead C/I + (I/2 + R)/M to first order; exactly \
              M e^(R/M)(e^((I+C)/M) - 1)/I - 1",
    look: "the flat bottom around Young's interval; overhead by Monte Carlo, exact and to first \
           order; failures",
    surprise: "being off by a factor of two costs little, by ten a lot; the cluster's MTBF is the \
               node's divided by nodes; a cheaper checkpoint means saving MORE often, not less",
    params: &[
        Param::number("interval", Unit::Seconds, 6735.0, (1.0, 1e8), "work between checkpoints"),
        Param::number("write", Unit::Seconds, 300.0, (0.0, 1e6), "time of a checkpoint (C)"),
        Param::number("mtbf", Unit::Seconds, 75_600.0, (10.0, 1e10), "between failures (M)"),
        Param::number("restart", Unit::Seconds, 0.0, (0.0, 1e6), "until work goes on (R)"),
        Param::count("failures", 4000.0, (10.0, 1e6), "failures that are simulated"),
    ],
    sweep: ("interval", &[900.0, 1800.0, 3600.0, 5400.0, 6735.0, 9000.0, 12_000.0, 24_000.0]),
    columns: &[
        Column::new("overhead", Unit::Share, "time lost over useful time, simulated"),
        Column::new("exact_overhead", Unit::Share, "the same, exactly"),
        Column::new("first_order", Unit::Share, "C/I + (I/2 + R)/M"),
        Column::new("writing", Unit::Share, "time that checkpoints take over useful time"),
        Column::new("young_seconds", Unit::Seconds, "Young's interval"),
        Column::new("daly_seconds", Unit::Seconds, "Young's less a checkpoint"),
        Column::new("best_seconds", Unit::Seconds, "the interval with the least exact overhead"),
        Column::new("cut", Unit::Share, "intervals that a failure ends before they are saved"),
    ],
    picture: Picture::lines("interval", &["overhead", "exact_overhead", "first_order"])
        .log(true, false)
        .named("time lost, of useful time"),
};

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let (interval, write) = (at.number("interval"), at.number("write"));
    let (mtbf, restart) = (at.number("mtbf"), at.number("restart"));
    let (mut useful, mut elapsed, mut written) = (0.0, 0.0, 0.0);
    for _ in 0..at.count("failures") {
        let failure = random.exponential(mtbf);
        // Restarting may fail too; a failure during it begins it again.
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

/// Time lost over useful time, where failures are as likely at any time, restarts included.
pub(crate) fn exact(interval: f64, write: f64, mtbf: f64, restart: f64) -> f64 {
    mtbf * exp(restart / mtbf) * (exp((interval + write) / mtbf) - 1.0) / interval - 1.0
}

/// The best interval, by thirds around Young's.
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
            "Saving every {} loses least: {} of useful time",
            cell(table, table.columns[0].name, least),
            cell(table, "overhead", least)
        ),
        format!(
            "Young says {}, Daly {}, exactly {}; {} loses {}",
            cell(table, "young_seconds", end),
            cell(table, "daly_seconds", end),
            cell(table, "best_seconds", end),
            place(table, 0),
            cell(table, "overhead", 0)
        ),
    ]
}
