//! SwiGLU (Shazeer 2020), the gated activation of the Llama family: `act = silu(gate) * up`.
//!
//! With s = sigmoid(gate), silu(gate) = gate · s, whose derivative is s + gate · s · (1 − s).

use crate::Cpu;
use crate::gated::{self, Gate};
use crate::math::{sigmoid, sigmoid_and_slope};
use crate::simd::Simd;

/// Sets `act_tf` from the rows `gate, up` of `gate_up_t2f`.
pub fn forward(cpu: &Cpu, gate_up_t2f: &[f32], ffn: usize, act_tf: &mut [f32]) {
    gated::forward::<Silu>(cpu, gate_up_t2f, ffn, act_tf);
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
    gated::backward::<Silu>(cpu, gate_up_t2f, ffn, dact_tf, dgate_up_t2f, act_tf);
}

struct Silu;

impl Gate for Silu {
    #[inline(always)]
    fn value<S: Simd>(s: S, gate: S::V) -> S::V {
        s.mul(gate, sigmoid(s, gate))
    }

    #[inline(always)]
    fn value_and_slope<S: Simd>(s: S, gate: S::V) -> [S::V; 2] {
        let (sigmoid, slope) = sigmoid_and_slope(s, gate);
        [s.mul(gate, sigmoid), s.fma(gate, slope, sigmoid)]
    }
}
