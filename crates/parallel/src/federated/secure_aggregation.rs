//! Secure aggregation (Bonawitz et al., "Practical Secure Aggregation", CCS 2017): the coordinator
//! learns only the sum of all updates.
//!
//! Updates are converted to fixed point and added modulo 2^64, where addition is exact and
//! order-free. Every pair of clients shares a secret random stream; the client with the smaller
//! number adds it to its message, the other subtracts it. Each message alone looks random; in the
//! sum all streams cancel, bit for bit. A client that drops out leaves its streams in the messages
//! of the others, who then reveal those streams' secrets so that the coordinator can remove them.
//!
//! Clients are simulated, so the pair secrets come from the run's seed and are known to anyone who
//! knows it. The arithmetic and the coordinator's view are real.

use lockstep_tensor::random::Key;

/// Fixed-point steps per unit.
const STEPS: f64 = (1u64 << 32) as f64;
/// Values are clamped to this magnitude, so that sums of 2^20 clients stay in range.
const MAX_VALUE: f64 = (1u64 << 11) as f64;

/// Converts a value to fixed point; NaN becomes zero.
pub fn to_fixed(value: f64) -> u64 {
    let steps = value.clamp(-MAX_VALUE, MAX_VALUE) * STEPS;
    if steps.is_nan() { 0 } else { (steps.round_ties_even() as i64).cast_unsigned() }
}

/// Converts a fixed-point sum back.
pub fn from_fixed(sum: u64) -> f64 {
    sum.cast_signed() as f64 / STEPS
}

/// Secret of a pair of clients in a round; symmetric in the clients.
fn secret(seed: u64, round: u64, a: usize, b: usize) -> Key {
    let (low, high) = (a.min(b) as u64, a.max(b) as u64);
    Key::new(seed, "federated.masks").with(round).with(low).with(high)
}

/// Masks `message` with the streams that `client` shares with all `others`.
pub fn mask(seed: u64, round: u64, client: usize, others: &[usize], message: &mut [u64]) {
    for &other in others.iter().filter(|other| **other != client) {
        add_stream(secret(seed, round, client, other), client < other, message);
    }
}

/// Removes the masks of clients that did not send from a sum: one for every pair of a sender and a
/// dropout.
pub fn unmask_dropouts(seed: u64, round: u64, sent: &[usize], lost: &[usize], sum: &mut [u64]) {
    for &client in sent {
        for &other in lost {
            add_stream(secret(seed, round, client, other), client > other, sum);
        }
    }
}

fn add_stream(key: Key, is_added: bool, message: &mut [u64]) {
    for (block, pair) in (0..).zip(message.chunks_mut(2)) {
        let [a, b, c, d] = key.block(block);
        let masks = [u64::from(a) << 32 | u64::from(b), u64::from(c) << 32 | u64::from(d)];
        for (value, mask) in pair.iter_mut().zip(masks) {
            *value = if is_added { value.wrapping_add(mask) } else { value.wrapping_sub(mask) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<Vec<u64>> {
        let values =
            |client: usize| (0..7).map(move |i| (client as f64 - 2.0) * 0.3 + f64::from(i));
        (0..5).map(|client| values(client).map(to_fixed).collect()).collect()
    }

    fn sum<'a>(messages: impl IntoIterator<Item = &'a Vec<u64>>) -> Vec<u64> {
        let mut sum = vec![0_u64; 7];
        for message in messages {
            sum.iter_mut().zip(message).for_each(|(sum, value)| *sum = sum.wrapping_add(*value));
        }
        sum
    }

    #[test]
    fn masked_messages_sum_to_the_plain_sum_bit_for_bit() {
        let plain = messages();
        let mut masked = plain.clone();
        let all = [0, 1, 2, 3, 4];
        for (client, message) in masked.iter_mut().enumerate() {
            mask(7, 3, client, &all, message);
            assert!(
                message.iter().zip(&plain[client]).all(|(a, b)| a != b),
                "{client} is not masked"
            );
        }
        assert_eq!(sum(&masked), sum(&plain));
        assert!((from_fixed(sum(&plain)[1]) - 5.0).abs() < 1e-8);
    }

    #[test]
    fn masks_of_dropouts_are_removed() {
        let plain = messages();
        let mut masked = plain.clone();
        for (client, message) in masked.iter_mut().enumerate() {
            mask(7, 3, client, &[0, 1, 2, 3, 4], message);
        }
        let mut total = sum([&masked[0], &masked[2], &masked[3]]);
        let expected = sum([&plain[0], &plain[2], &plain[3]]);
        assert_ne!(total, expected);
        unmask_dropouts(7, 3, &[0, 2, 3], &[1, 4], &mut total);
        assert_eq!(total, expected);
    }

    #[test]
    fn fixed_point_keeps_nine_digits_and_survives_non_finite_values() {
        for value in [0.0, 1.0, -1.0, 1e-9, -3.25, 2000.0] {
            assert!((from_fixed(to_fixed(value)) - value).abs() < 2e-10, "{value}");
        }
        assert!((from_fixed(to_fixed(f64::INFINITY)) - 2048.0).abs() < 1e-9);
        assert_eq!(to_fixed(f64::NAN), 0);
    }
}
