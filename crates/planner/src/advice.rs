//! Alternatives to a plain all-reduce: compression, local SGD and stale gradients.
//!
//! Each saves a part of the time spent on gradient exchange, and most cost iterations. With C for
//! the rest of a step, M for the whole exchange and E for its exposed part:
//!
//! | method | step time | iterations | chosen |
//! |---|---|---|---|
//! | compression to a share r of the bytes | C + max(0, rM - (M - E)) | by method | |
//! | K local steps | C + M/K, since averaging weights overlaps with nothing | 1 + c(K - 1) | K |
//! | gradients τ steps old | C + max(0, M - τC) | 1 + sτ | τ |
//!
//! The best K follows from the derivative of step time times iterations: K = √((1 - c)M / cC). The
//! best τ is the smallest that hides the exchange, ⌈M/C⌉, since each further step costs iterations
//! and saves nothing. c comes from a published run (four local steps took a tenth more epochs on
//! 128 GPUs), s is the smallest published penalty; the ranking is an estimate, and reports say so.

use crate::time::cluster::Step;
use serde::Serialize;
use std::fmt::Write;

/// Extra iterations per local step after the first, and per step of gradient staleness.
const LOCAL_PENALTY: f64 = 0.1 / 3.0;
const STALE_PENALTY: f64 = 0.05;
/// Relative time below which a method helps; above it the estimate is too coarse to tell.
pub const HELPS: f64 = 0.98;
/// Upper bounds of the local steps and of the staleness.
const MAX_LOCAL_STEPS: f64 = 128.0;
const MAX_STALENESS: f64 = 16.0;

/// Compression methods: name, share of the bytes that is left, factor on iterations.
const COMPRESSIONS: [(&str, f64, f64); 4] = [
    ("all-reduce, bf16 on the wire", 0.5, 1.0),
    ("all-reduce, int8", 0.25, 1.02),
    ("all-reduce, power-sgd", 0.05, 1.05),
    // A value and its index for every hundredth gradient element.
    ("all-reduce, top-k 1 %", 0.02, 1.10),
];

/// Property of synchronous training that a method gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Nothing.
    Plain,
    /// Precision of gradients.
    Compression,
    /// Equal replicas after every step.
    LocalSteps,
    /// Gradients of the current weights.
    Staleness,
}

/// Method of synchronizing data-parallel replicas.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SyncMethod {
    /// Property that is given up.
    pub kind: Kind,
    /// `sync.mode` and `compress.method` as in recipes.
    pub name: String,
    /// `sync.local_steps` of local SGD.
    pub local_steps: Option<u64>,
    /// `sync.staleness` of a parameter server.
    pub staleness: Option<u64>,
    /// Step time in seconds.
    pub step_seconds: f64,
    /// Typical factor on iterations.
    pub penalty: f64,
    /// Time to the same loss, relative to plain all-reduce.
    pub relative_time: f64,
}

/// Local steps with the shortest time to a given loss, when a step computes for `besides` seconds
/// and exchanges for `exchange`.
pub fn best_local_steps(besides: f64, exchange: f64) -> u64 {
    let root = ((1.0 - LOCAL_PENALTY) * exchange / (LOCAL_PENALTY * besides)).sqrt();
    root.round().clamp(1.0, MAX_LOCAL_STEPS) as u64
}

/// Smallest staleness that hides an exchange behind computation.
pub fn min_staleness(besides: f64, exchange: f64) -> u64 {
    (exchange / besides).ceil().clamp(1.0, MAX_STALENESS) as u64
}

/// All methods, fastest to the same loss first. Replicas that shard the optimizer state must stay
/// equal, so methods that let them differ are left out.
pub fn sync_methods(step: &Step, shares_states: bool) -> Vec<SyncMethod> {
    let besides = step.seconds - step.data_exposed;
    let method = |kind, name: String, step_seconds: f64, penalty: f64| {
        let relative_time = step_seconds * penalty / step.seconds;
        let (local_steps, staleness) = (None, None);
        SyncMethod { kind, name, local_steps, staleness, step_seconds, penalty, relative_time }
    };
    let mut sync_methods = vec![method(Kind::Plain, "all-reduce".into(), step.seconds, 1.0)];
    for (name, left, penalty) in COMPRESSIONS {
        let hidden = step.data_all - step.data_exposed;
        let exposed = (left * step.data_all - hidden).clamp(0.0, step.data_exposed);
        sync_methods.push(method(Kind::Compression, name.into(), besides + exposed, penalty));
    }
    if !shares_states {
        diverging_methods(step, besides, &method, &mut sync_methods);
    }
    sync_methods.sort_by(|a, b| a.relative_time.total_cmp(&b.relative_time));
    sync_methods
}

/// Methods whose replicas differ for a while.
fn diverging_methods(
    step: &Step,
    besides: f64,
    method: &impl Fn(Kind, String, f64, f64) -> SyncMethod,
    sync_methods: &mut Vec<SyncMethod>,
) {
    let local = best_local_steps(besides, step.data_all);
    if local > 1 {
        let penalty = 1.0 + LOCAL_PENALTY * (local - 1) as f64;
        let seconds = besides + step.data_all / local as f64;
        let name = format!("local-sgd, {local} steps");
        sync_methods.push(SyncMethod {
            local_steps: Some(local),
            ..method(Kind::LocalSteps, name, seconds, penalty)
        });
    }
    let stale = min_staleness(besides, step.data_all);
    let penalty = 1.0 + STALE_PENALTY * stale as f64;
    let seconds = besides + (step.data_all - stale as f64 * besides).max(0.0);
    let name = format!("parameter-server, stale by {stale}");
    sync_methods.push(SyncMethod {
        staleness: Some(stale),
        ..method(Kind::Staleness, name, seconds, penalty)
    });
}

/// Renders the cost of gradient exchange and the gain of the best method of each kind.
pub fn render(step: &Step, shares_states: bool) -> String {
    let share = 100.0 * step.data_exposed / step.seconds;
    let all = sync_methods(step, shares_states);
    let mut text = format!(
        "gradient exchange takes {share:.1} % of a step; time to the same loss, estimated:\n"
    );
    for kind in [Kind::Compression, Kind::LocalSteps, Kind::Staleness] {
        let Some(best) = all.iter().find(|method| method.kind == kind) else {
            text += match kind {
                _ if shares_states => "",
                _ => "  local SGD would harm: exchanges are too short to gain from it\n",
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
        text += "  local SGD, asynchrony and a parameter server need replicas that share no state: \
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
    fn a_step_with_little_exposed_communication_gains_nothing() {
        let quick = step(0.99, 0.02, 0.01);
        assert!(
            sync_methods(&quick, false)[0].relative_time > 0.98,
            "{:?}",
            sync_methods(&quick, false)[0]
        );
        assert_eq!(render(&quick, false).matches("harm").count(), 2, "{}", render(&quick, false));
        let slow = step(1.0, 1.0, 1.0);
        assert!(sync_methods(&slow, false)[0].relative_time < 0.7);
        assert!(render(&slow, false).matches("helps").count() == 3, "{}", render(&slow, false));
        assert!(sync_methods(&slow, true).iter().all(|method| method.kind != Kind::LocalSteps));
    }

    #[test]
    fn no_other_number_of_local_steps_is_faster() {
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
        assert_eq!(min_staleness(1.0, 0.3), 1);
        assert_eq!(min_staleness(1.0, 2.5), 3);
        let slow = step(1.0, 2.5, 2.5);
        let all = sync_methods(&slow, false);
        let stale = all.iter().find(|method| method.kind == Kind::Staleness).expect("one of them");
        assert_eq!(stale.staleness, Some(3));
        assert!((stale.step_seconds - 1.0).abs() < 1e-12, "{stale:?}");
    }

    #[test]
    fn smaller_messages_hide_whole_where_backward_has_room_for_them() {
        // Of an exchange of one second 0.6 s are hidden, so a quarter of the bytes hides
        // completely.
        let all = sync_methods(&step(1.0, 1.0, 0.4), false);
        let int8 = all.iter().find(|method| method.name.contains("int8")).expect("one of them");
        assert!((int8.step_seconds - 1.0).abs() < 1e-12, "{int8:?}");
        let half = all.iter().find(|method| method.name.contains("bf16")).expect("one of them");
        assert!(half.step_seconds <= 1.0 + 1e-12, "{half:?}");
    }
}
