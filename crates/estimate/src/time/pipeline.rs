//! How long a pipeline takes, played event by event from its schedule.
//!
//! Schedules repeat themselves once they are full, so a long one is played at two lengths that are
//! easily played, and continued from there.

use super::layer::Passes;
use lockstep_config::units::Seconds;
use lockstep_schedule::pipeline::{Kind, Pipeline, Shape, build};
use lockstep_timeline::{Pace, StagePace, Timeline, play};
use std::collections::BTreeMap;

/// Rounds of the pipeline that are played before its rest is continued from them.
const ROUNDS: usize = 3;

/// Schedules that were built already.
#[derive(Debug, Default)]
pub struct Pipelines {
    built: BTreeMap<(Kind, usize, usize, usize), Option<Pipeline>>,
    by_closed_form: bool,
}

impl Pipelines {
    /// Prices pipelines by closed form, which is quicker and knows no waits in the middle.
    pub fn closed_form() -> Self {
        Self { by_closed_form: true, ..Self::default() }
    }

    /// Seconds of a step of this many microbatches whose stages take this long.
    pub fn seconds(
        &mut self,
        kind: Kind,
        devices: usize,
        stages: &[Passes],
        microbatches: usize,
        hop: f64,
    ) -> Option<f64> {
        let chunks = stages.len() / devices;
        let pace = pace(stages, hop);
        if devices == 1 {
            let each: f64 =
                pace.stages.iter().map(|s| s.forward.0 + s.input_grad.0 + s.weight_grad.0).sum();
            return Some(each * microbatches as f64);
        }
        if self.by_closed_form {
            return Some(closed(kind, devices, &pace, microbatches));
        }
        let wanted = if kind == Kind::Interleaved {
            microbatches.next_multiple_of(devices)
        } else {
            microbatches
        };
        let mut at = |count: usize| self.played((kind, devices, chunks, count), &pace);
        let played = if wanted <= (ROUNDS + 1) * devices {
            at(wanted)?
        } else {
            let (short, long) = (at((ROUNDS - 1) * devices)?, at(ROUNDS * devices)?);
            let each = (long - short) / devices as f64;
            long + each * (wanted - ROUNDS * devices) as f64
        };
        // Passes that were only there to fill the last round are no work.
        let extra = (wanted - microbatches) as f64 / wanted as f64;
        Some(played * (1.0 - extra))
    }

    fn played(&mut self, key: (Kind, usize, usize, usize), pace: &Pace) -> Option<f64> {
        let (kind, num_devices, num_chunks, num_microbatches) = key;
        let shape = Shape { num_devices, num_chunks, num_microbatches };
        let pipeline = self.built.entry(key).or_insert_with(|| build(kind, shape).ok()).as_ref()?;
        Some(play(pipeline, pace)?.seconds().0)
    }
}

/// What a play needs of every stage.
fn pace(stages: &[Passes], hop: f64) -> Pace {
    let stage = |passes: &Passes| {
        let backward = passes.input_grad.then(passes.weight_grad).seconds();
        let weight = passes.weight_grad.seconds().min(backward);
        StagePace {
            forward: Seconds(passes.forward.seconds()),
            input_grad: Seconds(backward - weight),
            weight_grad: Seconds(weight),
        }
    };
    Pace { stages: stages.iter().map(stage).collect(), hop: Seconds(hop) }
}

/// The first rounds of a pipeline, event by event, for a picture.
pub fn drawn(
    kind: Kind,
    devices: usize,
    stages: &[Passes],
    microbatches: usize,
    hop: f64,
) -> Option<Timeline> {
    let num_microbatches = microbatches.min(2 * devices);
    let shape =
        Shape { num_devices: devices, num_chunks: stages.len() / devices, num_microbatches };
    play(&build(kind, shape).ok()?, &pace(stages, hop))
}

/// The busiest device without a pause, and the others' passes of one microbatch before and behind
/// it, of which weight gradients fill a part where they go by themselves.
fn closed(kind: Kind, devices: usize, pace: &Pace, microbatches: usize) -> f64 {
    let chunks = pace.stages.len() / devices;
    let of = |device: usize| {
        let own = || pace.stages.iter().skip(device).step_by(devices);
        let all: f64 = own().map(|s| s.forward.0 + s.input_grad.0 + s.weight_grad.0).sum();
        (all, own().map(|s| s.weight_grad.0).sum::<f64>())
    };
    let (mut most, mut fill) = (0.0_f64, 0.0);
    for device in 0..devices {
        let (all, weights) = of(device);
        most = most.max(all);
        fill += match kind {
            Kind::ZeroBubble => all - 2.0 * weights,
            Kind::ZeroBubbleTwice => all - 3.0 * weights,
            _ => all / chunks as f64,
        };
    }
    let fill = (fill - most / chunks as f64).max(0.0);
    let hops = 2.0 * (devices - 1) as f64 * pace.hop.0;
    let full = most * microbatches as f64 + fill + hops;
    match kind {
        Kind::ZeroBubble => full.max(first_device(pace, microbatches, devices)),
        Kind::ZeroBubbleTwice => full.max(first_device(pace, microbatches, 2 * devices - 1)),
        _ => full,
    }
}

/// What the first device takes at least: until a gradient is back it has nothing to do but as many
/// forward passes as may be alive, so few microbatches leave it idle whatever comes behind.
fn first_device(pace: &Pace, microbatches: usize, alive: usize) -> f64 {
    let Some((first, others)) = pace.stages.split_first() else { return 0.0 };
    let there_and_back: f64 = others.iter().map(|s| s.forward.0 + s.input_grad.0).sum();
    let back = first.forward.0 + there_and_back + 2.0 * others.len() as f64 * pace.hop.0;
    let behind = microbatches.saturating_sub(alive) as f64 * first.forward.0;
    back + behind + microbatches as f64 * (first.input_grad.0 + first.weight_grad.0)
}
