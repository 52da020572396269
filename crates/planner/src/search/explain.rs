//! Comparison of the two best layouts, and fixes for layouts that do not fit.

use super::Candidate;
use crate::job::Workload;
use crate::layout::{Layout, Offload, OffloadedStates};
use crate::memory::cluster::largest_stage;
use lockstep_config::Recompute;
use std::fmt::Write;

/// Parts of a step with their names.
fn parts(candidate: &Candidate) -> [(&'static str, f64); 7] {
    let step = &candidate.step;
    [
        ("computation", step.compute),
        ("exposed communication inside layers", step.exposed - step.data_exposed),
        ("exposed gradient exchange", step.data_exposed),
        ("pipeline bubble", step.bubble),
        ("kernel launches", step.host),
        ("optimizer step", step.update),
        ("data loading", step.loading),
    ]
}

/// One line on the part where the second layout loses most, and where it gains if that is much.
pub fn explain_runner_up(first: &Candidate, second: &Candidate) -> String {
    let both = parts(first).into_iter().zip(parts(second));
    let mut parts: Vec<(&str, f64)> =
        both.map(|((name, one), (_, other))| (name, other - one)).collect();
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let ((most, more), (least, less)) = (parts[0], parts[parts.len() - 1]);
    let slower = 100.0 * (second.step.seconds / first.step.seconds - 1.0);
    let brief = second.layout;
    let mut line = format!("{brief} is {slower:.1} % slower: {:.1} ms more of {most}", 1e3 * more);
    if less < -0.3 * more {
        let _ = write!(line, ", {:.1} ms less of {least}", -1e3 * less);
    }
    line
}

/// One line on a layout that does not fit: the missing memory, and the cheapest single change that
/// would fit.
pub fn explain_rejection(workload: &Workload<'_>, rejected: &Candidate) -> String {
    let gib = f64::from(1_u32 << 30);
    let needed = rejected.memory.needed(workload.calibration);
    let has = workload.usable_bytes();
    let largest = [
        ("weights", rejected.memory.weights),
        ("gradients", rejected.memory.gradients),
        ("optimizer state", rejected.memory.optimizer),
        ("activations", rejected.memory.activations),
        ("logits", rejected.memory.peak),
    ]
    .into_iter()
    .max_by(|a, b| a.1.total_cmp(&b.1))
    .map_or("", |(name, _)| name);
    let change = changes(rejected.layout)
        .into_iter()
        .find(|(_, layout)| {
            let changed = workload.with(*layout);
            largest_stage(&changed.job).fits(&changed) && changed.job.problems().is_empty()
        })
        .map_or_else(|| "no single change is enough".to_owned(), |(what, _)| format!("or {what}"));
    format!(
        "{} would take {:.2} s but needs {:.1} of {:.1} usable GiB, most of it {largest}: \
         {:.1} GiB more, {change}",
        rejected.layout,
        rejected.step.seconds,
        needed / gib,
        has / gib,
        (needed - has) / gib,
    )
}

/// Single changes that save memory, cheapest first.
fn changes(layout: Layout) -> Vec<(&'static str, Layout)> {
    let halved = layout.microbatch.div_ceil(2);
    vec![
        ("ZeRO-1", Layout { zero: layout.zero.max(1), ..layout }),
        (
            "selective recomputation",
            Layout { recompute: layout.recompute.max(Recompute::Selective), ..layout },
        ),
        ("half the micro-batch size", Layout { microbatch: halved, ..layout }),
        ("full recomputation", Layout { recompute: Recompute::Full, ..layout }),
        ("ZeRO-2", Layout { zero: layout.zero.max(2), ..layout }),
        ("ZeRO-3", Layout { zero: 3, ..layout }),
        (
            "offload of gradients and optimizer state to the host",
            Layout { offload: Offload::ZERO_OFFLOAD, ..layout },
        ),
        (
            "offload of all model states to the host",
            Layout { offload: Offload::to_host(OffloadedStates::Weights), ..layout },
        ),
    ]
}
