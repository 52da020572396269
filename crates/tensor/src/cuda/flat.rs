//! Flat buffers on a CUDA device: sums, conversions, checks and optimizer steps.

use super::Cuda;
use super::commands::KernelArg;
use super::launch::{launch, type_code};
use super::programs::{Program, Source};
use crate::device::error::Result;
use crate::device::flat::FlatBuffers;
use crate::device::operands::{MAX_STATE_BUFFERS, Momentum, Rates, Rule};
use crate::device::view::{Dtype, View, ViewMut};
use crate::gemm::Precision;
use crate::moments::{AdamStep, Moments};
use crate::reduce::SQUARES_CHUNK;
use crate::schedule_free::ScheduleFreeStep;
use crate::{lion, muon, schedule_free};

/// Threads that sum a chunk of squares.
const THREADS_PER_CHUNK: usize = 4;

/// Tensors whose squares one launch sums: it is as fast as its smallest tensors are together.
const SQUARED_TENSORS: usize = 128;

/// Tensors of a launch, as its kernel has them: addresses, lengths, and chunks before each.
#[repr(C)]
#[derive(Clone, Copy)]
struct SquaredTensors {
    address: [u64; SQUARED_TENSORS],
    len: [u64; SQUARED_TENSORS],
    first_chunk: [u32; SQUARED_TENSORS],
}

// SAFETY: no padding.
unsafe impl KernelArg for SquaredTensors {}

// SAFETY: no padding.
unsafe impl KernelArg for Moments {}

// SAFETY: no padding.
unsafe impl KernelArg for lion::Factors {}

// SAFETY: no padding.
unsafe impl KernelArg for schedule_free::Factors {}

const OPTIMIZER: Program = Program::new(Source::Optimizer, Dtype::F32);

impl Cuda {
    /// Address of two counts, or null.
    fn counts(&self, errors: &ViewMut<'_>) -> Result<u64> {
        if errors.is_empty() {
            return Ok(0);
        }
        assert_eq!(errors.len(), 2, "two counts");
        self.write(errors, Dtype::U64)
    }

    /// Address and type of the rounded parameters, or null.
    fn rounded_copy(&self, copy: &ViewMut<'_>, len: usize) -> Result<(u64, i32)> {
        if copy.is_empty() {
            return Ok((0, 0));
        }
        assert_eq!(copy.len(), len, "a rounded value for each parameter");
        Ok((self.write(copy, copy.dtype())?, type_code(copy.dtype())?))
    }

    fn adam(
        &self,
        decoupled: bool,
        step: &AdamStep,
        (p, g, n): (u64, u64, usize),
        [m, v]: [&ViewMut<'_>; 2],
        (copy, copy_type): (u64, i32),
    ) -> Result<()> {
        assert_eq!([m.len(), v.len()], [n; 2], "two moments for each parameter");
        let (m, v) = (self.write(m, Dtype::F32)?, self.write(v, Dtype::F32)?);
        let (moments, grid) = (Moments::new(step), self.over(2 * n));
        let keep = (1.0 - step.lr * step.weight_decay) as f32;
        let (decay, size) = (step.weight_decay as f32, (-step.lr / step.bias1) as f32);
        let (decoupled, scale, n) = (i32::from(decoupled), step.grad_scale, n as u64);
        let of_copy = match (copy, copy_type) {
            (0, _) => 0,
            (_, 0) => 4,
            _ => 2,
        };
        // Four numbers are read, three written.
        self.recorder.moves((7 * 4 + of_copy) * n as usize);
        launch!(
            self, OPTIMIZER, "adam", grid, decoupled, p, g, m, v, n, moments, keep, decay, size,
            scale, copy, copy_type,
        )
    }

    fn schedule_free(
        &self,
        step: &ScheduleFreeStep,
        (y, g, len): (u64, u64, usize),
        state: [&ViewMut<'_>; 3],
        (copy, copy_type): (u64, i32),
    ) -> Result<()> {
        assert_eq!(state.map(ViewMut::len), [len; 3], "three values for each parameter");
        let [x, z, v] = state;
        let (x, z) = (self.write(x, Dtype::F32)?, self.write(z, Dtype::F32)?);
        let v = self.write(v, Dtype::F32)?;
        let (n, grid, factors) =
            (len as u64, self.over(2 * len), schedule_free::Factors::new(step));
        launch!(self, OPTIMIZER, "schedule_free", grid, y, g, x, z, v, n, factors, copy, copy_type,)
    }
}

impl FlatBuffers for Cuda {
    fn add(&self, a: View<'_>, b: View<'_>, out: ViewMut<'_>) -> Result<()> {
        assert_eq!([a.len(), b.len()], [out.len(); 2], "the sum has the shape of its addends");
        let (dtype, n, grid) = (out.dtype(), out.len() as u64, self.over(out.len()));
        let (a, b, out) = (self.read(&a, dtype)?, self.read(&b, dtype)?, self.write(&out, dtype)?);
        self.recorder.moves(3 * dtype.size() * n as usize);
        launch!(self, Program::new(Source::Pointwise, dtype), "add", grid, a, b, out, n)
    }

    fn add_assign(&self, target: ViewMut<'_>, source: View<'_>) -> Result<()> {
        assert_eq!(target.len(), source.len(), "both addends have one shape");
        let (dtype, n, grid) = (target.dtype(), target.len() as u64, self.over(target.len()));
        let (target, source) = (self.write(&target, dtype)?, self.read(&source, dtype)?);
        let program = Program::new(Source::Pointwise, dtype);
        self.recorder.moves(3 * dtype.size() * n as usize);
        launch!(self, program, "add", grid, target, source, target, n)
    }

    fn convert(&self, from: View<'_>, to: ViewMut<'_>, errors: ViewMut<'_>) -> Result<()> {
        assert_eq!(from.len(), to.len(), "as many inputs as outputs");
        let (program, n) = (Program::new(Source::Convert, from.dtype()), from.len() as u64);
        let bytes = from.num_bytes() + to.as_view().num_bytes();
        let (code, grid) = (type_code(to.dtype())?, self.over(from.len()));
        let (from, to) = (self.read(&from, from.dtype())?, self.write(&to, to.dtype())?);
        let errors = self.counts(&errors)?;
        self.recorder.moves(bytes);
        launch!(self, program, "convert", grid, from, to, code, n, errors)
    }

    fn scale(
        &self,
        x: ViewMut<'_>,
        factor: f32,
        precision: Precision,
        errors: ViewMut<'_>,
    ) -> Result<()> {
        let (program, n) = (Program::new(Source::Convert, x.dtype()), x.len() as u64);
        let grid = self.over(x.len());
        let (x, errors) = (self.write(&x, x.dtype())?, self.counts(&errors)?);
        let code = match precision {
            Precision::F32 => 0i32,
            Precision::Bf16 => 1,
            Precision::F16 => 2,
            Precision::Fp8 => unreachable!("no buffer is rounded to fp8"),
        };
        launch!(self, program, "scale", grid, x, n, factor, code, errors)
    }

    fn sum_squares(&self, tensors: &[View<'_>], mut out: ViewMut<'_>) -> Result<()> {
        for tensors in tensors.chunks(SQUARED_TENSORS) {
            let dtype = tensors[0].dtype();
            let mut list = SquaredTensors {
                address: [0; SQUARED_TENSORS],
                len: [0; SQUARED_TENSORS],
                first_chunk: [0; SQUARED_TENSORS],
            };
            let mut chunks = 0;
            for (i, x) in tensors.iter().enumerate() {
                list.address[i] = self.read(x, dtype)?;
                (list.len[i], list.first_chunk[i]) = (x.len() as u64, chunks as u32);
                chunks += x.len().div_ceil(SQUARES_CHUNK);
            }
            let (own, rest) = out.split_at(chunks);
            let (target, num, program) = (
                self.write(&own, Dtype::F64)?,
                tensors.len() as u32,
                Program::new(Source::Convert, dtype),
            );
            let (grid, chunks) = (Self::by_items(chunks * THREADS_PER_CHUNK), chunks as u32);
            self.recorder.moves(tensors.iter().map(View::num_bytes).sum());
            launch!(self, program, "sum_squares", grid, list, num, target, chunks)?;
            out = rest;
        }
        assert!(out.is_empty(), "one sum for each chunk");
        Ok(())
    }

    fn first_non_finite(&self, x: View<'_>) -> Result<Option<usize>> {
        let (program, n) = (Program::new(Source::Convert, x.dtype()), x.len() as u64);
        let (grid, mut first) = (self.over(x.len()), u64::MAX);
        let x = self.read(&x, x.dtype())?;
        self.with_scratch(0, size_of::<u64>(), |address| {
            // SAFETY: the scratch memory has these bytes; the kernel lowers the largest number.
            unsafe { self.set_bytes(Dtype::U64, address, 0xff, size_of::<u64>())? };
            launch!(self, program, "first_non_finite", grid, x, n, address)?;
            // SAFETY: both sides have these bytes.
            unsafe { self.download(address, (&raw mut first).cast(), size_of::<u64>()) }
        })?;
        Ok((first < n).then_some(first as usize))
    }

    fn optimizer_step(
        &self,
        rule: &Rule,
        p: ViewMut<'_>,
        g: View<'_>,
        [one, two, three]: [ViewMut<'_>; MAX_STATE_BUFFERS],
        copy: ViewMut<'_>,
    ) -> Result<()> {
        assert_eq!(p.len(), g.len(), "one gradient for each parameter");
        let len = p.len();
        let (copy, copy_type) = self.rounded_copy(&copy, len)?;
        let (p, g) = (self.write(&p, Dtype::F32)?, self.read(&g, Dtype::F32)?);
        let (n, grid) = (len as u64, self.over(2 * len));
        match *rule {
            Rule::Sgd(Rates { lr, weight_decay, grad_scale }) => launch!(
                self,
                OPTIMIZER,
                "sgd",
                grid,
                p,
                g,
                n,
                lr,
                weight_decay,
                grad_scale,
                copy,
                copy_type,
            ),
            Rule::Momentum { variant, mu, rates } => {
                assert_eq!(one.len(), len, "one momentum value for each parameter");
                let buffer = self.write(&one, Dtype::F32)?;
                let Rates { lr, weight_decay, grad_scale } = rates;
                let rule = match variant {
                    Momentum::Plain => 0i32,
                    Momentum::Nesterov => 1,
                    Momentum::Lars => 2,
                };
                launch!(
                    self,
                    OPTIMIZER,
                    "momentum",
                    grid,
                    rule,
                    p,
                    g,
                    buffer,
                    n,
                    lr,
                    mu,
                    weight_decay,
                    grad_scale,
                    copy,
                    copy_type,
                )
            }
            Rule::Adam(ref step) => {
                self.adam(false, step, (p, g, len), [&one, &two], (copy, copy_type))
            }
            Rule::AdamW(ref step) => {
                self.adam(true, step, (p, g, len), [&one, &two], (copy, copy_type))
            }
            Rule::Lion(ref step) => {
                assert_eq!(one.len(), len, "one momentum value for each parameter");
                let (m, factors) = (self.write(&one, Dtype::F32)?, lion::Factors::new(step));
                launch!(self, OPTIMIZER, "lion", grid, p, g, m, n, factors, copy, copy_type)
            }
            Rule::ScheduleFree(ref step) => {
                self.schedule_free(step, (p, g, len), [&one, &two, &three], (copy, copy_type))
            }
        }
    }

    fn lamb_direction(
        &self,
        step: &AdamStep,
        p: View<'_>,
        g: ViewMut<'_>,
        [m, v]: [ViewMut<'_>; 2],
    ) -> Result<()> {
        let len = p.len();
        assert_eq!([g.len(), m.len(), v.len()], [len; 3], "a gradient and moments for each");
        if len == 0 {
            return Ok(());
        }
        let (p, g) = (self.read(&p, Dtype::F32)?, self.write(&g, Dtype::F32)?);
        let (m, v) = (self.write(&m, Dtype::F32)?, self.write(&v, Dtype::F32)?);
        let (moments, grid, n) = (Moments::new(step), self.over(2 * len), len as u64);
        let (decay, unbias1) = (step.weight_decay as f32, (1.0 / step.bias1) as f32);
        let scale = step.grad_scale;
        launch!(
            self,
            OPTIMIZER,
            "lamb_direction",
            grid,
            p,
            g,
            m,
            v,
            n,
            moments,
            decay,
            unbias1,
            scale,
        )
    }

    fn muon_direction(
        &self,
        mu: f64,
        grad_scale: f32,
        g: ViewMut<'_>,
        m: ViewMut<'_>,
    ) -> Result<()> {
        assert_eq!(g.len(), m.len(), "one momentum value for each gradient");
        if g.is_empty() {
            return Ok(());
        }
        let (grid, n) = (self.over(2 * g.len()), g.len() as u64);
        let (g, m) = (self.write(&g, Dtype::F32)?, self.write(&m, Dtype::F32)?);
        let [mu, toward_gradient] = muon::factors(mu);
        launch!(self, OPTIMIZER, "muon_direction", grid, g, m, n, mu, toward_gradient, grad_scale,)
    }
}
