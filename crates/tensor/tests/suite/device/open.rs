//! Choice of an accelerator.

use lockstep_tensor::device::open::{Choice, kernel_class, open_accelerator};
use lockstep_tensor::device::{Device, DeviceError, NoCache, Result};
use lockstep_tensor::gemm::Precision;
use std::sync::Arc;

fn open(choice: Choice, local_rank: usize) -> Result<Option<Arc<dyn Device>>> {
    open_accelerator(choice, local_rank, Arc::new(NoCache))
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
}
