//! The functions of the bridge, loaded at run time.
#![expect(unsafe_code, reason = "functions of a C library")]

use crate::MpiError;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, symbol: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

/// Resolve all symbols at once, and let the plugins of Open MPI find those of its library.
const RTLD_NOW_AND_GLOBAL: c_int = 0x102;

/// Most bytes of a text of the library.
const TEXT_BYTES: usize = 512;

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($arg:ty),*);)*) => {
        /// Functions of the bridge. All return an error code of MPI, 0 for success.
        #[derive(Clone, Copy)]
        struct Functions {
            $($name: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl Functions {
            fn load(path: &Path) -> Result<Self, String> {
                let name = CString::new(path.as_os_str().as_bytes())
                    .map_err(|_| "its path has a zero byte".to_owned())?;
                // SAFETY: a valid path; the initialisers of MPI libraries may run on any thread.
                let library = unsafe { dlopen(name.as_ptr(), RTLD_NOW_AND_GLOBAL) };
                if library.is_null() {
                    return Err(last_error());
                }
                $(
                    // SAFETY: the library stays loaded until the process ends.
                    let $name = unsafe { dlsym(library, $symbol.as_ptr()) };
                    if $name.is_null() {
                        return Err(last_error());
                    }
                )*
                Ok(Self {
                    $(
                        // SAFETY: the bridge was compiled from `shim.c`, where the function has
                        // this signature; function pointers have the size of data pointers here.
                        $name: unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($arg),*) -> c_int,
                            >($name)
                        },
                    )*
                })
            }
        }
    };
}

functions! {
    init = c"lockstep_mpi_init" (*mut c_int, *mut c_int, *mut c_int);
    finalize = c"lockstep_mpi_finalize" ();
    version = c"lockstep_mpi_version" (*mut c_char, c_int, *mut c_int);
    error = c"lockstep_mpi_error" (c_int, *mut c_char, c_int, *mut c_int);
    bcast = c"lockstep_mpi_bcast" (*mut c_void, c_int);
    isend = c"lockstep_mpi_isend" (*const c_void, c_int, c_int, c_int, *mut *mut c_void);
    probe = c"lockstep_mpi_probe" (c_int, c_int, *mut c_int, *mut c_int, *mut *mut c_void);
    irecv = c"lockstep_mpi_irecv" (*mut c_void, c_int, *mut c_void, *mut *mut c_void);
    test = c"lockstep_mpi_test" (*mut c_void, *mut c_int);
    progress = c"lockstep_mpi_progress" ();
}

/// The bridge. Its functions must not run at the same time; a mutex around it sees to that.
pub(crate) struct Library {
    functions: Functions,
}

/// A request in flight; done requests are freed by the bridge.
#[derive(Debug)]
pub(crate) struct Request(*mut c_void);

// SAFETY: with MPI_THREAD_SERIALIZED any thread may use a request that another one started; the
// mutex around the library orders their calls.
unsafe impl Send for Request {}

/// Rank, size, and whether threads may call in turn.
pub(crate) struct Initialized {
    pub(crate) rank: usize,
    pub(crate) num_ranks: usize,
    pub(crate) is_threaded: bool,
}

impl Library {
    pub(crate) fn load(path: &Path) -> Result<Self, MpiError> {
        let functions = Functions::load(path);
        let failed = |reason| MpiError::Load { path: path.to_owned(), reason };
        Ok(Self { functions: functions.map_err(failed)? })
    }

    /// Initialises MPI; once per process.
    pub(crate) fn init(&mut self) -> Result<Initialized, MpiError> {
        let [mut rank, mut size, mut is_threaded] = [0; 3];
        // SAFETY: three integers that outlive the call.
        let code =
            unsafe { (self.functions.init)(&raw mut rank, &raw mut size, &raw mut is_threaded) };
        self.check("MPI_Init_thread", code)?;
        let [rank, num_ranks] = [rank, size].map(|number| usize::try_from(number).unwrap_or(0));
        Ok(Initialized { rank, num_ranks, is_threaded: is_threaded != 0 })
    }

    pub(crate) fn finalize(&mut self) -> Result<(), MpiError> {
        // SAFETY: no arguments; the caller ends all calls before.
        let code = unsafe { (self.functions.finalize)() };
        self.check("MPI_Finalize", code)
    }

    /// Name and version of the library in one line.
    pub(crate) fn version(&mut self) -> String {
        let version = self.functions.version;
        // SAFETY: the buffer has as many bytes as the call gets to know.
        text(|bytes, size, length| unsafe { version(bytes, size, length) })
    }

    /// Sends the bytes of rank 0 to all. Collective.
    pub(crate) fn broadcast(&mut self, bytes: &mut [u8]) -> Result<(), MpiError> {
        let length = length_of(bytes.len());
        // SAFETY: the buffer has this length.
        let code = unsafe { (self.functions.bcast)(bytes.as_mut_ptr().cast(), length) };
        self.check("MPI_Bcast", code)
    }

    /// Starts to send.
    ///
    /// # Safety
    /// The bytes stay in place and unchanged until [`Self::test`] says that the request is done.
    pub(crate) unsafe fn send(
        &mut self,
        bytes: &[u8],
        to: usize,
        tag: u16,
    ) -> Result<Request, MpiError> {
        let mut request = ptr::null_mut();
        let (to, tag) = (length_of(to), c_int::from(tag));
        let length = length_of(bytes.len());
        // SAFETY: by the caller's guarantee.
        let code = unsafe {
            (self.functions.isend)(bytes.as_ptr().cast(), length, to, tag, &raw mut request)
        };
        self.check("MPI_Isend", code)?;
        Ok(Request(request))
    }

    /// Starts to receive the next message of a rank with this tag, if there is one, into memory
    /// that `reserve` gives for its length.
    ///
    /// # Safety
    /// That memory stays in place and unused until [`Self::test`] says that the request is done.
    pub(crate) unsafe fn receive(
        &mut self,
        from: usize,
        tag: u16,
        reserve: impl FnOnce(usize) -> *mut u8,
    ) -> Result<Option<Request>, MpiError> {
        let (from, tag) = (length_of(from), c_int::from(tag));
        let [mut is_there, mut length] = [0; 2];
        let (mut message, mut request) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: places for the results that outlive the call.
        let code = unsafe {
            (self.functions.probe)(from, tag, &raw mut is_there, &raw mut length, &raw mut message)
        };
        self.check("MPI_Improbe", code)?;
        if is_there == 0 {
            return Ok(None);
        }
        let bytes = reserve(usize::try_from(length).unwrap_or(0));
        // SAFETY: the message was found by the probe; the memory by the caller's guarantee.
        let code =
            unsafe { (self.functions.irecv)(bytes.cast(), length, message, &raw mut request) };
        self.check("MPI_Imrecv", code)?;
        Ok(Some(Request(request)))
    }

    /// Whether a request is done, after which it does not exist; an error ends it as well.
    pub(crate) fn test(&mut self, request: &Request) -> Result<bool, MpiError> {
        let mut is_done = 0;
        // SAFETY: a request that is not done yet: callers drop it when it is.
        let code = unsafe { (self.functions.test)(request.0, &raw mut is_done) };
        self.check("MPI_Test", code)?;
        Ok(is_done != 0)
    }

    /// Lets the library move what is in flight.
    pub(crate) fn progress(&mut self) -> Result<(), MpiError> {
        // SAFETY: no arguments.
        let code = unsafe { (self.functions.progress)() };
        self.check("MPI_Iprobe", code)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), MpiError> {
        if code == 0 {
            return Ok(());
        }
        let error = self.functions.error;
        // SAFETY: the buffer has as many bytes as the call gets to know.
        let reason = text(|bytes, size, length| unsafe { error(code, bytes, size, length) });
        Err(MpiError::Call { call, reason })
    }
}

/// A length or a rank as C has it; neither reaches its limit.
fn length_of(number: usize) -> c_int {
    c_int::try_from(number).expect("lengths and ranks fit into 31 bits")
}

/// Text that a function writes, in one line.
fn text(write: impl FnOnce(*mut c_char, c_int, *mut c_int) -> c_int) -> String {
    let mut bytes = [0_u8; TEXT_BYTES];
    let mut length = 0;
    let code = write(bytes.as_mut_ptr().cast(), length_of(TEXT_BYTES), &raw mut length);
    let length = if code == 0 { usize::try_from(length).unwrap_or(0) } else { 0 };
    let text = String::from_utf8_lossy(&bytes[..length.min(TEXT_BYTES)]);
    let line = text.lines().next().unwrap_or("unknown").trim_end_matches('\0');
    line.split_whitespace().collect::<Vec<_>>().join(" ")
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
