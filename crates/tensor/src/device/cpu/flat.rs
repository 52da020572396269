//! Flat buffers on the CPU.

use crate::adamw_8bit::MomentBlock;
use crate::device::error::{DeviceError, Result};
use crate::device::flat::FlatBuffers;
use crate::device::operands::{MAX_STATE_BUFFERS, Momentum, Rule};
use crate::device::view::{Dtype, View, ViewMut};
use crate::gemm::Precision;
use crate::moments::AdamStep;
use crate::{
    Cpu, adam, adamw, adamw_8bit, convert, lamb, lars, lion, muon, nesterov, reduce, schedule_free,
    sgd,
};

impl FlatBuffers for Cpu {
    fn add(&self, a: View<'_>, b: View<'_>, out: ViewMut<'_>) -> Result<()> {
        reduce::add(self, a.as_slice()?, b.as_slice()?, out.into_slice()?);
        Ok(())
    }

    fn add_assign(&self, target: ViewMut<'_>, source: View<'_>) -> Result<()> {
        reduce::add_assign(self, target.into_slice()?, source.as_slice()?);
        Ok(())
    }

    fn convert(&self, from: View<'_>, to: ViewMut<'_>, errors: ViewMut<'_>) -> Result<()> {
        let found = match (from.dtype(), to.dtype()) {
            (Dtype::F32, Dtype::Bf16) => convert::to_bf16(self, from.as_slice()?, to.into_slice()?),
            (Dtype::F32, Dtype::F16) => convert::to_f16(self, from.as_slice()?, to.into_slice()?),
            (Dtype::Bf16, Dtype::F32) => {
                convert::from_bf16(self, from.as_slice()?, to.into_slice()?);
                return Ok(());
            }
            (Dtype::F16, Dtype::F32) => {
                convert::from_f16(self, from.as_slice()?, to.into_slice()?);
                return Ok(());
            }
            (from, to) => {
                let reason = format!("from {from} to {to}");
                return Err(DeviceError::Unsupported { operation: "convert", reason });
            }
        };
        count(errors, found)
    }

    fn scale(
        &self,
        x: ViewMut<'_>,
        factor: f32,
        precision: Precision,
        errors: ViewMut<'_>,
    ) -> Result<()> {
        let found = convert::scale(self, x.into_slice()?, factor, precision);
        count(errors, found)
    }

    fn sum_squares(&self, tensors: &[View<'_>], mut out: ViewMut<'_>) -> Result<()> {
        for x in tensors {
            let (own, rest) = out.split_at(x.len().div_ceil(reduce::SQUARES_CHUNK));
            reduce::sum_squares_chunks(self, x.as_slice()?, own.into_slice()?);
            out = rest;
        }
        assert!(out.is_empty(), "one sum for each chunk");
        Ok(())
    }

    fn first_non_finite(&self, x: View<'_>) -> Result<Option<usize>> {
        Ok(reduce::first_non_finite(self, x.as_slice()?))
    }

    fn optimizer_step(
        &self,
        rule: &Rule,
        p: ViewMut<'_>,
        g: View<'_>,
        state: [ViewMut<'_>; MAX_STATE_BUFFERS],
        copy: ViewMut<'_>,
    ) -> Result<()> {
        let (p, g) = (p.into_slice()?, g.as_slice()?);
        let [one, two, three] = state;
        match *rule {
            Rule::Sgd(r) => sgd::step(self, r.lr, r.weight_decay, r.grad_scale, p, g),
            Rule::Momentum { variant, mu, rates: r } => {
                let step = match variant {
                    Momentum::Plain => sgd::momentum,
                    Momentum::Nesterov => nesterov::step,
                    Momentum::Lars => lars::step,
                };
                step(self, r.lr, mu, r.weight_decay, r.grad_scale, p, g, one.into_slice()?);
            }
            Rule::Adam(step) => {
                adam::step(self, &step, p, g, one.into_slice()?, two.into_slice()?);
            }
            Rule::AdamW(step) => {
                adamw::step(self, &step, p, g, one.into_slice()?, two.into_slice()?);
            }
            Rule::Lion(step) => lion::step(self, &step, p, g, one.into_slice()?),
            Rule::ScheduleFree(step) => {
                let [x, z, v] = [one.into_slice()?, two.into_slice()?, three.into_slice()?];
                schedule_free::step(self, &step, p, g, x, z, v);
            }
        }
        if copy.is_empty() {
            return Ok(());
        }
        self.convert(View::of(p), copy, ViewMut::of::<u64>(&mut []))
    }

    fn adamw_8bit(
        &self,
        step: &AdamStep,
        p: ViewMut<'_>,
        g: View<'_>,
        moments: &mut [MomentBlock],
        copy: ViewMut<'_>,
    ) -> Result<()> {
        let p = p.into_slice()?;
        adamw_8bit::step(self, step, p, g.as_slice()?, moments);
        if copy.is_empty() {
            return Ok(());
        }
        self.convert(View::of(p), copy, ViewMut::of::<u64>(&mut []))
    }

    fn lamb_direction(
        &self,
        step: &AdamStep,
        p: View<'_>,
        g: ViewMut<'_>,
        moments: [ViewMut<'_>; 2],
    ) -> Result<()> {
        let [m, v] = moments;
        let (p, g) = (p.as_slice()?, g.into_slice()?);
        lamb::direction(self, step, p, g, m.into_slice()?, v.into_slice()?);
        Ok(())
    }

    fn muon_direction(
        &self,
        mu: f64,
        grad_scale: f32,
        g: ViewMut<'_>,
        m: ViewMut<'_>,
    ) -> Result<()> {
        muon::direction(self, mu, grad_scale, g.into_slice()?, m.into_slice()?);
        Ok(())
    }
}

/// Adds the errors of a pass to two counts, unless they are not requested.
fn count(errors: ViewMut<'_>, found: convert::RangeErrors) -> Result<()> {
    if errors.is_empty() {
        return Ok(());
    }
    let [non_finite, zeroed] = errors.into_slice::<u64>()? else { panic!("two counts") };
    *non_finite += found.num_non_finite;
    *zeroed += found.num_zeroed;
    Ok(())
}
