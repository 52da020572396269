//! Launch of kernels on checked operands.

use super::Cuda;
use super::commands::Command;
use super::programs::{Grid, Program};
use crate::device::error::{DeviceError, Result};
use crate::device::profile::Operation;
use crate::device::view::{Dtype, Place, View, ViewMut};

/// Launches a kernel of a program: `launch!(cuda, program, "name", grid, arguments …)`. Arguments
/// have the types of the kernel's parameters; shapes must have been checked.
macro_rules! launch {
    ($cuda:expr, $program:expr, $name:expr, $grid:expr, $($arg:expr),* $(,)?) => {{
        // SAFETY: the arguments are those of the kernel, and operands were checked to have the
        // shapes that it accesses.
        unsafe {
            $cuda.launch($program, $name, $grid, &[$($crate::cuda::commands::arg(&$arg)),*])
        }
    }};
}
pub(super) use launch;

/// As `launch!`, for a kernel that waits for the launch ahead by itself: from Hopper on, it may
/// start while that one ends.
macro_rules! launch_early {
    ($cuda:expr, $program:expr, $name:expr, $grid:expr, $($arg:expr),* $(,)?) => {{
        // SAFETY: as for `launch!`; the kernel waits before it reads what the launch ahead may
        // write, and before it writes.
        unsafe {
            $cuda.launch_early($program, $name, $grid, &[$($crate::cuda::commands::arg(&$arg)),*])
        }
    }};
}
pub(super) use launch_early;

/// Oldest architecture whose kernels can wait for the launch ahead by themselves.
const MIN_EARLY_CAPABILITY: (i32, i32) = (9, 0);

/// Threads of an elementwise kernel's block.
const THREADS: usize = 256;
/// Elements of a thread.
const PER_THREAD: usize = 8;
/// Blocks per multiprocessor of an elementwise kernel.
const BLOCKS_PER_MULTIPROCESSOR: usize = 16;

impl Cuda {
    /// Queues one kernel.
    ///
    /// # Safety
    /// `args` must be those of the kernel, and its accesses must stay inside borrowed memory.
    pub(super) unsafe fn launch(
        &self,
        program: Program,
        name: &'static str,
        grid: Grid,
        args: &[&[u8]],
    ) -> Result<()> {
        let ((x, y, z), bytes) = (grid.blocks, self.recorder.take_bytes());
        if x * y * z == 0 {
            return Ok(());
        }
        let kernel = Command::Kernel(self.programs.kernel(program, name, grid, args)?);
        // SAFETY: the caller guarantees the arguments.
        unsafe { self.submit(kernel, || (Operation::Kernel(name, program.dtype), bytes)) }
    }

    /// Queues one kernel that may start while the one ahead ends.
    ///
    /// # Safety
    /// As that of [`Self::launch`]; and the kernel must wait for the one ahead by itself.
    pub(super) unsafe fn launch_early(
        &self,
        program: Program,
        name: &'static str,
        grid: Grid,
        args: &[&[u8]],
    ) -> Result<()> {
        let (mut kernel, bytes) =
            (self.programs.kernel(program, name, grid, args)?, self.recorder.take_bytes());
        if self.capability >= MIN_EARLY_CAPABILITY {
            // SAFETY: the caller guarantees it.
            kernel = unsafe { kernel.early() };
        }
        let operation = || (Operation::Kernel(name, program.dtype), bytes);
        // SAFETY: the caller guarantees the arguments.
        unsafe { self.submit(Command::Kernel(kernel), operation) }
    }

    /// Sets bytes of this device.
    ///
    /// # Safety
    /// The bytes must be those of borrowed memory.
    pub(super) unsafe fn set_bytes(
        &self,
        dtype: Dtype,
        address: u64,
        value: u8,
        bytes: usize,
    ) -> Result<()> {
        let name = if value == 0 { "zero" } else { "set bytes" };
        let operation = || (Operation::Kernel(name, dtype), Some(bytes as u64));
        // SAFETY: the caller guarantees the memory.
        unsafe { self.submit(Command::SetBytes { address, value, bytes }, operation) }
    }

    /// Grid of an elementwise kernel over `n` elements.
    pub(super) fn over(&self, n: usize) -> Grid {
        let most = self.num_multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
        let blocks = n.div_ceil(THREADS * PER_THREAD).min(most);
        Grid { blocks: (blocks, 1, 1), threads: THREADS, shared_bytes: 0 }
    }

    /// Grid of an elementwise kernel over rows of `width` elements, none of whose groups of eight
    /// crosses the end of a row.
    pub(super) fn over_rows(&self, rows: usize, width: usize) -> Grid {
        self.over(rows * width.next_multiple_of(PER_THREAD))
    }

    /// Grid of one block per row of `width` elements.
    pub(super) fn by_rows(rows: usize, width: usize) -> Grid {
        let threads = width.div_ceil(PER_THREAD).next_multiple_of(32).min(1024);
        Grid { blocks: (rows, 1, 1), threads, shared_bytes: 0 }
    }

    /// Grid of one thread per item.
    pub(super) fn by_items(items: usize) -> Grid {
        Grid { blocks: (items.div_ceil(THREADS), 1, 1), threads: THREADS, shared_bytes: 0 }
    }

    /// Address of an operand of this type on this device.
    pub(super) fn read(&self, view: &View<'_>, dtype: Dtype) -> Result<u64> {
        if view.place() != Place::Cuda(self.context.index) && !view.is_empty() {
            let reason = "the memory is not on this CUDA device".to_owned();
            return Err(DeviceError::Unsupported { operation: "operand", reason });
        }
        if view.dtype() != dtype {
            let reason = format!("needs {dtype}, has {}", view.dtype());
            return Err(DeviceError::Unsupported { operation: "operand", reason });
        }
        Ok(view.address().addr() as u64)
    }

    /// Address of a target of this type on this device.
    pub(super) fn write(&self, view: &ViewMut<'_>, dtype: Dtype) -> Result<u64> {
        self.read(&view.as_view(), dtype)
    }
}

/// Number by which kernels know a float type at run time.
pub(super) fn type_code(dtype: Dtype) -> Result<i32> {
    match dtype {
        Dtype::F32 => Ok(0),
        Dtype::Bf16 => Ok(1),
        Dtype::F16 => Ok(2),
        Dtype::F64 | Dtype::U32 | Dtype::U64 => {
            let reason = format!("{dtype} is not a type of activations");
            Err(DeviceError::Unsupported { operation: "operand", reason })
        }
    }
}
