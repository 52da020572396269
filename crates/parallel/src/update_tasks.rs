//! The update of a step: from agreed gradients to updated parameters, task by task.

use crate::param_store::part_lens;
use crate::programs::Segment;
use crate::replica::Replica;
use crate::task_spans::TaskSpans;
use lockstep_comm::CommError;
use lockstep_optim::{Optimizer, Update};
use lockstep_schedule::step::{Normed, TaskId, TaskOp};
use lockstep_tensor::Cpu;
use std::ops::Range;
use std::sync::Arc;

const WHOLE: &str = "the plan has updates of whole tensors";

impl Replica {
    /// Steps every parameter that this rank owns by its summed gradient.
    pub fn step(
        &mut self,
        cpu: &Cpu,
        optimizer: &mut Optimizer,
        update: &Update,
    ) -> Result<(), CommError> {
        let tasks = self.programs.training.segment(Segment::Update);
        self.update(cpu, optimizer, update, tasks, &TaskSpans::default())
    }

    /// Runs the tasks of an update.
    pub(crate) fn update(
        &mut self,
        cpu: &Cpu,
        optimizer: &mut Optimizer,
        update: &Update,
        tasks: Range<u32>,
        spans: &TaskSpans,
    ) -> Result<(), CommError> {
        let planned = self.plan.update_inputs;
        assert_eq!(optimizer.inputs(), planned, "the plan is for this optimizer");
        for task in tasks.map(TaskId) {
            self.run_update_task(cpu, optimizer, update, task)?;
            spans.end(task);
        }
        Ok(())
    }

    fn run_update_task(
        &mut self,
        cpu: &Cpu,
        optimizer: &mut Optimizer,
        update: &Update,
        task: TaskId,
    ) -> Result<(), CommError> {
        let training = Arc::clone(&self.programs.training);
        let program = &training.program;
        let matrices = self.matrices.as_mut();
        let store = &mut self.store;
        match program.tasks[task.0 as usize].op {
            TaskOp::Direction { bucket } => {
                store.prepare(cpu, optimizer, update, bucket as usize)?;
            }
            TaskOp::TensorNorms(of) => {
                let on = self.device.compute_device(cpu);
                match of {
                    Normed::Params => {
                        self.norm.measure_params(on, |bucket| store.own_params_view(bucket))?;
                    }
                    Normed::Steps => {
                        self.norm.measure_grads(on, |bucket| store.own_grads_view(bucket))?;
                    }
                }
                if !self.norm.is_sharded() {
                    self.take_norms(optimizer, of)?;
                }
            }
            TaskOp::GatherNorms(of) => {
                let lens = part_lens(program, task);
                assert!(self.norm.has_lens(&lens), "the program knows what each rank measures");
                self.take_norms(optimizer, of)?;
            }
            TaskOp::GatherMatrix { matrix, piece } => {
                let lens = part_lens(program, task);
                let at = (matrix as usize, piece as usize);
                matrices.expect(WHOLE).gather_matrix(at, &lens, store)?;
            }
            TaskOp::GatherPieces { matrix } => {
                matrices.expect(WHOLE).gather_pieces(matrix as usize, store, &self.groups)?;
            }
            TaskOp::Orthogonalize { matrix } => {
                matrices.expect(WHOLE).orthogonalize(cpu, matrix as usize, store)?;
            }
            TaskOp::FactorMoments { matrix } => {
                let matrices = matrices.expect(WHOLE);
                matrices.factor_moments(cpu, matrix as usize, store, (optimizer, update));
            }
            _ => {
                let link = &mut self.device.link;
                store.update(cpu, optimizer, update, link, (program, task))?;
            }
        }
        Ok(())
    }

    /// Hands the norms of all tensors to the optimizer. Collective where they are sharded.
    fn take_norms(&mut self, optimizer: &mut Optimizer, of: Normed) -> Result<(), CommError> {
        let Self { norm, store, blueprint, .. } = self;
        let norms = match of {
            Normed::Params => &mut optimizer.norms_mut().params,
            Normed::Steps => &mut optimizer.norms_mut().steps,
        };
        norm.by_name(norms, blueprint.num_tensors(), &mut store.overlap)
    }
}
