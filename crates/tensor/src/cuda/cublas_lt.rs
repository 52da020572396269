//! cuBLASLt: matrix products on the tensor cores.
//!
//! Algorithms come from the list of the run or from the library's heuristic, once per shape,
//! restricted to those that add partial sums in a fixed order. Operands are row-major here and
//! column-major there, so a product is computed as its transpose.

use super::algorithms::{self, Algorithm, Algorithms, Operands, Problem, WORKSPACE_BYTES};
use super::driver::Handle;
use super::library::{Library, functions};
use super::recorder::Recorder;
use crate::device::error::{DeviceError, Result};
use crate::device::profile::{Operation, ProductShape};
use crate::device::view::Dtype;
use crate::fp8::{Format, Role};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard};

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
const PREFERENCE_WORKSPACE: c_int = 1;
const PREFERENCE_REDUCTIONS: c_int = 3;
const PREFERENCE_ALIGNMENT_A: c_int = 5;
/// Partial sums go through the workspace in the type of the sum, never through atomics.
const REDUCTION_IN_SUM_TYPE: u32 = 2;
const EPILOGUE_BIAS: u32 = 4;
const EPILOGUE_BIAS_GELU_AUX: u32 = 164;
const EPILOGUE_GELU_BACKWARD: u32 = 192;
const INVALID_VALUE: i32 = 7;
const NOT_SUPPORTED: i32 = 15;

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Candidate {
    algorithm: [u64; 8],
    workspace_bytes: usize,
    status: c_int,
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
    /// The product in a profile.
    const fn operation(&self) -> Operation {
        Operation::Product(ProductShape {
            mnk: self.shape,
            operands: self.operands.precision(),
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
    functions: Functions,
    handle: Handle,
    /// Major, minor, patch.
    pub(super) version: [c_int; 3],
    /// Version of the library and class of the device, which algorithms belong to.
    source: String,
    lists: Mutex<Lists>,
    recorder: Arc<Recorder>,
}

#[derive(Default)]
struct Lists {
    /// Algorithms in use.
    chosen: Algorithms,
    /// Algorithms of an earlier process, which the library checks at their first use.
    stored: Algorithms,
}

// SAFETY: the library's handle may be used from any thread.
unsafe impl Send for CublasLt {}
// SAFETY: as above.
unsafe impl Sync for CublasLt {}

/// A descriptor that is destroyed at the end of a call.
struct Descriptor {
    handle: Handle,
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

    /// The list of the algorithms that were chosen or set so far.
    pub(super) fn algorithms(&self) -> String {
        let lists = self.lock();
        let mut all = lists.stored.clone();
        all.extend(&lists.chosen);
        algorithms::write(&self.source, &all)
    }

    /// Uses the algorithms of a list for its products, instead of those chosen so far too.
    pub(super) fn set_algorithms(&self, list: &str) -> Result<()> {
        let stored = algorithms::read(&self.source, list)?;
        let mut lists = self.lock();
        lists.chosen.retain(|problem, _| !stored.contains_key(problem));
        lists.stored.extend(stored);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().expect("no call panics while it holds the lists")
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
        let result_type = type_of(call.out_dtype);
        let [left_type, right_type] = match call.operands {
            Operands::Same(dtype) => [type_of(dtype); 2],
            Operands::Fp8(roles) => {
                self.set_scales(&desc, roles, [a, b])?;
                roles.map(fp8_data_type)
            }
        };
        let first = self.layout(right_type, (k, n), b)?;
        let second = self.layout(left_type, (m, k), a)?;
        let out = Operand { address: c.0, row_stride: c.1, transposed: false, scales: 0 };
        let target = self.layout(result_type, (m, n), &out)?;
        let addend = call.residual.unwrap_or(c.0);
        let problem = Problem {
            shape: call.shape,
            operands: call.operands,
            result: call.out_dtype,
            strides: [a.row_stride, b.row_stride, c.1],
            transposed: [a.transposed, b.transposed],
            alignments: [b.address, a.address, c.0 | addend].map(alignment),
            epilogue,
        };
        let layouts = [&first, &second, &target];
        let Some(algorithm) = self.choose(problem, &desc, layouts)? else { return Ok(false) };
        let adds = call.add || call.residual.is_some();
        let (alpha, beta) = (1.0f32, if adds { 1.0f32 } else { 0.0 });
        let queue = || {
            // SAFETY: descriptors describe the memory that the caller guarantees.
            let code = unsafe {
                (f.matmul)(
                    self.handle,
                    desc.handle,
                    &raw const alpha,
                    b.address,
                    first.handle,
                    a.address,
                    second.handle,
                    &raw const beta,
                    addend,
                    target.handle,
                    c.0,
                    target.handle,
                    &raw const algorithm.data,
                    workspace,
                    WORKSPACE_BYTES,
                    stream,
                )
            };
            check("cublasLtMatmul", code)
        };
        self.recorder.around(|| (call.operation(), None), queue)?;
        Ok(true)
    }

    /// Sets the scales of operands in fp8.
    fn set_scales(&self, desc: &Descriptor, roles: [Role; 2], [a, b]: [&Operand; 2]) -> Result<()> {
        let [left_mode, right_mode] = roles.map(scale_mode);
        self.set(desc, DESC_SCALE_MODE_A, &right_mode)?;
        self.set(desc, DESC_SCALE_MODE_B, &left_mode)?;
        self.set(desc, DESC_SCALES_A, &b.scales)?;
        self.set(desc, DESC_SCALES_B, &a.scales)
    }

    /// The algorithm of a product, from the lists or from the heuristic.
    fn choose(
        &self,
        problem: Problem,
        desc: &Descriptor,
        layouts: [&Descriptor; 3],
    ) -> Result<Option<Algorithm>> {
        let mut lists = self.lock();
        if let Some(algorithm) = lists.chosen.get(&problem) {
            return Ok(*algorithm);
        }
        let algorithm = match lists.stored.get(&problem) {
            Some(stored) => {
                if let Some(algorithm) = stored {
                    self.check_stored(&problem, algorithm, desc, layouts)?;
                }
                *stored
            }
            None => self.search(&problem, desc, layouts)?,
        };
        lists.chosen.insert(problem, algorithm);
        Ok(algorithm)
    }

    /// Lets the library check an algorithm that it did not choose in this process.
    fn check_stored(
        &self,
        problem: &Problem,
        algorithm: &Algorithm,
        desc: &Descriptor,
        layouts: [&Descriptor; 3],
    ) -> Result<()> {
        let [first, second, target] = layouts.map(|layout| layout.handle);
        let (data, mut checked) = (&raw const algorithm.data, Candidate::default());
        let (call, check) = ("cublasLtMatmulAlgoCheck", self.functions.algorithm_check);
        // SAFETY: all descriptors are valid; writes one candidate.
        let code = unsafe {
            let out = &raw mut checked;
            check(self.handle, desc.handle, first, second, target, target, data, out)
        };
        let code = if code == 0 { checked.status } else { code };
        if code == 0 && checked.workspace_bytes <= WORKSPACE_BYTES {
            return Ok(());
        }
        let reason = format!("the stored algorithm of product {problem} does not run here");
        Err(DeviceError::Failed { call, code, reason })
    }

    /// The first algorithm of the heuristic, if it has one.
    fn search(
        &self,
        problem: &Problem,
        desc: &Descriptor,
        layouts: [&Descriptor; 3],
    ) -> Result<Option<Algorithm>> {
        let f = &self.functions;
        let name = "cublasLtMatmulPreferenceCreate";
        // SAFETY: writes the handle.
        let preference = Self::create(f.preference_destroy, name, |handle| unsafe {
            (f.preference_create)(handle)
        })?;
        self.prefer(&preference, PREFERENCE_WORKSPACE, &WORKSPACE_BYTES)?;
        self.prefer(&preference, PREFERENCE_REDUCTIONS, &REDUCTION_IN_SUM_TYPE)?;
        let [first, second, target] = problem.alignments;
        for (i, bytes) in [first, second, target, target].into_iter().enumerate() {
            self.prefer(&preference, PREFERENCE_ALIGNMENT_A + i as c_int, &bytes)?;
        }
        let (mut found, mut count) = (Candidate::default(), 0);
        let [first, second, target] = layouts.map(|layout| layout.handle);
        // SAFETY: all descriptors are valid; writes at most one candidate, and the count.
        let code = unsafe {
            (f.heuristic)(
                self.handle,
                desc.handle,
                first,
                second,
                target,
                target,
                preference.handle,
                1,
                &raw mut found,
                &raw mut count,
            )
        };
        // Beside block scales the library has few operations on the result.
        let is_fp8 = matches!(problem.operands, Operands::Fp8(_));
        if code != NOT_SUPPORTED && !(is_fp8 && code == INVALID_VALUE) {
            check("cublasLtMatmulAlgoGetHeuristic", code)?;
        }
        let Candidate { algorithm: data, workspace_bytes, status, .. } = found;
        let is_found = code == 0 && count > 0 && status == 0;
        Ok(is_found.then_some(Algorithm { data, workspace_bytes }))
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

    fn create(
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

    fn prefer<T>(&self, preference: &Descriptor, attribute: c_int, value: &T) -> Result<()> {
        let (pointer, size) = ((&raw const *value).cast(), size_of::<T>());
        let handle = preference.handle;
        // SAFETY: the attribute has this size.
        let code = unsafe { (self.functions.preference_set)(handle, attribute, pointer, size) };
        check("cublasLtMatmulPreferenceSetAttribute", code)
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

fn check(call: &'static str, code: i32) -> Result<()> {
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
