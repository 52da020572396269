//! Every rule on a run that has its symptom, and on one that does not.

use super::*;
use crate::diagnosis::tests::{diagnosed, facts, rank};
use crate::diagnosis::{
    CheckpointFacts, CompressionFacts, FailureFacts, LinkFacts, NoiseFacts, RoundFacts, ServerFacts,
};

/// A sound run of 40 steps of 0.11 s on two workers, changed.
fn run(sets: &[&str], change: impl FnOnce(&mut RunFacts)) -> RunFacts {
    let sets = [&["run.workers=2"][..], sets].concat();
    let mut run = facts(&sets, 0.11, vec![rank(0.1, 0.002, 0.003), rank(0.1, 0.002, 0.003)]);
    change(&mut run);
    run
}

fn names(run: &RunFacts) -> Vec<&'static str> {
    diagnosed(run).symptoms.into_iter().map(|symptom| symptom.name).collect()
}

/// The one symptom of a run.
#[track_caller]
fn assert_only(expected: &str, sets: &[&str], change: impl FnOnce(&mut RunFacts)) -> String {
    let found = diagnosed(&run(sets, change)).symptoms;
    let of_name = |symptom: &&Symptom| symptom.name == expected;
    let symptom = found.iter().find(of_name).unwrap_or_else(|| panic!("{found:?}"));
    assert_eq!(found.len(), 1, "{found:?}");
    symptom.evidence.clone()
}

#[test]
fn a_sound_run_has_none_and_every_rule_has_its_own_name() {
    assert!(names(&run(&[], |_| ())).is_empty());
    let mut names: Vec<&str> = RULES.iter().map(|rule| rule.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), RULES.len());
}

#[test]
fn a_throttled_rank_is_slow_and_a_slow_host_has_no_fast_rank() {
    let ranks = |seconds: [f64; 4]| seconds.map(|seconds| rank(seconds, 0.0, 0.0)).to_vec();
    let mut run = facts(&["run.workers=4"], 0.21, ranks([0.1, 0.1, 0.2, 0.1]));
    run.throttle_counts = vec![Some(0), Some(0), Some(7), None];
    let found = diagnosed(&run).symptoms;
    assert_eq!((found.len(), found[0].name), (1, "slow_rank"));
    assert!(found[0].evidence.ends_with("throttled 7 times"), "{found:?}");

    run.ranks = ranks([0.1, 0.1, 0.2, 0.2]);
    run.first_rank_on_host = vec![0, 0, 2, 2];
    let found = diagnosed(&run).symptoms;
    let host = found.iter().find(|symptom| symptom.name == "slow_host").expect("a slow host");
    assert!(host.evidence.contains("host of rank 2 compute at least 2.00 times"), "{host:?}");
    run.first_rank_on_host = vec![0, 1, 0, 1];
    assert!(!names(&run).contains(&"slow_host"), "each host has a fast rank");
}

#[test]
fn exposed_calls_below_the_speed_of_the_links_are_two_symptoms() {
    let sets = ["run.transport=tcp"];
    let exposed = |run: &mut RunFacts| {
        run.ranks = vec![rank(0.1, 0.0, 0.012); 2];
        run.bucket_len = Some(4096);
        let links = LinkFacts { latency: 1e-6, bandwidth: 1e10, port: 2e10 };
        run.links = Some(links);
    };
    let found = diagnosed(&run(&sets, exposed)).symptoms;
    let names: Vec<&str> = found.iter().map(|symptom| symptom.name).collect();
    assert_eq!(names, ["exposed_communication", "low_bandwidth"]);
    assert!(found[0].evidence.ends_with("buckets of 4096 gradients"), "{found:?}");
    let slow = |run: &mut RunFacts| {
        exposed(run);
        // Calls now take as long as these links say.
        run.links = Some(LinkFacts { latency: 1e-6, bandwidth: 3e6, port: 6e6 });
    };
    assert!(!self::names(&run(&sets, slow)).contains(&"low_bandwidth"));
}

#[test]
fn a_slow_tail_and_a_slower_network_are_found_by_their_quantiles() {
    let tail = |every: usize| {
        move |run: &mut RunFacts| {
            let step = run.steps[1];
            run.steps = (1..=400).map(|number| StepFacts { step: number, ..step }).collect();
            for step in run.steps.iter_mut().skip(7).step_by(every) {
                step.seconds = 0.2;
            }
        }
    };
    let found = assert_only("slow_tail", &[], tail(50));
    assert!(found.contains("1.82 times the median"), "{found}");
    // One step in four hundred is no hundredth of them.
    assert!(names(&run(&[], tail(400))).is_empty());

    let exposed = |after: f64| {
        move |run: &mut RunFacts| {
            for step in &mut run.steps {
                step.exposed = if step.step > 25 { after } else { 0.002 };
            }
        }
    };
    let found = assert_only("slower_network", &[], exposed(0.02));
    assert!(found.contains("grew from 2 ms per step early in the run to 20 ms"), "{found}");
    assert!(names(&run(&[], exposed(0.0025))).is_empty());
}

#[test]
fn a_loss_that_is_not_finite_names_its_step() {
    let found = assert_only("non_finite", &[], |run| run.steps[20].loss = f64::NAN);
    assert!(found.contains("step 21"), "{found}");
    let failure = FailureFacts { reason: "loss is NaN".to_owned(), kind: FailureKind::Diverged };
    assert_only("non_finite", &[], |run| run.failure = Some(failure));
}

#[test]
fn gradients_below_fp16_are_an_underflow_and_few_of_them_are_none() {
    let sets = ["precision.compute=fp16"];
    let zeroed = |fraction: f64| {
        move |run: &mut RunFacts| {
            for step in &mut run.steps {
                (step.loss_scale, step.zeroed_fraction) = (Some(1.0), Some(fraction));
            }
        }
    };
    assert!(assert_only("fp16_underflow", &sets, zeroed(0.4)).contains("40 %"));
    assert!(names(&run(&sets, zeroed(0.01))).is_empty());
}

#[test]
fn a_norm_that_follows_the_loss_scale_was_not_divided_by_it() {
    let scale = |step: u64| [1024.0, 2048.0, 1024.0, 512.0][(step as usize - 1) / 10];
    let scaled = |power: f64| {
        move |run: &mut RunFacts| {
            for step in &mut run.steps {
                step.loss_scale = Some(scale(step.step));
                step.grad_norm = scale(step.step).powf(power) * 1e-3;
            }
        }
    };
    let sets = ["precision.compute=fp16"];
    let found = assert_only("scaled_gradients", &sets, scaled(1.0));
    assert!(found.contains("all 3 changes"), "{found}");
    assert!(names(&run(&sets, scaled(0.0))).is_empty());
}

#[test]
fn old_gradients_are_a_symptom_only_where_the_loss_is_unstable() {
    let stale = |run: &mut RunFacts| {
        run.staleness.insert(1, vec![(0, 10), (4, 990)]);
    };
    let sets = ["optim.name=sgd"];
    assert!(names(&run(&sets, stale)).is_empty());
    let unstable = |run: &mut RunFacts| {
        stale(run);
        run.steps[20..].iter_mut().for_each(|step| step.loss = 50.0);
    };
    let found = assert_only("asynchronous_oscillation", &sets, unstable);
    // Without delay descent is stable up to 2, with a delay of 4 up to 2 sin(pi / 18).
    assert!(found.contains("miss 4 or more") && found.contains("5.8 times lower"), "{found}");
}

#[test]
fn residuals_may_be_large_but_not_grow() {
    let residuals = |growth: f64| {
        move |run: &mut RunFacts| {
            let at = |step: u64| CompressionFacts {
                step,
                delta: 0.9,
                residual_norm: 5.0 + growth * step as f64,
            };
            run.compression = (1..=40).map(at).collect();
        }
    };
    assert!(assert_only("growing_residuals", &[], residuals(2.0)).contains("90 %"));
    assert!(names(&run(&[], residuals(0.0))).is_empty());
}

#[test]
fn a_batch_is_compared_with_the_noise_scale() {
    // A squared gradient of 1 and a noise of 8: the scale is 8 sequences.
    let noise = NoiseFacts {
        small_batch: 2.0,
        large_batch: 8.0,
        small_norm_squared: 5.0,
        large_norm_squared: 2.0,
    };
    let of_batch = |batch: &str| names(&run(&[batch], |run| run.noise = vec![noise]));
    assert_eq!(of_batch("train.batch=16"), ["batch_above_critical"]);
    assert!(of_batch("train.batch=8").is_empty());
}

#[test]
fn drift_beyond_independent_noise_is_a_symptom() {
    let rounds = |ratio: fn(u64) -> f64| {
        move |run: &mut RunFacts| {
            let at = |step: u64| RoundFacts {
                step,
                num_averaged: 4,
                drift: ratio(step),
                update_norm_squared: 1.0,
            };
            run.rounds = (1..=40).map(at).collect();
        }
    };
    // Noise of four workers alone makes a ratio of three.
    assert!(names(&run(&[], rounds(|_| 3.0))).is_empty());
    let found = assert_only("local_steps_drift", &[], rounds(|step| 3.0 + step as f64 / 4.0));
    assert!(found.contains("4.0 times") || found.contains("3.9 times"), "{found}");
}

#[test]
fn failures_of_memory_and_of_replicas_are_distinguished() {
    let failed = |reason: &str, kind: FailureKind| {
        let failure = FailureFacts { reason: reason.to_owned(), kind };
        move |run: &mut RunFacts| run.failure = Some(failure)
    };
    let reason = "no device memory for 7 bytes";
    let of_device = failed(reason, FailureKind::OutOfMemory);
    assert_eq!(assert_only("out_of_memory", &[], of_device), reason);
    let killed = failed("rank 1 was killed by signal 9 (SIGKILL)", FailureKind::Other);
    assert!(assert_only("out_of_memory", &[], killed).contains("dmesg"));
    let differ = failed("worker 1 differs", FailureKind::ReplicasDiffer);
    assert_only("replicas_differ", &[], differ);
    assert!(names(&run(&[], failed("disk full", FailureKind::Other))).is_empty());
}

#[test]
fn a_loaded_server_is_named() {
    let sets = ["sync.mode=parameter-server", "sync.servers=3"];
    let servers = |wait: f64, load: [u64; 3]| {
        move |run: &mut RunFacts| {
            run.ranks = vec![rank(0.11 - wait, 0.0, wait); 2];
            let (pull, push) = ([1e-3, 2e-2], [1e-3, 1e-2]);
            run.servers = Some(ServerFacts { pull, push, load_by_server: load.to_vec() });
        }
    };
    let found = diagnosed(&run(&sets, servers(0.05, [10, 10, 40]))).symptoms;
    let found = found.iter().find(|it| it.name == "saturated_servers").expect("it is named");
    assert!(found.evidence.ends_with("server 2 has 2.0 times the mean load"), "{found:?}");
    assert!(names(&run(&sets, servers(0.003, [10, 10, 40]))).is_empty());
}

#[test]
fn a_loss_that_jumps_when_the_run_resumes_is_found() {
    let resumed = |before: f64| {
        move |run: &mut RunFacts| {
            run.losses_before_resume =
                (0..16).map(|at| before + 0.01 * f64::from(at % 3)).collect();
        }
    };
    let found = assert_only("loss_jump_at_resume", &[], resumed(3.0));
    assert!(found.contains("from step 1 on"), "{found}");
    assert!(names(&run(&[], resumed(5.0))).is_empty());
}

#[test]
fn the_interval_of_checkpoints_is_compared_with_that_of_young() {
    // 4.4 s with two failures: a checkpoint of 1 ms every 66 ms loses the least.
    let checkpoints = |num: usize, restarts: u64| {
        move |run: &mut RunFacts| {
            let saved = CheckpointFacts { stall: 1e-3, write: 0.01, bytes: 1 << 20 };
            (run.checkpoints, run.restarts) = (vec![saved; num], restarts);
        }
    };
    let found = assert_only("checkpoint_interval", &[], checkpoints(2, 2));
    assert!(found.contains("a failure every 2.2"), "{found}");
    assert!(names(&run(&[], checkpoints(60, 2))).is_empty());
    assert!(names(&run(&[], checkpoints(2, 0))).is_empty(), "no failure, no verdict");
}

#[test]
fn forecasts_are_compared_with_measurements() {
    let predicted = |seconds: f64, peak: [u64; 2]| {
        move |run: &mut RunFacts| {
            (run.predicted_step_seconds, run.peak_bytes) = (Some(seconds), Some(peak));
        }
    };
    let peak = [100 << 20, 120 << 20];
    let found = assert_only("wrong_forecast", &[], predicted(0.05, peak));
    assert_eq!(found, "the forecast of the step is -55 % off; the forecast of memory is +20 % off");
    assert!(names(&run(&[], predicted(0.11, [1 << 20, 2 << 20]))).is_empty());
}
