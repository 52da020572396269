//! Curves of many points as the few that a screen can show: first, smallest, largest and last of
//! each pixel column (M4, Jugel et al. 2014), so that no spike is lost and lines look the same.

/// Thins points with ascending positions to four per column at most. A curve with fewer is
/// unchanged. Points that are not finite are left out.
pub fn downsample(points: &[(f64, f64)], num_columns: usize) -> Vec<(f64, f64)> {
    let is_finite = |point: &(f64, f64)| point.0.is_finite() && point.1.is_finite();
    let finite: Vec<(f64, f64)> = points.iter().copied().filter(is_finite).collect();
    let (Some(first), Some(last)) = (finite.first(), finite.last()) else { return finite };
    if finite.len() <= 4 * num_columns {
        return finite;
    }
    let width = (last.0 - first.0) / num_columns.max(1) as f64;
    let column_of = |point: &(f64, f64)| {
        let column = (point.0 - first.0) / width;
        // A width of 0 gives NaN, which becomes 0.
        (column as usize).min(num_columns.saturating_sub(1))
    };
    let mut thinned = Vec::with_capacity(4 * num_columns);
    let (mut column, mut start, mut low, mut high) = (column_of(first), 0, 0, 0);
    for (at, point) in finite.iter().enumerate() {
        let of_point = column_of(point);
        if of_point != column {
            draw(&mut thinned, &finite, [start, low.min(high), low.max(high), at - 1]);
            (column, start, low, high) = (of_point, at, at, at);
        }
        if point.1 < finite[low].1 {
            low = at;
        }
        if point.1 >= finite[high].1 {
            high = at;
        }
    }
    draw(&mut thinned, &finite, [start, low.min(high), low.max(high), finite.len() - 1]);
    thinned
}

/// Appends first, extremes and last of a column, each once.
fn draw(thinned: &mut Vec<(f64, f64)>, points: &[(f64, f64)], indices: [usize; 4]) {
    for (place, index) in indices.into_iter().enumerate() {
        if place == 0 || indices[place - 1] != index {
            thinned.push(points[index]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spikes_ends_and_order_survive() {
        let mut points: Vec<(f64, f64)> =
            (0..100_000).map(|step| (f64::from(step), f64::from(step % 10))).collect();
        points[54_321].1 = 1e6;
        points[77_777].1 = -5.0;
        points[10].1 = f64::NAN;
        let thinned = downsample(&points, 500);
        assert!(thinned.len() <= 2000 && thinned.len() > 1000, "{}", thinned.len());
        assert!(thinned.contains(&(54_321.0, 1e6)) && thinned.contains(&(77_777.0, -5.0)));
        assert_eq!((thinned[0], thinned.last()), (points[0], points.last()));
        assert!(thinned.windows(2).all(|pair| pair[0].0 < pair[1].0), "ascending");
    }

    #[test]
    fn short_empty_and_coinciding_points_are_fine() {
        let points = [(1.0, 2.0), (2.0, f64::INFINITY), (3.0, 1.0)];
        assert_eq!(downsample(&points, 10), [(1.0, 2.0), (3.0, 1.0)]);
        assert!(downsample(&[], 10).is_empty());
        let same: Vec<(f64, f64)> = (0..50).map(|value| (7.0, f64::from(value))).collect();
        assert_eq!(downsample(&same, 1), [(7.0, 0.0), (7.0, 49.0)]);
        assert!(downsample(&same, 0).len() <= 4);
    }
}
