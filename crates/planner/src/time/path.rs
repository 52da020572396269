//! The way of microbatches through the devices of a pipeline, played event by event.
//!
//! A stage takes its share of a micro-batch, divided among those that hold its slices, its blocks' own
//! prices, and what its holders wait for each other; a boundary takes a message. A worker that has
//! the whole model is a pipeline of one device.

use super::prices;
use crate::time::Calibration;
use crate::timeline::{Pace, StagePace, play};
use crate::traffic::{StepCalls, Wires, calls, rank_at};
use lockstep_config::Recipe;
use lockstep_config::units::{Bytes, Seconds};
use lockstep_mesh::Axis;
use lockstep_model::Blueprint;
use lockstep_parallel::{ReplicaPlan, stages};
use lockstep_schedule::pipeline::Pipeline;

/// See the module's text.
pub(super) struct Path {
    pipeline: Pipeline,
    /// By stage: its share of a micro-batch's arithmetic, and its number of blocks.
    stages: Vec<(f64, usize)>,
    num_holders: usize,
    /// By stage: what holders of slices wait for each other in a microbatch.
    exchanges: Vec<Seconds>,
    /// What a message between neighbours takes.
    hop: Seconds,
}

impl Path {
    /// The way of the part of the batch that has most micro-batches.
    pub(super) fn new(
        recipe: &Recipe,
        blueprint: &Blueprint,
        step: &StepCalls,
        wires: &Wires,
        machine: &Calibration,
    ) -> Self {
        let plan = calls::plan_at(recipe, blueprint, 0);
        let parts = 0..plan.shares.len();
        let part = parts.max_by_key(|part| plan.num_microbatches(*part)).unwrap_or(0);
        let pipeline = plan.stages.pipeline(plan.num_microbatches(part));
        let costs = stages::costs(blueprint);
        let all: u64 = costs.iter().sum();
        let stage = |stage| {
            let blocks = plan.stages.blocks(stage, costs.len());
            let own: u64 = costs[blocks.clone()].iter().sum();
            (own as f64 / all.max(1) as f64, blocks.len())
        };
        let num_stages = plan.stages.num_stages();
        Self {
            stages: (0..num_stages).map(stage).collect(),
            num_holders: plan.mesh.degree(Axis::Tensor),
            exchanges: exchanges(&plan, step, wires, machine, part),
            hop: hop(step, wires, machine, part),
            pipeline,
        }
    }

    /// How long the passes of all microbatches take where a micro-batch takes `microbatch` on one worker and a
    /// block `block` besides.
    pub(super) fn seconds(&self, microbatch: Seconds, block: Seconds, with_calls: bool) -> Seconds {
        self.play(microbatch, block, with_calls).0
    }

    /// The share of the devices' time in which they wait.
    pub(super) fn bubble(&self, microbatch: Seconds, block: Seconds) -> f64 {
        if self.pipeline.shape.num_devices == 1 {
            0.0
        } else {
            self.play(microbatch, block, true).1
        }
    }

    fn play(&self, microbatch: Seconds, block: Seconds, with_calls: bool) -> (Seconds, f64) {
        let pace = |(stage, (share, num_blocks)): (usize, &(f64, usize))| {
            let own = microbatch * (share / self.num_holders as f64) + block * *num_blocks as f64;
            let waits = if with_calls { self.exchanges[stage] } else { Seconds(0.0) };
            let third = (own + waits) * (1.0 / 3.0);
            StagePace { forward: third, input_grad: third, weight_grad: third }
        };
        let stages = self.stages.iter().enumerate().map(pace).collect();
        let hop = if with_calls { self.hop } else { Seconds(0.0) };
        let timeline = play(&self.pipeline, &Pace { stages, hop }).expect("config has proven it");
        (timeline.seconds(), timeline.bubble())
    }

    /// Blocks that the average worker runs in a step, where each part of the batch has so many
    /// micro-batches.
    pub(super) fn blocks_per_worker(&self, num_microbatches: f64) -> f64 {
        let num_blocks: usize = self.stages.iter().map(|(_, num_blocks)| num_blocks).sum();
        num_microbatches * num_blocks as f64 / self.pipeline.shape.num_devices as f64
    }

    /// What a worker spends on messages and on completing sums, at most.
    pub(super) fn communication(&self) -> Seconds {
        let num_microbatches = self.pipeline.shape.num_microbatches as f64;
        let num_devices = self.pipeline.shape.num_devices;
        let of_device = |device: usize| -> Seconds {
            self.exchanges.iter().skip(device).step_by(num_devices).copied().sum()
        };
        let most = (0..num_devices).map(of_device).fold(Seconds(0.0), Seconds::max);
        let hops = if num_devices > 1 { 2.0 } else { 0.0 };
        (most + self.hop * hops) * num_microbatches
    }
}

/// By stage: what its holders' calls take in a microbatch, evenly over the stages of a device.
fn exchanges(
    plan: &ReplicaPlan,
    step: &StepCalls,
    wires: &Wires,
    machine: &Calibration,
    part: usize,
) -> Vec<Seconds> {
    let num_microbatches = plan.leaf_shares().microbatches_of(part, plan.leaves).len().max(1);
    let of_device = |device: usize| {
        let calls = &step.tensor[device][part];
        let holders = 0..calls.addends.num_ranks();
        let members: Vec<usize> =
            holders.map(|holder| rank_at(&step.mesh, device, part, holder)).collect();
        let all: Seconds =
            prices(calls, wires, &members, machine).into_iter().map(|(_, seconds)| seconds).sum();
        all * (1.0 / (num_microbatches * plan.stages.num_chunks()) as f64)
    };
    let num_devices = plan.stages.num_devices();
    let by_device: Vec<Seconds> = (0..num_devices).map(of_device).collect();
    (0..plan.stages.num_stages()).map(|stage| by_device[stage % num_devices]).collect()
}

/// What the message that goes most often takes.
fn hop(step: &StepCalls, wires: &Wires, machine: &Calibration, part: usize) -> Seconds {
    let messages = step.messages.iter().flat_map(|parts| &parts[part]);
    let Some(message) = messages.max_by_key(|message| message.times) else { return Seconds(0.0) };
    let bytes = Bytes(calls::ELEMENT.0 * message.len as u64);
    let costs = machine.costs(&wires.costs);
    let link = if wires.is_one_host() { costs.memory } else { None };
    link.unwrap_or(costs.messages).seconds(bytes)
}
