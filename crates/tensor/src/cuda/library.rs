//! Loads shared libraries at run time, so that the binary starts without them.

use crate::device::error::{DeviceError, Result};
use std::ffi::{CStr, CString, c_char, c_int, c_void};

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, symbol: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

/// Resolve all symbols at once: a broken library fails here, not in a step.
const RTLD_NOW: c_int = 2;

/// Folder of the toolkit where the library path does not name it.
const TOOLKIT: &str = "/usr/local/cuda/lib64/";

/// A loaded library; it stays loaded until the process ends.
#[derive(Clone, Copy)]
pub(super) struct Library {
    handle: *mut c_void,
    name: &'static str,
}

impl Library {
    /// Loads the first of `versions` that is found: major versions of CUDA, newest first, and file
    /// names. A driver runs libraries of its own major version and of earlier ones.
    pub(super) fn load_for(driver: (i32, i32), versions: &[(i32, &'static str)]) -> Result<Self> {
        let fitting = versions.iter().filter(|(major, _)| *major <= driver.0);
        Self::load(&fitting.map(|(_, name)| *name).collect::<Vec<_>>())
    }

    /// Loads the first of `names` that is found.
    pub(super) fn load(names: &[&'static str]) -> Result<Self> {
        let mut reason = String::new();
        for &name in names {
            for folder in ["", TOOLKIT] {
                let path = CString::new(format!("{folder}{name}")).expect("names have no zero");
                // SAFETY: a valid path; initialisers of these libraries may run on any thread.
                let handle = unsafe { dlopen(path.as_ptr(), RTLD_NOW) };
                if !handle.is_null() {
                    return Ok(Self { handle, name });
                }
                // The first message names the library without a folder, which is what is missing.
                let message = last_error();
                if reason.is_empty() {
                    reason = message;
                }
            }
        }
        Err(DeviceError::Missing { library: names[0], reason })
    }

    /// A function of the library.
    ///
    /// # Safety
    /// `F` must be a function pointer of the signature that `symbol` has.
    pub(super) unsafe fn function<F: Copy>(self, symbol: &CStr) -> Result<F> {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>(), "a function pointer");
        // SAFETY: the handle is that of a loaded library.
        let address = unsafe { dlsym(self.handle, symbol.as_ptr()) };
        if address.is_null() {
            return Err(DeviceError::Missing { library: self.name, reason: last_error() });
        }
        // SAFETY: the caller guarantees that this address is such a function; sizes are equal.
        Ok(unsafe { std::mem::transmute_copy(&address) })
    }
}

/// Message of the last failure of the loader on this thread.
fn last_error() -> String {
    // SAFETY: returns null or a string that is valid until the next call.
    let message = unsafe { dlerror() };
    if message.is_null() {
        return "unknown error".to_owned();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}

/// A struct of function pointers and its loader. All of them return a status.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident { $($name:ident = $symbol:literal ($($arg:ty),* $(,)?);)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> i32,)*
        }

        impl $table {
            pub(super) fn of(
                library: $crate::cuda::library::Library,
            ) -> $crate::device::Result<Self> {
                // SAFETY: signatures are those of the library's headers.
                Ok(unsafe { Self { $($name: library.function($symbol)?,)* } })
            }
        }
    };
}
pub(super) use functions;
