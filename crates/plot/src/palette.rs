//! Every colour of charts and pages, and dashes and marker shapes by the number of a series.
//!
//! Charts are drawn for paper, in the light theme. A page in a browser has both themes: its style
//! sheet names colours as variables, and [`style_sheet`] defines them.

use std::fmt::Write as _;

/// Colours of a page.
#[derive(Debug)]
pub struct Theme {
    /// Background.
    pub page: &'static str,
    /// Background of what lies on it.
    pub sheet: &'static str,
    /// Text.
    pub ink: &'static str,
    /// Text of less weight.
    pub soft: &'static str,
    /// Borders.
    pub line: &'static str,
    /// Lines of a grid.
    pub grid: &'static str,
    /// Links and what is selected, and a background for them.
    pub accent: [&'static str; 2],
    /// Good, bad, and worth a look.
    pub states: [&'static str; 3],
    /// Cells of a heat map, from transparent to this.
    pub heat: [u8; 3],
    /// Series of a chart.
    pub series: [&'static str; 7],
    /// Parts of memory or time, in the order of [`PARTS`].
    pub parts: [&'static str; 8],
    /// Tasks of a step, in the order of [`TASKS`].
    pub tasks: [&'static str; 7],
}

/// Names of the parts of memory; the last two are what the plan adds for the process.
pub const PARTS: [&str; 8] = [
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "buffers",
    "checkpoint",
    "transient",
    "overhead",
];

/// Names of the tasks of a step.
pub const TASKS: [&str; 7] =
    ["forward", "backward", "input-gradient", "weight-gradient", "recompute", "update", "send"];

/// Paper, and a page in daylight. The series remain distinct under every common colour-vision
/// deficiency (Okabe and Ito 2008), darkened for contrast on white; parts and tasks are those of
/// Tol 2021.
pub const LIGHT: Theme = Theme {
    page: "#f6f7f9",
    sheet: "#ffffff",
    ink: "#1b1f24",
    soft: "#57606a",
    line: "#d5dae0",
    grid: "#e6e6e6",
    accent: ["#0066a1", "#e2f0f9"],
    states: ["#00694d", "#b3261e", "#7d5300"],
    heat: [0, 114, 178],
    series: ["#0072b2", "#c14b00", "#00795a", "#b0508a", "#2a8fc4", "#7d6200", "#444444"],
    parts: ["#4477aa", "#66ccee", "#228833", "#ddaa33", "#aa3377", "#bbbbbb", "#bb5566", "#bbbbbb"],
    tasks: ["#4477aa", "#ddaa33", "#66ccee", "#bb5566", "#8a6d00", "#228833", "#aa3377"],
};

/// A page at night.
pub const DARK: Theme = Theme {
    page: "#0f1318",
    sheet: "#181d24",
    ink: "#e6eaef",
    soft: "#a2adba",
    line: "#36404c",
    grid: "#29313b",
    accent: ["#6cc0f5", "#17344a"],
    states: ["#4fd6a9", "#ff8a80", "#f2c14e"],
    heat: [86, 180, 233],
    series: ["#56b4e9", "#f0843c", "#2fc99a", "#e39ac8", "#8ed1f7", "#d9b93a", "#c4c9d0"],
    parts: ["#77aadd", "#99ddff", "#44bb99", "#eedd88", "#ee99cc", "#9aa5b1", "#ee8866", "#9aa5b1"],
    tasks: ["#77aadd", "#eedd88", "#99ddff", "#ee8866", "#d9b93a", "#44bb99", "#ee99cc"],
};

/// Colours of series on paper.
pub const COLOURS: [&str; 7] = LIGHT.series;

/// Axes and small print.
pub const AXIS: &str = LIGHT.series[6];
/// Lines of a grid.
pub const GRID: &str = LIGHT.grid;
/// Text of less weight.
pub const SOFT: &str = LIGHT.soft;
/// Idle time, and what is beside the matter.
pub const IDLE: &str = LIGHT.parts[7];
/// Time that others cause.
pub const EXPOSED: &str = "#ee6677";
/// Bars in turn, so that neighbours stay apart.
pub const BARS: [&str; 2] = [LIGHT.parts[0], "#99bbdd"];
/// Ground and stripes of a hatching, and dots of a dotted filling.
pub const HATCHING: [&str; 2] = ["#ffe3c2", "#f2a25f"];
/// Dots of a filling.
pub const DOTS: &str = "#777777";

/// Ends of the scale of a heat map, from nearly white to dark blue.
pub const HEAT: [[f64; 3]; 2] = [[247.0, 251.0, 255.0], [8.0, 64.0, 129.0]];
/// Ends of the scale from nothing to complete.
pub const COMPLETE: [[f64; 3]; 2] = [[250.0, 250.0, 250.0], [33.0, 102.0, 172.0]];

/// Colour at a share of a scale.
pub fn blend([from, to]: [[f64; 3]; 2], share: f64) -> String {
    let [red, green, blue] =
        std::array::from_fn(|at| (from[at] + share * (to[at] - from[at])) as u8);
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Colour of a part of memory on paper.
pub const fn part(index: usize) -> &'static str {
    LIGHT.parts[index]
}

/// Colour of a task on paper.
pub const fn task(index: usize) -> &'static str {
    LIGHT.tasks[index]
}

/// Definitions of the variables that the style sheet of a page names, for both themes.
pub fn style_sheet() -> String {
    let mut sheet = ":root{color-scheme:light dark;".to_owned();
    variables(&mut sheet, &LIGHT);
    sheet += "}\n@media (prefers-color-scheme: dark){:root{";
    variables(&mut sheet, &DARK);
    sheet + "}}\n"
}

/// Definitions for a page that is printed or sent: the light theme.
pub fn paper() -> String {
    let mut sheet = ":root{".to_owned();
    variables(&mut sheet, &LIGHT);
    sheet + "}body{color:var(--ink)}"
}

fn variables(sheet: &mut String, theme: &Theme) {
    let Theme { page, sheet: ground, ink, soft, line, grid, accent, states, heat, .. } = theme;
    let [red, green, blue] = heat;
    let _ = write!(
        sheet,
        "--page:{page};--sheet:{ground};--ink:{ink};--soft:{soft};--line:{line};--grid:{grid};\
         --accent:{};--accent-soft:{};--good:{};--bad:{};--warn:{};--heat:{red},{green},{blue};\
         --idle:{};--on-task:{};",
        accent[0], accent[1], states[0], states[1], states[2], theme.parts[7], LIGHT.ink,
    );
    for (index, colour) in theme.series.iter().enumerate() {
        let _ = write!(sheet, "--c{index}:{colour};");
    }
    for (index, colour) in theme.parts.iter().enumerate() {
        let _ = write!(sheet, "--m{index}:{colour};");
    }
    for (name, colour) in TASKS.iter().zip(theme.tasks) {
        let _ = write!(sheet, "--{name}:{colour};");
    }
}

/// Dashes, so that lines differ in print without colour.
const DASHES: [&str; 7] = ["", "8 4", "2 3", "10 3 2 3", "5 5", "12 4", "1 4"];

/// Corners of the marker shapes; the first, a circle, has none.
const MARKERS: [&[(f64, f64)]; 5] = [
    &[],
    &[(-4.0, -4.0), (4.0, -4.0), (4.0, 4.0), (-4.0, 4.0)],
    &[(0.0, -5.5), (5.0, 4.0), (-5.0, 4.0)],
    &[(0.0, -5.5), (5.5, 0.0), (0.0, 5.5), (-5.5, 0.0)],
    &[(0.0, 5.5), (5.0, -4.0), (-5.0, -4.0)],
];

/// Colour of a series.
pub const fn colour(series: usize) -> &'static str {
    COLOURS[series % COLOURS.len()]
}

/// Dash pattern of a series; the first is solid.
pub const fn dashes(series: usize) -> &'static str {
    DASHES[series % DASHES.len()]
}

/// Corners of a series' marker around its centre; none for a circle.
pub const fn marker(series: usize) -> &'static [(f64, f64)] {
    MARKERS[series % MARKERS.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance of a colour (WCAG 2.1).
    fn luminance(colour: &str) -> f64 {
        let level = |at: usize| {
            let value = u8::from_str_radix(&colour[at..at + 2], 16).expect("hexadecimal digits");
            let share = f64::from(value) / 255.0;
            if share <= 0.03928 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * level(1) + 0.7152 * level(3) + 0.0722 * level(5)
    }

    fn contrast(one: &str, other: &str) -> f64 {
        let (one, other) = (luminance(one), luminance(other));
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    #[test]
    fn text_and_lines_have_the_contrast_that_wcag_asks_for() {
        for theme in [&LIGHT, &DARK] {
            let texts = [theme.ink, theme.soft, theme.accent[0]].into_iter().chain(theme.states);
            for text in texts {
                for ground in [theme.sheet, theme.page] {
                    assert!(contrast(text, ground) >= 4.5, "text {text} on {ground}");
                }
            }
            for line in theme.series {
                assert!(contrast(line, theme.sheet) >= 3.0, "line {line} on {}", theme.sheet);
            }
        }
    }

    #[test]
    fn scales_begin_and_end_with_their_colours() {
        assert_eq!((blend(HEAT, 0.0), blend(HEAT, 1.0)), ("#f7fbff".into(), "#084081".into()));
        assert_eq!(blend(COMPLETE, 1.0), "#2166ac");
    }

    #[test]
    fn series_differ_from_each_other() {
        for theme in [&LIGHT, &DARK] {
            for (index, one) in theme.series.iter().enumerate() {
                assert!(!theme.series[..index].contains(one), "{one} twice");
            }
        }
        let sheet = style_sheet();
        for name in TASKS {
            assert_eq!(sheet.matches(&format!("--{name}:")).count(), 2, "{name} in both themes");
        }
    }
}
