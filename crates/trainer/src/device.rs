//! Compute device of a rank, from the recipe.

use crate::{TrainError, kernel_cache};
use lockstep_comm::Comm;
use lockstep_config::{IsaChoice, Recipe};
use lockstep_model::precision_of;
use lockstep_parallel::from_recipe::device_of;
use lockstep_platform::World;
use lockstep_tensor::device::open::{Choice, open_accelerator};
use lockstep_tensor::device::{Compute, Device, NoCache, Result as DeviceResult};
use lockstep_tensor::{Cpu, Isa};
use std::sync::{Arc, Mutex, PoisonError};

/// Class of kernels with bit-identical results. A run records it, and only ranks of one class train
/// together. On a CPU it depends on the compute precision alone: every instruction set performs the
/// same operations in the same order.
pub fn kernel_class(recipe: &Recipe, compute: &Compute) -> String {
    compute.device().kernel_class(precision_of(recipe.precision.compute))
}

/// Name of the device that runs the blocks: `cpu`, or the name and index of an accelerator.
pub fn name(compute: &Compute) -> String {
    compute.accelerator().map_or_else(|| "cpu".to_owned(), |accelerator| accelerator.name())
}

/// Opens the devices of a rank of `comm`; the ranks of a host take its accelerators in turn.
pub fn open(recipe: &Recipe, world: &World, comm: &Comm) -> Result<Compute, TrainError> {
    open_at(recipe, world, comm.rank().0)
}

/// Opens the devices of a process that works alone.
pub fn open_alone(recipe: &Recipe, world: &World) -> Result<Compute, TrainError> {
    open_at(recipe, world, 0)
}

fn open_at(recipe: &Recipe, world: &World, local_rank: usize) -> Result<Compute, TrainError> {
    let cpu = open_cpu(recipe, world)?;
    let compute = match accelerator_at(recipe, world, local_rank)? {
        Some(accelerator) => Compute::accelerated(cpu, accelerator),
        None => cpu.into(),
    };
    compute.device().check_precision(precision_of(recipe.precision.compute))?;
    Ok(compute)
}

/// Opens the accelerator of the recipe, if it chooses one.
pub(crate) fn accelerator_at(
    recipe: &Recipe,
    world: &World,
    local_rank: usize,
) -> Result<Option<Arc<dyn Device>>, TrainError> {
    let accelerator = open_accelerator(choice(recipe)?, local_rank, kernel_cache::open(world))?;
    if let Some(accelerator) = &accelerator {
        accelerator.set_replay(recipe.run.graphs);
    }
    Ok(accelerator)
}

/// The accelerator that a recipe trains on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accelerator {
    /// Name for people.
    pub name: String,
    /// Bytes of its memory; 0 if unknown.
    pub memory_bytes: u64,
    /// Bytes that no process had allocated when it was opened; 0 if unknown.
    pub free_bytes: u64,
}

/// The accelerator that a recipe trains on; `None` where it trains on the CPU, an error where it
/// demands one that cannot be opened. A process opens each choice once for this.
pub fn accelerator(recipe: &Recipe) -> Result<Option<Accelerator>, TrainError> {
    type Found = DeviceResult<Option<Accelerator>>;
    static FOUND: Mutex<Vec<(Choice, Found)>> = Mutex::new(Vec::new());
    let choice = choice(recipe)?;
    let describe = || -> Found {
        let device = open_accelerator(choice, 0, Arc::new(NoCache))?;
        let describe = |device: &dyn Device| {
            let memory = device.memory()?;
            let [total, free] = memory.map_or([0; 2], |it| [it.total, it.free].map(|it| it as u64));
            Ok(Accelerator { name: device.name(), memory_bytes: total, free_bytes: free })
        };
        device.map(|device| describe(&*device)).transpose()
    };
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let known = found.iter().find(|(other, _)| *other == choice).map(|(_, known)| known.clone());
    let known = known.unwrap_or_else(|| {
        let described = describe();
        found.push((choice, described.clone()));
        described
    });
    Ok(known?)
}

/// Checks that the device of the recipe can be opened on this machine.
pub fn check(recipe: &Recipe) -> Result<(), TrainError> {
    isa(recipe)?;
    let precision = precision_of(recipe.precision.compute);
    lockstep_tensor::device::open::kernel_class(choice(recipe)?, 0, precision)?;
    Ok(())
}

fn choice(recipe: &Recipe) -> Result<Choice, TrainError> {
    device_of(recipe).map_err(|reason| TrainError::CpuOnly { reason })
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
