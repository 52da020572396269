//! Other ways to keep copies together: fewer exchanges, smaller ones, or none that anybody waits
//! for.
//!
//! Each saves a part of the time that gradients cost, and most cost iterations. With C for what a
//! step takes besides, M for all of its exchange and E for the part that is waited for:
//!
//! | way | a step takes | iterations | chosen |
//! |---|---|---|---|
//! | a share r of the bytes | C + max(0, rM - (M - E)) | by method | |
//! | K local steps | C + M/K, since averaging weights hides behind nothing | 1 + c(K - 1) | K |
//! | gradients that are τ steps old | C + max(0, M - τC) | 1 + sτ | τ |
//!
//! The best K follows from the first line's derivative, K = √((1 - c)M / cC); the best τ is the
//! smallest that hides the exchange, ⌈M/C⌉, since each further step costs iterations and saves
//! nothing. c is of a published run (four local steps took a tenth more epochs on 128 devices), s
//! the least of published penalties; so the ranking is an estimate, and says so.

use crate::time::Step;
use serde::Serialize;
use std::fmt::Write;

/// More iterations for every local step but the first, and for every step that gradients are old.
const LOCAL_PENALTY: f64 = 0.1 / 3.0;
const STALE_PENALTY: f64 = 0.05;
/// Below this share of the time a way helps; above, estimates cannot tell.
pub const HELPS: f64 = 0.98;
/// Most local steps, and most steps that gradients may be old.
const MOST_LOCAL: f64 = 128.0;
const MOST_STALE: f64 = 16.0;

/// Names, shares of the bytes that are left and factors on iterations of ways to send less.
const SMALLER: [(&str, f64, f64); 4] = [
    ("all-reduce, bf16 on the wire", 0.5, 1.0),
    ("all-reduce, int8", 0.25, 1.02),
    ("all-reduce, power-sgd", 0.05, 1.05),
    // A value and its index of every hundredth gradient.
    ("all-reduce, top-k 1 %", 0.02, 1.10),
];

/// What is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Nothing.
    Plain,
    /// Bits of gradients.
    Compression,
    /// That copies agree after every step.
    LocalSteps,
    /// That gradients are of the weights that they change.
    Staleness,
}

/// A way to keep copies together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Way {
    /// What is given up.
    pub kind: Kind,
    /// `sync.mode` and `compress.method` as in recipes.
    pub name: String,
    /// `sync.local_steps`, where copies meet seldom.
    pub local_steps: Option<u64>,
    /// `sync.staleness`, where gradients may be old.
    pub staleness: Option<u64>,
    /// Seconds of a step.
    pub step_seconds: f64,
    /// How many times as many iterations it takes, typically.
    pub penalty: f64,
    /// Time to the same loss, relative to plain all-reduce.
    pub relative_time: f64,
}

/// Local steps that reach the same loss soonest where a step computes for `besides` and exchanges
/// for `exchange`.
pub fn best_local_steps(besides: f64, exchange: f64) -> u64 {
    let root = ((1.0 - LOCAL_PENALTY) * exchange / (LOCAL_PENALTY * besides)).sqrt();
    root.round().clamp(1.0, MOST_LOCAL) as u64
}

/// The fewest steps that gradients must be old for an exchange to hide behind computing.
pub fn least_staleness(besides: f64, exchange: f64) -> u64 {
    (exchange / besides).ceil().clamp(1.0, MOST_STALE) as u64
}

/// All ways, the quickest to the same loss first. Copies that share their states cannot part.
pub fn ways(step: &Step, shares_states: bool) -> Vec<Way> {
    let besides = step.seconds - step.data_exposed;
    let way = |kind, name: String, step_seconds: f64, penalty: f64| {
        let relative_time = step_seconds * penalty / step.seconds;
        let (local_steps, staleness) = (None, None);
        Way { kind, name, local_steps, staleness, step_seconds, penalty, relative_time }
    };
    let mut ways = vec![way(Kind::Plain, "all-reduce".into(), step.seconds, 1.0)];
    for (name, left, penalty) in SMALLER {
        let hidden = step.data_all - step.data_exposed;
        let exposed = (left * step.data_all - hidden).clamp(0.0, step.data_exposed);
        ways.push(way(Kind::Compression, name.into(), besides + exposed, penalty));
    }
    if !shares_states {
        parted(step, besides, &way, &mut ways);
    }
    ways.sort_by(|a, b| a.relative_time.total_cmp(&b.relative_time));
    ways
}

/// Ways whose copies differ for a while.
fn parted(
    step: &Step,
    besides: f64,
    way: &impl Fn(Kind, String, f64, f64) -> Way,
    ways: &mut Vec<Way>,
) {
    let local = best_local_steps(besides, step.data_all);
    if local > 1 {
        let penalty = 1.0 + LOCAL_PENALTY * (local - 1) as f64;
        let seconds = besides + step.data_all / local as f64;
        let name = format!("local-sgd, {local} steps");
        ways.push(Way {
            local_steps: Some(local),
            ..way(Kind::LocalSteps, name, seconds, penalty)
        });
    }
    let stale = least_staleness(besides, step.data_all);
    let penalty = 1.0 + STALE_PENALTY * stale as f64;
    let seconds = besides + (step.data_all - stale as f64 * besides).max(0.0);
    let name = format!("parameter-server, stale by {stale}");
    ways.push(Way { staleness: Some(stale), ..way(Kind::Staleness, name, seconds, penalty) });
}

/// Lines for a report: what gradients cost, and what the best of every kind would bring.
pub fn lines(step: &Step, shares_states: bool) -> String {
    let share = 100.0 * step.data_exposed / step.seconds;
    let all = ways(step, shares_states);
    let mut text = format!(
        "gradients of other copies take {share:.1} % of a step; time to the same loss, estimated:\n"
    );
    for kind in [Kind::Compression, Kind::LocalSteps, Kind::Staleness] {
        let Some(best) = all.iter().find(|way| way.kind == kind) else {
            text += match kind {
                _ if shares_states => "",
                _ => "  local SGD would harm: exchanges are too short to save any\n",
            };
            continue;
        };
        let verdict = match best.relative_time {
            time if time < HELPS => "helps",
            time if time <= 1.0 + 1e-9 => "makes no difference",
            _ => "harms",
        };
        let time = 100.0 * best.relative_time;
        let _ = writeln!(text, "  {:<30} {time:>5.1} %, {verdict}", best.name);
    }
    if shares_states {
        text += "  local SGD, asynchrony and a parameter server need copies that share no states: \
                 ZeRO 0\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(besides: f64, all: f64, exposed: f64) -> Step {
        Step {
            seconds: besides + exposed,
            compute: besides,
            exposed,
            data_exposed: exposed,
            data_all: all,
            bubble: 0.0,
            host: 0.0,
            update: 0.0,
            loading: 0.0,
        }
    }

    #[test]
    fn who_waits_little_should_not_trade_iterations_for_it() {
        let quick = step(0.99, 0.02, 0.01);
        assert!(ways(&quick, false)[0].relative_time > 0.98, "{:?}", ways(&quick, false)[0]);
        assert_eq!(lines(&quick, false).matches("harm").count(), 2, "{}", lines(&quick, false));
        let slow = step(1.0, 1.0, 1.0);
        assert!(ways(&slow, false)[0].relative_time < 0.7);
        assert!(lines(&slow, false).matches("helps").count() == 3, "{}", lines(&slow, false));
        assert!(ways(&slow, true).iter().all(|way| way.kind != Kind::LocalSteps));
    }

    #[test]
    fn no_other_number_of_local_steps_is_quicker() {
        for (besides, exchange) in [(1.0, 0.1), (1.0, 1.0), (0.2, 3.0)] {
            let seconds = |steps: u64| {
                let penalty = 1.0 + LOCAL_PENALTY * (steps - 1) as f64;
                penalty * (besides + exchange / steps as f64)
            };
            let best = best_local_steps(besides, exchange);
            for other in [best.saturating_sub(1).max(1), best + 1] {
                assert!(seconds(best) <= seconds(other), "{best} or {other} of {exchange}");
            }
        }
    }

    #[test]
    fn gradients_are_no_older_than_it_takes_to_hide_their_exchange() {
        assert_eq!(least_staleness(1.0, 0.3), 1);
        assert_eq!(least_staleness(1.0, 2.5), 3);
        let slow = step(1.0, 2.5, 2.5);
        let all = ways(&slow, false);
        let stale = all.iter().find(|way| way.kind == Kind::Staleness).expect("one of them");
        assert_eq!(stale.staleness, Some(3));
        assert!((stale.step_seconds - 1.0).abs() < 1e-12, "{stale:?}");
    }

    #[test]
    fn smaller_messages_hide_whole_where_backward_has_room_for_them() {
        // Of an exchange of one second 0.6 are hidden: a quarter of the bytes hides whole.
        let all = ways(&step(1.0, 1.0, 0.4), false);
        let int8 = all.iter().find(|way| way.name.contains("int8")).expect("one of them");
        assert!((int8.step_seconds - 1.0).abs() < 1e-12, "{int8:?}");
        let half = all.iter().find(|way| way.name.contains("bf16")).expect("one of them");
        assert!(half.step_seconds <= 1.0 + 1e-12, "{half:?}");
    }
}
