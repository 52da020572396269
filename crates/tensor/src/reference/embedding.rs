//! Embeddings by their definition, in `f64`.

/// The table's row of each id.
pub fn forward(ids: &[u32], table_vc: &[f64], width: usize) -> Vec<f64> {
    ids.iter().flat_map(|&id| &table_vc[id as usize * width..][..width]).copied().collect()
}

/// The gradient of a table with `vocab` rows.
pub fn backward(ids: &[u32], dout_tc: &[f64], width: usize, vocab: usize) -> Vec<f64> {
    let mut dtable_vc = vec![0.0; vocab * width];
    for (token, &id) in ids.iter().enumerate() {
        for j in 0..width {
            dtable_vc[id as usize * width + j] += dout_tc[token * width + j];
        }
    }
    dtable_vc
}

/// The position of each token, in its document if these are given.
fn positions(
    num_tokens: usize,
    (tokens_per_sequence, documents): (usize, Option<&[u32]>),
    first_position: usize,
) -> Vec<u32> {
    let start = |t: usize| documents.map_or(0, |documents| documents[t]);
    let position = |t: usize| (first_position + t % tokens_per_sequence) as u32 - start(t);
    (0..num_tokens).map(position).collect()
}

/// Every row plus the table's row of its position.
pub fn add_positions(
    table_sc: &[f64],
    sequences: (usize, Option<&[u32]>),
    first_position: usize,
    width: usize,
    x_tc: &[f64],
) -> Vec<f64> {
    let positions = positions(x_tc.len() / width, sequences, first_position);
    let rows = forward(&positions, table_sc, width);
    x_tc.iter().zip(rows).map(|(x, row)| x + row).collect()
}

/// The gradient of a position table with `num_positions` rows.
pub fn positions_backward(
    dx_tc: &[f64],
    sequences: (usize, Option<&[u32]>),
    width: usize,
    num_positions: usize,
) -> Vec<f64> {
    let positions = positions(dx_tc.len() / width, sequences, 0);
    backward(&positions, dx_tc, width, num_positions)
}
