//! The largest curvature of a loss: how steeply it can bend, and so how large a step may be.
//!
//! A loss whose matrix of second derivatives H nobody writes down still lends products H v: by a
//! formula, or as the difference of gradients on both sides of a point. Power iteration needs no
//! more: multiplied over and over, any vector turns towards the direction of the largest
//! eigenvalue (by size), and vᵀHv of a unit vector v tends to it, twice as fast as v to its
//! direction. It comes from below; the residual ‖Hv − ρv‖ bounds how far ρ is from an eigenvalue.

use super::spectrum::dot;
use lockstep_tensor::random::Key;

/// Products that are made at most.
const MAX_PRODUCTS: usize = 5000;
/// The change of the value, relative to itself, that is none.
const STILL: f64 = 1e-13;

/// An eigenvalue that was found by iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Largest {
    /// The eigenvalue of the largest size.
    pub value: f64,
    /// Some eigenvalue lies no farther from it than this.
    pub residual: f64,
    /// Products that it took.
    pub num_products: usize,
}

/// The largest eigenvalue, by size, of a symmetric matrix that is known by its products: `product`
/// gives H v of a vector of `dim` elements. The first vector is random, the same for each `dim`.
pub fn largest(dim: usize, product: impl FnMut(&[f64]) -> Vec<f64>) -> Largest {
    largest_within(dim, STILL, MAX_PRODUCTS, product)
}

/// The same to a relative change of `still`, with as many products as are allowed at most.
pub fn largest_within(
    dim: usize,
    still: f64,
    max_products: usize,
    mut product: impl FnMut(&[f64]) -> Vec<f64>,
) -> Largest {
    let key = Key::new(0, "power iteration");
    let mut v: Vec<f64> = (0..dim).map(|index| f64::from(key.normal(index as u64))).collect();
    let mut found = Largest { value: 0.0, residual: 0.0, num_products: 0 };
    scale_to_one(&mut v);
    for num_products in 1..=max_products {
        let mut next = product(&v);
        let value = dot(&v, &next);
        let off: Vec<f64> = next.iter().zip(&v).map(|(next, v)| next - value * v).collect();
        let change = (value - found.value).abs();
        found = Largest { value, residual: dot(&off, &off).sqrt(), num_products };
        if change <= still * value.abs() || !scale_to_one(&mut next) {
            break;
        }
        v = next;
    }
    found
}

/// H v at a point from two gradients beside it: exact where the loss is a parabola, and off by the
/// square of `reach` times its third derivatives elsewhere.
pub fn product_by_differences(
    mut gradient: impl FnMut(&[f64]) -> Vec<f64>,
    x: &[f64],
    v: &[f64],
    reach: f64,
) -> Vec<f64> {
    let mut beside = |reach: f64| {
        let place: Vec<f64> = x.iter().zip(v).map(|(x, v)| x + reach * v).collect();
        gradient(&place)
    };
    let (above, below) = (beside(reach), beside(-reach));
    above.iter().zip(&below).map(|(above, below)| (above - below) / (2.0 * reach)).collect()
}

/// False where there is nothing to scale.
fn scale_to_one(v: &mut [f64]) -> bool {
    let length = dot(v, v).sqrt();
    for v in v.iter_mut() {
        *v /= length;
    }
    length > 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_eigenvalue_is_found_by_size_and_its_residual_vanishes() {
        // Eigenvalues -3 and 1, along the diagonals.
        let found = largest(2, |v| vec![-v[0] + 2.0 * v[1], 2.0 * v[0] - v[1]]);
        assert!((found.value + 3.0).abs() < 1e-12, "{found:?}");
        assert!(found.residual < 1e-5 && found.num_products < 50, "{found:?}");
        let nothing = largest(3, |v| vec![0.0; v.len()]);
        assert_eq!((nothing.value, nothing.residual), (0.0, 0.0));
    }

    #[test]
    fn differences_of_gradients_are_products() {
        // The gradient of x⁴/4 + x y.
        let gradient = |x: &[f64]| vec![x[0].powi(3) + x[1], x[0]];
        let found = product_by_differences(gradient, &[2.0, 1.0], &[1.0, -1.0], 1e-4);
        assert!((found[0] - 11.0).abs() < 1e-6 && (found[1] - 1.0).abs() < 1e-9, "{found:?}");
    }
}
