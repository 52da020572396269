//! Conversions against the types of the `half` crate.

use crate::common::two_threads;
use half::{bf16, f16};
use lockstep_tensor::convert::{RangeErrors, from_bf16, from_f16, scale, to_bf16, to_f16};
use lockstep_tensor::gemm::Precision;
use lockstep_tensor::internals::ELEMENTS;
use lockstep_tensor::{Cpu, Isa};

fn cpus() -> Vec<Cpu> {
    Isa::available().into_iter().flat_map(|isa| [Cpu::single(isa), two_threads(isa)]).collect()
}

/// Random bits: every exponent, NaN and infinities among them, and ties of both types.
fn any_numbers(len: usize) -> Vec<f32> {
    let mut state = 7u32;
    let next = |i: usize| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        f32::from_bits(match i % 4 {
            0 => state,
            1 => state & 0xFFFF_0000 | 0x8000,
            2 => state & 0x8FFF_E000 | 0x3000_1000,
            _ => state & 0x80FF_FFFF | 0x3300_0000,
        })
    };
    let special =
        [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE];
    special.into_iter().chain((special.len()..len).map(next)).collect()
}

/// Counts by a plain loop.
fn range_errors(before: &[f32], after: &[f32]) -> RangeErrors {
    let pairs = || before.iter().zip(after);
    RangeErrors {
        num_non_finite: pairs().filter(|(_, after)| !after.is_finite()).count() as u64,
        num_zeroed: pairs().filter(|(b, a)| **a == 0.0 && b.abs() > 0.0).count() as u64,
    }
}

fn same(got: f32, expected: f32) -> bool {
    got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan()
}

#[test]
fn roundings_follow_ieee_and_range_errors_are_counted() {
    let x = any_numbers(2 * ELEMENTS + 21);
    let by_bf16: Vec<f32> = x.iter().map(|&x| bf16::from_f32(x).to_f32()).collect();
    let by_f16: Vec<f32> = x.iter().map(|&x| f16::from_f32(x).to_f32()).collect();
    assert!(range_errors(&x, &by_f16).num_zeroed > 1000, "the test has something to count");
    for cpu in cpus() {
        let mut back = vec![f32::NAN; x.len()];
        let mut narrow = vec![bf16::NAN; x.len()];
        assert_eq!(to_bf16(&cpu, &x, &mut narrow), range_errors(&x, &by_bf16), "{}", cpu.isa());
        from_bf16(&cpu, &narrow, &mut back);
        assert!(back.iter().zip(&by_bf16).all(|(a, b)| same(*a, *b)), "bf16 on {}", cpu.isa());

        let mut narrow = vec![f16::NAN; x.len()];
        assert_eq!(to_f16(&cpu, &x, &mut narrow), range_errors(&x, &by_f16), "{}", cpu.isa());
        from_f16(&cpu, &narrow, &mut back);
        assert!(back.iter().zip(&by_f16).all(|(a, b)| same(*a, *b)), "f16 on {}", cpu.isa());
    }
}

#[test]
fn scaling_rounds_once_and_counts_overflows_and_underflows() {
    let x = any_numbers(ELEMENTS + 5);
    for factor in [1.0, 1.0 / 65536.0, 1024.0] {
        for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
            let round = |x: f32| match precision {
                Precision::F32 => x,
                Precision::Bf16 => bf16::from_f32(x).to_f32(),
                _ => f16::from_f32(x).to_f32(),
            };
            let expected: Vec<f32> = x.iter().map(|x| round(x * factor)).collect();
            for cpu in cpus() {
                let mut got = x.clone();
                let counted = scale(&cpu, &mut got, factor, precision);
                let place = format!("{precision} times {factor} on {}", cpu.isa());
                assert_eq!(counted, range_errors(&x, &expected), "{place}");
                assert!(got.iter().zip(&expected).all(|(a, b)| same(*a, *b)), "{place}");
            }
        }
    }
}
