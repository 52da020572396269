//! ReLU against its definition and against differences.

use crate::common::{assert_close, central_differences, dot, numbers, same_bits_everywhere, wide};
use lockstep_tensor::relu::{backward, forward};
use lockstep_tensor::{Cpu, Isa, reference};

#[test]
fn forward_and_backward_match_the_reference() {
    for len in [0, 1, 15, 16, 17, 8192, 8193] {
        let (x, dy) = (numbers(1, len), numbers(2, len));
        let y = same_bits_everywhere(|cpu| {
            let mut y = vec![0.5; len];
            forward(cpu, &x, &mut y);
            y
        });
        assert_close(&y, &reference::relu::forward(&wide(&x)), 1);
        let dx = same_bits_everywhere(|cpu| {
            let mut dx = vec![0.5; len];
            backward(cpu, &x, &dy, &mut dx);
            dx
        });
        assert_close(&dx, &reference::relu::backward(&wide(&x), &wide(&dy)), 1);
    }
}

#[test]
fn backward_matches_central_differences() {
    let (x, dy) = (numbers(3, 67), numbers(4, 67));
    let mut got = vec![0.5; 67];
    backward(&Cpu::single(Isa::detect()), &x, &dy, &mut got);
    let expected = central_differences(&x, |x| dot(&reference::relu::forward(x), &wide(&dy)));
    assert_close(&got, &expected, 1);
}

#[test]
fn nan_propagates() {
    let cpu = Cpu::single(Isa::detect());
    let mut y = [0.0; 3];
    forward(&cpu, &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY], &mut y);
    assert!(y[0].is_nan() && y[1].is_infinite() && y[2].abs() < f32::MIN_POSITIVE);
}
