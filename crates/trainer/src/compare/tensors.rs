//! Compares two tensor files bit by bit.
//!
//! Distances are counted in ulps: the number of representable floats from one value to the other.
//! Zero ulps means identical bits, so +0 and -0 are one ulp apart. A sign flip near zero is
//! billions of ulps, so tensors are ranked by the norm of their difference instead.

use lockstep_checkpoint::Tensor;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Differences of two tensor files.
#[derive(Debug, PartialEq, Serialize)]
pub struct Tensors {
    /// Number of tensors that both files have, with the same shape.
    pub num_compared: usize,
    /// Tensors that only one file has, or with another shape, in model order.
    pub unmatched: Vec<Unmatched>,
    /// First difference, in model order.
    pub first: Option<ElementDifference>,
    /// Differing tensors, the largest relative difference first.
    pub worst: Vec<TensorDifference>,
}

/// A tensor without a counterpart.
#[derive(Debug, PartialEq, Serialize)]
pub struct Unmatched {
    /// Name of the tensor.
    pub tensor: String,
    /// Shape in A; null if A lacks it.
    pub shape_a: Option<Vec<usize>>,
    /// Shape in B; null if B lacks it.
    pub shape_b: Option<Vec<usize>>,
}

/// The first element of a tensor that differs.
#[derive(Debug, PartialEq, Serialize)]
pub struct ElementDifference {
    /// Name of the tensor.
    pub tensor: String,
    /// Row-major index of the element.
    pub element: usize,
    /// Value in A.
    pub a: f32,
    /// Value in B.
    pub b: f32,
    /// Distance in ulps (32-bit floats).
    pub ulps: u32,
}

/// Difference of one tensor.
#[derive(Debug, PartialEq, Serialize)]
pub struct TensorDifference {
    /// Name of the tensor.
    pub tensor: String,
    /// Largest distance of two elements.
    pub max_ulps: u32,
    /// Number of elements.
    pub num_elements: usize,
    /// Number of differing elements.
    pub num_differing: usize,
    /// Fraction of differing elements.
    pub differing_share: f64,
    /// Norm of the difference as a fraction of the larger norm.
    pub relative_l2: f64,
}

impl Tensors {
    /// Compares by name. `order` lists the model's parameters in computation order. A name that
    /// extends one of them (`weight.m`, a moment) sorts with it, any other name sorts last.
    pub(super) fn compare(
        a: &BTreeMap<String, Tensor>,
        b: &BTreeMap<String, Tensor>,
        order: &[&str],
    ) -> Self {
        let mut places = BTreeMap::new();
        for (place, name) in order.iter().enumerate() {
            places.entry(*name).or_insert(place);
        }
        let place = |name: &str| {
            let owner = name.rsplit_once('.').and_then(|(owner, _)| places.get(owner));
            places.get(name).or(owner).copied().unwrap_or(order.len())
        };
        let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        let mut names: Vec<&String> = names.into_iter().collect();
        // The sort is stable: names with the same key stay in alphabetical order.
        names.sort_by_key(|name| place(name));

        let (mut unmatched, mut worst) = (Vec::new(), Vec::new());
        let (mut num_compared, mut first) = (0, None);
        for name in names {
            match (a.get(name), b.get(name)) {
                (Some(a), Some(b)) if a.shape == b.shape => {
                    num_compared += 1;
                    if let Some(found) = first_difference(name, &a.data, &b.data) {
                        first.get_or_insert(found);
                        worst.push(TensorDifference::measure(name, &a.data, &b.data));
                    }
                }
                (a, b) => unmatched.push(Unmatched {
                    tensor: name.clone(),
                    shape_a: a.map(|tensor| tensor.shape.clone()),
                    shape_b: b.map(|tensor| tensor.shape.clone()),
                }),
            }
        }
        worst.sort_by(|one, other| other.relative_l2.total_cmp(&one.relative_l2));
        Self { num_compared, unmatched, first, worst }
    }

    /// Whether names, shapes and bits are equal.
    pub fn equal(&self) -> bool {
        self.unmatched.is_empty() && self.worst.is_empty()
    }
}

fn first_difference(name: &str, a: &[f32], b: &[f32]) -> Option<ElementDifference> {
    let element = a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits())?;
    let (a, b) = (a[element], b[element]);
    Some(ElementDifference { tensor: name.to_owned(), element, a, b, ulps: ulps_f32(a, b) })
}

impl TensorDifference {
    fn measure(name: &str, a: &[f32], b: &[f32]) -> Self {
        let (mut max_ulps, mut num_differing) = (0, 0);
        let (mut norm_a, mut norm_b, mut norm_difference) = (0.0, 0.0, 0.0);
        for (&a, &b) in a.iter().zip(b) {
            let ulps = ulps_f32(a, b);
            max_ulps = ulps.max(max_ulps);
            num_differing += usize::from(ulps > 0);
            let (a, b) = (f64::from(a), f64::from(b));
            norm_a += a * a;
            norm_b += b * b;
            norm_difference += (a - b) * (a - b);
        }
        // Zeros of both signs differ in bits only.
        let norm = f64::max(norm_a, norm_b);
        let relative_l2 = if norm > 0.0 { (norm_difference / norm).sqrt() } else { 0.0 };
        let num_elements = a.len();
        Self {
            tensor: name.to_owned(),
            max_ulps,
            num_elements,
            num_differing,
            differing_share: num_differing as f64 / num_elements as f64,
            relative_l2,
        }
    }
}

/// Number of representable floats between two values. Flipping the bits of negative floats puts
/// integers in the order of the floats.
fn ulps_f32(a: f32, b: f32) -> u32 {
    let place = |bits: i32| bits ^ ((bits >> 31) & i32::MAX);
    place(a.to_bits().cast_signed()).abs_diff(place(b.to_bits().cast_signed()))
}

/// As [`ulps_f32`], for 64-bit floats.
pub(super) fn ulps_f64(a: f64, b: f64) -> u64 {
    let place = |bits: i64| bits ^ ((bits >> 63) & i64::MAX);
    place(a.to_bits().cast_signed()).abs_diff(place(b.to_bits().cast_signed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(tensors: &[(&str, &[f32])]) -> BTreeMap<String, Tensor> {
        let tensor = |data: &[f32]| Tensor { shape: vec![data.len()], data: data.to_vec() };
        tensors.iter().map(|(name, data)| ((*name).to_owned(), tensor(data))).collect()
    }

    #[test]
    fn ulps_count_the_floats_between_and_are_zero_for_the_same_bits_only() {
        let tiny = f32::from_bits(1);
        let cases = [
            (1.0, 1.0, 0),
            (1.0, 1.0_f32.next_up(), 1),
            (-1.0, (-1.0_f32).next_up(), 1),
            (0.0, -0.0, 1),
            (tiny, -tiny, 3),
            (1.0, 2.0, 1 << 23),
            (f32::MAX, f32::INFINITY, 1),
            (f32::MAX, f32::MIN, 2 * 0x7f7f_ffff + 1),
        ];
        for (a, b, ulps) in cases {
            assert_eq!((ulps_f32(a, b), ulps_f32(b, a)), (ulps, ulps), "{a:e} {b:e}");
        }
        assert_eq!(ulps_f64(1.0, 1.0_f64.next_down()), 1);
        assert_eq!(ulps_f64(-0.0, 0.0), 1);
        assert_eq!(ulps_f64(1.0, 2.0), 1 << 52);
        assert_eq!(ulps_f64(f64::INFINITY, f64::NEG_INFINITY), 2 * 0x7ff0_0000_0000_0000 + 1);
    }

    #[test]
    fn equal_files_differ_in_nothing() {
        let a = file(&[("x", &[1.0, -0.0]), ("empty", &[])]);
        let found = Tensors::compare(&a, &a.clone(), &[]);
        assert!(found.equal());
        assert_eq!((found.num_compared, found.first), (2, None));
    }

    #[test]
    fn the_first_difference_follows_the_model_and_then_the_alphabet() {
        let order = ["h.2", "h.10"];
        let names = ["a", "h.10", "h.10.m", "h.2", "h.2.m", "h.2.v", "z"];
        let expected = ["h.2", "h.2.m", "h.2.v", "h.10", "h.10.m", "a", "z"];
        let a = file(&names.map(|name| (name, &[1.0][..])));
        let mut b = file(&names.map(|name| (name, &[2.0][..])));
        for name in expected {
            let first = Tensors::compare(&a, &b, &order).first.expect("they differ");
            assert_eq!(first.tensor, name);
            b.insert(name.to_owned(), a[name].clone());
        }
        assert!(Tensors::compare(&a, &b, &order).equal());
    }

    #[test]
    fn tensors_are_ranked_by_their_relative_difference() {
        let tiny = f32::MIN_POSITIVE;
        let a = file(&[("flip", &[4.0, tiny, 0.0, 0.0]), ("half", &[4.0, 0.0])]);
        let b = file(&[("flip", &[4.0, -tiny, 0.0, 0.0]), ("half", &[2.0, 0.0])]);
        let half = TensorDifference {
            tensor: "half".to_owned(),
            max_ulps: 1 << 23,
            num_elements: 2,
            num_differing: 1,
            differing_share: 0.5,
            relative_l2: 0.5,
        };
        let flip = TensorDifference {
            tensor: "flip".to_owned(),
            max_ulps: (1 << 24) + 1,
            num_elements: 4,
            num_differing: 1,
            differing_share: 0.25,
            relative_l2: f64::from(tiny) / 2.0,
        };
        assert_eq!(Tensors::compare(&a, &b, &[]).worst, [half, flip]);
        let zeros = Tensors::compare(&file(&[("z", &[0.0])]), &file(&[("z", &[-0.0])]), &[]);
        assert_eq!((zeros.worst[0].max_ulps, zeros.worst[0].relative_l2), (1, 0.0));
    }

    #[test]
    fn a_tensor_without_counterpart_is_named_with_its_shapes() {
        let a = file(&[("one", &[1.0]), ("both", &[1.0])]);
        let b = file(&[("other", &[1.0]), ("both", &[1.0, 2.0])]);
        let found = Tensors::compare(&a, &b, &[]);
        assert!(!found.equal());
        let names: Vec<_> = found.unmatched.iter().map(|tensor| tensor.tensor.as_str()).collect();
        assert_eq!((found.num_compared, names), (0, vec!["both", "one", "other"]));
        let both = &found.unmatched[0];
        assert_eq!([&both.shape_a, &both.shape_b], [&Some(vec![1]), &Some(vec![2])]);
        assert_eq!(found.unmatched[1].shape_b, None);
    }
}
