//! Attention: forward, backward and decoding, with grouped queries and dropout.

use super::{Case, cpu, on_every_device};
use crate::common::numbers;
use lockstep_tensor::attention::{Dropout, Heads, Options, Shape, forward, scratch_len};
use lockstep_tensor::device::open::accelerator_attention_bytes;
use lockstep_tensor::device::{Buffer, Dtype, HeadRows, Products};
use lockstep_tensor::dropout::DropoutMask;
use lockstep_tensor::gemm::Precision;
use lockstep_tensor::random::Key;
use lockstep_tensor::reference;

fn shape(tokens: usize, heads: usize, kv_heads: usize, head_dim: usize) -> Shape {
    Shape { sequences: 2, tokens, heads, kv_heads, head_dim }
}

/// One row, an odd head, several tiles of queries and keys, the heads of real models, and their
/// whole tiles, which a library may take.
fn shapes() -> [Shape; 7] {
    [
        shape(1, 2, 1, 8),
        shape(9, 3, 3, 6),
        shape(131, 4, 2, 16),
        shape(200, 2, 2, 64),
        shape(97, 4, 1, 128),
        shape(256, 2, 2, 64),
        shape(128, 4, 2, 128),
    ]
}

fn row_len(shape: Shape) -> usize {
    (shape.heads + 2 * shape.kv_heads) * shape.head_dim
}

/// Queries, keys and values inside rows of all of them.
fn rows(qkv: &Buffer, shape: Shape) -> [HeadRows<'_>; 3] {
    let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    let at = |start: usize| HeadRows {
        data: qkv.view().range(start..qkv.len()),
        stride: row_len(shape),
    };
    [at(0), at(q), at(q + kv)]
}

/// Dense queries, keys and values of the rows, for the oracle.
fn split(shape: Shape, qkv: &[f64]) -> [Vec<f64>; 3] {
    let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    let columns = [0..q, q..q + kv, q + kv..q + 2 * kv];
    columns.map(|at| qkv.chunks(row_len(shape)).flat_map(|row| &row[at.clone()]).copied().collect())
}

fn dropout(shape: &Shape) -> Dropout {
    let heads = Heads { num: shape.heads + 3, first: 2, sequences: shape.sequences };
    Dropout { key: Key::new(7, "attention").with(3), rate: 0.25, first_sample: 5, heads }
}

/// Factor of a probability by its definition.
fn keep(shape: Shape, on: bool) -> impl Fn(usize, usize, usize, usize) -> f64 {
    let dropout = dropout(&shape);
    let mask = DropoutMask { key: dropout.key, rate: dropout.rate };
    move |sequence, head, query, key| {
        let (tokens, sample) = (shape.tokens as u64, dropout.first_sample + sequence as u64);
        let head = sample * dropout.heads.num as u64 + (dropout.heads.first + head) as u64;
        let kept = mask.keeps((head * tokens + query as u64) * tokens + key as u64);
        if !on || kept { if on { f64::from(mask.scale()) } else { 1.0 } } else { 0.0 }
    }
}

/// Output, log-sum-exp and, given the output's gradient, the gradients.
fn run(case: Case, shape: Shape, qkv: &[f32], dout: &[f32], on: bool) -> Vec<Vec<f32>> {
    let (num_rows, width) = (shape.sequences * shape.tokens, shape.heads * shape.head_dim);
    let (qkv, dout) = (case.upload(qkv), case.upload(dout));
    let (mut out, mut dqkv) = (case.poisoned(num_rows * width), case.poisoned(qkv.len()));
    let mut lse = case.poisoned_f32(num_rows * shape.heads);
    let (device, precision) = (case.device, case.precision());
    let mut scratch = case.poisoned_f32(device.attention_scratch_len(precision, shape));
    let mask = dropout(&shape);
    let options = &Options { dropout: on.then_some(&mask), ..Options::CAUSAL };
    device
        .attention_forward(
            precision,
            shape,
            rows(&qkv, shape),
            0,
            options,
            out.view_mut(),
            lse.view_mut(),
            scratch.view_mut(),
        )
        .unwrap();
    device
        .attention_backward(
            precision,
            shape,
            rows(&qkv, shape),
            out.view(),
            lse.view(),
            dout.view(),
            options,
            dqkv.view_mut(),
            scratch.view_mut(),
        )
        .unwrap();
    vec![case.download(&out), case.download(&lse), case.download(&dqkv)]
}

#[test]
fn forward_and_backward_match_the_oracle() {
    for (i, shape) in shapes().into_iter().enumerate() {
        for on in [false, true] {
            let (num_rows, width) = (shape.sequences * shape.tokens, shape.heads * shape.head_dim);
            let qkv = numbers(1, num_rows * row_len(shape));
            let dout = numbers(2, num_rows * width);
            // Dropout has one kernel with the rest: two shapes are enough.
            if on && ![1, 3].contains(&i) {
                continue;
            }
            on_every_device(
                |case| run(case, shape, &qkv, &dout, on),
                |case, got| {
                    let ([q, k, v], plain) = (split(shape, &case.wide(&qkv)), &Options::CAUSAL);
                    let (out, lse) = reference::attention::forward(
                        &shape,
                        &q,
                        &k,
                        &v,
                        0,
                        plain,
                        keep(shape, on),
                    );
                    case.assert_close("out", &got[0], &out, shape.tokens);
                    case.assert_close("lse", &got[1], &lse, shape.tokens);
                    let dout = case.wide(&dout);
                    let expected = reference::attention::backward(
                        &shape,
                        &q,
                        &k,
                        &v,
                        &dout,
                        plain,
                        keep(shape, on),
                    );
                    let wide: Vec<f64> = got[2].iter().map(|x| f64::from(*x)).collect();
                    for (name, (got, expected)) in
                        ["dq", "dk", "dv"].iter().zip(split(shape, &wide).iter().zip(&expected))
                    {
                        let got: Vec<f32> = got.iter().map(|x| *x as f32).collect();
                        let terms = shape.tokens * shape.heads / shape.kv_heads * shape.head_dim;
                        case.assert_close(name, &got, expected, terms);
                    }
                },
            );
        }
    }
}

#[test]
fn stored_plans_give_the_bits_of_the_run_that_chose_them() {
    let Ok(first) = lockstep_tensor::cuda::open(0) else { return };
    let shape = shape(256, 4, 2, 64);
    let qkv = numbers(7, 512 * row_len(shape));
    let dout = numbers(8, 512 * shape.heads * shape.head_dim);
    let run_on = |device: lockstep_tensor::cuda::Cuda| {
        // A case has a device for as long as the process runs.
        let device: &'static dyn lockstep_tensor::device::Device = Box::leak(Box::new(device));
        let case = Case { device, dtype: Dtype::Bf16, is_cpu: false };
        let got = run(case, shape, &qkv, &dout, false);
        let bits: Vec<_> = got.iter().map(|x| super::bits(x)).collect();
        (bits, device.product_algorithms().unwrap())
    };
    let open_with = |list: &str| {
        let device = lockstep_tensor::cuda::open(0).unwrap();
        device.set_product_algorithms(list).map(|()| device)
    };
    let chosen = run_on(first);
    assert_eq!(run_on(open_with(&chosen.1).unwrap()), chosen);
    let Some(start) = chosen.1.find("cuDNN ") else { return };
    let lines: Vec<&str> = chosen.1[start..].lines().collect();
    assert_eq!(lines.len(), 3, "the library and two plans: {lines:?}");
    // A run that began without the library continues without it.
    let (_, without) = run_on(open_with(&chosen.1[..start]).unwrap());
    assert_eq!(without, chosen.1[..start]);
    let other = chosen.1.replace("cuDNN ", "cuDNN 8");
    let error = open_with(&other).unwrap_err().to_string();
    assert!(error.contains("resume with that library"), "{error}");
    let damaged = format!("{}attention\n", chosen.1);
    let error = open_with(&damaged).unwrap_err().to_string();
    assert!(error.ends_with("line 4 of the list of plans is damaged"), "{error}");
}

#[test]
fn the_workspace_of_backward_is_bounded() {
    let bytes = |precision, sequences, tokens, heads, kv_heads, head_dim| {
        let shape = Shape { sequences, tokens, heads, kv_heads, head_dim };
        accelerator_attention_bytes(precision, shape)
    };
    let bf16 = Precision::Bf16;
    // Half of the sequences, all of them, half of the heads of one, none.
    assert_eq!(bytes(bf16, 64, 1024, 12, 12, 64), (768 << 20) + 256);
    assert_eq!(bytes(bf16, 8, 2048, 16, 16, 128), (1 << 30) + 256);
    assert_eq!(bytes(bf16, 1, 4096, 64, 64, 128), (1 << 30) + 256);
    assert_eq!(bytes(bf16, 1, 32_768, 16, 16, 128), 0);
    // Gradients by query head besides.
    assert_eq!(bytes(Precision::F16, 2, 1024, 16, 4, 128), (64 << 20) + (16 << 20) + 256);
    // Our own kernels.
    assert_eq!(bytes(Precision::F32, 8, 2048, 16, 16, 128), 0);
    assert_eq!(bytes(bf16, 8, 2048, 16, 16, 96), 0);
    assert_eq!(bytes(bf16, 8, 2000, 16, 16, 128), 0);
}

#[test]
fn decoding_matches_the_oracle() {
    // One token, a few, and more than a kernel for single queries takes.
    for (tokens, first_query) in [(1, 40), (3, 70), (12, 20)] {
        let shape = shape(tokens, 4, 2, 32);
        let (width, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        let (num_rows, num_keys) = (2 * tokens, 2 * (first_query + tokens));
        let q = numbers(3, num_rows * width);
        let cache = numbers(4, num_keys * 2 * kv);
        on_every_device(
            |case| {
                let (q, cache) = (case.upload(&q), case.upload(&cache));
                let (mut out, mut lse) =
                    (case.poisoned(num_rows * width), case.poisoned_f32(num_rows * shape.heads));
                let (device, precision) = (case.device, case.precision());
                let len = device.attention_scratch_len(precision, shape);
                let mut scratch = case.poisoned_f32(len);
                let q = HeadRows { data: q.view(), stride: width };
                let k = HeadRows { data: cache.view(), stride: 2 * kv };
                let v = HeadRows { data: cache.view().range(kv..cache.len()), stride: 2 * kv };
                let (first, scratch) = (first_query, scratch.view_mut());
                device
                    .attention_forward(
                        precision,
                        shape,
                        [q, k, v],
                        first,
                        &Options::CAUSAL,
                        out.view_mut(),
                        lse.view_mut(),
                        scratch,
                    )
                    .unwrap();
                vec![case.download(&out), case.download(&lse)]
            },
            |case, got| {
                let (q, cache) = (case.wide(&q), case.wide(&cache));
                let columns = |at: std::ops::Range<usize>| -> Vec<f64> {
                    cache.chunks(2 * kv).flat_map(|row| &row[at.clone()]).copied().collect()
                };
                let (k, v) = (columns(0..kv), columns(kv..2 * kv));
                let (plain, all) = (&Options::CAUSAL, |_, _, _, _| 1.0);
                let (out, lse) =
                    reference::attention::forward(&shape, &q, &k, &v, first_query, plain, all);
                case.assert_close("out", &got[0], &out, first_query);
                case.assert_close("lse", &got[1], &lse, first_query);
            },
        );
    }
}

#[test]
fn the_cpu_device_has_the_bits_of_its_kernel() {
    let shape = shape(70, 4, 2, 16);
    let (num_rows, width) = (140, 64);
    let qkv = numbers(5, num_rows * row_len(shape));
    let case = Case { device: cpu(), dtype: Dtype::F32, is_cpu: true };
    let got = run(case, shape, &qkv, &numbers(6, num_rows * width), false);
    let (mut out, mut lse) = (vec![0.0; num_rows * width], vec![0.0; num_rows * shape.heads]);
    let mut scratch = vec![0.0; scratch_len(shape)];
    let at = |start: usize| lockstep_tensor::attention::Rows {
        data: &qkv[start..],
        stride: row_len(shape),
    };
    let (cpu, [q, k, v]) = (cpu(), [at(0), at(64), at(96)]);
    forward(cpu, shape, q, k, v, 0, &Options::CAUSAL, &mut out, &mut lse, &mut scratch);
    assert_eq!(super::bits(&got[0]), super::bits(&out));
    assert_eq!(super::bits(&got[1]), super::bits(&lse));
    assert_eq!(scratch.len(), cpu.attention_scratch_len(case.precision(), shape));
}
