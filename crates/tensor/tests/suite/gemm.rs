//! Every element of a product against its documented scalar chain.

mod bf16;
mod tiles;

use crate::common::two_threads;
use lockstep_tensor::gemm::{Elements, K_BLOCK, Mat, MatMut, Precision, Write, matmul, product};
use lockstep_tensor::{Cpu, Isa};

/// Numbers that make different orders of addition give different bits.
fn numbers(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 16_777_216.0 - 0.45
    };
    (0..len).map(|_| next()).collect()
}

/// The documented order: blocks of 512, each one chain from zero, added ascending.
fn chain(a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32, k: usize, start: Option<f32>) -> f32 {
    let mut total = start;
    for p in (0..k).step_by(K_BLOCK) {
        let mut sum = 0.0f32;
        for q in p..k.min(p + K_BLOCK) {
            sum = a(q).mul_add(b(q), sum);
        }
        total = Some(total.map_or(sum, |total| total + sum));
    }
    total.expect("k is positive")
}

fn check(cpu: &Cpu, (m, n, k): (usize, usize, usize), (a_t, b_t): (bool, bool), write: Write) {
    let (a_data, b_data, c_data) = (numbers(m * k, 1), numbers(k * n, 2), numbers(m * n, 3));
    let a = if a_t { Mat::new(&a_data, k, m).t() } else { Mat::new(&a_data, m, k) };
    let b = if b_t { Mat::new(&b_data, n, k).t() } else { Mat::new(&b_data, k, n) };
    let mut c = c_data.clone();
    matmul(cpu, a, b, MatMut::new(&mut c, m, n), write);
    for i in 0..m {
        for j in 0..n {
            let expected = chain(
                |p| a.data.get(i * a.row_stride + p * a.col_stride),
                |p| b.data.get(p * b.row_stride + j * b.col_stride),
                k,
                (write == Write::Add).then_some(c_data[i * n + j]),
            );
            assert_eq!(
                c[i * n + j].to_bits(),
                expected.to_bits(),
                "{} m {m} n {n} k {k} at ({i}, {j}): {} is not {expected}",
                cpu.isa(),
                c[i * n + j],
            );
        }
    }
}

#[test]
fn every_element_is_one_chain_over_ascending_k_in_blocks_of_512() {
    let cpu = two_threads(Isa::detect());
    for m in [1, 2, 63, 64, 65, 257] {
        for n in [1, 2, 63, 64, 65, 257] {
            for k in [1, 511, 512, 513, 2048] {
                check(&cpu, (m, n, k), (false, true), Write::Set);
            }
        }
    }
}

#[test]
fn layouts_and_accumulation_keep_the_chain() {
    for isa in Isa::available() {
        let cpu = Cpu::single(isa);
        for transposed in [(false, false), (false, true), (true, false), (true, true)] {
            for write in [Write::Set, Write::Add] {
                check(&cpu, (13, 35, 520), transposed, write);
                check(&cpu, (25, 17, 40), transposed, write);
            }
        }
    }
}

#[test]
fn instruction_sets_and_threads_give_equal_bits() {
    let (m, n, k) = (65, 1061, 1030);
    let (a, b) = (numbers(m * k, 5), numbers(k * n, 6));
    let run = |cpu: &Cpu| {
        let mut c = vec![0.0; m * n];
        let (a, b) = (Mat::new(&a, m, k), Mat::new(&b, k, n));
        matmul(cpu, a, b, MatMut::new(&mut c, m, n), Write::Set);
        c.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    };
    let expected = run(&Cpu::single(Isa::Portable));
    for isa in Isa::available() {
        assert_eq!(run(&Cpu::single(isa)), expected, "{isa}, one thread");
        assert_eq!(run(&two_threads(isa)), expected, "{isa}, two threads");
    }
}

#[test]
fn a_part_of_a_product_has_the_bits_of_the_whole() {
    let cpu = two_threads(Isa::detect());
    let (m, n, k) = (70, 90, 700);
    let (a, b) = (numbers(m * k, 7), numbers(n * k, 8));
    let mut whole = vec![0.0; m * n];
    let right = Mat::new(&b, n, k).t();
    matmul(&cpu, Mat::new(&a, m, k), right, MatMut::new(&mut whole, m, n), Write::Set);

    let (rows, cols) = (11..48, 21..83);
    let a_part = Mat::strided(&a[rows.start * k..], rows.len(), k, k);
    let b_part = Mat::strided(&b[cols.start * k..], cols.len(), k, k).t();
    let stride = cols.len() + 5;
    let mut part = vec![7.0; rows.len() * stride];
    let target = MatMut::strided(&mut part, rows.len(), cols.len(), stride);
    matmul(&cpu, a_part, b_part, target, Write::Set);
    for (i, row) in rows.clone().enumerate() {
        for (j, col) in cols.clone().enumerate() {
            assert_eq!(part[i * stride + j].to_bits(), whole[row * n + col].to_bits());
        }
        let beyond = &part[i * stride + cols.len()..(i + 1) * stride];
        assert!(beyond.iter().all(|x| x.to_bits() == 7.0f32.to_bits()), "nothing else is written");
    }
}

#[test]
fn products_in_f16_are_products_in_f32_of_rounded_operands() {
    let (m, n, k) = (15, 40, 600);
    let (a, b) = (numbers(m * k, 11), numbers(k * n, 12));
    let [a_stored, b_stored] =
        [&a, &b].map(|x| x.iter().map(|&x| half::f16::from_f32(x)).collect::<Vec<_>>());
    let [a_wide, b_wide] =
        [&a_stored, &b_stored].map(|x| x.iter().map(|x| x.to_f32()).collect::<Vec<_>>());
    let bias = numbers(n, 13);
    for isa in Isa::available() {
        for (a_t, b_t) in [(false, false), (false, true), (true, false)] {
            let run = |precision, a: Elements<'_>, b: Elements<'_>| {
                let mut c = vec![0.0; m * n];
                let a = if a_t { Mat::of(a, k, m).t() } else { Mat::of(a, m, k) };
                let b = if b_t { Mat::of(b, n, k).t() } else { Mat::of(b, k, n) };
                let (cpu, target) = (Cpu::single(isa), MatMut::new(&mut c, m, n));
                product(&cpu, precision, a, b, target, Write::Set, Some(&bias));
                c.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            };
            let (f32, f16) = (Precision::F32, Precision::F16);
            let expected = run(f32, Elements::F32(&a_wide), Elements::F32(&b_wide));
            assert_eq!(run(f16, Elements::F32(&a), Elements::F32(&b)), expected, "{isa}");
            let stored = (Elements::F16(&a_stored), Elements::F16(&b_stored));
            assert_eq!(run(f16, stored.0, stored.1), expected, "{isa}, stored");
            assert_eq!(run(f32, stored.0, Elements::F32(&b_wide)), expected, "{isa}, mixed");
        }
    }
}
