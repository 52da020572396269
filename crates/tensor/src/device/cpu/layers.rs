//! Layers on the CPU.

use crate::device::error::Result;
use crate::device::flat::FlatBuffers;
use crate::device::layers::Layers;
use crate::device::operands::{Activation, Norm};
use crate::device::view::{View, ViewMut};
use crate::dropout::DropoutMask;
use crate::norm_rms::Scale;
use crate::rope::Rotation;
use crate::{
    Cpu, bias, embedding, geglu, gelu, gelu_erf, norm_layer, norm_rms, reduce, relu, rope,
    soft_cap, swiglu,
};

impl Layers for Cpu {
    fn norm_forward(
        &self,
        norm: Norm<'_>,
        x: View<'_>,
        y: ViewMut<'_>,
        stats: ViewMut<'_>,
    ) -> Result<()> {
        let (x, weight) = (x.as_slice()?, norm.weight.as_slice()?);
        let (y, stats) = (y.into_slice()?, stats.into_slice()?);
        if let Some(bias) = norm.bias {
            let (mean, rstd) = stats.split_at_mut(stats.len() / 2);
            norm_layer::forward(self, x, weight, bias.as_slice()?, norm.eps, y, mean, rstd);
        } else {
            norm_rms::forward(self, x, scale(&norm)?, norm.eps, y, stats);
        }
        Ok(())
    }

    fn add_norm_forward(
        &self,
        norm: Norm<'_>,
        x: View<'_>,
        residual: View<'_>,
        mut sum: ViewMut<'_>,
        y: ViewMut<'_>,
        stats: ViewMut<'_>,
    ) -> Result<()> {
        self.add(x, residual, sum.reborrow())?;
        self.norm_forward(norm, sum.as_view(), y, stats)
    }

    fn normalize(
        &self,
        norm: Norm<'_>,
        x: View<'_>,
        stats: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        let (mean, rstd) = split_stats(&norm, stats)?;
        let (x, weight, y) = (x.as_slice()?, norm.weight.as_slice()?, y.into_slice()?);
        if let Some(bias) = norm.bias {
            norm_layer::normalize(self, x, weight, bias.as_slice()?, mean, rstd, y);
        } else {
            norm_rms::normalize(self, x, scale(&norm)?, rstd, y);
        }
        Ok(())
    }

    fn norm_backward(
        &self,
        norm: Norm<'_>,
        x: View<'_>,
        stats: View<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
    ) -> Result<()> {
        let (mean, rstd) = split_stats(&norm, stats)?;
        let (x, weight) = (x.as_slice()?, norm.weight.as_slice()?);
        let (dy, dx) = (dy.as_slice()?, dx.into_slice()?);
        if norm.bias.is_some() {
            norm_layer::backward(self, x, weight, mean, rstd, dy, dx, &mut [], &mut []);
        } else {
            norm_rms::backward(self, x, scale(&norm)?, rstd, dy, dx, &mut []);
        }
        Ok(())
    }

    fn norm_weight_backward(
        &self,
        norm: Norm<'_>,
        x: View<'_>,
        stats: View<'_>,
        dy: View<'_>,
        dweight: ViewMut<'_>,
        dbias: ViewMut<'_>,
    ) -> Result<()> {
        let (num_rows, stats) = (x.len() / norm.width(), stats.as_slice::<f32>()?);
        let (mean, rstd) = (&stats[..num_rows], &stats[stats.len() - num_rows..]);
        let (x, dy) = (x.as_slice()?, dy.as_slice()?);
        let (dweight, dbias) = (dweight.into_slice()?, dbias.into_slice()?);
        if norm.bias.is_some() {
            norm_layer::weight_backward(self, x, mean, rstd, dy, dweight, dbias);
        } else if !dweight.is_empty() {
            norm_rms::weight_backward(self, x, rstd, dy, dweight);
        }
        Ok(())
    }

    fn norm_and_weight_backward(
        &self,
        norm: Norm<'_>,
        x: View<'_>,
        stats: View<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
        dweight: ViewMut<'_>,
        dbias: ViewMut<'_>,
    ) -> Result<()> {
        self.norm_weight_backward(norm, x, stats, dy, dweight, dbias)?;
        self.norm_backward(norm, x, stats, dy, dx)
    }

    fn rotate(
        &self,
        angles: View<'_>,
        head_dim: usize,
        rows: ViewMut<'_>,
        rotation: &Rotation,
    ) -> Result<()> {
        let (angles, rows) = (angles.as_slice()?, rows.into_slice()?);
        rope::rotate_by_angles(self, angles, head_dim, rows, rotation);
        Ok(())
    }

    fn swiglu_forward(&self, gate_up: View<'_>, ffn: usize, act: ViewMut<'_>) -> Result<()> {
        swiglu::forward(self, gate_up.as_slice()?, ffn, act.into_slice()?);
        Ok(())
    }

    fn swiglu_backward(
        &self,
        gate_up: View<'_>,
        ffn: usize,
        dact: View<'_>,
        dgate_up: ViewMut<'_>,
        act: ViewMut<'_>,
    ) -> Result<()> {
        let (gate_up, dact) = (gate_up.as_slice()?, dact.as_slice()?);
        let mut spare = Vec::new();
        let act = if act.is_empty() {
            spare.resize(dact.len(), 0.0);
            &mut spare
        } else {
            act.into_slice()?
        };
        swiglu::backward(self, gate_up, ffn, dact, dgate_up.into_slice()?, act);
        Ok(())
    }

    fn geglu_forward(&self, gate_up: View<'_>, ffn: usize, act: ViewMut<'_>) -> Result<()> {
        geglu::forward(self, gate_up.as_slice()?, ffn, act.into_slice()?);
        Ok(())
    }

    fn geglu_backward(
        &self,
        gate_up: View<'_>,
        ffn: usize,
        dact: View<'_>,
        dgate_up: ViewMut<'_>,
        act: ViewMut<'_>,
    ) -> Result<()> {
        let (gate_up, dact) = (gate_up.as_slice()?, dact.as_slice()?);
        let (dgate_up, act) = (dgate_up.into_slice()?, act.into_slice()?);
        geglu::backward(self, gate_up, ffn, dact, dgate_up, act);
        Ok(())
    }

    fn soft_cap(&self, cap: f32, x: ViewMut<'_>) -> Result<()> {
        soft_cap::forward(self, cap, x.into_slice()?);
        Ok(())
    }

    fn soft_cap_backward(&self, cap: f32, y: View<'_>, dy: ViewMut<'_>) -> Result<()> {
        soft_cap::backward(self, cap, y.as_slice()?, dy.into_slice()?);
        Ok(())
    }

    fn activate(&self, function: Activation, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let (x, y) = (x.as_slice()?, y.into_slice()?);
        match function {
            Activation::Gelu => gelu::forward(self, x, y),
            Activation::GeluErf => gelu_erf::forward(self, x, y),
            Activation::Relu => relu::forward(self, x, y),
        }
        Ok(())
    }

    fn activate_backward(
        &self,
        function: Activation,
        x: View<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
    ) -> Result<()> {
        let (x, dy, dx) = (x.as_slice()?, dy.as_slice()?, dx.into_slice()?);
        match function {
            Activation::Gelu => gelu::backward(self, x, dy, dx),
            Activation::GeluErf => gelu_erf::backward(self, x, dy, dx),
            Activation::Relu => relu::backward(self, x, dy, dx),
        }
        Ok(())
    }

    fn activate_and_backward(
        &self,
        function: Activation,
        x: View<'_>,
        dy: View<'_>,
        y: ViewMut<'_>,
        dx: ViewMut<'_>,
    ) -> Result<()> {
        self.activate(function, x, y)?;
        self.activate_backward(function, x, dy, dx)
    }

    fn bias_add(&self, x: ViewMut<'_>, bias: View<'_>) -> Result<()> {
        bias::add(self, x.into_slice()?, bias.as_slice()?);
        Ok(())
    }

    fn column_sums(&self, x: View<'_>, sums: ViewMut<'_>) -> Result<()> {
        reduce::column_sums(self, x.as_slice()?, sums.into_slice()?);
        Ok(())
    }

    fn embedding_forward(
        &self,
        ids: View<'_>,
        table: View<'_>,
        first_row: usize,
        width: usize,
        out: ViewMut<'_>,
    ) -> Result<()> {
        let (ids, table, out) = (ids.as_slice()?, table.as_slice()?, out.into_slice()?);
        embedding::forward_part(self, ids, table, first_row, width, out);
        Ok(())
    }

    fn embedding_backward(
        &self,
        ids: View<'_>,
        dout: View<'_>,
        first_row: usize,
        width: usize,
        dtable: ViewMut<'_>,
    ) -> Result<()> {
        let (ids, dout, dtable) = (ids.as_slice()?, dout.as_slice()?, dtable.into_slice()?);
        embedding::backward_part(self, ids, dout, first_row, width, dtable);
        Ok(())
    }

    fn add_positions(
        &self,
        table: View<'_>,
        (tokens, documents): (usize, Option<View<'_>>),
        first_position: usize,
        width: usize,
        x: ViewMut<'_>,
    ) -> Result<()> {
        let (table, x) = (table.as_slice()?, x.into_slice()?);
        let documents = documents.map(|documents| documents.as_slice()).transpose()?;
        let sequences = (tokens, documents);
        embedding::add_positions(self, table, sequences, first_position, width, x);
        Ok(())
    }

    fn positions_backward(
        &self,
        dx: View<'_>,
        (tokens, documents): (usize, Option<View<'_>>),
        width: usize,
        dtable: ViewMut<'_>,
    ) -> Result<()> {
        let (dx, dtable) = (dx.as_slice()?, dtable.into_slice()?);
        let documents = documents.map(|documents| documents.as_slice()).transpose()?;
        embedding::positions_backward(self, dx, (tokens, documents), width, dtable);
        Ok(())
    }

    fn dropout(&self, mask: &DropoutMask, first_element: u64, x: ViewMut<'_>) -> Result<()> {
        crate::dropout::apply(self, mask, first_element, x.into_slice()?);
        Ok(())
    }
}

/// Scale of an RMSNorm.
fn scale<'a>(norm: &Norm<'a>) -> Result<Scale<'a>> {
    Ok(Scale { weight_c: norm.weight.as_slice()?, adds_one: norm.adds_one })
}

/// Means, if the norm has them, and factors.
fn split_stats<'a>(norm: &Norm<'_>, stats: View<'a>) -> Result<(&'a [f32], &'a [f32])> {
    let stats = stats.as_slice::<f32>()?;
    Ok(stats.split_at(if norm.bias.is_some() { stats.len() / 2 } else { 0 }))
}
