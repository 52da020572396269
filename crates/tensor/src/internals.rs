//! Private parts of the crate, for its own tests only: not an interface, and without any promise.
//!
//! Tests live in `tests/suite`, outside of the library, and reach through this module what the
//! public functions do not show. Nothing here is generic over the instruction set, so that a test
//! runs the kernels of the library instead of compiling its own.

pub use crate::cuda::replay::{End, MAX_SEQUENCES, MAX_UNUSED, Replay};
pub use crate::pool::{Helper, Pool};

use crate::Cpu;

/// Elements of a task of an elementwise kernel.
pub const ELEMENTS: usize = crate::reduce::ELEMENTS;

/// Elements of a task of an activation function.
pub const POINTWISE_ELEMENTS: usize = crate::pointwise::ELEMENTS;

/// Elements of a task of dropout.
pub const DROPOUT_TASK: usize = crate::dropout::TASK;

/// Elements of a task that fills a buffer with random numbers.
pub const FILL_TASK: usize = crate::random::FILL_TASK;

/// Reads a list of product algorithms of a library and device, and writes it.
pub fn reread_algorithms(source: &str, list: &str) -> crate::device::Result<String> {
    crate::cuda::reread_algorithms(source, list)
}

/// Checks that a CUDA device of a compute capability has products in a precision, by a version of
/// cuBLASLt.
pub fn check_precision(
    precision: crate::gemm::Precision,
    capability: (i32, i32),
    library: [i32; 3],
) -> crate::device::Result<()> {
    crate::cuda::check_precision(precision, capability, library)
}

/// One block of the random generator.
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    crate::random::philox(counter.map(|word| [word]), key).map(|[word]| word)
}

/// Runs `task(i, parts)` where part k is the i-th run of `part_lens[k]` elements of buffer k.
pub fn for_each_split<const K: usize>(
    cpu: &Cpu,
    buffers: [&mut [f32]; K],
    part_lens: [usize; K],
    task: impl Fn(usize, [&mut [f32]; K]) + Sync,
) {
    cpu.for_each_split(buffers, part_lens, task);
}

/// Products of bf16 tiles.
pub mod tiles {
    use crate::Cpu;
    use crate::gemm::tiles::{self, Engine};
    use crate::simd::{Kernel, Simd};

    /// Rows, and columns, of one tile.
    pub const TILE: usize = tiles::TILE;
    /// Products of one step.
    pub const STEP: usize = tiles::STEP;
    /// Elements of one tile.
    pub const TILE_LEN: usize = tiles::TILE_LEN;
    /// Rows, or columns, of a panel.
    pub const LINES: usize = tiles::LINES;
    /// Elements of one step of a panel.
    pub const STEP_LEN: usize = tiles::STEP_LEN;

    /// The target after one step by the scalar model of the matrix units.
    pub fn step(target: f32, a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32) -> f32 {
        tiles::scalar::step(target, a, b)
    }

    /// `c (= or +=) left right` for two panels and a dense target of 32 rows and columns, on the
    /// matrix units or by emulation.
    pub fn multiply(cpu: &Cpu, left: &[f32], right: &[f32], c: &mut [f32], add: bool) {
        cpu.run_tiles(Multiply { left, right, c, add });
    }

    struct Multiply<'a> {
        left: &'a [f32],
        right: &'a [f32],
        c: &'a mut [f32],
        add: bool,
    }

    impl Kernel for Multiply<'_> {
        type Out = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            Engine::new(s).multiply(true, self.left, self.right, self.c, LINES, self.add);
        }
    }
}
