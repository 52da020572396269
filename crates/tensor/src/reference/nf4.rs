//! Weights in 4-bit `NormalFloat` by their definition, in `f64`: every element becomes the nearest
//! of sixteen values, times the scale of its block.

/// Values of the codes: the paper's appendix E.
pub const VALUES: [f64; 16] = [
    -1.0,
    -0.696_192_800_998_687_7,
    -0.525_073_051_452_636_7,
    -0.394_917_488_098_144_53,
    -0.284_441_381_692_886_35,
    -0.184_773_430_228_233_34,
    -0.091_050_036_251_544_95,
    0.0,
    0.079_580_299_556_255_34,
    0.160_930_201_411_247_25,
    0.246_112_301_945_686_34,
    0.337_915_241_718_292_24,
    0.440_709_829_330_444_34,
    0.562_617_003_917_694_1,
    0.722_956_836_223_602_3,
    1.0,
];

/// A tensor in four bits, dequantised, with the scale of each block.
pub struct Quantised {
    /// Values of the elements.
    pub values: Vec<f64>,
    /// Scales of the blocks.
    pub scales: Vec<f64>,
}

/// Values of the dynamic tree by which scales are coded: with both signs, but for one.
pub fn scale_map() -> Vec<f64> {
    let mut values = vec![0.0, 1.0];
    for decade in 0..7 {
        let num_steps = 64 >> decade;
        for step in 0..num_steps {
            let middle = 0.1 + 0.9 * (f64::from(step) + 0.5) / f64::from(num_steps);
            values.extend([1.0, -1.0].map(|sign| sign * middle * 10f64.powi(-decade)));
        }
    }
    values
}

/// The value of a list that is nearest.
fn nearest(values: &[f64], x: f64) -> f64 {
    let ordered = values.iter().copied();
    ordered.min_by(|a, b| (a - x).abs().total_cmp(&(b - x).abs())).expect("a value")
}

fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |most: f64, x| most.max(x.abs()))
}

/// Quantises a tensor in blocks of `block_len`; with `groups`, of these many scales, the scales as
/// well, by the values of a map.
pub fn quantise(tensor: &[f64], block_len: usize, groups: Option<(usize, &[f64])>) -> Quantised {
    let magnitudes: Vec<f64> = tensor.chunks(block_len).map(largest).collect();
    let mut scales = magnitudes.clone();
    if let Some((group_len, map)) = groups {
        let offset = magnitudes.iter().sum::<f64>() / magnitudes.len() as f64;
        for group in scales.chunks_mut(group_len) {
            for scale in group.iter_mut() {
                *scale -= offset;
            }
            let most = largest(group);
            let of_zero = if most > 0.0 { most } else { 1.0 };
            for scale in group.iter_mut() {
                *scale = nearest(map, *scale / of_zero) * most + offset;
            }
        }
    }
    let of_block = |(block, (magnitude, scale)): (&[f64], (&f64, &f64))| {
        let divisor = if *magnitude > 0.0 { *magnitude } else { 1.0 };
        block.iter().map(|x| nearest(&VALUES, x / divisor) * scale).collect::<Vec<_>>()
    };
    let blocks = tensor.chunks(block_len).zip(magnitudes.iter().zip(&scales));
    let values = blocks.flat_map(of_block).collect();
    Quantised { values, scales }
}

/// `x wᵀ` of rows of `width` elements.
pub fn product(x: &[f64], w: &[f64], width: usize) -> Vec<f64> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    x.chunks(width).flat_map(|x| w.chunks(width).map(move |w| dot(x, w))).collect()
}

/// `dy w`, the gradient of `x`.
pub fn input_product(dy: &[f64], w: &[f64], width: usize) -> Vec<f64> {
    let num_rows = w.len() / width;
    let of_row = |dy: &[f64]| {
        let column =
            |col: usize| dy.iter().zip(w.chunks(width)).map(|(dy, w)| dy * w[col]).sum::<f64>();
        (0..width).map(column).collect::<Vec<_>>()
    };
    dy.chunks(num_rows).flat_map(of_row).collect()
}
