//! Generation token by token: attention to a cache and products of one row.

use super::{Case, bits, on_every_device};
use crate::common::{numbers, wide};
use lockstep_tensor::attention::{Options, Shape};
use lockstep_tensor::device::{
    Buffer, Epilogue, HeadRows, Matrix, MatrixMut, Norm, RowEpilogue, RowProduct, View,
};
use lockstep_tensor::gemm::Write;
use lockstep_tensor::reference;
use lockstep_tensor::rope::{Rotation, Table};

/// Around the ends of warps, splits and several splits.
const POSITIONS: [usize; 14] = [1, 2, 31, 32, 33, 63, 64, 65, 127, 129, 255, 400, 1000, 2047];

/// (heads, key and value heads, head dimension): those of models, rows of any alignment, and the
/// widest.
const HEADS: [(usize, usize, usize); 5] =
    [(4, 2, 128), (3, 3, 64), (4, 1, 20), (2, 1, 6), (2, 2, 256)];

const THETA: f64 = 10_000.0;

fn columns(rows: &[f64], width: usize, at: std::ops::Range<usize>) -> Vec<f64> {
    rows.chunks(width).flat_map(|row| &row[at.clone()]).copied().collect()
}

/// Output and log-sum-exp of queries from `first_query` on.
fn attend(case: Case, shape: Shape, q: &[f32], cache: &[f32], first_query: usize) -> Vec<Vec<f32>> {
    let (width, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    let (q, cache) = (case.upload(q), case.upload(cache));
    let (mut out, mut lse) = (case.poisoned(q.len()), case.poisoned_f32(q.len() / shape.head_dim));
    let (device, precision) = (case.device, case.precision());
    let mut scratch = case.poisoned_f32(device.attention_scratch_len(precision, shape));
    let qkv = [
        HeadRows { data: q.view(), stride: width },
        HeadRows { data: cache.view(), stride: 2 * kv },
        HeadRows { data: cache.view().range(kv..cache.len()), stride: 2 * kv },
    ];
    let (results, scratch) = ((out.view_mut(), lse.view_mut()), scratch.view_mut());
    let ((out_thd, lse_bht), plain) = (results, &Options::CAUSAL);
    device
        .attention_forward(precision, shape, qkv, first_query, plain, out_thd, lse_bht, scratch)
        .unwrap();
    vec![case.download(&out), case.download(&lse)]
}

#[test]
fn queries_at_every_position_match_the_oracle() {
    for (i, first_query) in POSITIONS.into_iter().enumerate() {
        for (heads, kv_heads, head_dim) in HEADS {
            // One query, some of which are in other splits than the first, and the most.
            let tokens = [1, 3, 8][i % 3];
            let shape = Shape { sequences: 2, tokens, heads, kv_heads, head_dim };
            let kv = kv_heads * head_dim;
            let q = numbers(3, 2 * tokens * heads * head_dim);
            let cache = numbers(4, 2 * (first_query + tokens) * 2 * kv);
            on_every_device(
                |case| attend(case, shape, &q, &cache, first_query),
                |case, got| {
                    let (q, cache) = (case.wide(&q), case.wide(&cache));
                    let num_terms = first_query + head_dim;
                    let k = columns(&cache, 2 * kv, 0..kv);
                    let v = columns(&cache, 2 * kv, kv..2 * kv);
                    let (plain, all) = (&Options::CAUSAL, |_, _, _, _| 1.0);
                    let (out, lse) =
                        reference::attention::forward(&shape, &q, &k, &v, first_query, plain, all);
                    case.assert_close("out", &got[0], &out, num_terms);
                    case.assert_close("lse", &got[1], &lse, num_terms);
                },
            );
        }
    }
}

/// The row of a token after the rotation, as the device stores it.
fn rotated(case: Case, shape: Shape, qkv: &[f32], angles: &Buffer, position: usize) -> Buffer {
    let mut row = case.upload(qkv);
    let rotation = Rotation {
        row_stride: qkv.len(),
        num_heads: shape.heads + shape.kv_heads,
        head_stride: shape.head_dim,
        tokens_per_sequence: 1,
        first_position: position,
        inverse: false,
    };
    case.device.rotate(angles.view(), shape.head_dim, row.view_mut(), &rotation).unwrap();
    row
}

/// Output and cache after one more token, and the cached row that is expected.
fn attend_token(
    case: Case,
    shape: Shape,
    qkv: &[f32],
    cache: &[f32],
    angles: Option<&[f32]>,
    position: usize,
) -> Vec<Vec<f32>> {
    let (q_len, row_len) = (shape.heads * shape.head_dim, 2 * shape.kv_heads * shape.head_dim);
    let angles = angles.map(|angles| case.upload_f32(angles));
    let (new, mut cached, mut out) = (case.upload(qkv), case.upload(cache), case.poisoned(q_len));
    let expected = angles
        .as_ref()
        .map_or_else(|| case.upload(qkv), |angles| rotated(case, shape, qkv, angles, position));
    let expected_row = case.download(&expected).split_off(q_len);
    let (device, precision) = (case.device, case.precision());
    let is_fused = device
        .attend_token(
            precision,
            shape,
            new.view(),
            angles.as_ref().map(Buffer::view),
            cached.view_mut(),
            position,
            out.view_mut(),
        )
        .unwrap();
    assert_eq!(is_fused, !case.is_cpu, "{} attends from a token", case.label());
    if is_fused {
        return vec![case.download(&out), case.download(&cached), expected_row];
    }
    // Step by step.
    let at = position * row_len..(position + 1) * row_len;
    device.copy(expected.view().range(q_len..qkv.len()), cached.view_mut().range(at)).unwrap();
    let cached = case.download(&cached);
    let q = &case.download(&expected)[..q_len];
    let out = attend(case, shape, q, &cached[..(position + 1) * row_len], position);
    vec![out[0].clone(), cached, expected_row]
}

#[test]
fn one_token_is_rotated_cached_and_attends() {
    const CAPACITY: usize = 2050;
    for (i, position) in [0].into_iter().chain(POSITIONS).enumerate() {
        for (heads, kv_heads, head_dim) in HEADS {
            let shape = Shape { sequences: 1, tokens: 1, heads, kv_heads, head_dim };
            let (q_len, kv) = (heads * head_dim, kv_heads * head_dim);
            let qkv = numbers(5, q_len + 2 * kv);
            // Rows from the position on are poison.
            let mut cache = numbers(6, position * 2 * kv);
            cache.resize(CAPACITY * 2 * kv, f32::NAN);
            let angles = Table::new(head_dim, CAPACITY, THETA).angles();
            let angles = (i % 4 != 3).then_some(&angles[..]);
            on_every_device(
                |case| {
                    let got = attend_token(case, shape, &qkv, &cache, angles, position);
                    // NaNs of the poison have no fixed bits.
                    let end = (position + 1) * 2 * kv;
                    assert!(got[1][end..].iter().all(|x| x.is_nan()), "rows behind are untouched");
                    vec![got[0].clone(), got[1][..end].to_vec(), got[2].clone()]
                },
                |case, got| {
                    let (before, row) = got[1].split_at(position * 2 * kv);
                    assert_eq!(bits(before), bits(&case.rounded(&cache[..before.len()])));
                    assert_eq!(bits(row), bits(&got[2]), "{} at {position}", case.label());
                    let mut q = case.wide(&qkv[..q_len]);
                    if angles.is_some() {
                        let rotation = Rotation {
                            row_stride: q_len,
                            num_heads: heads,
                            head_stride: head_dim,
                            tokens_per_sequence: 1,
                            first_position: position,
                            inverse: false,
                        };
                        q = reference::rope::rotate(head_dim, THETA, &q, &rotation);
                    }
                    let cache = wide(&got[1]);
                    let k = columns(&cache, 2 * kv, 0..kv);
                    let v = columns(&cache, 2 * kv, kv..2 * kv);
                    let (plain, all) = (&Options::CAUSAL, |_, _, _, _| 1.0);
                    let (out, _) =
                        reference::attention::forward(&shape, &q, &k, &v, position, plain, all);
                    case.assert_close("out", &got[0], &out, position + head_dim);
                },
            );
        }
    }
}

/// Norm of a row before a product.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Before {
    Nothing,
    Rms,
    Layer,
}

/// Operation on a product's result.
#[derive(Clone, Copy, Debug, PartialEq)]
enum After {
    Nothing,
    Residual,
    SwiGlu,
}

const EPS: f32 = 1e-5;

/// Operands of a product of one row: the row, the weight, a residual, and weight and bias of a
/// norm.
struct Row {
    n: usize,
    x: Vec<f32>,
    weight: Vec<f32>,
    residual: Vec<f32>,
    norm: [Vec<f32>; 2],
}

impl Row {
    fn new(k: usize, n: usize, after: After) -> Self {
        let columns = if after == After::SwiGlu { 2 * n } else { n };
        // Sums of about one.
        let scale = (k as f32).sqrt().recip();
        let weight = numbers(8, k * columns).iter().map(|x| x * scale).collect();
        let norm = [9, 10].map(|seed| numbers(seed, k));
        Self { n, x: numbers(7, k), weight, residual: numbers(11, n), norm }
    }

    /// In one operation and, without a norm, step by step.
    fn run(&self, case: Case, before: Before, after: After, wide_result: bool) -> Vec<Vec<f32>> {
        let (k, columns) = (self.x.len(), self.weight.len() / self.x.len());
        let (x, weight) = (case.upload(&self.x), case.upload(&self.weight));
        let norm = self.norm.each_ref().map(|norm| case.upload_f32(norm));
        let poisoned = |len| if wide_result { case.poisoned_f32(len) } else { case.poisoned(len) };
        let residual =
            if wide_result { case.upload_f32(&self.residual) } else { case.upload(&self.residual) };
        let (mut y, mut plain) = (poisoned(self.n), poisoned(columns));
        let matrix = Matrix::new(weight.view(), columns, k).t();
        let bias = (before == Before::Layer).then(|| norm[1].view());
        let operand = Norm { weight: norm[0].view(), bias, eps: EPS, adds_one: false };
        let product = RowProduct {
            norm: (before != Before::Nothing).then_some(operand),
            x: x.view(),
            weight: matrix,
            epilogue: match after {
                After::Nothing => RowEpilogue::None,
                After::Residual => RowEpilogue::Residual(residual.view()),
                After::SwiGlu => RowEpilogue::SwiGlu,
            },
        };
        let (device, precision) = (case.device, case.precision());
        let is_fused = device.row_product(precision, product, y.view_mut()).unwrap();
        assert_eq!(is_fused, !case.is_cpu, "{} multiplies a row", case.label());
        if before != Before::Nothing && is_fused {
            return vec![case.download(&y)];
        }
        let mut normed = case.poisoned(k);
        let mut stats = case.poisoned_f32(operand.stats_len(1));
        let mut left = x.view();
        if before != Before::Nothing {
            device.norm_forward(operand, left, normed.view_mut(), stats.view_mut()).unwrap();
            left = normed.view();
        }
        let left = Matrix::new(left, 1, k);
        let target = MatrixMut::new(plain.view_mut(), 1, columns);
        let epilogue = match after {
            After::Residual => Epilogue::Residual { bias: None, residual: residual.view() },
            _ => Epilogue::None,
        };
        device.product(precision, left, matrix, target, Write::Set, epilogue).unwrap();
        if after == After::SwiGlu {
            let mut active = poisoned(self.n);
            device.swiglu_forward(plain.view(), self.n, active.view_mut()).unwrap();
            plain = active;
        }
        let by_steps = case.download(&plain);
        if is_fused { vec![case.download(&y), by_steps] } else { vec![by_steps] }
    }

    /// The result in `f64`, with the roundings of the definition.
    fn oracle(&self, case: Case, before: Before, after: After, wide_result: bool) -> Vec<f64> {
        let round = |x: Vec<f64>| -> Vec<f64> {
            case.wide(&x.iter().map(|x| *x as f32).collect::<Vec<_>>())
        };
        let (x, weight) = (case.wide(&self.x), case.wide(&self.weight));
        let norm = self.norm.each_ref().map(|norm| wide(norm));
        let x = match before {
            Before::Nothing => x,
            Before::Rms => round(reference::norm_rms::forward(&x, &norm[0], EPS.into()).0),
            Before::Layer => {
                round(reference::norm_layer::forward(&x, &norm[0], &norm[1], EPS.into()).0)
            }
        };
        let dot = |row: &[f64]| row.iter().zip(&x).map(|(a, b)| a * b).sum::<f64>();
        let sums: Vec<f64> = weight.chunks(x.len()).map(dot).collect();
        let addend = if wide_result { wide(&self.residual) } else { case.wide(&self.residual) };
        match after {
            After::Nothing => sums,
            After::Residual => sums.iter().zip(addend).map(|(a, b)| a + b).collect(),
            After::SwiGlu => reference::swiglu::forward(&round(sums), self.n),
        }
    }
}

#[test]
fn products_of_one_row_match_the_oracle() {
    // Fewer columns than a block, one more than a block, and several; rows of one vector, of one
    // batch of loads and more, and of no whole number of warps.
    for (k, n) in [(8, 1), (264, 9), (2048, 40), (5632, 24)] {
        for before in [Before::Nothing, Before::Rms, Before::Layer] {
            for after in [After::Nothing, After::Residual, After::SwiGlu] {
                for wide_result in [false, true] {
                    // Activations of SwiGLU have the type of its input.
                    if wide_result && after == After::SwiGlu {
                        continue;
                    }
                    let row = Row::new(k, n, after);
                    on_every_device(
                        |case| row.run(case, before, after, wide_result),
                        |case, got| {
                            let what = format!("{k} {n} {before:?} {after:?}");
                            let expected = row.oracle(case, before, after, wide_result);
                            case.assert_close(&what, &got[0], &expected, k);
                            if let Some(by_steps) = got.get(1) {
                                assert_eq!(bits(&got[0]), bits(by_steps), "{what}");
                            }
                        },
                    );
                }
            }
        }
    }
}

#[test]
fn operands_of_other_layouts_are_refused() {
    on_every_device(
        |case| {
            let (x, weight) = (case.upload(&numbers(1, 64)), case.upload(&numbers(2, 64 * 8)));
            let mut y = case.poisoned(8);
            let device = case.device;
            let mut is_done = |x: View<'_>, weight: Matrix<'_>| {
                let epilogue = RowEpilogue::None;
                let product = RowProduct { norm: None, x, weight, epilogue };
                device.row_product(case.precision(), product, y.view_mut()).unwrap()
            };
            // A row per input, and rows that are not aligned.
            assert!(!is_done(x.view(), Matrix::new(weight.view(), 64, 8)));
            let odd = Matrix::strided(weight.view(), 8, 62, 63).t();
            assert!(!is_done(x.view().range(0..62), odd));
            vec![]
        },
        |_, _| (),
    );
}
