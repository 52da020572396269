//! Time of a matrix product on a device that computes it in tiles.
//!
//! An m × k by k × n product is split into output tiles, one per multiprocessor at a time, so the
//! last wave may leave most multiprocessors idle (wave quantization). A tile has a start-up cost
//! worth some inner steps, so short inner dimensions are slow. Small tiles waste fewer
//! multiprocessors and more bandwidth; the library picks the faster.

use crate::calibration::Calibration;
use crate::hardware::Device;

/// Rows and columns of a tile, and its speed relative to the largest.
const TILES: [(f64, f64, f64); 4] =
    [(128.0, 256.0, 1.0), (128.0, 128.0, 0.93), (128.0, 64.0, 0.78), (64.0, 64.0, 0.6)];

/// A batch of `count` equal matrix products.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MatMul {
    /// Number of products.
    pub count: f64,
    /// Rows of the result.
    pub m: f64,
    /// Inner dimension.
    pub k: f64,
    /// Columns of the result.
    pub n: f64,
}

impl MatMul {
    /// A single product.
    pub const fn one(m: f64, k: f64, n: f64) -> Self {
        Self { count: 1.0, m, k, n }
    }

    /// Gradient of the input.
    pub const fn input_gradient(self) -> Self {
        Self { k: self.n, n: self.k, ..self }
    }

    /// Gradient of the weight.
    pub const fn weight_gradient(self) -> Self {
        Self { m: self.k, k: self.m, ..self }
    }

    /// Floating-point operations.
    pub fn flops(&self) -> f64 {
        2.0 * self.count * self.m * self.k * self.n
    }

    /// Seconds on a device, with operands and result moved through memory once.
    pub fn seconds(&self, device: &Device, calibration: &Calibration, fp8: bool) -> f64 {
        let multiprocessors = device.num_multiprocessors as f64;
        let peak = if fp8 { device.peak_tflops_fp8 } else { device.peak_tflops };
        let clock = device.clock(calibration.watts);
        let per_multiprocessor = peak * 1e12 / multiprocessors * clock * calibration.matrix_share;
        let depth = self.k + calibration.matrix_depth;
        let rounds = |(rows, columns, speed): &(f64, f64, f64)| {
            let tiles = self.count * (self.m / rows).ceil() * (self.n / columns).ceil();
            (tiles / multiprocessors).ceil() * 2.0 * rows * columns * depth
                / (per_multiprocessor * speed)
        };
        let compute = TILES.iter().map(rounds).fold(f64::INFINITY, f64::min);
        let bytes = 2.0 * self.count * (self.m * self.k + self.k * self.n + self.m * self.n);
        compute.max(bytes / (device.memory_gbps * 1e9 * calibration.memory_share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_matmuls_achieve_the_calibrated_share_and_narrow_ones_do_not() {
        let device = Device::named("a100-80gb").expect("it is one");
        let calibration = Calibration::of("a100").expect("it is there");
        let share = |matmul: MatMul| {
            matmul.flops() / matmul.seconds(&device, &calibration, false) / device.peak()
        };
        let large = share(MatMul::one(16_384.0, 16_384.0, 16_384.0));
        assert!((large / calibration.matrix_share - 1.0).abs() < 0.05, "{large}");
        assert!(share(MatMul::one(16_384.0, 16_384.0, 130.0)) < 0.8 * large);
        assert!(share(MatMul::one(16_384.0, 64.0, 16_384.0)) < 0.6 * large);
    }
}
