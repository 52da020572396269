//! Heterogeneous workers: equal batch shares against shares proportional to speed.

use super::prelude::*;

experiment!(Heterogeneous);

const DESCRIPTION: Description = Description {
    name: "heterogeneous",
    title: "Heterogeneous workers: equal batch shares against shares by speed",
    question: "How much faster is a step when fast workers get more of the batch?",
    formula: "equal (B/n)/min s; by speed B/sum s; ratio mean(s)/min(s); asynchronous: sum s",
    look: "gain over spread; idle_equal; rounded_seconds, with whole samples and at most \
           max_share per worker",
    surprise: "one slow worker costs as much as if all were slow; whole samples reduce the gain \
               for small batches; gradients must then be weighted by samples",
    params: &[
        Param::count("workers", 16.0, (1.0, 4096.0), "workers"),
        Param::count("batch", 256.0, (1.0, 1e7), "global batch in samples"),
        Param::number(
            "spread",
            Unit::Number,
            0.3,
            (0.0, 0.99),
            "speeds are evenly spaced in 1 ± spread",
        ),
        Param::number("sample", Unit::Seconds, 1.0, (1e-9, 1e6), "time of a sample at speed 1"),
        Param::number("max_share", Unit::Times, 2.0, (1.0, 100.0), "maximum share/equal share"),
    ],
    sweep: ("spread", &[0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7]),
    columns: &[
        Column::new("equal_seconds", Unit::Seconds, "step with equal shares"),
        Column::new("balanced_seconds", Unit::Seconds, "step with shares by speed"),
        Column::new(
            "rounded_seconds",
            Unit::Seconds,
            "step with shares by speed in whole samples, capped",
        ),
        Column::new("gain", Unit::Times, "equal_seconds/balanced_seconds"),
        Column::new("rounded_gain", Unit::Times, "equal_seconds/rounded_seconds"),
        Column::new("idle_equal", Unit::Share, "idle share of workers with equal shares"),
        Column::new("largest_share", Unit::Times, "largest share/equal share"),
    ],
    chart: ChartSpec::lines("spread", &["gain", "rounded_gain"])
        .named("step with equal shares/step with shares by speed"),
};

fn run(at: &Settings, _: &mut Random) -> Result<Vec<Row>, LabError> {
    let (n, batch) = (at.count("workers"), at.number("batch"));
    let (spread, sample) = (at.number("spread"), at.number("sample"));
    let speed = |worker: usize| {
        let along = if n == 1 { 0.5 } else { worker as f64 / (n as f64 - 1.0) };
        1.0 + spread * (2.0 * along - 1.0)
    };
    let speeds: Vec<f64> = (0..n).map(speed).collect();
    let equal = batch / n as f64;
    let slowest = speeds.iter().copied().fold(f64::INFINITY, f64::min);
    let all: f64 = speeds.iter().sum();
    let (static_step, balanced) = (equal / slowest * sample, batch / all * sample);
    let shares =
        whole_shares(&speeds, batch as usize, (at.number("max_share") * equal).ceil() as usize);
    let steps = shares.iter().zip(&speeds).map(|(share, speed)| *share as f64 / speed * sample);
    let rounded = steps.fold(0.0, f64::max);
    let busy: f64 = speeds.iter().map(|speed| equal / speed * sample).sum::<f64>() / n as f64;
    let largest = shares.iter().max().map_or(0.0, |share| *share as f64);
    Ok(vec![row![
        static_step,
        balanced,
        rounded,
        static_step / balanced,
        static_step / rounded,
        1.0 - busy / static_step,
        largest / equal,
    ]])
}

/// Whole samples by speed: every next sample goes to the worker that would complete it first.
fn whole_shares(speeds: &[f64], batch: usize, max_share: usize) -> Vec<usize> {
    let all: f64 = speeds.iter().sum();
    let floor = |speed: &f64| ((batch as f64 * speed / all) as usize).min(max_share);
    let mut shares: Vec<usize> = speeds.iter().map(floor).collect();
    let mut left = batch.saturating_sub(shares.iter().sum());
    while left > 0 {
        let free = (0..speeds.len()).filter(|worker| shares[*worker] < max_share);
        let end = |worker: &usize| (shares[*worker] + 1) as f64 / speeds[*worker];
        let Some(next) = free.min_by(|a, b| end(a).total_cmp(&end(b))) else { break };
        shares[next] += 1;
        left -= 1;
    }
    shares
}

fn findings(table: &Table) -> Vec<String> {
    let end = last(table);
    vec![
        format!(
            "{}shares by speed are {} as fast as equal ones",
            at(table, end),
            cell(table, "gain", end)
        ),
        format!(
            "with equal shares workers idle {} of the time; in whole samples the gain is {}",
            cell(table, "idle_equal", end),
            cell(table, "rounded_gain", end)
        ),
    ]
}
