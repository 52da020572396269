//! AdamW against its definition over several steps, and to the bit against a scalar loop.

use crate::common::{assert_close, numbers, same_bits_everywhere, wide};
use lockstep_tensor::adamw::{AdamStep, step};
use lockstep_tensor::internals::ELEMENTS;
use lockstep_tensor::{Cpu, Isa, reference};

const LENGTHS: [usize; 8] = [0, 1, 15, 16, 17, 257, ELEMENTS, 2 * ELEMENTS + 3];

/// Scalars of the t-th step (from one).
fn scalars(t: i32) -> AdamStep {
    let (beta1, beta2) = (0.9f64, 0.95f64);
    AdamStep {
        lr: 3e-3,
        beta1,
        beta2,
        eps: 1e-8,
        weight_decay: 0.1,
        bias1: 1.0 - beta1.powi(t),
        bias2: 1.0 - beta2.powi(t),
        grad_scale: 0.75,
    }
}

/// Parameters and moments after some steps, each with other gradients.
fn train(cpu: &Cpu, len: usize, num_steps: i32) -> [Vec<f32>; 3] {
    let (mut p, mut m, mut v) = (numbers(1, len), vec![0.0; len], vec![0.0; len]);
    for t in 1..=num_steps {
        step(cpu, &scalars(t), &mut p, &numbers(1 + t as u32, len), &mut m, &mut v);
    }
    [p, m, v]
}

#[test]
fn ten_steps_match_the_reference() {
    for len in LENGTHS {
        same_bits_everywhere(|cpu| train(cpu, len, 2).concat());
    }
    let len = 257;
    let [p, m, v] = train(&Cpu::single(Isa::detect()), len, 10);
    let (mut p_wide, mut m_wide, mut v_wide) =
        (wide(&numbers(1, len)), vec![0.0; len], vec![0.0; len]);
    for t in 1..=10 {
        let g = wide(&numbers(1 + t as u32, len));
        reference::adamw::step(&scalars(t), &mut p_wide, &g, &mut m_wide, &mut v_wide);
    }
    assert_close(&p, &p_wide, 10);
    assert_close(&m, &m_wide, 10);
    assert_close(&v, &v_wide, 10);
}

#[test]
fn every_element_is_the_stated_formula_to_the_bit() {
    let len = 67;
    let (p, g) = (numbers(20, len), numbers(21, len));
    let (m, v) = (numbers(22, len), numbers(23, len).iter().map(|v| v * v).collect::<Vec<_>>());
    let scalars = scalars(7);
    let got = same_bits_everywhere(|cpu| {
        let (mut p, mut m, mut v) = (p.clone(), m.clone(), v.clone());
        step(cpu, &scalars, &mut p, &g, &mut m, &mut v);
        [p, m, v].concat()
    });
    let keep = (1.0 - scalars.lr * scalars.weight_decay) as f32;
    let step_size = (scalars.lr / scalars.bias1) as f32;
    let (sqrt_bias2, eps) = (scalars.bias2.sqrt() as f32, scalars.eps as f32);
    let (toward_gradient, beta2) = ((1.0 - scalars.beta1) as f32, scalars.beta2 as f32);
    let one_minus_beta2 = (1.0 - scalars.beta2) as f32;
    for i in 0..len {
        let g = g[i] * scalars.grad_scale;
        let m = (g - m[i]).mul_add(toward_gradient, m[i]);
        let v = (g * one_minus_beta2).mul_add(g, v[i] * beta2);
        let update = m / (v.sqrt() / sqrt_bias2 + eps);
        let p = update.mul_add(-step_size, p[i] * keep);
        let got = [got[i], got[len + i], got[2 * len + i]].map(f32::to_bits);
        assert_eq!(got, [p, m, v].map(f32::to_bits), "element {i}");
    }
}

#[test]
fn the_first_step_moves_every_parameter_by_the_learning_rate() {
    // With zero moments, m / bias1 is g and sqrt(v / bias2) is |g|: only the sign is left.
    let cpu = Cpu::single(Isa::detect());
    let scalars = AdamStep { weight_decay: 0.0, ..scalars(1) };
    let g = numbers(30, 100);
    let (mut p, mut m, mut v) = (vec![0.0; 100], vec![0.0; 100], vec![0.0; 100]);
    step(&cpu, &scalars, &mut p, &g, &mut m, &mut v);
    for (p, g) in p.iter().zip(&g) {
        assert!(
            (p + scalars.lr as f32 * g.signum()).abs() < 1e-6,
            "moved by {p:e} for gradient {g:e}"
        );
    }
}

#[test]
fn two_halves_of_a_buffer_give_the_bits_of_the_whole() {
    let cpu = Cpu::single(Isa::detect());
    let (len, cut) = (100, 37);
    let whole = train(&cpu, len, 1);
    let (mut p, g) = (numbers(1, len), numbers(2, len));
    let (mut m, mut v) = (vec![0.0; len], vec![0.0; len]);
    for range in [0..cut, cut..len] {
        let (p, m, v) = (&mut p[range.clone()], &mut m[range.clone()], &mut v[range.clone()]);
        step(&cpu, &scalars(1), p, &g[range], m, v);
    }
    assert_eq!([p, m, v], whole);
}
