//! Dropout masks: a function of the element index alone, with the right fraction kept.

use crate::common::two_threads;
use lockstep_tensor::dropout::{DropoutMask, apply};
use lockstep_tensor::internals::DROPOUT_TASK;
use lockstep_tensor::random::Key;
use lockstep_tensor::{Cpu, Isa};

fn mask(rate: f32) -> DropoutMask {
    DropoutMask { key: Key::new(1, "dropout").with(2), rate }
}

#[test]
fn the_mask_depends_on_the_element_index_only() {
    let mask = mask(0.3);
    for isa in Isa::available() {
        for cpu in [Cpu::single(isa), two_threads(isa)] {
            for (first, len) in [
                (0, 0),
                (0, 1),
                (1, 1),
                (1, 2),
                (2, 3),
                (3, 17),
                (6, 63),
                (5, 2 * DROPOUT_TASK + 77),
            ] {
                let x: Vec<f32> = (0..len).map(|i| i as f32 + 1.0).collect();
                let mut y = x.clone();
                apply(&cpu, &mask, first, &mut y);
                for ((e, x), y) in (first..).zip(x).zip(y) {
                    let expected = if mask.keeps(e) { x * mask.scale() } else { 0.0 };
                    assert_eq!(y.to_bits(), expected.to_bits(), "{isa} element {e}");
                }
            }
        }
    }
}

#[test]
fn the_kept_fraction_is_one_minus_the_rate_and_the_mean_is_unchanged() {
    let cpu = Cpu::single(Isa::detect());
    let n = 400_000;
    for rate in [0.001, 0.1, 0.5, 0.9] {
        let mut x = vec![1.0; n];
        apply(&cpu, &mask(rate), 1_000_003, &mut x);
        let kept = x.iter().filter(|&&x| x > 0.0).count() as f32 / n as f32;
        let standard_error = (rate * (1.0 - rate) / n as f32).sqrt();
        assert!((kept - (1.0 - rate)).abs() < 4.0 * standard_error, "rate {rate}: {kept}");
        let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / n as f64;
        assert!((mean - 1.0).abs() < 4.0 * f64::from(standard_error / (1.0 - rate)));
    }
}

#[test]
fn rate_zero_changes_no_bit() {
    let mut x = [1.5, -0.0, f32::INFINITY, 1e-40];
    apply(&Cpu::single(Isa::detect()), &mask(0.0), 3, &mut x);
    assert_eq!(x.map(f32::to_bits), [1.5, -0.0, f32::INFINITY, 1e-40].map(f32::to_bits));
}

#[test]
fn a_dropped_infinity_is_zero_not_nan() {
    let mask = mask(0.5);
    let dropped = (0..100).find(|&e| !mask.keeps(e)).unwrap();
    let mut x = [f32::INFINITY];
    apply(&Cpu::single(Isa::detect()), &mask, dropped, &mut x);
    assert_eq!(x[0].to_bits(), 0);
}

#[test]
fn another_key_drops_other_elements() {
    let (a, b) = (mask(0.5), DropoutMask { key: mask(0.5).key.with(1), rate: 0.5 });
    let agreeing = (0..10_000).filter(|&e| a.keeps(e) == b.keeps(e)).count();
    assert!((4_800..5_200).contains(&agreeing), "{agreeing} of 10000 agree");
}

#[test]
#[should_panic(expected = "dropout rate 1 is not in [0, 1)")]
fn a_rate_of_one_is_refused() {
    apply(&Cpu::single(Isa::detect()), &mask(1.0), 0, &mut [1.0]);
}
