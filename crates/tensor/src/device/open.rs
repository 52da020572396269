//! Opens the accelerator of a rank. This is the only place that names devices: code above this
//! crate passes a choice on and uses what opens.

use super::Device;
use super::error::{DeviceError, Result};
use super::kernel_cache::KernelCache;
use crate::cuda;
use crate::gemm::Precision;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

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

/// Why [`Choice::Auto`] leaves a device of this host unused: for a note at the start of a run.
pub fn unused_accelerator(choice: Choice, local_rank: usize) -> Option<DeviceError> {
    let chosen = if choice == Choice::Auto { index(choice, local_rank) } else { Ok(None) };
    chosen.and_then(|index| index.map_or(Ok(()), cuda::check)).err()
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

impl FromStr for Choice {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self> {
        let cuda = |index: &str| Some(Self::Cuda(Some(index.parse().ok()?)));
        match text {
            "auto" => Some(Self::Auto),
            "cpu" => Some(Self::Cpu),
            "cuda" => Some(Self::Cuda(None)),
            _ => text.strip_prefix("cuda:").and_then(cuda),
        }
        .ok_or_else(|| {
            let reason = format!("{text:?} is not one of auto, cpu, cuda, cuda:N");
            DeviceError::Unsupported { operation: "device", reason }
        })
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(None) => f.write_str("cuda"),
            Self::Cuda(Some(index)) => write!(f, "cuda:{index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::NoCache;

    fn open(choice: Choice, local_rank: usize) -> Result<Option<Arc<dyn Device>>> {
        open_accelerator(choice, local_rank, Arc::new(NoCache))
    }

    #[test]
    fn a_choice_is_written_as_it_is_read() {
        for text in ["auto", "cpu", "cuda", "cuda:0", "cuda:13"] {
            assert_eq!(text.parse::<Choice>().unwrap().to_string(), text);
        }
        for text in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda0", "CUDA"] {
            let error = text.parse::<Choice>().unwrap_err().to_string();
            assert!(error.ends_with("is not one of auto, cpu, cuda, cuda:N"), "{error}");
        }
    }

    #[test]
    fn auto_opens_what_a_demand_opens_and_else_the_cpu() {
        let class = |choice| kernel_class(choice, 3, Precision::Bf16);
        assert!(open(Choice::Cpu, 0).unwrap().is_none());
        assert_eq!(class(Choice::Cpu).unwrap(), Precision::Bf16.kernel_class());
        let auto = open(Choice::Auto, 3).unwrap();
        match open(Choice::Cuda(None), 3) {
            Ok(device) => {
                let (device, auto) = (device.unwrap(), auto.unwrap());
                assert_eq!(auto.name(), device.name());
                assert_eq!(class(Choice::Auto).unwrap(), device.kernel_class(Precision::Bf16));
                assert_eq!(unused_accelerator(Choice::Auto, 3), None);
            }
            Err(error) => {
                assert!(auto.is_none());
                assert_eq!(class(Choice::Auto), class(Choice::Cpu));
                assert_eq!(class(Choice::Cuda(None)).unwrap_err(), error);
                assert!(!error.to_string().contains('\n'), "{error}");
            }
        }
    }

    #[test]
    fn a_demanded_device_that_is_absent_is_an_error_that_says_what_is_missing() {
        let error = open(Choice::Cuda(Some(99)), 0).err().unwrap();
        match &error {
            DeviceError::Missing { library, .. } => assert!(library.starts_with("libcuda")),
            DeviceError::Unfit { index, .. } => assert_eq!(*index, 99),
            DeviceError::Failed { call, .. } => assert_eq!(*call, "cuInit"),
            other => panic!("{other:?}"),
        }
        assert_eq!(kernel_class(Choice::Cuda(Some(99)), 0, Precision::F32), Err(error));
        assert_eq!(unused_accelerator(Choice::Cuda(Some(99)), 0), None);
    }
}
