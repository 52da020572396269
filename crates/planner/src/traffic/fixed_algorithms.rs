//! Check of the algorithms that a recipe fixes for its collectives, before a run starts.
//!
//! An algorithm may not serve an operation, need memory that the ranks do not share, or sum in an
//! order that depends on the layout. The engine refuses such a call too, but only when it is made.

use super::call::GroupCalls;
use super::interconnect::Interconnect;
use super::schedule_selection::SelectedSchedules;
use super::step_calls::{self, StepInputs};
use super::{StepCalls, StepKind, rank_at};
use lockstep_config::units::Bytes;
use lockstep_config::{Blame, Recipe};
use lockstep_parallel::from_recipe::blueprint_of_rank;
use lockstep_schedule::collective::overrides::AlgorithmOverrides;
use lockstep_schedule::collective::select::SelectError;
use lockstep_schedule::collective::{GroupSpec, build};
use lockstep_schedule::{Medium, Op, Topology};

/// A fixed algorithm that a call of the run cannot use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "parallel.collectives[{index}] does not work for {op} of {bytes} with run.workers = {workers}: \
     {cause}"
)]
pub struct RefusedAlgorithm {
    /// Entry of `parallel.collectives`.
    pub index: usize,
    /// Operation of the call.
    pub op: Op,
    /// Size of the call.
    pub bytes: Bytes,
    /// Number of workers of the run.
    pub workers: usize,
    /// Reason, with an algorithm that works.
    pub cause: SelectError,
}

impl RefusedAlgorithm {
    /// Blame: the user chose the algorithm.
    pub const fn blame(&self) -> Blame {
        Blame::User
    }
}

/// Checks every call of a recipe that has a fixed algorithm, with every number of workers.
pub fn check_algorithms(recipe: &Recipe) -> Result<(), RefusedAlgorithm> {
    let workers = recipe.run.workers;
    let pair = GroupSpec { topology: Some(Topology::flat(2, Medium::Memory)), ..GroupSpec::new(2) };
    for (index, (op, algorithm)) in AlgorithmOverrides::of_recipe(recipe).entries().enumerate() {
        if let Err(error) = build(op, algorithm, &pair) {
            let (bytes, cause) = (recipe.parallel.collectives[index].min_bytes, error.into());
            return Err(RefusedAlgorithm { index, op, bytes, workers, cause });
        }
    }
    if recipe.parallel.collectives.is_empty() {
        return Ok(());
    }
    recipe.worker_counts().into_iter().try_for_each(|n| check_layout(&recipe.with_workers(n)))
}

fn check_layout(recipe: &Recipe) -> Result<(), RefusedAlgorithm> {
    let interconnect = Interconnect::of_recipe(recipe);
    let blueprint = blueprint_of_rank(recipe, 0);
    for plan in step_calls::plans_at(recipe, &blueprint, 0) {
        for kind in StepKind::of_run(recipe).into_keys() {
            let inputs = StepInputs::default();
            let step = step_calls::of_plan(recipe, &plan, &blueprint, &kind, inputs);
            for (ranks, calls) in groups(&step) {
                check_group(recipe, &interconnect.among(&ranks), calls)?;
            }
        }
    }
    Ok(())
}

/// Groups of a step, with the ranks of each.
fn groups(step: &StepCalls) -> Vec<(Vec<usize>, &GroupCalls)> {
    let mut groups: Vec<_> =
        step.after_step.iter().map(|(ranks, calls)| (ranks.clone(), calls)).collect();
    let all = |calls: &GroupCalls| 0..calls.contributions.num_ranks();
    for (device, tp_ranks) in step.data.iter().enumerate() {
        groups.extend(tp_ranks.iter().enumerate().map(|(tp_rank, calls)| {
            (all(calls).map(|part| rank_at(&step.mesh, device, part, tp_rank)).collect(), calls)
        }));
    }
    for (device, parts) in step.tensor.iter().enumerate() {
        groups.extend(parts.iter().enumerate().map(|(part, calls)| {
            (all(calls).map(|tp_rank| rank_at(&step.mesh, device, part, tp_rank)).collect(), calls)
        }));
    }
    groups
}

fn check_group(
    recipe: &Recipe,
    interconnect: &Interconnect,
    calls: &GroupCalls,
) -> Result<(), RefusedAlgorithm> {
    let overrides = AlgorithmOverrides::of_recipe(recipe);
    let mut schedules = SelectedSchedules::new(interconnect, &calls.contributions);
    for call in &calls.list {
        let (op, bytes) = (call.op, call.element * call.count() as u64);
        let Some((index, _)) = overrides.find(op, bytes) else { continue };
        let workers = recipe.run.workers;
        schedules.check(call).map_err(|cause| RefusedAlgorithm {
            index,
            op,
            bytes,
            workers,
            cause,
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_config::{Sources, resolve};

    fn check(entries: &str, more: &[&str]) -> Result<(), String> {
        let mut sets = vec![format!("parallel.collectives={entries}")];
        sets.extend(more.iter().map(|set| (*set).to_owned()));
        let sources = Sources { sets, preset: Some("tiny".to_owned()), ..Sources::default() };
        let recipe = resolve(&sources).unwrap_or_else(|errors| panic!("{errors}"));
        check_algorithms(&recipe).map_err(|refused| refused.to_string())
    }

    #[test]
    fn fixed_algorithms_that_would_void_the_layout_promise_are_refused() {
        let ring = r#"[{op="all-reduce", algorithm="ring"}]"#;
        let tcp = "run.transport=tcp";
        let refused = check(ring, &["run.workers=4", tcp]).expect_err("sums around a ring");
        assert!(refused.starts_with("parallel.collectives[0] does not work for all-reduce of "));
        assert!(refused.contains("does not add in canonical order"), "{refused}");
        assert_eq!(check(ring, &["run.workers=1", tcp]), Ok(()), "there is nothing to add");
        let halving = r#"[{op="all-reduce", algorithm="rabenseifner"}]"#;
        assert_eq!(check(halving, &["run.workers=4", tcp]), Ok(()));
        let gather = r#"[{op="all-gather", algorithm="ring", channels=2}]"#;
        assert_eq!(check(gather, &["run.workers=4", "parallel.zero=1", tcp]), Ok(()));
        let shared = r#"[{op="all-reduce", algorithm="direct"}]"#;
        let refused = check(shared, &["run.workers=2", tcp]).expect_err("there is no memory");
        assert!(refused.contains("needs memory that the ranks do not share"), "{refused}");
        assert_eq!(check(shared, &["run.workers=2"]), Ok(()));
        let unsuited = r#"[{op="all-reduce", algorithm="linear"}]"#;
        let refused = check(unsuited, &["run.workers=2"]).expect_err("no such algorithm");
        assert!(refused.contains("linear is no algorithm for all-reduce; try "), "{refused}");
    }
}
