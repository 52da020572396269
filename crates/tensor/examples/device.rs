//! Speed of a CUDA device's operations at the shapes of GPT-2 124M and Llama 1.16B, in bf16:
//!
//! ```text
//! cargo run --release -p lockstep-tensor --example device
//! ```
#![expect(clippy::print_stdout, reason = "an example prints")]

use half::bf16;
use lockstep_tensor::adamw::AdamStep;
use lockstep_tensor::attention::Shape;
use lockstep_tensor::cuda;
use lockstep_tensor::device::{
    Buffer, Device, Dtype, Epilogue, HeadRows, Matrix, MatrixMut, Norm, Result, Rule, Targets,
    View, ViewMut,
};
use lockstep_tensor::gemm::{Precision, Write};

const BF16: Precision = Precision::Bf16;
const REPEATS: usize = 5;

fn main() -> Result<()> {
    let device = cuda::open(0)?;
    let device: &dyn Device = &device;
    println!("{}", device.name());
    for (name, rows, k, n) in [
        ("qkv, GPT-2", 65_536, 768, 2304),
        ("up, GPT-2", 65_536, 768, 3072),
        ("gate and up, Llama", 16_384, 2048, 11_264),
    ] {
        products(device, name, (rows, k, n))?;
    }
    for (name, shape) in [
        ("GPT-2", Shape { sequences: 64, tokens: 1024, heads: 12, kv_heads: 12, head_dim: 64 }),
        ("Llama", Shape { sequences: 8, tokens: 2048, heads: 16, kv_heads: 16, head_dim: 128 }),
    ] {
        attention(device, name, shape)?;
    }
    layers(device)?;
    optimizer(device)
}

/// Median seconds of an operation.
fn time(device: &dyn Device, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    run()?;
    let mut seconds = Vec::new();
    for _ in 0..REPEATS {
        let start = device.record()?;
        run()?;
        let end = device.record()?;
        seconds.extend(device.seconds_between(&start, &end)?);
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[seconds.len() / 2])
}

/// Numbers that are not zero, in bf16.
fn numbers(device: &dyn Device, len: usize) -> Result<Buffer> {
    let block: Vec<bf16> = (0..1 << 16)
        .map(|i: u32| {
            bf16::from_f32((i.wrapping_mul(2_654_435_761) >> 8) as f32 / 16_777_216.0 - 0.5)
        })
        .collect();
    let mut buffer = device.allocate(Dtype::Bf16, len)?;
    for start in (0..len).step_by(block.len()) {
        let count = block.len().min(len - start);
        device.copy(View::of(&block[..count]), buffer.view_mut().range(start..start + count))?;
    }
    Ok(buffer)
}

fn print_flops(name: &str, seconds: f64, flops: f64) {
    println!("{name:44} {:9.3} ms {:8.0} TFLOP/s", seconds * 1e3, flops / seconds / 1e12);
}

fn print_bytes(name: &str, seconds: f64, bytes: usize) {
    println!("{name:44} {:9.3} ms {:8.2} TB/s", seconds * 1e3, bytes as f64 / seconds / 1e12);
}

fn products(device: &dyn Device, name: &str, (rows, k, n): (usize, usize, usize)) -> Result<()> {
    let (x, w, mut y) =
        (numbers(device, rows * k)?, numbers(device, k * n)?, numbers(device, rows * n)?);
    let mut dw = device.allocate(Dtype::F32, n * k)?;
    let flops = 2.0 * (rows * k * n) as f64;
    let seconds = time(device, || {
        let (a, b) = (Matrix::new(x.view(), rows, k), Matrix::new(w.view(), n, k).t());
        let c = MatrixMut::new(y.view_mut(), rows, n);
        device.product(BF16, a, b, c, Write::Set, Epilogue::None)
    })?;
    print_flops(&format!("{name}, forward"), seconds, flops);
    let seconds = time(device, || {
        let (a, b) = (Matrix::new(y.view(), rows, n).t(), Matrix::new(x.view(), rows, k));
        let c = MatrixMut::new(dw.view_mut(), n, k);
        device.product(BF16, a, b, c, Write::Add, Epilogue::None)
    })?;
    print_flops(&format!("{name}, weight gradient added in f32"), seconds, flops);
    Ok(())
}

fn attention(device: &dyn Device, name: &str, shape: Shape) -> Result<()> {
    let Shape { sequences, tokens, heads, head_dim, .. } = shape;
    let (rows, width) = (sequences * tokens, heads * head_dim);
    let (qkv, dout) = (numbers(device, rows * 3 * width)?, numbers(device, rows * width)?);
    let (mut out, mut dqkv) = (numbers(device, rows * width)?, numbers(device, qkv.len())?);
    let mut lse = device.allocate(Dtype::F32, rows * heads)?;
    let mut scratch = device.allocate(Dtype::F32, device.attention_scratch_len(BF16, shape))?;
    let at =
        |start: usize| HeadRows { data: qkv.view().range(start..qkv.len()), stride: 3 * width };
    let heads = [at(0), at(width), at(2 * width)];
    // Half of the scores are visible.
    let flops = 2.0 * (rows * tokens * width) as f64;
    let seconds = time(device, || {
        let (out, lse) = (out.view_mut(), lse.view_mut());
        device.attention_forward(BF16, shape, heads, 0, None, out, lse, scratch.view_mut())
    })?;
    print_flops(&format!("attention, {name}, forward"), seconds, flops);
    let seconds = time(device, || {
        let (out, lse, dout) = (out.view(), lse.view(), dout.view());
        let (dqkv, scratch) = (dqkv.view_mut(), scratch.view_mut());
        device.attention_backward(BF16, shape, heads, out, lse, dout, None, dqkv, scratch)
    })?;
    print_flops(&format!("attention, {name}, backward"), seconds, 2.5 * flops);
    Ok(())
}

fn layers(device: &dyn Device) -> Result<()> {
    let (rows, width, ffn, vocab) = (16_384, 2048, 5632, 32_000);
    let (x, mut y, mut dx) = (
        numbers(device, rows * width)?,
        numbers(device, rows * width)?,
        numbers(device, rows * width)?,
    );
    let mut weight = device.allocate(Dtype::F32, width)?;
    device.fill(weight.view_mut(), 1.0)?;
    let mut dweight = device.allocate(Dtype::F32, width)?;
    let mut stats = device.allocate(Dtype::F32, rows)?;
    let norm = Norm { weight: weight.view(), bias: None, eps: 1e-5 };
    let bytes = 2 * rows * width;
    let seconds =
        time(device, || device.norm_forward(norm, x.view(), y.view_mut(), stats.view_mut()))?;
    print_bytes("RMSNorm, forward", seconds, 2 * bytes);
    let seconds = time(device, || {
        device.norm_backward(norm, x.view(), stats.view(), y.view(), dx.view_mut())
    })?;
    print_bytes("RMSNorm, input gradient added", seconds, 4 * bytes);
    let seconds = time(device, || {
        let (dweight, none) = (dweight.view_mut(), ViewMut::of::<f32>(&mut []));
        device.norm_weight_backward(norm, x.view(), stats.view(), y.view(), dweight, none)
    })?;
    print_bytes("RMSNorm, weight gradient", seconds, 2 * bytes);
    let (gate_up, mut act) = (numbers(device, rows * 2 * ffn)?, numbers(device, rows * ffn)?);
    let seconds = time(device, || device.swiglu_forward(gate_up.view(), ffn, act.view_mut()))?;
    print_bytes("SwiGLU, forward", seconds, 3 * 2 * rows * ffn);
    let ids: Vec<u32> = (0..rows as u32).map(|i| i.wrapping_mul(40_503) % vocab as u32).collect();
    let mut targets = device.allocate(Dtype::U32, rows)?;
    device.copy(View::of(&ids), targets.view_mut())?;
    let mut dtable = device.allocate(Dtype::F32, vocab * width)?;
    let seconds = time(device, || {
        device.embedding_backward(targets.view(), x.view(), 0, width, dtable.view_mut())
    })?;
    print_bytes("embedding, backward", seconds, bytes + 8 * vocab * width);
    let (mut logits, mut losses) =
        (numbers(device, rows * vocab)?, device.allocate(Dtype::F32, rows)?);
    let mut total = device.allocate(Dtype::F64, 1)?;
    let seconds = time(device, || {
        let targets = Targets { ids: targets.view(), num_targets: 16_384, loss_scale: 1.0 };
        let (losses, total) = (losses.view_mut(), total.view_mut());
        device.cross_entropy_backward(logits.view_mut(), targets, losses, total, Write::Set)
    })?;
    print_bytes("cross-entropy with gradients", seconds, 2 * 2 * rows * vocab);
    Ok(())
}

fn optimizer(device: &dyn Device) -> Result<()> {
    let len = 100_000_000;
    let [mut p, g, mut m, mut v] = [
        device.allocate(Dtype::F32, len)?,
        device.allocate(Dtype::F32, len)?,
        device.allocate(Dtype::F32, len)?,
        device.allocate(Dtype::F32, len)?,
    ];
    let mut copy = device.allocate(Dtype::Bf16, len)?;
    let step = AdamStep {
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        bias1: 0.1,
        bias2: 0.05,
        grad_scale: 1.0,
    };
    let seconds = time(device, || {
        let state = [m.view_mut(), v.view_mut()];
        let (p, copy) = (p.view_mut(), copy.view_mut());
        device.optimizer_step(&Rule::AdamW(step), p, g.view(), state, copy)
    })?;
    print_bytes("AdamW with a bf16 copy, 100 M parameters", seconds, 30 * len);
    let mut sums = device.allocate(Dtype::F64, len.div_ceil(4096))?;
    let seconds = time(device, || device.sum_squares(g.view(), sums.view_mut()))?;
    print_bytes("sums of squares, 100 M parameters", seconds, 4 * len);
    Ok(())
}
