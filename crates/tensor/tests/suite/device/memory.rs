//! Buffers, views, copies and errors.

use super::{bits, cases, cpu};
use crate::common::numbers;
use half::bf16;
use lockstep_tensor::cuda;
use lockstep_tensor::device::{Device, DeviceError, Dtype, KernelCache, Products, View, ViewMut};
use lockstep_tensor::gemm::Precision;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

#[test]
fn copies_fills_and_ranges_move_the_same_elements() {
    for case in cases() {
        let (device, x) = (case.device, case.rounded(&numbers(1, 77)));
        let from = case.upload(&x);
        let mut to = case.device.allocate(case.dtype, 77).unwrap();
        assert_eq!(case.download(&to), [0.0; 77], "new memory is zero");
        device.fill(to.view_mut(), -1.5).unwrap();
        let (first, rest) = to.view_mut().split_at(10);
        device.copy(from.view().range(60..70), first).unwrap();
        // Three rows of four, seven apart, become rows five apart.
        device.copy_rows((3, 4), (from.view(), 7), (rest.range(1..16), 5)).unwrap();
        let mut expected = vec![-1.5; 77];
        expected[..10].copy_from_slice(&x[60..70]);
        for row in 0..3 {
            expected[11 + 5 * row..][..4].copy_from_slice(&x[7 * row..][..4]);
        }
        assert_eq!(bits(&case.download(&to)), bits(&expected), "{}", case.label());
    }
}

#[test]
fn large_copies_in_both_directions_keep_every_element() {
    // More than two pinned pieces, which no piece divides, after a small copy.
    let x: Vec<u32> = (0..(3 << 20) + 12_345_u32).map(|i| i.wrapping_mul(2_654_435)).collect();
    for device in cases().into_iter().map(|case| case.device).take(2) {
        let mut small = device.allocate(Dtype::U32, 3).unwrap();
        device.copy(View::of(&x[7..10]), small.view_mut()).unwrap();
        let mut large = device.allocate(Dtype::U32, x.len()).unwrap();
        let mut source = x.clone();
        device.copy(View::of(&source), large.view_mut()).unwrap();
        source.fill(0);
        let mut got = vec![0; x.len()];
        device.copy(large.view(), ViewMut::of(&mut got)).unwrap();
        assert!(got == x, "{}", device.name());
        device.copy(small.view(), ViewMut::of(&mut got[..3])).unwrap();
        assert_eq!(got[..3], x[7..10]);
    }
}

#[test]
fn events_order_and_time_work() {
    for case in cases() {
        let device = case.device;
        let start = device.record().unwrap();
        let mut x = case.upload(&[0.0; 4096]);
        device.fill(x.view_mut(), 1.0).unwrap();
        let end = device.record().unwrap();
        device.wait(&end).unwrap();
        device.wait_on_host(&end).unwrap();
        let seconds = device.seconds_between(&start, &end).unwrap();
        assert!(seconds.is_none_or(|seconds| seconds > 0.0), "{seconds:?}");
        device.synchronize().unwrap();
        assert_eq!(device.memory().unwrap().is_none(), case.is_cpu);
        assert!(!device.kernel_class(Precision::Bf16).is_empty());
    }
}

#[test]
fn operands_of_another_type_or_place_are_errors() {
    let (x, mut y) = ([bf16::ONE; 4], [0.0f32; 4]);
    let error = View::of(&x).as_slice::<f32>().unwrap_err();
    assert_eq!(error.to_string(), "host operand: needs f32, has bf16");
    let add = |a: View<'_>| {
        lockstep_tensor::device::FlatBuffers::add(cpu(), a, a, ViewMut::of(&mut [0.0f32; 4]))
    };
    assert!(matches!(add(View::of(&x)), Err(DeviceError::Unsupported { .. })));
    add(View::of(&y)).unwrap();
    for case in cases().into_iter().filter(|case| !case.is_cpu) {
        let buffer = case.upload(&[1.0; 4]);
        assert!(buffer.view().as_slice::<f32>().is_err(), "device memory is no slice");
        let host = case.device.add(buffer.view(), buffer.view(), ViewMut::of(&mut y));
        assert!(matches!(host, Err(DeviceError::Unsupported { .. })));
    }
}

#[test]
fn a_machine_with_a_cuda_device_opens_it() {
    if std::path::Path::new("/dev/nvidiactl").exists() {
        let device = cuda::open(0).unwrap();
        println!("{}", lockstep_tensor::device::Memory::name(&device));
        assert!(cases().len() > 1, "the suite runs on it");
        assert!(cuda::num_devices().unwrap() > 0);
    }
}

/// Machine code in memory; counts loads.
#[derive(Default)]
struct MemoryCache(Mutex<(BTreeMap<String, Vec<u8>>, usize)>);

impl KernelCache for MemoryCache {
    fn load(&self, key: &str) -> Option<Vec<u8>> {
        let (stored, num_loads) = &mut *self.0.lock().unwrap();
        let code = stored.get(key).cloned();
        *num_loads += usize::from(code.is_some());
        code
    }

    fn store(&self, key: &str, code: &[u8]) {
        self.0.lock().unwrap().0.insert(key.to_owned(), code.to_vec());
    }
}

#[test]
fn compiled_kernels_come_from_the_cache() {
    let cache = Arc::new(MemoryCache::default());
    for expected_loads in [0, 1] {
        let cache = Arc::clone(&cache);
        let Ok(device) = cuda::open_with_cache(0, cache.clone()) else { return };
        let device: &dyn Device = &device;
        let mut x = device.allocate(Dtype::F32, 5).unwrap();
        device.fill(x.view_mut(), 2.5).unwrap();
        let mut got = [0.0f32; 5];
        device.copy(x.view(), ViewMut::of(&mut got)).unwrap();
        assert_eq!(bits(&got), bits(&[2.5; 5]));
        assert_eq!(cache.0.lock().unwrap().1, expected_loads);
    }
}

#[test]
fn an_absent_cuda_device_is_an_error_of_one_line() {
    let error = cuda::open(99).unwrap_err();
    match &error {
        DeviceError::Missing { library, .. } => assert!(library.starts_with("libcuda")),
        DeviceError::Unfit { index, .. } => assert_eq!(*index, 99),
        DeviceError::Failed { call, .. } => assert_eq!(*call, "cuInit"),
        other => panic!("{other:?}"),
    }
    assert!(!error.to_string().contains('\n'), "{error}");
}

#[test]
#[should_panic(expected = "3..9 of a view of 8 elements")]
fn a_range_beyond_a_view_is_refused() {
    let _ = View::of(&[0.0f32; 8]).range(3..9);
}

#[test]
fn views_split_like_slices() {
    let mut x = [1.0f32, 2.0, 3.0, 4.0, 5.0];
    let (a, b) = View::of(&x).split_at(2);
    assert_eq!((a.as_slice::<f32>().unwrap(), b.as_slice::<f32>().unwrap()), (&x[..2], &x[2..]));
    let (mut first, second) = ViewMut::of(&mut x).split_at(1);
    second.range(1..3).into_slice::<f32>().unwrap().fill(0.0);
    first.reborrow().into_slice::<f32>().unwrap()[0] = 9.0;
    assert_eq!(first.as_view().len(), 1);
    assert_eq!(bits(&x), bits(&[9.0, 2.0, 0.0, 0.0, 5.0]));
    assert_eq!([Dtype::Bf16.size(), Dtype::F64.size()], [2, 8]);
    let shape = lockstep_tensor::attention::Shape {
        sequences: 1,
        tokens: 3,
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
    };
    let len = lockstep_tensor::attention::scratch_len(shape);
    assert_eq!(cpu().attention_scratch_len(Precision::F32, shape), len);
}
