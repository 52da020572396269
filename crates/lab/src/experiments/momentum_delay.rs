//! Heavy-ball momentum with delayed gradients: stable step size from the characteristic polynomial.
//!
//! With gradients tau updates old and curvature 1, heavy ball is the recurrence x(t+1) =
//! (1+b) x(t) - b x(t-1) - a x(t-tau). It is stable while all roots of its characteristic
//! polynomial are inside the unit circle; [`stability`] computes the exact limit.

use super::prelude::*;
use lockstep_planner::stability;

experiment!(MomentumDelay);

const DESCRIPTION: Description = Description {
    name: "momentum-delay",
    title: "Momentum with delayed gradients: largest stable step size, exact and by rules of thumb",
    question: "How much smaller must the step size be with momentum and stale gradients?",
    formula: "roots of r^(tau+1) - (1+b) r^tau + b r^(tau-1) + a L inside the unit circle; rule \
              (1-b)/tau; without delay 2(1+b)",
    look: "exact_limit against rule_of_thumb; limit_reduction",
    surprise: "momentum 0.9 with a delay of 10 needs a step size 333 times smaller than without \
               delay; rules of thumb are conservative, by up to a half",
    params: &[
        Param::count("staleness", 1.0, (0.0, 200.0), "age of gradients in updates (tau)"),
        Param::number("momentum", Unit::Number, 0.9, (0.0, 0.99), "momentum (b)"),
    ],
    sweep: ("staleness", &[0.0, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0]),
    columns: &[
        Column::new("exact_limit", Unit::Number, "largest stable step size"),
        Column::new("rule_of_thumb", Unit::Number, "(1-b)/tau"),
        Column::new("conservative_rule", Unit::Number, "(1-b)/(tau(1+b))"),
        Column::new("limit_reduction", Unit::Times, "limit without delay/exact_limit"),
    ],
    chart: ChartSpec::lines("staleness", &["exact_limit", "rule_of_thumb", "conservative_rule"])
        .log(false, true)
        .named("largest stable step size"),
};

fn run(at: &Settings, _: &mut Random) -> Result<Vec<Row>, LabError> {
    let (momentum, staleness) = (at.number("momentum"), at.count("staleness"));
    let exact = stability::limit(staleness as u32, momentum);
    // The rules do not apply without delay.
    let rule = if staleness > 0 { (1.0 - momentum) / staleness as f64 } else { f64::NAN };
    Ok(vec![row![exact, rule, rule / (1.0 + momentum), 2.0 * (1.0 + momentum) / exact,]])
}

fn findings(table: &Table) -> Vec<String> {
    let end = last(table);
    vec![format!(
        "{}the largest stable step size is {}, {} smaller than without delay",
        at(table, end),
        cell(table, "exact_limit", end),
        cell(table, "limit_reduction", end)
    )]
}
