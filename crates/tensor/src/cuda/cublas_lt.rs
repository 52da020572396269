//! cuBLASLt: matrix products on the tensor cores.
//!
//! Algorithms come from the library's heuristic, once per shape, restricted to those that add
//! partial sums in a fixed order. Operands are row-major here and column-major there, so a product
//! is computed as its transpose.

use super::driver::Handle;
use super::library::{Library, functions};
use crate::device::error::{DeviceError, Result};
use crate::device::view::Dtype;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Mutex;

functions! {
    /// Functions of cuBLASLt, by the names of its header.
    Functions {
        create = c"cublasLtCreate" (*mut Handle);
        destroy = c"cublasLtDestroy" (Handle);
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
            Handle, Handle, Handle, Handle, Handle, Handle, Handle, c_int, *mut Choice, *mut c_int,
        );
        matmul = c"cublasLtMatmul" (
            Handle, Handle, *const f32, u64, Handle, u64, Handle, *const f32, u64, Handle, u64,
            Handle, *const [u64; 8], u64, usize, Handle,
        );
    }
}

/// Bytes of workspace that algorithms may use; NVIDIA's advice for Hopper.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;

const COMPUTE_F32: c_int = 68;
const TYPE_F32: c_int = 0;
const DESC_TRANSPOSE_A: c_int = 3;
const DESC_TRANSPOSE_B: c_int = 4;
const DESC_EPILOGUE: c_int = 7;
const DESC_BIAS: c_int = 8;
const DESC_BEFORE: c_int = 11;
const DESC_BEFORE_STRIDE: c_int = 12;
const PREFERENCE_WORKSPACE: c_int = 1;
const PREFERENCE_REDUCTIONS: c_int = 3;
const PREFERENCE_ALIGNMENT_A: c_int = 5;
/// Partial sums go through the workspace in the type of the sum, never through atomics.
const REDUCTION_IN_SUM_TYPE: u32 = 2;
const EPILOGUE_BIAS: u32 = 4;
const EPILOGUE_BIAS_GELU_AUX: u32 = 164;
const NOT_SUPPORTED: i32 = 15;

/// A candidate of the heuristic.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Choice {
    algorithm: [u64; 8],
    workspace_bytes: usize,
    status: c_int,
    num_waves: f32,
    reserved: [c_int; 4],
}

/// An operand in memory: address, distance between rows, and whether it is the transpose.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    pub(super) address: u64,
    pub(super) row_stride: usize,
    pub(super) transposed: bool,
}

/// Operation on the result.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fused {
    None,
    Bias { bias: u64 },
    BiasGelu { bias: u64, before: u64 },
}

/// `c (= or +=) a b` with m x k and k x n operands of one type.
pub(super) struct Call {
    pub(super) shape: (usize, usize, usize),
    pub(super) dtype: Dtype,
    pub(super) out_dtype: Dtype,
    pub(super) a: Operand,
    pub(super) b: Operand,
    pub(super) c: (u64, usize),
    pub(super) add: bool,
    pub(super) fused: Fused,
}

/// Properties of a call that the choice of an algorithm depends on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    shape: (usize, usize, usize),
    dtypes: (Dtype, Dtype),
    strides: [usize; 3],
    transposed: (bool, bool),
    alignments: [u32; 3],
    epilogue: u32,
}

impl Key {
    /// The call in a line without an equals sign.
    fn text(&self) -> String {
        let Self { shape: (m, n, k), dtypes: (from, to), strides, transposed, .. } = self;
        let [a, b, c] = strides;
        let side = |transposed| if transposed { 't' } else { 'n' };
        let layout = [transposed.0, transposed.1].map(side);
        let [first, second, target] = self.alignments;
        format!(
            "{m}x{n}x{k} {from} {to} {a} {b} {c} {}{} {first} {second} {target} {}",
            layout[0], layout[1], self.epilogue
        )
    }
}

/// The library, its handle, and the algorithms chosen so far.
pub(super) struct CublasLt {
    functions: Functions,
    handle: Handle,
    choices: Mutex<BTreeMap<Key, Option<Choice>>>,
    /// Algorithms of an earlier process, by the text of their calls.
    stored: Mutex<BTreeMap<String, Option<Choice>>>,
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
    /// Loads the library; the device's context must be active.
    pub(super) fn load() -> Result<Self> {
        let names = ["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"];
        let functions = Functions::of(Library::load(&names)?)?;
        let mut handle = null_mut();
        // SAFETY: writes the handle.
        check("cublasLtCreate", unsafe { (functions.create)(&raw mut handle) })?;
        Ok(Self { functions, handle, choices: Mutex::default(), stored: Mutex::default() })
    }

    /// Algorithms chosen so far, a line each: the call, then the algorithm.
    pub(super) fn algorithms(&self) -> String {
        let choices = self.choices.lock().expect("no call panics while it holds the list");
        let line = |(key, choice): (&Key, &Option<Choice>)| {
            let choice = choice.map_or_else(String::new, |choice| {
                let algorithm = choice.algorithm.map(|word| format!("{word:x}")).join(" ");
                format!("{algorithm} {:x}", choice.workspace_bytes)
            });
            format!("{} = {choice}\n", key.text())
        };
        choices.iter().map(line).collect()
    }

    /// Uses the algorithms of [`Self::algorithms`] of an equal library; lines that are not
    /// understood are left to the heuristic.
    pub(super) fn set_algorithms(&self, lines: &str) {
        let mut stored = self.stored.lock().expect("no call panics while it holds the list");
        stored.extend(lines.lines().filter_map(|line| {
            let (key, choice) = line.split_once(" = ")?;
            let numbers: Option<Vec<u64>> =
                choice.split_whitespace().map(|word| u64::from_str_radix(word, 16).ok()).collect();
            let choice = match numbers?[..] {
                [] => None,
                [ref algorithm @ .., workspace] => Some(Choice {
                    algorithm: algorithm.try_into().ok()?,
                    workspace_bytes: workspace as usize,
                    ..Choice::default()
                }),
            };
            Some((key.to_owned(), choice))
        }));
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
            Fused::BiasGelu { bias, before } => {
                self.set(&desc, DESC_BIAS, &bias)?;
                self.set(&desc, DESC_BEFORE, &before)?;
                self.set(&desc, DESC_BEFORE_STRIDE, &(n as i64))?;
            }
        }
        let first = self.layout(call.dtype, (k, n), b)?;
        let second = self.layout(call.dtype, (m, k), a)?;
        let out = Operand { address: c.0, row_stride: c.1, transposed: false };
        let target = self.layout(call.out_dtype, (m, n), &out)?;
        let key = Key {
            shape: call.shape,
            dtypes: (call.dtype, call.out_dtype),
            strides: [a.row_stride, b.row_stride, c.1],
            transposed: (a.transposed, b.transposed),
            alignments: [alignment(b.address), alignment(a.address), alignment(c.0)],
            epilogue,
        };
        let layouts = [&first, &second, &target];
        let Some(choice) = self.choose(key, &desc, layouts)? else { return Ok(false) };
        let (alpha, beta) = (1.0f32, if call.add { 1.0f32 } else { 0.0 });
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
                c.0,
                target.handle,
                c.0,
                target.handle,
                &raw const choice.algorithm,
                workspace,
                WORKSPACE_BYTES,
                stream,
            )
        };
        check("cublasLtMatmul", code)?;
        Ok(true)
    }

    /// The algorithm of a call, from the list or from the heuristic.
    fn choose(
        &self,
        key: Key,
        desc: &Descriptor,
        layouts: [&Descriptor; 3],
    ) -> Result<Option<Choice>> {
        let mut choices = self.choices.lock().expect("no call panics while it holds the list");
        if let Some(choice) = choices.get(&key) {
            return Ok(*choice);
        }
        let stored = self.stored.lock().expect("no call panics while it holds the list");
        if let Some(choice) = stored.get(&key.text()) {
            choices.insert(key, *choice);
            return Ok(*choice);
        }
        let f = &self.functions;
        let name = "cublasLtMatmulPreferenceCreate";
        // SAFETY: writes the handle.
        let preference = Self::create(f.preference_destroy, name, |handle| unsafe {
            (f.preference_create)(handle)
        })?;
        self.prefer(&preference, PREFERENCE_WORKSPACE, &WORKSPACE_BYTES)?;
        self.prefer(&preference, PREFERENCE_REDUCTIONS, &REDUCTION_IN_SUM_TYPE)?;
        let [first, second, target] = key.alignments;
        for (i, bytes) in [first, second, target, target].into_iter().enumerate() {
            self.prefer(&preference, PREFERENCE_ALIGNMENT_A + i as c_int, &bytes)?;
        }
        let (mut found, mut count) = (Choice::default(), 0);
        let [first, second, target] = layouts.map(|layout| layout.handle);
        // SAFETY: all descriptors are valid; writes at most one choice, and the count.
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
        if code != NOT_SUPPORTED {
            check("cublasLtMatmulAlgoGetHeuristic", code)?;
        }
        let choice = (code == 0 && count > 0 && found.status == 0).then_some(found);
        choices.insert(key, choice);
        Ok(choice)
    }

    /// Layout of a stored operand, given the shape after its transposition.
    fn layout(
        &self,
        dtype: Dtype,
        (rows, cols): (usize, usize),
        operand: &Operand,
    ) -> Result<Descriptor> {
        let (rows, cols) = if operand.transposed { (cols, rows) } else { (rows, cols) };
        let kind = match dtype {
            Dtype::Bf16 => 14,
            Dtype::F16 => 2,
            _ => TYPE_F32,
        };
        let f = &self.functions;
        Self::create(f.layout_destroy, "cublasLtMatrixLayoutCreate", |handle| {
            // A row-major matrix is the column-major transpose. SAFETY: writes the handle.
            unsafe {
                (f.layout_create)(handle, kind, cols as u64, rows as u64, operand.row_stride as i64)
            }
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
