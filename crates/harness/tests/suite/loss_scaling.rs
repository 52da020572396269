//! Overflow and underflow of `fp16` gradients by loss scale (mixed-precision training, Micikevicius
//! et al. 2018), with the conversion that training uses.

use half::f16;
use lockstep_tensor::convert::{self, RangeErrors};
use lockstep_tensor::gemm::Precision;
use lockstep_tensor::random::{self, Key};
use lockstep_tensor::{Cpu, Isa};

const NUM_GRADIENTS: usize = 1 << 22;

/// Normally distributed gradients with standard deviation 1e-4.
fn gradients(cpu: &Cpu) -> Vec<f32> {
    let mut values = vec![0.0; NUM_GRADIENTS];
    random::fill_normal(cpu, Key::new(9, "experiment"), 0, 1e-4, &mut values);
    values
}

/// Fractions of gradients that overflow and that become zero at a scale.
fn lost_at(cpu: &Cpu, gradients: &[f32], scale: f32) -> (f64, f64) {
    let mut scaled = gradients.to_vec();
    let RangeErrors { num_non_finite, num_zeroed } =
        convert::scale(cpu, &mut scaled, scale, Precision::F16);
    let share = |count: u64| count as f64 / gradients.len() as f64;
    (share(num_non_finite), share(num_zeroed))
}

#[track_caller]
fn assert_close(found: f64, expected: f64, by: f64) {
    assert!((found - expected).abs() <= by, "{found}, but {expected} within {by}");
}

#[test]
fn nothing_overflows_at_usual_scales_and_a_quarter_does_around_two_to_the_29() {
    let cpu = Cpu::single(Isa::detect());
    let gradients = gradients(&cpu);
    for exponent in [15, 18, 20, 24] {
        let (overflow, _) = lost_at(&cpu, &gradients, 2.0_f32.powi(exponent));
        assert_close(overflow, 0.0, 0.0);
    }
    // 2^29.08; the last digit of the exponent is worth 0.3 % of gradients.
    let (overflow, _) = lost_at(&cpu, &gradients, 2.0_f32.powi(29) * 1.057);
    assert_close(overflow, 0.25, 0.003);
}

#[test]
fn without_a_scale_almost_half_are_subnormal_and_few_become_zero() {
    let cpu = Cpu::single(Isa::detect());
    let gradients = gradients(&cpu);
    let small: Vec<f32> = gradients.iter().copied().filter(|g| g.abs() < 6e-5).collect();
    assert_close(small.len() as f64 / gradients.len() as f64, 0.451, 0.001);
    let mut narrow = vec![f16::ZERO; small.len()];
    convert::to_f16(&cpu, &small, &mut narrow);
    assert!(narrow.iter().all(|g| !g.is_normal()), "they are subnormal or zero");
    let (_, zeroed) = lost_at(&cpu, &gradients, 1.0);
    assert_close(zeroed, 0.000_24, 0.000_03);
}

#[test]
fn a_larger_scale_never_overflows_less_nor_underflows_more() {
    let cpu = Cpu::single(Isa::detect());
    let gradients = &gradients(&cpu)[..1 << 18];
    let lost: Vec<_> =
        (0..32).map(|exponent| lost_at(&cpu, gradients, 2.0_f32.powi(exponent))).collect();
    for pair in lost.windows(2) {
        assert!(pair[0].0 <= pair[1].0 && pair[0].1 >= pair[1].1, "{pair:?}");
    }
    assert!(lost[0].1 > 0.0 && lost[31].0 > 0.5, "both ends are reached");
}

#[test]
fn the_range_of_fp16_includes_its_subnormal_numbers() {
    let cpu = Cpu::single(Isa::detect());
    let round = |value: f32| {
        let mut narrow = [f16::ZERO];
        convert::to_f16(&cpu, &[value], &mut narrow);
        narrow[0].to_f32()
    };
    assert_eq!(round(65504.0).to_bits(), 65504.0_f32.to_bits());
    assert!(round(65520.0).is_infinite());
    let smallest = 2.0_f32.powi(-24);
    assert_close(f64::from(smallest), 5.96e-8, 1e-10);
    assert_eq!(round(smallest).to_bits(), smallest.to_bits(), "it is not flushed");
    assert_eq!(round(smallest / 2.0).to_bits(), 0, "half of it ties to even");
}
