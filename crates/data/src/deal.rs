//! Which sample lies at each place of a batch.
//!
//! A batch is dealt from one sampler over the whole text (every worker can then read all of it), or
//! from one sampler for each leaf of the gradient sum, each over its own part of the text. Leaves
//! are a property of the recipe and not of the workers: a worker that runs three of them needs
//! three parts, and whoever runs a leaf meets the same samples. Where each worker has a text that
//! nobody else may see, its lanes are dealt from that and nothing is known of the others.

use lockstep_config::{Documents, EpochEnd, Order, Placement, Recipe};

use crate::corpus::Stretch;
use crate::error::{DataError, Split};
use crate::permutation::mix;
use crate::sampler::{Sampler, Window};

/// What the seeds of parts are drawn for.
const PART: u64 = 3;

/// Samplers, and the place of each sequence of a batch with them.
#[derive(Debug, Clone)]
pub(crate) struct Deal {
    samplers: Vec<Sampler>,
    /// By sequence: the sampler and its slot; nothing where another worker alone knows.
    places: Vec<Option<(usize, usize)>>,
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
    /// The deal of a recipe, for a worker that runs these lanes.
    pub(crate) fn of(
        recipe: &Recipe,
        name: &str,
        train: &Stretch,
        lanes: &[bool],
    ) -> Result<Self, DataError> {
        let (batch, data) = (recipe.train.batch, &recipe.data);
        let rules = Rules {
            seed: recipe.train.seed,
            context: recipe.model.context,
            cut: data.documents,
            order: data.order,
            last: data.last,
        };
        match data.placement {
            Placement::Shared | Placement::Served => {
                Ok(Self::shared(rules.sampler(name, train, batch, None)?, batch))
            }
            Placement::Partitioned => {
                let num_parts = recipe.num_leaves();
                let per_part = batch / num_parts;
                let part = |(leaf, part): (usize, &Stretch)| {
                    let seed = mix(mix(rules.seed, PART), leaf as u64);
                    Rules { seed, ..rules }.sampler(name, part, per_part, Some((leaf, num_parts)))
                };
                let parts = train.parts(num_parts, data.documents);
                let samplers = parts.iter().enumerate().map(part).collect::<Result<_, _>>()?;
                let place = |sequence| Some((sequence / per_part, sequence % per_part));
                Ok(Self { samplers, places: (0..batch).map(place).collect() })
            }
            Placement::Local => {
                let microbatch = recipe.train.microbatch;
                let num_own = lanes.iter().filter(|own| **own).count() * microbatch;
                let sampler = rules.sampler(name, train, num_own, None)?;
                let mut slots = 0..num_own;
                let place = |sequence: usize| {
                    let is_own = lanes[sequence / microbatch];
                    is_own.then(|| slots.next().map(|slot| (0, slot))).flatten()
                };
                Ok(Self { samplers: vec![sampler], places: (0..batch).map(place).collect() })
            }
        }
    }

    /// Every sequence from one sampler.
    pub(crate) fn shared(sampler: Sampler, batch: usize) -> Self {
        let places = (0..batch).map(|sequence| Some((0, sequence))).collect();
        Self { samplers: vec![sampler], places }
    }

    /// The sample of a sequence; nothing where it is filled up, or not ours to know.
    pub(crate) fn window(&self, step: u64, sequence: usize) -> Option<Window> {
        let (sampler, slot) = self.places[sequence]?;
        self.samplers[sampler].draw(step, slot)
    }
}

impl Rules {
    /// A sampler over a stretch that gives `per_step` samples a step, if it can.
    fn sampler(
        &self,
        name: &str,
        stretch: &Stretch,
        per_step: usize,
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
        if self.last == EpochEnd::Drop && num_windows < per_step as u64 {
            return Err(DataError::EmptyEpoch { name, num_windows, per_step });
        }
        let sampler = stretch.sampler(self.seed, self.context, self.cut, self.order);
        Ok(sampler.in_steps(per_step, self.last))
    }
}
