//! Conformance of devices: every operation of every device that opens here against the `f64`
//! oracles, and two runs to the bit. On a machine with CUDA: `suite device --test-threads=1`.
#![expect(clippy::unwrap_used, reason = "a failure of a device fails the test")]

mod algorithms;
mod attention;
mod copies;
mod decode;
mod dual_buffer;
mod flat;
mod fp8;
mod layers;
mod losses;
mod memory;
mod open;
mod product;
mod profile;
mod replay;
mod sequences;

use crate::common::{assert_close, wide};
use half::{bf16, f16};
use lockstep_tensor::device::{Buffer, Device, Dtype, View, ViewMut};
use lockstep_tensor::gemm::Precision;
use lockstep_tensor::{Cpu, Isa, cuda};
use std::sync::OnceLock;

/// A device and a type of activations that it has kernels for.
#[derive(Clone, Copy)]
struct Case {
    device: &'static dyn Device,
    dtype: Dtype,
    is_cpu: bool,
}

/// Every device that opens here, with each of its types.
fn cases() -> Vec<Case> {
    static CUDA: OnceLock<Option<cuda::Cuda>> = OnceLock::new();
    let mut cases = vec![Case { device: cpu(), dtype: Dtype::F32, is_cpu: true }];
    if let Some(device) = CUDA.get_or_init(|| cuda::open(0).ok()) {
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
            cases.push(Case { device, dtype, is_cpu: false });
        }
    }
    cases
}

/// A CPU of this thread: tests run side by side, and a CPU runs one product at a time.
fn cpu() -> &'static Cpu {
    thread_local! {
        static CPU: &'static Cpu = Box::leak(Box::new(Cpu::single(Isa::detect())));
    }
    CPU.with(|cpu| *cpu)
}

/// Runs an operation twice on every device and type, demands equal bits of both runs, and hands the
/// outputs to `check`.
fn on_every_device(run: impl Fn(Case) -> Vec<Vec<f32>>, check: impl Fn(Case, &[Vec<f32>])) {
    for case in cases() {
        let (first, second) = (run(case), run(case));
        for (i, (first, second)) in first.iter().zip(&second).enumerate() {
            assert_eq!(bits(first), bits(second), "{}: output {i} of two runs", case.label());
        }
        check(case, &first);
    }
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// No elements, for optional operands.
fn none<'a>() -> ViewMut<'a> {
    ViewMut::of::<f32>(&mut [])
}

impl Case {
    fn label(self) -> String {
        format!("{} in {}", self.device.name(), self.dtype)
    }

    /// Precision of products with operands of this type.
    fn precision(self) -> Precision {
        match self.dtype {
            Dtype::Bf16 => Precision::Bf16,
            Dtype::F16 => Precision::F16,
            _ => Precision::F32,
        }
    }

    /// Numbers as this type has them.
    fn rounded(self, x: &[f32]) -> Vec<f32> {
        let round = |x: &f32| match self.dtype {
            Dtype::Bf16 => bf16::from_f32(*x).to_f32(),
            Dtype::F16 => f16::from_f32(*x).to_f32(),
            _ => *x,
        };
        x.iter().map(round).collect()
    }

    /// Rounded numbers for the oracle.
    fn wide(self, x: &[f32]) -> Vec<f64> {
        wide(&self.rounded(x))
    }

    /// Activations on the device.
    fn upload(self, x: &[f32]) -> Buffer {
        self.upload_as(self.dtype, x)
    }

    fn upload_as(self, dtype: Dtype, x: &[f32]) -> Buffer {
        let mut buffer = self.device.allocate(dtype, x.len()).unwrap();
        let target = buffer.view_mut();
        match dtype {
            Dtype::Bf16 => {
                let x: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
                self.device.copy(View::of(&x), target)
            }
            Dtype::F16 => {
                let x: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
                self.device.copy(View::of(&x), target)
            }
            _ => self.device.copy(View::of(x), target),
        }
        .unwrap();
        buffer
    }

    /// `f32` values on the device: statistics, gradients of parameters, state.
    fn upload_f32(self, x: &[f32]) -> Buffer {
        self.upload_as(Dtype::F32, x)
    }

    fn upload_ids(self, ids: &[u32]) -> Buffer {
        let mut buffer = self.device.allocate(Dtype::U32, ids.len()).unwrap();
        self.device.copy(View::of(ids), buffer.view_mut()).unwrap();
        buffer
    }

    /// Activations that the operation must overwrite.
    fn poisoned(self, len: usize) -> Buffer {
        self.upload(&vec![f32::NAN; len])
    }

    fn poisoned_f32(self, len: usize) -> Buffer {
        self.upload_f32(&vec![f32::NAN; len])
    }

    fn download(self, buffer: &Buffer) -> Vec<f32> {
        let view = buffer.view();
        match view.dtype() {
            Dtype::Bf16 => {
                let mut x = vec![bf16::ZERO; view.len()];
                self.device.copy(view, ViewMut::of(&mut x)).unwrap();
                x.iter().map(|x| x.to_f32()).collect()
            }
            Dtype::F16 => {
                let mut x = vec![f16::ZERO; view.len()];
                self.device.copy(view, ViewMut::of(&mut x)).unwrap();
                x.iter().map(|x| x.to_f32()).collect()
            }
            _ => {
                let mut x = vec![0.0; view.len()];
                self.device.copy(view, ViewMut::of(&mut x)).unwrap();
                x
            }
        }
    }

    fn download_f64(self, buffer: &Buffer) -> Vec<f64> {
        let mut x = vec![0.0; buffer.len()];
        self.device.copy(buffer.view(), ViewMut::of(&mut x)).unwrap();
        x
    }

    /// Demands that activations are those expected, up to the rounding of a sum of `num_terms`
    /// terms in `f32` and, in a two-byte type, of the four numbers at most that an operation rounds
    /// on the way to an element.
    fn assert_close(self, what: &str, got: &[f32], expected: &[f64], num_terms: usize) {
        let unit = match self.dtype {
            Dtype::Bf16 => 1.0 / 256.0,
            Dtype::F16 => 1.0 / 2048.0,
            _ => return assert_close(got, expected, num_terms),
        };
        assert_eq!(got.len(), expected.len());
        let largest = expected.iter().fold(1.0, |largest: f64, x| largest.max(x.abs()));
        let bound = 4.0 * unit * largest;
        for (i, (&got, &expected)) in got.iter().zip(expected).enumerate() {
            let error = (f64::from(got) - expected).abs();
            let label = self.label();
            assert!(error <= bound, "{label}, {what} {i}: {got:e} is not {expected:e}");
        }
    }
}
