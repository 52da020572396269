//! Products of layouts: every way to divide the work among a few workers.
//!
//! Nobody keeps a list of what can be together. All that can be written down is tried on
//! [`resolve`](lockstep_config::resolve), which proves recipes, and what it accepts is a layout.
//! That is some hundreds a model, too many for every change; [`pairs`] chooses few in which any two
//! values that can be together are.

use crate::recipes::Small;
use lockstep_conformance::cases::{COMMIT, Random};
use lockstep_config::{ConfigErrors, PipelineSchedule, Recipe};
use lockstep_platform::World;
use std::collections::BTreeSet;
use std::fmt;

/// One way to divide the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// All workers; what the axes below leave of them shares the batch.
    pub workers: usize,
    /// Workers that hold the slices of a layer.
    pub tensor: usize,
    /// Whether those divide rows between the products too.
    pub sequence: bool,
    /// Workers that hold the stages of a pipeline.
    pub pipeline: usize,
    /// Stages of each of them.
    pub virtual_stages: usize,
    /// The order of passes.
    pub schedule: PipelineSchedule,
    /// What those who share the batch keep a part of.
    pub zero: usize,
}

impl Product {
    /// One worker with everything.
    pub const ONE: Self = Self {
        workers: 1,
        tensor: 1,
        sequence: false,
        pipeline: 1,
        virtual_stages: 1,
        schedule: PipelineSchedule::OneFOneB,
        zero: 0,
    };

    /// Everything that can be written down for these numbers of workers, whether or not it can be;
    /// but for copies of the model that take more workers than there are.
    pub fn all(workers: &[usize]) -> Vec<Self> {
        let mut all = vec![Self::ONE];
        let mut vary = |values: usize, with: &dyn Fn(Self, usize) -> Self| {
            let each = |product: &Self| (0..values).map(|i| with(*product, i)).collect::<Vec<_>>();
            all = all.iter().flat_map(each).collect();
        };
        let schedules: Vec<_> =
            PipelineSchedule::NAMES.iter().filter_map(|n| PipelineSchedule::from_name(n)).collect();
        vary(workers.len(), &|product, i| Self { workers: workers[i], ..product });
        vary(workers.len(), &|product, i| Self { tensor: workers[i], ..product });
        vary(workers.len(), &|product, i| Self { pipeline: workers[i], ..product });
        vary(2, &|product, i| Self { virtual_stages: i + 1, ..product });
        vary(schedules.len(), &|product, i| Self { schedule: schedules[i], ..product });
        vary(2, &|product, i| Self { sequence: i == 1, ..product });
        vary(4, &|product, i| Self { zero: i, ..product });
        all.retain(|product| product.tensor * product.pipeline <= product.workers);
        all
    }

    /// As settings of a recipe.
    pub fn sets(&self) -> Vec<String> {
        let Self { workers, tensor, sequence, pipeline, virtual_stages, schedule, zero } = self;
        vec![
            format!("run.workers={workers}"),
            format!("parallel.tensor={tensor}"),
            format!("parallel.sequence={sequence}"),
            format!("parallel.pipeline={pipeline}"),
            format!("parallel.virtual_stages={virtual_stages}"),
            format!("parallel.schedule={schedule}"),
            format!("parallel.zero={zero}"),
        ]
    }

    /// The recipe that divides its work so, or why it cannot be.
    pub fn resolve(&self, small: &Small, sets: &[&str]) -> Result<Recipe, ConfigErrors> {
        let own = sets.iter().map(|set| (*set).to_owned());
        small.try_with(&own.chain(self.sets()).collect::<Vec<_>>())
    }

    /// Workers that share the batch.
    pub fn data(&self) -> usize {
        self.workers / (self.tensor * self.pipeline)
    }

    /// Its values, as numbers.
    fn values(&self) -> [usize; 6] {
        let schedule = 2 * (self.schedule as usize) + self.virtual_stages;
        let sequence = usize::from(self.sequence);
        [self.workers, self.tensor, sequence, self.pipeline, schedule, self.zero]
    }

    /// Every two of them, with their places.
    fn pairs(&self) -> impl Iterator<Item = (usize, usize, usize, usize)> {
        let values = self.values();
        let places = (0..values.len()).flat_map(|i| (0..i).map(move |j| (i, j)));
        places.map(move |(i, j)| (i, values[i], j, values[j]))
    }
}

/// The title of a table of them.
pub const TITLE: &str = "workers = data x tensor x pipeline  sequence  ZeRO  schedule     stages";

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workers, tensor, sequence, pipeline, virtual_stages, schedule, zero } = self;
        let data = self.data();
        let sequence = if *sequence { "yes" } else { "no" };
        let (schedule, stages) = (schedule.name(), pipeline * virtual_stages);
        write!(
            f,
            "{workers:>7} = {data:>4} x {tensor:>6} x {pipeline:>8}  {sequence:<8}  {zero:>4}  \
             {schedule:<11}  {stages:>6}"
        )
    }
}

/// Few of the products in which any two values that are together in any are together in one; which
/// ones, the commit chooses that `cargo xtask ci` names.
pub fn pairs(products: &[Product], world: &World) -> Vec<Product> {
    let commit = world.host().env(COMMIT).unwrap_or_default();
    let seed = commit.bytes().fold(0, |seed, byte| Random(seed).number() ^ u64::from(byte));
    let mut random = Random(seed);
    let mut order: Vec<_> = products.iter().map(|product| (random.number(), *product)).collect();
    order.sort_by_key(|(number, _)| *number);
    let mut missing: BTreeSet<_> = products.iter().flat_map(Product::pairs).collect();
    let mut chosen = Vec::new();
    while !missing.is_empty() {
        let num_new = |product: &Product| product.pairs().filter(|p| missing.contains(p)).count();
        // The first of those that have most.
        let best = order.iter().rev().max_by_key(|(_, product)| num_new(product));
        let (_, best) = best.expect("what is missing is in one of them");
        best.pairs().for_each(|pair| {
            missing.remove(&pair);
        });
        chosen.push(*best);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_products_have_all_pairs_and_another_order_gives_others() {
        let world = lockstep_platform::real();
        let all = Product::all(&[1, 2]);
        assert_eq!(all.len(), (1 + 3) * 2 * 4 * 2 * 4);
        let few = pairs(&all, &world);
        assert!(few.len() < all.len() / 5, "{} are not few", few.len());
        let found: BTreeSet<_> = few.iter().flat_map(Product::pairs).collect();
        assert!(all.iter().flat_map(Product::pairs).all(|pair| found.contains(&pair)));
        let reversed: Vec<_> = all.iter().rev().copied().collect();
        assert_ne!(pairs(&reversed, &world), few);
    }
}
