//! Loss scaling: what 16 bits lose below and above, by the scale.

use super::prelude::*;
use crate::math::normal_below;
use lockstep_tensor::math::scalar::powf;

experiment!(LossScaling);

const CARD: Card = Card {
    name: "loss-scaling",
    title: "Loss scaling: gradients that overflow or vanish in 16 bits, by scale",
    question: "Which scale keeps gradients inside the range of fp16?",
    formula: "overflow P(|g|S > 65504), zero P(|g|S < 2^-25), subnormal P(|g|S < 2^-14), for \
              g ~ N(0, sigma)",
    look: "the wide middle where nothing is lost; the two ends; step_overflow, since one infinite \
           gradient of a million spoils the step on every worker",
    surprise: "overflow only rises and underflow only falls with the scale (some tables have both \
               at once); below 6e-5 fp16 gets coarser, it does not flush to zero; clipping does \
               not cure an infinity: the step must be skipped, by all workers together",
    params: &[
        Param::number(
            "exponent",
            Unit::Number,
            16.0,
            (-30.0, 60.0),
            "exponent of the scale, a power of two",
        ),
        Param::number("sigma", Unit::Number, 1e-4, (1e-12, 1e6), "deviation of gradients"),
        Param::count("gradients", 1e6, (1.0, 1e12), "gradients of a step"),
        Param::count("draws", 20_000.0, (100.0, 1e7), "gradients that are drawn"),
    ],
    sweep: (
        "exponent",
        &[-10.0, -5.0, 0.0, 5.0, 10.0, 15.0, 18.0, 20.0, 24.0, 26.0, 28.0, 29.08, 30.0, 32.0],
    ),
    columns: &[
        Column::new("overflow", Unit::Share, "gradients that become infinite"),
        Column::new("zero", Unit::Share, "gradients that become zero"),
        Column::new("subnormal", Unit::Share, "gradients below the normal range"),
        Column::new("expected_overflow", Unit::Share, "the same by the normal distribution"),
        Column::new("expected_zero", Unit::Share, "the same by the normal distribution"),
        Column::new("expected_subnormal", Unit::Share, "the same by the normal distribution"),
        Column::new("step_overflow", Unit::Share, "steps with an infinite gradient"),
    ],
    picture: Picture::lines("exponent", &["overflow", "zero", "subnormal", "step_overflow"])
        .named("gradients, or steps"),
};

/// The largest number of fp16.
const MOST: f64 = 65504.0;
/// The least normal one.
const LEAST_NORMAL: f64 = 6.103_515_625e-5;
/// What is half of the least subnormal one rounds to zero.
const ZERO_BELOW: f64 = 2.980_232_238_769_531e-8;

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let deviation = at.number("sigma") * powf(2.0, at.number("exponent"));
    let num_draws = at.count("draws");
    let (mut overflow, mut zero, mut subnormal) = (0_usize, 0_usize, 0_usize);
    for _ in 0..num_draws {
        let scaled = (deviation * random.normal()).abs();
        overflow += usize::from(scaled > MOST);
        zero += usize::from(scaled < ZERO_BELOW);
        subnormal += usize::from(scaled < LEAST_NORMAL);
    }
    let share = |count: usize| count as f64 / num_draws as f64;
    let beyond = 2.0 * normal_below(-MOST / deviation);
    let below = |limit: f64| 1.0 - 2.0 * normal_below(-limit / deviation);
    Ok(vec![row![
        share(overflow),
        share(zero),
        share(subnormal),
        beyond,
        below(ZERO_BELOW),
        below(LEAST_NORMAL),
        1.0 - powf(1.0 - beyond.min(1.0 - 1e-16), at.number("gradients")),
    ]])
}

fn findings(table: &Table) -> Vec<String> {
    let (overflow, zero) = (table.numbers("step_overflow"), table.numbers("expected_subnormal"));
    let safe: Vec<usize> =
        (0..overflow.len()).filter(|row| overflow[*row] < 1e-3 && zero[*row] < 0.01).collect();
    let found = match (safe.first(), safe.last()) {
        (Some(first), Some(last)) => format!(
            "From {} to {} under one step in a thousand overflows and under 1 % is subnormal",
            place(table, *first),
            place(table, *last)
        ),
        _ => "No scale of this sweep keeps gradients inside fp16".to_owned(),
    };
    let end = last(table);
    let worst = format!(
        "at {} {} of gradients are infinite, and {} of steps have one",
        place(table, end),
        cell(table, "expected_overflow", end),
        cell(table, "step_overflow", end)
    );
    vec![found, worst]
}
