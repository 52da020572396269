//! Numeric kernels on plain slices: every operation the transformer needs, forward and backward.
//!
//! A result never depends on the number of threads or on the instruction set: matrix products own
//! their order of additions, reductions use sixteen virtual lanes everywhere, and transcendental
//! functions are our own code. Every kernel has an oracle in [`mod@reference`], in `f64`.
//!
//! # Layout
//! - [`cpu`]: the device handle every kernel takes: instruction set, threads, packing buffer.
//! - [`simd`]: sixteen virtual lanes on AVX-512, AVX2 and portable Rust; [`math`] on top of them.
//! - [`random`]: numbers that are a function of (seed, name, index) and of nothing else.
//! - [`gemm`]: matrix products with a fixed chain of additions, in f32, bf16 (on the CPU's matrix
//!   units) and f16; [`convert`]: flat buffers between these types, and the scale of losses.
//! - [`attention`], [`norm_rms`], [`norm_layer`], [`rope`], [`swiglu`], [`gelu`], [`relu`],
//!   [`bias`], [`embedding`], [`cross_entropy`], [`dropout`]: the layers, forward and backward.
//! - [`sgd`], [`nesterov`], [`adam`], [`adamw`], [`lars`], [`lamb`]: optimizer steps on flat
//!   buffers; [`reduce`]: sums and checks.
//! - [`peak`]: what the machine could do at best.
//! - [`mod@reference`]: the slow and obvious `f64` oracle of all of the above.
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
mod pool;
pub mod simd;

pub mod math;
pub mod random;

pub mod gemm;

pub mod convert;

pub mod adam;
pub mod adamw;
pub mod attention;
pub mod bias;
pub mod cross_entropy;
pub mod dropout;
pub mod embedding;
pub mod gelu;
pub mod lamb;
pub mod lars;
mod moments;
pub mod nesterov;
pub mod norm_layer;
pub mod norm_rms;
mod pointwise;
pub mod reduce;
pub mod relu;
pub mod rope;
pub mod sgd;
pub mod swiglu;
mod velocity;

pub mod peak;
pub mod reference;

pub use cpu::Cpu;
pub use simd::Isa;
