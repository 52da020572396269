//! GeGLU (Shazeer 2020), the gated activation of Gemma: `act = gelu(gate) * up`, with GELU in its
//! tanh form ([`crate::gelu`]).

use crate::Cpu;
use crate::gated::{self, Gate};
use crate::gelu::Gelu;
use crate::pointwise::Function;
use crate::simd::Simd;

/// Sets `act_tf` from the rows `gate, up` of `gate_up_t2f`.
pub fn forward(cpu: &Cpu, gate_up_t2f: &[f32], ffn: usize, act_tf: &mut [f32]) {
    gated::forward::<Gelu>(cpu, gate_up_t2f, ffn, act_tf);
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
    gated::backward::<Gelu>(cpu, gate_up_t2f, ffn, dact_tf, dgate_up_t2f, act_tf);
}

impl Gate for Gelu {
    #[inline(always)]
    fn value<S: Simd>(s: S, gate: S::V) -> S::V {
        <Self as Function>::value(s, gate)
    }

    #[inline(always)]
    fn value_and_slope<S: Simd>(s: S, gate: S::V) -> [S::V; 2] {
        [<Self as Function>::value(s, gate), Self::gradient(s, gate, s.splat(1.0))]
    }
}
