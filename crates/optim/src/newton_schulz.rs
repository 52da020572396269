//! Orthogonalisation of matrices by a Newton-Schulz iteration, for Muon (Jordan et al. 2024).
//!
//! Five steps of the quintic X ← a X + (b A + c A²) X with A = X Xᵀ, from a matrix of norm one,
//! move its singular values to about one: the coefficients, those of the authors, make small ones
//! grow as fast as possible and leave all between about 0.5 and 1.5. A tall matrix is multiplied
//! from the other side, so A has the size of the shorter side.
//!
//! All products are of the whole matrix on one device, whose order of additions is a function of
//! the shape. Every rank that computes a matrix therefore obtains equal bits.

use crate::clip::CHUNK_LEN;
use lockstep_tensor::Cpu;
use lockstep_tensor::device::{
    Buffer, Device, Dtype, DualBuffer, Epilogue, Matrix, MatrixMut, Result as DeviceResult, View,
    ViewMut,
};
use lockstep_tensor::gemm::{Precision, Write};
use std::sync::Arc;

const NUM_STEPS: usize = 5;
const A: f32 = 3.4445;
const B: f32 = -4.7750;
const C: f32 = 2.0315;

/// A matrix of a smaller norm stays small.
const EPS: f64 = 1e-7;

/// FLOPs of the products that orthogonalise a matrix.
pub fn flops([rows, cols]: [usize; 2]) -> u64 {
    let side = rows.min(cols);
    // The Gram matrix and the product of its polynomial with the matrix; the Gram matrix squared.
    (NUM_STEPS * (2 * 2 * side * rows * cols + 2 * side * side * side)) as u64
}

/// Orthogonalises matrices of up to a size, without allocating.
#[derive(Debug)]
pub struct Orthogonalizer {
    precision: Precision,
    matrix: DualBuffer,
    product: DualBuffer,
    grams: [DualBuffer; 2],
    sums: Vec<f64>,
    /// Sums on the accelerator that computes them.
    on_device: Option<Buffer>,
}

/// Elements of the largest matrix, and of the largest square of a shorter side.
fn largest(shapes: impl Iterator<Item = [usize; 2]>) -> [usize; 2] {
    shapes.fold([0; 2], |[matrix, gram], [rows, cols]| {
        let side = rows.min(cols);
        [matrix.max(rows * cols), gram.max(side * side)]
    })
}

impl Orthogonalizer {
    /// Allocates memory for matrices of these shapes; operands of products are rounded to
    /// `precision`.
    pub fn new(
        precision: Precision,
        shapes: impl Iterator<Item = [usize; 2]>,
        accelerator: Option<&Arc<dyn Device>>,
    ) -> DeviceResult<Self> {
        let [matrix, gram] = largest(shapes);
        let zeros = |len| DualBuffer::zeros(accelerator, len);
        let num_chunks = matrix.div_ceil(CHUNK_LEN);
        let sums = |device: &Arc<dyn Device>| device.allocate(Dtype::F64, num_chunks);
        Ok(Self {
            precision,
            matrix: zeros(matrix)?,
            product: zeros(matrix)?,
            grams: [zeros(gram)?, zeros(gram)?],
            sums: vec![0.0; num_chunks],
            on_device: accelerator.map(sums).transpose()?,
        })
    }

    /// Number of `f32` that [`Self::new`] allocates.
    pub fn planned_len(shapes: impl Iterator<Item = [usize; 2]>) -> usize {
        largest(shapes).iter().map(|len| 2 * len).sum()
    }

    /// Number of `f32` allocated.
    pub const fn num_elements(&self) -> usize {
        2 * (self.matrix.len() + self.grams[0].len())
    }

    /// The matrix to orthogonalise, row-major from the first element on, and its result.
    pub const fn matrix_mut(&mut self) -> &mut DualBuffer {
        &mut self.matrix
    }

    /// Scratch memory between two calls, as long as the matrix, and the matrix.
    pub const fn scratch_and_matrix_mut(&mut self) -> [&mut DualBuffer; 2] {
        [&mut self.product, &mut self.matrix]
    }

    /// Orthogonalises the matrix in place.
    pub fn run(&mut self, cpu: &Cpu, [rows, cols]: [usize; 2]) -> DeviceResult<()> {
        let (len, side) = (rows * cols, rows.min(cols));
        let factor = (1.0 / self.norm(cpu, len)?.max(EPS)) as f32;
        let Self { precision, matrix, product, grams: [gram, update], .. } = self;
        let (device, x) = matrix.on_device(cpu)?;
        let (mut x, mut y) = (x.range(0..len), product.view_mut()?.range(0..len));
        let mut gram = gram.view_mut()?.range(0..side * side);
        let mut update = update.view_mut()?.range(0..side * side);
        let multiply = |a: Matrix<'_>, b: Matrix<'_>, out: ViewMut<'_>| {
            let ((m, _), (_, n)) = (a.shape(), b.shape());
            let out = MatrixMut::new(out, m, n);
            device.product(*precision, a, b, out, Write::Set, Epilogue::None)
        };
        scale(device, x.reborrow(), factor)?;
        for _ in 0..NUM_STEPS {
            let all = Matrix::new(x.as_view(), rows, cols);
            let [left, right] = if rows > cols { [all.t(), all] } else { [all, all.t()] };
            multiply(left, right, gram.reborrow())?;
            let square = Matrix::new(gram.as_view(), side, side);
            multiply(square, square, update.reborrow())?;
            scale(device, gram.reborrow(), B)?;
            scale(device, update.reborrow(), C)?;
            device.add_assign(update.reborrow(), gram.as_view())?;
            let all = Matrix::new(x.as_view(), rows, cols);
            let square = Matrix::new(update.as_view(), side, side);
            let [left, right] = if rows > cols { [all, square] } else { [square, all] };
            multiply(left, right, y.reborrow())?;
            scale(device, x.reborrow(), A)?;
            device.add_assign(x.reborrow(), y.as_view())?;
        }
        Ok(())
    }

    /// Frobenius norm of the first `len` elements of the matrix.
    fn norm(&mut self, cpu: &Cpu, len: usize) -> DeviceResult<f64> {
        let Self { matrix, sums, on_device, .. } = self;
        let (device, sums) = (matrix.device(cpu), &mut sums[..len.div_ceil(CHUNK_LEN)]);
        let values: [View<'_>; 1] = [matrix.view()?.range(0..len)];
        if let Some(own) = on_device {
            device.sum_squares(&values, own.view_mut().range(0..sums.len()))?;
            device.copy(own.view().range(0..sums.len()), ViewMut::of(sums))?;
        } else {
            device.sum_squares(&values, ViewMut::of(sums))?;
        }
        Ok(sums.iter().sum::<f64>().sqrt())
    }
}

fn scale(device: &dyn Device, x: ViewMut<'_>, factor: f32) -> DeviceResult<()> {
    device.scale(x, factor, Precision::F32, ViewMut::of::<u64>(&mut []))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_tensor::Isa;

    fn numbers(len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 7919 + i * i * 104_729) % 2003) as f32 / 1001.0 - 1.0).collect()
    }

    fn orthogonalized(precision: Precision, shape: [usize; 2], values: &[f32]) -> Vec<f32> {
        let shapes = [[9, 40], shape].into_iter();
        let mut work = Orthogonalizer::new(precision, shapes.clone(), None).expect("memory");
        assert_eq!(work.num_elements(), Orthogonalizer::planned_len(shapes));
        work.matrix_mut()[..values.len()].copy_from_slice(values);
        work.run(&Cpu::single(Isa::detect()), shape).expect("the CPU has products");
        work.matrix_mut()[..values.len()].to_vec()
    }

    /// `a b` of row-major matrices in `f64`.
    fn times(a: &[f64], b: &[f64], [m, k, n]: [usize; 3]) -> Vec<f64> {
        let element = |i: usize| (0..k).map(|j| a[i / n * k + j] * b[j * n + i % n]).sum();
        (0..m * n).map(element).collect()
    }

    fn transposed(a: &[f64], [rows, cols]: [usize; 2]) -> Vec<f64> {
        (0..rows * cols).map(|i| a[i % rows * cols + i / rows]).collect()
    }

    /// The published loop: a tall matrix is transposed first and last.
    fn by_definition(values: &[f32], [rows, cols]: [usize; 2]) -> Vec<f64> {
        let values: Vec<f64> = values.iter().map(|x| f64::from(*x)).collect();
        if rows > cols {
            let wide = transposed(&values, [rows, cols]);
            let wide: Vec<f32> = wide.iter().map(|x| *x as f32).collect();
            return transposed(&by_definition(&wide, [cols, rows]), [cols, rows]);
        }
        let norm = values.iter().map(|x| x * x).sum::<f64>().sqrt();
        let mut x: Vec<f64> = values.iter().map(|x| x / norm).collect();
        for _ in 0..5 {
            let a = times(&x, &transposed(&x, [rows, cols]), [rows, cols, rows]);
            let aa = times(&a, &a, [rows; 3]);
            let b: Vec<f64> = a.iter().zip(&aa).map(|(a, aa)| -4.775 * a + 2.0315 * aa).collect();
            let bx = times(&b, &x, [rows, rows, cols]);
            x = x.iter().zip(&bx).map(|(x, bx)| 3.4445 * x + bx).collect();
        }
        x
    }

    #[test]
    fn flops_are_those_of_three_products_a_step() {
        // 2x3 times 3x2, 2x2 times 2x2 and 2x2 times 2x3, each a multiplication and an addition.
        let expected = 5 * (2 * 2 * 3 * 2 + 2 * 2 * 2 * 2 + 2 * 2 * 2 * 3);
        assert_eq!([flops([2, 3]), flops([3, 2])], [expected; 2]);
    }

    #[test]
    fn five_steps_match_their_definition_in_f64() {
        for shape in [[1, 1], [8, 8], [5, 33], [33, 5], [40, 130], [130, 40]] {
            let values = numbers(shape[0] * shape[1]);
            let expected = by_definition(&values, shape);
            for (precision, most) in [(Precision::F32, 2e-5), (Precision::Bf16, 0.1)] {
                let found = orthogonalized(precision, shape, &values);
                let errors = found.iter().zip(&expected).map(|(a, b)| (f64::from(*a) - b).abs());
                let error = errors.fold(0.0, f64::max);
                assert!(error < most, "{shape:?} in {precision:?}: off by {error:e}");
            }
        }
    }

    #[test]
    fn singular_values_come_close_to_one() {
        let shape = [6, 50];
        let found = orthogonalized(Precision::F32, shape, &numbers(300));
        let found: Vec<f64> = found.into_iter().map(f64::from).collect();
        let gram = times(&found, &transposed(&found, shape), [6, 50, 6]);
        for (i, value) in gram.iter().enumerate() {
            let (low, high) = if i / 6 == i % 6 { (0.4, 1.6) } else { (-0.5, 0.5) };
            assert!((low..high).contains(value), "{i}: {value}");
        }
    }

    #[test]
    fn a_matrix_of_zeros_stays() {
        assert_eq!(orthogonalized(Precision::F32, [4, 6], &[0.0; 24]), [0.0; 24]);
    }
}
