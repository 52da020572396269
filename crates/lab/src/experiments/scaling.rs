//! Strong scaling: Amdahl's law (1967) and constant communication time.

use super::prelude::*;
use lockstep_config::units::Seconds;
use lockstep_planner::scaling::{speed_up, step_seconds, strong_efficiency};

experiment!(Scaling);

const DESCRIPTION: Description = Description {
    name: "scaling",
    title: "Strong scaling: speed-up of n workers with communication or a serial part",
    question: "How many workers pay off for a fixed amount of work?",
    formula: "T(n) = T/n + C; S = n(1+r)/(1+rn) for C = rT, with the limit 1 + 1/r; Amdahl: \
              1/(s + (1-s)/n)",
    look: "speed_up against speed_up_limit; efficiency below one half; doubling_gain",
    surprise: "the limit of the speed-up is 1 + T/C for any number of workers, not the square root \
               of n; doubling the workers rarely halves the time; a speed-up above n is a \
               measurement error",
    params: &[
        Param::count("workers", 8.0, (1.0, 1e6), "workers"),
        Param::number(
            "compute",
            Unit::Seconds,
            0.8,
            (1e-9, 1e9),
            "compute time of a step on one worker (T)",
        ),
        Param::number(
            "communication",
            Unit::Seconds,
            8e-3,
            (0.0, 1e9),
            "constant communication time (C)",
        ),
        Param::number("serial", Unit::Share, 0.01, (0.0, 1.0), "serial share of the work (Amdahl)"),
    ],
    sweep: ("workers", &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0]),
    columns: &[
        Column::new("step_seconds", Unit::Seconds, "time of a step"),
        Column::new("speed_up", Unit::Times, "over one worker without communication"),
        Column::new(
            "constant_speed_up",
            Unit::Times,
            "over one worker with the same communication",
        ),
        Column::new("amdahl_speed_up", Unit::Times, "speed-up by Amdahl's law"),
        Column::new("speed_up_limit", Unit::Times, "limit of speed_up for any number of workers"),
        Column::new("efficiency", Unit::Share, "share of linear speed-up"),
        Column::new("doubling_gain", Unit::Times, "speed-up by doubling the workers"),
    ],
    chart: ChartSpec::lines("workers", &["speed_up", "amdahl_speed_up", "speed_up_limit"])
        .log(true, true)
        .named("speed-up over one worker"),
};

fn run(at: &Settings, _: &mut Random) -> Result<Vec<Row>, LabError> {
    let (n, compute) = (at.count("workers"), at.number("compute"));
    let communication = at.number("communication");
    // One worker does not communicate.
    let step = |n: usize| {
        let communication = if n > 1 { communication } else { 0.0 };
        step_seconds(Seconds(compute), n, Seconds(communication))
    };
    let (ratio, serial) = (communication / compute, at.number("serial"));
    Ok(vec![row![
        step(n).0,
        compute / step(n).0,
        speed_up(n, ratio),
        1.0 / (serial + (1.0 - serial) / n as f64),
        1.0 / ratio,
        strong_efficiency(Seconds(compute), n, step(n)),
        step(n) / step(2 * n),
    ]])
}

fn findings(table: &Table) -> Vec<String> {
    let end = last(table);
    let efficiency = table.numbers("efficiency");
    let mut findings = vec![format!(
        "{}the speed-up is {}; its limit is {}",
        at(table, end),
        cell(table, "speed_up", end),
        cell(table, "speed_up_limit", end)
    )];
    if let Some(extent) = extent(table, &each_point(table), |row| efficiency[row] < 0.5) {
        findings.push(format!("efficiency is below one half{extent}"));
    }
    findings
}
