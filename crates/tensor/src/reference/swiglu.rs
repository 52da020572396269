//! SwiGLU by its definition, in `f64`.

use crate::math::scalar::exp;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + exp(-x))
}

/// `silu(gate) * up` for rows that hold `ffn` gates, then `ffn` ups.
pub fn forward(gate_up_t2f: &[f64], ffn: usize) -> Vec<f64> {
    let mut act_tf = Vec::new();
    for row in gate_up_t2f.chunks_exact(2 * ffn) {
        let (gate, up) = row.split_at(ffn);
        act_tf.extend(gate.iter().zip(up).map(|(gate, up)| gate * sigmoid(*gate) * up));
    }
    act_tf
}

/// The gradient of the rows `gate, up`.
pub fn backward(gate_up_t2f: &[f64], ffn: usize, dact_tf: &[f64]) -> Vec<f64> {
    let mut dgate_up_t2f = Vec::new();
    for (row, dact) in gate_up_t2f.chunks_exact(2 * ffn).zip(dact_tf.chunks_exact(ffn)) {
        let (gate, up) = row.split_at(ffn);
        for j in 0..ffn {
            let s = sigmoid(gate[j]);
            dgate_up_t2f.push(dact[j] * up[j] * s * (1.0 + gate[j] * (1.0 - s)));
        }
        for j in 0..ffn {
            dgate_up_t2f.push(dact[j] * gate[j] * sigmoid(gate[j]));
        }
    }
    dgate_up_t2f
}
