//! Step programs of a rank, built once for each kind of step.

use crate::replica_plan::ReplicaPlan;
use crate::step_program::{RankPlan, StepKind};
use lockstep_model::Blueprint;
use lockstep_schedule::step::{Program, TaskOp};

/// Programs of a rank's steps and evaluations.
pub struct Programs {
    /// Program of the current kind of step.
    pub training: TrainingProgram,
    /// Program of an evaluation of as many micro-batches as the pipeline has ranks.
    pub evaluation: Program,
    kind: StepKind,
    /// Programs of other kinds that were used before.
    kept: Vec<(StepKind, TrainingProgram)>,
}

/// Program of a step, with the tasks at which its parts begin.
pub struct TrainingProgram {
    /// All tasks.
    pub program: Program,
    /// End of the passes of the micro-batches: the gathering of losses.
    pub passes_end: u32,
    /// End of the reduction.
    pub reduction_end: u32,
    /// Start of the update, which the agreement allows.
    pub update_start: u32,
}

impl TrainingProgram {
    fn new(place: &RankPlan<'_>, kind: &StepKind) -> Self {
        let program = place.training(kind);
        let position =
            |task: TaskOp| program.position(|op| *op == task).expect("every step has this task").0;
        Self {
            passes_end: position(TaskOp::GatherLosses),
            reduction_end: position(TaskOp::Unscale),
            update_start: position(TaskOp::Agree) + 1,
            program,
        }
    }
}

impl Programs {
    /// Programs of a rank, with reduced gradients first.
    pub fn new(plan: &ReplicaPlan, blueprint: &Blueprint, rank: usize) -> Self {
        let place = RankPlan::new(plan, blueprint, rank);
        let kind = StepKind::reduce();
        Self {
            training: TrainingProgram::new(&place, &kind),
            evaluation: place.evaluation(),
            kind,
            kept: Vec::new(),
        }
    }

    /// Makes the program of a kind of step current.
    pub fn select(
        &mut self,
        kind: StepKind,
        plan: &ReplicaPlan,
        blueprint: &Blueprint,
        rank: usize,
    ) {
        if kind == self.kind {
            return;
        }
        let found = self.kept.iter().position(|(known, _)| *known == kind);
        let next = match found {
            Some(at) => self.kept.swap_remove(at).1,
            None => TrainingProgram::new(&RankPlan::new(plan, blueprint, rank), &kind),
        };
        let before = std::mem::replace(&mut self.training, next);
        self.kept.push((std::mem::replace(&mut self.kind, kind), before));
    }
}
