//! AdamW with moments of eight bits by its definition, in `f64`: every moment becomes the nearest
//! value of a list, times the largest magnitude of its block.

/// Values of the dynamic map, from the largest decade to the smallest.
pub fn map(is_signed: bool) -> Vec<f64> {
    let mut values = vec![0.0, 1.0];
    for decade in 0..7 {
        let num_steps = if is_signed { 64 >> decade } else { 128 >> decade };
        for step in 0..num_steps {
            let middle = 0.1 + 0.9 * (f64::from(step) + 0.5) / f64::from(num_steps);
            let value = middle * 10f64.powi(-decade);
            values.push(value);
            if is_signed && decade < 6 {
                values.push(-value);
            }
        }
    }
    if is_signed {
        values.push(-1.0);
    }
    values
}

/// Replaces the values of a block by the nearest that eight bits hold; a second moment above zero
/// stays above zero.
pub fn round(map: &[f64], is_signed: bool, block: &mut [f64]) {
    let scale = block.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
    for value in block.iter_mut().filter(|_| scale > 0.0) {
        let exact = *value / scale;
        let is_allowed = |code: &f64| is_signed || exact <= 0.0 || *code > 0.0;
        let codes = map.iter().copied().filter(is_allowed);
        let nearest = codes.min_by(|a, b| (a - exact).abs().total_cmp(&(b - exact).abs()));
        *value = nearest.expect("a map has values") * scale;
    }
}
