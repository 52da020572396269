//! Selects the products of a precision: `f32` on the vector units, bf16 on the matrix units.

use super::bf16_products::{self, Bf16Products};
use super::f32_products::F32Products;
use super::products::Work;
use super::{Shape, TILE, packed_stride};
use crate::Cpu;
use crate::gemm::Precision;
use crate::simd::{Kernel, Simd};

/// Elements of one packed operand.
pub(super) fn operand_len(precision: Precision, shape: Shape) -> usize {
    match precision {
        Precision::Bf16 | Precision::Fp8 => bf16_products::operand_len(shape.head_dim),
        Precision::F32 | Precision::F16 => TILE * packed_stride(shape.head_dim),
    }
}

/// Elements of the workspace of the products of one task, at the start of its region.
pub(super) fn workspace_len(precision: Precision) -> usize {
    match precision {
        Precision::Bf16 | Precision::Fp8 => bf16_products::WORKSPACE_LEN,
        Precision::F32 | Precision::F16 => 0,
    }
}

/// Runs a task with products in `precision`; `workspace` has [`workspace_len`] elements.
pub(super) fn run(cpu: &Cpu, precision: Precision, work: impl Work, workspace: &mut [f32]) {
    match precision {
        Precision::Bf16 | Precision::Fp8 => cpu.run_tiles(Bf16Kernel { work, workspace }),
        Precision::F32 | Precision::F16 => cpu.run(F32Kernel(work)),
    }
}

/// A task with products in `f32`.
struct F32Kernel<W>(W);

impl<W: Work> Kernel for F32Kernel<W> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.0.run(s, &mut F32Products);
    }
}

/// A task with operands of products rounded to bf16.
struct Bf16Kernel<'a, W> {
    work: W,
    workspace: &'a mut [f32],
}

impl<W: Work> Kernel for Bf16Kernel<'_, W> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.work.run(s, &mut Bf16Products::new(s, self.workspace));
    }
}
