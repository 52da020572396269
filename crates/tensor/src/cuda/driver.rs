//! CUDA driver interface: contexts, memory, streams, events, modules.

use super::library::{Library, functions};
use crate::device::error::{DeviceError, Result};
use crate::device::memory::{MemoryInfo, NUM_COPY_STREAMS};
use crate::device::view::{Allocation, Place};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, ThreadId};

/// File of the driver.
const DRIVER: &str = "libcuda.so.1";

/// Opaque handles of the driver.
pub(super) type Handle = *mut c_void;

functions! {
    /// Functions of the driver, by the names of its header.
    Driver {
        init = c"cuInit" (c_uint);
        version = c"cuDriverGetVersion" (*mut c_int);
        device_count = c"cuDeviceGetCount" (*mut c_int);
        device_get = c"cuDeviceGet" (*mut c_int, c_int);
        device_name = c"cuDeviceGetName" (*mut c_char, c_int, c_int);
        device_attribute = c"cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
        retain_context = c"cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
        release_context = c"cuDevicePrimaryCtxRelease_v2" (c_int);
        set_context = c"cuCtxSetCurrent" (Handle);
        memory_info = c"cuMemGetInfo_v2" (*mut usize, *mut usize);
        mem_alloc = c"cuMemAlloc_v2" (*mut u64, usize);
        mem_free = c"cuMemFree_v2" (u64);
        host_alloc = c"cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
        host_free = c"cuMemFreeHost" (*mut c_void);
        copy_in = c"cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Handle);
        copy_out = c"cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, Handle);
        copy_inside = c"cuMemcpyDtoDAsync_v2" (u64, u64, usize, Handle);
        copy_2d = c"cuMemcpy2DAsync_v2" (*const Copy2d, Handle);
        set_bytes = c"cuMemsetD8Async" (u64, u8, usize, Handle);
        stream_create = c"cuStreamCreate" (*mut Handle, c_uint);
        stream_destroy = c"cuStreamDestroy_v2" (Handle);
        stream_synchronize = c"cuStreamSynchronize" (Handle);
        stream_wait = c"cuStreamWaitEvent" (Handle, Handle, c_uint);
        begin_capture = c"cuStreamBeginCapture_v2" (Handle, c_int);
        end_capture = c"cuStreamEndCapture" (Handle, *mut Handle);
        graph_instantiate = c"cuGraphInstantiateWithFlags" (*mut Handle, Handle, u64);
        graph_launch = c"cuGraphLaunch" (Handle, Handle);
        graph_destroy = c"cuGraphDestroy" (Handle);
        graph_exec_destroy = c"cuGraphExecDestroy" (Handle);
        event_create = c"cuEventCreate" (*mut Handle, c_uint);
        event_destroy = c"cuEventDestroy_v2" (Handle);
        event_record = c"cuEventRecord" (Handle, Handle);
        event_synchronize = c"cuEventSynchronize" (Handle);
        event_elapsed = c"cuEventElapsedTime" (*mut f32, Handle, Handle);
        module_load = c"cuModuleLoadData" (*mut Handle, *const c_void);
        module_function = c"cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
        function_attribute = c"cuFuncSetAttribute" (Handle, c_int, c_int);
        launch = c"cuLaunchKernel" (
            Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle,
            *mut *mut c_void, *mut *mut c_void,
        );
        launch_with = c"cuLaunchKernelEx" (
            *const LaunchConfig, Handle, *mut *mut c_void, *mut *mut c_void,
        );
        error_string = c"cuGetErrorString" (c_int, *mut *const c_char);
    }
}

/// `CUDA_MEMCPY2D`: a copy of rows.
#[repr(C)]
pub(super) struct Copy2d {
    from_x: usize,
    from_y: usize,
    from_type: c_uint,
    from_host: *const c_void,
    from_device: u64,
    from_array: Handle,
    from_pitch: usize,
    to_x: usize,
    to_y: usize,
    to_type: c_uint,
    to_host: *mut c_void,
    to_device: u64,
    to_array: Handle,
    to_pitch: usize,
    width: usize,
    height: usize,
}

impl Copy2d {
    /// A copy of `rows` rows of `width` bytes inside a device; (address, bytes between rows).
    pub(super) fn inside(from: (u64, usize), to: (u64, usize), width: usize, rows: usize) -> Self {
        const DEVICE: c_uint = 2;
        Self {
            from_x: 0,
            from_y: 0,
            from_type: DEVICE,
            from_host: null_mut(),
            from_device: from.0,
            from_array: null_mut(),
            from_pitch: from.1,
            to_x: 0,
            to_y: 0,
            to_type: DEVICE,
            to_host: null_mut(),
            to_device: to.0,
            to_array: null_mut(),
            to_pitch: to.1,
            width,
            height: rows,
        }
    }
}

/// `CUlaunchConfig`: shape of a launch with attributes.
#[repr(C)]
pub(super) struct LaunchConfig {
    pub(super) blocks: [c_uint; 3],
    pub(super) threads: [c_uint; 3],
    pub(super) shared_bytes: c_uint,
    pub(super) stream: Handle,
    pub(super) attributes: *const LaunchAttribute,
    pub(super) num_attributes: c_uint,
}

/// `CUlaunchAttribute`: its number, and a union of 64 bytes that starts with a flag here.
#[repr(C, align(8))]
pub(super) struct LaunchAttribute {
    id: c_uint,
    padding: c_uint,
    flag: c_int,
    rest: [c_int; 15],
}

impl LaunchAttribute {
    /// `PROGRAMMATIC_STREAM_SERIALIZATION`: the kernel may start while the one ahead ends, and
    /// waits for it by itself.
    pub(super) const EARLY: Self = Self { id: 6, padding: 0, flag: 1, rest: [0; 15] };
}

const OUT_OF_MEMORY: i32 = 2;
const NO_DEVICE: i32 = 100;
const ATTRIBUTE_MULTIPROCESSORS: c_int = 16;
const ATTRIBUTE_MAJOR: c_int = 75;
const ATTRIBUTE_MINOR: c_int = 76;

impl Driver {
    /// Loads and initialises the driver.
    pub(super) fn load() -> Result<Self> {
        let driver = Self::of(Library::load(&[DRIVER])?)?;
        // SAFETY: no flags are defined.
        driver.check("cuInit", unsafe { (driver.init)(0) })?;
        Ok(driver)
    }

    /// Whether an error of [`Self::load`] is that of a host without a driver or without a device.
    pub(super) fn is_absent(error: &DeviceError) -> bool {
        match error {
            DeviceError::Missing { library, .. } => *library == DRIVER,
            DeviceError::Failed { code, .. } => *code == NO_DEVICE,
            _ => false,
        }
    }

    /// Number of devices.
    pub(super) fn num_devices(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: writes the count.
        self.check("cuDeviceGetCount", unsafe { (self.device_count)(&raw mut count) })?;
        Ok(count as usize)
    }

    /// Major and minor version of the CUDA that it runs.
    pub(super) fn version(&self) -> Result<(i32, i32)> {
        let mut version = 0;
        // SAFETY: writes 1000 times the major version and 10 times the minor one.
        self.check("cuDriverGetVersion", unsafe { (self.version)(&raw mut version) })?;
        Ok((version / 1000, version % 1000 / 10))
    }

    /// Describes device `index`.
    pub(super) fn describe(&self, index: usize) -> Result<Description> {
        let count = self.num_devices()?;
        if index >= count {
            let reason = format!("there are {count} devices");
            return Err(DeviceError::Unfit { index, reason });
        }
        let mut handle = 0;
        // SAFETY: the index is valid; writes the handle.
        let code = unsafe { (self.device_get)(&raw mut handle, index as c_int) };
        self.check("cuDeviceGet", code)?;
        let attribute = |attribute: c_int| {
            let mut value = 0;
            // SAFETY: writes one number.
            let code = unsafe { (self.device_attribute)(&raw mut value, attribute, handle) };
            self.check("cuDeviceGetAttribute", code).map(|()| value)
        };
        let mut name: [c_char; 128] = [0; 128];
        // SAFETY: writes a string of at most 128 bytes, with its end.
        let code = unsafe { (self.device_name)(name.as_mut_ptr(), 128, handle) };
        self.check("cuDeviceGetName", code)?;
        // SAFETY: as above.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let capability = (attribute(ATTRIBUTE_MAJOR)?, attribute(ATTRIBUTE_MINOR)?);
        let num_multiprocessors = attribute(ATTRIBUTE_MULTIPROCESSORS)? as usize;
        Ok(Description { index, handle, name, num_multiprocessors, capability })
    }

    /// Turns a status into an error.
    pub(super) fn check(&self, call: &'static str, code: i32) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: writes a pointer to a constant string, or null.
        unsafe { (self.error_string)(code, &raw mut text) };
        let reason = if text.is_null() {
            "unknown error".to_owned()
        } else {
            // SAFETY: a constant string of the library.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(DeviceError::Failed { call, code, reason })
    }
}

/// A stream that does not wait for the legacy default stream.
const NON_BLOCKING: c_uint = 1;

/// Streams that commands are queued on.
#[derive(Clone, Copy)]
pub(super) struct Streams {
    /// That of all work.
    pub(super) work: Handle,
    /// Those of copies beside it.
    pub(super) copies: [Handle; NUM_COPY_STREAMS],
}

impl Streams {
    /// New streams that do not wait for the legacy default stream; the context must be active.
    pub(super) fn create(driver: &Driver) -> Result<Self> {
        let mut all = [null_mut(); 1 + NUM_COPY_STREAMS];
        for at in 0..all.len() {
            // SAFETY: writes the handle of a new stream.
            let code = unsafe { (driver.stream_create)(&raw mut all[at], NON_BLOCKING) };
            if let Err(error) = driver.check("cuStreamCreate", code) {
                Self::destroy_all(driver, &all[..at]);
                return Err(error);
            }
        }
        let [work, copies @ ..] = all;
        Ok(Self { work, copies })
    }

    /// Destroys the streams; nothing may be queued on them afterwards.
    pub(super) fn destroy(self, driver: &Driver) {
        Self::destroy_all(driver, &[self.work]);
        Self::destroy_all(driver, &self.copies);
    }

    fn destroy_all(driver: &Driver, streams: &[Handle]) {
        for stream in streams {
            // SAFETY: the stream was made by `create`, and its owner gives it up.
            unsafe { (driver.stream_destroy)(*stream) };
        }
    }
}

/// Primary context of one device, and the stream of all work.
pub(super) struct Context {
    pub(super) driver: Driver,
    pub(super) index: usize,
    device: c_int,
    handle: Handle,
    pub(super) stream: Handle,
    /// Streams of copies beside the work.
    copy_streams: [Handle; NUM_COPY_STREAMS],
    /// First failure that could not be returned.
    failure: OnceLock<DeviceError>,
    /// Thread that runs a section whose commands may be held back.
    section: Mutex<Option<ThreadId>>,
    allocated: Mutex<Allocated>,
}

/// Bytes of buffers.
#[derive(Default)]
struct Allocated {
    now: usize,
    peak: usize,
}

// SAFETY: the driver's handles may be used from any thread; calls set the context first.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// Facts about a device.
pub(super) struct Description {
    pub(super) index: usize,
    handle: c_int,
    pub(super) name: String,
    pub(super) num_multiprocessors: usize,
    pub(super) capability: (i32, i32),
}

impl Context {
    /// Opens a device.
    pub(super) fn open(driver: &Driver, device: &Description) -> Result<Self> {
        let mut handle = null_mut();
        // SAFETY: the device is valid; the first call writes one handle.
        unsafe {
            let retained = (driver.retain_context)(&raw mut handle, device.handle);
            driver.check("cuDevicePrimaryCtxRetain", retained)?;
            driver.check("cuCtxSetCurrent", (driver.set_context)(handle))?;
        }
        let Streams { work: stream, copies: copy_streams } = Streams::create(driver)?;
        let (index, device) = (device.index, device.handle);
        Ok(Self {
            driver: *driver,
            index,
            device,
            handle,
            stream,
            copy_streams,
            failure: OnceLock::new(),
            section: Mutex::default(),
            allocated: Mutex::default(),
        })
    }

    /// Keeps the first failure that could not be returned.
    pub(super) fn keep_failure(&self, error: DeviceError) {
        let _ = self.failure.set(error);
    }

    /// Begins a section of the calling thread, whose commands may be held back.
    pub(super) fn begin_section(&self) {
        *self.section.lock().expect("no owner of the lock panics") = Some(thread::current().id());
    }

    /// Ends the section of the calling thread, if it runs one.
    pub(super) fn end_section(&self) {
        let mut section = self.section.lock().expect("no owner of the lock panics");
        section.take_if(|owner| *owner == thread::current().id());
    }

    /// Makes this context that of the calling thread; returns a failure that was kept.
    pub(super) fn activate(&self) -> Result<()> {
        if let Some(error) = self.failure.get() {
            return Err(error.clone());
        }
        // SAFETY: the context is retained.
        self.check("cuCtxSetCurrent", unsafe { (self.driver.set_context)(self.handle) })
    }

    pub(super) fn check(&self, call: &'static str, code: i32) -> Result<()> {
        self.driver.check(call, code)
    }

    /// Streams of work and copies.
    pub(super) const fn streams(&self) -> Streams {
        Streams { work: self.stream, copies: self.copy_streams }
    }

    /// Waits for all work, and for copies beside it.
    pub(super) fn synchronize(&self) -> Result<()> {
        self.activate()?;
        let Streams { work, copies } = self.streams();
        for stream in std::iter::once(work).chain(copies) {
            // SAFETY: the stream is ours.
            let code = unsafe { (self.driver.stream_synchronize)(stream) };
            self.check("cuStreamSynchronize", code)?;
        }
        Ok(())
    }

    /// Waits for all work before memory is released, after a failure too; errors have no reader.
    pub(super) fn drain(&self) {
        let Streams { work, copies } = self.streams();
        // SAFETY: the context and its streams are ours.
        unsafe {
            (self.driver.set_context)(self.handle);
            for stream in std::iter::once(work).chain(copies) {
                (self.driver.stream_synchronize)(stream);
            }
        }
    }

    pub(super) fn memory_info(&self) -> Result<MemoryInfo> {
        self.activate()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers.
        let code = unsafe { (self.driver.memory_info)(&raw mut free, &raw mut total) };
        self.check("cuMemGetInfo", code)?;
        let peak = self.allocated.lock().expect("no owner of the lock panics").peak;
        Ok(MemoryInfo { free, total, peak })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: nothing uses the streams or the context afterwards; errors have no reader.
        unsafe {
            (self.driver.set_context)(self.handle);
            self.streams().destroy(&self.driver);
            (self.driver.release_context)(self.device);
        }
    }
}

/// Memory of a device.
pub(super) struct DeviceMemory {
    context: Arc<Context>,
    pub(super) address: u64,
    size: usize,
}

impl DeviceMemory {
    /// Allocates zeroed memory.
    pub(super) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        context.activate()?;
        let (driver, mut address, size) = (&context.driver, 0, bytes.max(16));
        // SAFETY: writes the address of new memory.
        match unsafe { (driver.mem_alloc)(&raw mut address, size) } {
            OUT_OF_MEMORY => return Err(DeviceError::OutOfMemory { bytes }),
            code => driver.check("cuMemAlloc", code)?,
        }
        let memory = Self { context: Arc::clone(context), address, size };
        let mut allocated = context.allocated.lock().expect("no owner of the lock panics");
        allocated.now += size;
        allocated.peak = allocated.peak.max(allocated.now);
        drop(allocated);
        // SAFETY: the memory has this size.
        let code = unsafe { (driver.set_bytes)(address, 0, size, context.stream) };
        driver.check("cuMemsetD8Async", code)?;
        Ok(memory)
    }
}

impl Allocation for DeviceMemory {
    fn address(&mut self) -> *mut u8 {
        std::ptr::without_provenance_mut(self.address as usize)
    }

    fn place(&self) -> Place {
        Place::Cuda(self.context.index)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let section = *self.context.section.lock().expect("no owner of the lock panics");
        if section == Some(thread::current().id()) {
            let reason = "inside a section whose commands may be held back".to_owned();
            let operation = "release of memory";
            self.context.keep_failure(DeviceError::Unsupported { operation, reason });
        }
        // Queued work may still use the memory.
        self.context.drain();
        self.context.allocated.lock().expect("no owner of the lock panics").now -= self.size;
        // SAFETY: the memory is ours, and nothing uses it any more.
        unsafe { (self.context.driver.mem_free)(self.address) };
    }
}

/// Host memory that the device can transfer.
pub(super) struct PinnedMemory {
    context: Arc<Context>,
    pub(super) address: *mut u8,
}

// SAFETY: the memory is owned, and the driver's handles may be used from any thread.
unsafe impl Send for PinnedMemory {}
// SAFETY: a shared borrow of it only reads its fields.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    pub(super) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        context.activate()?;
        let (driver, mut address) = (&context.driver, null_mut());
        // SAFETY: writes the address of new memory; no flags are needed in one context.
        let code = unsafe { (driver.host_alloc)(&raw mut address, bytes, 0) };
        driver.check("cuMemHostAlloc", code)?;
        Ok(Self { context: Arc::clone(context), address: address.cast() })
    }
}

impl Allocation for PinnedMemory {
    fn address(&mut self) -> *mut u8 {
        self.address
    }

    fn place(&self) -> Place {
        Place::Pinned
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // A queued transfer may still use the memory.
        self.context.drain();
        // SAFETY: the memory is ours, and nothing uses it any more.
        unsafe { (self.context.driver.host_free)(self.address.cast()) };
    }
}

/// A point of the stream.
pub(super) struct CudaEvent {
    context: Arc<Context>,
    pub(super) handle: Handle,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for CudaEvent {}
// SAFETY: as above.
unsafe impl Sync for CudaEvent {}

impl CudaEvent {
    /// Flag of an event that takes no time.
    pub(super) const WITHOUT_TIME: c_uint = 2;

    /// An event before any work.
    pub(super) fn new(context: &Arc<Context>, flags: c_uint) -> Result<Self> {
        context.activate()?;
        let (driver, mut handle) = (&context.driver, null_mut());
        // SAFETY: writes the handle of a new event.
        driver.check("cuEventCreate", unsafe { (driver.event_create)(&raw mut handle, flags) })?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    /// Moves the event to the current end of the stream; the context must be active.
    pub(super) fn record(&self) -> Result<()> {
        let Context { driver, stream, .. } = &*self.context;
        // SAFETY: both handles are valid.
        driver.check("cuEventRecord", unsafe { (driver.event_record)(self.handle, *stream) })
    }

    /// Waits on the host for the work before the event; the context must be active.
    pub(super) fn synchronize(&self) -> Result<()> {
        let driver = &self.context.driver;
        // SAFETY: a valid event.
        driver.check("cuEventSynchronize", unsafe { (driver.event_synchronize)(self.handle) })
    }

    /// Seconds from this event to one after it, both of which are done; the context must be active.
    pub(super) fn until(&self, end: &Self) -> Result<f64> {
        let (driver, mut milliseconds) = (&self.context.driver, 0.0);
        // SAFETY: both events are recorded; writes one number.
        let code =
            unsafe { (driver.event_elapsed)(&raw mut milliseconds, self.handle, end.handle) };
        driver.check("cuEventElapsedTime", code)?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        // SAFETY: the event is ours; the driver keeps it until its work is done.
        unsafe { (self.context.driver.event_destroy)(self.handle) };
    }
}
