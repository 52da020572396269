//! The CUDA device: libraries loaded at run time, products by cuBLASLt, own kernels by NVRTC.
//!
//! Nothing is linked: [`open`] loads the driver and returns an error where it is absent. All work
//! of a device goes to one stream. Kernels are CUDA C++ in `kernels/`, compiled for the device at
//! their first use and kept in a [`KernelCache`]. Two runs on one kind of device give equal bits:
//! every sum has a fixed order, and no kernel adds floats by atomics. Additions, conversions,
//! rotations, dropout, optimizer steps, embeddings and sums of squares in `f32` also have the bits
//! of the CPU.
//!
//! # Layout
//! - `library`, `driver`, `nvrtc`, `cublas_lt`: the libraries, as tables of function pointers.
//! - `programs`: sources, machine code and launches.
//! - `memory`, `products`, `attention`, `layers`, `losses`, `flat`: the operations.
#![expect(unsafe_code, reason = "calls into the libraries of CUDA, and launches of kernels")]
#![expect(clippy::cast_possible_wrap, reason = "C interfaces have signed counts")]

mod attention;
mod cublas_lt;
mod driver;
mod flat;
mod launch;
mod layers;
mod library;
mod losses;
mod memory;
mod nvrtc;
mod products;
mod programs;

pub use programs::{KernelCache, NoCache};

use crate::device::error::{DeviceError, Result};
use cublas_lt::CublasLt;
use driver::{Context, DeviceMemory, Driver};
use programs::Programs;
use std::sync::{Arc, Mutex, OnceLock};

/// Oldest supported architecture: bf16 needs it.
const MIN_CAPABILITY: (i32, i32) = (8, 0);

/// A CUDA device.
pub struct Cuda {
    context: Arc<Context>,
    name: String,
    capability: (i32, i32),
    num_multiprocessors: usize,
    programs: Programs,
    blas: OnceLock<CublasLt>,
    /// Temporary memory of operations, which run one after another: partial sums and rounded
    /// operands; and the workspace of products.
    scratch: [Mutex<Option<Scratch>>; 3],
}

/// Temporary memory that grows.
struct Scratch {
    memory: DeviceMemory,
    bytes: usize,
}

/// Number of CUDA devices.
pub fn num_devices() -> Result<usize> {
    Driver::load()?.num_devices()
}

/// Opens device `index`, without a cache of kernels.
pub fn open(index: usize) -> Result<Cuda> {
    open_with_cache(index, Arc::new(NoCache))
}

/// Opens device `index`; compiled kernels are kept in `cache`.
pub fn open_with_cache(index: usize, cache: Arc<dyn KernelCache>) -> Result<Cuda> {
    let context = Arc::new(Context::open(index)?);
    let description = context.describe()?;
    let capability = description.capability;
    if capability < MIN_CAPABILITY {
        let (major, minor) = capability;
        let reason = format!("compute capability {major}.{minor}, but bf16 needs 8.0");
        return Err(DeviceError::Unfit { index, reason });
    }
    Ok(Cuda {
        programs: Programs::new(&context, capability, cache),
        context,
        name: description.name,
        capability,
        num_multiprocessors: description.num_multiprocessors,
        blas: OnceLock::new(),
        scratch: <[Mutex<_>; 3]>::default(),
    })
}

impl Cuda {
    /// The library of products, loaded at first use.
    fn blas(&self) -> Result<&CublasLt> {
        if let Some(blas) = self.blas.get() {
            return Ok(blas);
        }
        self.context.activate()?;
        let loaded = CublasLt::load()?;
        Ok(self.blas.get_or_init(|| loaded))
    }

    /// Calls `body` with temporary memory of at least `bytes`; its work must be queued when it
    /// returns. Later operations reuse the memory, in the order of the stream.
    fn with_scratch<T>(
        &self,
        slot: usize,
        bytes: usize,
        body: impl FnOnce(u64) -> Result<T>,
    ) -> Result<T> {
        let mut scratch = self.scratch[slot].lock().expect("a failed body ends the run");
        let address = match &*scratch {
            Some(scratch) if scratch.bytes >= bytes => scratch.memory.address,
            _ => {
                *scratch = None;
                let memory = DeviceMemory::new(&self.context, bytes)?;
                let address = memory.address;
                *scratch = Some(Scratch { memory, bytes });
                address
            }
        };
        body(address)
    }
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cuda({}, {})", self.context.index, self.name)
    }
}
