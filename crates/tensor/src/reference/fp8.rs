//! Oracle of fp8: the nearest of all numbers of a format.

/// Every magnitude of a format, ascending, so that an even index has an even mantissa. The largest
/// is 1.75 times a power of two; codes behind it are not numbers.
pub fn magnitudes(exponent_bits: u32, mantissa_bits: u32) -> Vec<f64> {
    let bias = (1 << (exponent_bits - 1)) - 1;
    let steps = 1 << mantissa_bits;
    // e4m3 has one NaN at the end, e5m2 all of its last exponent.
    let num = if exponent_bits == 4 { (1 << 7) - 1 } else { ((1 << exponent_bits) - 1) * steps };
    let magnitude = |code: i32| {
        let (exponent, mantissa) = (code / steps, f64::from(code % steps) / f64::from(steps));
        if exponent == 0 {
            return mantissa * 2f64.powi(1 - bias);
        }
        (1.0 + mantissa) * 2f64.powi(exponent - bias)
    };
    (0..num).map(magnitude).collect()
}

/// The numbers of an outer x k operand after quantisation in blocks of `block_rows` x 128, to the
/// nearest of `magnitudes`.
pub fn round_trip(x: &[f64], k: usize, block_rows: usize, magnitudes: &[f64]) -> Vec<f64> {
    let largest = *magnitudes.last().expect("a format has numbers");
    let mut out = x.to_vec();
    for block in out.chunks_mut(block_rows * k) {
        for first in (0..k).step_by(128) {
            let is_in = |i: usize| (first..first + 128).contains(&(i % k));
            let inside = block.iter().enumerate().filter(|(i, _)| is_in(*i));
            let top = inside.fold(0f64, |top, (_, x)| top.max(x.abs()));
            let mut scale = if top == 0.0 { 1.0 } else { 2f64.powi(-126) };
            while top / scale > largest {
                scale *= 2.0;
            }
            for (_, x) in block.iter_mut().enumerate().filter(|(i, _)| is_in(*i)) {
                *x = nearest(x.abs() / scale, magnitudes).copysign(*x) * scale;
            }
        }
    }
    out
}

/// The nearest magnitude; of two, the one with an even index.
fn nearest(x: f64, magnitudes: &[f64]) -> f64 {
    let above = magnitudes.partition_point(|magnitude| *magnitude < x).min(magnitudes.len() - 1);
    let below = above.saturating_sub(1);
    let (low, high) = (x - magnitudes[below], magnitudes[above] - x);
    let takes_low = low < high || (low <= high && below % 2 == 0);
    magnitudes[if takes_low { below } else { above }]
}
