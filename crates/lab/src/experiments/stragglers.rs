//! Stragglers: a synchronous step takes as long as its slowest worker.

use super::common::{bandwidth, latency, link};
use super::prelude::*;
use crate::math::{expected_maximum, log_normal_below, normal_below, powi, quantile};
use crate::random::Jitter;
use lockstep_planner::collective::ring;
use lockstep_tensor::math::scalar::{ln, powf};

experiment!(Stragglers, timeline);

const DESCRIPTION: Description = Description {
    name: "stragglers",
    title: "Stragglers: the slowest of n workers determines the step time",
    question: "How much does a synchronous step lose to variation of compute times?",
    formula: "T = max over workers + all-reduce; efficiency = mean/E[max], E[max] = integral of \
              1 - F(x)^n",
    look: "efficiency over workers at variation=0.1; p99_seconds against p50_seconds; \
           slowest_worker_share, which is 1/n when no worker is always slow",
    surprise: "256 workers with a variation of 10 % are 76 % efficient, not 95 %; a heavier tail \
               (pareto) costs more at the same mean; stragglers do not average out",
    params: &[
        Param::count("workers", 256.0, (1.0, 4096.0), "synchronous workers"),
        Param::choice(
            "distribution",
            &["log-normal", "pareto", "trace"],
            "distribution of compute times",
        ),
        Param::number("mean", Unit::Seconds, 0.05, (1e-9, 1e6), "mean compute time"),
        Param::number(
            "variation",
            Unit::Number,
            0.2,
            (0.0, 3.0),
            "coefficient of variation (log-normal)",
        ),
        Param::number("shape", Unit::Number, 2.5, (1.05, 20.0), "exponent of the tail (pareto)"),
        Param::count("steps", 1000.0, (10.0, 20_000.0), "number of simulated steps"),
        Param::number(
            "gradient",
            Unit::Bytes,
            0.0,
            (0.0, 1e13),
            "bytes of a ring all-reduce; 0: none",
        ),
        latency(10e-6),
        bandwidth(25e9),
    ],
    sweep: ("workers", &[1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0, 1024.0]),
    columns: &[
        Column::new("step_seconds", Unit::Seconds, "mean step time"),
        Column::new("p50_seconds", Unit::Seconds, "median step time"),
        Column::new("p95_seconds", Unit::Seconds, "95th percentile of step time"),
        Column::new("p99_seconds", Unit::Seconds, "99th percentile of step time"),
        Column::new("efficiency", Unit::Share, "mean compute time/mean step time"),
        Column::new("expected_efficiency", Unit::Share, "efficiency by the exact integral"),
        Column::new("amplification", Unit::Times, "slowest/mean compute time"),
        Column::new(
            "slowest_worker_share",
            Unit::Share,
            "share of steps in which the most frequent straggler is slowest",
        ),
        Column::new("slow_probability", Unit::Share, "steps with a worker 10 % over the median"),
        Column::new(
            "expected_slow_probability",
            Unit::Share,
            "slow_probability of the distribution",
        ),
    ],
    chart: ChartSpec::lines("workers", &["efficiency", "expected_efficiency"])
        .log(true, false)
        .named("efficiency"),
};

/// Step times of one machine relative to the mean: within a few percent, but one in 25 stalls.
const TRACE: [f64; 25] = [
    0.97, 0.98, 0.98, 0.99, 0.99, 0.99, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.01, 1.01, 1.01, 1.01,
    1.02, 1.02, 1.03, 1.03, 1.04, 1.06, 1.12, 1.8,
];

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let (num_workers, num_steps) = (at.count("workers"), at.count("steps"));
    let mean = at.number("mean");
    let (jitter, sum) = (jitter(at), all_reduce_seconds(at));
    let mut last = vec![0_usize; num_workers];
    let (mut steps, mut all, mut num_slow) = (Vec::new(), 0.0, 0_usize);
    for _ in 0..num_steps {
        let mut slowest = (0.0, 0);
        for worker in 0..num_workers {
            let time = mean * jitter.factor(random);
            all += time;
            if time > slowest.0 {
                slowest = (time, worker);
            }
        }
        last[slowest.1] += 1;
        num_slow += usize::from(slowest.0 > 1.1 * mean * median(&jitter));
        steps.push(slowest.0 + sum);
    }
    steps.sort_by(f64::total_cmp);
    let step = steps.iter().sum::<f64>() / num_steps as f64;
    let compute = all / (num_steps * num_workers) as f64;
    let expected = expected(&jitter, num_workers) * mean;
    let most = last.into_iter().max().unwrap_or(0);
    Ok(vec![row![
        step,
        quantile(&steps, 0.5),
        quantile(&steps, 0.95),
        quantile(&steps, 0.99),
        compute / step,
        mean * mean_factor(&jitter) / (expected + sum),
        (step - sum) / compute,
        most as f64 / num_steps as f64,
        num_slow as f64 / num_steps as f64,
        any_slow(&jitter, num_workers),
    ]])
}

fn findings(table: &Table) -> Vec<String> {
    let end = last(table);
    vec![
        format!("{}efficiency is {}", at(table, end), cell(table, "efficiency", end)),
        format!(
            "the slowest worker takes {} the mean; the median step takes {}, the 99th \
             percentile {}",
            cell(table, "amplification", end),
            cell(table, "p50_seconds", end),
            cell(table, "p99_seconds", end)
        ),
    ]
}

fn jitter(at: &Settings) -> Jitter {
    match at.choice("distribution") {
        "pareto" => Jitter::Pareto { shape: at.number("shape") },
        "trace" => Jitter::Trace(TRACE.to_vec()),
        _ if at.number("variation") == 0.0 => Jitter::None,
        _ => Jitter::LogNormal { variation: at.number("variation") },
    }
}

/// Time of the all-reduce after the slowest worker.
fn all_reduce_seconds(at: &Settings) -> f64 {
    let sum = ring::all_reduce(at.count("workers")).seconds(at.bytes("gradient"), link(at)).0;
    if at.number("gradient") > 0.0 { sum } else { 0.0 }
}

/// Steps of the timeline.
const TIMELINE_STEPS: usize = 6;

/// The first steps of every worker.
fn timeline(at: &Settings, random: &mut Random) -> Result<Timeline, LabError> {
    let (jitter, sum) = (jitter(at), all_reduce_seconds(at));
    let name = |worker| format!("worker {worker}");
    let mut tracks: Vec<Track> = (0..at.count("workers"))
        .map(|worker| Track { name: name(worker), spans: Vec::new() })
        .collect();
    let (mut start, mut named) = (0.0, Vec::new());
    for step in 0..TIMELINE_STEPS {
        let times: Vec<f64> =
            tracks.iter().map(|_| start + at.number("mean") * jitter.factor(random)).collect();
        let slowest = times.iter().copied().fold(start, f64::max);
        named.extend(times.iter().position(|time| *time >= slowest));
        for (track, time) in tracks.iter_mut().zip(times) {
            track.spans.push(Span::new(Activity::Compute, start, time).numbered(step));
            if time < slowest {
                track.spans.push(Span::new(Activity::Wait, time, slowest));
            }
            if sum > 0.0 {
                track.spans.push(Span::new(Activity::AllReduce, slowest, slowest + sum));
            }
        }
        start = slowest + sum;
    }
    named.sort_unstable();
    named.dedup();
    let mut timeline = Timeline { title: String::new(), tracks, named };
    let wait_share = Unit::Share.show(timeline.share(Activity::Wait));
    timeline.title =
        format!("Workers wait {wait_share} of {TIMELINE_STEPS} steps for the slowest worker");
    Ok(timeline)
}

/// Expected maximum of n factors.
pub(crate) fn expected(jitter: &Jitter, n: usize) -> f64 {
    match jitter {
        Jitter::None => 1.0,
        Jitter::LogNormal { variation } => {
            expected_maximum(n, 1.0, |x| log_normal_below(x, 1.0, *variation))
        }
        Jitter::Pareto { shape } => pareto_maximum(n, *shape),
        Jitter::Trace(factors) => {
            let mut sorted = factors.clone();
            sorted.sort_by(f64::total_cmp);
            let below = |count: usize| powi(count as f64 / sorted.len() as f64, n);
            let each = sorted.iter().enumerate().map(|(i, x)| x * (below(i + 1) - below(i)));
            each.sum()
        }
    }
}

/// Expected maximum of n Pareto factors with mean 1: n B(n, 1 - 1/shape) times the minimum.
fn pareto_maximum(n: usize, shape: f64) -> f64 {
    let product = (1..=n).map(|k| k as f64 / (k as f64 - 1.0 / shape));
    (shape - 1.0) / shape * product.product::<f64>()
}

fn mean_factor(jitter: &Jitter) -> f64 {
    match jitter {
        Jitter::Trace(factors) => factors.iter().sum::<f64>() / factors.len() as f64,
        _ => 1.0,
    }
}

/// Median factor.
fn median(jitter: &Jitter) -> f64 {
    match jitter {
        Jitter::None => 1.0,
        Jitter::LogNormal { variation } => 1.0 / (1.0 + variation * variation).sqrt(),
        Jitter::Pareto { shape } => (shape - 1.0) / shape * powf(2.0, 1.0 / shape),
        Jitter::Trace(factors) => factors[factors.len() / 2],
    }
}

/// Probability that any of n workers is more than 10 % over the median.
fn any_slow(jitter: &Jitter, n: usize) -> f64 {
    let below = match jitter {
        Jitter::None => 1.0,
        Jitter::LogNormal { variation } => {
            normal_below(ln(1.1) / ln(1.0 + variation * variation).sqrt())
        }
        Jitter::Pareto { shape } => 1.0 - 0.5 / powf(1.1, *shape),
        Jitter::Trace(factors) => {
            let fast = factors.iter().filter(|factor| **factor <= 1.1 * median(jitter));
            fast.count() as f64 / factors.len() as f64
        }
    };
    1.0 - powi(below, n)
}
