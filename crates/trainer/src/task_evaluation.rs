//! Tasks of multiple choice, answered by log-likelihood.
//!
//! Requests are sorted by length and cut into micro-batches of the engine, so that a micro-batch
//! holds sequences of about one length. A log-likelihood depends on the weights and its own tokens
//! alone: it has the same bits in any order, on any number of threads and on any layout.

use crate::TrainError;
use crate::adapter_folder::ModelPath;
use crate::evaluation_model::ModelFolder;
use lockstep_config::{DeviceChoice, Recipe};
use lockstep_data::tasks::{Request, Task, TaskOptions};
use lockstep_data::{IGNORE, PAD, Tokenizer};
use lockstep_model::{Microbatch, MicrobatchShape};
use lockstep_parallel::Replica;
use lockstep_platform::World;
use lockstep_tensor::Cpu;
use lockstep_tensor::device::View;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Rows of a micro-batch of a loaded model: enough for every core, few enough for the logits of a
/// large vocabulary.
const MICROBATCH_ROWS: usize = 512;

/// Micro-batches of a rank between two reports of progress.
const MICROBATCHES_AT_ONCE: usize = 16;

/// Scores of a task. Field names are stable: scripts rely on them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskEvaluation {
    /// Name of the task.
    pub task: String,
    /// Number of questions.
    pub num_questions: usize,
    /// Number of examples in front of each question.
    pub num_fewshot: usize,
    /// Each metric of the task as a fraction, and its standard error as `metric_stderr`.
    #[serde(flatten)]
    pub scores: BTreeMap<String, f64>,
    /// Mean log-likelihood of the right choices, in nats; null where no document names one.
    pub log_likelihood: Option<f64>,
    /// Log-likelihoods of the choices of each question.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_likelihoods: Option<Vec<Vec<f64>>>,
}

/// A task with the tokens of its requests.
pub struct TaskRequests {
    task: Task,
    requests: Vec<Request>,
}

impl TaskRequests {
    /// Opens a task for a model with this tokenizer and context.
    pub fn open(
        path: &Path,
        options: TaskOptions,
        (tokenizer, context): (&Tokenizer, usize),
        world: &World,
    ) -> Result<Self, TrainError> {
        let task = Task::open(path, options, world.files())?;
        let requests = task.requests(tokenizer, context)?;
        Ok(Self { task, requests })
    }

    /// The tasks of a recipe, for its tokenizer.
    pub(crate) fn of_recipe(
        recipe: &Recipe,
        tokenizer: Option<&Tokenizer>,
        world: &World,
    ) -> Result<Vec<Self>, TrainError> {
        let Some(tokenizer) = tokenizer else { return Ok(Vec::new()) };
        let options = TaskOptions { num_examples: None, limit: recipe.eval.limit };
        let model = (tokenizer, recipe.model.context);
        let open = |path: &String| Self::open(Path::new(path), options, model, world);
        recipe.eval.tasks.iter().map(open).collect()
    }

    /// Number of tokens that the longest request feeds.
    fn longest(&self) -> usize {
        self.requests.iter().map(|request| request.tokens.len() - 1).max().unwrap_or(1)
    }

    /// Answers the task. Collective over the replica's ranks. `progress` receives the number of
    /// requests done and the total.
    pub fn evaluate(
        &self,
        replica: &mut Replica,
        cpu: &Cpu,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<TaskEvaluation, TrainError> {
        let mut order: Vec<usize> = (0..self.requests.len()).collect();
        order.sort_by_key(|index| std::cmp::Reverse(self.requests[*index].tokens.len()));
        let mut log_likelihoods = vec![0.0; self.requests.len()];
        let mut rest = &order[..];
        let num_at_once = MICROBATCHES_AT_ONCE * replica.groups().data().group_size();
        while !rest.is_empty() {
            let mut packed = Vec::new();
            while packed.len() < num_at_once
                && let Some(longest) = rest.first()
            {
                let num_tokens = self.requests[*longest].tokens.len() - 1;
                let shape = replica.evaluation_shape(num_tokens);
                let num = replica.num_evaluated_sequences(shape).min(rest.len());
                let (own, later) = rest.split_at(num);
                packed.push(Packed::new(shape, own, &self.requests));
                rest = later;
            }
            let microbatch = |index: usize| packed[index].microbatch();
            let losses = replica.sequence_losses(cpu, packed.len(), &microbatch)?;
            let mut losses = &losses[..];
            for Packed { shape, indices, .. } in &packed {
                let (own, later) = losses.split_at(shape.sequences);
                for (index, loss) in indices.iter().zip(own) {
                    log_likelihoods[*index] = -loss;
                }
                losses = later;
            }
            progress(order.len() - rest.len(), order.len());
        }
        Ok(self.evaluation(&log_likelihoods))
    }

    fn evaluation(&self, log_likelihoods: &[f64]) -> TaskEvaluation {
        let mut scores = BTreeMap::new();
        for score in self.task.scores(log_likelihoods) {
            let name = score.metric.name();
            scores.insert(name.to_owned(), score.value);
            if let Some(error) = score.standard_error {
                scores.insert(format!("{name}_stderr"), error);
            }
        }
        let mut rest = log_likelihoods;
        let of_question = |num_choices| {
            let (own, later) = rest.split_at(num_choices);
            rest = later;
            own.to_vec()
        };
        TaskEvaluation {
            task: self.task.name().to_owned(),
            num_questions: self.task.num_questions(),
            num_fewshot: self.task.num_examples(),
            scores,
            log_likelihood: self.task.mean_log_likelihood(log_likelihoods),
            log_likelihoods: Some(self.task.num_choices().map(of_question).collect()),
        }
    }
}

/// Requests in one micro-batch, padded to its shape.
struct Packed<'a> {
    shape: MicrobatchShape,
    indices: &'a [usize],
    inputs: Vec<u32>,
    targets: Vec<u32>,
}

impl<'a> Packed<'a> {
    fn new(shape: MicrobatchShape, indices: &'a [usize], requests: &[Request]) -> Self {
        let (mut inputs, mut targets) = (vec![PAD; shape.rows()], vec![IGNORE; shape.rows()]);
        let rows = inputs.chunks_exact_mut(shape.tokens);
        let rows = rows.zip(targets.chunks_exact_mut(shape.tokens));
        for (index, (inputs, targets)) in indices.iter().zip(rows) {
            let Request { tokens, num_targets } = &requests[*index];
            let len = tokens.len() - 1;
            inputs[..len].copy_from_slice(&tokens[..len]);
            let counted = len - num_targets..len;
            targets[counted.clone()].copy_from_slice(&tokens[counted.start + 1..]);
        }
        Self { shape, indices, inputs, targets }
    }

    fn microbatch(&self) -> Microbatch<'_> {
        Microbatch {
            shape: self.shape,
            inputs: View::of(&self.inputs),
            targets: View::of(&self.targets),
            first_sample: 0,
            num_targets: 1,
            documents: None,
            preferences: None,
        }
    }
}

/// Evaluates tasks with a model of a run folder or a Hugging Face folder. `progress` receives the
/// number of requests of a task done and its total.
pub fn evaluate_tasks<'a>(
    folder: impl Into<ModelPath<'a>>,
    device: DeviceChoice,
    tasks: &[impl AsRef<Path>],
    options: TaskOptions,
    world: &World,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<TaskEvaluation>, TrainError> {
    let folder = ModelFolder::open(folder, device, world)?;
    let context = folder.recipe.model.context;
    let of_model = (&folder.tokenizer, context);
    let open = |path: &_| TaskRequests::open(AsRef::as_ref(path), options, of_model, world);
    let tasks: Vec<TaskRequests> = tasks.iter().map(open).collect::<Result<_, _>>()?;
    let longest = tasks.iter().map(TaskRequests::longest).max().unwrap_or(1);
    let tokens = longest.next_multiple_of(16).next_power_of_two().min(context);
    let sequences = (MICROBATCH_ROWS / tokens).max(1);
    let mut model = folder.load(MicrobatchShape { sequences, tokens }, world)?;
    let evaluate = |task: &TaskRequests| task.evaluate(&mut model.replica, &model.cpu, progress);
    tasks.iter().map(evaluate).collect()
}
