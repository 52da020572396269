//! The part of a plan that this workspace's engine trains: the one list of what is planned only.
//!
//! A plan prices more than the engine runs. Values that a recipe key lists (pipeline schedules) are
//! looked up there; the axes and architectures without a key are named here, and a test compares
//! both with the keys.

use super::{Layout, OffloadedStates};
use crate::job::Job;
use crate::model::{Model, QueryKeyNorms};
use lockstep_config::PipelineSchedule;

/// Calibration of the devices on which the engine trains.
const CPU_CALIBRATION: &str = "cpu";

/// Calibrations of NVIDIA devices with compute capability 8.0 or more, on which the engine trains.
/// Workers exchange through host memory, not over the links that a plan prices.
const GPU_CALIBRATIONS: [&str; 4] = ["a100", "ada", "h100", "b200"];

impl Layout {
    /// Parts of the layout that this engine does not have.
    pub fn unsupported(&self) -> Vec<String> {
        let mut parts = Vec::new();
        if self.context > 1 {
            parts.push(format!("context parallelism (CP{})", self.context));
        }
        if self.expert > 1 {
            parts.push(format!("expert parallelism (EP{})", self.expert));
        }
        if self.offload.has(OffloadedStates::Gradients) {
            parts.push(format!("{} of gradients", self.offload));
        }
        let schedule = self.schedule.to_string();
        if self.pipeline > 1 && PipelineSchedule::from_name(&schedule).is_none() {
            parts.push(format!("the {schedule} pipeline schedule"));
        }
        parts
    }
}

impl Model {
    /// Parts of the architecture that this engine does not have.
    pub fn unsupported(&self) -> Vec<String> {
        let mut parts = Vec::new();
        if self.experts.is_some() {
            parts.push("mixture-of-experts layers".to_owned());
        }
        if self.latent.is_some() {
            parts.push("multi-head latent attention".to_owned());
        } else if self.biases && self.head_dim * self.heads != self.width {
            parts.push(format!("{} heads of {} in {}", self.heads, self.head_dim, self.width));
        }
        if !(self.is_llama() || self.is_gpt2()) {
            parts.push(
                "an architecture other than Llama's, GPT-2's, GPT-NeoX's or BLOOM's".to_owned(),
            );
        }
        parts
    }

    fn is_llama(&self) -> bool {
        // With four norms it is Gemma 2.
        let has_norms = self.has_two_norms() || (self.layer_norms == 4 && self.extra_norms == 0);
        self.gated && !self.biases && self.positions == 0 && has_norms
    }

    fn is_gpt2(&self) -> bool {
        // Without learned ones it is GPT-NeoX, or BLOOM with a norm of the embedding.
        let has_positions = [0, self.context].contains(&self.positions);
        let is_bloom = self.positions == 0 && self.layer_norms == 2 && self.extra_norms == 1;
        let has_layer_norms = self.has_two_norms() || is_bloom;
        let has_norms = self.query_key_norms != QueryKeyNorms::None;
        let is_variant = self.query_key_value_biases || has_norms;
        !self.gated && self.biases && has_positions && has_layer_norms && !is_variant
    }

    const fn has_two_norms(&self) -> bool {
        self.layer_norms == 2 && self.extra_norms == 0
    }
}

impl Job<'_> {
    /// Parts of the plan that this engine does not have: of layout, model, precision and device.
    pub fn unsupported(&self) -> Vec<String> {
        let mut parts = self.layout.unsupported();
        parts.extend(self.model.unsupported());
        if self.framework.fp8 {
            parts.push("FP8 matmuls".to_owned());
        }
        let device = &self.cluster.device;
        if GPU_CALIBRATIONS.contains(&device.calibration) {
            if self.layout.devices() > 1 {
                parts.push(format!("direct transfers between {} devices", device.name));
            }
        } else if device.calibration != CPU_CALIBRATION {
            parts.push(format!("{} devices (it trains on CPUs and NVIDIA GPUs)", device.name));
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::Framework;
    use crate::hardware::named;
    use crate::model::{preset, presets};
    use crate::scenario::Scenario;
    use lockstep_config::{Recompute, Sources, describe_keys, resolve};
    use lockstep_schedule::pipeline::Kind;

    /// Whether a recipe with these settings resolves.
    fn resolves(sets: &[String]) -> bool {
        let sources =
            Sources { preset: Some("tiny".into()), sets: sets.to_vec(), ..Sources::default() };
        resolve(&sources).is_ok()
    }

    #[test]
    fn an_axis_is_supported_exactly_where_a_recipe_key_sets_its_degree() {
        let keys: Vec<_> = describe_keys().into_iter().map(|key| key.name.to_owned()).collect();
        let two = |change: &dyn Fn(&mut Layout)| {
            let mut layout = Layout::ONE;
            change(&mut layout);
            layout.unsupported().is_empty()
        };
        let axes: [(&str, bool); 5] = [
            ("tensor", two(&|layout| layout.tensor = 2)),
            ("pipeline", two(&|layout| layout.pipeline = 2)),
            ("data", two(&|layout| layout.data = 2)),
            ("context", two(&|layout| layout.context = 2)),
            ("expert", two(&|layout| layout.expert = 2)),
        ];
        for (axis, is_supported) in axes {
            let has_key = keys.contains(&format!("parallel.{axis}"));
            assert_eq!(is_supported, has_key, "{axis}");
        }
        assert!(axes.iter().any(|(_, is_supported)| !is_supported));
    }

    #[test]
    fn a_schedule_is_supported_exactly_where_a_recipe_with_it_resolves() {
        let workers = ["run.workers=2", "parallel.pipeline=2"].map(str::to_owned);
        for schedule in Kind::ALL {
            let layout = Layout { pipeline: 2, schedule, ..Layout::ONE };
            let mut sets = workers.to_vec();
            sets.push(format!("parallel.schedule={schedule}"));
            if schedule == Kind::Interleaved {
                sets.push("parallel.virtual_stages=2".to_owned());
            }
            assert_eq!(layout.unsupported().is_empty(), resolves(&sets), "{schedule}");
        }
    }

    #[test]
    fn all_other_options_of_a_layout_are_supported_and_have_values() {
        for zero in 0..=3_u8 {
            let layout = Layout { data: 2, zero, recompute: Recompute::Full, ..Layout::ONE };
            assert!(layout.unsupported().is_empty());
            let sets = [format!("parallel.zero={zero}"), "parallel.recompute=full".to_owned()];
            assert!(resolves(&sets), "{sets:?}");
        }
    }

    #[test]
    fn published_models_are_supported_by_architecture() {
        let is_supported = |name: &str| preset(name).expect("it is one").unsupported().is_empty();
        for name in ["gpt3-175b", "llama-65b", "llama3-70b", "bloom-176b"] {
            assert!(is_supported(name), "{name}");
        }
        let neox = Model { positions: 0, ..preset("gpt3-175b").expect("it is one") };
        assert!(neox.unsupported().is_empty());
        assert!(!is_supported("palm-8b"));
        let of_experts = presets().into_iter().filter(|model| model.experts.is_some());
        assert!(of_experts.map(|model| model.unsupported()).all(|parts| !parts.is_empty()));
    }

    #[test]
    fn every_unsupported_part_is_named() {
        let scenario = Scenario::of("llama3-70b", "256xh100-80gb", 512);
        let layout = Layout { context: 4, ..Layout::ONE };
        let framework = Framework { fp8: true, ..Framework::MODERN };
        let job = Job { layout, framework, ..scenario.workload().job };
        let on_cpus = named("256xepyc-9654").expect("a cluster");
        let plain = Layout { data: 256, ..Layout::ONE };
        let trained = Job { cluster: &on_cpus, layout: plain, framework: Framework::MODERN, ..job };
        assert!(trained.unsupported().is_empty());
        assert_eq!(
            job.unsupported(),
            [
                "context parallelism (CP4)",
                "FP8 matmuls",
                "direct transfers between h100-80gb devices"
            ]
        );
        let alone = Job { layout: Layout::ONE, framework: Framework::MODERN, ..job };
        assert!(alone.unsupported().is_empty(), "one GPU trains");
        let on_tpus = named("256xtpu-v4").expect("a cluster");
        let other = Job { cluster: &on_tpus, ..trained };
        let reason = "tpu-v4 devices (it trains on CPUs and NVIDIA GPUs)";
        assert_eq!(other.unsupported(), [reason]);
    }
}
