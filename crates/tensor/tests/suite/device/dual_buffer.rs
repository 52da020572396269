//! Buffers of an accelerator with a copy in host memory.

use half::bf16;
use lockstep_tensor::device::{Compute, Dtype, DualBuffer, HostCopy, ViewMut};
use lockstep_tensor::{Cpu, Isa};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A second CPU in the place of an accelerator: its memory is apart from the copy.
fn accelerated() -> Compute {
    let isa = Isa::detect();
    Compute::accelerated(Cpu::single(isa), Arc::new(Cpu::single(isa)))
}

#[test]
fn the_side_that_is_used_has_the_last_values_of_either() {
    for compute in [accelerated(), Compute::single(Isa::detect())] {
        let mut buffer = DualBuffer::<Vec<f32>>::zeros(compute.accelerator(), 3).unwrap();
        let device = compute.device();
        device.fill(buffer.view_mut().unwrap().range(1..3), 2.0).unwrap();
        assert_eq!(buffer[..], [0.0, 2.0, 2.0]);
        buffer[0] = 5.0;
        let mut read = [0.0_f32; 3];
        device.copy(buffer.view().unwrap(), ViewMut::of(&mut read)).unwrap();
        assert_eq!(read[..], [5.0, 2.0, 2.0]);
        assert_eq!(buffer[..], [5.0, 2.0, 2.0], "reading changes nothing");
        device.fill(buffer.view_mut().unwrap().range(0..1), 7.0).unwrap();
        assert_eq!(buffer[..], [7.0, 2.0, 2.0]);
    }
}

#[test]
fn a_rounded_copy_follows_the_values_of_either_side() {
    let compute = accelerated();
    let mut buffer = DualBuffer::of(compute.accelerator(), vec![1.0, 1.0 + 1e-4]).unwrap();
    let device = compute.device();
    let copied = |buffer: &DualBuffer| {
        let view = buffer.view_with_copy(Dtype::Bf16).unwrap().range(1..2);
        assert!(view.copy_in(Dtype::F16).is_none());
        view.copy_in(Dtype::Bf16).unwrap().as_slice::<bf16>().unwrap()[0]
    };
    assert_eq!([copied(&buffer), copied(&buffer)], [bf16::ONE; 2]);
    buffer[1] = 3.0;
    assert_eq!(copied(&buffer), bf16::from_f32(3.0));
    device.fill(buffer.view_mut().unwrap(), 2.0).unwrap();
    assert_eq!(copied(&buffer), bf16::from_f32(2.0));
    let host = DualBuffer::on_host(vec![1.0; 2], 2);
    assert!(host.view_with_copy(Dtype::Bf16).unwrap().copy_in(Dtype::Bf16).is_none());
}

#[test]
fn a_copy_that_was_written_with_its_values_is_made_once() {
    let compute = accelerated();
    let mut buffer = DualBuffer::of(compute.accelerator(), vec![1.0, 1.0]).unwrap();
    let copies = |buffer: &DualBuffer| {
        let view = buffer.view_with_copy(Dtype::Bf16).unwrap();
        let copy = view.copy_in(Dtype::Bf16).unwrap();
        copy.as_slice::<bf16>().unwrap().iter().map(|x| x.to_f32()).collect::<Vec<_>>()
    };
    let (_, _, copy) = buffer.on_device_with_copy(&compute).unwrap();
    assert!(copy.is_empty(), "there is no copy yet");
    assert_eq!(copies(&buffer), [1.0; 2]);
    let (device, values, copy) = buffer.on_device_with_copy(&compute).unwrap();
    device.fill(values, 2.0).unwrap();
    // Another number than the values have shows who has written it.
    copy.into_slice::<bf16>().unwrap().fill(bf16::from_f32(4.0));
    assert_eq!((copies(&buffer), &buffer[..]), (vec![4.0; 2], &[2.0; 2][..]));
    let other = DualBuffer::of(compute.accelerator(), vec![5.0, 1.0 + 1e-4]).unwrap();
    buffer.copy_from(0..1, &other, 1..2).unwrap();
    assert_eq!((copies(&buffer), buffer[0]), (vec![1.0, 4.0], 1.0 + 1e-4));
    buffer[0] = 3.0;
    assert!(buffer.on_device_with_copy(&compute).unwrap().2.is_empty(), "the host has changed it");
    assert_eq!(copies(&buffer), [3.0, 2.0]);
}

#[test]
fn given_values_reach_the_device() {
    for compute in [accelerated(), Compute::single(Isa::detect())] {
        let buffer = DualBuffer::of(compute.accelerator(), vec![1.0, 2.0]).unwrap();
        let mut read = [0.0_f32; 2];
        compute.device().copy(buffer.view().unwrap(), ViewMut::of(&mut read)).unwrap();
        assert_eq!((read, &buffer[..]), ([1.0, 2.0], &[1.0, 2.0][..]));
    }
}

/// Host memory that counts its allocations.
struct Counted(Vec<f32>);

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

impl HostCopy for Counted {
    fn zeros(len: usize) -> Self {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        Self(vec![0.0; len])
    }
}

impl Deref for Counted {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.0
    }
}

impl DerefMut for Counted {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.0
    }
}

#[test]
fn values_that_stay_on_the_device_need_no_memory_of_the_host() {
    let compute = accelerated();
    let mut buffer = DualBuffer::<Counted>::zeros(compute.accelerator(), 8).unwrap();
    compute.device().fill(buffer.view_mut().unwrap(), 1.0).unwrap();
    assert!(buffer.view().is_ok());
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), 0);
    assert_eq!(buffer[..], [1.0; 8]);
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), 1);
}
