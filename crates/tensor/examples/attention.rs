//! Attention of a CUDA device at the shapes of GPT-2 124M and Llama 1.16B: time with cuDNN, where
//! it is installed, and with our own kernels; distance from the `f64` oracle; equal bits of runs.
//!
//! ```text
//! cargo run --release -p lockstep-tensor --example attention
//! ```
#![expect(clippy::print_stdout, reason = "an example prints")]

use half::{bf16, f16};
use lockstep_tensor::attention::{Options, Shape};
use lockstep_tensor::cuda;
use lockstep_tensor::device::{Buffer, Device, Dtype, HeadRows, Result, View, ViewMut};
use lockstep_tensor::gemm::Precision;
use lockstep_tensor::reference::attention as oracle;

const REPEATS: usize = 9;
const RUNS: usize = 3;
const MAX_ORACLE_TOKENS: usize = 2048;

fn main() -> Result<()> {
    let library = cuda::open(0)?;
    let library: &dyn Device = &library;
    // The list of a run without cuDNN turns it off.
    let list = library.product_algorithms()?;
    let own = cuda::open(0)?;
    let own: &dyn Device = &own;
    own.set_product_algorithms(list.split_inclusive('\n').next().unwrap_or_default())?;
    println!("{}, {}", library.name(), list.lines().last().unwrap_or_default());
    for (name, sequences, tokens, heads, kv_heads, head_dim, dtype) in [
        ("GPT-2", 64, 1024, 12, 12, 64, Dtype::Bf16),
        ("Llama", 8, 2048, 16, 16, 128, Dtype::Bf16),
        ("grouped queries in f16", 16, 1024, 16, 4, 128, Dtype::F16),
        ("long", 1, 4096, 48, 24, 64, Dtype::Bf16),
    ] {
        let shape = Shape { sequences, tokens, heads, kv_heads, head_dim };
        println!("{name}: {sequences} x {tokens}, {heads} heads ({kv_heads}) x {head_dim}");
        let run = Run::new(dtype, shape);
        // The oracle is slow; our own kernels stand in for it there.
        let reference = if tokens <= MAX_ORACLE_TOKENS { run.oracle() } else { Vec::new() };
        let results = [run.on(library, "chosen", &reference)?, run.on(own, "own", &reference)?];
        let names = ["out", "lse", "dqkv"];
        for (name, (a, b)) in names.iter().zip(results[0].iter().zip(&results[1])) {
            println!("  {name:5} chosen and own differ by {:.1e}", distance(a, b.iter().copied()));
        }
    }
    println!("{}", library.product_algorithms()?);
    Ok(())
}

/// Operands on the host, as the type has them.
struct Run {
    dtype: Dtype,
    shape: Shape,
    qkv: Vec<f32>,
    dout: Vec<f32>,
}

impl Run {
    fn new(dtype: Dtype, shape: Shape) -> Self {
        let rows = shape.sequences * shape.tokens;
        let numbers = |seed: u64, len: usize| {
            let mut state = seed;
            let number = || {
                // Steele and others 2014, SplitMix64; a sum of four is nearly normal.
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut z = state;
                z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                z ^= z >> 31;
                let sum: u64 = (0..4).map(|i| (z >> (16 * i)) & 0xffff).sum();
                round(dtype, (sum as f32 / 65_536.0 - 2.0) * 1.7)
            };
            std::iter::repeat_with(number).take(len).collect()
        };
        let qkv = numbers(1, rows * row_len(shape));
        let dout = numbers(2, rows * shape.heads * shape.head_dim);
        Self { dtype, shape, qkv, dout }
    }

    /// Output, log-sum-exp, and gradients of the last key head of the last sequence, whose query
    /// heads are all that it depends on.
    fn oracle(&self) -> Vec<Vec<f64>> {
        let Shape { sequences, tokens, heads, kv_heads, head_dim } = self.shape;
        let group = heads / kv_heads;
        let shape = Shape { sequences: 1, tokens, heads: group, kv_heads: 1, head_dim };
        let first = (sequences - 1) * tokens;
        let columns = |data: &[f32], stride: usize, start: usize, len: usize| -> Vec<f64> {
            let rows = data[first * stride..].chunks(stride);
            rows.flat_map(|row| &row[start..start + len]).map(|x| f64::from(*x)).collect()
        };
        let (q_len, stride) = (group * head_dim, row_len(self.shape));
        let q = columns(&self.qkv, stride, heads * head_dim - q_len, q_len);
        let k = columns(&self.qkv, stride, (heads + kv_heads - 1) * head_dim, head_dim);
        let v = columns(&self.qkv, stride, stride - head_dim, head_dim);
        let dout = columns(&self.dout, heads * head_dim, heads * head_dim - q_len, q_len);
        let keep = |_, _, _, _| 1.0;
        let (out, lse) = oracle::forward(&shape, &q, &k, &v, 0, &Options::CAUSAL, keep);
        let [dq, dk, dv] = oracle::backward(&shape, &q, &k, &v, &dout, &Options::CAUSAL, keep);
        vec![out, lse, dq, dk, dv]
    }

    /// Prints times and distances; returns output, log-sum-exp and gradients.
    fn on(&self, device: &dyn Device, name: &str, reference: &[Vec<f64>]) -> Result<[Vec<f32>; 3]> {
        let Self { dtype, shape, .. } = *self;
        let precision = if dtype == Dtype::F16 { Precision::F16 } else { Precision::Bf16 };
        let Shape { sequences, tokens, heads, kv_heads, head_dim } = shape;
        let (rows, width, stride) = (sequences * tokens, heads * head_dim, row_len(shape));
        let (qkv, dout) = (upload(device, dtype, &self.qkv)?, upload(device, dtype, &self.dout)?);
        let at = |start: usize| HeadRows { data: qkv.view().range(start..qkv.len()), stride };
        let operands = [at(0), at(width), at(width + kv_heads * head_dim)];
        let mut scratch =
            device.allocate(Dtype::F32, device.attention_scratch_len(precision, shape))?;
        let causal = Options::CAUSAL;
        let mut first: Option<[Vec<f32>; 3]> = None;
        let mut seconds = [0.0; 2];
        for run in 0..RUNS {
            let (mut out, mut dqkv) =
                (device.allocate(dtype, rows * width)?, device.allocate(dtype, qkv.len())?);
            let mut lse = device.allocate(Dtype::F32, rows * heads)?;
            device.fill(out.view_mut(), f32::NAN)?;
            device.fill(lse.view_mut(), f32::NAN)?;
            device.fill(dqkv.view_mut(), f32::NAN)?;
            let repeats = if run == 0 { REPEATS } else { 1 };
            let forward = time(device, repeats, || {
                let (out, lse, scratch) = (out.view_mut(), lse.view_mut(), scratch.view_mut());
                device.attention_forward(precision, shape, operands, 0, &causal, out, lse, scratch)
            })?;
            let backward = time(device, repeats, || {
                let (out, lse, dout) = (out.view(), lse.view(), dout.view());
                let (dqkv, scratch) = (dqkv.view_mut(), scratch.view_mut());
                device.attention_backward(
                    precision, shape, operands, out, lse, dout, &causal, dqkv, scratch,
                )
            })?;
            let got = [download(device, &out)?, download(device, &lse)?, download(device, &dqkv)?];
            match &first {
                None => {
                    seconds = [forward, backward];
                    first = Some(got);
                }
                Some(first) => {
                    for (a, b) in first.iter().zip(&got) {
                        let is_equal = a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
                        assert!(is_equal, "{name}: bits of run {run}");
                    }
                }
            }
        }
        let got = first.expect("there are runs");
        let [forward, backward] = seconds.map(|seconds| seconds * 1e3);
        println!("  {name}: forward {forward:.3} ms, backward {backward:.3} ms, bits equal");
        let last = (sequences - 1) * tokens;
        let group = heads / kv_heads;
        let columns = |data: &[f32], stride: usize, start: usize, len: usize| -> Vec<f32> {
            data[last * stride..]
                .chunks(stride)
                .flat_map(|row| row[start..start + len].to_vec())
                .collect()
        };
        let q_len = group * head_dim;
        let parts = [
            columns(&got[0], width, width - q_len, q_len),
            got[1][got[1].len() - group * tokens..].to_vec(),
            columns(&got[2], stride, width - q_len, q_len),
            columns(&got[2], stride, (heads + kv_heads - 1) * head_dim, head_dim),
            columns(&got[2], stride, stride - head_dim, head_dim),
        ];
        let names = ["out", "lse", "dq", "dk", "dv"];
        for (name, (part, reference)) in names.iter().zip(parts.iter().zip(reference)) {
            let reference = reference.iter().map(|x| *x as f32);
            print!("  {name} {:.1e}", distance(part, reference));
        }
        if !reference.is_empty() {
            println!(" from the oracle");
        }
        Ok(got)
    }
}

/// Norm of the difference by the norm of the reference.
fn distance(x: &[f32], reference: impl Iterator<Item = f32>) -> f64 {
    let (mut difference, mut norm) = (0.0, 0.0);
    for (x, reference) in x.iter().zip(reference) {
        difference += f64::from(x - reference).powi(2);
        norm += f64::from(reference).powi(2);
    }
    (difference / norm).sqrt()
}

fn row_len(shape: Shape) -> usize {
    (shape.heads + 2 * shape.kv_heads) * shape.head_dim
}

fn round(dtype: Dtype, x: f32) -> f32 {
    if dtype == Dtype::F16 { f16::from_f32(x).to_f32() } else { bf16::from_f32(x).to_f32() }
}

fn upload(device: &dyn Device, dtype: Dtype, x: &[f32]) -> Result<Buffer> {
    let mut wide = device.allocate(Dtype::F32, x.len())?;
    device.copy(View::of(x), wide.view_mut())?;
    let mut buffer = device.allocate(dtype, x.len())?;
    device.convert(wide.view(), buffer.view_mut(), ViewMut::of::<f32>(&mut []))?;
    Ok(buffer)
}

fn download(device: &dyn Device, x: &Buffer) -> Result<Vec<f32>> {
    let mut got = vec![0.0f32; x.len()];
    if x.view().dtype() == Dtype::F32 {
        device.copy(x.view(), ViewMut::of(&mut got))?;
        return Ok(got);
    }
    let mut wide = device.allocate(Dtype::F32, x.len())?;
    device.convert(x.view(), wide.view_mut(), ViewMut::of::<f32>(&mut []))?;
    device.copy(wide.view(), ViewMut::of(&mut got))?;
    Ok(got)
}

/// Median seconds of an operation.
fn time(device: &dyn Device, repeats: usize, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    run()?;
    let mut seconds = Vec::new();
    for _ in 0..repeats {
        let start = device.record()?;
        run()?;
        let end = device.record()?;
        seconds.extend(device.seconds_between(&start, &end)?);
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[seconds.len() / 2])
}
