//! NVRTC: compiles kernels at run time, to machine code of one device.

use super::library::{Library, functions};
use crate::device::error::{DeviceError, Result};
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

functions! {
    /// Functions of NVRTC, by the names of its header.
    Nvrtc {
        version = c"nvrtcVersion" (*mut c_int, *mut c_int);
        num_archs = c"nvrtcGetNumSupportedArchs" (*mut c_int);
        archs = c"nvrtcGetSupportedArchs" (*mut c_int);
        create = c"nvrtcCreateProgram" (
            *mut *mut c_void, *const c_char, *const c_char, c_int, *const *const c_char,
            *const *const c_char,
        );
        compile = c"nvrtcCompileProgram" (*mut c_void, c_int, *const *const c_char);
        code_size = c"nvrtcGetCUBINSize" (*mut c_void, *mut usize);
        code = c"nvrtcGetCUBIN" (*mut c_void, *mut c_char);
        log_size = c"nvrtcGetProgramLogSize" (*mut c_void, *mut usize);
        log = c"nvrtcGetProgramLog" (*mut c_void, *mut c_char);
        destroy = c"nvrtcDestroyProgram" (*mut *mut c_void);
    }
}

impl Nvrtc {
    /// Loads the compiler for a driver of this version.
    pub(super) fn load(driver: (i32, i32)) -> Result<Self> {
        let versions = [(13, "libnvrtc.so.13"), (12, "libnvrtc.so.12"), (0, "libnvrtc.so")];
        Self::of(Library::load_for(driver, &versions)?)
    }

    /// Compute capabilities that it compiles for, as `10 major + minor`.
    pub(super) fn archs(&self) -> Result<Vec<c_int>> {
        let mut count = 0;
        // SAFETY: writes the count.
        check("nvrtcGetNumSupportedArchs", unsafe { (self.num_archs)(&raw mut count) })?;
        let mut archs = vec![0; count as usize];
        // SAFETY: writes as many numbers.
        check("nvrtcGetSupportedArchs", unsafe { (self.archs)(archs.as_mut_ptr()) })?;
        Ok(archs)
    }

    /// Major and minor version.
    pub(super) fn version(&self) -> (i32, i32) {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two numbers.
        unsafe { (self.version)(&raw mut major, &raw mut minor) };
        (major, minor)
    }

    /// Machine code of a source.
    pub(super) fn compile(
        &self,
        name: &'static str,
        text: &str,
        options: &[String],
    ) -> Result<Vec<u8>> {
        let c_string = |text: &str| CString::new(text).expect("sources have no zero");
        let (source, file) = (c_string(text), c_string(name));
        let options: Vec<CString> = options.iter().map(|option| c_string(option)).collect();
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = null_mut();
        // SAFETY: strings live until the end of the call; there are no headers.
        let code = unsafe {
            (self.create)(&raw mut program, source.as_ptr(), file.as_ptr(), 0, null(), null())
        };
        check("nvrtcCreateProgram", code)?;
        let program = Program { nvrtc: self, program };
        // SAFETY: the program is valid, and so are the options.
        let code =
            unsafe { (self.compile)(program.program, options.len() as c_int, options.as_ptr()) };
        if code != 0 {
            let log = program.bytes(self.log_size, self.log)?;
            let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned();
            return Err(DeviceError::Kernel { source: name, log });
        }
        program.bytes(self.code_size, self.code)
    }
}

struct Program<'a> {
    nvrtc: &'a Nvrtc,
    program: *mut c_void,
}

impl Program<'_> {
    /// Output of the compiler by a pair of functions for its size and its bytes.
    fn bytes(
        &self,
        size: unsafe extern "C" fn(*mut c_void, *mut usize) -> i32,
        bytes: unsafe extern "C" fn(*mut c_void, *mut c_char) -> i32,
    ) -> Result<Vec<u8>> {
        let mut len = 0;
        // SAFETY: the program is valid; writes its length.
        check("nvrtc size", unsafe { size(self.program, &raw mut len) })?;
        let mut out = vec![0; len];
        // SAFETY: writes as many bytes.
        check("nvrtc bytes", unsafe { bytes(self.program, out.as_mut_ptr().cast()) })?;
        Ok(out)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the program is ours.
        unsafe { (self.nvrtc.destroy)(&raw mut self.program) };
    }
}

fn check(call: &'static str, code: i32) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    Err(DeviceError::Failed { call, code, reason: "NVRTC".to_owned() })
}
