//! Bitwise reproducibility: summation order of all-reduce schedules, and the step at which runs
//! diverge.

use super::common::all_reduce;
use super::prelude::*;
use lockstep_schedule::{Algorithm, Contribution, SumTree, verify};
use lockstep_tensor::math::scalar::powf;

experiment!(Reproducibility);

const DESCRIPTION: Description = Description {
    name: "reproducibility",
    title: "Reproducibility: summation order of each schedule, and the step at which runs diverge",
    question: "When do two runs diverge that differ only in the all-reduce algorithm?",
    formula: "float addition is not associative: (a + b) + c != a + (b + c); a canonical order \
              gives the same bits on any number of workers",
    look: "differing_share, the share of sums whose bits differ from the canonical order; \
           first_step, the first step with different weights; relative_difference",
    surprise: "runs diverge within the first steps but stay close for long; equal seeds do not \
               make runs equal; recursive halving sums in canonical order, a ring does not",
    params: &[
        Param::count("ranks", 8.0, (2.0, 128.0), "ranks"),
        Param::count("steps", 200.0, (1.0, 5000.0), "training steps"),
        Param::number(
            "spread",
            Unit::Number,
            3.0,
            (0.0, 30.0),
            "range of gradients in powers of ten",
        ),
        Param::number("lr", Unit::Number, 0.3, (1e-4, 1.9), "learning rate"),
    ],
    sweep: ("ranks", &[2.0, 3.0, 4.0, 8.0, 16.0, 32.0]),
    columns: &[
        Column::new("algorithm", Unit::Text, "algorithm"),
        Column::new("canonical", Unit::Text, "whether the summation order is canonical"),
        Column::new(
            "differing_share",
            Unit::Share,
            "share of sums whose bits differ from the canonical order",
        ),
        Column::new("first_step", Unit::Count, "first step at which weights differ"),
        Column::new("relative_difference", Unit::Number, "largest relative difference of weights"),
    ],
    chart: ChartSpec::lines("ranks", &["differing_share"]).by("algorithm").log(true, false),
};

/// Sum in the order of a tree, in single precision.
pub(crate) fn sum(tree: &SumTree<Contribution>, numbers: &[f32]) -> f32 {
    match tree {
        SumTree::Leaf(contribution) => numbers[contribution.rank],
        SumTree::Sum(left, right) => sum(left, numbers) + sum(right, numbers),
    }
}

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let n = at.count("ranks");
    let canonical = all_reduce(Algorithm::Rabenseifner, n, 1)?.contributions.tree();
    let mut draw = || {
        let power = (random.uniform() - 0.5) * at.number("spread");
        (random.normal() * powf(10.0, power)) as f32
    };
    let steps: Vec<Vec<f32>> =
        (0..at.count("steps")).map(|_| (0..n).map(|_| draw()).collect()).collect();
    let algorithms =
        [Algorithm::RING, Algorithm::Tree, Algorithm::Butterfly, Algorithm::Rabenseifner];
    let mut rows = Vec::new();
    for algorithm in algorithms {
        let report =
            verify(&all_reduce(algorithm, n, 1)?).expect("the engine's schedules are valid");
        let (mut weight, mut canonical_weight) = (1.0_f32, 1.0_f32);
        let (mut num_differing, mut first) = (0_usize, f64::INFINITY);
        let mut largest = 0.0_f32;
        for (number, noise) in steps.iter().enumerate() {
            // Chunks of a schedule may have different orders: one chunk per step, in turn.
            let (_, order) = &report.sums[number % report.sums.len()];
            num_differing +=
                usize::from(sum(order, noise).to_bits() != sum(&canonical, noise).to_bits());
            // A noisy quadratic: the gradient of a rank is the weight plus noise.
            let advance = |weight: &mut f32, tree: &SumTree<Contribution>| {
                let gradients: Vec<f32> = noise.iter().map(|noise| *weight + noise).collect();
                *weight -= at.number("lr") as f32 * sum(tree, &gradients) / n as f32;
            };
            advance(&mut weight, order);
            advance(&mut canonical_weight, &canonical);
            if weight.to_bits() != canonical_weight.to_bits() && first.is_infinite() {
                first = (number + 1) as f64;
            }
            let difference =
                (weight - canonical_weight).abs() / canonical_weight.abs().max(f32::MIN_POSITIVE);
            largest = largest.max(difference);
        }
        rows.push(row![
            algorithm.to_string(),
            if report.canonical { "yes" } else { "no" },
            num_differing as f64 / steps.len() as f64,
            first,
            f64::from(largest),
        ]);
    }
    Ok(rows)
}

fn findings(table: &Table) -> Vec<String> {
    let [ring, halving] = ["ring", "rabenseifner"].map(|name| last_with(table, "algorithm", name));
    vec![
        format!(
            "{}a ring changes the bits of {} of sums, rabenseifner of {}",
            at(table, ring),
            cell(table, "differing_share", ring),
            cell(table, "differing_share", halving)
        ),
        format!(
            "first step at which the ring's weights differ: {}; largest relative difference: {}",
            cell(table, "first_step", ring),
            cell(table, "relative_difference", ring)
        ),
    ]
}
