//! Cache of layer costs across the layouts of one search.
//!
//! A search prices many thousands of layouts, most of which differ in how layers are assigned to
//! stages and replicas, not in the cost of a layer. Each distinct sharding of a layer is priced
//! once.

use super::layer::Passes;
use crate::job::{Job, Workload};
use lockstep_config::Recompute;
use std::collections::BTreeMap;

/// Passes of one micro-batch, by part of the model.
#[derive(Debug)]
pub(super) struct ModelPasses {
    /// A dense layer.
    pub(super) dense: Passes,
    /// A mixture-of-experts layer.
    pub(super) routed: Passes,
    /// The embedding in front of the first layer.
    pub(super) embedding: Passes,
    /// The head behind the last layer.
    pub(super) head: Passes,
}

impl ModelPasses {
    pub(super) fn new(workload: &Workload<'_>) -> Self {
        Self {
            dense: workload.layer(false),
            routed: workload.layer(true),
            embedding: workload.embedding(),
            head: workload.head(),
        }
    }
}

/// Everything in a layout that the passes of a layer depend on.
type LayerKey = ([u64; 5], [bool; 2], Recompute);

fn layer_key(job: &Job<'_>) -> LayerKey {
    let (layout, framework) = (&job.layout, &job.framework);
    // Some frameworks accumulate gradients separately, and some synchronize hosts in pipelines.
    let accumulations = if framework.accumulation_bytes > 0 { job.num_microbatches() } else { 0 };
    let syncs = framework.syncs_hosts_in_stages && layout.pipeline > 1;
    (
        [layout.tensor, layout.context, layout.expert, layout.microbatch, accumulations],
        [layout.sequence, syncs],
        layout.recompute,
    )
}

/// Priced layers of one workload (model, cluster, batch, framework, calibration).
#[derive(Debug, Default)]
pub struct LayerCache {
    passes: BTreeMap<LayerKey, ModelPasses>,
}

impl LayerCache {
    pub(super) fn passes(&mut self, workload: &Workload<'_>) -> &ModelPasses {
        self.passes.entry(layer_key(&workload.job)).or_insert_with(|| ModelPasses::new(workload))
    }
}
