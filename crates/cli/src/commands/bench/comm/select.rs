//! The selected algorithm against all others, and the predictions behind the selection.

use super::plan::Plan;
use super::report::{Candidate, Row, heading};
use lockstep_comm::LinkMeasurements;
use lockstep_config::units::Bytes;
use std::fmt::Write as _;
use std::time::Duration;

/// The selected algorithm and the fastest one by size.
pub(super) fn table(plan: &Plan, rows: &[Row]) -> String {
    let mut text = String::new();
    if let Some(row) = rows.first() {
        let _ = writeln!(text, "{}", heading(row));
    }
    if plan.emulate.has_links() {
        let _ = writeln!(text, "emulated: {}", plan.emulate);
    }
    let _ = writeln!(
        text,
        "\n{:<14} {:>9} {:<14} {:>11} {:>11} {:<14} {:>11} {:>7}  others",
        "op", "size", "selected", "predicted", "median us", "best", "best us", "ratio"
    );
    for row in rows {
        let mut forced: Vec<&Candidate> = row.forced.iter().collect();
        forced.sort_by(|one, other| one.us.total_cmp(&other.us));
        let Some(best) = forced.first() else { continue };
        let others = forced[1..].iter().map(|each| format!("{} {:.1}", each.algorithm, each.us));
        let _ = writeln!(
            text,
            "{:<14} {:>9} {:<14} {:>11.1} {:>11.1} {:<14} {:>11.1} {:>7.2}  {}",
            row.op,
            Bytes(row.bytes as u64).to_string(),
            row.algorithm,
            row.predicted_us.unwrap_or(0.0),
            row.median_us,
            best.algorithm,
            best.us,
            row.median_us / best.us.max(1e-3),
            others.collect::<Vec<_>>().join(", "),
        );
    }
    let ratios = rows.iter().filter_map(|row| {
        let best = row.forced.iter().map(|each| each.us).fold(f64::INFINITY, f64::min);
        best.is_finite().then_some(row.median_us / best.max(1e-3))
    });
    let worst = ratios.fold(0.0, f64::max);
    let _ =
        writeln!(text, "\nthe selected algorithm takes at most {worst:.2}x the time of the best");
    text
}

/// Measured links and the predicted time of every algorithm.
pub(super) fn render_predictions(rows: &[Row]) -> String {
    let mut text = String::from("\n");
    if let Some(probe) = rows.first().and_then(|row| row.probe.as_ref()) {
        text += probe;
    }
    for row in rows {
        let times =
            row.candidates.iter().map(|each| format!("{} {:.1} us", each.algorithm, each.us));
        let size = Bytes(row.bytes as u64);
        let times = times.collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "{} of {size}, predicted: {times}", row.op);
    }
    text
}

/// Measured links in a few lines.
pub(super) fn links(measured: &LinkMeasurements, num_ranks: usize, took: Duration) -> String {
    let mut text = format!("measured in {} ms\n", took.as_millis());
    text += "link    latency us   bandwidth GB/s\n";
    let pairs = (0..num_ranks).flat_map(|to| (0..to).map(move |from| (from, to)));
    for (from, to) in pairs {
        if let Some(link) = measured.links.between(from, to) {
            let (micros, speed) = (link.latency.0 * 1e6, link.bandwidth.0 / 1e9);
            let _ = writeln!(text, "{from:>2}-{to:<4} {micros:>10.1} {speed:>16.2}");
        }
    }
    let ring = measured.links.ring_order();
    let ring: Vec<String> = ring.iter().map(usize::to_string).collect();
    let _ = writeln!(
        text,
        "port {:.2} GB/s, reduction {:.2} GB/s, overhead {:.1} us per message; ring {}",
        measured.port.0 / 1e9,
        measured.local.0 / 1e9,
        measured.per_message.0 * 1e6,
        ring.join("-"),
    );
    for trials in measured.tuning.trials().chunk_by(|one, other| one.bytes == other.bytes) {
        let factors = trials.iter().map(|each| format!("{} x {:.2}", each.algorithm, each.factor));
        let factors = factors.collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "at {}, measured over predicted: {factors}", trials[0].bytes);
    }
    text
}
