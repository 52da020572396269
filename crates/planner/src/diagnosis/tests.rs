//! Diagnoses of runs whose figures are given.

use super::*;
use lockstep_config::{Recipe, Sources, resolve};
use std::collections::BTreeMap;

fn recipe(sets: &[&str]) -> Recipe {
    let sets = sets.iter().map(|set| (*set).to_owned()).collect();
    let preset = Some("tiny".to_owned());
    resolve(&Sources { sets, preset, ..Sources::default() }).unwrap()
}

pub(super) fn rank(compute: f64, waiting: f64, exposed: f64) -> RankFacts {
    let quartiles = [compute * 0.99, compute, compute * 1.01];
    RankFacts { compute: quartiles, data: 0.0, exposed, waiting }
}

/// A run of 40 steps of this duration on these ranks.
pub(super) fn facts(sets: &[&str], seconds: f64, ranks: Vec<RankFacts>) -> RunFacts {
    let step = |step: u64| StepFacts {
        step,
        loss: 5.0 - 0.01 * step as f64,
        lr: 1e-3,
        grad_norm: 1.0,
        seconds,
        data: ranks[0].data,
        exposed: ranks[0].exposed,
        waiting: ranks[0].waiting,
        is_skipped: false,
        has_overflowed: false,
        loss_scale: None,
        zeroed_fraction: None,
    };
    RunFacts {
        recipe: recipe(sets),
        is_accelerated: false,
        cores: Some(64),
        steps: (1..=40).map(step).collect(),
        checkpoints: Vec::new(),
        validation: BTreeMap::new(),
        links: None,
        bucket_len: None,
        spans: BTreeMap::new(),
        traced: Vec::new(),
        peak_bytes: None,
        predicted_step_seconds: None,
        flops_per_token: None,
        peak_flops_per_second: None,
        noise: Vec::new(),
        staleness: BTreeMap::new(),
        compression: Vec::new(),
        rounds: Vec::new(),
        servers: None,
        first_rank_on_host: Vec::new(),
        throttle_counts: Vec::new(),
        memory_by_rank: Vec::new(),
        bytes_by_algorithm: Vec::new(),
        restarts: 0,
        losses_before_resume: Vec::new(),
        failure: None,
        ranks,
    }
}

pub(super) fn diagnosed(facts: &RunFacts) -> Diagnosis {
    let found = diagnose(facts, None).expect("the run has steps");
    let sum = found.parts.total();
    let total = found.step_seconds + found.parts.checkpoint_seconds;
    assert!((sum - total).abs() < 1e-9, "parts sum to {sum}, the step takes {total}");
    found
}

fn what_if<'a>(found: &'a Diagnosis, name: &str) -> &'a WhatIf {
    found.what_if.iter().find(|it| it.name == name).expect("the figure is there")
}

#[test]
fn a_sound_run_is_bound_by_computation() {
    let ranks = vec![rank(0.1, 0.002, 0.003), rank(0.101, 0.001, 0.003)];
    let found = diagnosed(&facts(&["run.workers=2"], 0.11, ranks));
    assert_eq!((found.verdict, found.culprit_rank), (Verdict::Compute, None));
    assert!(found.health.warnings.is_empty(), "{:?}", found.health.warnings);
    assert_eq!(found.noise_scale, None);
}

#[test]
fn a_slow_rank_is_named_and_its_cost_is_replayed() {
    let fast = || rank(0.1, 0.1, 0.0);
    let ranks = vec![fast(), fast(), rank(0.2, 0.0, 0.0), fast()];
    let found = diagnosed(&facts(&["run.workers=4"], 0.205, ranks));
    assert_eq!((found.verdict, found.culprit_rank), (Verdict::Straggler, Some(2)));
    let two = facts(&["run.workers=2"], 0.205, vec![fast(), rank(0.2, 0.0, 0.0)]);
    let planned = diagnosed(&two).plan.expect("there is a program").ranks;
    assert!(planned.iter().all(|it| (it.compute_seconds - 0.1).abs() < 1e-9), "{planned:?}");
    let without = what_if(&found, "no_straggler").step_seconds;
    assert!((without / 0.105 - 1.0).abs() < 0.05, "{without}");
    assert_eq!(found.next.settings, ["sync.stragglers=shares"]);
    // The plan has four equal ranks, and none waits.
    let plan = found.plan.expect("there is a program");
    assert!((plan.ranks[2].compute_seconds - 0.1).abs() < 1e-9 && !plan.is_calibrated, "{plan:?}");
    assert!(plan.step_seconds < 0.12 && plan.parts.waiting_for_rank_seconds == 0.0, "{plan:?}");
    assert!((plan.parts.total() - plan.step_seconds).abs() < 1e-9, "{plan:?}");
}

#[test]
fn a_pipeline_without_its_slow_stage_takes_what_the_closed_form_says() {
    // 1F1B without communication: the longer stage runs all m micro-batches without a gap, after
    // the first forward pass of the other one and before its last backward pass. So a step takes
    // m times the longer and once the shorter micro-batch (Narayanan et al. 2021, section 2.2.1).
    let sets = ["run.workers=2", "parallel.pipeline=2", "model.layers=4", "train.batch=16"];
    let work = slow_rank::work_by_rank(&recipe(&sets));
    let microbatches = recipe(&sets).num_microbatches() as f64;
    let step = |[a, b]: [f64; 2]| microbatches * a.max(b) + a.min(b);
    for slow in 0..2 {
        let usual = [0.01 * work[0], 0.01 * work[1]];
        let mut times = usual;
        times[slow] *= 3.0;
        let seconds = step(times);
        let of_rank = |time: f64| rank(microbatches * time, seconds - microbatches * time, 0.0);
        let found = diagnosed(&facts(&sets, seconds, times.map(of_rank).to_vec()));
        assert_eq!((found.verdict, found.culprit_rank), (Verdict::Straggler, Some(slow)));
        let without = what_if(&found, "no_straggler").step_seconds;
        assert!((without / step(usual) - 1.0).abs() < 0.1, "{without} s, not {}", step(usual));
    }
}

#[test]
fn gossip_and_synchronous_servers_are_replayed_and_asynchronous_ones_are_not() {
    let run = |sets: &[&str]| {
        let sets = [&["run.workers=4", "run.transport=tcp", "optim.name=sgd"], sets].concat();
        let ranks = vec![
            rank(0.1, 0.1, 0.02),
            rank(0.1, 0.1, 0.02),
            rank(0.2, 0.0, 0.02),
            rank(0.1, 0.1, 0.02),
        ];
        let links = Some(LinkFacts { latency: 1e-4, bandwidth: 1e7, port: 2e7 });
        diagnosed(&RunFacts { links, ..facts(&sets, 0.225, ranks) })
    };
    let servers = ["sync.mode=parameter-server", "sync.servers=2"];
    let joint: [&[&str]; 2] =
        [&["sync.mode=gossip"], &[&servers[..], &["sync.consistency=sync"]].concat()];
    for sets in joint {
        let found = run(sets);
        assert_eq!((found.verdict, found.culprit_rank), (Verdict::Straggler, Some(2)), "{sets:?}");
        let without = what_if(&found, "no_straggler").step_seconds;
        assert!((0.11..0.14).contains(&without), "{sets:?}: {without}");
        let faster = what_if(&found, "twice_the_bandwidth");
        assert!(faster.gain > 0.0 && faster.gain < 0.1, "{sets:?}: {faster:?}");
    }
    assert!(run(&servers).what_if.is_empty(), "whoever comes first is served first");
}

#[test]
fn slow_steps_have_what_they_waited_for_and_traces_say_who_was_last() {
    let ranks = vec![rank(0.1, 0.0, 0.01), rank(0.1, 0.0, 0.01)];
    let mut run = facts(&["run.workers=2"], 0.11, ranks);
    let slower = |step: &mut StepFacts, part: fn(&mut StepFacts) -> &mut f64, by: f64| {
        *part(step) += by;
        step.seconds += by;
    };
    slower(&mut run.steps[0], |step| &mut step.data, 1.0);
    slower(&mut run.steps[9], |step| &mut step.data, 0.05);
    slower(&mut run.steps[19], |step| &mut step.waiting, 0.09);
    slower(&mut run.steps[29], |step| &mut step.exposed, 0.005);
    let at = |rank: usize, passes_end_seconds: f64| TracedRank {
        rank,
        passes_end_seconds,
        ..TracedRank::default()
    };
    let step = |step: u64, ends: [f64; 2]| TracedStep {
        step,
        ranks: vec![at(0, ends[0]), at(1, ends[1])],
    };
    run.traced = vec![step(10, [1.0, 1.1]), step(20, [2.2, 2.1]), step(30, [3.0, 3.1])];
    let found = diagnosed(&run);
    let slow: Vec<_> = found.slow_steps.iter().map(|it| (it.step, it.waited_for)).collect();
    assert_eq!(slow, [(20, "waiting_for_rank"), (10, "data")], "the first step is none");
    let excess = &found.slow_steps[0];
    assert!((excess.excess_seconds - 0.09).abs() < 1e-9, "{excess:?}");
    assert!((excess.waited_seconds - 0.09).abs() < 1e-9, "{excess:?}");
    assert_eq!(found.last_rank_counts, [1, 2]);
}

#[test]
fn small_microbatches_need_a_measurement_that_says_so() {
    let sets = ["run.workers=1", "train.batch=8", "train.microbatch=1"];
    let evidence = |peak: Option<f64>| {
        let mut run = facts(&sets, 0.1, vec![rank(0.1, 0.0, 0.0)]);
        // The passes run at 1e6 times the tokens of a step over 0.1 s.
        run.flops_per_token = Some(1e6);
        run.peak_flops_per_second = peak;
        let found = diagnosed(&run);
        assert_eq!(found.verdict, Verdict::Compute);
        found.evidence.iter().any(|it| it.contains("micro-batches are small"))
    };
    let reached = 1e6 * recipe(&sets).tokens_per_step() as f64 / 0.1;
    assert!(evidence(Some(10.0 * reached)), "a tenth of the peak");
    assert!(!evidence(Some(1.1 * reached)), "passes near the peak have large enough micro-batches");
    assert!(!evidence(None), "nothing was measured");
}

#[test]
fn recomputation_is_a_cause_where_it_takes_time() {
    let verdict = |recompute: &str, waiting: f64| {
        let set = format!("parallel.recompute={recompute}");
        let ranks = vec![rank(0.1, 0.0, waiting); 2];
        diagnosed(&facts(&["run.workers=2", &set], 0.1 + waiting, ranks))
    };
    let found = verdict("full", 0.0);
    assert_eq!(found.verdict, Verdict::Memory, "{:?}", found.causes);
    assert_eq!(found.next.settings, ["parallel.recompute=selective"]);
    let gain = found.next.gain.expect("it is known");
    assert!((0.15..0.3).contains(&gain), "a quarter of the passes: {gain}");
    assert_eq!(verdict("none", 0.0).verdict, Verdict::Compute);
    let both = verdict("full", 0.1);
    let verdicts: Vec<_> = both.causes.iter().map(|cause| cause.verdict).collect();
    assert_eq!(verdicts, [Verdict::Communication, Verdict::Memory], "the larger one first");
}

#[test]
fn bytes_and_calls_are_distinguished() {
    let sets = ["run.workers=2", "run.transport=tcp"];
    let ranks = || vec![rank(0.05, 0.0, 0.05); 2];
    let links = |latency, bandwidth| Some(LinkFacts { latency, bandwidth, port: 2.0 * bandwidth });
    let slow = RunFacts { links: links(1e-5, 1e6), ..facts(&sets, 0.1, ranks()) };
    let found = diagnosed(&slow);
    assert_eq!(found.verdict, Verdict::Communication);
    let faster = what_if(&found, "twice_the_bandwidth").step_seconds;
    assert!((0.06..0.09).contains(&faster), "{faster}");

    let sets = [&sets[..], &["parallel.bucket_bytes=4KiB"]].concat();
    let facts = facts(&sets, 0.1, ranks());
    let far = RunFacts { links: links(5e-3, 1e10), bucket_len: Some(1024), ..facts };
    let found = diagnosed(&far);
    assert_eq!(found.verdict, Verdict::Latency, "{:?}", found.evidence);
    assert_eq!(found.next.settings, ["parallel.bucket_bytes=0"]);
}

#[test]
fn the_larger_of_two_causes_comes_first() {
    let waiting = |data: f64, stall: f64| {
        let ranks = vec![RankFacts { data, ..rank(0.1, 0.0, 0.0) }];
        let checkpoints = vec![CheckpointFacts { stall, write: 1.0, bytes: 1 << 20 }; 4];
        let facts = facts(&["run.workers=1"], 0.1 + data, ranks);
        diagnosed(&RunFacts { checkpoints, ..facts }).causes
    };
    let verdicts = |causes: Vec<Cause>| causes.into_iter().map(|cause| cause.verdict);
    assert!(verdicts(waiting(0.08, 0.2)).eq([Verdict::Input, Verdict::Checkpoint]));
    assert!(verdicts(waiting(0.03, 1.0)).eq([Verdict::Checkpoint, Verdict::Input]));
}

#[test]
fn an_unbalanced_pipeline_is_a_bubble_and_no_straggler() {
    let sets = ["run.workers=2", "parallel.pipeline=2", "model.layers=4"];
    let unbalanced = [&sets[..], &["parallel.stage_layers=1,3"]].concat();
    let work = slow_rank::work_by_rank(&recipe(&unbalanced));
    let passes: Vec<f64> = work.iter().map(|work| 0.1 * work).collect();
    let longest = passes[0].max(passes[1]);
    let seconds = 1.1 * longest;
    let ranks =
        passes.iter().map(|pass| rank(*pass, longest - pass, 0.1 * longest)).collect::<Vec<_>>();
    let found = diagnosed(&facts(&unbalanced, seconds, ranks));
    assert_eq!(found.verdict, Verdict::Bubble, "{:?} {:?}", found.parts, found.causes);
    assert!(found.evidence[1].contains("unbalanced"), "{:?}", found.evidence);
    let balanced = what_if(&found, "balanced_stages");
    assert!(balanced.step_seconds < 0.9 * seconds, "{balanced:?}");
}

#[test]
fn a_loss_that_rises_asks_for_a_lower_rate_before_anything_else() {
    let ranks = vec![RankFacts { data: 0.1, ..rank(0.1, 0.0, 0.0) }];
    let mut run = facts(&["run.workers=1"], 0.2, ranks);
    for step in &mut run.steps[20..] {
        step.loss = 50.0;
    }
    let found = diagnosed(&run);
    assert!(found.health.diverged);
    assert_eq!(found.verdict, Verdict::Input, "the step is as slow as before");
    assert_eq!(found.next.settings, ["optim.lr=0.0001"]);
}

#[test]
fn overflows_after_the_search_for_a_scale_are_a_storm() {
    let sets = ["run.workers=1", "precision.compute=fp16"];
    let mut run = facts(&sets, 0.1, vec![rank(0.1, 0.0, 0.0)]);
    for step in &mut run.steps[..5] {
        (step.is_skipped, step.has_overflowed) = (true, true);
    }
    assert!(diagnosed(&run).health.warnings.is_empty(), "a scale is found in the first steps");
    for step in run.steps.iter_mut().step_by(2) {
        (step.is_skipped, step.has_overflowed) = (true, true);
    }
    let found = diagnosed(&run);
    assert!(found.health.warnings[0].contains("overflow storm"), "{:?}", found.health);
    assert!(found.next.settings[0].starts_with("precision."), "{:?}", found.next);
}

#[test]
fn a_run_without_steps_has_no_diagnosis() {
    let mut run = facts(&["run.workers=1"], 0.1, vec![rank(0.1, 0.0, 0.0)]);
    run.steps.clear();
    assert_eq!(diagnose(&run, None), None);
}

#[test]
fn a_planned_step_has_the_tasks_of_every_rank_in_time() {
    let ranks = vec![rank(0.8, 0.0, 0.1), rank(0.8, 0.0, 0.1)];
    let facts = facts(&["run.workers=2"], 1.0, ranks);
    let planned = planned_step(&facts, None).expect("data-parallel ranks have a program");
    assert_eq!((planned.ranks.len(), planned.is_calibrated), (2, false));
    for rank in &planned.ranks {
        let compute = &rank.queues["compute"];
        let is_pass =
            |span: &&PlannedSpan| span.2.starts_with("forward") || span.2.starts_with("backward");
        let passes: f64 = compute.iter().filter(is_pass).map(|span| span.1).sum();
        assert!((passes - 0.8).abs() < 1e-9, "passes take the measured computation: {passes}");
        assert!(rank.queues.len() > 1, "calls have a queue: {:?}", rank.queues.keys());
        let ascends = |spans: &[PlannedSpan]| {
            spans.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0 + 1e-9)
        };
        assert!(ascends(compute), "tasks of a queue do not overlap");
    }
}
