//! The compute device of a rank, as the recipe asks for it.

use crate::TrainError;
use lockstep_config::{IsaChoice, Recipe};
use lockstep_model::precision_of;
use lockstep_platform::World;
use lockstep_tensor::{Cpu, Isa};

/// The class of kernels whose bits agree with each other; a run records it, and only ranks of one
/// class may train together. It follows from what products compute in and from nothing else,
/// because every instruction set does the same operations in the same order.
pub fn kernel_class(recipe: &Recipe) -> &'static str {
    precision_of(recipe.precision.compute).kernel_class()
}

/// Builds the device: `run.isa` chooses the instructions, `run.threads` the threads (0 divides the
/// cores among the workers).
pub fn open(recipe: &Recipe, world: &World) -> Result<Cpu, TrainError> {
    let isa = isa(recipe)?;
    let num_threads = recipe.run.num_threads(world.threads().available(), recipe.run.workers);
    Ok(Cpu::new(isa, num_threads, &|index, body| {
        // The pool ends its threads when the device is dropped, so nobody needs to join them.
        drop(world.threads().spawn(&format!("compute-{index}"), body).expect("threads start"));
    }))
}

/// The instructions that the recipe asks for, if this CPU has them.
pub(crate) fn isa(recipe: &Recipe) -> Result<Isa, TrainError> {
    let isa = match recipe.run.isa {
        IsaChoice::Auto => Isa::detect(),
        IsaChoice::Avx512 => Isa::Avx512,
        IsaChoice::Avx2 => Isa::Avx2,
        IsaChoice::Portable => Isa::Portable,
    };
    if !isa.is_available() {
        let others: Vec<_> = Isa::available().iter().map(Isa::to_string).collect();
        return Err(TrainError::Isa { asked: isa.to_string(), others: others.join(", ") });
    }
    Ok(isa)
}
