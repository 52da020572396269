//! What more workers bring: Amdahl, communication that stays, and the number that is worth it.

use super::prelude::*;
use lockstep_config::units::Seconds;
use lockstep_planner::scaling::{speed_up, step_seconds, strong_efficiency};

experiment!(Scaling);

const CARD: Card = Card {
    name: "scaling",
    title: "Amdahl and saturation: speed-up of n workers when something stays",
    question: "How many workers are worth it for a fixed amount of work?",
    formula: "T(n) = T/n + C; S = n(1+r)/(1+rn) for C = rT, which ends at 1 + 1/r; Amdahl: \
              1/(s + (1-s)/n)",
    look: "speed_up against limit; efficiency below one half; doubling, the gain of twice as many",
    surprise: "speed-up ends at 1 + T/C however many workers there are, not at the square root of \
               n; doubling the workers rarely halves the time; more than n times as fast is a \
               mistake in the measurement",
    params: &[
        Param::count("workers", 8.0, (1.0, 1e6), "workers"),
        Param::number("alone", Unit::Seconds, 0.8, (1e-9, 1e9), "a step on one worker (T)"),
        Param::number("communication", Unit::Seconds, 8e-3, (0.0, 1e9), "that stays (C)"),
        Param::number("serial", Unit::Share, 0.01, (0.0, 1.0), "of the work that stays (Amdahl)"),
    ],
    sweep: ("workers", &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0]),
    columns: &[
        Column::new("step_seconds", Unit::Seconds, "time of a step"),
        Column::new("speed_up", Unit::Times, "over one worker that need not communicate"),
        Column::new("constant_speed_up", Unit::Times, "over one that communicates as long"),
        Column::new("amdahl", Unit::Times, "by Amdahl's law"),
        Column::new("limit", Unit::Times, "with any number of workers"),
        Column::new("efficiency", Unit::Share, "of linear speed-up"),
        Column::new("doubling", Unit::Times, "twice the workers over these"),
    ],
    picture: Picture::lines("workers", &["speed_up", "amdahl", "limit"])
        .log(true, true)
        .named("speed-up over one worker"),
};

fn run(at: &Settings, _: &mut Random) -> Result<Vec<Row>, LabError> {
    let (n, alone) = (at.count("workers"), at.number("alone"));
    let communication = at.number("communication");
    // One worker has nobody to talk to.
    let step = |n: usize| {
        let stays = if n > 1 { communication } else { 0.0 };
        step_seconds(Seconds(alone), n, Seconds(stays))
    };
    let (ratio, serial) = (communication / alone, at.number("serial"));
    Ok(vec![row![
        step(n).0,
        alone / step(n).0,
        speed_up(n, ratio),
        1.0 / (serial + (1.0 - serial) / n as f64),
        1.0 / ratio,
        strong_efficiency(Seconds(alone), n, step(n)),
        step(n) / step(2 * n),
    ]])
}

fn findings(table: &Table) -> Vec<String> {
    let end = last(table);
    let efficiency = table.numbers("efficiency");
    let mut found = vec![format!(
        "At {} the speed-up is {}, and no number brings more than {}",
        place(table, end),
        cell(table, "speed_up", end),
        cell(table, "limit", end)
    )];
    if let Some(row) = (0..efficiency.len()).find(|row| efficiency[*row] < 0.5) {
        found.push(format!("less than half of the work is useful from {} on", place(table, row)));
    }
    found
}
