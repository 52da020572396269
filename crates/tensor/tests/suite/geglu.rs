//! GeGLU against its definition and against differences, and gates at the edges of their range.

use crate::common::{
    ODD_WIDTHS, assert_close, central_differences, dot, numbers, same_bits_everywhere, wide,
};
use lockstep_tensor::geglu::{backward, forward};
use lockstep_tensor::{Cpu, Isa, reference};

const NUM_ROWS: [usize; 3] = [1, 3, 17];

/// The gradient, then the activation.
fn run_backward(cpu: &Cpu, gate_up: &[f32], ffn: usize, dact: &[f32]) -> Vec<f32> {
    let (mut dgate_up, mut act) = (vec![f32::NAN; gate_up.len()], vec![f32::NAN; dact.len()]);
    backward(cpu, gate_up, ffn, dact, &mut dgate_up, &mut act);
    [dgate_up, act].concat()
}

fn run_forward(cpu: &Cpu, gate_up: &[f32], ffn: usize) -> Vec<f32> {
    let mut act = vec![f32::NAN; gate_up.len() / 2];
    forward(cpu, gate_up, ffn, &mut act);
    act
}

#[test]
fn forward_and_backward_match_the_reference_on_odd_shapes() {
    for ffn in ODD_WIDTHS {
        for num_rows in NUM_ROWS {
            let gate_up: Vec<f32> =
                numbers(1, 2 * num_rows * ffn).iter().map(|x| 4.0 * x).collect();
            let dact = numbers(2, num_rows * ffn);
            let act = same_bits_everywhere(|cpu| run_forward(cpu, &gate_up, ffn));
            assert_close(&act, &reference::geglu::forward(&wide(&gate_up), ffn), 1);

            let got = same_bits_everywhere(|cpu| run_backward(cpu, &gate_up, ffn, &dact));
            let (dgate_up, recomputed) = got.split_at(gate_up.len());
            let expected = reference::geglu::backward(&wide(&gate_up), ffn, &wide(&dact));
            assert_close(dgate_up, &expected, 1);
            assert_eq!(recomputed, act, "backward repeats the bits of forward");
        }
    }
}

#[test]
fn backward_matches_central_differences() {
    let (ffn, num_rows) = (19, 3);
    let (gate_up, dact) = (numbers(3, 2 * num_rows * ffn), numbers(4, num_rows * ffn));
    let got = run_backward(&Cpu::single(Isa::detect()), &gate_up, ffn, &dact);
    let expected = central_differences(&gate_up, |gate_up| {
        dot(&reference::geglu::forward(gate_up, ffn), &wide(&dact))
    });
    assert_close(&got[..gate_up.len()], &expected, 1);
}
