//! Medians of measured times.

/// Median of a number of each item; the mean of the middle two of an even count, 0 of none.
pub(super) fn median_of<T>(items: &[T], number: impl Fn(&T) -> f64) -> f64 {
    let mut sorted: Vec<f64> = items.iter().map(number).filter(|x| x.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let (Some(above), below) = (sorted.get(sorted.len() / 2), sorted.len().saturating_sub(1) / 2)
    else {
        return 0.0;
    };
    f64::midpoint(sorted[below], *above)
}

/// Mean of a number of each item; 0 of none.
pub(super) fn mean_of<T>(items: &[T], number: impl Fn(&T) -> f64) -> f64 {
    if items.is_empty() {
        return 0.0;
    }
    items.iter().map(number).sum::<f64>() / items.len() as f64
}
