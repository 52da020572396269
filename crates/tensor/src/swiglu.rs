//! SwiGLU (Shazeer 2020), the gated activation of the Llama family: `act = silu(gate) * up`.
//!
//! One product computes gate and up, so a row has the gate's columns, then up's. With s =
//! sigmoid(gate) and silu(gate) = gate · s:
//!
//! - d up = d act · silu(gate)
//! - d gate = d act · up · (s + gate · s · (1 − s))
//!
//! Backward also recomputes `act` with forward's bits: the following product needs it for its
//! weight gradient, and recomputing is cheaper than storing.
//!
//! Shapes: t tokens (rows), f width of the feed-forward layer.

use crate::Cpu;
use crate::math::{sigmoid, sigmoid_and_slope};
use crate::reduce::groups::{load, num_groups, store};
use crate::simd::{Kernel, Simd};

/// Rows of a task.
const ROWS: usize = 8;

/// Sets `act_tf` from the rows `gate, up` of `gate_up_t2f`.
pub fn forward(cpu: &Cpu, gate_up_t2f: &[f32], ffn: usize, act_tf: &mut [f32]) {
    check_shapes(gate_up_t2f, ffn, act_tf);
    cpu.for_each_part(act_tf, ROWS * ffn, |i, act_tf| {
        let gate_up_t2f = &gate_up_t2f[2 * i * ROWS * ffn..][..2 * act_tf.len()];
        cpu.run(Forward { gate_up_t2f, ffn, act_tf });
    });
}

/// Sets `dgate_up_t2f` to the gradient of `gate_up_t2f`, given `dact_tf`, and `act_tf` to forward's
/// output.
pub fn backward(
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
        cpu.run(Backward { gate_up_t2f, ffn, dact_tf, dgate_up_t2f, act_tf });
    });
}

fn check_shapes(gate_up_t2f: &[f32], ffn: usize, act_tf: &[f32]) {
    assert!(ffn > 0, "a row has at least one column");
    assert!(act_tf.len().is_multiple_of(ffn), "the activation has whole rows of {ffn}");
    assert_eq!(gate_up_t2f.len(), 2 * act_tf.len(), "a gate and an up for each activation");
}

struct Forward<'a> {
    gate_up_t2f: &'a [f32],
    ffn: usize,
    act_tf: &'a mut [f32],
}

impl Kernel for Forward<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.gate_up_t2f.chunks_exact(2 * self.ffn);
        for (gate_up, act) in rows.zip(self.act_tf.chunks_exact_mut(self.ffn)) {
            let (gate, up) = gate_up.split_at(self.ffn);
            for i in 0..num_groups(act) {
                let gate = load(s, gate, i);
                let silu = s.mul(gate, sigmoid(s, gate));
                store(s, s.mul(silu, load(s, up, i)), act, i);
            }
        }
    }
}

struct Backward<'a> {
    gate_up_t2f: &'a [f32],
    ffn: usize,
    dact_tf: &'a [f32],
    dgate_up_t2f: &'a mut [f32],
    act_tf: &'a mut [f32],
}

impl Kernel for Backward<'_> {
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
                let (sigmoid, slope) = sigmoid_and_slope(s, gate);
                let silu = s.mul(gate, sigmoid);
                let dsilu = s.fma(gate, slope, sigmoid);
                store(s, s.mul(silu, up), act, i);
                store(s, s.mul(dact, silu), dup, i);
                store(s, s.mul(s.mul(dact, up), dsilu), dgate, i);
            }
        }
    }
}
