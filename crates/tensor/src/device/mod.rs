//! The seam under the blocks of a model: coarse operations on views of a device's memory.
//!
//! A [`Device`] runs operations in the order in which they are called (one stream), except for
//! copies that are queued beside them ([`Memory::copy_async`]). A call returns when its work is
//! queued; it waits only where the host needs a number: in [`Memory::copy`] to host memory,
//! [`FlatBuffers::first_non_finite`] and [`Memory::synchronize`]. The CPU runs every operation at
//! once, by the kernels of this crate and with their bits.
//!
//! Activations are `f32`, bf16 or `f16`: all of one call have one type, and a device without
//! kernels for it returns [`DeviceError::Unsupported`]. The CPU has `f32` only. Parameters of norms
//! and biases may be `f32` beside any type. Statistics, losses, gradients of parameters and
//! optimizer state are `f32`. Sums are `f32` or wider, in an order that does not depend on timing,
//! so two runs give equal bits.
//!
//! # Layout
//! - [`view`]: element types, views and buffers; [`error`]; [`operands`], [`linear`].
//! - [`open`]: the accelerator of a rank, by choice; [`kernel_cache`]: its machine code.
//! - [`compute`]: the resources of a rank; [`dual_buffer`]: buffers that the host uses as well.
//! - [`memory`], [`products`], [`layers`], [`losses`], [`flat`]: the operations.
//! - [`profile`]: the time of each operation, where a device records it.
//! - `cpu`: the operations on the CPU.

pub mod compute;
mod cpu;
pub mod dual_buffer;
pub mod error;
pub mod flat;
pub mod kernel_cache;
pub mod layers;
pub mod linear;
pub mod losses;
pub mod memory;
pub mod open;
pub mod operands;
pub mod products;
pub mod profile;
pub mod view;

pub use compute::Compute;
pub use dual_buffer::{DualBuffer, HostCopy};
pub use error::{DeviceError, Result};
pub use flat::FlatBuffers;
pub use kernel_cache::{KernelCache, NoCache};
pub use layers::Layers;
pub use linear::{LinearGradients, OutputGradient};
pub use losses::{Losses, Preferences, Targets, Teacher};
pub use memory::{Event, Memory, MemoryInfo, NUM_COPY_STREAMS};
pub use open::{Choice, kernel_class, open_accelerator};
pub use operands::{
    Activation, Epilogue, HeadRows, MAX_STATE_BUFFERS, Matrix, MatrixMut, Momentum, Norm, Rates,
    RowEpilogue, RowProduct, Rule,
};
pub use products::Products;
pub use profile::{Operation, OperationTime, ProductShape, Transfer, merge_times};
pub use view::{Buffer, Dtype, Element, View, ViewMut};

/// Compute device of a rank. Panics when shapes do not fit; errors are failures of the device.
pub trait Device: Memory + Products + Layers + Losses + FlatBuffers {}

impl<D: Memory + Products + Layers + Losses + FlatBuffers> Device for D {}

/// Copies elements inside a device, rounded to the type of the target where that is another.
pub fn copy_rounded(device: &dyn Device, from: View<'_>, to: ViewMut<'_>) -> Result<()> {
    if from.dtype() == to.dtype() {
        return device.copy(from, to);
    }
    device.convert(from, to, ViewMut::of::<u64>(&mut []))
}
