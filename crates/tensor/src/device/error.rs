//! Failures of devices: absent libraries, failed calls, operations without a kernel.

use std::fmt;

/// Failure of a device. Shapes that do not fit are bugs of the caller and panic instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// A library is not installed, or lacks a function.
    Missing {
        /// File name of the library.
        library: &'static str,
        /// Message of the loader.
        reason: String,
    },
    /// There is no such device, or it is too old.
    Unfit {
        /// Index of the device.
        index: usize,
        /// Requirement that it does not meet.
        reason: String,
    },
    /// The device has too little free memory.
    OutOfMemory {
        /// Size of the allocation.
        bytes: usize,
    },
    /// A call into a library failed.
    Failed {
        /// Function of the library.
        call: &'static str,
        /// Status that it returned.
        code: i32,
        /// Text of that status, if the library has one.
        reason: String,
    },
    /// A kernel does not compile.
    Kernel {
        /// Name of its source.
        source: &'static str,
        /// Log of the compiler.
        log: String,
    },
    /// The device has no kernel for these operands.
    Unsupported {
        /// The operation.
        operation: &'static str,
        /// Operands that it has no kernel for.
        reason: String,
    },
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { library, reason } => {
                let is_driver = library.starts_with("libcuda.");
                let origin = if is_driver { "NVIDIA's driver" } else { "the CUDA toolkit" };
                write!(
                    f,
                    "{library} cannot be loaded ({reason}); install {origin}, which has it, "
                )?;
                write!(f, "or use the CPU")
            }
            Self::Unfit { index, reason } => write!(f, "CUDA device {index}: {reason}"),
            Self::OutOfMemory { bytes } => write!(f, "no device memory for {bytes} bytes"),
            Self::Failed { call, code, reason } => write!(f, "{call} failed: {code} ({reason})"),
            Self::Kernel { source, log } => write!(f, "{source} does not compile: {log}"),
            Self::Unsupported { operation, reason } => write!(f, "{operation}: {reason}"),
        }
    }
}

impl std::error::Error for DeviceError {}

/// Result of an operation of a device.
pub type Result<T> = std::result::Result<T, DeviceError>;
