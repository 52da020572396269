//! Norms, positions, activations, biases, embeddings and dropout.

use super::{Case, bits, cpu, none, on_every_device};
use crate::common::{ids, numbers, wide};
use lockstep_tensor::device::{Activation, Dtype, Norm};
use lockstep_tensor::dropout::DropoutMask;
use lockstep_tensor::random::Key;
use lockstep_tensor::rope::{Rotation, Table};
use lockstep_tensor::{embedding, reference};

const EPS: f32 = 1e-5;
/// Widths of a partial vector, whole vectors, and rows that a warp, a block, neither keeps.
const WIDTHS: [usize; 8] = [1, 7, 64, 200, 768, 1030, 2056, 8200];

/// Sums and outputs of a norm, forward and backward.
fn run_norm(case: Case, is_layer: bool, x: &[f32], width: usize) -> Vec<Vec<f32>> {
    let (rows, device) = (x.len() / width, case.device);
    let (x, residual) = (case.upload(x), case.upload(&numbers(2, x.len())));
    let (weight, bias) = (case.upload_f32(&numbers(3, width)), case.upload_f32(&numbers(4, width)));
    let norm = Norm {
        weight: weight.view(),
        bias: is_layer.then(|| bias.view()),
        eps: EPS,
        adds_one: false,
    };
    let mut stats = case.poisoned_f32(norm.stats_len(rows));
    let [mut y, mut sum, mut added, mut recomputed] = [(); 4].map(|()| case.poisoned(rows * width));
    device.norm_forward(norm, x.view(), y.view_mut(), stats.view_mut()).unwrap();
    device.normalize(norm, x.view(), stats.view(), recomputed.view_mut()).unwrap();
    let dy = case.upload(&numbers(5, rows * width));
    let mut dx = case.upload(&vec![0.5; rows * width]);
    device.norm_backward(norm, x.view(), stats.view(), dy.view(), dx.view_mut()).unwrap();
    let mut dweight = case.upload_f32(&vec![0.25; width]);
    let mut dbias = case.upload_f32(&vec![0.25; if is_layer { width } else { 0 }]);
    let x = x.view();
    // Some of the rows, then the others.
    for part in [0..rows / 2, rows / 2..rows].into_iter().filter(|part| !part.is_empty()) {
        let elements = part.start * width..part.end * width;
        let (x, dy) = (x.range(elements.clone()), dy.view().range(elements));
        let of_part = stats.view().range(part.start..stats.len() - rows + part.end);
        device
            .norm_weight_backward(norm, x, of_part, dy, dweight.view_mut(), dbias.view_mut())
            .unwrap();
    }
    let [mut all_dx, mut all_dweight, mut all_dbias] = [
        case.upload(&vec![0.5; rows * width]),
        case.upload_f32(&vec![0.25; width]),
        case.upload_f32(&vec![0.25; dbias.len()]),
    ];
    let (all, weights) = (all_dx.view_mut(), all_dweight.view_mut());
    let (stats_view, biases) = (stats.view(), all_dbias.view_mut());
    device.norm_and_weight_backward(norm, x, stats_view, dy.view(), all, weights, biases).unwrap();
    let saved = case.download(&stats);
    let (sum_view, added_view) = (sum.view_mut(), added.view_mut());
    device
        .add_norm_forward(norm, x, residual.view(), sum_view, added_view, stats.view_mut())
        .unwrap();
    let outputs =
        [&y, &recomputed, &dx, &sum, &added, &dweight, &dbias, &all_dx, &all_dweight, &all_dbias];
    [vec![saved], outputs.map(|buffer| case.download(buffer)).to_vec()].concat()
}

#[test]
fn norms_match_the_oracle() {
    for (is_layer, rows) in [(false, 3), (true, 3), (false, 300), (true, 261)] {
        for width in if rows > 3 { &WIDTHS[1..3] } else { &WIDTHS[..] } {
            let width = *width;
            let x = numbers(1, rows * width);
            on_every_device(
                |case| run_norm(case, is_layer, &x, width),
                |case, got| check_norm(case, is_layer, &x, width, got),
            );
        }
    }
}

fn check_norm(case: Case, is_layer: bool, x: &[f32], width: usize, got: &[Vec<f32>]) {
    let rows = x.len() / width;
    let (weight, bias) = (wide(&numbers(3, width)), wide(&numbers(4, width)));
    let (input, dy) = (case.wide(x), case.wide(&numbers(5, x.len())));
    let forward = |x: &[f64]| {
        if is_layer {
            let (y, mean, rstd) = reference::norm_layer::forward(x, &weight, &bias, EPS.into());
            (y, [mean, rstd].concat())
        } else {
            reference::norm_rms::forward(x, &weight, EPS.into())
        }
    };
    let (dx, dweight, dbias) = if is_layer {
        reference::norm_layer::backward(&input, &weight, EPS.into(), &dy)
    } else {
        let (dx, dweight) = reference::norm_rms::backward(&input, &weight, EPS.into(), &dy);
        (dx, dweight, Vec::new())
    };
    let (y, stats) = forward(&input);
    let exact = Case { dtype: Dtype::F32, ..case };
    // A row of one column has a variance of zero: LayerNorm divides by the root of epsilon.
    let terms = if is_layer && width == 1 { 1 << 20 } else { width };
    exact.assert_close("stats", &got[0], &stats, width);
    case.assert_close("y", &got[1], &y, width);
    assert_eq!(bits(&got[1]), bits(&got[2]), "{}: recomputed", case.label());
    let added = |x: &Vec<f64>, start: f64| x.iter().map(|x| x + start).collect::<Vec<_>>();
    for dx_of in [3, 8] {
        case.assert_close("dx", &got[dx_of], &added(&dx, 0.5), terms);
    }
    let addends = case.rounded(x).into_iter().zip(case.rounded(&numbers(2, x.len())));
    let sum: Vec<f32> = addends.map(|(x, residual)| x + residual).collect();
    assert_eq!(bits(&got[4]), bits(&case.rounded(&sum)), "{}: sum", case.label());
    case.assert_close("y of the sum", &got[5], &forward(&case.wide(&sum)).0, width);
    for (dweight_of, dbias_of) in [(6, 7), (9, 10)] {
        exact.assert_close("dweight", &got[dweight_of], &added(&dweight, 0.25), rows.max(terms));
        exact.assert_close("dbias", &got[dbias_of], &added(&dbias, 0.25), rows);
    }
}

#[test]
fn rotations_match_the_oracle() {
    // Heads and rows with and without whole groups of eight.
    for (head_dim, gap, inverse) in [(6, 5, false), (64, 5, true), (64, 8, false)] {
        let table = Table::new(head_dim, 12, 10_000.0);
        let rotation = Rotation {
            row_stride: 6 * head_dim + gap,
            num_heads: 5,
            head_stride: head_dim,
            tokens_per_sequence: 7,
            first_position: 5,
            inverse,
        };
        let x = numbers(1, 14 * rotation.row_stride);
        on_every_device(
            |case| {
                let (angles, mut rows) = (case.upload_f32(&table.angles()), case.upload(&x));
                case.device.rotate(angles.view(), head_dim, rows.view_mut(), &rotation).unwrap();
                vec![case.download(&rows)]
            },
            |case, got| {
                let rows = case.wide(&x);
                let expected = reference::rope::rotate(head_dim, 10_000.0, &rows, &rotation);
                case.assert_close("rows", &got[0], &expected, 1);
                if case.dtype == Dtype::F32 {
                    let mut rows = x.clone();
                    lockstep_tensor::rope::rotate(cpu(), &table, &mut rows, &rotation);
                    assert_eq!(bits(&got[0]), bits(&rows), "{}: bits of the CPU", case.label());
                }
            },
        );
    }
}

#[test]
fn activations_match_the_oracle() {
    let n = 1003;
    let (x, dy) = (numbers(1, n), numbers(2, n));
    let x: Vec<f32> = x.iter().map(|x| 4.0 * x).collect();
    on_every_device(
        |case| {
            let (device, input, dy) = (case.device, case.upload(&x), case.upload(&dy));
            let mut outputs = Vec::new();
            for function in [Activation::Gelu, Activation::Relu] {
                let [mut y, mut dx, mut both_y, mut both_dx] = [(); 4].map(|()| case.poisoned(n));
                let (input, dy) = (input.view(), dy.view());
                device.activate(function, input, y.view_mut()).unwrap();
                device.activate_backward(function, input, dy, dx.view_mut()).unwrap();
                let (y_view, dx_view) = (both_y.view_mut(), both_dx.view_mut());
                device.activate_and_backward(function, input, dy, y_view, dx_view).unwrap();
                outputs.extend([&y, &dx, &both_y, &both_dx].map(|buffer| case.download(buffer)));
            }
            outputs
        },
        |case, got| {
            let (x, dy) = (case.wide(&x), case.wide(&dy));
            case.assert_close("gelu", &got[0], &reference::gelu::forward(&x), 1);
            case.assert_close("dgelu", &got[1], &reference::gelu::backward(&x, &dy), 1);
            case.assert_close("relu", &got[4], &reference::relu::forward(&x), 1);
            case.assert_close("drelu", &got[5], &reference::relu::backward(&x, &dy), 1);
            for (i, both) in [(0, 2), (1, 3), (4, 6), (5, 7)] {
                assert_eq!(bits(&got[i]), bits(&got[both]), "{}: in one pass", case.label());
            }
        },
    );
}

#[test]
fn swiglu_matches_the_oracle() {
    for ffn in [1, 13, 64, 300] {
        let rows = 5;
        let (gate_up, dact) = (numbers(1, 2 * rows * ffn), numbers(2, rows * ffn));
        on_every_device(
            |case| {
                let (device, input, dact) =
                    (case.device, case.upload(&gate_up), case.upload(&dact));
                let [mut act, mut recomputed] = [(); 2].map(|()| case.poisoned(rows * ffn));
                let [mut dgate_up, mut alone] = [(); 2].map(|()| case.poisoned(2 * rows * ffn));
                device.swiglu_forward(input.view(), ffn, act.view_mut()).unwrap();
                let (dgate, rebuilt) = (dgate_up.view_mut(), recomputed.view_mut());
                device.swiglu_backward(input.view(), ffn, dact.view(), dgate, rebuilt).unwrap();
                let (input, dact) = (input.view(), dact.view());
                device.swiglu_backward(input, ffn, dact, alone.view_mut(), none()).unwrap();
                [&act, &recomputed, &dgate_up, &alone].map(|buffer| case.download(buffer)).to_vec()
            },
            |case, got| {
                let (gate_up, dact) = (case.wide(&gate_up), case.wide(&dact));
                case.assert_close("act", &got[0], &reference::swiglu::forward(&gate_up, ffn), 1);
                assert_eq!(bits(&got[0]), bits(&got[1]), "{}: recomputed", case.label());
                assert_eq!(bits(&got[2]), bits(&got[3]), "{}: gradient alone", case.label());
                let expected = reference::swiglu::backward(&gate_up, ffn, &dact);
                case.assert_close("dgate_up", &got[2], &expected, 1);
            },
        );
    }
}

#[test]
fn biases_and_column_sums_match_the_oracle() {
    for (rows, width) in [(1, 1), (5, 33), (700, 40), (261, 520)] {
        let (x, bias) = (numbers(1, rows * width), numbers(2, width));
        on_every_device(
            |case| {
                let (mut y, bias) = (case.upload(&x), case.upload_f32(&bias));
                let mut sums = case.upload_f32(&vec![0.25; width]);
                case.device.column_sums(y.view(), sums.view_mut()).unwrap();
                case.device.bias_add(y.view_mut(), bias.view()).unwrap();
                vec![case.download(&y), case.download(&sums)]
            },
            |case, got| {
                let x = case.wide(&x);
                case.assert_close("y", &got[0], &reference::bias::add(&x, &wide(&bias)), 1);
                let sums = reference::bias::backward(&x, width);
                let sums: Vec<f64> = sums.iter().map(|x| x + 0.25).collect();
                let exact = Case { dtype: Dtype::F32, ..case };
                exact.assert_close("column sums", &got[1], &sums, rows);
            },
        );
    }
}

#[test]
fn embeddings_match_the_oracle_and_add_tokens_in_order() {
    // Rows of no, few and many tokens, in a shard that starts at row 2; pairs of columns or not.
    for (tokens, vocab, width) in [(2100, 37, 131), (20_000, 37, 16), (700, 500, 24)] {
        check_embeddings(tokens, vocab, width);
    }
}

fn check_embeddings(tokens: usize, vocab: usize, width: usize) {
    let first_row = 2;
    let mut ids = ids(1, tokens, vocab + 4);
    // More tokens than a list of a block holds.
    ids[tokens / 4..].iter_mut().step_by(2).for_each(|id| *id = 5);
    let table = numbers(2, vocab * width);
    let dout = numbers(3, tokens * width);
    let start = numbers(4, vocab * width);
    on_every_device(
        |case| {
            let (ids, dout) = (case.upload_ids(&ids), case.upload(&dout));
            let (table, f32_table) = (case.upload(&table), case.upload_f32(&table));
            let [mut out, mut of_f32] = [(); 2].map(|()| case.poisoned(tokens * width));
            let (device, mut dtable) = (case.device, case.upload_f32(&start));
            for (table, out) in [(&table, &mut out), (&f32_table, &mut of_f32)] {
                let (view, target) = (table.view(), out.view_mut());
                device.embedding_forward(ids.view(), view, first_row, width, target).unwrap();
            }
            let (dout, target) = (dout.view(), dtable.view_mut());
            device.embedding_backward(ids.view(), dout, first_row, width, target).unwrap();
            [&out, &dtable, &of_f32].map(|buffer| case.download(buffer)).to_vec()
        },
        |case, got| {
            let mut out = vec![0.0; tokens * width];
            let table = case.rounded(&table);
            embedding::forward_part(cpu(), &ids, &table, first_row, width, &mut out);
            assert_eq!(bits(&got[0]), bits(&out), "{}: rows", case.label());
            assert_eq!(bits(&got[2]), bits(&out), "{}: rows of an f32 table", case.label());
            let (mut dtable, dout) = (start.clone(), case.rounded(&dout));
            embedding::backward_part(cpu(), &ids, &dout, first_row, width, &mut dtable);
            assert_eq!(bits(&got[1]), bits(&dtable), "{}: gradients", case.label());
        },
    );
}

#[test]
fn positions_match_the_oracle() {
    let (sequences, tokens, width, positions) = (3, 5, 19, 9);
    let (table, x) = (numbers(1, positions * width), numbers(2, sequences * tokens * width));
    let first = 2;
    on_every_device(
        |case| {
            let [mut rows, mut of_f32, dx] = [(); 3].map(|()| case.upload(&x));
            let mut dtable = case.upload_f32(&vec![0.5; positions * width]);
            let (device, f32_table) = (case.device, case.upload_f32(&table));
            let table = case.upload(&table);
            for (table, rows) in [(&table, &mut rows), (&f32_table, &mut of_f32)] {
                device
                    .add_positions(table.view(), (tokens, None), first, width, rows.view_mut())
                    .unwrap();
            }
            device.positions_backward(dx.view(), (tokens, None), width, dtable.view_mut()).unwrap();
            [&rows, &dtable, &of_f32].map(|buffer| case.download(buffer)).to_vec()
        },
        |case, got| {
            let x = case.wide(&x);
            for (i, table) in [(0, case.wide(&table)), (2, wide(&table))] {
                let rows =
                    reference::embedding::add_positions(&table, (tokens, None), first, width, &x);
                case.assert_close("rows", &got[i], &rows, 1);
            }
            let dtable =
                reference::embedding::positions_backward(&x, (tokens, None), width, positions);
            let dtable: Vec<f64> = dtable.iter().map(|x| x + 0.5).collect();
            Case { dtype: Dtype::F32, ..case }.assert_close("dtable", &got[1], &dtable, sequences);
        },
    );
}

#[test]
fn dropout_keeps_the_elements_that_the_cpu_keeps() {
    let x = numbers(1, 3001);
    for (rate, first_element) in [(0.1, 0), (0.5, 6), (0.3, 1 << 33 | 3)] {
        let mask = DropoutMask { key: Key::new(3, "dropout").with(9), rate };
        on_every_device(
            |case| {
                let mut y = case.upload(&x);
                case.device.dropout(&mask, first_element, y.view_mut()).unwrap();
                vec![case.download(&y)]
            },
            |case, got| {
                let mut expected = case.rounded(&x);
                lockstep_tensor::dropout::apply(cpu(), &mask, first_element, &mut expected);
                assert_eq!(bits(&got[0]), bits(&case.rounded(&expected)), "{}", case.label());
            },
        );
    }
}
