//! Euclidean distance of flat vectors, accumulated in `f64`.

/// ‖a − b‖² in `f64`, element by element; an empty `b` is zero.
pub(crate) fn squared_distance(a: &[f32], b: &[f32]) -> f64 {
    let of = |(index, &a): (usize, &f32)| {
        let difference = f64::from(a) - f64::from(b.get(index).copied().unwrap_or(0.0));
        difference * difference
    };
    a.iter().enumerate().map(of).fold(0.0, |sum, square| sum + square)
}
