//! Every layout of a few workers: the Cartesian product of degrees, schedules and ZeRO stages.
//!
//! [`resolve`](lockstep_config::resolve) decides which combinations are valid; there is no second
//! list. Valid ones number some hundreds a model, too many for every change. [`pairs`] selects a
//! small subset that covers every pair of values (pairwise testing).

use crate::recipes::Small;
use lockstep_config::{ConfigErrors, PipelineSchedule, Recipe};
use lockstep_conformance::cases::{COMMIT, Random};
use lockstep_platform::World;
use std::collections::BTreeSet;
use std::fmt;

/// Degrees, pipeline schedule and ZeRO stage of one layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of workers; the data-parallel degree follows from it and the degrees below.
    pub workers: usize,
    /// Tensor-parallel degree.
    pub tensor: usize,
    /// Whether sequence parallelism is on.
    pub sequence: bool,
    /// Pipeline-parallel degree.
    pub pipeline: usize,
    /// Virtual stages of each pipeline rank.
    pub virtual_stages: usize,
    /// Pipeline schedule.
    pub schedule: PipelineSchedule,
    /// ZeRO stage.
    pub zero: usize,
}

impl Layout {
    /// One worker.
    pub const SINGLE: Self = Self {
        workers: 1,
        tensor: 1,
        sequence: false,
        pipeline: 1,
        virtual_stages: 1,
        schedule: PipelineSchedule::OneFOneB,
        zero: 0,
    };

    /// Every combination for these numbers of workers, valid or not, except those whose model takes
    /// more workers than there are.
    pub fn all(workers: &[usize]) -> Vec<Self> {
        let mut all = vec![Self::SINGLE];
        let mut vary = |values: usize, with: &dyn Fn(Self, usize) -> Self| {
            let each = |layout: &Self| (0..values).map(|i| with(*layout, i)).collect::<Vec<_>>();
            all = all.iter().flat_map(each).collect();
        };
        let schedules: Vec<_> =
            PipelineSchedule::NAMES.iter().filter_map(|n| PipelineSchedule::from_name(n)).collect();
        vary(workers.len(), &|layout, i| Self { workers: workers[i], ..layout });
        vary(workers.len(), &|layout, i| Self { tensor: workers[i], ..layout });
        vary(workers.len(), &|layout, i| Self { pipeline: workers[i], ..layout });
        vary(2, &|layout, i| Self { virtual_stages: i + 1, ..layout });
        vary(schedules.len(), &|layout, i| Self { schedule: schedules[i], ..layout });
        vary(2, &|layout, i| Self { sequence: i == 1, ..layout });
        vary(4, &|layout, i| Self { zero: i, ..layout });
        all.retain(|layout| layout.tensor * layout.pipeline <= layout.workers);
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

    /// The recipe with this layout, or why it is invalid.
    pub fn resolve(&self, small: &Small, sets: &[&str]) -> Result<Recipe, ConfigErrors> {
        let own = sets.iter().map(|set| (*set).to_owned());
        small.try_with(&own.chain(self.sets()).collect::<Vec<_>>())
    }

    /// Data-parallel degree.
    pub fn data(&self) -> usize {
        self.workers / (self.tensor * self.pipeline)
    }

    /// The values of the settings as numbers.
    fn values(&self) -> [usize; 6] {
        let schedule = 2 * (self.schedule as usize) + self.virtual_stages;
        let sequence = usize::from(self.sequence);
        [self.workers, self.tensor, sequence, self.pipeline, schedule, self.zero]
    }

    /// Every pair of values with their indices.
    fn pairs(&self) -> impl Iterator<Item = (usize, usize, usize, usize)> {
        let values = self.values();
        let places = (0..values.len()).flat_map(|i| (0..i).map(move |j| (i, j)));
        places.map(move |(i, j)| (i, values[i], j, values[j]))
    }
}

/// Header of a table of layouts.
pub const TITLE: &str = "workers = data x tensor x pipeline  sequence  ZeRO  schedule     stages";

impl fmt::Display for Layout {
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

/// A small subset of the layouts that covers every pair of values of the whole set, chosen greedily
/// in a random order. The seed is the commit that `cargo xtask ci` names.
pub fn pairs(layouts: &[Layout], world: &World) -> Vec<Layout> {
    let commit = world.host().env(COMMIT).unwrap_or_default();
    let seed = commit.bytes().fold(0, |seed, byte| Random(seed).number() ^ u64::from(byte));
    let mut random = Random(seed);
    let mut order: Vec<_> = layouts.iter().map(|layout| (random.number(), *layout)).collect();
    order.sort_by_key(|(number, _)| *number);
    let mut missing: BTreeSet<_> = layouts.iter().flat_map(Layout::pairs).collect();
    let mut chosen = Vec::new();
    while !missing.is_empty() {
        let num_new = |layout: &Layout| layout.pairs().filter(|p| missing.contains(p)).count();
        // The first of those that cover most missing pairs.
        let best = order.iter().rev().max_by_key(|(_, layout)| num_new(layout));
        let (_, best) = best.expect("every missing pair is in a layout");
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
    fn pairs_cover_all_pairs_and_depend_on_the_order() {
        let world = lockstep_platform::real();
        let all = Layout::all(&[1, 2]);
        assert_eq!(all.len(), (1 + 3) * 2 * 4 * 2 * 4);
        let few = pairs(&all, &world);
        assert!(few.len() < all.len() / 5, "{} layouts are too many", few.len());
        let found: BTreeSet<_> = few.iter().flat_map(Layout::pairs).collect();
        assert!(all.iter().flat_map(Layout::pairs).all(|pair| found.contains(&pair)));
        let reversed: Vec<_> = all.iter().rev().copied().collect();
        assert_ne!(pairs(&reversed, &world), few);
    }
}
