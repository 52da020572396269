//! Other ways to keep copies together: fewer exchanges, smaller ones, or none that anybody waits
//! for.
//!
//! Each saves a part of the time that gradients cost, and most cost iterations. The penalties are
//! typical ones of the literature, so the ranking is an estimate, and says so.

use crate::time::Step;
use serde::Serialize;

/// A way to keep copies together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Way {
    /// `sync.mode` and `compress.method` as in recipes.
    pub name: &'static str,
    /// Share of gradients' time that is left.
    pub left: f64,
    /// How many times as many iterations it takes, typically.
    pub penalty: f64,
    /// Time to the same loss, relative to plain all-reduce.
    pub relative_time: f64,
}

/// Name, share of the exchange that is left, factor on iterations.
const WAYS: [(&str, f64, f64); 8] = [
    ("all-reduce", 1.0, 1.0),
    ("all-reduce, bf16 on the wire", 0.5, 1.0),
    ("all-reduce, int8", 0.25, 1.02),
    ("all-reduce, power-sgd", 0.05, 1.05),
    ("all-reduce, top-k 1 %", 0.03, 1.10),
    ("local-sgd, 8 steps", 0.125, 1.05),
    ("local-sgd, 64 steps", 0.016, 1.15),
    ("parameter-server, stale by 4", 0.0, 1.20),
];

/// All ways, the quickest to the same loss first.
pub fn ways(step: &Step) -> Vec<Way> {
    let mut ways: Vec<Way> = WAYS
        .into_iter()
        .map(|(name, left, penalty)| {
            let seconds = step.seconds - step.data_exposed * (1.0 - left);
            Way { name, left, penalty, relative_time: seconds * penalty / step.seconds }
        })
        .collect();
    ways.sort_by(|a, b| a.relative_time.total_cmp(&b.relative_time));
    ways
}

/// One line for a report.
pub fn line(step: &Step) -> String {
    let share = 100.0 * step.data_exposed / step.seconds;
    let ways = ways(step);
    let best = &ways[0];
    if best.relative_time > 0.98 {
        return format!(
            "gradients of other copies take {share:.1} % of a step: local SGD, compression beyond \
             16 bits, asynchrony or a parameter server would harm more than they help"
        );
    }
    format!(
        "gradients of other copies take {share:.1} % of a step: {} might reach the same loss in \
         {:.0} % of the time (an estimate)",
        best.name,
        100.0 * best.relative_time
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_little_should_not_trade_iterations_for_it() {
        let step = Step {
            seconds: 1.0,
            compute: 0.9,
            exposed: 0.02,
            data_exposed: 0.01,
            bubble: 0.0,
            host: 0.0,
            update: 0.05,
        };
        assert!(line(&step).contains("harm"));
        let slow = Step { seconds: 2.0, data_exposed: 1.0, ..step };
        assert!(line(&slow).contains("might reach"));
        assert!(ways(&slow)[0].relative_time < 0.7);
    }
}
