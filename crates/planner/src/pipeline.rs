//! Pipelines: bubble fractions in closed form, and step times, simulated event by event or in
//! closed form.
//!
//! The bubble fraction is (p-1)/(v·m+p-1) for p devices, m micro-batches and v virtual stages per
//! device (Narayanan et al. 2021 state idle over busy time, (p-1)/(v·m)). Two other formulas are
//! common and are not this fraction: (p-1)/m is idle over busy time, and p/m approximates it.
//! These forms assume equal stages and transfers that take no time; [`crate::timeline`] assumes
//! neither. Schedules become periodic once the pipeline is full, so a long one is simulated at two
//! short lengths and extrapolated.

use crate::timeline::{PassTimes, Timeline, simulate};
use lockstep_schedule::pipeline::{Kind, Pipeline, Shape, build};
use std::collections::BTreeMap;

/// Bubble fraction of GPipe and 1F1B (`num_chunks` = 1) and of interleaved schedules.
pub fn bubble(num_devices: usize, num_microbatches: usize, num_chunks: usize) -> f64 {
    let (fill, busy) = (num_devices as f64 - 1.0, (num_chunks * num_microbatches) as f64);
    fill / (busy + fill)
}

/// Idle over busy time.
pub fn overhead(num_devices: usize, num_microbatches: usize, num_chunks: usize) -> f64 {
    (num_devices as f64 - 1.0) / (num_chunks * num_microbatches) as f64
}

/// Speed-up over one device.
pub fn speed_up(num_devices: usize, num_microbatches: usize, num_chunks: usize) -> f64 {
    num_devices as f64 * (1.0 - bubble(num_devices, num_microbatches, num_chunks))
}

/// Fewest micro-batches for a busy share of e: m ≥ (p-1)e/(1-e).
pub fn microbatches_for(num_devices: usize, share: f64) -> usize {
    let exact = (num_devices as f64 - 1.0) * share / (1.0 - share);
    // The tolerance keeps a whole number from rounding up, since 0.9 is not exactly nine tenths.
    ((exact - 1e-9).ceil() as usize).max(1)
}

/// Peak live micro-batches of a device, in units of all of its stages.
pub fn live_microbatches(kind: Kind, shape: Shape, device: usize) -> f64 {
    let (p, m) = (shape.num_devices as f64, shape.num_microbatches as f64);
    let behind = p - device as f64;
    let most = match kind {
        Kind::GPipe => m,
        Kind::Interleaved if shape.num_devices > 1 => {
            let v = shape.num_chunks as f64;
            ((v - 1.0) * p + 2.0 * (behind - 1.0) + 1.0) / v
        }
        // Weight gradients of later devices wait longer, so all keep as many as the first.
        Kind::ZeroBubble | Kind::Chimera => p,
        Kind::ZeroBubbleTwice => 2.0 * p - 1.0,
        Kind::OneFOneB | Kind::Interleaved | Kind::PipeDream => behind,
    };
    most.min(m)
}

/// Pipeline rounds that are simulated before extrapolation.
const ROUNDS: usize = 3;

/// Schedules that were built already.
#[derive(Debug, Default)]
pub struct Pipelines {
    built: BTreeMap<(Kind, usize, usize, usize), Option<Pipeline>>,
    by_closed_form: bool,
}

impl Pipelines {
    /// Prices pipelines by closed form, which is faster and ignores stalls in the steady phase.
    pub fn closed_form() -> Self {
        Self { by_closed_form: true, ..Self::default() }
    }

    /// Seconds of a step of `microbatches` micro-batches with these stages.
    pub fn seconds(
        &mut self,
        kind: Kind,
        devices: usize,
        times: &PassTimes,
        microbatches: usize,
    ) -> Option<f64> {
        let chunks = times.stages.len() / devices;
        if devices == 1 {
            let each: f64 =
                times.stages.iter().map(|s| s.forward.0 + s.input_grad.0 + s.weight_grad.0).sum();
            return Some(each * microbatches as f64);
        }
        if self.by_closed_form {
            return Some(closed(kind, devices, times, microbatches));
        }
        let padded = if kind == Kind::Interleaved {
            microbatches.next_multiple_of(devices)
        } else {
            microbatches
        };
        let mut at = |count: usize| self.played((kind, devices, chunks, count), times);
        let played = if kind == Kind::PipeDream {
            // Without flushes a run fills and drains once, which no step pays for.
            let fill = ROUNDS * devices;
            at(fill + microbatches)? - at(fill)?
        } else if padded <= (ROUNDS + 1) * devices {
            at(padded)?
        } else {
            let (short, long) = (at((ROUNDS - 1) * devices)?, at(ROUNDS * devices)?);
            let each = (long - short) / devices as f64;
            long + each * (padded - ROUNDS * devices) as f64
        };
        // Micro-batches that only pad the last round do not count.
        let extra = (padded - microbatches) as f64 / padded as f64;
        Some(played * (1.0 - extra))
    }

    fn played(&mut self, key: (Kind, usize, usize, usize), times: &PassTimes) -> Option<f64> {
        let (kind, num_devices, num_chunks, num_microbatches) = key;
        let shape = Shape { num_devices, num_chunks, num_microbatches };
        let pipeline = self.built.entry(key).or_insert_with(|| build(kind, shape).ok()).as_ref()?;
        Some(simulate(pipeline, times)?.seconds().0)
    }
}

/// Timeline of a pipeline's first rounds, for a drawing.
pub fn timeline(
    kind: Kind,
    devices: usize,
    times: &PassTimes,
    microbatches: usize,
) -> Option<Timeline> {
    let num_microbatches = microbatches.min(2 * devices);
    let shape =
        Shape { num_devices: devices, num_chunks: times.stages.len() / devices, num_microbatches };
    simulate(&build(kind, shape).ok()?, times)
}

/// Closed form: the busiest device without idle time, plus the other stages' passes of one
/// micro-batch before and after it, partly filled by deferred weight gradients.
fn closed(kind: Kind, devices: usize, times: &PassTimes, microbatches: usize) -> f64 {
    let chunks = times.stages.len() / devices;
    let of = |device: usize| {
        let own = || times.stages.iter().skip(device).step_by(devices);
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
    let hops = 2.0 * (devices - 1) as f64 * times.hop.0;
    let fill = if kind == Kind::PipeDream { 0.0 } else { fill + hops };
    let full = most * microbatches as f64 + fill;
    match kind {
        Kind::ZeroBubble => full.max(first_device(times, microbatches, devices)),
        Kind::ZeroBubbleTwice => full.max(first_device(times, microbatches, 2 * devices - 1)),
        _ => full,
    }
}

/// Lower bound from the first device: until its first gradient returns it can only run as many
/// forward passes as may be alive, so few micro-batches leave it idle.
fn first_device(times: &PassTimes, microbatches: usize, alive: usize) -> f64 {
    let Some((first, others)) = times.stages.split_first() else { return 0.0 };
    let there_and_back: f64 = others.iter().map(|s| s.forward.0 + s.input_grad.0).sum();
    let back = first.forward.0 + there_and_back + 2.0 * others.len() as f64 * times.hop.0;
    let behind = microbatches.saturating_sub(alive) as f64 * first.forward.0;
    back + behind + microbatches as f64 * (first.input_grad.0 + first.weight_grad.0)
}
