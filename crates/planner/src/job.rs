//! A training job: a model on a cluster in a layout, and the rules that make the layout valid.

use crate::calibration::Calibration;
use crate::collective::links::Links;
use crate::framework::{Framework, LayerSplit};
use crate::hardware::Cluster;
use crate::layout::Layout;
use crate::model::Model;

/// A model on a cluster in a layout.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// Model to train.
    pub model: &'a Model,
    /// Cluster to train on.
    pub cluster: &'a Cluster,
    /// Parallel layout.
    pub layout: Layout,
    /// Global batch in sequences.
    pub batch: u64,
    /// Training framework.
    pub framework: Framework,
}

/// A job with the achieved speed of its devices, to be priced. A search replaces its layout.
#[derive(Debug, Clone, Copy)]
pub struct Workload<'a> {
    /// Model, cluster and layout.
    pub job: Job<'a>,
    /// Calibration of the device type.
    pub calibration: &'a Calibration,
    /// Share of the device memory that a layout must leave free.
    pub reserve: f64,
}

impl<'a> Workload<'a> {
    /// The workload in another layout.
    pub const fn with(&self, layout: Layout) -> Self {
        Self { job: Job { layout, ..self.job }, ..*self }
    }

    /// Device memory that a layout may use.
    pub fn usable_bytes(&self) -> f64 {
        (1.0 - self.reserve) * self.job.cluster.device.memory_bytes()
    }

    /// Links of the cluster at their achieved speed.
    pub(crate) const fn links(&self) -> Links<'a> {
        Links::new(self.job.cluster, self.calibration)
    }
}

impl Job<'_> {
    /// Micro-batches per replica and step.
    pub const fn num_microbatches(&self) -> u64 {
        self.batch / (self.layout.data * self.layout.microbatch)
    }

    /// Tokens of a micro-batch on one device.
    pub fn tokens(&self) -> f64 {
        (self.layout.microbatch * self.model.context) as f64 / self.layout.context as f64
    }

    /// Number of data-parallel ranks that share the optimizer state under ZeRO.
    pub(crate) fn zero_shards(&self) -> f64 {
        let all = (self.layout.data * self.layout.context) as f64;
        self.framework.zero_group.map_or(all, |group| (group as f64).min(all))
    }

    /// Whether a pipeline keeps gathered weights and whole gradients until the step ends.
    pub(crate) const fn keeps_gathered(&self) -> bool {
        self.framework.keeps_gathered_in_stages && self.layout.pipeline > 1
    }

    /// ZeRO stage by which model states are sharded in memory.
    pub(crate) fn sharded_stage(&self) -> u8 {
        if self.keeps_gathered() { self.layout.zero.min(1) } else { self.layout.zero }
    }

    /// Index of a stage's first layer, and its number of layers.
    pub(crate) fn layers_of(&self, stages: u64, stage: u64) -> (u64, u64) {
        let model = self.model;
        match self.framework.layer_split {
            _ if stages == 1 => return (0, model.layers),
            LayerSplit::Even => return even(model.layers, stages, stage),
            LayerSplit::ExtraAtEnd => return extra_at_end(model.layers, stages, stage),
            LayerSplit::ByCost => {}
        }
        let layer = model.attention_matrices() + model.ffn_matrices(model.ffn);
        let head = (model.vocab * model.width) as f64 / layer as f64;
        let each = (model.layers as f64 + head) / stages as f64;
        // A layer belongs to the stage whose share of the cost is not yet used up before it. The
        // tolerance keeps evenly divided shares from shifting by a rounding error.
        let first = |stage: u64| {
            let used = (each * stage as f64 - 1e-9).max(0.0);
            (used.ceil() as u64).min(model.layers)
        };
        let end = if stage + 1 == stages { model.layers } else { first(stage + 1) };
        (first(stage), end - first(stage))
    }

    /// Suggestion that uses all devices of the cluster: another data degree, or fewer stages as
    /// well.
    fn suggest_degrees(&self) -> String {
        let (layout, devices) = (&self.layout, self.cluster.devices);
        let per_replica = |stages: u64| (layout.tensor * layout.context * stages).max(1);
        let fits = |stages: &u64| devices.is_multiple_of(per_replica(*stages));
        match (1..=layout.pipeline).rev().find(fits) {
            None => format!("try tensor and context that divide {devices}"),
            Some(stages) if stages == layout.pipeline => {
                format!("try data = {}", devices / per_replica(stages))
            }
            Some(stages) => {
                format!("try pipeline = {stages}, data = {}", devices / per_replica(stages))
            }
        }
    }

    /// All violated rules, each with a value that would work.
    pub fn problems(&self) -> Vec<String> {
        let (model, layout) = (self.model, &self.layout);
        let mut wrong = Vec::new();
        let mut divides = |what: &str, degree: u64, of: &str, whole: u64| {
            if degree == 0 {
                wrong.push(format!("{what} = 0 must be at least 1; try 1"));
            } else if !whole.is_multiple_of(degree) {
                let fits = (1..=degree).rev().find(|part| whole.is_multiple_of(*part)).unwrap_or(1);
                wrong.push(format!("{what} = {degree} does not divide {of} = {whole}; try {fits}"));
            }
        };
        divides("tensor", layout.tensor, "heads", model.heads);
        divides("tensor", layout.tensor, "ffn", model.ffn);
        divides("context", layout.context, "tokens of a sequence", model.context);
        divides("expert", layout.expert, "data", layout.data);
        if let Some(experts) = model.experts {
            divides("expert", layout.expert, "experts", experts.num);
        } else if layout.expert > 1 {
            wrong.push(format!("expert = {} but the model has none; try 1", layout.expert));
        }
        let per_round = layout.data * layout.microbatch;
        if per_round == 0 || !self.batch.is_multiple_of(per_round) {
            wrong.push(format!(
                "batch = {} is no multiple of data x microbatch = {} x {}; try {}",
                self.batch,
                layout.data,
                layout.microbatch,
                self.batch.div_ceil(per_round.max(1)) * per_round.max(1)
            ));
        }
        // The last stages may hold only the embedding and the head.
        if layout.pipeline * layout.chunks > model.layers + 2 {
            wrong.push(format!(
                "pipeline x stages = {} x {} are more than {} layers; try pipeline = {}",
                layout.pipeline, layout.chunks, model.layers, model.layers
            ));
        }
        if layout.devices() != self.cluster.devices {
            wrong.push(format!(
                "tensor x pipeline x context x data = {} devices, and the cluster has {}; {}",
                layout.devices(),
                self.cluster.devices,
                self.suggest_degrees(),
            ));
        }
        wrong
    }
}

/// First layer and layer count of a stage. When layers do not divide evenly the last stage has one
/// fewer, then stages from the front on, since these also hold the head and the embedding.
fn even(layers: u64, stages: u64, stage: u64) -> (u64, u64) {
    let most = layers.div_ceil(stages);
    let missing = most * stages - layers;
    let short = missing.saturating_sub(1);
    let before = stage * most - stage.min(short);
    let is_short = stage < short || (stage + 1 == stages && missing > 0);
    (before, most - u64::from(is_short))
}

/// First layer and layer count of a stage, with the remainder on the last stages.
const fn extra_at_end(layers: u64, stages: u64, stage: u64) -> (u64, u64) {
    let (each, more) = (layers / stages, layers % stages);
    let before = (stage + more).saturating_sub(stages);
    (stage * each + before, each + (stage + more >= stages) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    fn problems(tensor: u64, pipeline: u64, data: u64) -> Vec<String> {
        let scenario = Scenario::of("bloom-176b", "384xa100-80gb", 2304);
        let layout = Layout { tensor, pipeline, data, ..Layout::ONE };
        scenario.workload().with(layout).job.problems()
    }

    #[test]
    fn blooms_384_devices_are_8_by_12_by_4_and_not_48_by_12_by_4() {
        // The 48 nodes are not the data-parallel degree.
        assert_eq!(problems(4, 12, 8), Vec::<String>::new());
        let wrong = problems(4, 12, 48);
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        assert!(wrong[0].contains("2304 devices") && wrong[0].contains("try data = 8"));
        // 7 stages divide no number of the remaining devices, and 384 is no multiple of 9.
        assert!(problems(4, 7, 8)[0].ends_with("try pipeline = 6, data = 16"));
        assert!(problems(1, 1, 384).is_empty() && problems(9, 1, 8).len() > 1);
    }

    #[test]
    fn stages_at_the_ends_have_fewer_layers_where_they_do_not_divide() {
        let counts = |layers, stages| -> Vec<u64> {
            (0..stages).map(|stage| even(layers, stages, stage).1).collect()
        };
        assert_eq!(counts(22, 8), [2, 3, 3, 3, 3, 3, 3, 2]);
        assert_eq!(counts(24, 8), [3; 8]);
        assert_eq!(counts(7, 1), [7]);
    }

    #[test]
    fn stages_at_the_end_may_have_more_layers_where_they_do_not_divide() {
        let parts: Vec<_> = (0..5).map(|stage| extra_at_end(32, 5, stage)).collect();
        assert_eq!(parts, [(0, 6), (6, 6), (12, 6), (18, 7), (25, 7)]);
        assert_eq!(extra_at_end(32, 4, 3), (24, 8));
    }

    #[test]
    fn stages_split_by_cost_leave_room_for_the_head() {
        let framework = Framework { layer_split: LayerSplit::ByCost, ..Framework::MODERN };
        let scenario = Scenario::of("llama-1.34b", "8xh100-80gb", 8);
        let job = Job { framework, ..scenario.workload().job };
        let counts: Vec<u64> = (0..8).map(|stage| job.layers_of(8, stage).1).collect();
        assert_eq!(counts.iter().sum::<u64>(), 16);
        assert!(counts[0] == 3 && counts[7] == 0, "{counts:?}");
        // The head costs as much as four layers, so two stages of ten divide evenly.
        assert_eq!([0, 1].map(|stage| job.layers_of(2, stage)), [(0, 10), (10, 6)]);
    }

    #[test]
    fn all_violated_rules_are_reported_together() {
        let wrong = problems(5, 80, 7);
        assert!(wrong.len() >= 4, "{wrong:?}");
        assert!(wrong.iter().all(|line| line.contains("; try ")), "{wrong:?}");
    }
}
