//! Sums must have the documented order to the bit; checks must find the first bad element.

use crate::common::{ODD_WIDTHS, assert_close, numbers, same_bits_everywhere, wide};
use lockstep_tensor::internals::{ELEMENTS, for_each_split};
use lockstep_tensor::reduce::{add, add_assign, column_sums, first_non_finite, sum_squares_chunks};
use lockstep_tensor::{Cpu, Isa};

/// Lengths around the edges of vectors, chunks and tasks.
const LENGTHS: [usize; 8] = [0, 1, 17, 4095, 4096, 4097, 16_384, 40_000];

#[test]
fn addition_equals_scalar_addition_at_every_length() {
    for len in LENGTHS {
        let (a, b) = (numbers(1, len), numbers(2, len));
        let expected: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        let sum = same_bits_everywhere(|cpu| {
            let mut out = vec![f32::NAN; len];
            add(cpu, &a, &b, &mut out);
            out
        });
        assert_eq!(sum, expected);
        let sum = same_bits_everywhere(|cpu| {
            let mut out = a.clone();
            add_assign(cpu, &mut out, &b);
            out
        });
        assert_eq!(sum, expected);
    }
}

#[test]
fn sums_of_squares_use_sixteen_accumulators_and_one_tree() {
    for len in LENGTHS {
        let x = numbers(3, len);
        let expected: Vec<u64> = x
            .chunks(4096)
            .map(|chunk| {
                let mut sums = [0.0f64; 16];
                for (i, &x) in chunk.iter().enumerate() {
                    sums[i % 16] += f64::from(x) * f64::from(x);
                }
                for half in [8, 4, 2, 1] {
                    for i in 0..half {
                        sums[i] += sums[i + half];
                    }
                }
                sums[0].to_bits()
            })
            .collect();
        same_bits_everywhere(|cpu| {
            let mut out = vec![f64::NAN; expected.len()];
            sum_squares_chunks(cpu, &x, &mut out);
            let bits: Vec<u64> = out.iter().map(|x| x.to_bits()).collect();
            assert_eq!(bits, expected, "length {len}");
            Vec::new()
        });
    }
}

#[test]
fn the_first_non_finite_element_is_found_wherever_it_is() {
    let len = 40_000;
    let clean = numbers(4, len);
    let largest = [f32::MAX, f32::MIN, 1e-45, -0.0].repeat(len / 4);
    let bad = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN];
    same_bits_everywhere(|cpu| {
        assert_eq!(first_non_finite(cpu, &[]), None);
        assert_eq!(first_non_finite(cpu, &clean), None);
        assert_eq!(first_non_finite(cpu, &largest), None);
        for (k, at) in [0, 15, 16, 63, 64, 16_383, 16_384, len - 1].into_iter().enumerate() {
            let mut x = clean.clone();
            x[at] = bad[k % 4];
            assert_eq!(first_non_finite(cpu, &x), Some(at));
            x[len - 1] = f32::NAN;
            x[at.max(20_000)] = f32::INFINITY;
            assert_eq!(first_non_finite(cpu, &x), Some(at), "later ones do not matter");
        }
        Vec::new()
    });
}

#[test]
fn the_lowest_of_two_hits_wins_on_any_thread() {
    // The two hits are found by different threads at about the same time, in either order.
    let mut x = numbers(7, 8 * ELEMENTS);
    let low = 4 * ELEMENTS - 1;
    x[low] = f32::NAN;
    x[8 * ELEMENTS - 1] = f32::INFINITY;
    same_bits_everywhere(|cpu| {
        for _ in 0..200 {
            assert_eq!(first_non_finite(cpu, &x), Some(low));
        }
        Vec::new()
    });
}

#[test]
fn a_column_sum_is_one_chain_from_zero_added_once() {
    for width in ODD_WIDTHS {
        for num_rows in [0, 1, 2, 37] {
            let (x, start) = (numbers(5, num_rows * width), numbers(6, width));
            let expected: Vec<f32> = (0..width)
                .map(|j| {
                    let mut sum = 0.0;
                    for row in 0..num_rows {
                        sum += x[row * width + j];
                    }
                    start[j] + sum
                })
                .collect();
            let sums = same_bits_everywhere(|cpu| {
                let mut out = start.clone();
                column_sums(cpu, &x, &mut out);
                out
            });
            assert_eq!(sums, expected, "{num_rows} rows of {width}");
        }
    }
}

#[test]
fn split_lends_every_part_once() {
    for num_rows in [0, 1, 4, 5, 29] {
        let expected: Vec<f64> = (0..num_rows).map(|row| (row / 4) as f64).collect();
        same_bits_everywhere(|cpu| {
            let (mut rows, mut cells) = (vec![-1.0; num_rows], vec![-1.0; num_rows * 3]);
            for_each_split(cpu, [&mut rows, &mut cells], [4, 12], |i, [rows, cells]| {
                assert_eq!(cells.len(), 3 * rows.len());
                rows.fill(i as f32);
                cells.fill(i as f32);
            });
            assert_eq!(wide(&rows), expected);
            let of_cells: Vec<f32> = cells.iter().step_by(3).copied().collect();
            assert_close(&of_cells, &expected, 0);
            cells
        });
    }
}

#[test]
#[should_panic(expected = "equally many parts")]
fn split_refuses_buffers_with_different_numbers_of_parts() {
    let cpu = Cpu::single(Isa::Portable);
    for_each_split(&cpu, [&mut [0.0; 8], &mut [0.0; 9]], [4, 4], |_, _| {});
}
