//! Which samples each part of a divided problem has.
//!
//! Parts are stretches of equal length of one order of all samples, so that the mean over parts is
//! the mean over samples and its optimum stays what it is. *By class* sorts them. *Dirichlet*
//! (Hsu et al. 2019) draws for each part how often it has each class: the smaller α, the fewer
//! classes a part has. What a class has run out of is drawn from the others.

use lockstep_config::{DividedBy, Division};
use lockstep_tensor::math::scalar;
use lockstep_tensor::random::Key;

/// The samples in the order of parts; nothing where they stay as they are. (They are drawn one by
/// one, so as they are their order is a lot already.)
pub(super) fn order(division: &Division, seed: u64, classes: &[usize]) -> Option<Vec<usize>> {
    match division.by {
        DividedBy::Nothing | DividedBy::Lot => None,
        DividedBy::Class => {
            let mut order: Vec<usize> = (0..classes.len()).collect();
            order.sort_by_key(|sample| classes[*sample]);
            Some(order)
        }
        DividedBy::Dirichlet => Some(mixed(division, seed, classes)),
    }
}

fn mixed(division: &Division, seed: u64, classes: &[usize]) -> Vec<usize> {
    let num_classes = classes.iter().max().map_or(0, |last| last + 1);
    // The samples of each class, the last of which is taken next.
    let mut left: Vec<Vec<usize>> = vec![Vec::new(); num_classes];
    (0..classes.len()).rev().for_each(|sample| left[classes[sample]].push(sample));
    let (shares_key, draws) = (Key::new(seed, "dirichlet"), Key::new(seed, "division"));
    let mut order = Vec::with_capacity(classes.len());
    for part in 0..division.parts {
        let end = (part + 1) * classes.len() / division.parts;
        let key = shares_key.with(part as u64);
        let share = |class: usize| gamma(division.alpha, key.with(class as u64));
        let shares: Vec<f64> = (0..num_classes).map(share).collect();
        while order.len() < end {
            let weight = |class: usize| if left[class].is_empty() { 0.0 } else { shares[class] };
            let total: f64 = (0..num_classes).map(weight).sum();
            let mut rest = draws.uniform_f64(order.len() as u64) * total;
            let drawn = (0..num_classes).find(|&class| {
                rest -= weight(class);
                rest < 0.0
            });
            // Shares so small that they are zero are of no help where their classes are left.
            let any = || (0..num_classes).find(|&class| !left[class].is_empty());
            let class = drawn.filter(|&class| !left[class].is_empty()).or_else(any);
            order.extend(left[class.expect("samples are left")].pop());
        }
    }
    order
}

/// A draw from the Gamma distribution of shape `alpha` (Marsaglia and Tsang 2000).
fn gamma(alpha: f64, key: Key) -> f64 {
    if alpha < 1.0 {
        let uniform = 1.0 - key.uniform_f64(0);
        return gamma(alpha + 1.0, key.with(1)) * scalar::exp(scalar::ln(uniform) / alpha);
    }
    let d = alpha - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    for attempt in 0.. {
        let (normal, uniform) = (f64::from(key.normal(attempt)), 1.0 - key.uniform_f64(attempt));
        let v = (1.0 + c * normal) * (1.0 + c * normal) * (1.0 + c * normal);
        if v > 0.0 && scalar::ln(uniform) < 0.5 * normal * normal + d - d * v + d * scalar::ln(v) {
            return d * v;
        }
    }
    unreachable!("nearly every attempt is taken")
}

/// Which tenth of all targets each lies in.
pub(super) fn tenths(targets: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..targets.len()).collect();
    order.sort_by(|a, b| targets[*a].total_cmp(&targets[*b]));
    let mut classes = vec![0; targets.len()];
    for (rank, sample) in order.into_iter().enumerate() {
        classes[sample] = 10 * rank / targets.len();
    }
    classes
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASSES: usize = 10;

    fn division(by: DividedBy, alpha: f64) -> Division {
        Division { by, alpha, parts: 8 }
    }

    /// The mean over parts of the share of a part's largest class.
    fn largest_share(order: &[usize], classes: &[usize]) -> f64 {
        let share = |part: &[usize]| {
            let count = |class| part.iter().filter(|sample| classes[**sample] == class).count();
            (0..CLASSES).map(count).max().unwrap_or(0) as f64 / part.len() as f64
        };
        order.chunks(order.len() / 8).map(share).sum::<f64>() / 8.0
    }

    #[test]
    fn every_division_has_every_sample_once_and_skew_grows_as_alpha_falls() {
        let classes: Vec<usize> = (0..800).map(|sample| sample * 7 % CLASSES).collect();
        let mut shares = Vec::new();
        for alpha in [100.0, 1.0, 0.1] {
            let order = order(&division(DividedBy::Dirichlet, alpha), 5, &classes).expect("mixed");
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..800).collect::<Vec<_>>());
            shares.push(largest_share(&order, &classes));
        }
        assert!(shares[0] < 0.2 && shares[0] < shares[1] && shares[1] < shares[2], "{shares:?}");
        let sorted = order(&division(DividedBy::Class, 1.0), 5, &classes).expect("sorted");
        assert!(sorted.is_sorted_by_key(|sample| classes[*sample]));
        assert!(order(&division(DividedBy::Lot, 1.0), 5, &classes).is_none());
    }

    #[test]
    fn gamma_has_the_mean_and_variance_of_its_shape() {
        for alpha in [0.3, 1.0, 4.0] {
            let draws: Vec<f64> =
                (0..20_000).map(|index| gamma(alpha, Key::new(3, "test").with(index))).collect();
            let mean = draws.iter().sum::<f64>() / draws.len() as f64;
            let square = |draw: &f64| (draw - mean) * (draw - mean);
            let variance = draws.iter().map(square).sum::<f64>() / draws.len() as f64;
            assert!((mean / alpha - 1.0).abs() < 0.05, "{alpha}: mean {mean}");
            assert!((variance / alpha - 1.0).abs() < 0.1, "{alpha}: variance {variance}");
        }
    }

    #[test]
    fn tenths_have_equally_many() {
        let classes = tenths(&[5.0, 1.0, 4.0, 2.0, 3.0, 9.0, 8.0, 7.0, 6.0, 0.0]);
        assert_eq!(classes, [5, 1, 4, 2, 3, 9, 8, 7, 6, 0]);
    }
}
