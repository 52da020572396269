//! The library's choice beside what it could have chosen, and why it chose so.

use super::plan::Plan;
use super::report::{Candidate, Row, heading};
use lockstep_comm::LinkMeasurements;
use lockstep_config::units::Bytes;
use std::fmt::Write as _;
use std::time::Duration;

/// The choice and the best of the forced algorithms, size by size.
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
        "op", "size", "chosen", "predicted", "chosen us", "best", "best us", "ratio"
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
    let _ = writeln!(text, "\nthe choice takes at most {worst:.2} times as long as the best");
    text
}

/// What is known of the links, and what every algorithm would take by that.
pub(super) fn explanation(rows: &[Row]) -> String {
    let mut text = String::from("\n");
    if let Some(probe) = rows.first().and_then(|row| row.probe.as_ref()) {
        text += probe;
    }
    for row in rows {
        let words =
            row.candidates.iter().map(|each| format!("{} {:.1} us", each.algorithm, each.us));
        let size = Bytes(row.bytes as u64);
        let words = words.collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "{} of {size} by price: {words}", row.op);
    }
    text
}

/// What was measured, in a few lines.
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
        "a rank moves {:.2} GB/s at most, adds {:.2} GB/s, and needs {:.1} us for each more \
         message; ring {}",
        measured.port.0 / 1e9,
        measured.local.0 / 1e9,
        measured.per_message.0 * 1e6,
        ring.join("-"),
    );
    for tried in measured.tuning.trials().chunk_by(|one, other| one.bytes == other.bytes) {
        let words = tried.iter().map(|each| format!("{} x {:.2}", each.algorithm, each.factor));
        let words = words.collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "tried with {}, time over price: {words}", tried[0].bytes);
    }
    text
}
