//! cuDNN: the library, its handle, and the descriptors that its backend interface consists of.

use super::driver::Handle;
use super::library::{Library, functions};
use crate::device::error::{DeviceError, Result};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;

functions! {
    /// Functions of cuDNN, by the names of its header.
    Functions {
        property = c"cudnnGetProperty" (c_int, *mut c_int);
        create = c"cudnnCreate" (*mut Handle);
        destroy = c"cudnnDestroy" (Handle);
        set_stream = c"cudnnSetStream" (Handle, Handle);
        descriptor_create = c"cudnnBackendCreateDescriptor" (c_int, *mut Handle);
        descriptor_destroy = c"cudnnBackendDestroyDescriptor" (Handle);
        attribute_set = c"cudnnBackendSetAttribute" (Handle, c_int, c_int, i64, *const c_void);
        attribute_get = c"cudnnBackendGetAttribute" (
            Handle, c_int, c_int, i64, *mut i64, *mut c_void,
        );
        finalize = c"cudnnBackendFinalize" (Handle);
        execute = c"cudnnBackendExecute" (Handle, Handle, Handle);
    }
}

/// The loaded library.
#[derive(Clone, Copy)]
pub(super) struct Loaded {
    functions: Functions,
    last_error: unsafe extern "C" fn(*mut c_char, usize),
    /// Major, minor, patch.
    pub(super) version: [c_int; 3],
}

impl Loaded {
    /// Loads the library, from the library path first: a newer one than the system's may be there.
    pub(super) fn load() -> Result<Self> {
        let library = Library::load(&["libcudnn.so.9"])?;
        let functions = Functions::of(library)?;
        // SAFETY: the signature is that of the library's header.
        let last_error = unsafe { library.function(c"cudnnGetLastErrorString")? };
        let mut loaded = Self { functions, last_error, version: [0; 3] };
        for property in 0..3 {
            let value = &raw mut loaded.version[property];
            // SAFETY: writes one number.
            let code = unsafe { (functions.property)(property as c_int, value) };
            loaded.check("cudnnGetProperty", code)?;
        }
        Ok(loaded)
    }

    /// Turns a status into an error.
    fn check(&self, call: &'static str, code: i32) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut text: [c_char; 256] = [0; 256];
        // SAFETY: writes a string of at most 256 bytes, with its end.
        let reason = unsafe {
            (self.last_error)(text.as_mut_ptr(), text.len());
            CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned()
        };
        Err(DeviceError::Failed { call, code, reason })
    }
}

/// The library with a handle for one stream.
pub(super) struct Cudnn {
    loaded: Loaded,
    pub(super) handle: Handle,
}

// SAFETY: the library's handle may be used from any thread, by one at a time.
unsafe impl Send for Cudnn {}

impl Cudnn {
    /// Opens the library for a stream of the active context.
    pub(super) fn open(loaded: &Loaded, stream: Handle) -> Result<Self> {
        let mut handle = null_mut();
        // SAFETY: writes the handle.
        let code = unsafe { (loaded.functions.create)(&raw mut handle) };
        loaded.check("cudnnCreate", code)?;
        let cudnn = Self { loaded: *loaded, handle };
        cudnn.set_stream(stream)?;
        Ok(cudnn)
    }

    /// Queues on another stream from now on.
    pub(super) fn set_stream(&self, stream: Handle) -> Result<()> {
        // SAFETY: both handles are valid.
        let code = unsafe { (self.loaded.functions.set_stream)(self.handle, stream) };
        self.loaded.check("cudnnSetStream", code)
    }

    /// Creates an empty descriptor.
    pub(super) fn descriptor(&self, kind: c_int) -> Result<Descriptor> {
        let mut handle = null_mut();
        // SAFETY: writes the handle.
        let code = unsafe { (self.loaded.functions.descriptor_create)(kind, &raw mut handle) };
        self.loaded.check("cudnnBackendCreateDescriptor", code)?;
        Ok(Descriptor { loaded: self.loaded, handle })
    }

    /// Queues a plan.
    ///
    /// # Safety
    /// The memory that `pack` names must be that of the plan's tensors and workspace.
    pub(super) unsafe fn execute(&self, plan: &Descriptor, pack: &Descriptor) -> Result<()> {
        let execute = self.loaded.functions.execute;
        // SAFETY: the caller guarantees the memory.
        let code = unsafe { execute(self.handle, plan.handle, pack.handle) };
        self.loaded.check("cudnnBackendExecute", code)
    }
}

impl Drop for Cudnn {
    fn drop(&mut self) {
        // SAFETY: nothing uses the handle afterwards.
        unsafe { (self.loaded.functions.destroy)(self.handle) };
    }
}

/// Type of an attribute: the library's code, and the type of its values here.
#[derive(Clone, Copy)]
pub(super) struct Kind<T> {
    code: c_int,
    values: PhantomData<T>,
}

impl<T> Kind<T> {
    const fn new(code: c_int) -> Self {
        Self { code, values: PhantomData }
    }
}

// Layouts are those of the library's header, whose enumerations are those of C.
impl Kind<Handle> {
    pub(super) const HANDLE: Self = Self::new(0);
    pub(super) const DESCRIPTOR: Self = Self::new(15);
}

impl Kind<c_int> {
    pub(super) const ELEMENT: Self = Self::new(1);
    pub(super) const HEURISTIC: Self = Self::new(8);
    pub(super) const POINTWISE: Self = Self::new(14);
    pub(super) const REDUCTION: Self = Self::new(18);
}

impl Kind<bool> {
    pub(super) const BOOLEAN: Self = Self::new(2);
}

impl Kind<i64> {
    pub(super) const INT64: Self = Self::new(3);
}

impl Kind<f32> {
    pub(super) const FLOAT: Self = Self::new(4);
}

impl Kind<u64> {
    pub(super) const POINTER: Self = Self::new(6);
}

/// A descriptor that is destroyed when it is dropped.
pub(super) struct Descriptor {
    loaded: Loaded,
    pub(super) handle: Handle,
}

// SAFETY: the library's descriptors may be used from any thread, by one at a time.
unsafe impl Send for Descriptor {}

impl Descriptor {
    /// Sets an attribute.
    pub(super) fn set<T: Copy>(&self, attribute: c_int, kind: Kind<T>, values: &[T]) -> Result<()> {
        let (set, pointer) = (self.loaded.functions.attribute_set, values.as_ptr().cast());
        // SAFETY: the values have the type that is declared; the library copies them, and refuses
        // types that the attribute does not have.
        let code = unsafe { set(self.handle, attribute, kind.code, values.len() as i64, pointer) };
        self.loaded.check("cudnnBackendSetAttribute", code)
    }

    /// Gets at most as many values as there is space for; returns how many there are.
    pub(super) fn get<T: Copy>(
        &self,
        attribute: c_int,
        kind: Kind<T>,
        values: &mut [T],
    ) -> Result<usize> {
        let (get, mut count) = (self.loaded.functions.attribute_get, 0);
        let pointer = if values.is_empty() { null_mut() } else { values.as_mut_ptr() };
        let (len, pointer) = (values.len() as i64, pointer.cast());
        // SAFETY: there is space for as many values of the type that is declared; the library
        // refuses types that the attribute does not have.
        let code = unsafe { get(self.handle, attribute, kind.code, len, &raw mut count, pointer) };
        self.loaded.check("cudnnBackendGetAttribute", code)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Lets the library check the descriptor, which is constant from then on.
    pub(super) fn finalize(&self) -> Result<()> {
        // SAFETY: a valid descriptor.
        let code = unsafe { (self.loaded.functions.finalize)(self.handle) };
        self.loaded.check("cudnnBackendFinalize", code)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours.
        unsafe { (self.loaded.functions.descriptor_destroy)(self.handle) };
    }
}
