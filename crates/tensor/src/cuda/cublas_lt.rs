//! cuBLASLt: matrix products on the tensor cores.
//!
//! Operands are row-major here and column-major there, so a product is computed as its transpose.

use super::algorithms::{Algorithm, Lists, Operands, Problem, WORKSPACE_BYTES};
use super::driver::Handle;
use super::library::{Library, functions};
use super::recorder::Recorder;
use crate::device::error::{DeviceError, Result};
use crate::device::profile::{Operation, ProductShape};
use crate::device::view::Dtype;
use crate::fp8::{Format, Role};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

functions! {
    /// Functions of cuBLASLt, by the names of its header.
    Functions {
        create = c"cublasLtCreate" (*mut Handle);
        destroy = c"cublasLtDestroy" (Handle);
        property = c"cublasLtGetProperty" (c_int, *mut c_int);
        desc_create = c"cublasLtMatmulDescCreate" (*mut Handle, c_int, c_int);
        desc_set = c"cublasLtMatmulDescSetAttribute" (Handle, c_int, *const c_void, usize);
        desc_destroy = c"cublasLtMatmulDescDestroy" (Handle);
        layout_create = c"cublasLtMatrixLayoutCreate" (*mut Handle, c_int, u64, u64, i64);
        layout_destroy = c"cublasLtMatrixLayoutDestroy" (Handle);
        preference_create = c"cublasLtMatmulPreferenceCreate" (*mut Handle);
        preference_set = c"cublasLtMatmulPreferenceSetAttribute" (
            Handle, c_int, *const c_void, usize,
        );
        preference_destroy = c"cublasLtMatmulPreferenceDestroy" (Handle);
        heuristic = c"cublasLtMatmulAlgoGetHeuristic" (
            Handle, Handle, Handle, Handle, Handle, Handle, Handle, c_int, *mut Candidate,
            *mut c_int,
        );
        algorithm_check = c"cublasLtMatmulAlgoCheck" (
            Handle, Handle, Handle, Handle, Handle, Handle, *const [u64; 8], *mut Candidate,
        );
        matmul = c"cublasLtMatmul" (
            Handle, Handle, *const f32, u64, Handle, u64, Handle, *const f32, u64, Handle, u64,
            Handle, *const [u64; 8], u64, usize, Handle,
        );
    }
}

impl Functions {
    /// Loads the library for a driver of this version of CUDA.
    pub(super) fn load(driver: (i32, i32)) -> Result<Self> {
        let versions =
            [(13, "libcublasLt.so.13"), (12, "libcublasLt.so.12"), (0, "libcublasLt.so")];
        Self::of(Library::load_for(driver, &versions)?)
    }

    /// Version of the library: major, minor, patch.
    pub(super) fn version(&self) -> Result<[c_int; 3]> {
        let mut version = [0; 3];
        for (property, value) in version.iter_mut().enumerate() {
            // SAFETY: writes one number.
            check("cublasLtGetProperty", unsafe { (self.property)(property as c_int, value) })?;
        }
        Ok(version)
    }
}

const COMPUTE_F32: c_int = 68;
const TYPE_F32: c_int = 0;
const DESC_TRANSPOSE_A: c_int = 3;
const DESC_TRANSPOSE_B: c_int = 4;
const DESC_EPILOGUE: c_int = 7;
const DESC_BIAS: c_int = 8;
const DESC_BEFORE: c_int = 11;
const DESC_BEFORE_STRIDE: c_int = 12;
const DESC_SCALES_A: c_int = 17;
const DESC_SCALES_B: c_int = 18;
const DESC_SCALE_MODE_A: c_int = 31;
const DESC_SCALE_MODE_B: c_int = 32;
const EPILOGUE_BIAS: u32 = 4;
const EPILOGUE_BIAS_GELU_AUX: u32 = 164;
const EPILOGUE_GELU_BACKWARD: u32 = 192;
pub(super) const INVALID_VALUE: i32 = 7;
pub(super) const NOT_SUPPORTED: i32 = 15;

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Candidate {
    pub(super) algorithm: [u64; 8],
    pub(super) workspace_bytes: usize,
    pub(super) status: c_int,
    num_waves: f32,
    reserved: [c_int; 4],
}

/// An operand in memory: address, distance between rows, and whether it is the transpose; in fp8
/// also the address of its scales.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Operand {
    pub(super) address: u64,
    pub(super) row_stride: usize,
    pub(super) transposed: bool,
    pub(super) scales: u64,
}

/// Operation on the result.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fused {
    None,
    Bias { bias: u64 },
    GeluBackward { before: u64 },
    BiasGelu { bias: u64, before: u64 },
}

/// `c (= or +=) a b` with m x k and k x n operands; or `c = a b` plus a dense matrix of the type of
/// `c`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) shape: (usize, usize, usize),
    pub(super) operands: Operands,
    pub(super) out_dtype: Dtype,
    pub(super) a: Operand,
    pub(super) b: Operand,
    pub(super) c: (u64, usize),
    pub(super) add: bool,
    pub(super) residual: Option<u64>,
    pub(super) fused: Fused,
}

impl Call {
    /// Address of what is added to the product, or of the target.
    fn addend(&self) -> u64 {
        self.residual.unwrap_or(self.c.0)
    }

    /// The product in a profile.
    const fn operation(&self) -> Operation {
        Operation::Product(ProductShape {
            mnk: self.shape,
            operands: self.operands.precision(),
            roles: self.operands.roles(),
            result: self.out_dtype,
            transposed: [self.a.transposed, self.b.transposed],
            add: self.add || self.residual.is_some(),
            epilogue: match self.fused {
                Fused::None => "",
                Fused::Bias { .. } => "bias",
                Fused::GeluBackward { .. } => "gelu gradient",
                Fused::BiasGelu { .. } => "bias, gelu",
            },
        })
    }
}

/// The library, its handle, and the algorithms of the run.
pub(super) struct CublasLt {
    pub(super) functions: Functions,
    pub(super) handle: Handle,
    /// Major, minor, patch.
    pub(super) version: [c_int; 3],
    /// Version of the library and class of the device, which algorithms belong to.
    pub(super) source: String,
    pub(super) lists: Mutex<Lists>,
    recorder: Arc<Recorder>,
}

// SAFETY: the library's handle may be used from any thread.
unsafe impl Send for CublasLt {}
// SAFETY: as above.
unsafe impl Sync for CublasLt {}

/// A product with its descriptors.
pub(super) struct Prepared<'a> {
    call: &'a Call,
    pub(super) problem: Problem,
    pub(super) desc: Descriptor,
    /// Right and left operand, and the target.
    pub(super) layouts: [Descriptor; 3],
}

/// A descriptor that is destroyed at the end of a call.
pub(super) struct Descriptor {
    pub(super) handle: Handle,
    destroy: unsafe extern "C" fn(Handle) -> i32,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours.
        unsafe { (self.destroy)(self.handle) };
    }
}

impl CublasLt {
    /// Opens the library for a device of this compute capability, whose context must be active.
    pub(super) fn new(
        functions: Functions,
        (major, minor): (i32, i32),
        recorder: &Arc<Recorder>,
    ) -> Result<Self> {
        let version = functions.version()?;
        let [first, second, patch] = version;
        let source =
            format!("cuBLASLt {first}.{second}.{patch}, compute capability {major}.{minor}");
        let mut handle = null_mut();
        // SAFETY: writes the handle.
        check("cublasLtCreate", unsafe { (functions.create)(&raw mut handle) })?;
        let (lists, recorder) = (Mutex::default(), Arc::clone(recorder));
        Ok(Self { functions, handle, version, source, lists, recorder })
    }

    /// Queues a product; `false` when the library has no algorithm for it.
    ///
    /// # Safety
    /// Addresses must be those of borrowed memory that the shape does not leave; `workspace` has
    /// [`WORKSPACE_BYTES`].
    pub(super) unsafe fn multiply(
        &self,
        call: &Call,
        workspace: u64,
        stream: Handle,
    ) -> Result<bool> {
        let prepared = self.prepare(call)?;
        let Some(algorithm) = self.choose(&prepared)? else { return Ok(false) };
        // SAFETY: the caller guarantees the memory.
        let queue = || unsafe { self.queue(&prepared, &algorithm, workspace, stream) };
        self.recorder.around(|| (call.operation(), None), queue)?;
        Ok(true)
    }

    /// Queues a product by an algorithm.
    ///
    /// # Safety
    /// As that of [`Self::multiply`].
    unsafe fn queue(
        &self,
        prepared: &Prepared<'_>,
        algorithm: &Algorithm,
        workspace: u64,
        stream: Handle,
    ) -> Result<()> {
        let Prepared { call, desc, layouts: [first, second, target], .. } = prepared;
        let adds = call.add || call.residual.is_some();
        let (alpha, beta) = (1.0f32, if adds { 1.0f32 } else { 0.0 });
        // SAFETY: descriptors describe the memory that the caller guarantees.
        let code = unsafe {
            (self.functions.matmul)(
                self.handle,
                desc.handle,
                &raw const alpha,
                call.b.address,
                first.handle,
                call.a.address,
                second.handle,
                &raw const beta,
                call.addend(),
                target.handle,
                call.c.0,
                target.handle,
                &raw const algorithm.data,
                workspace,
                WORKSPACE_BYTES,
                stream,
            )
        };
        check("cublasLtMatmul", code)
    }

    /// Describes a product to the library.
    fn prepare<'a>(&self, call: &'a Call) -> Result<Prepared<'a>> {
        let (m, n, k) = call.shape;
        let Call { a, b, c, .. } = call;
        let f = &self.functions;
        let epilogue = match call.fused {
            Fused::None => 1,
            Fused::Bias { .. } => EPILOGUE_BIAS,
            Fused::GeluBackward { .. } => EPILOGUE_GELU_BACKWARD,
            Fused::BiasGelu { .. } => EPILOGUE_BIAS_GELU_AUX,
        };
        let desc = Self::create(f.desc_destroy, "cublasLtMatmulDescCreate", |handle| {
            // SAFETY: writes the handle.
            unsafe { (f.desc_create)(handle, COMPUTE_F32, TYPE_F32) }
        })?;
        // The first operand of the transposed product is b, the second a.
        self.set(&desc, DESC_TRANSPOSE_A, &c_int::from(b.transposed))?;
        self.set(&desc, DESC_TRANSPOSE_B, &c_int::from(a.transposed))?;
        self.set(&desc, DESC_EPILOGUE, &epilogue)?;
        match call.fused {
            Fused::None => {}
            Fused::Bias { bias } => self.set(&desc, DESC_BIAS, &bias)?,
            Fused::GeluBackward { before } => {
                self.set(&desc, DESC_BEFORE, &before)?;
                self.set(&desc, DESC_BEFORE_STRIDE, &(n as i64))?;
            }
            Fused::BiasGelu { bias, before } => {
                self.set(&desc, DESC_BIAS, &bias)?;
                self.set(&desc, DESC_BEFORE, &before)?;
                self.set(&desc, DESC_BEFORE_STRIDE, &(n as i64))?;
            }
        }
        let [left_type, right_type] = match call.operands {
            Operands::Same(dtype) => [type_of(dtype); 2],
            Operands::Fp8(roles) => {
                self.set_scales(&desc, roles, [a, b])?;
                roles.map(fp8_data_type)
            }
        };
        let out = Operand { address: c.0, row_stride: c.1, transposed: false, scales: 0 };
        let layouts = [
            self.layout(right_type, (k, n), b)?,
            self.layout(left_type, (m, k), a)?,
            self.layout(type_of(call.out_dtype), (m, n), &out)?,
        ];
        let problem = Problem {
            shape: call.shape,
            operands: call.operands,
            result: call.out_dtype,
            strides: [a.row_stride, b.row_stride, c.1],
            transposed: [a.transposed, b.transposed],
            alignments: [b.address, a.address, c.0 | call.addend()].map(alignment),
            epilogue,
        };
        Ok(Prepared { call, problem, desc, layouts })
    }

    /// Sets the scales of operands in fp8.
    fn set_scales(&self, desc: &Descriptor, roles: [Role; 2], [a, b]: [&Operand; 2]) -> Result<()> {
        let [left_mode, right_mode] = roles.map(scale_mode);
        self.set(desc, DESC_SCALE_MODE_A, &right_mode)?;
        self.set(desc, DESC_SCALE_MODE_B, &left_mode)?;
        self.set(desc, DESC_SCALES_A, &b.scales)?;
        self.set(desc, DESC_SCALES_B, &a.scales)
    }

    /// Layout of a stored operand, given the shape after its transposition.
    fn layout(
        &self,
        data_type: c_int,
        (rows, cols): (usize, usize),
        operand: &Operand,
    ) -> Result<Descriptor> {
        let (rows, cols) = if operand.transposed { (cols, rows) } else { (rows, cols) };
        let stride = operand.row_stride as i64;
        let f = &self.functions;
        Self::create(f.layout_destroy, "cublasLtMatrixLayoutCreate", |handle| {
            // A row-major matrix is the column-major transpose. SAFETY: writes the handle.
            unsafe { (f.layout_create)(handle, data_type, cols as u64, rows as u64, stride) }
        })
    }

    pub(super) fn create(
        destroy: unsafe extern "C" fn(Handle) -> i32,
        call: &'static str,
        create: impl FnOnce(*mut Handle) -> i32,
    ) -> Result<Descriptor> {
        let mut handle = null_mut();
        check(call, create(&raw mut handle))?;
        Ok(Descriptor { handle, destroy })
    }

    fn set<T>(&self, desc: &Descriptor, attribute: c_int, value: &T) -> Result<()> {
        let (pointer, size) = ((&raw const *value).cast(), size_of::<T>());
        // SAFETY: the attribute has this size.
        let code = unsafe { (self.functions.desc_set)(desc.handle, attribute, pointer, size) };
        check("cublasLtMatmulDescSetAttribute", code)
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: nothing uses the handle afterwards.
        unsafe { (self.functions.destroy)(self.handle) };
    }
}

/// The library's number of a type.
const fn type_of(dtype: Dtype) -> c_int {
    match dtype {
        Dtype::Bf16 => 14,
        Dtype::F16 => 2,
        _ => TYPE_F32,
    }
}

/// Largest power of two up to 256 that divides an address.
fn alignment(address: u64) -> u32 {
    1 << address.trailing_zeros().min(8)
}

pub(super) fn check(call: &'static str, code: i32) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    Err(DeviceError::Failed { call, code, reason: "status of cuBLASLt".to_owned() })
}

/// The library's number of the format of a role.
const fn fp8_data_type(role: Role) -> i32 {
    match role.format() {
        Format::E4m3 => 28,
        Format::E5m2 => 29,
    }
}

/// The library's number of the layout of a role's scales: `CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F`
/// and `CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F`.
const fn scale_mode(role: Role) -> i32 {
    match role {
        Role::Activation | Role::Gradient => 4,
        Role::Weight => 5,
    }
}
