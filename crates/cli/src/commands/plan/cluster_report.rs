//! The plan for a cluster as JSON: types that serialize, filled from the search.

use lockstep_config::Recipe;
use lockstep_planner::bill::Bill;
use lockstep_planner::model::{FlopsConvention, step_flops};
use lockstep_planner::recipe::not_runnable;
use lockstep_planner::risk::{self, Risk};
use lockstep_planner::scenario::Scenario;
use lockstep_planner::search::scaling::{self, Curve};
use lockstep_planner::search::upgrades::{Upgrade, upgrades};
use lockstep_planner::search::{Candidate, LayoutWithSync, SearchResult, explain};
use lockstep_planner::time::bottleneck::{CommGroup, Limit, Resource, comm_groups, step_limits};
use lockstep_planner::{advice, batch};
use serde::Serialize;

/// A plan. Field names are stable: scripts rely on them.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) feasible: bool,
    /// Whether this engine can train the plan; `not_runnable` has the reasons where it cannot.
    pub(super) runnable: bool,
    pub(super) not_runnable: Vec<String>,
    pub(super) model: String,
    pub(super) cluster: String,
    pub(super) devices: u64,
    pub(super) nodes: u64,
    pub(super) batch: u64,
    pub(super) batch_tokens: u64,
    pub(super) context: u64,
    pub(super) precision: &'static str,
    pub(super) tokens: f64,
    pub(super) num_params: u64,
    pub(super) step_flops: Flops,
    pub(super) layouts_examined: usize,
    pub(super) layouts_too_large: usize,
    pub(super) memory: Memory,
    pub(super) step_seconds: f64,
    pub(super) compute_seconds: f64,
    pub(super) exposed_communication_seconds: f64,
    pub(super) update_seconds: f64,
    pub(super) host_seconds: f64,
    pub(super) loading_seconds: f64,
    /// Time of `bubble_fraction`; with the other parts it sums to `step_seconds`.
    pub(super) bubble_seconds: f64,
    pub(super) communication_groups: Vec<GroupReport>,
    /// Resources whose doubling shortens the step, the most effective first.
    pub(super) limits: Vec<Limit>,
    pub(super) bubble_fraction: f64,
    pub(super) mfu: f64,
    pub(super) tokens_per_second: f64,
    pub(super) tokens_per_second_per_device: f64,
    pub(super) tflops_per_device: f64,
    pub(super) days: f64,
    pub(super) dollars: f64,
    pub(super) bill: Bill,
    pub(super) layout: LayoutReport,
    pub(super) alternatives: Vec<Alternative>,
    pub(super) pareto: Vec<Alternative>,
    pub(super) why_second_is_slower: Option<String>,
    pub(super) almost_fits: Option<String>,
    pub(super) sync: Vec<advice::SyncMethod>,
    pub(super) layouts_with_sync: Vec<SyncLayoutReport>,
    pub(super) critical_batch_tokens: f64,
    pub(super) batch_warning: Option<String>,
    pub(super) risk: Risk,
    pub(super) upgrades: Vec<Upgrade>,
    pub(super) strong_scaling: Option<Curve>,
    pub(super) weak_scaling: Option<Curve>,
}

/// A communicator group and the link that limits it.
#[derive(Serialize)]
pub(super) struct GroupReport {
    pub(super) name: &'static str,
    pub(super) ranks: u64,
    pub(super) stride: u64,
    pub(super) bottleneck: &'static str,
}

/// FLOPs of a step by the conventions in use.
#[derive(Serialize)]
pub(super) struct Flops {
    /// Model FLOPs with full attention matrices, as PaLM and Megatron-LM count them.
    pub(super) model: f64,
    /// Model FLOPs with causal attention halved.
    pub(super) causal: f64,
    /// Hardware FLOPs with full recomputation.
    pub(super) hardware: f64,
}

/// Optional parts of a plan.
#[derive(Clone, Copy)]
pub(super) struct Extras {
    /// Upgrades of resources.
    pub(super) what_if: bool,
    /// Strong and weak scaling.
    pub(super) scaling: bool,
    /// Threshold of lost hours whose probability the plan reports.
    pub(super) lost_hours: f64,
}

/// A layout with another sync method than plain all-reduce; an estimate.
#[derive(Serialize)]
pub(super) struct SyncLayoutReport {
    pub(super) layout: String,
    pub(super) sync: String,
    pub(super) seconds_to_same_loss: f64,
    pub(super) is_estimate: bool,
}

#[derive(Serialize)]
pub(super) struct Memory {
    pub(super) stage: u64,
    pub(super) weights_bytes: u64,
    pub(super) gradients_bytes: u64,
    pub(super) optimizer_bytes: u64,
    pub(super) activations_bytes: u64,
    pub(super) buffers_bytes: u64,
    /// Sum of the parts above.
    pub(super) total_bytes: u64,
    pub(super) fragmentation_bytes: u64,
    pub(super) library_bytes: u64,
    /// `total_bytes` with fragmentation and libraries.
    pub(super) needed_bytes: u64,
    pub(super) device_bytes: u64,
    /// Part of `device_bytes` that a layout of the search leaves free.
    pub(super) reserve_bytes: u64,
    /// Offloaded states of a node's devices in its host's memory, of `host_memory_bytes`.
    pub(super) host_bytes: u64,
    pub(super) host_memory_bytes: u64,
    /// Offloaded states of a device on NVMe drives.
    pub(super) nvme_bytes: u64,
}

#[derive(Serialize)]
pub(super) struct LayoutReport {
    pub(super) brief: String,
    pub(super) tensor: u64,
    pub(super) sequence: bool,
    pub(super) pipeline: u64,
    pub(super) virtual_stages: u64,
    pub(super) schedule: String,
    pub(super) context: u64,
    pub(super) expert: u64,
    pub(super) data: u64,
    pub(super) zero: u8,
    pub(super) offload: bool,
    /// The offloaded states and their storage, as a layout prints them.
    pub(super) offloaded: Option<String>,
    pub(super) microbatch: u64,
    pub(super) microbatches: u64,
    pub(super) recompute: String,
    /// Parts of the layout that this engine does not have.
    pub(super) unsupported: Vec<String>,
}

#[derive(Serialize)]
pub(super) struct Alternative {
    layout: LayoutReport,
    step_seconds: f64,
    /// Bytes of tensors.
    memory_bytes: u64,
    /// Bytes of tensors, fragmentation and library overhead.
    needed_bytes: u64,
    mfu: f64,
}

impl Report {
    pub(super) fn new(
        recipe: Option<&Recipe>,
        scenario: &Scenario,
        found: &SearchResult,
        costs: &Bill,
        extras: Extras,
    ) -> Self {
        let first = &found.best[0];
        let not_runnable = not_runnable(recipe, scenario, &first.layout);
        let step = &first.step;
        let tokens = scenario.step_tokens() as f64;
        let alternative = |candidate: &Candidate| Alternative {
            layout: layout(scenario, candidate),
            step_seconds: candidate.step.seconds,
            memory_bytes: candidate.memory.total() as u64,
            needed_bytes: candidate.memory.needed(&scenario.calibration) as u64,
            mfu: scenario.mfu(candidate.step.seconds),
        };
        let workload = scenario.workload();
        let active_params = scenario.model.num_active_params() as f64;
        Self {
            feasible: found.too_large < found.examined,
            runnable: not_runnable.is_empty(),
            not_runnable,
            model: scenario.model.name.clone(),
            cluster: scenario.cluster.name.clone(),
            devices: scenario.cluster.devices,
            nodes: scenario.cluster.nodes(),
            batch: scenario.batch,
            batch_tokens: scenario.step_tokens(),
            context: scenario.model.context,
            precision: if workload.job.framework.fp8 { "fp8" } else { "bf16" },
            tokens: scenario.tokens,
            num_params: scenario.model.num_params(),
            step_flops: flops(scenario),
            layouts_examined: found.examined,
            layouts_too_large: found.too_large,
            memory: memory(scenario, first),
            step_seconds: step.seconds,
            compute_seconds: step.compute,
            exposed_communication_seconds: step.exposed,
            update_seconds: step.update,
            host_seconds: step.host,
            loading_seconds: step.loading,
            bubble_seconds: step.bubble,
            communication_groups: communication_groups(scenario, first),
            limits: step_limits(&workload.with(first.layout)),
            bubble_fraction: step.bubble / step.seconds,
            mfu: scenario.mfu(step.seconds),
            tokens_per_second: tokens / step.seconds,
            tokens_per_second_per_device: tokens / step.seconds / scenario.cluster.devices as f64,
            tflops_per_device: scenario.flops_per_device_second(step.seconds) / 1e12,
            days: costs.days,
            dollars: costs.dollars,
            bill: *costs,
            layout: layout(scenario, first),
            alternatives: found.best.iter().skip(1).map(alternative).collect(),
            pareto: found.pareto.iter().map(alternative).collect(),
            why_second_is_slower: found
                .best
                .get(1)
                .map(|two| explain::explain_runner_up(first, two)),
            almost_fits: found
                .almost_fits
                .as_ref()
                .map(|candidate| explain::explain_rejection(&workload, candidate)),
            sync: advice::sync_methods(step, first.layout.zero > 0),
            layouts_with_sync: found.with_sync.iter().map(sync_layout).collect(),
            critical_batch_tokens: batch::critical_tokens(active_params),
            batch_warning: batch::warning(tokens, active_params),
            risk: risk::risk(&scenario.cluster, costs, extras.lost_hours),
            upgrades: if extras.what_if { upgrades(scenario, costs) } else { Vec::new() },
            strong_scaling: extras.scaling.then(|| scaling::curve(&workload, false)),
            weak_scaling: extras.scaling.then(|| scaling::curve(&workload, true)),
        }
    }

    /// The scaling curves of the plan with their names.
    pub(super) fn curves(&self) -> Vec<(&'static str, &Curve)> {
        let strong =
            self.strong_scaling.as_ref().map(|curve| ("Strong scaling (fixed batch)", curve));
        let weak = self
            .weak_scaling
            .as_ref()
            .map(|curve| ("Weak scaling (batch grows with devices)", curve));
        strong.into_iter().chain(weak).collect()
    }
}

fn sync_layout(candidate: &LayoutWithSync) -> SyncLayoutReport {
    SyncLayoutReport {
        layout: candidate.layout.to_string(),
        sync: candidate.sync.name.clone(),
        seconds_to_same_loss: candidate.seconds,
        is_estimate: true,
    }
}

fn communication_groups(scenario: &Scenario, candidate: &Candidate) -> Vec<GroupReport> {
    let workload = scenario.workload().with(candidate.layout);
    let report = |group: CommGroup| GroupReport {
        name: group.name,
        ranks: group.group.ranks,
        stride: group.group.stride,
        bottleneck: group.bottleneck.map_or("latency", Resource::name),
    };
    comm_groups(&workload).into_iter().map(report).collect()
}

pub(super) fn flops(scenario: &Scenario) -> Flops {
    let counted = |convention| step_flops(&scenario.model, scenario.batch, convention);
    Flops {
        model: counted(FlopsConvention::Model),
        causal: counted(FlopsConvention::Causal),
        hardware: counted(FlopsConvention::Hardware),
    }
}

fn memory(scenario: &Scenario, candidate: &Candidate) -> Memory {
    let memory = &candidate.memory;
    let buffers = memory.buffers + memory.peak;
    let parts = [memory.weights, memory.gradients, memory.optimizer, memory.activations, buffers]
        .map(|bytes| bytes as u64);
    let total_bytes = parts.iter().sum();
    let needed_bytes = memory.needed(&scenario.calibration) as u64;
    let library_bytes = scenario.calibration.library_bytes() as u64;
    let device = scenario.cluster.device.memory_bytes();
    Memory {
        stage: memory.stage,
        weights_bytes: parts[0],
        gradients_bytes: parts[1],
        optimizer_bytes: parts[2],
        activations_bytes: parts[3],
        buffers_bytes: parts[4],
        total_bytes,
        // Parts are rounded down, so that they sum to the total.
        fragmentation_bytes: needed_bytes.saturating_sub(total_bytes + library_bytes),
        library_bytes,
        needed_bytes,
        device_bytes: device as u64,
        reserve_bytes: (scenario.reserve * device) as u64,
        host_bytes: memory.host_of_node(&scenario.cluster) as u64,
        host_memory_bytes: scenario.cluster.host_memory_bytes() as u64,
        nvme_bytes: memory.nvme as u64,
    }
}

fn layout(scenario: &Scenario, candidate: &Candidate) -> LayoutReport {
    let layout = &candidate.layout;
    LayoutReport {
        brief: layout.to_string(),
        tensor: layout.tensor,
        sequence: layout.sequence,
        pipeline: layout.pipeline,
        virtual_stages: layout.chunks,
        schedule: layout.schedule.to_string(),
        context: layout.context,
        expert: layout.expert,
        data: layout.data,
        zero: layout.zero,
        offload: layout.offload.is_on(),
        offloaded: layout.offload.is_on().then(|| layout.offload.to_string()),
        microbatch: layout.microbatch,
        microbatches: scenario.workload().with(*layout).job.num_microbatches(),
        recompute: format!("{:?}", layout.recompute).to_lowercase(),
        unsupported: layout.unsupported(),
    }
}
