//! Parameter servers: equivalence to data parallelism, staleness and its stability limit, elastic
//! quorums, replication, robust aggregation.

use lockstep_config::{Recipe, Sources, resolve};
use lockstep_harness::Runs;
use lockstep_harness::recipes::{GPT2, LLAMA};
use lockstep_harness::runs::{Outcome, soak};
use lockstep_planner::stability;
use lockstep_telemetry::{Event, load_events};
use lockstep_trainer::Options;

const SERVER: &str = "sync.mode=parameter-server";

fn problem(preset: &str, sets: &[&str]) -> Recipe {
    let sets = sets.iter().map(|set| (*set).to_owned()).collect();
    let preset = Some(preset.to_owned());
    resolve(&Sources { preset, sets, ..Sources::default() })
        .unwrap_or_else(|errors| panic!("{errors}"))
}

/// Number of gradients of all workers.
fn num_pushes(outcome: &Outcome) -> u64 {
    let by_rank =
        outcome.summary.asynchronous.staleness_by_rank.as_ref().expect("servers report it");
    by_rank.iter().flat_map(|counts| counts.values()).sum()
}

#[test]
fn synchronous_servers_equal_the_data_parallel_run_bit_for_bit() {
    let mut runs = Runs::new("parameter-server");
    let cases =
        [("sgd", 1, 1), ("sgd", 4, 3), ("momentum", 2, 2), ("adamw", 2, 1), ("adamw", 4, 2)];
    for (optim, workers, servers) in cases {
        let sets = [format!("optim.name={optim}"), format!("run.workers={workers}")];
        let sets = [sets[0].as_str(), sets[1].as_str(), "optim.clip=0", "train.steps=5"];
        let usual = runs.finish(&LLAMA.with(&sets));
        let servers = format!("sync.servers={servers}");
        let served = [SERVER, "sync.consistency=sync", servers.as_str()];
        let served = runs.finish(&LLAMA.with(&[&sets[..], &served].concat()));
        assert_eq!(served.hashes(), usual.hashes(), "{sets:?}, {servers}");
        assert_eq!(served.summary.staleness_max, 0);
    }
}

#[test]
fn overlapped_transfers_equal_the_serial_order_bit_for_bit() {
    let mut runs = Runs::new("parameter-server");
    let cases: [&[&str]; 4] = [
        &["optim.clip=0", "sync.servers=3", "run.workers=2"],
        &["optim.clip=0", "sync.servers=2", "sync.replicas=1", "run.workers=2"],
        &["sync.servers=2", "run.workers=4", "sync.group_workers=2"],
        &["optim.clip=0", "sync.servers=2", "sync.sparse_rows=true", "model.tied=false"],
    ];
    for sets in cases {
        let common = [SERVER, "sync.consistency=sync", "parallel.bucket_bytes=1", "train.steps=4"];
        let mut run = |order: &str| {
            let sets = [&common[..], sets, &["train.eval_batches=1", order]].concat();
            runs.finish(&LLAMA.with(&sets))
        };
        let (overlapped, serial) = (run("parallel.overlap=true"), run("parallel.overlap=false"));
        assert_eq!(overlapped.hashes(), serial.hashes(), "{sets:?}");
        assert_eq!(overlapped.summary.staleness_max, 0);
    }
}

#[test]
fn grouped_workers_equal_the_data_parallel_run_bit_for_bit() {
    let mut runs = Runs::new("parameter-server");
    for (optim, group, servers) in [("sgd", 2, 3), ("adamw", 4, 1), ("momentum", 2, 1)] {
        let optim = format!("optim.name={optim}");
        let sets = [optim.as_str(), "run.workers=4", "optim.clip=0", "train.steps=5"];
        let usual = runs.finish(&LLAMA.with(&sets));
        let (group_set, servers) =
            (format!("sync.group_workers={group}"), format!("sync.servers={servers}"));
        let served = [SERVER, "sync.consistency=sync", &group_set, &servers];
        let served = runs.finish(&LLAMA.with(&[&sets[..], &served].concat()));
        assert_eq!(served.hashes(), usual.hashes(), "{group_set}, {servers}");
        assert_eq!(num_pushes(&served), 5 * 4 / group, "one worker of each group pushes");
    }
}

#[test]
fn servers_exchange_with_one_worker_of_each_group() {
    let mut runs = Runs::new("parameter-server");
    let sets = [SERVER, "run.workers=4", "train.steps=12", "train.eval_batches=1"];
    let mut run = |more: &[&str]| runs.finish(&LLAMA.with(&[&sets[..], more].concat()));
    let alone = run(&["sync.consistency=async"]);
    let model = 4 * alone.summary.num_params;
    // The first worker also sends the initial weights, so the second is measured.
    let served = alone.summary.wire_bytes_by_rank[1];
    assert!((2 * model..2 * model + 1024).contains(&served), "{served}, {model}");
    for consistency in ["sync.consistency=async", "sync.consistency=bounded"] {
        let grouped = run(&[consistency, "sync.group_workers=2"]);
        assert_eq!(num_pushes(&grouped), 12 * 2);
        let servers = &grouped.summary.asynchronous.served;
        let counts = servers.applied_by_server.as_ref().expect("counted");
        assert_eq!(counts[0], [12, 12], "servers count two workers");
        // Inside a group gradients go in both directions and weights in one, with a few words more;
        // servers exchange with the first rank only, as much as with each worker before.
        let &[first, second] = &grouped.summary.wire_bytes_by_rank[2..] else { panic!("four") };
        assert!((0..64).contains(&(first + second - served - 3 * model)), "{first}, {second}");
        let last = grouped.losses.last().expect("some");
        assert!(*last < grouped.losses[0], "{consistency}: {:?}", grouped.losses);
    }
}

#[test]
fn state_of_groups_survives_a_restart() {
    let mut runs = Runs::new("parameter-server");
    let sets = [SERVER, "sync.consistency=sync", "run.workers=4", "sync.group_workers=2"];
    let more = ["train.steps=8", "checkpoint.every=3", "compress.method=top-k"];
    let recipe = LLAMA.with(&[&sets[..], &more, &["compress.ratio=0.1"]].concat());
    let whole = runs.finish(&recipe);
    let part = runs.run(&recipe, Options { stop_after: Some(5), ..Options::default() });
    let resume = Some(part.expect("the first part").dir.join("checkpoints"));
    let rest = runs.run(&recipe, Options { resume, ..Options::default() }).expect("the rest");
    assert_eq!((rest.losses.len(), rest.hashes()), (5, whole.hashes()));
}

#[test]
fn other_numbers_of_workers_and_tied_weights_are_close_to_data_parallelism() {
    let mut runs = Runs::new("parameter-server");
    // Workers add the two gradients of a tied tensor before servers add those of all workers.
    for (small, workers) in [(LLAMA, "run.workers=3"), (GPT2, "run.workers=2")] {
        let sets = ["optim.name=sgd", workers, "optim.clip=0", "train.steps=6"];
        let usual = runs.finish(&small.with(&sets));
        let served = [SERVER, "sync.consistency=sync", "sync.servers=2"];
        let served = runs.finish(&small.with(&[&sets[..], &served].concat()));
        for (step, (a, b)) in usual.losses.iter().zip(&served.losses).enumerate() {
            assert!((a - b).abs() <= 2e-6 * a.abs(), "{}: {a} and {b}, {step}", small.name);
        }
    }
}

#[test]
fn state_of_servers_survives_a_restart() {
    let mut runs = Runs::new("parameter-server");
    for (consistency, servers) in [("sync", "sync.servers=2"), ("bounded", "sync.servers=1")] {
        let consistency = format!("sync.consistency={consistency}");
        let sets = [SERVER, consistency.as_str(), servers, "optim.name=adamw", "run.workers=2"];
        let more = ["train.steps=12", "checkpoint.every=5", "train.eval_batches=1"];
        let recipe = LLAMA.with(&[&sets[..], &more].concat());
        let whole = runs.finish(&recipe);
        let options = Options { stop_after: Some(9), ..Options::default() };
        let part = runs.run(&recipe, options).expect("the first part");
        let resume = Some(part.dir.join("checkpoints"));
        let rest = runs.run(&recipe, Options { resume, ..Options::default() });
        let rest = rest.unwrap_or_else(|error| panic!("{consistency}: {error}"));
        assert_eq!(rest.losses.len(), 7, "{consistency}: from step 5 on");
        if consistency.ends_with("=sync") {
            assert_eq!(rest.hashes(), whole.hashes());
        }
        assert!(rest.losses[6] < whole.losses[0], "{consistency}: {:?}", rest.losses);
    }
}

#[test]
fn a_slow_worker_makes_gradients_stale_and_a_bound_holds() {
    let mut runs = Runs::new("parameter-server");
    let sets = [
        SERVER,
        "run.workers=3",
        "train.steps=12",
        "train.eval_batches=1",
        "emulate.slow=[{rank=2,factor=5}]",
    ];
    let free = runs.finish(&LLAMA.with(&[&sets[..], &["sync.consistency=async"]].concat()));
    assert!(free.summary.staleness_max > 0, "{:?}", free.summary.asynchronous);
    assert_eq!(num_pushes(&free), 36, "every gradient of every worker was applied once");
    for bound in [0, 1, 2, 4] {
        let bound_set = format!("sync.staleness={bound}");
        let bounded = ["sync.consistency=bounded", bound_set.as_str(), "sync.servers=2"];
        let bounded = runs.finish(&LLAMA.with(&[&sets[..], &bounded].concat()));
        let found = bounded.summary.staleness_max;
        assert!(found <= bound, "{found} of {bound}");
        assert_eq!(num_pushes(&bounded), 36);
        assert!(bounded.losses[11] < bounded.losses[0], "it learns: {:?}", bounded.losses);
    }
}

#[test]
fn events_report_servers_and_staleness() {
    let mut runs = Runs::new("parameter-server");
    let sets = [SERVER, "sync.servers=2", "run.workers=2", "train.steps=4", "train.eval_batches=1"];
    let outcome = runs.finish(&LLAMA.with(&sets));
    let events = load_events(runs.world(), &outcome.dir.join("events.jsonl")).expect("events");
    let joined = events.iter().find_map(|stamped| match &stamped.event {
        Event::ServersJoined { worker_processes, server_processes, params_by_server, .. } => {
            Some((worker_processes.len(), server_processes.len(), params_by_server.clone()))
        }
        _ => None,
    });
    let (workers, servers, params) = joined.expect("it is reported");
    assert_eq!((workers, servers), (2, 2));
    assert!(params.iter().sum::<u64>() >= outcome.summary.num_params, "{params:?}");
    let is_stale = |event: &Event| matches!(event, Event::Staleness { .. });
    assert_eq!(events.iter().filter(|stamped| is_stale(&stamped.event)).count(), 2);
}

/// A quadratic on which one worker descends with gradients that are exactly `delay` updates old, at
/// `times` the learning rate of the stability limit.
fn delayed(delay: u32, momentum: f64, times: f64) -> Recipe {
    // The largest curvature of the quadratic is 1.
    let lr = times * stability::limit(delay, momentum);
    let name = if momentum > 0.0 { "momentum" } else { "sgd" };
    let sets = [
        SERVER.to_owned(),
        "run.workers=1".to_owned(),
        format!("sync.read_delay={delay}"),
        format!("optim.name={name}"),
        format!("optim.lr={lr}"),
        "optim.schedule=constant".to_owned(),
        "optim.warmup_steps=0".to_owned(),
        "optim.clip=0".to_owned(),
        "problem.condition=4".to_owned(),
        // Close to the limit, divergence takes many steps to show, with older gradients more.
        format!("train.steps={}", if delay > 3 { 2000 } else { 400 }),
    ];
    let momentum = (momentum > 0.0).then(|| format!("optim.momentum={momentum}"));
    let sets: Vec<_> = sets.into_iter().chain(momentum).collect();
    problem("quadratic", &sets.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn descent_diverges_just_beyond_the_stability_limit_of_its_staleness() {
    let mut runs = Runs::new("parameter-server");
    let cases: &[(u32, f64)] = if soak() {
        &[(0, 0.0), (1, 0.0), (3, 0.0), (8, 0.0), (2, 0.5), (4, 0.9)]
    } else {
        &[(0, 0.0), (3, 0.0), (2, 0.5)]
    };
    for &(delay, momentum) in cases {
        let within = runs.finish(&delayed(delay, momentum, 0.93));
        let surplus = within.summary.solution.suboptimality.expect("known");
        assert!(surplus < 1e-2 * within.summary.first_loss, "{delay}, {momentum}: {surplus}");
        assert_eq!(
            within.summary.staleness_max,
            u64::from(delay),
            "exactly as stale as configured"
        );
        let beyond = runs.run(&delayed(delay, momentum, 1.07), Options::default());
        // A divergent run may or may not be non-finite at the end.
        let has_diverged = beyond.map_or(true, |outcome| {
            outcome.summary.solution.suboptimality.is_none_or(|surplus| {
                surplus.is_nan() || surplus >= 10.0 * outcome.summary.first_loss
            })
        });
        assert!(has_diverged, "{delay}, {momentum}: it converges beyond the limit");
    }
}

#[test]
fn every_consistency_reaches_the_optimum_of_convex_problems() {
    let mut runs = Runs::new("parameter-server");
    for consistency in ["sync", "async", "bounded"] {
        let consistency = format!("sync.consistency={consistency}");
        let bowl = &["optim.lr=0.2", "problem.condition=4"][..];
        for (preset, more) in [("quadratic", bowl), ("logistic", &["optim.lr=1"])] {
            let sets = ["run.workers=4", SERVER, consistency.as_str(), "train.steps=320"];
            let sets = [&sets[..], &["optim.name=sgd"], more].concat();
            let outcome = runs.finish(&problem(preset, &sets));
            let verdict = outcome.summary.solution;
            let start = outcome.summary.first_loss - verdict.optimum_loss.expect("known");
            let surplus = verdict.suboptimality.expect("known");
            // Workers' samples have different minima; a constant learning rate keeps a bias.
            let limit = if preset == "quadratic" { 1e-6 } else { 1e-3 };
            assert!(surplus < limit * start, "{preset}, {consistency}: {surplus} of {start}");
        }
    }
}

#[test]
fn replicated_servers_serve_the_same_bits() {
    let mut runs = Runs::new("parameter-server");
    let sets = [SERVER, "sync.consistency=sync", "run.workers=2", "optim.clip=0", "train.steps=5"];
    let once = runs.finish(&LLAMA.with(&[&sets[..], &["sync.servers=2"]].concat()));
    let twice = ["sync.servers=2", "sync.replicas=1"];
    let twice = runs.finish(&LLAMA.with(&[&sets[..], &twice].concat()));
    assert_eq!(twice.hashes(), once.hashes());
    let served = &twice.summary.asynchronous.served;
    assert_eq!(served.acknowledged_by_server, Some(vec![vec![5, 5], vec![5, 5]]));
    assert_eq!(served.applied_by_server, served.acknowledged_by_server);
    assert_eq!(served.servers_lost.as_deref(), Some(&[][..]));
    let (pull, push) = (served.pull_seconds_p50, served.push_seconds_p99);
    assert!(pull.is_some_and(|seconds| seconds > 0.0) && push.is_some_and(|s| s > 0.0));
}

#[test]
fn an_elastic_run_proceeds_without_a_slow_worker() {
    let mut runs = Runs::new("parameter-server");
    let sets = [
        SERVER,
        "run.workers=3",
        "train.steps=16",
        "train.eval_batches=1",
        "sync.consistency=elastic",
        "emulate.slow=[{rank=2,factor=5}]",
    ];
    let policies: [&[&str]; 3] = [
        &["sync.quorum=2", "sync.late_gradients=discard"],
        &["sync.quorum=2", "sync.late_gradients=next", "sync.servers=2"],
        &["sync.quorum=3", "sync.quorum_timeout_ms=1"],
    ];
    for policy in policies {
        let outcome = runs.finish(&LLAMA.with(&[&sets[..], policy].concat()));
        let served = &outcome.summary.asynchronous.served;
        let of_worker = |counts: &Option<Vec<Vec<u64>>>| counts.as_ref().expect("reported")[0][2];
        let discarded = of_worker(&served.discarded_by_server);
        let applied = of_worker(&served.applied_by_server);
        let taken = &outcome.summary.asynchronous.staleness_by_rank.as_ref().expect("reported")[2];
        let num_stale: u64 = taken.range(1..).map(|(_, count)| count).sum();
        let missed = outcome.summary.stragglers.missed_steps_by_rank[2];
        // Late gradients are discarded or applied, and steps that began without the worker are
        // skipped. With a quorum of two, one of three is always late; with a timeout it is chance.
        let applies_stale = policy.contains(&"sync.late_gradients=next");
        if policy.contains(&"sync.quorum=2") {
            let found = (discarded > 0, num_stale > 0);
            let expected = (!applies_stale, applies_stale);
            assert_eq!(found, expected, "{policy:?}: {discarded}, {num_stale}");
        }
        // The update of the last late gradient may not have closed.
        let pushed = of_worker(&served.acknowledged_by_server);
        assert_eq!(pushed + missed, 16, "{policy:?}: {discarded}, {taken:?}, {missed}");
        assert!(applied + discarded <= pushed, "{applied} and {discarded} of {pushed}");
        assert_eq!(outcome.summary.steps, 16);
        // The first worker reports the losses of the steps that it took part in.
        let last = outcome.losses.last().expect("it took part in some");
        assert!(*last < outcome.losses[0], "{policy:?}: {:?}", outcome.losses);
    }
    // A quorum of all workers is a synchronous run.
    let all = ["sync.quorum=3"];
    let elastic = runs.finish(&LLAMA.with(&[&sets[..5], &all].concat()));
    let synchronous = [&sets[..4], &["sync.consistency=sync"]].concat();
    let synchronous = runs.finish(&LLAMA.with(&synchronous));
    assert_eq!(elastic.hashes().weights, synchronous.hashes().weights);
}

#[test]
fn gradients_beyond_the_staleness_bound_are_discarded() {
    let mut runs = Runs::new("parameter-server");
    let sets = [
        SERVER,
        "run.workers=3",
        "train.steps=12",
        "train.eval_batches=1",
        "sync.servers=2",
        "sync.consistency=bounded",
        "sync.staleness=0",
        "sync.stale_gradients=discard",
    ];
    let outcome = runs.finish(&LLAMA.with(&sets));
    let served = &outcome.summary.asynchronous.served;
    assert_eq!(outcome.summary.staleness_max, 0, "{:?}", outcome.summary.asynchronous);
    let tables = [&served.acknowledged_by_server, &served.applied_by_server];
    let [pushed, applied] = tables.map(|table| table.as_ref().expect("reported"));
    let discarded = served.discarded_by_server.as_ref().expect("reported");
    assert!(discarded.iter().all(|by_worker| by_worker.iter().sum::<u64>() > 0), "{discarded:?}");
    for (server, pushed) in pushed.iter().enumerate() {
        for (worker, pushed) in pushed.iter().enumerate() {
            let settled = applied[server][worker] + discarded[server][worker];
            assert_eq!((settled, *pushed), (12, 12), "server {server}, worker {worker}");
        }
    }
}

#[test]
fn an_asynchronous_run_switches_to_synchronous_by_plan_or_on_a_loss_spike() {
    let mut runs = Runs::new("parameter-server");
    let sets = [SERVER, "run.workers=3", "train.steps=12", "train.eval_batches=1"];
    let planned = ["sync.switch_to_sync_after=0.5", "emulate.slow=[{rank=2,factor=5}]"];
    let planned = runs.finish(&LLAMA.with(&[&sets[..], &planned].concat()));
    assert_eq!(planned.summary.asynchronous.served.synchronous_from_step, Some(6));
    let slow = planned.summary.asynchronous.staleness_by_rank.as_ref().expect("reported");
    // The second half of each worker's gradients has missed no update.
    assert!(slow.iter().all(|counts| counts.get(&0).is_some_and(|count| *count >= 6)), "{slow:?}");
    let mut wild = delayed(3, 0.0, 1.5);
    wild.sync.server.switch_on_loss_spike = 2.0;
    let wild = runs.run(&wild, Options::default()).expect("it ends while finite");
    let from = wild.summary.asynchronous.served.synchronous_from_step.expect("its loss spikes");
    assert!(from >= 20, "{from}: a spike needs earlier losses");
    let calm = runs.finish(&{
        let mut calm = delayed(3, 0.0, 0.5);
        calm.sync.server.switch_on_loss_spike = 2.0;
        calm
    });
    assert_eq!(calm.summary.asynchronous.served.synchronous_from_step, None);
}

#[test]
fn servers_may_reset_their_momentum_when_a_run_resumes() {
    let mut runs = Runs::new("parameter-server");
    let sets = [SERVER, "sync.consistency=sync", "optim.name=momentum", "run.workers=2"];
    let more = ["train.steps=12", "checkpoint.every=5", "train.eval_batches=1"];
    let mut rest = |resets: &str| {
        let recipe = LLAMA.with(&[&sets[..], &more, &[resets]].concat());
        let options = Options { stop_after: Some(9), ..Options::default() };
        let part = runs.run(&recipe, options).expect("the first part");
        let resume = Some(part.dir.join("checkpoints"));
        runs.run(&recipe, Options { resume, ..Options::default() }).expect("the rest")
    };
    let (kept, reset) = (rest("sync.reset_momentum=false"), rest("sync.reset_momentum=true"));
    // The first gradient is of equal weights; momentum shows from the second on.
    assert_eq!(kept.losses[0].to_bits(), reset.losses[0].to_bits());
    assert_ne!(kept.losses[2].to_bits(), reset.losses[2].to_bits());
}

#[test]
fn a_byzantine_worker_breaks_the_mean_but_not_robust_aggregation() {
    let mut runs = Runs::new("parameter-server");
    let mut descend = |more: &[&str]| {
        let sets = [SERVER, "sync.consistency=sync", "run.workers=5", "sync.byzantine=1"];
        let bowl = ["optim.name=sgd", "optim.lr=0.2", "problem.condition=4", "train.batch=40"];
        let rest = ["optim.clip=0", "train.steps=100"];
        let recipe = problem("quadratic", &[&sets[..], &bowl, &rest, more].concat());
        runs.run(&recipe, Options::default())
    };
    let mean = descend(&["sync.aggregation=mean"]);
    let has_diverged = mean.map_or(true, |outcome| {
        let surplus = outcome.summary.solution.suboptimality.expect("known");
        surplus.is_nan() || surplus > outcome.summary.first_loss
    });
    assert!(has_diverged, "one Byzantine worker of five does not break the mean");
    for rule in ["median", "trimmed-mean", "krum"] {
        let rule = format!("sync.aggregation={rule}");
        let outcome = descend(&[&rule]).unwrap_or_else(|error| panic!("{rule}: {error}"));
        let verdict = outcome.summary.solution;
        let start = outcome.summary.first_loss - verdict.optimum_loss.expect("known");
        let surplus = verdict.suboptimality.expect("known");
        assert!(surplus < 1e-4 * start, "{rule}: {surplus} of {start}");
    }
}
