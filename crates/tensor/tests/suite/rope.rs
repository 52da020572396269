//! Rotations against their definition, against differences, and angles at far positions.

use crate::common::{assert_close, central_differences, dot, numbers, same_bits_everywhere, wide};
use lockstep_tensor::rope::{Rotation, Table, rotate};
use lockstep_tensor::rope_frequencies::Scaling;
use lockstep_tensor::{Cpu, Isa, reference};

const THETA: f64 = 10_000.0;

fn rotation(num_heads: usize, head_dim: usize) -> Rotation {
    Rotation {
        row_stride: num_heads * head_dim + 3,
        num_heads,
        head_stride: head_dim,
        tokens_per_sequence: 7,
        first_position: 5,
        inverse: false,
    }
}

fn rotated(cpu: &Cpu, head_dim: usize, x: &[f32], rotation: &Rotation) -> Vec<f32> {
    let mut x = x.to_vec();
    rotate(cpu, &Table::new(head_dim, 12, THETA), &mut x, rotation);
    x
}

#[test]
fn rows_of_odd_shapes_match_the_reference_in_both_directions() {
    for head_dim in [2, 4, 30, 32, 34, 64, 126, 256] {
        for num_heads in [1, 3] {
            for inverse in [false, true] {
                let rotation = Rotation { inverse, ..rotation(num_heads, head_dim) };
                let x = numbers(1, 3 * 7 * rotation.row_stride);
                let got = same_bits_everywhere(|cpu| rotated(cpu, head_dim, &x, &rotation));
                let expected = reference::rope::rotate(head_dim, THETA, &wide(&x), &rotation);
                assert_close(&got, &expected, 1);
                for (e, (got, x)) in got.iter().zip(&x).enumerate() {
                    let behind_the_heads = e % rotation.row_stride >= num_heads * head_dim;
                    assert!(!behind_the_heads || got.to_bits() == x.to_bits());
                }
            }
        }
    }
}

#[test]
fn a_part_of_each_head_is_rotated_and_the_rest_keeps_its_bits() {
    for (head_dim, head_stride) in [(2, 7), (16, 64), (34, 40)] {
        for inverse in [false, true] {
            let row_stride = 3 * head_stride + 5;
            let rotation = Rotation { row_stride, head_stride, inverse, ..rotation(3, head_dim) };
            let x = numbers(1, 2 * 7 * row_stride);
            let got = same_bits_everywhere(|cpu| rotated(cpu, head_dim, &x, &rotation));
            assert_close(&got, &reference::rope::rotate(head_dim, THETA, &wide(&x), &rotation), 1);
            for (e, (got, x)) in got.iter().zip(&x).enumerate() {
                let (row, column) = (e % row_stride, e % row_stride % head_stride);
                let is_behind = row >= 3 * head_stride || column >= head_dim;
                assert!(!is_behind || got.to_bits() == x.to_bits(), "element {e}");
            }
        }
    }
}

#[test]
fn the_inverse_is_the_gradient() {
    let rotation = rotation(2, 6);
    let (x, dy) = (numbers(2, 7 * 15), numbers(3, 7 * 15));
    let inverse = Rotation { inverse: true, ..rotation };
    let got = rotated(&Cpu::single(Isa::detect()), 6, &dy, &inverse);
    let expected = central_differences(&x, |x| {
        dot(&reference::rope::rotate(6, THETA, x, &rotation), &wide(&dy))
    });
    assert_close(&got, &expected, 1);
}

#[test]
fn position_zero_is_unchanged_and_a_row_depends_on_its_position_only() {
    let cpu = Cpu::single(Isa::detect());
    let (table, x) = (Table::new(8, 12, THETA), numbers(4, 4 * 8));
    let all = Rotation {
        row_stride: 8,
        num_heads: 1,
        head_stride: 8,
        tokens_per_sequence: 4,
        first_position: 0,
        inverse: false,
    };
    let mut together = x.clone();
    rotate(&cpu, &table, &mut together, &all);
    assert_eq!(together[..8], x[..8]);
    // One row at a time, as in decoding with a key-value cache.
    for position in 0..4 {
        let mut row = x[8 * position..][..8].to_vec();
        let one = Rotation { tokens_per_sequence: 1, first_position: position, ..all };
        rotate(&cpu, &table, &mut row, &one);
        assert_eq!(row, together[8 * position..][..8]);
    }
}

#[test]
fn far_positions_are_rotated_by_the_angle_rounded_once() {
    let table = Table::new(128, 100_000, 500_000.0);
    assert_eq!((table.head_dim(), table.num_positions()), (128, 100_000));
    let cpu = Cpu::single(Isa::detect());
    for position in [1, 4_095, 99_999] {
        let rotation = Rotation {
            row_stride: 128,
            num_heads: 1,
            head_stride: 128,
            tokens_per_sequence: 1,
            first_position: position,
            inverse: false,
        };
        // Rotated, the point (1, 0) is the table's cosine and sine to the bit.
        let mut head = [[1.0; 64], [0.0; 64]].concat();
        rotate(&cpu, &table, &mut head, &rotation);
        let (cos, sin) = head.split_at(64);
        for i in 0..64 {
            let angle = position as f64 * 500_000f64.powf(-2.0 * i as f64 / 128.0);
            assert!((f64::from(cos[i]) - angle.cos()).abs() < 6.1e-8);
            assert!((f64::from(sin[i]) - angle.sin()).abs() < 6.1e-8);
        }
    }
}

/// Frequencies as `transformers` computes them, by wavelength, for the values of Llama 3.1.
fn llama3_by_wavelength(head_dim: usize, theta: f64) -> Vec<f64> {
    let (factor, low, high, original) = (8.0, 1.0, 4.0, 8192.0);
    let frequency_of = |i: usize| 1.0 / theta.powf((2 * i) as f64 / head_dim as f64);
    let scaled = |i: usize| {
        let frequency = frequency_of(i);
        let wavelength = 2.0 * std::f64::consts::PI / frequency;
        if wavelength < original / high {
            return frequency;
        }
        if wavelength > original / low {
            return frequency / factor;
        }
        let smooth = (original / wavelength - low) / (high - low);
        (1.0 - smooth) * frequency / factor + smooth * frequency
    };
    (0..head_dim / 2).map(scaled).collect()
}

/// Frequencies of YaRN with factor 4, an original length of 64 and the default bounds.
fn yarn_by_pairs(head_dim: usize, theta: f64) -> Vec<f64> {
    let d = head_dim as f64;
    let pair = |rotations: f64| {
        d * (64.0 / (rotations * 2.0 * std::f64::consts::PI)).ln() / (2.0 * theta.ln())
    };
    let (low, high) = (pair(32.0).floor().max(0.0), pair(1.0).ceil().min(d - 1.0));
    let scaled = |i: usize| {
        let frequency = theta.powf(-((2 * i) as f64) / d);
        let kept = 1.0 - ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
        frequency / 4.0 * (1.0 - kept) + frequency * kept
    };
    (0..head_dim / 2).map(scaled).collect()
}

#[test]
fn scaled_frequencies_are_those_of_transformers() {
    let llama3 = Scaling::Llama3 { factor: 8.0, original: 8192.0, low: 1.0, high: 4.0 };
    let yarn = Scaling::Yarn {
        factor: 4.0,
        original: 64.0,
        fast: 32.0,
        slow: 1.0,
        truncate: true,
        attention: None,
    };
    for head_dim in [6, 64, 128] {
        for theta in [10_000.0, 500_000.0] {
            for (scaling, expected) in [
                (llama3, llama3_by_wavelength(head_dim, theta)),
                (yarn, yarn_by_pairs(head_dim, theta)),
            ] {
                let got = scaling.frequencies(head_dim, theta);
                assert_eq!(got.len(), expected.len());
                for (got, expected) in got.iter().zip(&expected) {
                    assert!((got / expected - 1.0).abs() < 1e-14, "{scaling:?}: {got} {expected}");
                }
            }
        }
    }
    assert!((yarn.attention_factor() - 1.138_629_436_111_989).abs() < 1e-15);
    let chosen = match yarn {
        Scaling::Yarn { factor, original, fast, slow, truncate, .. } => {
            Scaling::Yarn { factor, original, fast, slow, truncate, attention: Some(0.5) }
        }
        other => other,
    };
    assert!((chosen.attention_factor() - 0.5).abs() < 1e-15);
    let linear = Scaling::Linear { factor: 2.0 }.frequencies(4, 100.0);
    assert!((linear[0] - 0.5).abs() < 1e-15 && (linear[1] - 0.05).abs() < 1e-15);
}

#[test]
fn a_ramp_without_length_divides_by_nothing() {
    // Both bounds are below the first pair.
    let scaling = Scaling::Yarn {
        factor: 4.0,
        original: 2.0,
        fast: 1.0,
        slow: 1.0,
        truncate: false,
        attention: None,
    };
    assert!(scaling.frequencies(8, 1e4).iter().all(|frequency| frequency.is_finite()));
    let step = Scaling::Yarn {
        factor: 4.0,
        original: 8.0 * std::f64::consts::TAU,
        fast: 8.0,
        slow: 8.0,
        truncate: true,
        attention: None,
    };
    let [first, second] = step.frequencies(4, 1e4)[..] else { panic!("two pairs") };
    assert!((first - 1.0).abs() < 1e-15 && (second - 0.0025).abs() < 1e-15);
}

#[test]
fn a_common_factor_is_part_of_the_table_and_of_the_gradient() {
    let scaling = Scaling::Yarn {
        factor: 1.0,
        original: 64.0,
        fast: 32.0,
        slow: 1.0,
        truncate: true,
        attention: Some(2.0),
    };
    let [plain, doubled] = [Scaling::None, scaling].map(|scaling| {
        let mut x = numbers(5, 7 * 15);
        let rotation = Rotation { inverse: true, ..rotation(2, 6) };
        let table = Table::scaled(6, 12, THETA, &scaling);
        rotate(&Cpu::single(Isa::detect()), &table, &mut x, &rotation);
        x
    });
    for (e, (plain, doubled)) in plain.iter().zip(&doubled).enumerate() {
        let factor = if e % 15 < 12 { 2.0 } else { 1.0 };
        assert!((factor * plain - doubled).abs() < 1e-5, "{e}: {plain} {doubled}");
    }
}

#[test]
#[should_panic(expected = "13 positions exceed the table's 12")]
fn a_sequence_longer_than_the_table_is_refused() {
    let rotation = Rotation { first_position: 6, ..rotation(1, 2) };
    rotated(&Cpu::single(Isa::detect()), 2, &[0.0; 7 * 5], &rotation);
}
