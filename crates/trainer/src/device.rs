//! Compute device of a rank, from the recipe.

use crate::TrainError;
use lockstep_comm::Comm;
use lockstep_config::{IsaChoice, Recipe};
use lockstep_model::precision_of;
use lockstep_platform::World;
use lockstep_tensor::device::Compute;
use lockstep_tensor::{Cpu, Isa};

/// Class of kernels with bit-identical results. A run records it, and only ranks of one class train
/// together. On a CPU it depends on the compute precision alone: every instruction set performs the
/// same operations in the same order.
pub fn kernel_class(recipe: &Recipe, compute: &Compute) -> String {
    compute.device().kernel_class(precision_of(recipe.precision.compute))
}

/// Opens the devices of a rank of `comm`.
pub fn open(recipe: &Recipe, world: &World, comm: &Comm) -> Result<Compute, TrainError> {
    let _ = comm;
    open_cpu(recipe, world).map(Compute::from)
}

/// Opens the devices of a process that works alone.
pub fn open_alone(recipe: &Recipe, world: &World) -> Result<Compute, TrainError> {
    open_cpu(recipe, world).map(Compute::from)
}

/// Opens the CPU. `run.isa` selects the instruction set, `run.threads` the number of threads (0
/// divides the cores among the workers).
pub fn open_cpu(recipe: &Recipe, world: &World) -> Result<Cpu, TrainError> {
    let isa = isa(recipe)?;
    let num_threads = recipe.run.num_threads(world.threads().available(), recipe.run.workers);
    Ok(Cpu::new(isa, num_threads, &|index, body| {
        // Dropping the device ends its threads, so no handle is joined.
        drop(world.threads().spawn(&format!("compute-{index}"), body).expect("threads start"));
    }))
}

/// Instruction set of the recipe, if this CPU supports it.
pub(crate) fn isa(recipe: &Recipe) -> Result<Isa, TrainError> {
    let isa = match recipe.run.isa {
        IsaChoice::Auto => Isa::detect(),
        IsaChoice::Avx512 => Isa::Avx512,
        IsaChoice::Avx2 => Isa::Avx2,
        IsaChoice::Portable => Isa::Portable,
    };
    if !isa.is_available() {
        let others: Vec<_> = Isa::available().iter().map(Isa::to_string).collect();
        return Err(TrainError::Isa { requested: isa.to_string(), others: others.join(", ") });
    }
    Ok(isa)
}
