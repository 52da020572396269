//! Profiles add the times of equal operations, and name them.

use lockstep_tensor::device::{
    Dtype, Operation, OperationTime, ProductShape, Transfer, merge_times,
};
use lockstep_tensor::fp8::Role;
use lockstep_tensor::gemm::Precision;

#[test]
fn times_of_equal_operations_are_added_and_the_longest_come_first() {
    let kernel = |name, seconds| OperationTime {
        operation: Operation::Kernel(name, Dtype::Bf16),
        calls: 1,
        seconds,
        bytes: None,
    };
    let copy = |bytes, seconds| OperationTime {
        operation: Operation::Copy(Transfer::Inside),
        calls: 2,
        seconds,
        bytes: Some(bytes),
    };
    let times = [kernel("gelu", 1.0), copy(8, 0.5), kernel("fill", 0.25), copy(24, 1.0)];
    let expected =
        [OperationTime { calls: 4, ..copy(32, 1.5) }, kernel("gelu", 1.0), kernel("fill", 0.25)];
    assert_eq!(merge_times(times), expected);
    // Merged times merge with those of a second step.
    let twice = merge_times(expected.into_iter().chain(times));
    assert_eq!((twice[0].calls, twice[0].bytes), (8, Some(64)));
    assert_eq!((twice[1].calls, twice[1].seconds.to_bits()), (2, 2f64.to_bits()));
}

#[test]
fn products_are_named_by_shape_layout_and_types() {
    let mut product = ProductShape {
        mnk: (768, 2304, 65_536),
        operands: Precision::Bf16,
        roles: [Role::Activation; 2],
        result: Dtype::F32,
        transposed: [true, false],
        add: true,
        epilogue: "",
    };
    let name = |product| Operation::Product(product).to_string();
    assert_eq!(name(product), "product 768x2304x65536 tn bf16 to f32 +=");
    product = ProductShape { result: Dtype::Bf16, add: false, epilogue: "bias", ..product };
    assert_eq!(name(product), "product 768x2304x65536 tn bf16 bias");
    assert_eq!(product.flops().to_bits(), (2.0 * 768.0 * 2304.0 * 65_536f64).to_bits());
}

#[test]
fn a_profile_has_the_operations_between_its_start_and_its_end() {
    for case in super::cases() {
        let (device, dtype, len) = (case.device, case.dtype, 64);
        let mut x = device.allocate(dtype, len).unwrap();
        let mut y = device.allocate(dtype, len).unwrap();
        device.fill(x.view_mut(), 1.0).unwrap();
        device.start_profile();
        device.copy(x.view(), y.view_mut()).unwrap();
        device.fill(x.view_mut(), 2.0).unwrap();
        device.copy(x.view(), y.view_mut()).unwrap();
        let times = device.take_profile().unwrap();
        device.fill(x.view_mut(), 3.0).unwrap();
        assert_eq!(device.take_profile().unwrap(), [], "the profile has ended");
        if case.is_cpu {
            assert_eq!(times, [], "a CPU records nothing");
            continue;
        }
        let find = |operation| times.iter().find(|time| time.operation == operation).unwrap();
        let copies = find(Operation::Copy(Transfer::Inside));
        assert_eq!((copies.calls, copies.bytes), (2, Some((4 * len * dtype.size()) as u64)));
        let fill = find(Operation::Kernel("fill", dtype));
        assert_eq!((fill.calls, times.len()), (1, 2), "{times:?}");
        assert!(fill.seconds > 0.0 && copies.seconds > 0.0, "{times:?}");
    }
}
