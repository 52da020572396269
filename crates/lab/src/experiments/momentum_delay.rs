//! Momentum under delay: the stable step size from the roots of the characteristic polynomial.
//!
//! Heavy ball with gradients that are tau updates old is the recurrence x(t+1) =
//! (1+b) x(t) - b x(t-1) - a x(t-tau) for curvature 1. It is stable while all roots of its
//! characteristic polynomial lie inside the unit circle; [`stability`] has the border exactly.

use super::prelude::*;
use lockstep_planner::stability;

experiment!(MomentumDelay);

const CARD: Card = Card {
    name: "momentum-delay",
    title: "Momentum under delay: the largest stable step size, exactly and by rules of thumb",
    question: "How much smaller must the step be when momentum meets stale gradients?",
    formula: "roots of r^(tau+1) - (1+b) r^tau + b r^(tau-1) + a L inside the unit circle; rule \
              (1-b)/tau; without delay 2(1+b)",
    look: "exact_limit beside rule; lost: how many times smaller than without delay",
    surprise: "momentum 0.9 and a delay of 10 take a step 333 times smaller than the same momentum \
               without delay; rules of thumb err on the safe side, by up to a half",
    params: &[
        Param::count("staleness", 1.0, (0.0, 200.0), "updates of delay (tau)"),
        Param::number("momentum", Unit::Number, 0.9, (0.0, 0.99), "momentum (b)"),
    ],
    sweep: ("staleness", &[0.0, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0]),
    columns: &[
        Column::new("exact_limit", Unit::Number, "largest stable step size"),
        Column::new("rule", Unit::Number, "(1-b)/tau"),
        Column::new("half_rule", Unit::Number, "(1-b)/(tau(1+b))"),
        Column::new("lost", Unit::Times, "limit without delay over this one"),
    ],
    picture: Picture::lines("staleness", &["exact_limit", "rule", "half_rule"])
        .log(false, true)
        .named("largest stable step size"),
};

fn run(at: &Settings, _: &mut Random) -> Result<Vec<Row>, LabError> {
    let (momentum, staleness) = (at.number("momentum"), at.count("staleness"));
    let exact = stability::limit(staleness as u32, momentum);
    // Without delay the rules say nothing.
    let rule = if staleness > 0 { (1.0 - momentum) / staleness as f64 } else { f64::NAN };
    Ok(vec![row![exact, rule, rule / (1.0 + momentum), 2.0 * (1.0 + momentum) / exact,]])
}

fn findings(table: &Table) -> Vec<String> {
    let end = last(table);
    vec![format!(
        "At {} the largest stable step is {}, {} smaller than without delay",
        place(table, end),
        cell(table, "exact_limit", end),
        cell(table, "lost", end)
    )]
}
