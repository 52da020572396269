//! Commands of a device's stream as values, which can be compared, recorded and queued.

use super::Cuda;
use super::attention_plans::AttentionCall;
use super::cublas_lt::Call;
use super::driver::{Copy2d, Driver, Handle, LaunchAttribute, LaunchConfig, Streams};
use crate::device::error::Result;
use crate::device::profile::Operation;
use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;
use std::thread;

/// One command of a stream.
#[derive(Clone, PartialEq)]
pub(super) enum Command {
    /// A kernel of ours.
    Kernel(Kernel),
    /// A product of cuBLASLt; not queued where the library has no algorithm for it.
    Product { call: Call, workspace: u64, is_queued: bool },
    /// Attention by cuDNN.
    Attention(AttentionCall),
    /// Sets bytes.
    SetBytes { address: u64, value: u8, bytes: usize },
    /// Copies bytes inside the device.
    Copy { from: u64, to: u64, bytes: usize },
    /// Copies rows inside the device: (address, bytes between rows).
    CopyRows { from: (u64, usize), to: (u64, usize), width: usize, rows: usize },
    /// Copies bytes to pinned memory or from it, on a copy stream.
    CopyAsync { copy_stream: usize, direction: Direction, device: u64, host: usize, bytes: usize },
    /// Waits for the copies of a stream.
    WaitForCopies { copy_stream: usize },
}

/// Direction of a copy beside the work.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Direction {
    ToDevice,
    ToHost,
}

/// Most arguments of a kernel.
const MAX_ARGS: usize = 32;

/// A kernel with its grid and arguments.
#[derive(Clone, PartialEq)]
pub(super) struct Kernel {
    /// Address of the driver's function, which stays loaded.
    function: usize,
    blocks: [c_uint; 3],
    threads: c_uint,
    shared_bytes: c_uint,
    /// Whether it may start while the kernel ahead ends.
    is_early: bool,
    /// Arguments, each from a whole number on, and where each starts.
    values: Vec<u64>,
    starts: [u16; MAX_ARGS],
    num_args: usize,
}

/// A type of kernels' arguments.
///
/// # Safety
/// All bytes of a value must be initialised: the type has no padding.
pub(super) unsafe trait KernelArg: Copy {}

macro_rules! plain_args {
    ($($plain:ty),*) => {$(
        // SAFETY: a number has no padding.
        unsafe impl KernelArg for $plain {}
    )*};
}
plain_args!(u32, i32, u64, f32);

/// Bytes of a kernel's argument.
pub(super) fn arg<T: KernelArg>(x: &T) -> &[u8] {
    // SAFETY: the bytes are those of a borrowed value without padding.
    unsafe { std::slice::from_raw_parts((&raw const *x).cast(), size_of::<T>()) }
}

impl Kernel {
    /// A kernel on (blocks, threads of a block, bytes of shared memory).
    pub(super) fn new(
        function: Handle,
        (blocks, threads, shared_bytes): ([usize; 3], usize, usize),
        args: &[&[u8]],
    ) -> Self {
        let (mut values, mut starts) = (Vec::with_capacity(2 * args.len()), [0; MAX_ARGS]);
        for (start, bytes) in starts.iter_mut().zip(args) {
            *start = u16::try_from(values.len()).expect("arguments are small");
            values.extend(bytes.chunks(8).map(|chunk| {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                u64::from_ne_bytes(word)
            }));
        }
        assert!(args.len() <= MAX_ARGS, "a kernel has at most {MAX_ARGS} arguments");
        Self {
            function: function.expose_provenance(),
            blocks: blocks.map(|count| count as c_uint),
            threads: threads as c_uint,
            shared_bytes: shared_bytes as c_uint,
            is_early: false,
            values,
            starts,
            num_args: args.len(),
        }
    }

    /// The kernel, started while the one ahead ends.
    ///
    /// # Safety
    /// The kernel must wait for the one ahead before it reads anything that one may write, and
    /// before it writes.
    pub(super) unsafe fn early(self) -> Self {
        Self { is_early: true, ..self }
    }

    /// Queues the kernel; the context must be active.
    ///
    /// # Safety
    /// The arguments must be those of the kernel, and its accesses must stay inside memory that
    /// lives until it is done.
    unsafe fn queue(&self, driver: &Driver, stream: Handle) -> Result<()> {
        let function = std::ptr::with_exposed_provenance_mut(self.function);
        let mut args = [null_mut::<c_void>(); MAX_ARGS];
        for (arg, start) in args.iter_mut().zip(&self.starts[..self.num_args]) {
            *arg = (&raw const self.values[usize::from(*start)]).cast_mut().cast();
        }
        let ([x, y, z], threads, shared) = (self.blocks, self.threads, self.shared_bytes);
        if self.is_early {
            let early = LaunchAttribute::EARLY;
            let config = LaunchConfig {
                blocks: self.blocks,
                threads: [threads, 1, 1],
                shared_bytes: shared,
                stream,
                attributes: &raw const early,
                num_attributes: 1,
            };
            // SAFETY: the caller guarantees the arguments; the driver copies all of them.
            let code = unsafe {
                let args = args.as_mut_ptr();
                (driver.launch_with)(&raw const config, function, args, null_mut())
            };
            return driver.check("cuLaunchKernelEx", code);
        }
        // SAFETY: the caller guarantees the arguments; the driver copies them.
        let code = unsafe {
            let args = args.as_mut_ptr();
            (driver.launch)(function, x, y, z, threads, 1, 1, shared, stream, args, null_mut())
        };
        driver.check("cuLaunchKernel", code)
    }
}

impl Cuda {
    /// Queues a command, or holds it back as part of a sequence that repeats.
    ///
    /// # Safety
    /// Operands must be borrowed memory of this device that the command does not leave.
    pub(super) unsafe fn submit(
        &self,
        command: Command,
        operation: impl FnOnce() -> (Operation, Option<u64>),
    ) -> Result<()> {
        if self.holds_back(&command) {
            return Ok(());
        }
        self.queue_held()?;
        self.context.activate()?;
        // SAFETY: the caller guarantees the memory.
        let queue = || unsafe { self.execute(&command, self.context.streams()) };
        self.recorder.around(operation, queue)?;
        self.remember(command);
        Ok(())
    }

    /// Queues a copy beside the work, or a wait for such copies, as [`Self::submit`]. A profile has
    /// the times of work alone.
    ///
    /// # Safety
    /// As that of [`Self::submit`], until a wait for the copy.
    pub(super) unsafe fn submit_async(&self, command: Command) -> Result<()> {
        if self.holds_back(&command) {
            return Ok(());
        }
        self.queue_held()?;
        self.context.activate()?;
        // SAFETY: the caller guarantees the memory.
        unsafe { self.execute(&command, self.context.streams())? };
        self.remember(command);
        Ok(())
    }

    /// Attends by cuDNN, which has a plan for the call.
    ///
    /// # Safety
    /// As that of [`Self::submit`].
    pub(super) unsafe fn submit_attention(
        &self,
        call: AttentionCall,
        operation: impl FnOnce() -> (Operation, Option<u64>),
    ) -> Result<()> {
        // SAFETY: the caller guarantees the memory.
        unsafe { self.submit(Command::Attention(call), operation) }
    }

    /// Multiplies by cuBLASLt; `false` if it has no algorithm.
    ///
    /// # Safety
    /// As that of [`Self::submit`]; the workspace must be as large as products need.
    pub(super) unsafe fn submit_product(&self, call: Call, workspace: u64) -> Result<bool> {
        let command = |is_queued| Command::Product { call, workspace, is_queued };
        for is_queued in [true, false] {
            if self.holds_back(&command(is_queued)) {
                return Ok(is_queued);
            }
        }
        self.queue_held()?;
        self.context.activate()?;
        // SAFETY: the caller guarantees the memory.
        let is_queued = unsafe { self.blas.multiply(&call, workspace, self.context.stream)? };
        self.remember(command(is_queued));
        Ok(is_queued)
    }

    /// Queues a command on its stream; the context must be active.
    ///
    /// # Safety
    /// As that of [`Self::submit`].
    pub(super) unsafe fn execute(&self, command: &Command, streams: Streams) -> Result<()> {
        let (driver, stream) = (&self.context.driver, streams.work);
        match *command {
            // SAFETY: the caller guarantees the memory, here and below.
            Command::Kernel(ref kernel) => unsafe { kernel.queue(driver, stream) },
            Command::Product { is_queued: false, .. } => Ok(()),
            Command::Product { ref call, workspace, is_queued: true } => {
                // SAFETY: as above.
                unsafe { self.blas.multiply(call, workspace, stream) }.map(|_| ())
            }
            // SAFETY: as above.
            Command::Attention(ref call) => unsafe { self.execute_attention(call, stream) },
            Command::SetBytes { address, value, bytes } => {
                // SAFETY: as above.
                let code = unsafe { (driver.set_bytes)(address, value, bytes, stream) };
                driver.check("cuMemsetD8Async", code)
            }
            Command::Copy { from, to, bytes } => {
                // SAFETY: as above.
                let code = unsafe { (driver.copy_inside)(to, from, bytes, stream) };
                driver.check("cuMemcpyDtoDAsync", code)
            }
            Command::CopyRows { from, to, width, rows } => {
                let copy = Copy2d::inside(from, to, width, rows);
                // SAFETY: as above.
                let code = unsafe { (driver.copy_2d)(&raw const copy, stream) };
                driver.check("cuMemcpy2DAsync", code)
            }
            Command::CopyAsync { copy_stream, direction, device, host, bytes } => {
                let copies = streams.copies[copy_stream];
                self.order_streams(stream, copies)?;
                let host = std::ptr::with_exposed_provenance_mut(host);
                // SAFETY: as above.
                let (call, code) = unsafe {
                    match direction {
                        Direction::ToDevice => {
                            ("cuMemcpyHtoDAsync", (driver.copy_in)(device, host, bytes, copies))
                        }
                        Direction::ToHost => {
                            ("cuMemcpyDtoHAsync", (driver.copy_out)(host, device, bytes, copies))
                        }
                    }
                };
                driver.check(call, code)
            }
            Command::WaitForCopies { copy_stream } => {
                self.order_streams(streams.copies[copy_stream], stream)
            }
        }
    }

    /// Lets later commands of stream `after` start only when those of stream `before` so far are
    /// done; the context must be active.
    fn order_streams(&self, before: Handle, after: Handle) -> Result<()> {
        let driver = &self.context.driver;
        // A wait is for the state of the event at the call, so one event serves all of them.
        let event = self.stream_order.lock().expect("no owner of the lock panics");
        // SAFETY: all handles are valid.
        let code = unsafe { (driver.event_record)(event.handle, before) };
        driver.check("cuEventRecord", code)?;
        // SAFETY: as above.
        let code = unsafe { (driver.stream_wait)(after, event.handle, 0) };
        driver.check("cuStreamWaitEvent", code)
    }

    /// Ends a sequence before an operation that is not part of one: an exchange with the host, an
    /// event, or the release of memory.
    pub(super) fn interrupt(&self) -> Result<()> {
        let held = self.lock_replay().interrupt(thread::current().id());
        self.context.end_section();
        self.queue_all(&held)
    }

    fn holds_back(&self, command: &Command) -> bool {
        self.lock_replay().holds_back(thread::current().id(), command)
    }

    /// Queues what was held back before a command that differs.
    fn queue_held(&self) -> Result<()> {
        let held = self.lock_replay().take_held(thread::current().id());
        self.queue_all(&held)
    }

    fn remember(&self, command: Command) {
        self.lock_replay().record(thread::current().id(), command);
    }

    /// Queues commands that the running section has issued.
    pub(super) fn queue_all(&self, commands: &[Command]) -> Result<()> {
        if commands.is_empty() {
            return Ok(());
        }
        self.context.activate()?;
        // SAFETY: the section has issued equal commands just now, so their operands are memory that
        // it has borrowed.
        commands
            .iter()
            .try_for_each(|command| unsafe { self.execute(command, self.context.streams()) })
    }
}
