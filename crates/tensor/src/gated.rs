//! Gated activations (Shazeer 2020), forward and backward: `act = f(gate) * up`, with the function
//! of [`crate::swiglu`] or [`crate::geglu`].
//!
//! One product computes gate and up, so a row has the gate's columns, then up's. The gradients are
//! `d up = d act · f(gate)` and `d gate = d act · up · f'(gate)`.
//!
//! Backward also recomputes `act` with forward's bits: the following product needs it for its
//! weight gradient, and recomputing is cheaper than storing.
//!
//! Shapes: t tokens (rows), f width of the feed-forward layer.

use crate::Cpu;
use crate::reduce::groups::{load, num_groups, store};
use crate::simd::{Kernel, Simd};
use std::marker::PhantomData;

/// Rows of a task.
const ROWS: usize = 8;

/// A function of the gate; implementations must be `#[inline(always)]`.
pub(crate) trait Gate: Send + Sync {
    /// The function's value.
    fn value<S: Simd>(s: S, gate: S::V) -> S::V;
    /// Value, with the bits of [`Self::value`], and derivative.
    fn value_and_slope<S: Simd>(s: S, gate: S::V) -> [S::V; 2];
}

/// Sets `act_tf` from the rows `gate, up` of `gate_up_t2f`.
pub(crate) fn forward<G: Gate>(cpu: &Cpu, gate_up_t2f: &[f32], ffn: usize, act_tf: &mut [f32]) {
    check_shapes(gate_up_t2f, ffn, act_tf);
    cpu.for_each_part(act_tf, ROWS * ffn, |i, act_tf| {
        let gate_up_t2f = &gate_up_t2f[2 * i * ROWS * ffn..][..2 * act_tf.len()];
        cpu.run(Forward { gate: PhantomData::<G>, gate_up_t2f, ffn, act_tf });
    });
}

/// Sets `dgate_up_t2f` to the gradient of `gate_up_t2f`, given `dact_tf`, and `act_tf` to forward's
/// output.
pub(crate) fn backward<G: Gate>(
    cpu: &Cpu,
    gate_up_t2f: &[f32],
    ffn: usize,
    dact_tf: &[f32],
    dgate_up_t2f: &mut [f32],
    act_tf: &mut [f32],
) {
    check_shapes(gate_up_t2f, ffn, act_tf);
    assert_eq!(dact_tf.len(), act_tf.len(), "the activation and its gradient have one shape");
    assert_eq!(dgate_up_t2f.len(), gate_up_t2f.len(), "the input and its gradient have one shape");
    let part_lens = [2 * ROWS * ffn, ROWS * ffn];
    cpu.for_each_split([dgate_up_t2f, act_tf], part_lens, |i, [dgate_up_t2f, act_tf]| {
        let gate_up_t2f = &gate_up_t2f[2 * i * ROWS * ffn..][..dgate_up_t2f.len()];
        let dact_tf = &dact_tf[i * ROWS * ffn..][..act_tf.len()];
        let gate = PhantomData::<G>;
        cpu.run(Backward { gate, gate_up_t2f, ffn, dact_tf, dgate_up_t2f, act_tf });
    });
}

fn check_shapes(gate_up_t2f: &[f32], ffn: usize, act_tf: &[f32]) {
    assert!(ffn > 0, "a row has at least one column");
    assert!(act_tf.len().is_multiple_of(ffn), "the activation has whole rows of {ffn}");
    assert_eq!(gate_up_t2f.len(), 2 * act_tf.len(), "a gate and an up for each activation");
}

struct Forward<'a, G> {
    gate: PhantomData<G>,
    gate_up_t2f: &'a [f32],
    ffn: usize,
    act_tf: &'a mut [f32],
}

impl<G: Gate> Kernel for Forward<'_, G> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.gate_up_t2f.chunks_exact(2 * self.ffn);
        for (gate_up, act) in rows.zip(self.act_tf.chunks_exact_mut(self.ffn)) {
            let (gate, up) = gate_up.split_at(self.ffn);
            for i in 0..num_groups(act) {
                let open = G::value(s, load(s, gate, i));
                store(s, s.mul(open, load(s, up, i)), act, i);
            }
        }
    }
}

struct Backward<'a, G> {
    gate: PhantomData<G>,
    gate_up_t2f: &'a [f32],
    ffn: usize,
    dact_tf: &'a [f32],
    dgate_up_t2f: &'a mut [f32],
    act_tf: &'a mut [f32],
}

impl<G: Gate> Kernel for Backward<'_, G> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let inputs = self.gate_up_t2f.chunks_exact(2 * self.ffn);
        let inputs = inputs.zip(self.dact_tf.chunks_exact(self.ffn));
        let outputs = self.dgate_up_t2f.chunks_exact_mut(2 * self.ffn);
        let outputs = outputs.zip(self.act_tf.chunks_exact_mut(self.ffn));
        for ((gate_up, dact), (dgate_up, act)) in inputs.zip(outputs) {
            let (gate, up) = gate_up.split_at(self.ffn);
            let (dgate, dup) = dgate_up.split_at_mut(self.ffn);
            for i in 0..num_groups(act) {
                let (gate, up) = (load(s, gate, i), load(s, up, i));
                let dact = load(s, dact, i);
                let [open, slope] = G::value_and_slope(s, gate);
                store(s, s.mul(open, up), act, i);
                store(s, s.mul(dact, open), dup, i);
                store(s, s.mul(s.mul(dact, up), slope), dgate, i);
            }
        }
    }
}
