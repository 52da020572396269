//! Weights in four bits against their definition, `bitsandbytes`' algorithm, and the products with
//! dequantised weights.

use crate::common::{assert_close, numbers, same_bits_everywhere, two_threads, wide};
use lockstep_tensor::device::{Epilogue, Matrix, MatrixMut, Products, View, ViewMut};
use lockstep_tensor::gemm::{Precision, Write};
use lockstep_tensor::nf4::{
    self, BLOCK_LEN, GROUP_LEN, Nf4, Nf4Rows, TensorScales, VALUES, largest,
};
use lockstep_tensor::{Cpu, Isa, reference};
use std::collections::BTreeMap;

/// A tensor of blocks of many sizes, one of which is zero.
fn tensor(seed: u32, num_blocks: usize) -> Vec<f32> {
    let sizes = numbers(seed + 50, num_blocks).into_iter().map(|x| (2.0 * x).exp() * 1e-2);
    let sizes: Vec<f32> = sizes.flat_map(|size| [size; BLOCK_LEN]).collect();
    let values = numbers(seed, num_blocks * BLOCK_LEN).into_iter();
    let mut tensor: Vec<f32> = values.zip(&sizes).map(|(x, size)| x * size).collect();
    tensor[BLOCK_LEN..2 * BLOCK_LEN].fill(0.0);
    tensor
}

fn quantise(tensor: &[f32], double: bool) -> Nf4 {
    let blocks = tensor.chunks(BLOCK_LEN);
    let scales = TensorScales::new(blocks.clone().map(largest).collect(), double);
    let (num_blocks, num_runs) = (blocks.len(), blocks.len().div_ceil(GROUP_LEN));
    let mut weight = Nf4::with_capacity(num_blocks, num_runs, double);
    blocks.enumerate().for_each(|(index, block)| weight.push(&scales, index, block));
    assert_eq!(weight.num_bytes(), Nf4::planned_bytes(num_blocks, num_runs, double));
    weight
}

/// The only tensor of a weight.
const fn alone(weight: &Nf4, width: usize) -> Nf4Rows<'_> {
    Nf4Rows { parts: [Some(weight), None, None], width }
}

/// All of a weight.
fn dequantised(cpu: &Cpu, weight: Nf4Rows<'_>) -> Vec<f32> {
    let mut out = vec![f32::NAN; weight.num_rows() * weight.width];
    nf4::dequantise(cpu, weight, 0..weight.num_rows(), 0..weight.width, &mut out);
    out
}

#[test]
fn dequantised_values_are_those_of_the_reference() {
    for (num_blocks, double) in [(2, false), (2, true), (700, false), (700, true)] {
        let tensor = tensor(1, num_blocks);
        let weight = quantise(&tensor, double);
        let rows = alone(&weight, BLOCK_LEN);
        let found = same_bits_everywhere(|cpu| dequantised(cpu, rows));
        let map = reference::nf4::scale_map();
        let groups = double.then_some((GROUP_LEN, &map[..]));
        let expected = reference::nf4::quantise(&wide(&tensor), BLOCK_LEN, groups);
        let scales: Vec<f32> = (0..num_blocks).map(|block| weight.scale(block)).collect();
        assert_close(&scales, &expected.scales, 2);
        assert_close(&found, &expected.values, 2);
    }
}

#[test]
fn a_weight_has_the_values_of_the_paper_and_the_bits_that_it_says() {
    let values = VALUES.map(f64::from);
    for (value, expected) in values.iter().zip(reference::nf4::VALUES) {
        assert!((value - expected).abs() < 1e-8, "{value}");
    }
    let num_blocks = 4 * GROUP_LEN;
    let bits = |double| {
        let bytes = quantise(&tensor(2, num_blocks), double).num_bytes();
        8.0 * bytes as f64 / (num_blocks * BLOCK_LEN) as f64
    };
    assert!((bits(false) - 4.5).abs() < 1e-9 && (bits(true) - 4.125).abs() < 0.01);
}

/// Values and codes that `scripts/golden/make_nf4.py` has recorded, by name.
fn golden() -> BTreeMap<String, Vec<f64>> {
    let text = include_str!("../../golden/nf4.txt");
    let line = |line: &str| {
        let mut parts = line.split_whitespace();
        let name = parts.next().expect("a name").to_owned();
        (name, parts.map(|number| number.parse().expect("a number")).collect())
    };
    text.lines().map(line).collect()
}

#[test]
fn codes_and_values_are_those_of_bitsandbytes() {
    let golden = golden();
    let exact = |name: &str| -> Vec<f32> { golden[name].iter().map(|x| *x as f32).collect() };
    let tensor: Vec<f32> = golden["tensor"].iter().map(|x| (x / 65536.0) as f32).collect();
    let cpu = Cpu::single(Isa::detect());
    for (double, name) in [(false, "single"), (true, "double")] {
        let weight = quantise(&tensor, double);
        let codes: Vec<f64> = weight.codes().iter().map(|byte| f64::from(*byte)).collect();
        assert_eq!(codes, golden["codes"], "{name}");
        let scales: Vec<f32> = (0..weight.num_blocks()).map(|block| weight.scale(block)).collect();
        let found = dequantised(&cpu, alone(&weight, BLOCK_LEN));
        let found = found[..golden[&format!("{name}.values")].len()].to_vec();
        let [of_scales, of_values] = ["scales", "values"].map(|part| format!("{name}.{part}"));
        if double {
            // Its mean of scales is a sum in `f32`.
            assert_close(&scales, &golden[&of_scales], 2);
            assert_close(&found, &golden[&of_values], 2);
        } else {
            assert_eq!((scales, found), (exact(&of_scales), exact(&of_values)));
        }
    }
}

#[test]
fn a_shard_has_the_blocks_of_the_whole_tensor() {
    let (num_rows, width) = (40, 10 * BLOCK_LEN);
    let tensor = tensor(3, num_rows * width / BLOCK_LEN);
    let cpu = Cpu::single(Isa::detect());
    let whole = quantise(&tensor, true);
    let whole = dequantised(&cpu, alone(&whole, width));
    let scales = TensorScales::new(tensor.chunks(BLOCK_LEN).map(largest).collect(), true);
    // Columns 128 to 448 of each row.
    let (first, blocks) = (2, 5);
    let mut shard = Nf4::with_capacity(num_rows * blocks, num_rows * 2, true);
    for row in 0..num_rows {
        for block in 0..blocks {
            let index = row * width / BLOCK_LEN + first + block;
            shard.push(&scales, index, &tensor[index * BLOCK_LEN..(index + 1) * BLOCK_LEN]);
        }
    }
    let found = dequantised(&cpu, alone(&shard, blocks * BLOCK_LEN));
    let expected = whole.chunks(width).flat_map(|row| &row[128..448]).copied();
    assert_eq!(found, expected.collect::<Vec<_>>());
}

/// Three tensors, one below the other, wider and longer than a tile of either product.
#[test]
fn products_have_the_bits_of_products_with_the_dequantised_weight() {
    const ROWS: usize = 3;
    for (lens, width) in [([130, 70, 2049], 9 * 64), ([1, 1, 1], 64), ([8300, 300, 2], 320)] {
        let parts = lens.map(|rows| tensor(rows as u32, (rows * width / BLOCK_LEN).max(2)));
        let parts = [0, 1, 2].map(|part| parts[part][..lens[part] * width].to_vec());
        let weights = [0, 1, 2].map(|part| quantise(&parts[part], part != 1));
        let weight = Nf4Rows { parts: weights.each_ref().map(Some), width };
        let num = weight.num_rows();
        let (x, dy) = (numbers(4, ROWS * width), numbers(5, ROWS * num));
        for precision in [Precision::F32, Precision::Bf16, Precision::Fp8] {
            let run = |cpu: &Cpu| {
                let (mut y, mut dx) = (numbers(6, ROWS * num), numbers(7, ROWS * width));
                let mut tile = vec![f32::NAN; nf4::tile_len(num, width)];
                let target = MatrixMut::new(ViewMut::of(&mut y), ROWS, num);
                let left = Matrix::new(View::of(&x), ROWS, width);
                nf4::product(cpu, precision, left, weight, target, Write::Set, &mut tile).unwrap();
                let target = MatrixMut::new(ViewMut::of(&mut dx), ROWS, width);
                let left = Matrix::new(View::of(&dy), ROWS, num);
                nf4::input_product(cpu, precision, left, weight, target, Write::Add, &mut tile)
                    .unwrap();
                [y, dx].concat()
            };
            let found = same_bits_everywhere(run);
            let cpu = two_threads(Isa::detect());
            let w = dequantised(&cpu, weight);
            let role = lockstep_tensor::fp8::Role::Weight;
            let matrix = Matrix::new(View::of(&w), num, width).in_role(role);
            let (mut y, mut dx) = (numbers(6, ROWS * num), numbers(7, ROWS * width));
            let target = MatrixMut::new(ViewMut::of(&mut y), ROWS, num);
            let left = Matrix::new(View::of(&x), ROWS, width);
            cpu.product(precision, left, matrix.t(), target, Write::Set, Epilogue::None).unwrap();
            let target = MatrixMut::new(ViewMut::of(&mut dx), ROWS, width);
            let left = Matrix::new(View::of(&dy), ROWS, num);
            cpu.product(precision, left, matrix, target, Write::Add, Epilogue::None).unwrap();
            assert_eq!(found, [y, dx].concat(), "{precision} of {num} x {width}");
            if precision == Precision::F32 {
                let (x, dy, w) = (wide(&x), wide(&dy), wide(&w));
                let (y, dx) = found.split_at(ROWS * num);
                assert_close(y, &reference::nf4::product(&x, &w, width), width);
                let added = reference::nf4::input_product(&dy, &w, width);
                let before = numbers(7, ROWS * width);
                let sums: Vec<f64> =
                    before.iter().zip(added).map(|(b, a)| f64::from(*b) + a).collect();
                assert_close(dx, &sums, num);
            }
        }
    }
}

#[test]
fn numbers_that_are_none_have_no_scale() {
    let mut block = [0.5; BLOCK_LEN];
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        block[7] = bad;
        assert!(!largest(&block).is_finite(), "{bad}");
    }
}
