//! Kernels of a transformer, forward and backward: on plain slices of the CPU, and on devices.
//!
//! Results depend on neither the number of threads nor the instruction set: matrix products fix
//! their order of additions, reductions use sixteen virtual accumulators everywhere, and
//! transcendental functions are our own code. Every kernel has an oracle in [`mod@reference`], in
//! `f64`.
//!
//! # Layout
//! - [`device`]: the seam under the blocks of a model: operations on views of a device's memory;
//!   [`cuda`]: the CUDA device.
//! - [`cpu`]: the device handle of every kernel: instruction set, threads, packing buffer.
//! - [`simd`]: vectors of sixteen elements on AVX-512, AVX2 and portable Rust; [`math`]:
//!   transcendental functions on them.
//! - [`random`]: counter-based random numbers, a function of (seed, name, index).
//! - [`gemm`]: matrix products with a fixed chain of additions, in f32, bf16 (on the CPU's matrix
//!   units) and f16; [`fp8`]: eight-bit operands with block scales; [`nf4`]: frozen weights in four
//!   bits; [`convert`]: conversion of flat buffers between these types, and loss scaling.
//! - [`attention`], [`norm_rms`], [`norm_layer`], [`rope`], [`rope_frequencies`], [`swiglu`],
//!   [`geglu`], [`gelu`], [`gelu_erf`], [`relu`], [`bias`], [`embedding`], [`soft_cap`],
//!   [`cross_entropy`], [`dropout`]: the layers, forward and backward; [`preference`]: the loss of
//!   pairs of sequences; [`distillation`]: that of a student and its teacher.
//! - [`sgd`], [`nesterov`], [`adam`], [`adamw`], [`adamw_8bit`], [`adafactor`], [`lars`], [`lamb`],
//!   [`lion`], [`schedule_free`], [`muon`]: optimizer steps on flat buffers; [`reduce`]: sums and
//!   checks.
//! - [`peak`]: measures the peak FLOP rate of the machine.
//! - [`mod@reference`]: plain `f64` oracles of all of the above.
//!
//! # Example
//! ```
//! use lockstep_tensor::{Cpu, Isa, gemm::{Mat, MatMut, Write, matmul}};
//!
//! let cpu = Cpu::single(Isa::detect());
//! let (a, b) = ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]);
//! let mut c = [0.0; 4];
//! matmul(&cpu, Mat::new(&a, 2, 2), Mat::new(&b, 2, 2).t(), MatMut::new(&mut c, 2, 2), Write::Set);
//! assert_eq!(c, [17.0, 23.0, 39.0, 53.0]);
//! ```

mod amx;
pub mod cpu;
mod isa;
mod pool;
pub mod simd;

pub mod math;
pub mod random;

pub mod gemm;

pub mod convert;
mod dynamic_map;
pub mod fp8;
pub mod nf4;

pub mod adafactor;
pub mod adam;
pub mod adamw;
pub mod adamw_8bit;
pub mod attention;
pub mod bias;
pub mod cross_entropy;
pub mod distillation;
pub mod dropout;
pub mod embedding;
mod gated;
pub mod geglu;
pub mod gelu;
pub mod gelu_erf;
pub mod lamb;
pub mod lars;
pub mod lion;
mod moments;
mod momentum;
pub mod muon;
pub mod nesterov;
pub mod norm_layer;
pub mod norm_rms;
mod pointwise;
pub mod preference;
pub mod reduce;
pub mod relu;
pub mod rope;
pub mod rope_frequencies;
pub mod schedule_free;
pub mod sgd;
pub mod soft_cap;
pub mod swiglu;

pub mod cuda;
pub mod device;

pub mod peak;
pub mod reference;

#[doc(hidden)]
pub mod internals;

pub use cpu::Cpu;
pub use isa::Isa;
