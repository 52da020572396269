//! Histograms of every trained tensor's weights and gradients, on request.
//!
//! Every rank counts what it alone steps, and the counts are added over the ranks: buckets have
//! fixed limits, so every layout has the same histograms.

use lockstep_comm::{CommError, Reduction};
use lockstep_config::Recipe;
use lockstep_parallel::Replica;
use lockstep_telemetry::Event;
use lockstep_telemetry::histogram::BucketLimits;

/// Values of a tensor that have histograms, in the order of their tallies.
const VALUES: [&str; 2] = ["weights", "gradients"];

/// Visits the histograms of a step whose gradients are reduced and whose update is not made, where
/// they are due. Collective.
pub(crate) fn visit_histograms(
    recipe: &Recipe,
    num_steps: u64,
    replica: &Replica,
    mut visit: impl FnMut(&Event),
) -> Result<(), CommError> {
    let every = recipe.telemetry.histograms_every;
    if every == 0 || !num_steps.is_multiple_of(every) {
        return Ok(());
    }
    let limits = BucketLimits::of_tensor_board();
    let (names, len) = (replica.tensor_names(), limits.tally_len());
    let num_tallies = names.len() * VALUES.len();
    let mut tallies = vec![0.0; num_tallies * len];
    let mut extremes = vec![[f64::NEG_INFINITY; 2]; num_tallies];
    replica.visit_counted_tensors(|slot, weights, gradients| {
        for (kind, values) in [weights, gradients].into_iter().enumerate() {
            let number = slot.tensor * VALUES.len() + kind;
            let tally = &mut tallies[number * len..(number + 1) * len];
            limits.add(values, tally, &mut extremes[number]);
        }
    });
    let world = replica.groups().world();
    world.all_reduce(&mut tallies, Reduction::Sum)?;
    world.all_reduce(extremes.as_flattened_mut(), Reduction::Max)?;
    for (number, (tally, extremes)) in tallies.chunks_exact(len).zip(extremes).enumerate() {
        if let Some(values) = limits.histogram(tally, extremes) {
            let (tensor, of) =
                (names[number / VALUES.len()].clone(), VALUES[number % VALUES.len()]);
            visit(&Event::Histogram { step: num_steps, of: of.to_owned(), tensor, values });
        }
    }
    Ok(())
}
