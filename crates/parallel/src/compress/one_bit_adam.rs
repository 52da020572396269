//! 1-bit Adam (Tang et al. 2021): after a warm-up, Adam's momentum is sent as signs.
//!
//! Adam divides by the root of its second moment, so compressed gradients would be divided by their
//! own noise. During the warm-up nothing is compressed and the second moment settles; then it is
//! frozen, Adam becomes momentum SGD with a learning rate per element, and that tolerates error
//! feedback. The ranks exchange the new momentum instead of the gradient, because it changes less:
//! each rank's share of it is β₁m/n + (1 − β₁)g.
//!
//! The optimizer still takes a gradient: the one that turns the old momentum into the new.

/// Replaces this rank's gradient by its share of the new momentum.
pub fn momentum_share(beta1: f32, num_workers: usize, momentum: &[f32], grads: &mut [f32]) {
    let part = beta1 / num_workers as f32;
    for (grad, momentum) in grads.iter_mut().zip(momentum) {
        *grad = part * momentum + (1.0 - beta1) * *grad;
    }
}

/// Stores the new momentum and replaces it in `new` by the gradient that leads to it.
pub fn adopt_momentum(beta1: f32, momentum: &mut [f32], new: &mut [f32]) {
    for (old, new) in momentum.iter_mut().zip(new) {
        let momentum = *new;
        *new = (momentum - beta1 * *old) / (1.0 - beta1);
        *old = momentum;
    }
}

/// Updates the momentum while gradients are reduced uncompressed.
pub fn follow(beta1: f32, momentum: &mut [f32], grads: &[f32]) {
    for (momentum, grad) in momentum.iter_mut().zip(grads) {
        *momentum = beta1 * *momentum + (1.0 - beta1) * grad;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uncompressed_shares_give_the_momentum_of_adam() {
        let (beta1, grads) = (0.9, [[1.0, -2.0, 0.5], [3.0, 0.0, 0.25]]);
        let before = [0.5, 1.0, -1.0];
        let mut expected = before;
        let sum: Vec<f32> = (0..3).map(|i| grads[0][i] + grads[1][i]).collect();
        follow(beta1, &mut expected, &sum);
        let mut sent = [0.0; 3];
        for mut own in grads {
            momentum_share(beta1, 2, &before, &mut own);
            sent.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        let mut momentum = before;
        adopt_momentum(beta1, &mut momentum, &mut sent);
        for i in 0..3 {
            assert!((momentum[i] - expected[i]).abs() < 1e-6);
            assert!((sent[i] - sum[i]).abs() < 1e-5, "the gradient that leads there");
        }
    }
}
