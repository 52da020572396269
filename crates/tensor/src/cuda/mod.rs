//! The CUDA device: libraries loaded at run time, products by cuBLASLt, own kernels by NVRTC.
//!
//! Nothing is linked: [`open`] loads the libraries and returns an error where one is absent. All
//! work of a device goes to one stream, and copies beside it to two more. Kernels are CUDA C++ in
//! `kernels/`, compiled for the device at their first use and kept in a [`KernelCache`]. Two runs
//! on one kind of device give equal bits: every sum has a fixed order, and no kernel adds floats by
//! atomics. Additions, conversions, rotations, dropout, optimizer steps, embeddings and sums of
//! squares in `f32` also have the bits of the CPU.
//!
//! # Layout
//! - `library`, `driver`, `nvrtc`, `cublas_lt`, `cudnn`: the libraries, as tables of function
//!   pointers; `algorithm_choice`, `algorithms`: the algorithms of products, and their list;
//!   `cudnn_graph`, `cudnn_attention`, `attention_plans`: attention by cuDNN, where it is
//!   installed.
//! - `programs`: sources and machine code; `commands`, `replay`, `graph`: work of the stream as
//!   values, sequences that repeat, and CUDA graphs of them; `staging`: copies that the host waits
//!   for; `recorder`: profiles.
//! - `memory`, `products`, `few_rows`, `decode`, `fp8`, `attention`, `layers`, `losses`, `flat`:
//!   the operations.
#![expect(unsafe_code, reason = "calls into the libraries of CUDA, and launches of kernels")]
#![expect(clippy::cast_possible_wrap, reason = "C interfaces have signed counts")]

mod algorithm_choice;
mod algorithms;
mod attention;
mod attention_plans;
mod commands;
mod cublas_lt;
mod cudnn;
mod cudnn_attention;
mod cudnn_graph;
mod decode;
mod driver;
mod few_rows;
mod flat;
mod fp8;
mod graph;
mod launch;
mod layers;
mod library;
mod losses;
mod memory;
mod nvrtc;
mod products;
mod programs;
mod recorder;
pub(crate) mod replay;
mod staging;

use crate::attention::Shape;
use crate::device::error::{DeviceError, Result};
use crate::device::kernel_cache::{KernelCache, NoCache};
use crate::gemm::Precision;
use attention_plans::AttentionPlans;
use commands::Command;
use cublas_lt::CublasLt;
use driver::{Context, CudaEvent, Description, DeviceMemory, Driver};
use graph::Graph;
use nvrtc::Nvrtc;
use programs::Programs;
use recorder::Recorder;
use replay::Replay;
use staging::Staging;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

/// Oldest supported architecture: bf16 needs it.
const MIN_CAPABILITY: (i32, i32) = (8, 0);
/// Oldest supported version of CUDA: that of the oldest libraries that are looked for.
const MIN_CUDA: (i32, i32) = (12, 0);

/// A CUDA device.
pub struct Cuda {
    name: String,
    capability: (i32, i32),
    num_multiprocessors: usize,
    programs: Programs,
    blas: CublasLt,
    /// Times of operations; the library has it too.
    recorder: Arc<Recorder>,
    /// Attention by cuDNN, if it is installed and fits the device.
    attention_plans: Option<AttentionPlans>,
    /// Temporary memory of operations, which run one after another: partial sums and rounded
    /// operands; a rounded bias; the workspace of products; and states of attention while decoding.
    scratch: [Mutex<Option<Scratch>>; 5],
    /// Pinned memory of copies from the host, and of those to it; allocated at the first copy.
    staging: [Mutex<Option<Staging>>; 2],
    /// Event by which one stream waits for another.
    stream_order: Mutex<CudaEvent>,
    /// Sequences of commands that repeat, the number of graphs that were queued, and why there are
    /// none any more.
    replay: Mutex<Replay<Command, Graph>>,
    num_launches: AtomicU64,
    warning: Mutex<Option<String>>,
    /// Last, so that everything above is released before it.
    context: Arc<Context>,
}

/// Temporary memory that grows.
struct Scratch {
    memory: DeviceMemory,
    bytes: usize,
}

/// Libraries of the host, and a device on which they can train.
struct Installation {
    driver: Driver,
    device: Description,
    nvrtc: Nvrtc,
    blas: cublas_lt::Functions,
}

impl Installation {
    /// Finds everything that training on device `index` needs, without opening it.
    fn find(index: usize) -> Result<Self> {
        let driver = Driver::load()?;
        let (device, version) = (driver.describe(index)?, driver.version()?);
        let (major, minor) = device.capability;
        let unfit = |reason| Err(DeviceError::Unfit { index, reason });
        if device.capability < MIN_CAPABILITY {
            return unfit(format!("compute capability {major}.{minor}, but bf16 needs 8.0"));
        }
        if version < MIN_CUDA {
            let (major, minor) = version;
            return unfit(format!("its driver runs CUDA {major}.{minor}, but 12.0 is needed"));
        }
        let nvrtc = Nvrtc::load(version)?;
        if !nvrtc.archs()?.contains(&(10 * major + minor)) {
            let (old, patch) = nvrtc.version();
            return unfit(format!(
                "NVRTC {old}.{patch} does not compile for compute capability {major}.{minor}; \
                 install a newer CUDA toolkit"
            ));
        }
        let blas = cublas_lt::Functions::load(version)?;
        Ok(Self { driver, device, nvrtc, blas })
    }
}

/// Number of CUDA devices; none without a driver.
pub fn num_devices() -> Result<usize> {
    match Driver::load() {
        Err(error) if Driver::is_absent(&error) => Ok(0),
        driver => driver?.num_devices(),
    }
}

/// Name of the arithmetic of device `index`, if training can run on it.
pub(crate) fn kernel_class(index: usize, precision: Precision) -> Result<String> {
    let Installation { device, blas, .. } = Installation::find(index)?;
    fp8::check(precision, device.capability, blas.version()?)?;
    Ok(memory::class_name(precision, device.capability))
}

/// Opens device `index`, without a cache of kernels.
pub fn open(index: usize) -> Result<Cuda> {
    open_with_cache(index, Arc::new(NoCache))
}

/// Opens device `index` and the libraries that training needs; compiled kernels are kept in
/// `cache`.
pub fn open_with_cache(index: usize, cache: Arc<dyn KernelCache>) -> Result<Cuda> {
    let Installation { driver, device, nvrtc, blas } = Installation::find(index)?;
    let context = Arc::new(Context::open(&driver, &device)?);
    let recorder = Arc::new(Recorder::new(&context));
    Ok(Cuda {
        programs: Programs::new(&context, device.capability, nvrtc, cache),
        blas: CublasLt::new(blas, device.capability, &recorder)?,
        recorder,
        attention_plans: AttentionPlans::load(device.capability),
        name: device.name,
        capability: device.capability,
        num_multiprocessors: device.num_multiprocessors,
        scratch: <[Mutex<_>; 5]>::default(),
        staging: <[Mutex<_>; 2]>::default(),
        stream_order: Mutex::new(CudaEvent::new(&context, CudaEvent::WITHOUT_TIME)?),
        replay: Mutex::default(),
        num_launches: AtomicU64::new(0),
        warning: Mutex::default(),
        context,
    })
}

impl Cuda {
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
                // Commands that were held back may use the memory that is released.
                self.interrupt()?;
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

/// Reads a list of product algorithms, and writes it.
pub(crate) fn reread_algorithms(source: &str, list: &str) -> Result<String> {
    Ok(algorithms::write(source, &algorithms::read(source, list)?))
}

/// Checks that a device and its library have products in a precision.
pub(crate) fn check_precision(
    precision: Precision,
    capability: (i32, i32),
    library: [i32; 3],
) -> Result<()> {
    fp8::check(precision, capability, library)
}

/// Elements of scratch memory for attention.
pub(crate) const fn attention_scratch_len(shape: Shape) -> usize {
    attention::scratch_len(shape)
}

/// Workspace of products.
pub(crate) const PRODUCT_WORKSPACE_BYTES: usize = algorithms::WORKSPACE_BYTES;

/// Memory that attention of a training step allocates besides the buffers of its callers, on a
/// device that cuDNN is used on.
pub(crate) fn attention_scratch_bytes(precision: Precision, shape: Shape) -> usize {
    attention_plans::workspace_bytes(precision, shape)
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cuda({}, {})", self.context.index, self.name)
    }
}
