//! Loss scaling for fp16 gradients (Micikevicius et al. 2018): overflow and underflow by scale.

use super::prelude::*;
use crate::math::normal_below;
use lockstep_tensor::math::scalar::powf;

experiment!(LossScaling);

const DESCRIPTION: Description = Description {
    name: "loss-scaling",
    title: "Loss scaling: overflow and underflow of fp16 gradients, by scale",
    question: "Which loss scale keeps gradients inside the range of fp16?",
    formula: "overflow P(|g|S > 65504), zero P(|g|S < 2^-25), subnormal P(|g|S < 2^-14), for \
              g ~ N(0, sigma)",
    look: "the wide middle without loss; both ends; step_overflow, since one infinite element of \
           a million invalidates the step on every worker",
    surprise: "overflow only rises and underflow only falls with the scale (some tables show both \
               at once); below 6e-5 fp16 loses precision but does not flush to zero; clipping \
               does not remove an infinity: all workers must skip the step",
    params: &[
        Param::number("exponent", Unit::Number, 16.0, (-30.0, 60.0), "loss scale is 2^exponent"),
        Param::number(
            "sigma",
            Unit::Number,
            1e-4,
            (1e-12, 1e6),
            "standard deviation of gradient elements",
        ),
        Param::count("gradients", 1e6, (1.0, 1e12), "gradient elements per step"),
        Param::count("draws", 20_000.0, (100.0, 1e7), "number of drawn elements"),
    ],
    sweep: (
        "exponent",
        &[-10.0, -5.0, 0.0, 5.0, 10.0, 15.0, 18.0, 20.0, 24.0, 26.0, 28.0, 29.08, 30.0, 32.0],
    ),
    columns: &[
        Column::new("overflow", Unit::Share, "elements that become infinite"),
        Column::new("zero", Unit::Share, "elements that become zero"),
        Column::new("subnormal", Unit::Share, "elements below the normal range"),
        Column::new("expected_overflow", Unit::Share, "overflow of the normal distribution"),
        Column::new("expected_zero", Unit::Share, "zeros of the normal distribution"),
        Column::new("expected_subnormal", Unit::Share, "subnormals of the normal distribution"),
        Column::new("step_overflow", Unit::Share, "steps with an infinite element"),
    ],
    chart: ChartSpec::lines("exponent", &["overflow", "zero", "subnormal", "step_overflow"])
        .named("share of elements or steps"),
};

/// Largest finite fp16 number.
const FP16_MAX: f64 = 65504.0;
/// Smallest normal fp16 number.
const MIN_NORMAL: f64 = 6.103_515_625e-5;
/// Half of the smallest subnormal fp16 number; smaller numbers round to zero.
const ZERO_BELOW: f64 = 2.980_232_238_769_531e-8;

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let deviation = at.number("sigma") * powf(2.0, at.number("exponent"));
    let num_draws = at.count("draws");
    let (mut overflow, mut zero, mut subnormal) = (0_usize, 0_usize, 0_usize);
    for _ in 0..num_draws {
        let scaled = (deviation * random.normal()).abs();
        overflow += usize::from(scaled > FP16_MAX);
        zero += usize::from(scaled < ZERO_BELOW);
        subnormal += usize::from(scaled < MIN_NORMAL);
    }
    let share = |count: usize| count as f64 / num_draws as f64;
    let beyond = 2.0 * normal_below(-FP16_MAX / deviation);
    let below = |limit: f64| 1.0 - 2.0 * normal_below(-limit / deviation);
    Ok(vec![row![
        share(overflow),
        share(zero),
        share(subnormal),
        beyond,
        below(ZERO_BELOW),
        below(MIN_NORMAL),
        1.0 - powf(1.0 - beyond.min(1.0 - 1e-16), at.number("gradients")),
    ]])
}

fn findings(table: &Table) -> Vec<String> {
    let (overflow, zero) = (table.numbers("step_overflow"), table.numbers("expected_subnormal"));
    let is_usable = |row: usize| overflow[row] < 1e-3 && zero[row] < 0.01;
    let range = match extent(table, &each_point(table), is_usable) {
        Some(extent) => format!(
            "Less than 0.1 % of steps overflow and less than 1 % of elements are subnormal{extent}"
        ),
        None => "At no point are overflows under 0.1 % of steps and subnormal elements under 1 %"
            .to_owned(),
    };
    let worst = table.best("expected_overflow", -1.0).unwrap_or(0);
    let most = format!(
        "{}{} of elements and {} of steps overflow",
        at(table, worst),
        cell(table, "expected_overflow", worst),
        cell(table, "step_overflow", worst)
    );
    vec![range, most]
}
