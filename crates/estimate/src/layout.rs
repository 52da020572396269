//! How a model is divided among devices, and which divisions are possible.
//!
//! Neighbouring ranks share a layer (tensor), then a sequence (context), then copies (data), then
//! stages (pipeline); experts lie inside the data axis. So the axis that talks most sits on the
//! fastest links.

use crate::hardware::Cluster;
use crate::model::Model;
use lockstep_schedule::pipeline::Kind;
use std::fmt::Write;

/// What is computed again in backward instead of kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Recompute {
    /// Nothing.
    None,
    /// Scores of attention.
    Selective,
    /// Everything but the input of a layer.
    Full,
}

/// The degrees and switches of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Holders of slices of a layer (t).
    pub tensor: u64,
    /// Whether they divide the rows of what is not sliced.
    pub sequence: bool,
    /// Stages' devices (p).
    pub pipeline: u64,
    /// Stages of each (v).
    pub chunks: u64,
    /// Order of a pipeline's passes.
    pub schedule: Kind,
    /// Parts of a sequence (c).
    pub context: u64,
    /// Holders of different experts (e), inside the data axis.
    pub expert: u64,
    /// Copies (d).
    pub data: u64,
    /// Stage of ZeRO.
    pub zero: u8,
    /// Whether the optimizer's states lie in the host's memory, where the host updates them.
    pub offload: bool,
    /// Sequences of a microbatch (b).
    pub microbatch: u64,
    /// What is computed again.
    pub recompute: Recompute,
}

/// What a training program does beside the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a habit of its own")]
pub struct Habits {
    /// Bytes of a gradient that is added up over microbatches.
    pub gradient_bytes: u64,
    /// Bytes that adding a microbatch's gradient to the others' moves for each parameter; 0 where
    /// the product does it.
    pub adding_bytes: u64,
    /// Bytes of a gradient on its way to other copies.
    pub wire_bytes: u64,
    /// Whether products are of 8-bit floats.
    pub fp8: bool,
    /// Whether gradients leave while backward goes on.
    pub overlap: bool,
    /// Bytes of gradients that leave together, however many copies there are; if not said, more of
    /// them with more copies.
    pub together_bytes: Option<u64>,
    /// Whether ZeRO's third stage fetches tensor by tensor instead of layer by layer.
    pub fetches_by_tensor: bool,
    /// Whether ZeRO's first stages divide every tensor by itself.
    pub shards_by_tensor: bool,
    /// Copies among which ZeRO divides, if not all.
    pub zero_group: Option<u64>,
    /// Whether norms, rotations and gates are kernels of their own that keep what they read.
    pub eager: bool,
    /// How layers are dealt out to stages.
    pub cut: Cut,
    /// Bytes of a logit while its loss is computed.
    pub logit_bytes: u64,
    /// Bytes of buckets for each parameter, where copies add up gradients in buckets of their own.
    pub bucket_bytes: u64,
    /// Bytes for each updated parameter that exist during the update alone: gradients that are
    /// widened then, and temporaries of an update that is no single kernel.
    pub update_bytes: u64,
    /// Whether selective recomputation keeps what every second product gives, and nothing else.
    pub keeps_products: bool,
    /// Whether weights are divided in 32 bits alone, and cast when they are fetched.
    pub casts_fetched: bool,
    /// Whether holders of slices wait for each other's hosts before every message, where stages
    /// lie in several nodes.
    pub waits_in_stages: bool,
    /// Whether messages between holders of slices go piece by piece beside their products.
    pub slices_piecewise: bool,
    /// Whether stages have a place for every microbatch's messages, and keep what they give until
    /// the step is over.
    pub keeps_messages: bool,
    /// What its figures of memory count.
    pub reports: Reported,
}

/// How layers are dealt out to stages where they do not divide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The last has one less, and then those from the front on.
    Even,
    /// Those at the end have one more.
    LongerAtEnd,
    /// By cost, with the head counted as the layers that it is worth.
    ByCost,
}

/// What a published figure of memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reported {
    /// What tensors take at the peak, on the fullest device.
    Allocated,
    /// What the allocator took from the device, holes and all, on the fullest one.
    Reserved,
    /// The same on the pipeline's first device, which writes the log.
    ReservedByFirst,
}

impl Habits {
    /// bf16 with 32-bit gradients, which leave while backward goes on.
    pub const MODERN: Self = Self {
        gradient_bytes: 4,
        adding_bytes: 0,
        wire_bytes: 4,
        fp8: false,
        overlap: true,
        together_bytes: None,
        fetches_by_tensor: false,
        shards_by_tensor: false,
        zero_group: None,
        eager: false,
        cut: Cut::Even,
        logit_bytes: 10,
        bucket_bytes: 0,
        update_bytes: 0,
        keeps_products: false,
        casts_fetched: false,
        waits_in_stages: false,
        slices_piecewise: false,
        keeps_messages: false,
        reports: Reported::Allocated,
    };
}

/// A model on a cluster in a layout.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// What is trained.
    pub model: &'a Model,
    /// On what.
    pub cluster: &'a Cluster,
    /// How it is divided.
    pub layout: Layout,
    /// Sequences of a step.
    pub batch: u64,
    /// What the program does beside.
    pub habits: Habits,
}

impl Layout {
    /// One device.
    pub const ONE: Self = Self {
        tensor: 1,
        sequence: false,
        pipeline: 1,
        chunks: 1,
        schedule: Kind::OneFOneB,
        context: 1,
        expert: 1,
        data: 1,
        zero: 0,
        offload: false,
        microbatch: 1,
        recompute: Recompute::None,
    };

    /// Devices that it takes.
    pub const fn devices(&self) -> u64 {
        self.tensor * self.pipeline * self.context * self.data
    }

    /// `t8 p12 d4 b1, 1f1b, zero 1, selective`.
    pub fn brief(&self) -> String {
        let mut text = format!("t{} p{} d{}", self.tensor, self.pipeline, self.data);
        for (letter, degree) in [("v", self.chunks), ("c", self.context), ("e", self.expert)] {
            if degree > 1 {
                let _ = write!(text, " {letter}{degree}");
            }
        }
        let _ = write!(text, " b{}", self.microbatch);
        if self.pipeline > 1 {
            let _ = write!(text, ", {}", self.schedule);
        }
        if self.zero > 0 {
            let _ = write!(text, ", zero {}", self.zero);
        }
        if self.sequence {
            text += ", sequence";
        }
        if self.offload {
            text += ", offload";
        }
        match self.recompute {
            Recompute::None => text,
            Recompute::Selective => text + ", selective",
            Recompute::Full => text + ", full recompute",
        }
    }
}

impl Job<'_> {
    /// Microbatches of a copy in a step.
    pub const fn num_microbatches(&self) -> u64 {
        self.batch / (self.layout.data * self.layout.microbatch)
    }

    /// Tokens of a microbatch on one device.
    pub fn tokens(&self) -> f64 {
        (self.layout.microbatch * self.model.context) as f64 / self.layout.context as f64
    }

    /// Layers before a stage, and its own.
    pub(crate) fn layers_of(&self, stages: u64, stage: u64) -> (u64, u64) {
        let model = self.model;
        match self.habits.cut {
            _ if stages == 1 => return (0, model.layers),
            Cut::Even => return even(model.layers, stages, stage),
            Cut::LongerAtEnd => return longer_at_end(model.layers, stages, stage),
            Cut::ByCost => {}
        }
        let layer = model.attention_matrices() + model.ffn_matrices(model.ffn);
        let head = (model.vocab * model.width) as f64 / layer as f64;
        let each = (model.layers as f64 + head) / stages as f64;
        // A layer belongs to the stage whose share of the cost is not yet used up before it; where
        // shares divide evenly, that is not up to a rounding.
        let first = |stage: u64| {
            let used = (each * stage as f64 - 1e-9).max(0.0);
            (used.ceil() as u64).min(model.layers)
        };
        let end = if stage + 1 == stages { model.layers } else { first(stage + 1) };
        (first(stage), end - first(stage))
    }

    /// What would take all devices of the cluster: other copies, or fewer stages too.
    fn refilled(&self) -> String {
        let (layout, devices) = (&self.layout, self.cluster.devices);
        let of_copy = |stages: u64| (layout.tensor * layout.context * stages).max(1);
        let fits = |stages: &u64| devices.is_multiple_of(of_copy(*stages));
        match (1..=layout.pipeline).rev().find(fits) {
            None => format!("try tensor and context that divide {devices}"),
            Some(stages) if stages == layout.pipeline => {
                format!("try data = {}", devices / of_copy(stages))
            }
            Some(stages) => {
                format!("try pipeline = {stages}, data = {}", devices / of_copy(stages))
            }
        }
    }

    /// Everything that does not divide, each with what would.
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
        // Where layers do not fill the last stages these hold the embedding and the head alone.
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
                self.refilled(),
            ));
        }
        wrong
    }
}

/// Layers before a stage, and its own: where they do not divide, the last has one less, and then
/// those from the front on, since they have the head and the embedding besides.
fn even(layers: u64, stages: u64, stage: u64) -> (u64, u64) {
    let most = layers.div_ceil(stages);
    let missing = most * stages - layers;
    let short = missing.saturating_sub(1);
    let before = stage * most - stage.min(short);
    let is_short = stage < short || (stage + 1 == stages && missing > 0);
    (before, most - u64::from(is_short))
}

/// Layers before a stage, and its own, where stages at the end have what does not divide.
const fn longer_at_end(layers: u64, stages: u64, stage: u64) -> (u64, u64) {
    let (each, more) = (layers / stages, layers % stages);
    let before = (stage + more).saturating_sub(stages);
    (stage * each + before, each + (stage + more >= stages) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::named;
    use crate::model::preset;

    fn problems(tensor: u64, pipeline: u64, data: u64) -> Vec<String> {
        let model = preset("bloom-176b").expect("it is one");
        let cluster = named("384xa100-80gb").expect("a cluster");
        let layout = Layout { tensor, pipeline, data, ..Layout::ONE };
        let habits = Habits::MODERN;
        Job { model: &model, cluster: &cluster, layout, batch: 2304, habits }.problems()
    }

    #[test]
    fn blooms_384_devices_are_8_by_12_by_4_and_not_48_by_12_by_4() {
        // A lecture calls the 48 nodes the data-parallel groups.
        assert_eq!(problems(4, 12, 8), Vec::<String>::new());
        let wrong = problems(4, 12, 48);
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        assert!(wrong[0].contains("2304 devices") && wrong[0].contains("try data = 8"));
        // Seven stages leave nothing to multiply them with, and 384 devices are no multiple of 9.
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
        let parts: Vec<_> = (0..5).map(|stage| longer_at_end(32, 5, stage)).collect();
        assert_eq!(parts, [(0, 6), (6, 6), (12, 6), (18, 7), (25, 7)]);
        assert_eq!(longer_at_end(32, 4, 3), (24, 8));
    }

    #[test]
    fn stages_cut_by_cost_leave_room_for_the_head() {
        let model = preset("llama-1.34b").expect("it is one");
        let cluster = named("8xh100-80gb").expect("a cluster");
        let habits = Habits { cut: Cut::ByCost, ..Habits::MODERN };
        let layout = Layout { pipeline: 8, ..Layout::ONE };
        let job = Job { model: &model, cluster: &cluster, layout, batch: 8, habits };
        let counts: Vec<u64> = (0..8).map(|stage| job.layers_of(8, stage).1).collect();
        assert_eq!(counts.iter().sum::<u64>(), 16);
        assert!(counts[0] == 3 && counts[7] == 0, "{counts:?}");
        // Its head is worth four layers: two stages of ten each divide evenly.
        assert_eq!([0, 1].map(|stage| job.layers_of(2, stage)), [(0, 10), (10, 6)]);
    }

    #[test]
    fn everything_that_does_not_divide_is_told_at_once() {
        let wrong = problems(5, 80, 7);
        assert!(wrong.len() >= 4, "{wrong:?}");
        assert!(wrong.iter().all(|line| line.contains("; try ")), "{wrong:?}");
    }
}
