//! Speed of a CUDA device's operations at the shapes of GPT-2 124M and Llama 1.16B, in bf16:
//!
//! ```text
//! cargo run --release -p lockstep-tensor --example device
//! ```
#![expect(clippy::print_stdout, reason = "an example prints")]

use half::bf16;
use lockstep_tensor::adamw::AdamStep;
use lockstep_tensor::attention::{Options, Shape};
use lockstep_tensor::cuda;
use lockstep_tensor::device::{
    Activation, Buffer, Device, Dtype, Epilogue, HeadRows, Matrix, MatrixMut, Norm, Result, Rule,
    Targets, View, ViewMut,
};
use lockstep_tensor::gemm::{Precision, Write};
use lockstep_tensor::rope::{Rotation, Table};

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
    let gpt2 = Model {
        name: "GPT-2",
        rows: 65_536,
        tokens_per_sequence: 1024,
        width: 768,
        ffn: 3072,
        head_dim: 64,
        vocab: 50_304,
    };
    let llama = Model {
        name: "Llama",
        rows: 16_384,
        tokens_per_sequence: 2048,
        width: 2048,
        ffn: 5632,
        head_dim: 128,
        vocab: 32_000,
    };
    Bench { device, model: gpt2 }.all(true)?;
    Bench { device, model: llama }.all(false)?;
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
        device.attention_forward(
            BF16,
            shape,
            heads,
            0,
            &Options::CAUSAL,
            out,
            lse,
            scratch.view_mut(),
        )
    })?;
    print_flops(&format!("attention, {name}, forward"), seconds, flops);
    let seconds = time(device, || {
        let (out, lse, dout) = (out.view(), lse.view(), dout.view());
        let (dqkv, scratch) = (dqkv.view_mut(), scratch.view_mut());
        device.attention_backward(
            BF16,
            shape,
            heads,
            out,
            lse,
            dout,
            &Options::CAUSAL,
            dqkv,
            scratch,
        )
    })?;
    print_flops(&format!("attention, {name}, backward"), seconds, 2.5 * flops);
    Ok(())
}

/// Shapes of a model.
#[derive(Clone, Copy)]
struct Model {
    name: &'static str,
    rows: usize,
    tokens_per_sequence: usize,
    width: usize,
    ffn: usize,
    head_dim: usize,
    vocab: usize,
}

/// Times operations of a model and prints their bandwidth.
struct Bench<'a> {
    device: &'a dyn Device,
    model: Model,
}

impl Bench<'_> {
    fn time(&self, operation: &str, bytes: usize, run: impl FnMut() -> Result<()>) -> Result<()> {
        print_bytes(&format!("{}: {operation}", self.model.name), time(self.device, run)?, bytes);
        Ok(())
    }

    fn all(&self, is_layer_norm: bool) -> Result<()> {
        self.norms(is_layer_norm)?;
        if is_layer_norm {
            self.activations()?;
            self.positions()?;
        } else {
            self.gates()?;
            self.rotations()?;
        }
        self.column_sums()?;
        self.embeddings()?;
        self.losses()
    }

    fn norms(&self, is_layer: bool) -> Result<()> {
        let (device, Model { rows, width, .. }) = (self.device, self.model);
        let [x, residual] = [numbers(device, rows * width)?, numbers(device, rows * width)?];
        let [mut y, mut sum] = [numbers(device, rows * width)?, numbers(device, rows * width)?];
        let [mut weight, mut bias] =
            [device.allocate(Dtype::F32, width)?, device.allocate(Dtype::F32, width)?];
        device.fill(weight.view_mut(), 1.0)?;
        device.fill(bias.view_mut(), 0.5)?;
        let norm = Norm {
            weight: weight.view(),
            bias: is_layer.then(|| bias.view()),
            eps: 1e-5,
            adds_one: false,
        };
        let mut stats = device.allocate(Dtype::F32, norm.stats_len(rows))?;
        let bytes = 2 * rows * width;
        self.time("norm", 2 * bytes, || {
            device.norm_forward(norm, x.view(), y.view_mut(), stats.view_mut())
        })?;
        self.time("norm of a sum", 4 * bytes, || {
            let (sum, y, stats) = (sum.view_mut(), y.view_mut(), stats.view_mut());
            device.add_norm_forward(norm, x.view(), residual.view(), sum, y, stats)
        })?;
        self.time("norm from statistics", 2 * bytes, || {
            device.normalize(norm, x.view(), stats.view(), y.view_mut())
        })?;
        self.time("norm, input gradient added", 4 * bytes, || {
            device.norm_backward(norm, x.view(), stats.view(), residual.view(), sum.view_mut())
        })?;
        let [mut dweight, mut dbias] = [
            device.allocate(Dtype::F32, width)?,
            device.allocate(Dtype::F32, if is_layer { width } else { 0 })?,
        ];
        self.time("norm, weight gradient", 2 * bytes, || {
            let (dweight, dbias) = (dweight.view_mut(), dbias.view_mut());
            device.norm_weight_backward(norm, x.view(), stats.view(), y.view(), dweight, dbias)
        })?;
        self.time("norm, all gradients", 4 * bytes, || {
            let (dx, dweight, dbias) = (sum.view_mut(), dweight.view_mut(), dbias.view_mut());
            let (x, stats, dy) = (x.view(), stats.view(), residual.view());
            device.norm_and_weight_backward(norm, x, stats, dy, dx, dweight, dbias)
        })?;
        self.time("sum", 3 * bytes, || device.add(x.view(), residual.view(), y.view_mut()))
    }

    fn activations(&self) -> Result<()> {
        let (device, gelu) = (self.device, Activation::Gelu);
        let len = self.model.rows * self.model.ffn;
        let [x, dy] = [numbers(device, len)?, numbers(device, len)?];
        let [mut y, mut dx] = [numbers(device, len)?, numbers(device, len)?];
        self.time("GELU", 4 * len, || device.activate(gelu, x.view(), y.view_mut()))?;
        self.time("GELU, gradient", 6 * len, || {
            device.activate_backward(gelu, x.view(), dy.view(), dx.view_mut())
        })?;
        self.time("GELU and its gradient", 8 * len, || {
            let (y, dx) = (y.view_mut(), dx.view_mut());
            device.activate_and_backward(gelu, x.view(), dy.view(), y, dx)
        })
    }

    fn gates(&self) -> Result<()> {
        let (device, Model { rows, ffn, .. }) = (self.device, self.model);
        let [gate_up, mut dgate_up] =
            [numbers(device, rows * 2 * ffn)?, numbers(device, rows * 2 * ffn)?];
        let [mut act, dact] = [numbers(device, rows * ffn)?, numbers(device, rows * ffn)?];
        let bytes = 2 * rows * ffn;
        self.time("SwiGLU", 3 * bytes, || {
            device.swiglu_forward(gate_up.view(), ffn, act.view_mut())
        })?;
        self.time("SwiGLU, gradient", 6 * bytes, || {
            let (dgate_up, act) = (dgate_up.view_mut(), act.view_mut());
            device.swiglu_backward(gate_up.view(), ffn, dact.view(), dgate_up, act)
        })
    }

    /// Queries and keys of rows of queries, keys and values.
    fn rotations(&self) -> Result<()> {
        let (device, model) = (self.device, self.model);
        let Model { rows, tokens_per_sequence, width, head_dim, .. } = model;
        let table = Table::new(head_dim, tokens_per_sequence, 10_000.0).angles();
        let mut angles = device.allocate(Dtype::F32, table.len())?;
        device.copy(View::of(&table), angles.view_mut())?;
        let mut qkv = numbers(device, rows * 3 * width)?;
        let rotation = Rotation {
            row_stride: 3 * width,
            num_heads: 2 * width / head_dim,
            head_stride: head_dim,
            tokens_per_sequence,
            first_position: 0,
            inverse: false,
        };
        self.time("rotation of queries and keys", 2 * 2 * rows * 2 * width, || {
            device.rotate(angles.view(), head_dim, qkv.view_mut(), &rotation)
        })
    }

    fn column_sums(&self) -> Result<()> {
        let (device, Model { rows, width, ffn, .. }) = (self.device, self.model);
        for columns in [width, 3 * width, ffn] {
            let x = numbers(device, rows * columns)?;
            let mut sums = device.allocate(Dtype::F32, columns)?;
            self.time(&format!("sums of {columns} columns"), 2 * rows * columns, || {
                device.column_sums(x.view(), sums.view_mut())
            })?;
        }
        Ok(())
    }

    fn positions(&self) -> Result<()> {
        let (device, Model { rows, tokens_per_sequence, width, .. }) = (self.device, self.model);
        let table = device.allocate(Dtype::F32, tokens_per_sequence * width)?;
        let mut dtable = device.allocate(Dtype::F32, tokens_per_sequence * width)?;
        let mut x = numbers(device, rows * width)?;
        self.time("positions", 4 * rows * width, || {
            device.add_positions(table.view(), (tokens_per_sequence, None), 0, width, x.view_mut())
        })?;
        self.time("positions, gradient", 2 * rows * width, || {
            device.positions_backward(
                x.view(),
                (tokens_per_sequence, None),
                width,
                dtable.view_mut(),
            )
        })
    }

    /// Token ids as frequent as in text: the number of tokens up to an id grows as its logarithm.
    fn ids(&self) -> Result<(Buffer, usize)> {
        let Model { rows, vocab, .. } = self.model;
        let share = |i: usize| (i.wrapping_mul(40_503) % rows) as f64 / rows as f64;
        let ids: Vec<u32> =
            (0..rows).map(|i| ((vocab as f64).powf(share(i)) - 1.0) as u32).collect();
        let mut buffer = self.device.allocate(Dtype::U32, rows)?;
        self.device.copy(View::of(&ids), buffer.view_mut())?;
        let mut distinct = ids;
        distinct.sort_unstable();
        distinct.dedup();
        Ok((buffer, distinct.len()))
    }

    fn embeddings(&self) -> Result<()> {
        let (device, Model { rows, width, vocab, .. }) = (self.device, self.model);
        let ((ids, distinct), mut x) = (self.ids()?, numbers(device, rows * width)?);
        let [table, mut dtable] = [
            device.allocate(Dtype::F32, vocab * width)?,
            device.allocate(Dtype::F32, vocab * width)?,
        ];
        self.time("embedding", 2 * rows * width + 4 * distinct * width, || {
            device.embedding_forward(ids.view(), table.view(), 0, width, x.view_mut())
        })?;
        self.time("embedding, gradient", 2 * rows * width + 8 * distinct * width, || {
            device.embedding_backward(ids.view(), x.view(), 0, width, dtable.view_mut())
        })
    }

    fn losses(&self) -> Result<()> {
        let (device, Model { rows, vocab, .. }) = (self.device, self.model);
        let ((ids, _), mut logits) = (self.ids()?, numbers(device, rows * vocab)?);
        let mut losses = device.allocate(Dtype::F32, rows)?;
        let mut total = device.allocate(Dtype::F64, 1)?;
        self.time("cross-entropy", 2 * rows * vocab, || {
            let (losses, total) = (losses.view_mut(), total.view_mut());
            device.cross_entropy(logits.view(), ids.view(), losses, total, Write::Set)
        })?;
        self.time("cross-entropy with gradients", 2 * 2 * rows * vocab, || {
            let num_targets = rows as u64;
            let targets = Targets { ids: ids.view(), num_targets, loss_scale: 1.0 };
            let (losses, total) = (losses.view_mut(), total.view_mut());
            device.cross_entropy_backward(logits.view_mut(), targets, losses, total, Write::Set)
        })
    }
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
        let state = [m.view_mut(), v.view_mut(), ViewMut::of::<f32>(&mut [])];
        let (p, copy) = (p.view_mut(), copy.view_mut());
        device.optimizer_step(&Rule::AdamW(step), p, g.view(), state, copy)
    })?;
    print_bytes("AdamW with a bf16 copy, 100 M parameters", seconds, 30 * len);
    let mut sums = device.allocate(Dtype::F64, len.div_ceil(4096))?;
    let seconds = time(device, || device.sum_squares(&[g.view()], sums.view_mut()))?;
    print_bytes("sums of squares, 100 M parameters", seconds, 4 * len);
    let seconds =
        time(device, || device.convert(p.view(), copy.view_mut(), ViewMut::of::<f32>(&mut [])))?;
    print_bytes("conversion to bf16, 100 M parameters", seconds, 6 * len);
    Ok(())
}
