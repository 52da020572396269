//! Known answers of the generator, and statistics of the distributions.

use crate::common::two_threads;
use lockstep_tensor::internals::{FILL_TASK, philox};
use lockstep_tensor::random::{Key, fill_normal};
use lockstep_tensor::{Cpu, Isa};

#[test]
fn philox_gives_the_published_answers() {
    // From the known-answer file of the authors' Random123 distribution.
    let cases = [
        ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
        ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
        (
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        ),
    ];
    for (counter, key, expected) in cases {
        assert_eq!(philox(counter, key), expected);
    }
}

#[test]
fn many_blocks_equal_single_blocks_also_when_the_counter_carries() {
    let key = Key::new(3, "blocks").with(7);
    for first in [0, 5, u64::from(u32::MAX) - 7, u64::MAX - 3] {
        let blocks = key.blocks::<16>(first);
        for b in 0..16 {
            let single = key.block(first.wrapping_add(b as u64));
            assert_eq!(blocks.map(|word| word[b]), single);
        }
    }
}

#[test]
fn seeds_names_and_numbers_each_select_another_stream() {
    let keys = [
        Key::new(1, "a"),
        Key::new(2, "a"),
        Key::new(1 << 32, "a"),
        Key::new(1, "b"),
        Key::new(1, ""),
        Key::new(1, "a").with(0),
        Key::new(1, "a").with(1),
        Key::new(1, "a").with(0).with(1),
        Key::new(1, "a").with(1).with(0),
    ];
    for (i, a) in keys.iter().enumerate() {
        assert_eq!(a.block(0), a.block(0));
        for b in &keys[..i] {
            assert_ne!(a.block(0), b.block(0));
            assert_ne!(a.block(0), b.block(1));
        }
    }
}

#[test]
fn streams_have_pinned_values() {
    // Initial weights and dropout masks of every checkpoint depend on these values, which an
    // independent implementation with forty decimal digits computed.
    let key = Key::new(42, "model.embed_tokens.weight").with(3);
    let block = [0xae1d_a6aa, 0xf859_e687, 0x7e66_15b6, 0x3494_ac2c];
    let normals = [0x3f3b_a3ac, 0x4022_f7c3, 0x3e08_2435, 0xbf08_2a68];
    assert_eq!(key.block(0), block);
    assert_eq!(std::array::from_fn(|i| key.normal(i as u64).to_bits()), normals);
}

#[test]
fn uniform_numbers_fill_the_unit_interval_evenly() {
    const N: u64 = 400_000;
    let key = Key::new(11, "uniform");
    let (mut bins, mut sum) = ([0u32; 20], 0.0);
    for x in (0..N).map(|i| key.uniform_f64(i)) {
        assert!((0.0..1.0).contains(&x));
        bins[(x * 20.0) as usize] += 1;
        sum += x;
    }
    assert!((sum / N as f64 - 0.5).abs() < 0.002);
    // Chi-squared with 19 degrees of freedom exceeds 43.8 once in a thousand streams.
    let expected = N as f64 / 20.0;
    let chi_squared: f64 = bins.iter().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
    assert!(chi_squared < 43.8, "chi-squared {chi_squared}");
}

#[test]
fn normal_numbers_have_the_right_mean_spread_skew_and_tails() {
    let n = 1_000_000;
    let mut x = vec![0.0; n];
    fill_normal(&Cpu::single(Isa::detect()), Key::new(5, "normal"), 0, 1.0, &mut x);
    let moment = |power| x.iter().map(|&x| f64::from(x).powi(power)).sum::<f64>() / n as f64;
    let beyond = |limit| x.iter().filter(|x| x.abs() > limit).count() as f64 / n as f64;
    // Each bound is about four standard errors wide.
    assert!(moment(1).abs() < 0.004, "mean {}", moment(1));
    assert!((moment(2) - 1.0).abs() < 0.006, "variance {}", moment(2));
    assert!(moment(3).abs() < 0.016, "skew {}", moment(3));
    assert!((moment(4) - 3.0).abs() < 0.04, "kurtosis {}", moment(4));
    assert!((beyond(1.0) - 0.317_311).abs() < 0.002);
    assert!((beyond(2.0) - 0.045_500).abs() < 0.001);
    assert!((beyond(4.0) - 0.000_063).abs() < 0.000_032);
    // Neighbours come from one block and must be uncorrelated.
    let pairs = x.as_chunks::<2>().0;
    let product = pairs.iter().map(|[a, b]| f64::from(a * b)).sum::<f64>() / pairs.len() as f64;
    assert!(product.abs() < 0.006, "correlation {product}");
}

#[test]
fn a_filled_range_depends_on_element_indices_only() {
    let key = Key::new(9, "fill");
    for isa in Isa::available() {
        for cpu in [Cpu::single(isa), two_threads(isa)] {
            for (first, len) in [(0, 0), (0, 1), (1, 1), (7, 33), (8, 31), (5, 2 * FILL_TASK + 3)] {
                let mut x = vec![f32::NAN; len];
                fill_normal(&cpu, key, first, 0.02, &mut x);
                for (i, x) in (first..).zip(&x) {
                    assert_eq!(x.to_bits(), (key.normal(i) * 0.02).to_bits(), "{isa} element {i}");
                }
            }
        }
    }
}
