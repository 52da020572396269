//! Shared helpers for the tests of compression methods.

use lockstep_tensor::random::Key;

/// Values of very different magnitudes.
pub(crate) fn values(len: usize, seed: u64) -> Vec<f32> {
    let key = Key::new(seed, "values");
    (0..len as u64).map(|i| key.normal(i) * 2.0_f32.powi((i % 7) as i32 - 3)).collect()
}

/// Compresses values many times; returns the mean of the decoded values and the largest error of an
/// element.
pub(crate) fn mean_and_error(
    sent: &[f32],
    times: u64,
    send: impl Fn(&[f32], Key, &mut [f32]),
) -> (Vec<f64>, f64) {
    let (mut sum, mut worst) = (vec![0.0; sent.len()], 0.0_f64);
    for time in 0..times {
        let mut out = vec![0.0; sent.len()];
        send(sent, Key::new(9, "chance").with(time), &mut out);
        for ((sum, sent), out) in sum.iter_mut().zip(sent).zip(out) {
            *sum += f64::from(out);
            worst = worst.max((f64::from(out) - f64::from(*sent)).abs());
        }
    }
    (sum.into_iter().map(|sum| sum / times as f64).collect(), worst)
}
