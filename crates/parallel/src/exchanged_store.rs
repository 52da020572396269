//! Parameters and gradients of a rank whose strategy exchanges each bucket of gradients as soon as
//! backward has filled it.

use crate::microbatch::Store;
use crate::strategy::{Strategy, StrategyContext};
use lockstep_comm::CommError;
use lockstep_model::Grads;
use lockstep_schedule::step::{Program, TaskId};
use lockstep_tensor::Cpu;
use lockstep_tensor::device::{Result as DeviceResult, View};

/// Store whose communication is that of a strategy.
pub(crate) struct ExchangedStore<'a> {
    pub(crate) at: StrategyContext<'a>,
    pub(crate) strategy: &'a mut dyn Strategy,
}

impl Store for ExchangedStore<'_> {
    fn arrive(&mut self, block: usize) -> Result<(), CommError> {
        self.at.store.arrive(block)
    }

    fn params(&self, block: usize) -> DeviceResult<View<'_>> {
        self.at.store.params(block)
    }

    fn params_and_grads(
        &mut self,
        cpu: &Cpu,
        block: usize,
        leaf: Option<u32>,
    ) -> DeviceResult<(View<'_>, Grads<'_>)> {
        self.at.store.params_and_grads(cpu, block, leaf)
    }

    fn first_trained(&self) -> usize {
        self.at.store.first_trained()
    }

    fn finish_grads(&mut self, cpu: &Cpu, block: usize) -> Result<(), CommError> {
        self.at.store.finish_grads(cpu, block)
    }

    fn communicate(&mut self, cpu: &Cpu, program: &Program, task: TaskId) -> Result<(), CommError> {
        self.strategy.run(cpu, program.tasks[task.0 as usize].op, &mut self.at)
    }
}
