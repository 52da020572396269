//! Step programs of a rank, built once for each kind of step, and the segments they run in.

use crate::replica_plan::ReplicaPlan;
use crate::step_program::{GradientUse, RankPlan, StepKind};
use crate::strategy::StrategyPlan;
use lockstep_model::Blueprint;
use lockstep_schedule::step::{Program, TaskOp};
use std::ops::Range;
use std::sync::Arc;

/// Programs of earlier steps that are kept; rounds of sampled clients may have one each.
const MAX_KEPT: usize = 64;

/// Programs of a rank's steps and evaluations.
pub struct Programs {
    /// Program of the current kind of step.
    pub training: Arc<TrainingProgram>,
    /// Program of an evaluation of as many micro-batches as the pipeline has ranks.
    pub evaluation: Program,
    strategy: Option<Box<dyn StrategyPlan>>,
    kind: StepKind,
    /// Programs of other kinds that were used before.
    kept: Vec<(StepKind, Arc<TrainingProgram>)>,
}

/// Program of a step, in segments of tasks that run alike.
pub struct TrainingProgram {
    /// All tasks.
    pub program: Program,
    /// Tasks of each segment, in order.
    pub segments: Vec<(Segment, Range<u32>)>,
}

/// Part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment {
    /// Transfers before the first step or for a checkpoint, which the training loop starts: it
    /// knows whether files are read or written.
    Outside,
    /// Loading of the batch.
    Load,
    /// Forward and backward passes of the micro-batches, with what they communicate.
    Passes,
    /// Gathering of the losses, and reports of them within a group.
    Losses,
    /// Rest of the reduction of gradients.
    Reduction,
    /// Division by the loss scale.
    Unscale,
    /// Tasks of the synchronization strategy.
    Strategy,
    /// Norm of the gradients.
    Norm,
    /// Agreement on the update.
    Agreement,
    /// Update of the parameters, and gathering of updated ones.
    Update,
}

impl Segment {
    /// Segment of a task that follows one of this segment.
    fn next(self, op: TaskOp) -> Self {
        match op {
            TaskOp::LoadBatch => return Self::Load,
            TaskOp::GatherLosses | TaskOp::Report { part: 0 } => return Self::Losses,
            TaskOp::Unscale => return Self::Unscale,
            TaskOp::GradNorm => return Self::Norm,
            TaskOp::Agree => return Self::Agreement,
            TaskOp::LoadClient { .. } | TaskOp::ClientStep { .. } => return Self::Strategy,
            TaskOp::Barrier => return Self::Outside,
            _ if op.block_pass().is_some() => return Self::Passes,
            _ => {}
        }
        match self {
            Self::Load if !op.is_of_strategy() => Self::Passes,
            Self::Losses | Self::Reduction => match op {
                // Within a host group.
                TaskOp::Reduce { .. } => Self::Strategy,
                _ if op.is_of_strategy() => Self::Strategy,
                _ => Self::Reduction,
            },
            Self::Update if op.is_of_strategy() => Self::Strategy,
            Self::Agreement | Self::Update => Self::Update,
            Self::Load | Self::Unscale | Self::Norm => Self::Strategy,
            // Messages of a strategy leave while passes run.
            Self::Outside | Self::Passes | Self::Strategy => self,
        }
    }
}

impl TrainingProgram {
    fn new(program: Program) -> Self {
        let mut segments: Vec<(Segment, Range<u32>)> = Vec::new();
        let mut now = Segment::Outside;
        for (id, task) in program.iter() {
            now = now.next(task.op);
            match segments.last_mut().filter(|(last, _)| *last == now) {
                Some((_, tasks)) => tasks.end = id.0 + 1,
                None => segments.push((now, id.0..id.0 + 1)),
            }
        }
        Self { program, segments }
    }

    /// Whether ranks agree on the update.
    pub fn has_agreement(&self) -> bool {
        self.segments.iter().any(|(segment, _)| *segment == Segment::Agreement)
    }

    /// Tasks of the first segment of a kind; none where the step has none.
    pub fn segment(&self, segment: Segment) -> Range<u32> {
        let found = self.segments.iter().find(|(other, _)| *other == segment);
        found.map_or(0..0, |(_, tasks)| tasks.clone())
    }
}

impl Programs {
    /// Programs of a rank, with reduced gradients first.
    pub fn new(plan: &ReplicaPlan, blueprint: &Blueprint, rank: usize) -> Self {
        let place = RankPlan::new(plan, blueprint, rank);
        let kind = StepKind::reduce();
        Self {
            training: Arc::new(TrainingProgram::new(place.training(&kind))),
            evaluation: place.evaluation(),
            strategy: None,
            kind,
            kept: Vec::new(),
        }
    }

    /// Builds programs of this strategy from now on.
    pub fn adopt(&mut self, strategy: Box<dyn StrategyPlan>) {
        self.strategy = Some(strategy);
        self.kept.clear();
    }

    /// Strategy of the programs.
    pub fn strategy(&self) -> Option<&dyn StrategyPlan> {
        self.strategy.as_deref()
    }

    /// Builds all programs anew, for another plan.
    pub fn renew(&mut self, plan: &ReplicaPlan, blueprint: &Blueprint, rank: usize) {
        let strategy = self.strategy.take();
        *self = Self { strategy, ..Self::new(plan, blueprint, rank) };
    }

    /// Kind of a step.
    pub fn kind_at(&self, step: u64) -> StepKind {
        self.strategy.as_ref().map_or_else(StepKind::reduce, |strategy| strategy.kind_at(step))
    }

    /// Makes the program of a kind of step current; gradients that are held back until the ranks
    /// that count are known leave outside it.
    pub fn select(
        &mut self,
        mut kind: StepKind,
        is_held: bool,
        plan: &ReplicaPlan,
        blueprint: &Blueprint,
        rank: usize,
    ) {
        if is_held && kind.is_reduced() {
            kind.gradients = GradientUse::Local;
        }
        if kind == self.kind {
            return;
        }
        let found = self.kept.iter().position(|(known, _)| *known == kind);
        let next = if let Some(at) = found {
            self.kept.swap_remove(at).1
        } else {
            let place = RankPlan::new(plan, blueprint, rank);
            Arc::new(TrainingProgram::new(match &self.strategy {
                Some(strategy) => place.training_with(&**strategy, &kind),
                None => place.training(&kind),
            }))
        };
        let before = std::mem::replace(&mut self.training, next);
        if self.kept.len() == MAX_KEPT {
            self.kept.remove(0);
        }
        self.kept.push((std::mem::replace(&mut self.kind, kind), before));
    }
}
