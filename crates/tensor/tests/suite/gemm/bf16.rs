//! Every element of a product in bf16 against its documented chain, and against `f64`.

use super::tiles::cpus;
use crate::common::two_threads;
use half::bf16;
use lockstep_tensor::gemm::{Elements, Mat, MatMut, Precision, Write, product};
use lockstep_tensor::internals::tiles;
use lockstep_tensor::{Cpu, Isa};

/// Numbers that make different orders of addition give different bits, some of them tiny.
fn numbers(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let x = (state >> 8) as f32 / 16_777_216.0 - 0.45;
        if (state >> 8).is_multiple_of(1024) { x * 1e-37 } else { x }
    };
    (0..len).map(|_| next()).collect()
}

/// One element by the documented order.
fn chain(a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32, k: usize, start: f32) -> f32 {
    let rounded = |x: f32| if x.is_subnormal() { 0.0 } else { bf16::from_f32(x).to_f32() };
    (0..k).step_by(tiles::STEP).fold(start, |sum, p| {
        let factor =
            |x: &dyn Fn(usize) -> f32, q: usize| if p + q < k { rounded(x(p + q)) } else { 0.0 };
        tiles::step(sum, |q| factor(&a, q), |q| factor(&b, q))
    })
}

fn check(cpu: &Cpu, (m, n, k): (usize, usize, usize), (a_t, b_t): (bool, bool), write: Write) {
    let (a_data, b_data, c_data) = (numbers(m * k, 1), numbers(k * n, 2), numbers(m * n, 3));
    let a = if a_t { Mat::new(&a_data, k, m).t() } else { Mat::new(&a_data, m, k) };
    let b = if b_t { Mat::new(&b_data, n, k).t() } else { Mat::new(&b_data, k, n) };
    let mut c = c_data.clone();
    product(cpu, Precision::Bf16, a, b, MatMut::new(&mut c, m, n), write, None);
    for i in 0..m {
        for j in 0..n {
            let left = |p: usize| a.data.get(i * a.row_stride + p * a.col_stride);
            let right = |p: usize| b.data.get(p * b.row_stride + j * b.col_stride);
            let start = if write == Write::Add { c_data[i * n + j] } else { 0.0 };
            let (got, expected) = (c[i * n + j], chain(left, right, k, start));
            let place = (cpu.isa(), cpu.has_matrix_units());
            assert_eq!(
                got.to_bits(),
                expected.to_bits(),
                "{place:?} m {m} n {n} k {k} at ({i}, {j}): {got} is not {expected}",
            );
            let exact: f64 = (0..k).map(|p| f64::from(left(p)) * f64::from(right(p))).sum();
            let size: f64 = (0..k).map(|p| f64::from(left(p) * right(p)).abs()).sum();
            // Each factor has a relative error of at most 1/256; the sum in f32 adds a negligible
            // error.
            let bound = (size + f64::from(start).abs()) * 1.01 / 128.0;
            assert!((f64::from(got) - exact - f64::from(start)).abs() <= bound, "far from f64");
        }
    }
}

#[test]
fn every_element_is_one_chain_of_steps_for_odd_shapes() {
    let cpu = two_threads(Isa::detect());
    for (m, n) in [(1, 1), (2, 63), (16, 32), (33, 65), (64, 17)] {
        for k in [1, 2, 31, 33, 511, 513] {
            check(&cpu, (m, n, k), (false, true), Write::Set);
        }
    }
}

#[test]
fn layouts_and_accumulation_keep_the_chain() {
    for cpu in cpus() {
        for transposed in [(false, false), (false, true), (true, false), (true, true)] {
            for write in [Write::Set, Write::Add] {
                check(&cpu, (35, 33, 100), transposed, write);
            }
        }
    }
}

#[test]
fn threads_and_matrix_units_do_not_change_a_bit() {
    let (m, n, k) = (70, 300, 1030);
    let (a, b, bias) = (numbers(m * k, 5), numbers(k * n, 6), numbers(n, 7));
    let run = |cpu: &Cpu, bias: Option<&[f32]>| {
        let mut c = vec![0.5; m * n];
        let (a, b) = (Mat::new(&a, m, k), Mat::new(&b, k, n));
        product(cpu, Precision::Bf16, a, b, MatMut::new(&mut c, m, n), Write::Add, bias);
        c
    };
    let bits = |c: &[f32]| c.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let expected = run(&Cpu::single(Isa::detect()), None);
    let mut plus_bias = expected.clone();
    for row in plus_bias.chunks_exact_mut(n) {
        row.iter_mut().zip(&bias).for_each(|(x, bias)| *x += bias);
    }
    for isa in [Isa::detect(), Isa::Portable] {
        for cpu in [Cpu::single(isa), two_threads(isa), two_threads(isa).without_matrix_units()] {
            assert_eq!(bits(&run(&cpu, None)), bits(&expected), "{isa}");
            assert_eq!(bits(&run(&cpu, Some(&bias))), bits(&plus_bias), "{isa}, with a bias");
        }
    }
}

#[test]
fn a_part_of_a_product_has_the_bits_of_the_whole() {
    let cpu = two_threads(Isa::detect());
    let (m, n, k) = (70, 90, 700);
    let (a, b) = (numbers(m * k, 7), numbers(n * k, 8));
    let mut whole = vec![0.0; m * n];
    let right = Mat::new(&b, n, k).t();
    let target = MatMut::new(&mut whole, m, n);
    product(&cpu, Precision::Bf16, Mat::new(&a, m, k), right, target, Write::Set, None);
    let (rows, cols, stride) = (11..48, 21..83, 67);
    let a_part = Mat::strided(&a[rows.start * k..], rows.len(), k, k);
    let b_part = Mat::strided(&b[cols.start * k..], cols.len(), k, k).t();
    let mut part = vec![7.0; rows.len() * stride];
    let target = MatMut::strided(&mut part, rows.len(), cols.len(), stride);
    product(&cpu, Precision::Bf16, a_part, b_part, target, Write::Set, None);
    for (i, row) in rows.clone().enumerate() {
        for (j, col) in cols.clone().enumerate() {
            assert_eq!(part[i * stride + j].to_bits(), whole[row * n + col].to_bits());
        }
        let beyond = &part[i * stride + cols.len()..(i + 1) * stride];
        assert!(beyond.iter().all(|x| x.to_bits() == 7.0f32.to_bits()), "nothing else is written");
    }
}

#[test]
fn operands_stored_as_bf16_give_the_bits_of_operands_rounded_while_packed() {
    let cpu = Cpu::single(Isa::detect());
    let (m, n, k) = (40, 50, 70);
    let (a, b) = (numbers(m * k, 9), numbers(k * n, 10));
    let [a_stored, b_stored] =
        [&a, &b].map(|x| x.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>());
    for transposed in [false, true] {
        let run = |a: Elements<'_>, b: Elements<'_>| {
            let mut c = vec![0.0; m * n];
            let (a, b) = if transposed {
                (Mat::of(a, k, m).t(), Mat::of(b, n, k).t())
            } else {
                (Mat::of(a, m, k), Mat::of(b, k, n))
            };
            let target = MatMut::new(&mut c, m, n);
            product(&cpu, Precision::Bf16, a, b, target, Write::Set, None);
            c.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        let expected = run(Elements::F32(&a), Elements::F32(&b));
        assert_eq!(run(Elements::Bf16(&a_stored), Elements::Bf16(&b_stored)), expected);
        assert_eq!(run(Elements::F32(&a), Elements::Bf16(&b_stored)), expected);
    }
}

#[test]
fn alignment_of_the_target_does_not_change_a_bit() {
    let (m, n, k, stride) = (40, 200, 70, 208);
    let (a, b, bias) = (numbers(m * k, 13), numbers(n * k, 14), numbers(n, 15));
    let start = numbers(m * stride, 16);
    let cpus = [Cpu::single(Isa::detect()), Cpu::single(Isa::detect()).without_matrix_units()];
    for (b_t, cpu) in [(false, &cpus[0]), (true, &cpus[0]), (true, &cpus[1])] {
        let run = |offset: usize| {
            let mut c = vec![0.0; offset + m * stride];
            c[offset..].copy_from_slice(&start);
            let b = if b_t { Mat::new(&b, n, k).t() } else { Mat::new(&b, k, n) };
            let target = MatMut::strided(&mut c[offset..], m, n, stride);
            let a = Mat::new(&a, m, k);
            product(cpu, Precision::Bf16, a, b, target, Write::Add, Some(&bias));
            c[offset..].iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        let expected = run(0);
        for offset in 1..16 {
            assert_eq!(run(offset), expected, "offset of {offset} elements");
        }
    }
}
