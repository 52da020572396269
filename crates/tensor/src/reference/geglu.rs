//! GeGLU by its definition, in `f64`.

use super::gelu;

/// `gelu(gate) * up` for rows that hold `ffn` gates, then `ffn` ups.
pub fn forward(gate_up_t2f: &[f64], ffn: usize) -> Vec<f64> {
    let mut act_tf = Vec::new();
    for row in gate_up_t2f.chunks_exact(2 * ffn) {
        let (gate, up) = row.split_at(ffn);
        act_tf.extend(gelu::forward(gate).iter().zip(up).map(|(open, up)| open * up));
    }
    act_tf
}

/// The gradient of the rows `gate, up`.
pub fn backward(gate_up_t2f: &[f64], ffn: usize, dact_tf: &[f64]) -> Vec<f64> {
    let mut dgate_up_t2f = Vec::new();
    for (row, dact) in gate_up_t2f.chunks_exact(2 * ffn).zip(dact_tf.chunks_exact(ffn)) {
        let (gate, up) = row.split_at(ffn);
        let of_gate: Vec<f64> = dact.iter().zip(up).map(|(dact, up)| dact * up).collect();
        dgate_up_t2f.extend(gelu::backward(gate, &of_gate));
        dgate_up_t2f.extend(gelu::forward(gate).iter().zip(dact).map(|(open, dact)| open * dact));
    }
    dgate_up_t2f
}
