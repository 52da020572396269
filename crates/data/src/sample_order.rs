//! Assignment of samples to the sequences of a batch.
//!
//! A batch comes from one sampler over the whole corpus, or from one sampler per reduction leaf,
//! each over its own part. Leaves belong to the recipe, not to the workers: a worker with three
//! leaves needs three parts, and a leaf gets the same samples on any worker. With local corpora a
//! worker samples only its own micro-batches.

use lockstep_config::{BatchPlan, Documents, EpochEnd, Order, Placement, Recipe};

use crate::clients::{clients_at, draw_of};
use crate::corpus::TokenSpan;
use crate::error::{DataError, Split};
use crate::partition::Partition;
use crate::permutation::mix;
use crate::sampler::{Sampler, Window};

/// Purpose key of the parts' seeds.
const PART_SEED: u64 = 3;

/// Samplers, and the assignment of sequences to them.
#[derive(Debug, Clone)]
pub(crate) struct SampleOrder {
    plan: BatchPlan,
    samplers: Vec<Sampler>,
    assignment: Assignment,
}

/// Sampler of a sequence.
#[derive(Debug, Clone)]
enum Assignment {
    /// One sampler for all sequences.
    All,
    /// One sampler per leaf.
    Leaf,
    /// One sequential sampler whose windows are divided into parts.
    Parts(Box<(Recipe, Partition)>),
    /// One sampler for the leaves of this worker.
    Own(Vec<bool>),
}

/// Cutting rules of a recipe.
#[derive(Debug, Clone, Copy)]
struct CuttingRules {
    seed: u64,
    context: usize,
    cut: Documents,
    order: Order,
    last: EpochEnd,
}

impl SampleOrder {
    /// Sample order of a recipe, for a worker with these leaves.
    pub(crate) fn of(
        recipe: &Recipe,
        name: &str,
        train: &TokenSpan,
        leaves: &[bool],
    ) -> Result<Self, DataError> {
        let (plan, data) = (recipe.batch_plan(), &recipe.data);
        let rules = CuttingRules {
            seed: recipe.train.seed,
            context: recipe.model.context,
            cut: data.documents,
            order: data.order,
            last: data.last_batch,
        };
        let num_leaves = leaves.len();
        if recipe.is_partitioned() {
            return Self::in_parts(recipe, rules, name, train);
        }
        let (samplers, assignment) = match data.placement {
            Placement::Shared | Placement::Served => {
                (vec![rules.sampler(name, train, &plan, (1, 1), None)?], Assignment::All)
            }
            Placement::Partitioned => {
                let part = |(leaf, part): (usize, &TokenSpan)| {
                    let seed = mix(mix(rules.seed, PART_SEED), leaf as u64);
                    let place = Some((leaf, num_leaves));
                    CuttingRules { seed, ..rules }.sampler(
                        name,
                        part,
                        &plan,
                        (1, num_leaves),
                        place,
                    )
                };
                let parts = train.parts(num_leaves, data.documents);
                let samplers = parts.iter().enumerate().map(part).collect::<Result<_, _>>()?;
                (samplers, Assignment::Leaf)
            }
            Placement::Local => {
                let num_own = leaves.iter().filter(|own| **own).count();
                let sampler = rules.sampler(name, train, &plan, (num_own, num_leaves), None)?;
                (vec![sampler], Assignment::Own(leaves.to_vec()))
            }
        };
        Ok(Self { plan, samplers, assignment })
    }

    /// Divides the windows of the corpus into parts.
    fn in_parts(
        recipe: &Recipe,
        rules: CuttingRules,
        name: &str,
        train: &TokenSpan,
    ) -> Result<Self, DataError> {
        let (plan, order) = (recipe.batch_plan(), Order::Sequential);
        let sampler = CuttingRules { order, ..rules }.sampler(name, train, &plan, (1, 1), None)?;
        let (num_windows, num_parts) = (sampler.num_windows(), recipe.num_parts());
        if num_windows < num_parts as u64 {
            return Err(DataError::PartTooShort {
                name: name.to_owned(),
                part: num_windows as usize,
                num_parts,
                num_tokens: 0,
                context: recipe.model.context,
            });
        }
        let partition = Partition::new(recipe, Partition::tenths(num_windows));
        let assignment = Assignment::Parts(Box::new((recipe.clone(), partition)));
        Ok(Self { plan, samplers: vec![sampler], assignment })
    }

    /// Draws every sequence from one sampler.
    #[cfg(test)]
    pub(crate) fn shared(sampler: Sampler, plan: &BatchPlan, last: EpochEnd) -> Self {
        let stages = plan.stages.iter().map(|stage| (stage.first_step, stage.batch));
        let samplers = vec![sampler.in_stages(stages, last)];
        Self { plan: plan.clone(), samplers, assignment: Assignment::All }
    }

    /// Partition of the windows, if there is one.
    pub(crate) fn partition(&self) -> Option<&Partition> {
        match &self.assignment {
            Assignment::Parts(parts) => Some(&parts.1),
            _ => None,
        }
    }

    /// First step at which every sampler has passed this many times over its windows.
    pub(crate) fn steps_of_epochs(&self, epochs: f64) -> u64 {
        let steps = self.samplers.iter().map(|sampler| sampler.steps_of_epochs(epochs));
        steps.max().expect("there is a sampler")
    }

    /// Batch size of each step.
    pub(crate) fn plan(&self) -> &BatchPlan {
        &self.plan
    }

    /// Window of a sequence; none for padding and for other workers' local data.
    pub(crate) fn window(&self, step: u64, sequence: usize) -> Option<Window> {
        let batch = self.plan.at(step).batch;
        let (sampler, slot) = match &self.assignment {
            Assignment::All => (0, sequence),
            Assignment::Leaf => {
                let per_leaf = batch / self.samplers.len();
                (sequence / per_leaf, sequence % per_leaf)
            }
            Assignment::Parts(parts) => {
                let (recipe, partition) = &**parts;
                let (part, turn) = draw_of(recipe, &clients_at(recipe, step), step, sequence);
                return Some(self.samplers[0].locate(u64::from(partition.draw(part, turn))));
            }
            Assignment::Own(leaves) => {
                let per_leaf = batch / leaves.len();
                let leaf = sequence / per_leaf;
                let num_before = leaves[..leaf].iter().filter(|own| **own).count();
                leaves[leaf].then_some((0, num_before * per_leaf + sequence % per_leaf))?
            }
        };
        self.samplers[sampler].draw(step, slot)
    }
}

impl CuttingRules {
    /// Sampler over a span for a share of every batch.
    fn sampler(
        &self,
        name: &str,
        span: &TokenSpan,
        plan: &BatchPlan,
        (share, of): (usize, usize),
        part: Option<(usize, usize)>,
    ) -> Result<Sampler, DataError> {
        let num_windows = span.num_windows(self.context, self.cut, self.order);
        let (name, split) = (name.to_owned(), Split::Train);
        if num_windows == 0 {
            return Err(match (part, span.is_cut_anywhere(self.cut)) {
                (Some((part, num_parts)), _) => DataError::PartTooShort {
                    name,
                    part,
                    num_parts,
                    num_tokens: span.len(),
                    context: self.context,
                },
                (None, false) => DataError::NoDocument { name, split },
                (None, true) => DataError::TooShort {
                    name,
                    split,
                    num_tokens: span.len(),
                    context: self.context,
                    longest_context: span.len().saturating_sub(1),
                },
            });
        }
        let per_step = plan.max_batch() / of * share;
        if self.last == EpochEnd::Drop && num_windows < per_step as u64 {
            return Err(DataError::EmptyEpoch { name, num_windows, per_step });
        }
        let sampler = span.sampler(self.seed, self.context, self.cut, self.order);
        let stages = plan.stages.iter().map(|stage| (stage.first_step, stage.batch / of * share));
        Ok(sampler.in_stages(stages, self.last))
    }
}
