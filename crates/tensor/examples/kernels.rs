//! Times every kernel of a training step, beside the peak rate of the machine.
//!
//! `cargo run --release -p lockstep-tensor --example kernels -- [SECONDS] [PRECISION] [PART OF A
//! NAME]`, the precision of products being `f32`, `bf16` or `f16`.
//!
//! The shapes are those of `lockstep bench train`: six layers of width 384, micro-batches of 8 x
//! 256 tokens. The output is the fastest of many short runs on one thread, which is robust on a
//! shared machine; other memory is read between runs, so that operands are as cold as in a training
//! step.

use lockstep_tensor::attention::{self, Rows, Shape};
use lockstep_tensor::gemm::{Mat, MatMut, Precision, Write, product};
use lockstep_tensor::{Cpu, Isa, cross_entropy, norm_rms, peak, reduce, rope, swiglu};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Tokens of a micro-batch, of a sequence, width, feed-forward width, vocabulary.
const T: usize = 2048;
const L: usize = 256;
const C: usize = 384;
const F: usize = 1024;
const V: usize = 256;
/// Micro-batches of a step, times layers.
const CALLS: usize = 2 * 6;
/// Elements that are read between two runs: four times a second-level cache.
const OTHER: usize = 2 << 20;

/// One kernel on one shape.
struct Row {
    name: String,
    /// Floating-point operations of a product; zero where memory is the limit.
    flops: usize,
    /// Elements read and written at least.
    elements: usize,
    calls_per_step: usize,
    run: Box<dyn FnMut(&Cpu)>,
    best: Duration,
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments.next().map_or(10.0, |s| s.parse().expect("a number of seconds"));
    let precision = match arguments.next().as_deref() {
        None | Some("f32") => Precision::F32,
        Some("bf16") => Precision::Bf16,
        Some("f16") => Precision::F16,
        Some(other) => panic!("{other} is not f32, bf16 or f16"),
    };
    let part = arguments.next().unwrap_or_default();
    let cpu = Cpu::single(Isa::detect());
    let mut rows: Vec<Row> =
        products(precision).into_iter().chain(attentions(precision)).chain(passes()).collect();
    rows.retain(|row| row.name.contains(&part));

    let other = numbers(OTHER);
    let mut peak_flops = 0.0f64;
    let start = now();
    while start.elapsed().as_secs_f64() < seconds {
        for _ in 0..4 {
            let start = now();
            let flops = peak::fma_burst(&cpu, 20_000);
            peak_flops = peak_flops.max(flops / start.elapsed().as_secs_f64());
        }
        for row in &mut rows {
            black_box(other.iter().step_by(16).sum::<f32>());
            let start = now();
            (row.run)(&cpu);
            row.best = row.best.min(start.elapsed());
        }
    }
    print(&rows, peak_flops);
}

#[expect(clippy::print_stdout, reason = "the result")]
fn print(rows: &[Row], peak_flops: f64) {
    println!("at best {:.1} GFLOP/s", peak_flops / 1e9);
    let mut total = 0.0;
    for row in rows {
        let best = row.best.as_secs_f64();
        let step_ms = best * 1e3 * row.calls_per_step as f64;
        total += step_ms;
        let speed = if row.flops > 0 {
            let speed = row.flops as f64 / best;
            format!("{:6.1} GFLOP/s, {:4.1} %", speed / 1e9, 100.0 * speed / peak_flops)
        } else {
            format!("{:6.1} GB/s", 4.0 * row.elements as f64 / best / 1e9)
        };
        let (name, calls) = (&row.name, row.calls_per_step);
        println!("{name:18} {:8.3} ms x {calls:2} = {step_ms:7.1} ms  {speed}", best * 1e3);
    }
    println!("together {total:.0} ms of a step");
}

#[expect(
    clippy::disallowed_methods,
    reason = "this crate knows no platform; nothing depends on it"
)]
fn now() -> Instant {
    Instant::now()
}

/// Numbers between -1/2 and 1/2.
fn numbers(len: usize) -> Vec<f32> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 16_777_216.0 - 0.5
    };
    (0..len).map(|_| next()).collect()
}

fn row(name: &str, run: impl FnMut(&Cpu) + 'static) -> Row {
    let (name, run) = (name.to_owned(), Box::new(run));
    Row { name, flops: 0, elements: 0, calls_per_step: CALLS, run, best: Duration::MAX }
}

/// The three products of every linear layer.
fn products(precision: Precision) -> Vec<Row> {
    let layers = [("qkv", C, 3 * C), ("out", C, C), ("up", C, 2 * F), ("down", F, C)];
    let mut rows = Vec::new();
    for (layer, i, o) in layers {
        let flops = 2 * T * i * o;
        let mut add = |what: &str, run: Box<dyn FnMut(&Cpu)>| {
            let name = format!("{layer} {what}");
            rows.push(Row { flops, ..row(&name, run) });
        };
        let (x, w, mut y) = (numbers(T * i), numbers(i * o), numbers(T * o));
        add(
            "forward",
            Box::new(move |cpu| {
                let (x, w) = (Mat::new(&x, T, i), Mat::new(&w, o, i).t());
                product(cpu, precision, x, w, MatMut::new(&mut y, T, o), Write::Set, None);
            }),
        );
        let (mut dx, w, dy) = (numbers(T * i), numbers(i * o), numbers(T * o));
        add(
            "input",
            Box::new(move |cpu| {
                let (dy, w) = (Mat::new(&dy, T, o), Mat::new(&w, o, i));
                product(cpu, precision, dy, w, MatMut::new(&mut dx, T, i), Write::Set, None);
            }),
        );
        let (x, mut dw, dy) = (numbers(T * i), numbers(i * o), numbers(T * o));
        add(
            "weight",
            Box::new(move |cpu| {
                let (dy, x) = (Mat::new(&dy, T, o).t(), Mat::new(&x, T, i));
                product(cpu, precision, dy, x, MatMut::new(&mut dw, o, i), Write::Add, None);
            }),
        );
    }
    rows
}

fn attentions(precision: Precision) -> [Row; 2] {
    let shape = Shape { sequences: T / L, tokens: L, heads: 6, kv_heads: 6, head_dim: C / 6 };
    let flops = 2 * T * (shape.tokens + 1) / 2 * C;
    let heads = |qkv: &'static [f32]| {
        [0, C, 2 * C].map(|start| Rows { data: &qkv[start..], stride: 3 * C })
    };
    let causal = &attention::Options::CAUSAL;
    let [q, k, v] = heads(numbers(T * 3 * C).leak());
    let (mut out, mut lse) = (numbers(T * C), numbers(T * shape.heads));
    let mut scratch = numbers(attention::scratch_len_in(precision, shape));
    let forward = row(&format!("attention fwd {precision}"), move |cpu| {
        let (out, lse) = (&mut out, &mut lse);
        let scratch = &mut scratch;
        attention::forward_in(cpu, precision, shape, q, k, v, 0, causal, out, lse, scratch);
    });
    let (out, dout, mut dqkv) = (numbers(T * C), numbers(T * C), numbers(T * 3 * C));
    let lse: Vec<f32> = numbers(T * shape.heads).iter().map(|x| x + 8.0).collect();
    let mut scratch = numbers(attention::scratch_len_in(precision, shape));
    let backward = row(&format!("attention bwd {precision}"), move |cpu| {
        let (dqkv, scratch) = (&mut dqkv, &mut scratch);
        attention::backward_in(
            cpu, precision, shape, q, k, v, &out, &lse, &dout, causal, dqkv, scratch,
        );
    });
    [Row { flops: 2 * flops, ..forward }, Row { flops: 5 * flops, ..backward }]
}

/// Memory-bound kernels.
fn passes() -> Vec<Row> {
    let (gate_up, mut act) = (numbers(T * 2 * F), numbers(T * F));
    let swiglu_forward = row("swiglu forward", move |cpu| {
        swiglu::forward(cpu, &gate_up, F, &mut act);
    });
    let (gate_up, dact) = (numbers(T * 2 * F), numbers(T * F));
    let (mut dgate_up, mut act) = (numbers(T * 2 * F), numbers(T * F));
    let swiglu_backward = row("swiglu backward", move |cpu| {
        swiglu::backward(cpu, &gate_up, F, &dact, &mut dgate_up, &mut act);
    });
    let (x, weight, mut y, mut rstd) = (numbers(T * C), numbers(C), numbers(T * C), numbers(T));
    let norm_forward = row("norm forward", move |cpu| {
        norm_rms::forward(cpu, &x, &weight, 1e-5, &mut y, &mut rstd);
    });
    let (x, weight, dy, rstd) = (numbers(T * C), numbers(C), numbers(T * C), numbers(T));
    let (mut dx, mut dweight) = (numbers(T * C), numbers(C));
    let norm_backward = row("norm backward", move |cpu| {
        norm_rms::backward(cpu, &x, &weight, &rstd, &dy, &mut dx, &mut dweight);
    });
    let (x, mut sum) = (numbers(T * C), numbers(T * C));
    let residual = row("residual", move |cpu| reduce::add_assign(cpu, &mut sum, &x));
    let (table, mut qkv) = (rope::Table::new(C / 6, L, 1e4), numbers(T * 3 * C));
    let rotation = rope::Rotation {
        row_stride: 3 * C,
        num_heads: 12,
        head_stride: C / 6,
        tokens_per_sequence: L,
        first_position: 0,
        inverse: false,
    };
    let rope = row("rope", move |cpu| rope::rotate(cpu, &table, &mut qkv, &rotation));
    let (mut logits, mut losses) = (numbers(T * V), numbers(T));
    let targets: Vec<u32> = (0..T).map(|t| (t % V) as u32).collect();
    let loss = row("cross-entropy", move |cpu| {
        cross_entropy::forward_backward(cpu, &mut logits, V, &targets, 1024, &mut losses);
    });
    vec![
        Row { elements: 3 * T * F, ..swiglu_forward },
        Row { elements: 6 * T * F, ..swiglu_backward },
        Row { elements: 2 * T * C, calls_per_step: 2 * CALLS, ..norm_forward },
        Row { elements: 4 * T * C, calls_per_step: 2 * CALLS, ..norm_backward },
        Row { elements: 3 * T * C, calls_per_step: 2 * CALLS, ..residual },
        Row { elements: 4 * T * C, calls_per_step: 2 * CALLS, ..rope },
        Row { elements: 2 * T * V, calls_per_step: 2, ..loss },
    ]
}
