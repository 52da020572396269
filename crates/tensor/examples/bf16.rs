//! Times matrix products in bf16 and in `f32`, beside the peak rate of the matrix units.
//!
//! `cargo run --release -p lockstep-tensor --example bf16 -- [SECONDS] [THREADS] [PART OF A NAME]`
//!
//! The shapes are large squares and those of `lockstep bench train`; operands are stored as `f32`,
//! and once more as bf16 ("stored"). The output is the fastest of many runs, which is robust on a
//! shared machine.

use half::bf16;
use lockstep_tensor::gemm::{Elements, Mat, MatMut, Precision, Write, product};
use lockstep_tensor::{Cpu, Isa, peak};
use std::time::{Duration, Instant};

/// One product: rows, columns, products, and which operands are transposed.
struct Row {
    name: String,
    shape: (usize, usize, usize),
    transposed: (bool, bool),
    a: Vec<f32>,
    b: Vec<f32>,
    /// Both operands as they would be stored in bf16.
    stored: [Vec<bf16>; 2],
    c: Vec<f32>,
    best: [Duration; 3],
}

impl Row {
    fn new(name: &str, (m, n, k): (usize, usize, usize), transposed: (bool, bool)) -> Self {
        let (a, b, c) = (numbers(m * k), numbers(k * n), numbers(m * n));
        let stored = [&a, &b].map(|x| x.iter().map(|&x| bf16::from_f32(x)).collect());
        let best = [Duration::MAX; 3];
        Self { name: name.to_owned(), shape: (m, n, k), transposed, a, b, stored, c, best }
    }

    fn run(&mut self, cpu: &Cpu, kind: Kind) -> Duration {
        let (m, n, k) = self.shape;
        let (precision, a, b) = match kind {
            Kind::F32 => (Precision::F32, Elements::F32(&self.a), Elements::F32(&self.b)),
            Kind::Bf16 => (Precision::Bf16, Elements::F32(&self.a), Elements::F32(&self.b)),
            Kind::Stored => {
                let [a, b] = &self.stored;
                (Precision::Bf16, Elements::Bf16(a), Elements::Bf16(b))
            }
        };
        let a = if self.transposed.0 { Mat::of(a, k, m).t() } else { Mat::of(a, m, k) };
        let b = if self.transposed.1 { Mat::of(b, n, k).t() } else { Mat::of(b, k, n) };
        let start = now();
        product(cpu, precision, a, b, MatMut::new(&mut self.c, m, n), Write::Set, None);
        start.elapsed()
    }
}

/// Variants: `f32`; bf16 from operands in `f32`; bf16 from operands in bf16.
#[derive(Clone, Copy)]
enum Kind {
    F32,
    Bf16,
    Stored,
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments.next().map_or(10.0, |s| s.parse().expect("a number of seconds"));
    let threads = arguments.next().map_or(1, |s| s.parse().expect("a number of threads"));
    let part = arguments.next().unwrap_or_default();
    #[expect(clippy::disallowed_methods, reason = "this crate knows no platform")]
    let cpu = Cpu::new(Isa::detect(), threads, &|_, run| drop(std::thread::spawn(run)));
    let mut rows = rows();
    rows.retain(|row| row.name.contains(&part));
    let (mut peak_f32, mut peak_tiles) = (0.0f64, 0.0f64);
    let start = now();
    while start.elapsed().as_secs_f64() < seconds {
        for _ in 0..4 {
            let start = now();
            let flops = peak::fma_burst(&cpu, 10_000);
            peak_f32 = peak_f32.max(flops / start.elapsed().as_secs_f64());
            let start = now();
            let flops = peak::tile_burst(&cpu, 2_000).unwrap_or(0.0);
            peak_tiles = peak_tiles.max(flops / start.elapsed().as_secs_f64());
        }
        for row in &mut rows {
            for (i, kind) in [Kind::F32, Kind::Bf16, Kind::Stored].into_iter().enumerate() {
                for _ in 0..if i == 0 { 1 } else { 4 } {
                    row.best[i] = row.best[i].min(row.run(&cpu, kind));
                }
            }
        }
    }
    print(&rows, peak_f32, peak_tiles);
}

#[expect(clippy::print_stdout, reason = "the result")]
fn print(rows: &[Row], peak_f32: f64, peak_tiles: f64) {
    println!("at best: f32 {:.0} GFLOP/s, tiles {:.0} GFLOP/s", peak_f32 / 1e9, peak_tiles / 1e9);
    for row in rows {
        let (m, n, k) = row.shape;
        let [f32, bf16, stored] = row.best.map(|best| (2 * m * n * k) as f64 / best.as_secs_f64());
        println!(
            "{:14} {m} x {n} x {k}: f32 {:.0}, bf16 {:.0}, stored {:.0} GFLOP/s, {:.1} x, {:.0} %",
            row.name,
            f32 / 1e9,
            bf16 / 1e9,
            stored / 1e9,
            bf16 / f32,
            100.0 * bf16 / peak_tiles,
        );
    }
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for size in [512, 1024, 2048] {
        rows.push(Row::new(&format!("square {size}"), (size, size, size), (false, true)));
    }
    let layers = [
        ("qkv", 384, 1152),
        ("out", 384, 384),
        ("up", 384, 2048),
        ("down", 1024, 384),
        ("head", 384, 256),
    ];
    for (layer, i, o) in layers {
        let t = 2048;
        rows.push(Row::new(&format!("{layer} forward"), (t, o, i), (false, true)));
        rows.push(Row::new(&format!("{layer} input"), (t, i, o), (false, false)));
        rows.push(Row::new(&format!("{layer} weight"), (o, i, t), (true, false)));
    }
    rows
}

#[expect(clippy::disallowed_methods, reason = "this crate knows no platform")]
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
