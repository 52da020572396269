//! Common claims about distributed training, each checked by an experiment.
//!
//! Evidence is computed on every call, never stored.

use crate::error::LabError;
use crate::experiments::find;
use crate::sim::CompiledSchedule;
use crate::study::Study;
use crate::table::Cell;
use lockstep_config::units::Bytes;
use lockstep_schedule::collective::{GroupSpec, build};
use lockstep_schedule::{Algorithm, Layout, Op};
use serde::Serialize;
use std::fmt;

/// Verdict on a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The claim holds.
    True,
    /// The claim does not hold.
    False,
    /// The claim holds for some parameters only.
    ItDepends,
}

/// A claim with its evidence.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Claim {
    /// The claim.
    pub claim: &'static str,
    /// The verdict.
    pub verdict: Verdict,
    /// Measured evidence.
    pub evidence: String,
    /// Experiment of the evidence.
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

/// One number of an experiment at one point: of the row with a cell `row`, or of the first row.
fn measure(name: &str, params: &[&str], row: &str, column: &str) -> Result<f64, LabError> {
    let experiment = find(name)?;
    let params: Vec<String> = params.iter().map(|&param| param.to_owned()).collect();
    let mut study = Study::with(experiment.description(), &params, &[])?;
    study.sweeps.clear();
    let table = study.run(experiment)?.rows;
    let matches = |cells: &&Vec<Cell>| {
        row.is_empty() || cells.iter().any(|cell| *cell == Cell::Text(row.to_owned()))
    };
    let index = table.index(column).unwrap_or_else(|| panic!("{name} has no column {column}"));
    let cells = table.rows.iter().find(matches);
    let cells = cells.unwrap_or_else(|| panic!("{name} has no row {row}"));
    Ok(match cells[index] {
        Cell::Number(number) => number,
        Cell::Text(_) => f64::NAN,
    })
}

/// Formats a share as a percentage.
fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.1} ms", 1e3 * seconds)
}

fn verdict(is_true: bool) -> Verdict {
    if is_true { Verdict::True } else { Verdict::False }
}

/// Verdict of two points.
fn verdict_of_two(first: bool, second: bool) -> Verdict {
    if first == second { verdict(first) } else { Verdict::ItDepends }
}

/// Checks all claims.
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
    let bubble = |m: &str, schedule| {
        measure("pipeline", &["devices=8", &format!("microbatches={m}")], schedule, "bubble")
    };
    let (twice, many) = (bubble("16", "1f1b")?, bubble("133", "1f1b")?);
    let gpipe = bubble("16", "gpipe")?;
    Ok(vec![
        Claim {
            claim: "m >= 2p micro-batches give a bubble under 5 %",
            verdict: verdict(twice < 0.05),
            evidence: format!(
                "p = 8, m = 16 has a bubble of {}; 5 % takes m = 19(p-1) = 133: {}",
                percent(twice),
                percent(many)
            ),
            experiment: "pipeline",
        },
        Claim {
            claim: "1F1B has a smaller bubble than GPipe",
            verdict: verdict(twice < gpipe - 1e-12),
            evidence: format!(
                "both have a bubble of {} at p = 8, m = 16; 1F1B only needs less memory",
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
    let hierarchical = |column| measure("hierarchical", &["nodes=8"], "", column);
    let (flat, two_level) =
        (hierarchical("inter_node_bytes_flat")?, hierarchical("inter_node_bytes_hierarchical")?);
    let (shared_nic, per_rank_nics) =
        (hierarchical("shared_nic_simulated")?, hierarchical("per_rank_nic_simulated")?);
    let servers = |column| measure("parameter-server", &["workers=256", "servers=16"], "", column);
    Ok(vec![
        Claim {
            claim: "a tree beats a ring for large messages",
            verdict: verdict(tree < ring),
            evidence: format!(
                "1 GB over 64 ranks: tree {}, ring {}; trees are faster for short vectors",
                milliseconds(tree),
                milliseconds(ring)
            ),
            experiment: "all-reduce",
        },
        Claim {
            claim: "a ring sends more per rank the more ranks there are",
            verdict: verdict(many > 1.5 * few),
            evidence: format!(
                "for 1 MB a rank of 8 sends {:.2} MB, a rank of 128 {:.2} MB; the limit is 2 MB",
                few / 1e6,
                many / 1e6
            ),
            experiment: "all-reduce",
        },
        Claim {
            claim: "a hierarchical all-reduce is faster because it sends fewer bytes between nodes",
            verdict: verdict(two_level < 0.5 * flat),
            evidence: format!(
                "8 nodes: {:.1} GB between nodes against {:.1} GB of a ring in node order; {} with \
                 one NIC per node, {} with one NIC per rank",
                two_level / 1e9,
                flat / 1e9,
                milliseconds(shared_nic),
                milliseconds(per_rank_nics)
            ),
            experiment: "hierarchical",
        },
        Claim {
            claim: "a parameter server scales like an all-reduce",
            verdict: verdict(servers("bytes_ratio")? < 2.0),
            evidence: format!(
                "256 workers, 16 servers: the busiest link carries {:.1} times the bytes of a ring",
                servers("bytes_ratio")?
            ),
            experiment: "parameter-server",
        },
    ])
}

fn workers() -> Result<Vec<Claim>, LabError> {
    let gain =
        |workers: &str| measure("scaling", &[&format!("workers={workers}")], "", "doubling_gain");
    let (few, many) = (gain("4")?, gain("256")?);
    let params = ["workers=100", "compute=100", "communication=1"];
    let hundred = measure("scaling", &params, "", "constant_speed_up")?;
    let waiting =
        measure("stragglers", &["workers=256", "variation=0.1"], "", "expected_efficiency")?;
    let many_workers = measure("zero-memory", &["workers=1024"], "stage 0", "state_bytes")?;
    let one_worker = measure("zero-memory", &["workers=1"], "stage 0", "state_bytes")?;
    Ok(vec![
        Claim {
            claim: "doubling the GPUs halves the time",
            verdict: verdict_of_two(few > 1.9, many > 1.9),
            evidence: format!(
                "800 ms of compute, 8 ms of communication: {few:.2} times as fast from 4 to 8 \
                 GPUs, {many:.2} times from 256 to 512"
            ),
            experiment: "scaling",
        },
        Claim {
            claim: "the speed-up of n workers is at most the square root of n",
            verdict: verdict(hundred <= 10.0),
            evidence: format!("100 workers, 1 % communication: {hundred:.1} times as fast, not 10"),
            experiment: "scaling",
        },
        Claim {
            claim: "stragglers average out with many workers",
            verdict: verdict(waiting > 0.95),
            evidence: format!(
                "256 workers with a variation of 10 %: {} efficiency",
                percent(waiting)
            ),
            experiment: "stragglers",
        },
        Claim {
            claim: "data parallelism divides the memory of the model",
            verdict: verdict(many_workers < one_worker),
            evidence: format!(
                "7.5 B parameters take {:.0} GB on each of 1024 workers, as on one; ZeRO shards",
                many_workers / 1e9
            ),
            experiment: "zero-memory",
        },
    ])
}

fn staleness() -> Result<Vec<Claim>, LabError> {
    let fixed = ["step=constant", "lr=0.1", "condition=1", "target=0.0014142"];
    let steps = |staleness: &str| {
        let params = [&fixed[..], &[staleness]].concat();
        measure("bounded-async", &params, "", "iterations")
    };
    let (fresh, stale) = (steps("staleness=0")?, steps("staleness=2")?);
    let limit = measure("bounded-async", &["staleness=20"], "", "stable_limit")?;
    let time = |variation: &str, model| {
        measure("consistency", &[&format!("variation={variation}")], model, "seconds")
    };
    let equal = (time("0", "asynchronous")?, time("0", "synchronous")?);
    let jittered = (time("2", "asynchronous")?, time("2", "synchronous")?);
    let local = |communication: &str, k: &str| {
        let params = [format!("communication={communication}"), format!("local_steps={k}")];
        measure("local-sgd", &[&params[0], &params[1]], "", "seconds")
    };
    let slow_network = (local("1", "4")?, local("1", "1")?);
    let fast_network = (local("0.0001", "16")?, local("0.0001", "1")?);
    Ok(vec![
        Claim {
            claim: "stale gradients always take more iterations",
            verdict: verdict(stale > fresh),
            evidence: format!(
                "step size 0.1: {fresh} iterations with fresh gradients, {stale} with gradients \
                 two updates old"
            ),
            experiment: "bounded-async",
        },
        Claim {
            claim: "step size x staleness x curvature must be below 1",
            verdict: verdict(20.0 * limit <= 1.0),
            evidence: format!(
                "at staleness 20 the product may be {:.2}: below 1 is sufficient, not necessary",
                20.0 * limit
            ),
            experiment: "bounded-async",
        },
        Claim {
            claim: "asynchronous training is always faster",
            verdict: verdict(equal.0 < equal.1 && jittered.0 < jittered.1),
            evidence: format!(
                "time to the same loss, asynchronous and synchronous: {:.1} s and {:.1} s without \
                 stragglers, {:.1} s and {:.1} s with strong stragglers",
                equal.0, equal.1, jittered.0, jittered.1
            ),
            experiment: "consistency",
        },
        Claim {
            claim: "local SGD saves time",
            verdict: verdict_of_two(
                slow_network.0 < slow_network.1,
                fast_network.0 < fast_network.1,
            ),
            evidence: format!(
                "averages of 1 s: {:.1} s with K = 4, {:.1} s with K = 1; averages of 0.1 ms: \
                 {:.2} s with K = 16, {:.2} s with K = 1",
                slow_network.0, slow_network.1, fast_network.0, fast_network.1
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
    let (homogeneous, heterogeneous) = (bias("0")?, bias("0.5")?);
    let gathered = max_sent_bytes(Op::AllGather, Algorithm::RING)?;
    let broadcast = max_sent_bytes(Op::Broadcast { root: 0 }, Algorithm::Tree)?;
    Ok(vec![
        Claim {
            claim: "local SGD beats a mini-batch of the same gradients",
            verdict: verdict_of_two(few > 1.0, many > 1.0),
            evidence: format!(
                "8 local steps, worst convex problem: the loss of mini-batch SGD is {few:.2} times \
                 as large after 2 rounds, {many:.2} times after 32"
            ),
            experiment: "minibatch-local",
        },
        Claim {
            claim: "averaging after local steps leads to the common optimum",
            verdict: verdict_of_two(homogeneous < 1e-4, heterogeneous < 1e-4),
            evidence: format!(
                "32 local steps end {homogeneous:.3} from it on homogeneous data, \
                 {heterogeneous:.3} on heterogeneous data"
            ),
            experiment: "heterogeneity-bias",
        },
        Claim {
            claim: "ZeRO-3 might as well broadcast whole layers from their owners",
            verdict: verdict(broadcast <= 1.01 * gathered),
            evidence: format!(
                "8 ranks, a layer of 8 MB: in a broadcast the owner sends {:.0} MB, in an \
                 all-gather every rank sends {:.0} MB",
                broadcast / 1e6,
                gathered / 1e6
            ),
            experiment: "zero-memory",
        },
    ])
}

/// Number of ranks and size of a gathered layer.
const LAYER: (usize, u64) = (8, 8_000_000);

/// Bytes that the busiest rank sends.
fn max_sent_bytes(op: Op, algorithm: Algorithm) -> Result<f64, LabError> {
    let (num_ranks, bytes) = LAYER;
    let schedule =
        build(op, algorithm, &GroupSpec::new(num_ranks)).map_err(|error| LabError::Conflict {
            key: "algorithm",
            value: algorithm.to_string(),
            rule: error.to_string(),
        })?;
    let layout = Layout::even(&schedule, (bytes / 4) as usize);
    let sent = CompiledSchedule::new(&schedule, &layout, Bytes(4)).sent_bytes();
    Ok(sent.into_iter().map(|sent| sent.0).max().unwrap_or(0) as f64)
}

fn numbers() -> Result<Vec<Claim>, LabError> {
    // Clipping a gradient with a NaN by its norm.
    let gradient = [1.0_f32, f32::NAN];
    let norm = gradient.iter().map(|g| g * g).sum::<f32>().sqrt();
    let clipped = gradient[0] * (1.0 / norm).min(1.0);
    let half = measure("compression", &["ratio=0.5"], "", "saved")?;
    let loss = |interval: &str| {
        measure("checkpointing", &[&format!("interval={interval}")], "", "exact_overhead")
    };
    let (frequent, rare) = (loss("15min")?, loss("112min")?);
    let young =
        |write: &str| measure("checkpointing", &[&format!("write={write}")], "", "young_seconds");
    let (slow, fast) = (young("300")? / 60.0, young("30")? / 60.0);
    let differing = measure("reproducibility", &["ranks=16"], "ring", "differing_share")?;
    Ok(vec![
        Claim {
            claim: "gradient clipping removes NaN",
            verdict: verdict(norm.is_finite() && clipped.is_finite()),
            evidence: format!(
                "the norm of [1, NaN] is {norm}, so the gradient of every worker becomes NaN or \
                 stays unclipped: all workers must skip the step"
            ),
            experiment: "loss-scaling",
        },
        Claim {
            claim: "sending half of the gradient's entries halves the bytes",
            verdict: verdict(half > 0.4),
            evidence: format!("with 32-bit indices it saves {}", percent(half)),
            experiment: "compression",
        },
        Claim {
            claim: "more frequent checkpoints are always better",
            verdict: verdict(frequent < rare),
            evidence: format!(
                "5 min to write, a failure every 21 h: every 15 min costs {}, every 112 min {}",
                percent(frequent),
                percent(rare)
            ),
            experiment: "checkpointing",
        },
        Claim {
            claim: "cheaper checkpoints should be written less often",
            verdict: verdict(fast > slow),
            evidence: format!(
                "the best interval falls from {slow:.0} min to {fast:.0} min when writing is ten \
                 times as fast"
            ),
            experiment: "checkpointing",
        },
        Claim {
            claim: "the same seed gives the same run",
            verdict: verdict(differing < 1e-12),
            evidence: format!(
                "a ring changes the bits of {} of sums compared with the canonical order",
                percent(differing)
            ),
            experiment: "reproducibility",
        },
    ])
}
