//! Which sample lies at each place of a batch.
//!
//! A batch is dealt from one sampler over the whole text (every worker can then read all of it), or
//! from one sampler for each leaf of the gradient sum, each over its own part of the text. Leaves
//! are a property of the recipe and not of the workers: a worker that runs three of them needs
//! three parts, and whoever runs a leaf meets the same samples. Where each worker has a text that
//! nobody else may see, its micro-batches are dealt from that and nothing is known of the others.

use lockstep_config::{BatchPlan, Documents, EpochEnd, Order, Placement, Recipe};

use crate::clients::{clients_at, turn_of};
use crate::corpus::Stretch;
use crate::error::{DataError, Split};
use crate::partition::Partition;
use crate::permutation::mix;
use crate::sampler::{Sampler, Window};

/// What the seeds of parts are drawn for.
const PART: u64 = 3;

/// Samplers, and the place of each sequence of a batch with them.
#[derive(Debug, Clone)]
pub(crate) struct Deal {
    plan: BatchPlan,
    samplers: Vec<Sampler>,
    whose: Whose,
}

/// Which sampler a sequence comes from.
#[derive(Debug, Clone)]
enum Whose {
    /// There is one for all.
    All,
    /// There is one for each leaf.
    Leaf,
    /// There is one in reading order, whose windows belong to parts.
    Parts(Box<(Recipe, Partition)>),
    /// There is one for these leaves, and nothing is known of the others.
    Own(Vec<bool>),
}

/// How a recipe cuts a text, in the words of this crate.
#[derive(Debug, Clone, Copy)]
struct Rules {
    seed: u64,
    context: usize,
    cut: Documents,
    order: Order,
    last: EpochEnd,
}

impl Deal {
    /// The deal of a recipe, for a worker that computes these leaves of the gradient sum.
    pub(crate) fn of(
        recipe: &Recipe,
        name: &str,
        train: &Stretch,
        leaves: &[bool],
    ) -> Result<Self, DataError> {
        let (plan, data) = (recipe.batch_plan(), &recipe.data);
        let rules = Rules {
            seed: recipe.train.seed,
            context: recipe.model.context,
            cut: data.documents,
            order: data.order,
            last: data.last,
        };
        let num_leaves = leaves.len();
        if recipe.has_parts() {
            return Self::in_parts(recipe, rules, name, train);
        }
        let (samplers, whose) = match data.placement {
            Placement::Shared | Placement::Served => {
                (vec![rules.sampler(name, train, &plan, (1, 1), None)?], Whose::All)
            }
            Placement::Partitioned => {
                let part = |(leaf, part): (usize, &Stretch)| {
                    let seed = mix(mix(rules.seed, PART), leaf as u64);
                    let place = Some((leaf, num_leaves));
                    Rules { seed, ..rules }.sampler(name, part, &plan, (1, num_leaves), place)
                };
                let parts = train.parts(num_leaves, data.documents);
                let samplers = parts.iter().enumerate().map(part).collect::<Result<_, _>>()?;
                (samplers, Whose::Leaf)
            }
            Placement::Local => {
                let num_own = leaves.iter().filter(|own| **own).count();
                let sampler = rules.sampler(name, train, &plan, (num_own, num_leaves), None)?;
                (vec![sampler], Whose::Own(leaves.to_vec()))
            }
        };
        Ok(Self { plan, samplers, whose })
    }

    /// Every part has windows of its own, wherever in the text they lie.
    fn in_parts(
        recipe: &Recipe,
        rules: Rules,
        name: &str,
        train: &Stretch,
    ) -> Result<Self, DataError> {
        let (plan, order) = (recipe.batch_plan(), Order::Sequential);
        let sampler = Rules { order, ..rules }.sampler(name, train, &plan, (1, 1), None)?;
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
        let whose = Whose::Parts(Box::new((recipe.clone(), partition)));
        Ok(Self { plan, samplers: vec![sampler], whose })
    }

    /// Every sequence from one sampler.
    #[cfg(test)]
    pub(crate) fn shared(sampler: Sampler, plan: &BatchPlan, last: EpochEnd) -> Self {
        let stages = plan.stages.iter().map(|stage| (stage.first_step, stage.batch));
        let samplers = vec![sampler.in_stages(stages, last)];
        Self { plan: plan.clone(), samplers, whose: Whose::All }
    }

    /// Who has which windows, where they are divided into parts.
    pub(crate) fn partition(&self) -> Option<&Partition> {
        match &self.whose {
            Whose::Parts(parts) => Some(&parts.1),
            _ => None,
        }
    }

    /// How large the batch of each step is.
    pub(crate) fn plan(&self) -> &BatchPlan {
        &self.plan
    }

    /// The sample of a sequence; nothing where it is filled up, or not ours to know.
    pub(crate) fn window(&self, step: u64, sequence: usize) -> Option<Window> {
        let batch = self.plan.at(step).batch;
        let (sampler, slot) = match &self.whose {
            Whose::All => (0, sequence),
            Whose::Leaf => {
                let per_leaf = batch / self.samplers.len();
                (sequence / per_leaf, sequence % per_leaf)
            }
            Whose::Parts(parts) => {
                let (recipe, partition) = &**parts;
                let (part, turn) = turn_of(recipe, &clients_at(recipe, step), step, sequence);
                return Some(self.samplers[0].locate(u64::from(partition.draw(part, turn))));
            }
            Whose::Own(leaves) => {
                let per_leaf = batch / leaves.len();
                let leaf = sequence / per_leaf;
                let num_before = leaves[..leaf].iter().filter(|own| **own).count();
                leaves[leaf].then_some((0, num_before * per_leaf + sequence % per_leaf))?
            }
        };
        self.samplers[sampler].draw(step, slot)
    }
}

impl Rules {
    /// A sampler over a stretch that gives a share of every batch, if it can.
    fn sampler(
        &self,
        name: &str,
        stretch: &Stretch,
        plan: &BatchPlan,
        (share, of): (usize, usize),
        part: Option<(usize, usize)>,
    ) -> Result<Sampler, DataError> {
        let num_windows = stretch.num_windows(self.context, self.cut, self.order);
        let (name, split) = (name.to_owned(), Split::Train);
        if num_windows == 0 {
            return Err(match (part, self.cut) {
                (Some((part, num_parts)), _) => DataError::PartTooShort {
                    name,
                    part,
                    num_parts,
                    num_tokens: stretch.len(),
                    context: self.context,
                },
                (None, Documents::Padded) => DataError::NoDocument { name, split },
                (None, Documents::Packed) => DataError::TooShort {
                    name,
                    split,
                    num_tokens: stretch.len(),
                    context: self.context,
                    longest_context: stretch.len().saturating_sub(1),
                },
            });
        }
        let per_step = plan.max_batch() / of * share;
        if self.last == EpochEnd::Drop && num_windows < per_step as u64 {
            return Err(DataError::EmptyEpoch { name, num_windows, per_step });
        }
        let sampler = stretch.sampler(self.seed, self.context, self.cut, self.order);
        let stages = plan.stages.iter().map(|stage| (stage.first_step, stage.batch / of * share));
        Ok(sampler.in_stages(stages, self.last))
    }
}
