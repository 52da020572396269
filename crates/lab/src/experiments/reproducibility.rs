//! The order of a sum: the same gradients, added by different schedules, differ in their last bits.

use super::common::all_reduce;
use super::prelude::*;
use lockstep_schedule::{Algorithm, Contribution, SumTree, verify};
use lockstep_tensor::math::scalar::powf;

experiment!(Reproducibility);

const CARD: Card = Card {
    name: "reproducibility",
    title: "Reproducibility: sums in the order of each schedule, and the step at which runs part",
    question: "When do two runs that differ only in how gradients are summed stop being equal?",
    formula: "float addition is not associative: (a + b) + c != a + (b + c); a canonical order \
              gives the same bits on any number of workers",
    look: "differing, the share of sums whose bits differ from the canonical order; first_step, \
           the step at which training parts; relative, how far they get",
    surprise: "runs part within the first steps, not after many, but stay close for long; seeds \
               alone do not make runs equal; halving adds in canonical order, a ring does not",
    params: &[
        Param::count("ranks", 8.0, (2.0, 128.0), "ranks"),
        Param::count("steps", 200.0, (1.0, 5000.0), "steps of training"),
        Param::number("spread", Unit::Number, 3.0, (0.0, 30.0), "powers of ten of the gradients"),
        Param::number("lr", Unit::Number, 0.3, (1e-4, 1.9), "learning rate"),
    ],
    sweep: ("ranks", &[2.0, 3.0, 4.0, 8.0, 16.0, 32.0]),
    columns: &[
        Column::new("algorithm", Unit::Word, "algorithm"),
        Column::new("canonical", Unit::Word, "whether the engine proved the order canonical"),
        Column::new("differing", Unit::Share, "sums whose bits differ from the canonical order"),
        Column::new("first_step", Unit::Count, "first step at which weights differ"),
        Column::new("relative", Unit::Number, "largest relative difference of weights"),
    ],
    picture: Picture::lines("ranks", &["differing"]).by("algorithm").log(true, false),
};

/// A sum in the order of its tree, in single precision.
pub(crate) fn sum(tree: &SumTree<Contribution>, numbers: &[f32]) -> f32 {
    match tree {
        SumTree::Leaf(addend) => numbers[addend.rank],
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
            verify(&all_reduce(algorithm, n, 1)?).expect("the engine's schedules are right");
        let (mut ours, mut theirs) = (1.0_f32, 1.0_f32);
        let (mut num_differing, mut first) = (0_usize, f64::INFINITY);
        let mut largest = 0.0_f32;
        for (number, noise) in steps.iter().enumerate() {
            // Chunks of one schedule may have different orders: a weight of each in turn.
            let (_, order) = &report.sums[number % report.sums.len()];
            num_differing +=
                usize::from(sum(order, noise).to_bits() != sum(&canonical, noise).to_bits());
            // A bowl with noise: each rank's gradient is the weight and its noise.
            let advance = |weight: &mut f32, tree: &SumTree<Contribution>| {
                let gradients: Vec<f32> = noise.iter().map(|noise| *weight + noise).collect();
                *weight -= at.number("lr") as f32 * sum(tree, &gradients) / n as f32;
            };
            advance(&mut ours, order);
            advance(&mut theirs, &canonical);
            if ours.to_bits() != theirs.to_bits() && first.is_infinite() {
                first = (number + 1) as f64;
            }
            let apart = (ours - theirs).abs() / theirs.abs().max(f32::MIN_POSITIVE);
            largest = largest.max(apart);
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
    let (algorithms, end) = (table.words("algorithm"), last(table));
    let of = |name: &str| (0..=end).rev().find(|row| algorithms[*row] == name).unwrap_or(0);
    let (ring, halving) = (of("ring"), of("rabenseifner"));
    vec![
        format!(
            "At {} a ring changes the bits of {} of sums, rabenseifner of {}",
            place(table, ring),
            cell(table, "differing", ring),
            cell(table, "differing", halving)
        ),
        format!(
            "training parts at step {} and gets {} apart",
            cell(table, "first_step", ring),
            cell(table, "relative", ring)
        ),
    ]
}
