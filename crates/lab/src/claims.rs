//! Claims that are often heard, each with the number that settles it.
//!
//! A claim is checked by running an experiment at a point where it can be seen, so the number is
//! computed when somebody asks, never written down.

use crate::error::LabError;
use crate::experiments::find;
use crate::sim::Compiled;
use crate::study::Study;
use crate::table::Cell;
use lockstep_config::units::Bytes;
use lockstep_schedule::collective::{GroupSpec, build};
use lockstep_schedule::{Algorithm, Layout, Op};
use serde::Serialize;
use std::fmt;

/// What is to be thought of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It holds.
    True,
    /// It does not.
    False,
    /// It holds here and not there.
    ItDepends,
}

/// A claim with its evidence.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Claim {
    /// What is said.
    pub claim: &'static str,
    /// What is to be thought of it.
    pub verdict: Verdict,
    /// The number that shows it.
    pub evidence: String,
    /// The experiment that it comes from.
    pub experiment: &'static str,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::True => "true",
            Self::False => "false",
            Self::ItDepends => "it depends",
        })
    }
}

/// One number of an experiment at one point: of the row that has this word in it, or of the first.
fn measure(name: &str, params: &[&str], word: &str, column: &str) -> Result<f64, LabError> {
    let experiment = find(name)?;
    let params: Vec<String> = params.iter().map(|&param| param.to_owned()).collect();
    let mut study = Study::with(experiment.card(), &params, &[])?;
    study.sweeps.clear();
    let table = study.run(experiment)?.rows;
    let has = |row: &&Vec<Cell>| {
        word.is_empty() || row.iter().any(|cell| *cell == Cell::Word(word.to_owned()))
    };
    let index = table.index(column).unwrap_or_else(|| panic!("{name} has no column {column}"));
    let row = table.rows.iter().find(has).unwrap_or_else(|| panic!("{name} has no row {word}"));
    Ok(match row[index] {
        Cell::Number(number) => number,
        Cell::Word(_) => f64::NAN,
    })
}

/// A number as a percentage.
fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.1} ms", 1e3 * seconds)
}

fn judged(is_true: bool) -> Verdict {
    if is_true { Verdict::True } else { Verdict::False }
}

/// True at one point and false at another.
fn judged_twice(here: bool, there: bool) -> Verdict {
    if here == there { judged(here) } else { Verdict::ItDepends }
}

/// All claims, checked.
pub fn check() -> Result<Vec<Claim>, LabError> {
    let mut claims = pipelines()?;
    claims.extend(collectives()?);
    claims.extend(workers()?);
    claims.extend(staleness()?);
    claims.extend(averages()?);
    claims.extend(numbers()?);
    Ok(claims)
}

fn pipelines() -> Result<Vec<Claim>, LabError> {
    let idle = |m: &str, schedule| {
        measure("pipeline", &["devices=8", &format!("microbatches={m}")], schedule, "bubble")
    };
    let (twice, many) = (idle("16", "1f1b")?, idle("133", "1f1b")?);
    let gpipe = idle("16", "gpipe")?;
    Ok(vec![
        Claim {
            claim: "m >= 2p microbatches give a bubble under 5 %",
            verdict: judged(twice < 0.05),
            evidence: format!(
                "p = 8, m = 16 idles {}; 5 % takes m = 19(p-1) = 133: {}",
                percent(twice),
                percent(many)
            ),
            experiment: "pipeline",
        },
        Claim {
            claim: "1F1B has a smaller bubble than GPipe",
            verdict: judged(twice < gpipe - 1e-12),
            evidence: format!(
                "both idle {} at p = 8, m = 16; 1F1B only keeps less",
                percent(gpipe)
            ),
            experiment: "pipeline",
        },
    ])
}

fn collectives() -> Result<Vec<Claim>, LabError> {
    let time = |bytes: &str, algorithm| {
        measure("all-reduce", &["ranks=64", &format!("bytes={bytes}")], algorithm, "seconds")
    };
    let (tree, ring) = (time("1GB", "tree")?, time("1GB", "ring")?);
    let sent = |ranks: &str| {
        measure("all-reduce", &[&format!("ranks={ranks}"), "bytes=1MB"], "ring", "sent_bytes")
    };
    let (few, many) = (sent("8")?, sent("128")?);
    let crossing = |column| measure("hierarchical", &["nodes=8"], "", column);
    let (flat, two) = (crossing("crossing_flat")?, crossing("crossing_hierarchical")?);
    let (alone, cards) = (crossing("one_card_simulated")?, crossing("cards_simulated")?);
    let servers = |column| measure("parameter-server", &["workers=256", "servers=16"], "", column);
    Ok(vec![
        Claim {
            claim: "a tree beats a ring for large messages",
            verdict: judged(tree < ring),
            evidence: format!(
                "1 GB over 64 ranks: tree {}, ring {}; trees win for short ones",
                milliseconds(tree),
                milliseconds(ring)
            ),
            experiment: "all-reduce",
        },
        Claim {
            claim: "a ring sends more per rank the more ranks there are",
            verdict: judged(many > 1.5 * few),
            evidence: format!(
                "of 1 MB each rank of 8 sends {:.2} MB, each of 128 {:.2} MB; the limit is 2",
                few / 1e6,
                many / 1e6
            ),
            experiment: "all-reduce",
        },
        Claim {
            claim: "a hierarchical all-reduce is faster because less crosses the network",
            verdict: judged(two < 0.5 * flat),
            evidence: format!(
                "8 nodes: {:.1} GB against {:.1} GB of a ring in order; with one card a node {}, \
                 with a card a rank {}",
                two / 1e9,
                flat / 1e9,
                milliseconds(alone),
                milliseconds(cards)
            ),
            experiment: "hierarchical",
        },
        Claim {
            claim: "a parameter server scales like an all-reduce",
            verdict: judged(servers("ratio")? < 2.0),
            evidence: format!(
                "256 workers, 16 servers: the busiest link carries {:.1} times a ring's",
                servers("ratio")?
            ),
            experiment: "parameter-server",
        },
    ])
}

fn workers() -> Result<Vec<Claim>, LabError> {
    let gain = |workers: &str| measure("scaling", &[&format!("workers={workers}")], "", "doubling");
    let (few, many) = (gain("4")?, gain("256")?);
    let params = ["workers=100", "alone=100", "communication=1"];
    let hundred = measure("scaling", &params, "", "constant_speed_up")?;
    let waiting =
        measure("stragglers", &["workers=256", "variation=0.1"], "", "expected_efficiency")?;
    let equal = measure("zero-memory", &["workers=1024"], "stage 0", "state_bytes")?;
    let alone = measure("zero-memory", &["workers=1"], "stage 0", "state_bytes")?;
    Ok(vec![
        Claim {
            claim: "doubling the GPUs halves the time",
            verdict: judged_twice(few > 1.9, many > 1.9),
            evidence: format!(
                "800 ms of work, 8 ms of communication: from 4 to 8 {few:.2} times as fast, from \
                 256 to 512 {many:.2} times"
            ),
            experiment: "scaling",
        },
        Claim {
            claim: "the speed-up of n workers is at most the square root of n",
            verdict: judged(hundred <= 10.0),
            evidence: format!("100 workers, 1 % communication: {hundred:.1} times as fast, not 10"),
            experiment: "scaling",
        },
        Claim {
            claim: "stragglers average out with many workers",
            verdict: judged(waiting > 0.95),
            evidence: format!(
                "256 workers that vary by 10 %: {} of the work is left",
                percent(waiting)
            ),
            experiment: "stragglers",
        },
        Claim {
            claim: "data parallelism divides the memory of the model",
            verdict: judged(equal < alone),
            evidence: format!(
                "7.5 B parameters take {:.0} GB on each of 1024 workers, as on one; ZeRO divides",
                equal / 1e9
            ),
            experiment: "zero-memory",
        },
    ])
}

fn staleness() -> Result<Vec<Claim>, LabError> {
    let bowl = ["step=constant", "lr=0.1", "condition=1", "target=0.0014142"];
    let steps = |staleness: &str| {
        let params = [&bowl[..], &[staleness]].concat();
        measure("bounded-async", &params, "", "iterations")
    };
    let (fresh, stale) = (steps("staleness=0")?, steps("staleness=2")?);
    let limit = measure("bounded-async", &["staleness=20"], "", "stable_limit")?;
    let time = |variation: &str, model| {
        measure("consistency", &[&format!("variation={variation}")], model, "seconds")
    };
    let even = (time("0", "asynchronous")?, time("0", "synchronous")?);
    let uneven = (time("2", "asynchronous")?, time("2", "synchronous")?);
    let local = |communication: &str, k: &str| {
        let params = [format!("communication={communication}"), format!("local_steps={k}")];
        measure("local-sgd", &[&params[0], &params[1]], "", "seconds")
    };
    let dear = (local("1", "4")?, local("1", "1")?);
    let cheap = (local("0.0001", "16")?, local("0.0001", "1")?);
    Ok(vec![
        Claim {
            claim: "stale gradients always take more iterations",
            verdict: judged(stale > fresh),
            evidence: format!("step 0.1: {fresh} iterations fresh, {stale} two updates old"),
            experiment: "bounded-async",
        },
        Claim {
            claim: "step x staleness x curvature must be below 1",
            verdict: judged(20.0 * limit <= 1.0),
            evidence: format!(
                "at staleness 20 the product may be {:.2}: 1 is enough, not necessary",
                20.0 * limit
            ),
            experiment: "bounded-async",
        },
        Claim {
            claim: "asynchronous training is always faster",
            verdict: judged(even.0 < even.1 && uneven.0 < uneven.1),
            evidence: format!(
                "time to the same loss, asynchronous and synchronous: {:.1} s and {:.1} s for even \
                 workers, {:.1} s and {:.1} s for very uneven ones",
                even.0, even.1, uneven.0, uneven.1
            ),
            experiment: "consistency",
        },
        Claim {
            claim: "local SGD saves time",
            verdict: judged_twice(dear.0 < dear.1, cheap.0 < cheap.1),
            evidence: format!(
                "an average of 1 s: {:.1} s with K = 4, {:.1} s with K = 1; an average of 0.1 ms: \
                 {:.2} s with K = 16, {:.2} s with K = 1",
                dear.0, dear.1, cheap.0, cheap.1
            ),
            experiment: "local-sgd",
        },
    ])
}

fn averages() -> Result<Vec<Claim>, LabError> {
    let ratio = |rounds: &str, problem| {
        let params = [format!("rounds={rounds}"), "workers=256".to_owned()];
        measure("minibatch-local", &[&params[0], &params[1]], problem, "ratio")
    };
    let (few, many) = (ratio("2", "convex")?, ratio("32", "convex")?);
    let bias = |spread: &str| {
        let param = format!("spread={spread}");
        measure("heterogeneity-bias", &["local_steps=32", &param], "", "bias")
    };
    let (alike, unlike) = (bias("0")?, bias("0.5")?);
    let gathered = busiest(Op::AllGather, Algorithm::RING)?;
    let broadcast = busiest(Op::Broadcast { root: 0 }, Algorithm::Tree)?;
    Ok(vec![
        Claim {
            claim: "local SGD beats a mini-batch of the same gradients",
            verdict: judged_twice(few > 1.0, many > 1.0),
            evidence: format!(
                "8 local steps, the worst convex problem: the mini-batch's loss is {few:.2} times \
                 as large after 2 rounds, {many:.2} times after 32"
            ),
            experiment: "minibatch-local",
        },
        Claim {
            claim: "averaging workers that trained alone leads to the common optimum",
            verdict: judged_twice(alike < 1e-4, unlike < 1e-4),
            evidence: format!(
                "32 steps alone on alike data end {alike:.3} from it, on unlike data {unlike:.3}"
            ),
            experiment: "heterogeneity-bias",
        },
        Claim {
            claim: "ZeRO-3 might as well broadcast whole layers from their owners",
            verdict: judged(broadcast <= 1.01 * gathered),
            evidence: format!(
                "8 ranks, a layer of 8 MB: of a broadcast its owner sends {:.0} MB, of a gather of \
                 shards every rank sends {:.0} MB",
                broadcast / 1e6,
                gathered / 1e6
            ),
            experiment: "zero-memory",
        },
    ])
}

/// Ranks and bytes of a layer that is brought together.
const LAYER: (usize, u64) = (8, 8_000_000);

/// What the busiest rank sends.
fn busiest(op: Op, algorithm: Algorithm) -> Result<f64, LabError> {
    let (num_ranks, bytes) = LAYER;
    let schedule =
        build(op, algorithm, &GroupSpec::new(num_ranks)).map_err(|error| LabError::Together {
            key: "algorithm",
            value: algorithm.to_string(),
            rule: error.to_string(),
        })?;
    let layout = Layout::even(&schedule, (bytes / 4) as usize);
    let sent = Compiled::new(&schedule, &layout, Bytes(4)).sent_bytes();
    Ok(sent.into_iter().map(|sent| sent.0).max().unwrap_or(0) as f64)
}

fn numbers() -> Result<Vec<Claim>, LabError> {
    // What clipping by the norm does to a gradient with a NaN in it.
    let gradient = [1.0_f32, f32::NAN];
    let norm = gradient.iter().map(|g| g * g).sum::<f32>().sqrt();
    let clipped = gradient[0] * (1.0 / norm).min(1.0);
    let half = measure("compression", &["ratio=0.5"], "", "saved")?;
    let loss = |interval: &str| {
        measure("checkpointing", &[&format!("interval={interval}")], "", "exact_overhead")
    };
    let (often, seldom) = (loss("15min")?, loss("112min")?);
    let young =
        |write: &str| measure("checkpointing", &[&format!("write={write}")], "", "young_seconds");
    let (dear, cheap) = (young("300")? / 60.0, young("30")? / 60.0);
    let differing = measure("reproducibility", &["ranks=16"], "ring", "differing")?;
    Ok(vec![
        Claim {
            claim: "clipping cures NaN",
            verdict: judged(norm.is_finite() && clipped.is_finite()),
            evidence: format!(
                "the norm of [1, NaN] is {norm}, so every worker's gradient becomes NaN or stays \
                 unclipped: the step must be skipped by all"
            ),
            experiment: "loss-scaling",
        },
        Claim {
            claim: "sending half of the gradient's entries halves the bytes",
            verdict: judged(half > 0.4),
            evidence: format!("with 32-bit indices {} is saved", percent(half)),
            experiment: "compression",
        },
        Claim {
            claim: "saving more often is safer and so better",
            verdict: judged(often < seldom),
            evidence: format!(
                "5 min to write, a failure every 21 h: every 15 min loses {}, every 112 min {}",
                percent(often),
                percent(seldom)
            ),
            experiment: "checkpointing",
        },
        Claim {
            claim: "cheaper checkpoints are taken less often",
            verdict: judged(cheap > dear),
            evidence: format!(
                "the best interval falls from {dear:.0} min to {cheap:.0} min when writing takes a \
                 tenth"
            ),
            experiment: "checkpointing",
        },
        Claim {
            claim: "the same seed gives the same run",
            verdict: judged(differing < 1e-12),
            evidence: format!(
                "summed by ring instead of in canonical order, {} of sums differ in their bits",
                percent(differing)
            ),
            experiment: "reproducibility",
        },
    ])
}
