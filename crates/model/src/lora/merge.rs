//! Merge of an adapter into the weight beside it.

/// Adds `scale * b a` to a weight in place: its adapter is merged. `weight` has a row per output,
/// `a` has `rank` rows and `b` has a row per output. Products are summed in `f64`.
pub fn merge(rank: usize, scale: f32, a: &[f32], b: &[f32], weight: &mut [f32]) {
    let num_inputs = a.len() / rank;
    for (row, b) in weight.chunks_mut(num_inputs).zip(b.chunks(rank)) {
        for (column, weight) in row.iter_mut().enumerate() {
            let terms = b.iter().zip(a.chunks(num_inputs));
            let sum: f64 = terms.map(|(b, a)| f64::from(*b) * f64::from(a[column])).sum();
            *weight = (f64::from(*weight) + f64::from(scale) * sum) as f32;
        }
    }
}
