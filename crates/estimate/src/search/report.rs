//! Why the second lost, and what a rejected layout would need.

use super::{Choice, Question};
use crate::layout::Layout;
use std::fmt::Write;

/// Parts of a step with their names.
fn parts(choice: &Choice) -> [(&'static str, f64); 7] {
    let step = &choice.step;
    [
        ("computing", step.compute),
        ("messages inside layers", step.exposed - step.data_exposed),
        ("gradients and weights of other copies", step.data_exposed),
        ("idle time of the pipeline", step.bubble),
        ("starting kernels", step.host),
        ("the update", step.update),
        ("waiting for text", step.loading),
    ]
}

/// One line on what the second spends more than the first, and less where that is much.
pub fn why_it_lost(first: &Choice, second: &Choice) -> String {
    let both = parts(first).into_iter().zip(parts(second));
    let mut parts: Vec<(&str, f64)> =
        both.map(|((name, one), (_, other))| (name, other - one)).collect();
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let ((most, more), (least, less)) = (parts[0], parts[parts.len() - 1]);
    let slower = 100.0 * (second.step.seconds / first.step.seconds - 1.0);
    let brief = second.layout.brief();
    let mut line = format!("{brief} is {slower:.1} % slower: {:.1} ms more of {most}", 1e3 * more);
    if less < -0.3 * more {
        let _ = write!(line, ", {:.1} ms less of {least}", -1e3 * less);
    }
    line
}

/// What would make a layout fit that is too large: memory of a device, or the smallest change of
/// its own that does.
pub fn what_it_needs(question: &Question<'_>, rejected: &Choice) -> String {
    let gib = f64::from(1_u32 << 30);
    let needed = rejected.memory.needed(question.calibration);
    let has = question.cluster.device.memory_bytes();
    let largest = [
        ("weights", rejected.memory.weights),
        ("gradients", rejected.memory.gradients),
        ("optimizer states", rejected.memory.optimizer),
        ("activations", rejected.memory.activations),
        ("logits", rejected.memory.peak),
    ]
    .into_iter()
    .max_by(|a, b| a.1.total_cmp(&b.1))
    .map_or("", |(name, _)| name);
    let change = changes(rejected.layout)
        .into_iter()
        .find(|(_, layout)| {
            let job = question.job(*layout);
            let fits = crate::memory::fullest(&job).needed(question.calibration) <= has;
            fits && job.problems().is_empty()
        })
        .map_or_else(|| "no single switch is enough".to_owned(), |(what, _)| format!("or {what}"));
    format!(
        "{} would take {:.2} s but needs {:.1} of {:.1} GiB, most of it {largest}: \
         {:.1} GiB more, {change}",
        rejected.layout.brief(),
        rejected.step.seconds,
        needed / gib,
        has / gib,
        (needed - has) / gib,
    )
}

/// Changes of one switch that save memory, the cheapest first.
fn changes(layout: Layout) -> Vec<(&'static str, Layout)> {
    use crate::layout::Recompute::{Full, Selective};
    let halved = layout.microbatch.div_ceil(2);
    vec![
        ("ZeRO 1", Layout { zero: layout.zero.max(1), ..layout }),
        (
            "selective recomputation",
            Layout { recompute: layout.recompute.max(Selective), ..layout },
        ),
        ("half the microbatch", Layout { microbatch: halved, ..layout }),
        ("full recomputation", Layout { recompute: Full, ..layout }),
        ("ZeRO 3", Layout { zero: 3, ..layout }),
        ("the optimizer's states on the host", Layout { offload: true, ..layout }),
    ]
}
