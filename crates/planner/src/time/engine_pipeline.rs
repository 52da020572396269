//! Pipeline time of a step, simulated event by event.
//!
//! A stage takes its share of a micro-batch, divided among its tensor-parallel ranks, the cost of
//! its blocks, and its tensor-parallel collectives; a boundary takes a message. A worker that has
//! the whole model is a pipeline of one device.

use super::calls::prices;
use crate::calibration::machine::MachineCalibration;
use crate::timeline::{PassTimes, StageTimes, simulate};
use crate::traffic::{Interconnect, StepCalls, call, rank_at, step_calls};
use lockstep_config::Recipe;
use lockstep_config::units::{Bytes, Seconds};
use lockstep_mesh::Axis;
use lockstep_model::Blueprint;
use lockstep_parallel::{ReplicaPlan, stages};
use lockstep_schedule::pipeline::Pipeline;

/// Pipeline of the data-parallel rank with most micro-batches, with its costs.
pub(super) struct Path {
    pipeline: Pipeline,
    /// By stage: share of a micro-batch's FLOPs, and number of blocks.
    stages: Vec<(f64, usize)>,
    num_tp_ranks: usize,
    /// By stage: tensor-parallel collectives per micro-batch.
    exchanges: Vec<Seconds>,
    /// Time of a message between neighbouring stages.
    hop: Seconds,
}

impl Path {
    /// Pipeline of the data-parallel rank with most micro-batches.
    pub(super) fn new(
        recipe: &Recipe,
        blueprint: &Blueprint,
        step: &StepCalls,
        interconnect: &Interconnect,
        machine: &MachineCalibration<'_>,
    ) -> Self {
        let plan = step_calls::plan_at(recipe, blueprint, 0);
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
            num_tp_ranks: plan.mesh.degree(Axis::Tensor),
            exchanges: exchanges(&plan, step, interconnect, machine, part),
            hop: hop(step, interconnect, machine, part),
            pipeline,
        }
    }

    /// Time of the passes of all micro-batches, where a micro-batch takes `microbatch` on one
    /// worker and a block `block` besides.
    pub(super) fn seconds(&self, microbatch: Seconds, block: Seconds, with_calls: bool) -> Seconds {
        self.simulate_pipeline(microbatch, block, with_calls).0
    }

    /// Bubble fraction.
    pub(super) fn bubble(&self, microbatch: Seconds, block: Seconds) -> f64 {
        if self.pipeline.shape.num_devices == 1 {
            0.0
        } else {
            self.simulate_pipeline(microbatch, block, true).1
        }
    }

    fn simulate_pipeline(
        &self,
        microbatch: Seconds,
        block: Seconds,
        with_calls: bool,
    ) -> (Seconds, f64) {
        let stage_times = |(stage, (share, num_blocks)): (usize, &(f64, usize))| {
            let own = microbatch * (share / self.num_tp_ranks as f64) + block * *num_blocks as f64;
            let waits = if with_calls { self.exchanges[stage] } else { Seconds(0.0) };
            let third = (own + waits) * (1.0 / 3.0);
            StageTimes { forward: third, input_grad: third, weight_grad: third }
        };
        let stages = self.stages.iter().enumerate().map(stage_times).collect();
        let hop = if with_calls { self.hop } else { Seconds(0.0) };
        let timeline =
            simulate(&self.pipeline, &PassTimes { stages, hop }).expect("config has proven it");
        (timeline.seconds(), timeline.bubble())
    }

    /// Blocks that the average worker runs in a step, for this many micro-batches per data-parallel
    /// rank.
    pub(super) fn blocks_per_worker(&self, num_microbatches: f64) -> f64 {
        let num_blocks: usize = self.stages.iter().map(|(_, num_blocks)| num_blocks).sum();
        num_microbatches * num_blocks as f64 / self.pipeline.shape.num_devices as f64
    }

    /// Upper bound of a worker's time in pipeline messages and tensor-parallel collectives.
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

/// By stage: tensor-parallel collectives per micro-batch, divided evenly over the stages of a
/// device.
fn exchanges(
    plan: &ReplicaPlan,
    step: &StepCalls,
    interconnect: &Interconnect,
    machine: &MachineCalibration<'_>,
    part: usize,
) -> Vec<Seconds> {
    let num_microbatches = plan.leaf_assignment().microbatches_of(part, plan.leaves).len().max(1);
    let of_device = |device: usize| {
        let calls = &step.tensor[device][part];
        let tp_ranks = 0..calls.contributions.num_ranks();
        let members: Vec<usize> =
            tp_ranks.map(|tp_rank| rank_at(&step.mesh, device, part, tp_rank)).collect();
        let all: Seconds = prices(calls, interconnect, &members, machine)
            .into_iter()
            .map(|(_, seconds)| seconds)
            .sum();
        all * (1.0 / (num_microbatches * plan.stages.num_chunks()) as f64)
    };
    let num_devices = plan.stages.num_devices();
    let by_device: Vec<Seconds> = (0..num_devices).map(of_device).collect();
    (0..plan.stages.num_stages()).map(|stage| by_device[stage % num_devices]).collect()
}

/// Time of the most frequent message.
fn hop(
    step: &StepCalls,
    interconnect: &Interconnect,
    machine: &MachineCalibration<'_>,
    part: usize,
) -> Seconds {
    let messages = step.messages.iter().flat_map(|parts| &parts[part]);
    let Some(message) = messages.max_by_key(|message| message.times) else { return Seconds(0.0) };
    let bytes = Bytes(call::ELEMENT.0 * message.len as u64);
    let costs = machine.costs(&interconnect.costs);
    let link = if interconnect.is_one_host() { costs.memory } else { None };
    link.unwrap_or(costs.messages).seconds(bytes)
}
