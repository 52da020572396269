//! Validation loss on held-out micro-batches, summed in micro-batch order in `f64`; small problems
//! also report their own metrics.

use crate::TrainError;
use crate::microbatch::{microbatch_shape, preferences};
use crate::task_evaluation::{TaskEvaluation, TaskRequests};
use lockstep_comm::{Comm, CommError};
use lockstep_config::Recipe;
use lockstep_data::Validation;
use lockstep_model::Microbatch;
use lockstep_model::problem::{ProblemEvaluator, ProblemMetrics};
use lockstep_parallel::Replica;
use lockstep_tensor::Cpu;
use lockstep_tensor::device::View;
use std::collections::BTreeMap;

/// Whether the model is evaluated after `num_steps` steps: every `train.eval_every`, and at the
/// end of the run.
pub fn is_due(recipe: &Recipe, num_steps: u64, last_step: u64) -> bool {
    num_steps == last_step || recipe.is_due_every(recipe.train.eval_every, num_steps)
}

/// Whether the tasks of the recipe are evaluated after `num_steps` steps: every `eval.every`, and
/// when the run is over.
pub fn tasks_are_due(recipe: &Recipe, num_steps: u64, is_over: bool) -> bool {
    let is_due = is_over || recipe.is_due_every(recipe.eval.every, num_steps);
    is_due && !recipe.eval.tasks.is_empty()
}

/// Whether the validation loss reached `train.target_loss`.
pub fn is_reached(recipe: &Recipe, validation_loss: f64) -> bool {
    recipe.train.target_loss.is_some_and(|target| validation_loss <= target)
}

/// Evaluates the model during training.
pub struct Evaluator {
    validation: Validation,
    tasks: Vec<TaskRequests>,
    /// Metrics of a small problem, on rank 0.
    problem: Option<ProblemEvaluator>,
    /// Whether the solution of a small problem is evaluated.
    has_metrics: bool,
}

/// Result of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean loss on the held-out samples.
    pub validation_loss: f64,
    /// Metrics of a small problem's solution.
    pub metrics: Option<ProblemMetrics>,
    /// Loss of the small problem's constant predictor.
    pub baseline_loss: Option<f64>,
}

/// Results of the last evaluations of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// Of the held-out samples.
    pub evaluation: Option<Evaluation>,
    /// Of the tasks.
    pub tasks: Vec<TaskEvaluation>,
}

impl Evaluator {
    /// Evaluator of the held-out samples. Rank 0 also computes the optimum of a small problem,
    /// unless a custom model takes its place.
    pub fn new(
        recipe: &Recipe,
        validation: Validation,
        tasks: Vec<TaskRequests>,
        comm: &Comm,
        is_custom: bool,
    ) -> Self {
        let has_metrics = recipe.model.family.is_problem() && !is_custom;
        let is_evaluator = has_metrics && comm.group_rank() == 0;
        let problem = is_evaluator.then(|| ProblemEvaluator::new(&recipe.model)).flatten();
        Self { validation, tasks, problem, has_metrics }
    }

    /// Evaluates the model, or the mean of all workers' models if they differ. All workers call it
    /// together.
    pub fn evaluate(
        &self,
        replica: &mut Replica,
        cpu: &Cpu,
        recipe: &Recipe,
    ) -> Result<Evaluation, CommError> {
        replica.install_mean_weights()?;
        let found = Evaluation {
            validation_loss: validation_loss(replica, cpu, recipe, &self.validation)?,
            metrics: self.evaluate_problem(replica, cpu)?,
            baseline_loss: self.problem.as_ref().map(ProblemEvaluator::baseline_loss),
        };
        replica.restore_own_weights()?;
        Ok(found)
    }

    /// Answers the tasks with the model, or the mean of all workers' models if they differ. All
    /// workers call it together.
    pub fn evaluate_tasks(
        &self,
        replica: &mut Replica,
        cpu: &Cpu,
    ) -> Result<Vec<TaskEvaluation>, TrainError> {
        replica.install_mean_weights()?;
        let mut found = Vec::new();
        for task in &self.tasks {
            let evaluation = task.evaluate(replica, cpu, &mut |_, _| {})?;
            found.push(TaskEvaluation { log_likelihoods: None, ..evaluation });
        }
        replica.restore_own_weights()?;
        Ok(found)
    }

    /// Metrics of a small problem's solution. All workers contribute their parameters.
    fn evaluate_problem(
        &self,
        replica: &mut Replica,
        cpu: &Cpu,
    ) -> Result<Option<ProblemMetrics>, CommError> {
        if !self.has_metrics {
            return Ok(None);
        }
        let blueprint = replica.blueprint();
        let block_of: BTreeMap<_, _> =
            blueprint.owned_params().map(|(block, param)| (param.name.clone(), block)).collect();
        let mut params: Vec<_> =
            blueprint.blocks.iter().map(|block| vec![0.0; block.num_params()]).collect();
        replica.visit_params(|param, values| {
            params[block_of[&param.name]][param.range()].copy_from_slice(values);
            Ok::<_, CommError>(())
        })?;
        let Some(problem) = &self.problem else { return Ok(None) };
        Ok(Some(problem.evaluate(cpu, replica.blueprint(), &params)?))
    }
}

/// Mean loss over the validation micro-batches, in nats per token.
fn validation_loss(
    replica: &mut Replica,
    cpu: &Cpu,
    recipe: &Recipe,
    validation: &Validation,
) -> Result<f64, CommError> {
    let microbatch = |index: usize| {
        let microbatch = &validation.microbatches[index];
        Microbatch {
            shape: microbatch_shape(recipe),
            inputs: View::of(&microbatch.inputs),
            targets: View::of(&microbatch.targets),
            first_sample: microbatch.first_sample,
            num_targets: validation.num_targets,
            documents: (!microbatch.documents.is_empty()).then(|| View::of(&microbatch.documents)),
            preferences: (!microbatch.references.is_empty())
                .then(|| preferences(&microbatch.references, recipe.finetune.beta)),
        }
    };
    let sum = replica.evaluate(cpu, validation.microbatches.len(), &microbatch)?;
    Ok(sum / validation.num_targets as f64)
}
