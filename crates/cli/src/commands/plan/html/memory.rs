//! What the fullest device of each layout holds, beside what it has.

use super::{escaped, opening, room, ticks};
use crate::quantity::to_gib as gib;
use lockstep_estimate::scenario::Scenario;
use lockstep_estimate::search::Candidate;
use std::fmt::Write;

/// Colours of parts that people can tell apart who cannot tell red from green.
const PARTS: [(&str, &str); 7] = [
    ("weights", "#4477aa"),
    ("gradients", "#66ccee"),
    ("optimizer", "#228833"),
    ("activations", "#ddaa33"),
    ("for a moment", "#bb5566"),
    ("buffers", "#aa3377"),
    ("holes and libraries", "#bbbbbb"),
];
/// Bars of a whole device, rows, and the room above and below them.
const BARS: f64 = 560.0;
const ROW: f64 = 30.0;
const TOP: f64 = 58.0;
const BELOW: f64 = 44.0;

/// One bar for each layout over an axis of GiB, with the device's memory as a line.
pub(super) fn picture(scenario: &Scenario, choices: &[Candidate]) -> String {
    let capacity = scenario.cluster.device.memory_bytes();
    let needed = |choice: &Candidate| choice.memory.needed(&scenario.calibration);
    let most = choices.iter().map(needed).fold(capacity, f64::max);
    let names: Vec<String> = choices.iter().map(|choice| choice.layout.to_string()).collect();
    let left = names.iter().map(|name| room(name)).fold(120.0, f64::max) + 16.0;
    let bottom = TOP + ROW * choices.len() as f64;
    let mut text = opening(left + BARS + 90.0, bottom + BELOW);
    legend(&mut text);
    let scale = BARS / most;
    for tick in ticks(gib(most), 8.0) {
        let x = left + scale * tick * GIB;
        let _ = writeln!(
            text,
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"#dddddd\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick}</text>",
            bottom + 4.0,
            bottom + 18.0
        );
    }
    let _ = writeln!(
        text,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">GiB of a device</text>",
        left + BARS / 2.0,
        bottom + 36.0
    );
    for (index, (choice, name)) in choices.iter().zip(&names).enumerate() {
        let y = TOP + ROW * index as f64 + 4.0;
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left - 8.0,
            y + 15.0,
            escaped(name)
        );
        let end = bar(choice, needed(choice), (left, y), scale, &mut text);
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\">{:.1} GiB</text>",
            // Beside the line of what there is, not on it.
            if (end - left - scale * capacity).abs() < 70.0 {
                left + BARS.max(scale * capacity) + 8.0
            } else {
                end + 6.0
            },
            y + 15.0,
            gib(needed(choice))
        );
    }
    let line = left + scale * capacity;
    let _ = writeln!(
        text,
        "<line x1=\"{line:.1}\" y1=\"{:.1}\" x2=\"{line:.1}\" y2=\"{bottom:.1}\" stroke=\"#222\" \
         stroke-width=\"1.5\" stroke-dasharray=\"4 3\"/>\
         <text x=\"{line:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.0} GiB there are</text>\n\
         </svg>",
        TOP - 8.0,
        TOP - 12.0,
        gib(capacity)
    );
    text
}

/// What colours mean, in a row of their own.
fn legend(text: &mut String) {
    let mut x = 10.0;
    for (name, colour) in PARTS {
        let _ = writeln!(
            text,
            "<rect x=\"{x:.1}\" y=\"8\" width=\"10\" height=\"10\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"17\">{name}</text>",
            x + 14.0
        );
        x += 14.0 + room(name) + 14.0;
    }
}

/// A bar of parts; where it ends.
fn bar(
    choice: &Candidate,
    needed: f64,
    (left, y): (f64, f64),
    scale: f64,
    text: &mut String,
) -> f64 {
    let memory = &choice.memory;
    let parts = [
        memory.weights,
        memory.gradients,
        memory.optimizer,
        memory.activations,
        memory.peak,
        memory.buffers,
        needed - memory.total(),
    ];
    let mut x = left;
    for (bytes, (name, colour)) in parts.into_iter().zip(PARTS) {
        let width = scale * bytes;
        let _ = writeln!(
            text,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"22\" \
             fill=\"{colour}\"><title>{name}: {:.2} GiB</title></rect>",
            gib(bytes)
        );
        x += width;
    }
    x
}

const GIB: f64 = (1_u64 << 30) as f64;
