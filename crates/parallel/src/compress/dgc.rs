//! Deep gradient compression (Lin et al. 2018): top-k with momentum correction.
//!
//! With top-k an element may wait hundreds of steps before it is sent, and the optimizer's momentum
//! would then treat its whole past as new. So each rank applies momentum *before* the selection: it
//! accumulates velocities instead of gradients (*momentum correction*), the optimizer takes plain
//! SGD steps, and an element's momentum is cleared when it is sent (*momentum factor masking*), so
//! that stale directions do not persist. Weights change fast at first, so the warm-up sends more:
//! the ratio starts at a quarter and falls by a factor of four in equal intervals of the warm-up.
//! Uncompressed tensors keep their momentum, which is then that of the usual optimizer.

/// Fraction of elements sent in a step.
pub fn ratio_in(step: u64, ratio: f64, warmup_steps: u64) -> f64 {
    if step >= warmup_steps {
        return ratio;
    }
    let later = |share: &f64| (*share > ratio).then_some(share / 4.0);
    let shares: Vec<f64> =
        std::iter::successors(Some(0.25), later).take_while(|share| *share > ratio).collect();
    let index = u128::from(step) * shares.len() as u128 / u128::from(warmup_steps);
    shares.get(index as usize).copied().unwrap_or(ratio)
}

/// Replaces this rank's gradients by its velocities; without momentum they are equal.
pub fn correct(momentum: f32, velocities: &mut [f32], grads: &mut [f32]) {
    for (velocity, grad) in velocities.iter_mut().zip(grads) {
        *velocity = momentum * *velocity + *grad;
        *grad = *velocity;
    }
}

/// Updates velocities while gradients are reduced uncompressed: each rank keeps an equal part of
/// the sum.
pub fn follow(momentum: f32, num_workers: usize, velocities: &mut [f32], sums: &mut [f32]) {
    let workers = num_workers as f32;
    for (velocity, sum) in velocities.iter_mut().zip(sums) {
        *velocity = momentum * *velocity + *sum / workers;
        *sum = *velocity * workers;
    }
}

/// Clears the momentum of elements that were sent.
pub fn mask(velocities: &mut [f32], sent: &[f32]) {
    for (velocity, sent) in velocities.iter_mut().zip(sent) {
        if *sent != 0.0 {
            *velocity = 0.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_falls_by_quarters_to_the_configured_one() {
        let shares: Vec<f64> = (0..10).map(|step| ratio_in(step, 0.001, 8)).collect();
        let expected =
            [0.25, 0.25, 0.0625, 0.0625, 0.015_625, 0.015_625, 0.003_906_25, 0.003_906_25];
        assert_eq!(shares[..8], expected);
        assert_eq!(shares[8..], [0.001, 0.001]);
        assert_eq!(ratio_in(0, 0.5, 10).to_bits(), 0.5_f64.to_bits(), "nothing to fall from");
        assert_eq!(ratio_in(0, 0.01, 0).to_bits(), 0.01_f64.to_bits());
    }

    #[test]
    fn unmasked_velocities_equal_momentum() {
        let (mut velocities, mut expected) = ([[0.0; 2]; 2], [0.0; 2]);
        for step in 0..5 {
            let grads = [[step as f32, 1.0], [-1.0, 0.5 * step as f32]];
            let mut sum = [0.0; 2];
            for (velocities, mut grads) in velocities.iter_mut().zip(grads) {
                correct(0.5, velocities, &mut grads);
                sum.iter_mut().zip(grads).for_each(|(sum, grad)| *sum += grad);
            }
            for (index, expected) in expected.iter_mut().enumerate() {
                *expected = 0.5 * *expected + grads[0][index] + grads[1][index];
                assert!((sum[index] - *expected).abs() < 1e-5);
            }
        }
        mask(&mut velocities[0], &[0.0, 3.0]);
        assert!(
            velocities[0][0] != 0.0 && velocities[0][1] == 0.0,
            "only sent elements are masked"
        );
    }
}
