//! 1-bit Adam: after a warm-up Adam's momentum travels in signs (Tang et al. 2021).
//!
//! Adam divides by the root of its second moment, so compressed gradients would be divided by their
//! own noise. In the warm-up nothing is compressed and the second moment settles; then it is frozen
//! and Adam is momentum SGD with a learning rate for every element, and that tolerates error
//! feedback. What travels is not the gradient but the new momentum, which changes less:
//! each worker's share of it is β₁m/n + (1 − β₁)g.
//!
//! The optimizer still wants a gradient. It gets the one that turns the old momentum into the new.

/// This worker's share of the new momentum, in place of its gradient.
pub fn share(beta1: f32, num_workers: usize, momentum: &[f32], grads: &mut [f32]) {
    let part = beta1 / num_workers as f32;
    for (grad, momentum) in grads.iter_mut().zip(momentum) {
        *grad = part * momentum + (1.0 - beta1) * *grad;
    }
}

/// Keeps the new momentum, and puts the gradient that leads to it in its place.
pub fn take(beta1: f32, momentum: &mut [f32], new: &mut [f32]) {
    for (old, new) in momentum.iter_mut().zip(new) {
        let momentum = *new;
        *new = (momentum - beta1 * *old) / (1.0 - beta1);
        *old = momentum;
    }
}

/// Follows the momentum while gradients travel as they are.
pub fn follow(beta1: f32, momentum: &mut [f32], grads: &[f32]) {
    for (momentum, grad) in momentum.iter_mut().zip(grads) {
        *momentum = beta1 * *momentum + (1.0 - beta1) * grad;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_that_send_all_of_it_have_the_momentum_of_adam() {
        let (beta1, grads) = (0.9, [[1.0, -2.0, 0.5], [3.0, 0.0, 0.25]]);
        let before = [0.5, 1.0, -1.0];
        let mut expected = before;
        let sum: Vec<f32> = (0..3).map(|i| grads[0][i] + grads[1][i]).collect();
        follow(beta1, &mut expected, &sum);
        let mut sent = [0.0; 3];
        for mut own in grads {
            share(beta1, 2, &before, &mut own);
            sent.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        let mut momentum = before;
        take(beta1, &mut momentum, &mut sent);
        for i in 0..3 {
            assert!((momentum[i] - expected[i]).abs() < 1e-6);
            assert!((sent[i] - sum[i]).abs() < 1e-5, "the gradient that leads there");
        }
    }
}
