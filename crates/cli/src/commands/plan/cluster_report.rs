//! What a cluster's plan says, for programs.

use super::cluster::Asked;
use super::upgrades::{Upgrade, upgrades};
use lockstep_estimate::bill::Bill;
use lockstep_estimate::hardware::Shared;
use lockstep_estimate::model::{Counted, step_flops};
use lockstep_estimate::risk::{self, Risk};
use lockstep_estimate::search::scaling::{self, Curve};
use lockstep_estimate::search::{Choice, Found, Lazy, report};
use lockstep_estimate::time;
use lockstep_estimate::{advice, batch};
use serde::Serialize;

/// Names are stable: scripts rely on them.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) feasible: bool,
    pub(super) model: String,
    pub(super) cluster: String,
    pub(super) devices: u64,
    pub(super) nodes: u64,
    pub(super) batch: u64,
    pub(super) batch_tokens: u64,
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
    pub(super) exchanges: Vec<ExchangeReport>,
    pub(super) bubble_fraction: f64,
    pub(super) mfu: f64,
    pub(super) tokens_per_second: f64,
    pub(super) tokens_per_second_per_device: f64,
    pub(super) days: f64,
    pub(super) dollars: f64,
    pub(super) bill: Bill,
    pub(super) layout: LayoutReport,
    pub(super) alternatives: Vec<Alternative>,
    pub(super) pareto: Vec<Alternative>,
    pub(super) why_the_second_lost: Option<String>,
    pub(super) nearly: Option<String>,
    pub(super) sync: Vec<advice::Way>,
    pub(super) lazy_layouts: Vec<LazyReport>,
    pub(super) critical_batch_tokens: f64,
    pub(super) batch_warning: Option<String>,
    pub(super) risk: Risk,
    pub(super) upgrades: Vec<Upgrade>,
    pub(super) strong_scaling: Option<Curve>,
    pub(super) weak_scaling: Option<Curve>,
}

/// Ranks that exchange, and the links that they fill.
#[derive(Serialize)]
pub(super) struct ExchangeReport {
    among: &'static str,
    ranks: u64,
    stride: u64,
    fullest_links: &'static str,
}

impl ExchangeReport {
    pub(super) fn line(&self) -> String {
        let Self { among, ranks, stride, fullest_links } = self;
        let apart =
            if *stride == 1 { "neighbours".into() } else { format!("{stride} devices apart") };
        format!("  {ranks} {among}, {apart}, fill {fullest_links}\n")
    }
}

/// Operations of a step, by the definitions that are in use.
#[derive(Serialize)]
pub(super) struct Flops {
    /// What the model needs, all pairs of tokens.
    pub(super) model: f64,
    /// Only the pairs that causality leaves.
    pub(super) causal: f64,
    /// With everything computed again.
    pub(super) hardware: f64,
}

/// What is priced besides the layouts themselves.
#[derive(Clone, Copy)]
pub(super) struct More {
    /// Upgrades of resources.
    pub(super) what_if: bool,
    /// Other numbers of devices.
    pub(super) scaling: bool,
    /// The chance to lose more hours than these.
    pub(super) lost_hours: f64,
}

/// A layout with a way to keep copies together that is not plain; an estimate.
#[derive(Serialize)]
pub(super) struct LazyReport {
    pub(super) layout: String,
    pub(super) way: String,
    pub(super) seconds_to_the_same_loss: f64,
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
    pub(super) total_bytes: u64,
    pub(super) needed_bytes: u64,
    pub(super) device_bytes: u64,
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
    pub(super) microbatch: u64,
    pub(super) microbatches: u64,
    pub(super) recompute: String,
}

#[derive(Serialize)]
pub(super) struct Alternative {
    layout: LayoutReport,
    step_seconds: f64,
    /// What tensors take, and with holes and libraries.
    memory_bytes: u64,
    needed_bytes: u64,
    mfu: f64,
}

impl Report {
    pub(super) fn new(asked: &Asked, found: &Found, costs: &Bill, more: More) -> Self {
        let first = &found.best[0];
        let step = &first.step;
        let tokens = (asked.batch * asked.model.context) as f64;
        let alternative = |choice: &Choice| Alternative {
            layout: layout(asked, choice),
            step_seconds: choice.step.seconds,
            memory_bytes: choice.memory.total() as u64,
            needed_bytes: choice.memory.needed(&asked.calibration) as u64,
            mfu: mfu(asked, choice.step.seconds),
        };
        let question = asked.question();
        Self {
            feasible: found.too_large < found.examined,
            model: asked.model.name.clone(),
            cluster: asked.cluster.name.clone(),
            devices: asked.cluster.devices,
            nodes: asked.cluster.nodes(),
            batch: asked.batch,
            batch_tokens: asked.batch * asked.model.context,
            tokens: asked.tokens,
            num_params: asked.model.num_params(),
            step_flops: flops(asked),
            layouts_examined: found.examined,
            layouts_too_large: found.too_large,
            memory: memory(asked, first),
            step_seconds: step.seconds,
            compute_seconds: step.compute,
            exposed_communication_seconds: step.exposed,
            update_seconds: step.update,
            host_seconds: step.host,
            loading_seconds: step.loading,
            exchanges: exchanges(asked, first),
            bubble_fraction: step.bubble / step.seconds,
            mfu: mfu(asked, step.seconds),
            tokens_per_second: tokens / step.seconds,
            tokens_per_second_per_device: tokens / step.seconds / asked.cluster.devices as f64,
            days: costs.days,
            dollars: costs.dollars,
            bill: *costs,
            layout: layout(asked, first),
            alternatives: found.best.iter().skip(1).map(alternative).collect(),
            pareto: found.pareto.iter().map(alternative).collect(),
            why_the_second_lost: found.best.get(1).map(|two| report::why_it_lost(first, two)),
            nearly: found.nearly.as_ref().map(|choice| report::what_it_needs(&question, choice)),
            sync: advice::ways(step, first.layout.zero > 0),
            lazy_layouts: found.lazy.iter().map(lazy).collect(),
            critical_batch_tokens: batch::critical_tokens(asked.model.num_active_params() as f64),
            batch_warning: batch::warning(tokens, asked.model.num_active_params() as f64),
            risk: risk::risk(&asked.cluster, costs, more.lost_hours),
            upgrades: if more.what_if { upgrades(asked, costs) } else { Vec::new() },
            strong_scaling: more.scaling.then(|| scaling::curve(&question, false)),
            weak_scaling: more.scaling.then(|| scaling::curve(&question, true)),
        }
    }

    /// The curves that were asked for, with their names.
    pub(super) fn curves(&self) -> Vec<(&'static str, &Curve)> {
        let strong = self.strong_scaling.as_ref().map(|curve| ("The same batch", curve));
        let weak = self.weak_scaling.as_ref().map(|curve| ("A batch that grows", curve));
        strong.into_iter().chain(weak).collect()
    }
}

fn lazy(choice: &Lazy) -> LazyReport {
    LazyReport {
        layout: choice.layout.brief(),
        way: choice.way.name.clone(),
        seconds_to_the_same_loss: choice.seconds,
        is_estimate: true,
    }
}

/// Share of the devices' peak that the model's own operations take, all pairs of tokens counted.
pub(super) fn mfu(asked: &Asked, seconds: f64) -> f64 {
    let peak = asked.cluster.device.peak() * asked.cluster.devices as f64;
    step_flops(&asked.model, asked.batch, Counted::Model) / (seconds * peak)
}

fn exchanges(asked: &Asked, choice: &Choice) -> Vec<ExchangeReport> {
    let job = asked.question().job(choice.layout);
    let report = |exchange: time::Exchange| ExchangeReport {
        among: exchange.what,
        ranks: exchange.group.ranks,
        stride: exchange.group.stride,
        fullest_links: match exchange.fullest {
            None => "links inside nodes",
            Some(Shared::Cards) => "the cards of nodes",
            Some(Shared::Rack) => "the uplinks of racks",
            Some(Shared::Spine) => "the uplinks of spines",
        },
    };
    time::exchanges(&job, &asked.calibration).into_iter().map(report).collect()
}

pub(super) fn flops(asked: &Asked) -> Flops {
    let counted = |who| step_flops(&asked.model, asked.batch, who);
    Flops {
        model: counted(Counted::Model),
        causal: counted(Counted::Causal),
        hardware: counted(Counted::Hardware),
    }
}

fn memory(asked: &Asked, choice: &Choice) -> Memory {
    let memory = &choice.memory;
    let buffers = memory.buffers + memory.peak;
    let parts = [memory.weights, memory.gradients, memory.optimizer, memory.activations, buffers]
        .map(|bytes| bytes as u64);
    Memory {
        stage: memory.stage,
        weights_bytes: parts[0],
        gradients_bytes: parts[1],
        optimizer_bytes: parts[2],
        activations_bytes: parts[3],
        buffers_bytes: parts[4],
        total_bytes: parts.iter().sum(),
        needed_bytes: memory.needed(&asked.calibration) as u64,
        device_bytes: asked.cluster.device.memory_bytes() as u64,
    }
}

fn layout(asked: &Asked, choice: &Choice) -> LayoutReport {
    let layout = &choice.layout;
    LayoutReport {
        brief: layout.brief(),
        tensor: layout.tensor,
        sequence: layout.sequence,
        pipeline: layout.pipeline,
        virtual_stages: layout.chunks,
        schedule: layout.schedule.to_string(),
        context: layout.context,
        expert: layout.expert,
        data: layout.data,
        zero: layout.zero,
        offload: layout.offload,
        microbatch: layout.microbatch,
        microbatches: asked.question().job(*layout).num_microbatches(),
        recompute: format!("{:?}", layout.recompute).to_lowercase(),
    }
}
