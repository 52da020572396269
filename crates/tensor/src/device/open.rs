//! Opens the accelerator of a rank. This is the only place that names devices: code above this
//! crate passes a choice on and uses what opens.

use super::Device;
use super::error::Result;
use super::kernel_cache::KernelCache;
use super::view::Dtype;
use crate::attention::Shape;
use crate::gemm::Precision;
use crate::{cuda, fp8};
use std::sync::{Arc, OnceLock};

/// Choice of the device that runs the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// A CUDA device if training can run on it, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The CUDA device of this index, or one for each rank of the host in turn.
    Cuda(Option<usize>),
}

/// Opens the accelerator with everything that training needs of it; `None`: blocks run on the CPU.
/// An absent or unfit device is an error only where the choice demands one.
pub fn open_accelerator(
    choice: Choice,
    local_rank: usize,
    cache: Arc<dyn KernelCache>,
) -> Result<Option<Arc<dyn Device>>> {
    on_chosen(choice, local_rank, |index| {
        Ok(Arc::new(cuda::open_with_cache(index, cache)?) as Arc<dyn Device>)
    })
}

/// Kernel class of the device that [`open_accelerator`] opens, without opening it.
pub fn kernel_class(choice: Choice, local_rank: usize, precision: Precision) -> Result<String> {
    let class = on_chosen(choice, local_rank, |index| cuda::kernel_class(index, precision))?;
    Ok(class.unwrap_or_else(|| precision.kernel_class().to_owned()))
}

/// Whether [`open_accelerator`] opens one, or demands it.
pub fn is_accelerated(choice: Choice) -> bool {
    static AUTO: OnceLock<bool> = OnceLock::new();
    let class = |choice| kernel_class(choice, 0, Precision::F32);
    let opens = || class(Choice::Auto) != class(Choice::Cpu);
    match choice {
        Choice::Auto => *AUTO.get_or_init(opens),
        Choice::Cpu => false,
        Choice::Cuda(_) => true,
    }
}

/// Type of activations in the memory of the chosen device, where products are in `precision`: an
/// accelerator has kernels for every type of a product's operands.
pub fn activations(choice: Choice, precision: Precision) -> Dtype {
    if is_accelerated(choice) { Dtype::of_operands(precision) } else { Dtype::F32 }
}

/// Elements of scratch memory for attention on an accelerator.
pub const fn accelerator_attention_len(shape: Shape) -> usize {
    cuda::attention_scratch_len(shape)
}

/// Memory that an accelerator allocates for a training step besides the buffers of its callers,
/// given the bytes of the largest left and right operand that any product rounds or quantises.
/// Partial sums take less.
pub fn accelerator_scratch_bytes(operands: [usize; 2]) -> usize {
    cuda::PRODUCT_WORKSPACE_BYTES + operands.iter().sum::<usize>()
}

/// Memory of `len` elements in fp8 and their scales, where sums are over at least a block.
pub const fn fp8_operand_bytes(len: usize) -> usize {
    len + len.div_ceil(fp8::BLOCK / 2) * size_of::<f32>()
}

/// Memory that attention of a training step allocates besides, in the place of the left operand:
/// the larger of both counts. Without dropout, on a device that cuDNN is used on.
pub fn accelerator_attention_bytes(precision: Precision, shape: Shape) -> usize {
    cuda::attention_scratch_bytes(precision, shape)
}

fn on_chosen<T>(
    choice: Choice,
    local_rank: usize,
    body: impl FnOnce(usize) -> Result<T>,
) -> Result<Option<T>> {
    let result = index(choice, local_rank).and_then(|index| index.map(body).transpose());
    if choice == Choice::Auto { Ok(result.unwrap_or(None)) } else { result }
}

/// Index of the chosen device.
fn index(choice: Choice, local_rank: usize) -> Result<Option<usize>> {
    Ok(match choice {
        Choice::Cpu => None,
        Choice::Cuda(Some(index)) => Some(index),
        // Without a device, opening the first one says what is missing.
        Choice::Cuda(None) => Some(local_rank % cuda::num_devices()?.max(1)),
        Choice::Auto => local_rank.checked_rem(cuda::num_devices()?),
    })
}
