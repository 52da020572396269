//! Evaluation metrics of a problem: accuracy, or distance from the optimum.
//!
//! Both are computed from the weights over whole sets of samples, independently of the engine:
//! accuracy on the held-out samples; the mean training loss, in `f64`, above its minimum. Weights
//! are `f32`, so the distance from the optimum cannot fall far below 1e-7 of its norm, and the
//! suboptimality not below the square of that.

use super::curvature::{self, LargestEigenvalue};
use super::optimum::{Objective, Optimum};
use super::samples::Samples;
use crate::blueprint::Blueprint;
use crate::decode::Decoder;
use lockstep_config::{Family, Model};
use lockstep_tensor::device::{Device, Result};
use lockstep_tensor::math::scalar;
use std::ops::Range;

/// Evaluator of the solutions of a problem.
#[derive(Debug)]
pub struct ProblemEvaluator(Measure);

#[derive(Debug)]
enum Measure {
    /// Held-out samples and their classes.
    Classification {
        held_out: Range<usize>,
        targets: Vec<f32>,
    },
    Convex {
        objective: Objective,
        optimum: Optimum,
    },
}

/// Metrics of a solution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ProblemMetrics {
    /// Metrics of a classifier.
    Classification {
        /// Accuracy on held-out samples.
        accuracy: f64,
    },
    /// Metrics of a convex problem.
    Convex {
        /// Minimum of the mean training loss.
        optimum_loss: f64,
        /// Loss above the minimum.
        suboptimality: f64,
        /// Euclidean distance from the optimum.
        distance: f64,
    },
}

impl ProblemEvaluator {
    /// Makes the evaluator of a problem and computes its optimum; none for a language model.
    pub fn new(model: &Model) -> Option<Self> {
        let measure = match model.family {
            Family::Mlp => {
                let samples = Samples::new(model);
                let held_out = samples.held_out();
                Measure::Classification { targets: samples.targets(held_out.clone()), held_out }
            }
            family if family.is_problem() => {
                let objective = Objective::of(model);
                Measure::Convex { optimum: objective.optimum(), objective }
            }
            _ => return None,
        };
        Some(Self(measure))
    }

    /// Baseline loss: of uniform class probabilities, or of zero weights.
    pub fn baseline_loss(&self) -> f64 {
        match &self.0 {
            Measure::Classification { .. } => scalar::ln(super::digits::NUM_CLASSES as f64),
            Measure::Convex { objective, .. } => objective.at(&vec![0.0; objective.dim()]),
        }
    }

    /// Largest curvature of a convex problem at its optimum. That of the quadratic and of ridge
    /// regression is constant; that of logistic regression is at most a quarter of ridge
    /// regression's, and smallest where the prediction is certain. None for a classifier.
    pub fn largest_curvature(&self) -> Option<LargestEigenvalue> {
        match &self.0 {
            Measure::Classification { .. } => None,
            Measure::Convex { objective, optimum } => {
                Some(curvature::largest(objective.dim(), |v| objective.product(&optimum.x, v)))
            }
        }
    }

    /// Metrics of the parameters of each block.
    pub fn evaluate(
        &self,
        device: &dyn Device,
        blueprint: &Blueprint,
        params: &[Vec<f32>],
    ) -> Result<ProblemMetrics> {
        Ok(match &self.0 {
            Measure::Classification { held_out, targets } => {
                let mut decoder = Decoder::new(blueprint, device, 1)?;
                let mut num_right = 0;
                for (sample, target) in held_out.clone().zip(targets) {
                    decoder.reset();
                    let logits = decoder.feed(params, &[sample as u32])?;
                    num_right += usize::from(argmax(logits) == *target as usize);
                }
                let accuracy = num_right as f64 / held_out.len() as f64;
                ProblemMetrics::Classification { accuracy }
            }
            Measure::Convex { objective, optimum } => {
                let x: Vec<f64> = params.iter().flatten().map(|x| f64::from(*x)).collect();
                let differences = x.iter().zip(&optimum.x).map(|(x, best)| x - best);
                ProblemMetrics::Convex {
                    optimum_loss: optimum.loss,
                    suboptimality: objective.at(&x) - optimum.loss,
                    distance: differences.fold(0.0, |sum, d| sum + d * d).sqrt(),
                }
            }
        })
    }
}

/// Index of the largest number; the first of equals.
fn argmax(numbers: &[f32]) -> usize {
    let mut best = 0;
    for (index, number) in numbers.iter().enumerate() {
        if *number > numbers[best] {
            best = index;
        }
    }
    best
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::describe;
    use lockstep_config::{Activation, GptNeox, LlamaVariant, Lora, Mup, Problem};
    use lockstep_tensor::{Cpu, Isa};

    pub(crate) const CONVEX: [Family; 3] = [Family::Quadratic, Family::Ridge, Family::Logistic];

    /// A small convex problem.
    pub(crate) fn convex(family: Family) -> Model {
        Model {
            family,
            layers: 1,
            width: 8,
            heads: 1,
            kv_heads: 1,
            ffn: 1,
            vocab: 1,
            context: 1,
            tied: false,
            dropout: 0.0,
            norm_eps: 1e-5,
            rope_theta: 1e4,
            variant: LlamaVariant::PLAIN,
            gpt_neox: GptNeox::PYTHIA,
            mup: Mup::OFF,
            lora: Lora::NONE,
            problem: Problem {
                samples: 60,
                held_out: 20,
                seed: 1,
                dim: 5,
                condition: 20.0,
                noise: 0.3,
                l2: 0.01,
                density: 1.0,
                activation: Activation::Relu,
            },
        }
    }

    #[test]
    fn the_optimum_has_no_suboptimality_and_zeros_have_the_baseline() {
        let cpu = Cpu::single(Isa::detect());
        for family in CONVEX {
            let model = convex(family);
            let (metrics, blueprint) = (ProblemEvaluator::new(&model).unwrap(), describe(&model));
            let Measure::Convex { optimum, .. } = &metrics.0 else { panic!("a convex problem") };
            let rounded = optimum.x.iter().map(|x| *x as f32).collect();
            for (x, is_best) in [(rounded, true), (vec![0.0; 5], false)] {
                let params = vec![vec![], x];
                let ProblemMetrics::Convex { optimum_loss, suboptimality, distance } =
                    metrics.evaluate(&cpu, &blueprint, &params).unwrap()
                else {
                    panic!("a convex problem")
                };
                assert_eq!(suboptimality < 1e-12, is_best, "{family}: {suboptimality}");
                assert_eq!(distance < 1e-6, is_best, "{family}: {distance}");
                let baseline = metrics.baseline_loss() - optimum_loss;
                assert!(is_best || (suboptimality - baseline).abs() < 1e-15);
            }
        }
    }

    #[test]
    fn an_untrained_classifier_guesses_and_a_language_model_has_no_evaluator() {
        let cpu = Cpu::single(Isa::detect());
        let model = convex(Family::Mlp);
        let (metrics, blueprint) = (ProblemEvaluator::new(&model).unwrap(), describe(&model));
        let params: Vec<_> =
            blueprint.blocks.iter().map(|block| vec![0.0; block.num_params()]).collect();
        let ProblemMetrics::Classification { accuracy } =
            metrics.evaluate(&cpu, &blueprint, &params).unwrap()
        else {
            panic!("a classifier")
        };
        // All logits are equal, so all predictions are the first class.
        assert!(accuracy < 0.4, "{accuracy}");
        assert!(ProblemEvaluator::new(&Model { family: Family::Llama, ..model }).is_none());
    }
}
