//! All layouts that fit as points of time over memory, of which a picture holds a bounded number.

use super::Candidate;
use std::collections::BTreeMap;

/// Most points.
pub const MAX_POINTS: usize = 2000;
/// Cells of the grid over time and over memory; neighbours in a cell become one point.
const CELLS: [usize; 2] = [50, 40];

/// Layouts that lie close to each other: the fastest of them stands for all.
#[derive(Debug, Clone, PartialEq)]
pub struct CloudPoint {
    /// The fastest.
    pub fastest: Candidate,
    /// Number of layouts, this one included.
    pub num_merged: usize,
}

/// Points of candidates sorted by time: each its own point where they are few, and those in one
/// cell of a logarithmic grid together where they are many.
pub(super) fn merged(sorted: &[Candidate]) -> Vec<CloudPoint> {
    let single = |one: &Candidate| CloudPoint { fastest: one.clone(), num_merged: 1 };
    if sorted.len() <= MAX_POINTS {
        return sorted.iter().map(single).collect();
    }
    let places = |one: &Candidate| [one.step.seconds.ln(), one.memory.total().ln()];
    let ends = sorted.iter().map(places).fold([(f64::MAX, f64::MIN); 2], |ends, at| {
        std::array::from_fn(|axis| (ends[axis].0.min(at[axis]), ends[axis].1.max(at[axis])))
    });
    let cell = |one: &Candidate| -> [usize; 2] {
        let at = places(one);
        std::array::from_fn(|axis| {
            let (low, high) = ends[axis];
            let share = (at[axis] - low) / (high - low).max(f64::MIN_POSITIVE);
            ((share * CELLS[axis] as f64) as usize).min(CELLS[axis] - 1)
        })
    };
    let mut cells: BTreeMap<[usize; 2], CloudPoint> = BTreeMap::new();
    for one in sorted {
        // The first of a cell is its fastest.
        let point =
            cells.entry(cell(one)).or_insert_with(|| CloudPoint { num_merged: 0, ..single(one) });
        point.num_merged += 1;
    }
    cells.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_has_no_more_cells_than_points_may_be() {
        assert!(CELLS[0] * CELLS[1] <= MAX_POINTS);
        assert!(merged(&[]).is_empty());
    }
}
