//! Largest curvature of a loss by power iteration, which bounds the learning rate.
//!
//! Power iteration needs only products H v with the Hessian H: by a formula, or as the difference
//! of gradients on both sides of a point. Repeated products turn any vector towards the eigenvector
//! of the largest eigenvalue (by magnitude), and the Rayleigh quotient vᵀHv of a unit vector v
//! converges to that eigenvalue, twice as fast as v to its direction. It converges from below; the
//! residual ‖Hv − ρv‖ bounds the distance of ρ from an eigenvalue.

use super::spectrum::dot;
use lockstep_tensor::random::Key;

/// Largest number of products.
const MAX_PRODUCTS: usize = 5000;
/// Relative change of the value at which the iteration stops.
const TOLERANCE: f64 = 1e-13;

/// Result of a power iteration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LargestEigenvalue {
    /// Eigenvalue of the largest magnitude.
    pub value: f64,
    /// Upper bound of its distance from an eigenvalue.
    pub residual: f64,
    /// Number of products.
    pub num_products: usize,
}

/// Largest eigenvalue, by magnitude, of a symmetric matrix given by its products: `product` returns
/// H v of a vector of `dim` elements. The first vector is random, with a fixed seed.
pub fn largest(dim: usize, product: impl FnMut(&[f64]) -> Vec<f64>) -> LargestEigenvalue {
    largest_within(dim, TOLERANCE, MAX_PRODUCTS, product)
}

/// As [`largest`], to a relative change of `tolerance`, with at most `max_products` products.
pub fn largest_within(
    dim: usize,
    tolerance: f64,
    max_products: usize,
    mut product: impl FnMut(&[f64]) -> Vec<f64>,
) -> LargestEigenvalue {
    let key = Key::new(0, "power iteration");
    let mut v: Vec<f64> = (0..dim).map(|index| f64::from(key.normal(index as u64))).collect();
    let mut found = LargestEigenvalue { value: 0.0, residual: 0.0, num_products: 0 };
    normalize(&mut v);
    for num_products in 1..=max_products {
        let mut next = product(&v);
        let value = dot(&v, &next);
        let off: Vec<f64> = next.iter().zip(&v).map(|(next, v)| next - value * v).collect();
        let change = (value - found.value).abs();
        found = LargestEigenvalue { value, residual: dot(&off, &off).sqrt(), num_products };
        if change <= tolerance * value.abs() || !normalize(&mut next) {
            break;
        }
        v = next;
    }
    found
}

/// H v at a point by central differences of gradients: exact for a quadratic loss, else with an
/// error of the square of `reach` times its third derivatives.
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

/// Normalises `v`; false for a zero vector.
fn normalize(v: &mut [f64]) -> bool {
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
    fn the_eigenvalue_of_largest_magnitude_is_found_and_its_residual_vanishes() {
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
