//! Our own kernels: sources in the binary, compiled at first use, cached machine code.

use super::commands::Kernel;
use super::driver::{Context, Driver, Handle};
use super::nvrtc::Nvrtc;
use crate::device::error::{DeviceError, Result};
use crate::device::kernel_cache::KernelCache;
use crate::device::view::Dtype;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

/// Text in front of every source.
const COMMON: &str = include_str!("kernels/common.cuh");

/// A source of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    Attention,
    AttentionDecode,
    AttentionMma,
    Columns,
    Convert,
    CrossEntropy,
    Embedding,
    Fp8,
    Norm,
    Optimizer,
    Pointwise,
    Product,
}

impl Source {
    const fn text(self) -> (&'static str, &'static str) {
        match self {
            Self::Attention => ("attention.cu", include_str!("kernels/attention.cu")),
            Self::AttentionDecode => {
                ("attention_decode.cu", include_str!("kernels/attention_decode.cu"))
            }
            Self::AttentionMma => ("attention_mma.cu", include_str!("kernels/attention_mma.cu")),
            Self::Columns => ("columns.cu", include_str!("kernels/columns.cu")),
            Self::Convert => ("convert.cu", include_str!("kernels/convert.cu")),
            Self::CrossEntropy => ("cross_entropy.cu", include_str!("kernels/cross_entropy.cu")),
            Self::Embedding => ("embedding.cu", include_str!("kernels/embedding.cu")),
            Self::Fp8 => ("fp8.cu", include_str!("kernels/fp8.cu")),
            Self::Norm => ("norm.cu", include_str!("kernels/norm.cu")),
            Self::Optimizer => ("optimizer.cu", include_str!("kernels/optimizer.cu")),
            Self::Pointwise => ("pointwise.cu", include_str!("kernels/pointwise.cu")),
            Self::Product => ("product.cu", include_str!("kernels/product.cu")),
        }
    }
}

/// A source compiled for one type of activations and, for attention, one head dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Program {
    pub(super) source: Source,
    pub(super) dtype: Dtype,
    pub(super) head_dim: usize,
}

impl Program {
    pub(super) const fn new(source: Source, dtype: Dtype) -> Self {
        Self { source, dtype, head_dim: 0 }
    }
}

/// Shape of a launch.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    pub(super) blocks: (usize, usize, usize),
    pub(super) threads: usize,
    pub(super) shared_bytes: usize,
}

/// Dynamic shared memory above this needs a permission.
const SHARED_BYTES_FREE: usize = 48 * 1024;
const ATTRIBUTE_SHARED_BYTES: i32 = 8;

/// Loaded programs of a device.
pub(super) struct Programs {
    context: Arc<Context>,
    arch: String,
    cache: Arc<dyn KernelCache>,
    nvrtc: Nvrtc,
    modules: Mutex<BTreeMap<Program, Module>>,
}

struct Module {
    handle: Handle,
    functions: BTreeMap<&'static str, Function>,
}

/// A kernel's code.
struct Function {
    handle: Handle,
    /// Dynamic shared memory that its launches may have.
    max_shared_bytes: usize,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Module {}

impl Function {
    fn load(module: Handle, name: &'static str, driver: &Driver) -> Result<Self> {
        let (symbol, mut handle) = (CString::new(name).expect("a name"), null_mut());
        // SAFETY: the module is loaded, the name a string.
        let status = unsafe { (driver.module_function)(&raw mut handle, module, symbol.as_ptr()) };
        driver.check("cuModuleGetFunction", status)?;
        Ok(Self { handle, max_shared_bytes: SHARED_BYTES_FREE })
    }

    /// Permits launches with so much shared memory: once, because the call takes as long as a
    /// launch.
    fn permit(&mut self, shared_bytes: usize, driver: &Driver) -> Result<()> {
        let bytes = i32::try_from(shared_bytes).expect("shared memory is small");
        // SAFETY: a valid function.
        let status =
            unsafe { (driver.function_attribute)(self.handle, ATTRIBUTE_SHARED_BYTES, bytes) };
        driver.check("cuFuncSetAttribute", status)?;
        self.max_shared_bytes = shared_bytes;
        Ok(())
    }
}

impl Programs {
    pub(super) fn new(
        context: &Arc<Context>,
        (major, minor): (i32, i32),
        nvrtc: Nvrtc,
        cache: Arc<dyn KernelCache>,
    ) -> Self {
        let (context, arch) = (Arc::clone(context), format!("sm_{major}{minor}"));
        Self { context, arch, cache, nvrtc, modules: Mutex::default() }
    }

    /// A kernel with its arguments.
    pub(super) fn kernel(
        &self,
        program: Program,
        name: &'static str,
        grid: Grid,
        args: &[&[u8]],
    ) -> Result<Kernel> {
        let (x, y, z) = grid.blocks;
        let function = self.function(program, name, grid.shared_bytes)?;
        Ok(Kernel::new(function, ([x, y, z], grid.threads, grid.shared_bytes), args))
    }

    /// A function whose launches may have so much shared memory.
    fn function(
        &self,
        program: Program,
        name: &'static str,
        shared_bytes: usize,
    ) -> Result<Handle> {
        let mut modules = self.modules.lock().expect("no launch panics while it holds the list");
        let driver = &self.context.driver;
        let module = match modules.entry(program) {
            Entry::Occupied(module) => module.into_mut(),
            Entry::Vacant(place) => {
                self.context.activate()?;
                let (code, mut handle) = (self.machine_code(program)?, null_mut());
                // SAFETY: the image is a whole program; the driver copies it.
                let status = unsafe { (driver.module_load)(&raw mut handle, code.as_ptr().cast()) };
                driver.check("cuModuleLoadData", status)?;
                place.insert(Module { handle, functions: BTreeMap::new() })
            }
        };
        let function = match module.functions.entry(name) {
            Entry::Occupied(function) => function.into_mut(),
            Entry::Vacant(place) => {
                self.context.activate()?;
                place.insert(Function::load(module.handle, name, driver)?)
            }
        };
        if shared_bytes > function.max_shared_bytes {
            self.context.activate()?;
            function.permit(shared_bytes, driver)?;
        }
        Ok(function.handle)
    }

    /// Machine code from the cache, or compiled and stored there.
    fn machine_code(&self, program: Program) -> Result<Vec<u8>> {
        let storage = match program.dtype {
            Dtype::F32 => "float",
            Dtype::Bf16 => "bf16",
            Dtype::F16 => "f16",
            dtype @ (Dtype::F64 | Dtype::U32 | Dtype::U64) => {
                let reason = format!("no kernels for activations in {dtype}");
                return Err(DeviceError::Unsupported { operation: "kernel", reason });
            }
        };
        let (name, text) = program.source.text();
        let text = format!("{COMMON}\n#line 1 \"{name}\"\n{text}");
        let mut options = vec![
            format!("--gpu-architecture={}", self.arch),
            "--std=c++17".to_owned(),
            format!("-DSTORAGE={storage}"),
        ];
        if program.head_dim > 0 {
            options.push(format!("-DHEAD_DIM={}", program.head_dim));
        }
        let (major, minor) = self.nvrtc.version();
        let key = format!("{} {major}.{minor} {}", options.join(" "), text);
        let key = format!("{}-{storage}-{}-{:016x}", name, self.arch, fingerprint(&key));
        if let Some(code) = self.cache.load(&key) {
            return Ok(code);
        }
        let code = self.nvrtc.compile(name, &text, &options)?;
        self.cache.store(&key, &code);
        Ok(code)
    }
}

/// FNV-1a of a text.
fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
