//! Model FLOP utilization (MFU; `PaLM`, Chowdhery et al. 2022): model FLOP/s over the peak of the
//! machines. Recomputed activations are no work of the model and do not count.

use lockstep_config::Recipe;
use lockstep_model::Blueprint;
use lockstep_parallel::from_recipe::{blueprint_of, blueprint_of_rank};

/// Work of a token, and the speed that the machines could have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Utilization {
    /// Model FLOPs of a token, forward and backward.
    pub flops_per_token: f64,
    /// Peak FLOP/s of the run's machines; none if unknown.
    pub peak_flops_per_second: Option<f64>,
}

impl Utilization {
    /// Utilization of a run whose ranks hold `blueprint`.
    pub(crate) fn new(recipe: &Recipe, blueprint: &Blueprint, peak: Option<f64>) -> Self {
        // A tensor-parallel rank holds a part of every layer.
        let flops = match recipe.num_tensor_shards() {
            1 => blueprint.flops_per_token(),
            _ => blueprint_of(recipe).flops_per_token(),
        };
        let flops_per_token = (flops.forward + flops.backward) as f64;
        let peak_flops_per_second = peak.filter(|peak| *peak > 0.0);
        Self { flops_per_token, peak_flops_per_second }
    }

    /// Shortest possible time of a step of a recipe, at a peak of all its machines together.
    pub fn least_step_seconds(recipe: &Recipe, peak: f64) -> f64 {
        let flops = Self::new(recipe, &blueprint_of_rank(recipe, 0), None).flops_per_token;
        flops * recipe.tokens_per_step() as f64 / peak
    }

    /// Share of the peak at a throughput.
    pub fn mfu(&self, tokens_per_second: f64) -> Option<f64> {
        let share = self.flops_per_token * tokens_per_second / self.peak_flops_per_second?;
        Some(share).filter(|share| share.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_config::{Sources, resolve};

    fn of_rank_zero(sets: &[&str]) -> Utilization {
        let sets = sets.iter().map(|set| (*set).to_owned()).collect();
        let sources = Sources { preset: Some("tiny".to_owned()), sets, ..Sources::default() };
        let recipe = resolve(&sources).expect("a sound recipe");
        Utilization::new(&recipe, &blueprint_of_rank(&recipe, 0), Some(1e9))
    }

    #[test]
    fn every_layout_has_the_work_of_the_whole_model() {
        let one = of_rank_zero(&[]);
        let tensor = of_rank_zero(&["run.workers=2", "parallel.tensor=2"]);
        let stages = of_rank_zero(&["run.workers=2", "parallel.pipeline=2"]);
        assert!(one.flops_per_token > 0.0);
        assert_eq!(one, stages);
        let difference = tensor.flops_per_token / one.flops_per_token - 1.0;
        assert!(difference.abs() < 0.01, "{difference}");
    }

    #[test]
    fn the_share_needs_a_peak() {
        let known = Utilization { flops_per_token: 2e6, peak_flops_per_second: Some(1e10) };
        assert_eq!(known.mfu(1000.0), Some(0.2));
        assert_eq!(known.mfu(f64::NAN), None);
        let unknown = Utilization { peak_flops_per_second: None, ..known };
        assert_eq!(unknown.mfu(1000.0), None);
    }
}
