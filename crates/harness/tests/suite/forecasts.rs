//! Bytes that every rank moves against the forecast: equal where the recipe decides them, within a
//! range where timing or data do.

use lockstep_config::Recipe;
use lockstep_config::units::Bytes;
use lockstep_harness::Runs;
use lockstep_harness::recipes::{GPT2, LLAMA};
use lockstep_harness::runs::Outcome;
use lockstep_harness::traffic::rows_by_step;
use lockstep_parallel::from_recipe::blueprint_of_rank;
use lockstep_planner::traffic::{
    ByteRange, Interconnect, RecordedDecisions, wire_range, wire_replay,
};
use lockstep_telemetry::{Event, load_events};
use lockstep_trainer::RunFolder;
use lockstep_trainer::run_folder::load_recipe;

const SERVER: &str = "sync.mode=parameter-server";
const SHORT: [&str; 2] = ["train.steps=5", "train.eval_batches=1"];

/// Forecast of the mean step, by rank.
fn forecast(recipe: &Recipe) -> Vec<ByteRange> {
    assert_eq!(recipe.unmodelled_traffic(), None, "all traffic is modelled");
    let interconnect = Interconnect::memory(recipe.run.workers);
    wire_range(recipe, &blueprint_of_rank(recipe, 0), &interconnect)
}

fn measured(outcome: &Outcome) -> Vec<Bytes> {
    outcome.summary.wire_bytes_by_rank.iter().copied().map(Bytes).collect()
}

/// Trains and compares the bytes of every rank, which the recipe decides.
fn assert_exact(runs: &mut Runs, recipe: &Recipe) {
    let forecast = forecast(recipe);
    let measured = measured(&runs.finish(recipe)).into_iter();
    let expected: Vec<_> = measured.map(ByteRange::exactly).collect();
    assert_eq!(forecast, expected, "{:?}", recipe.sync);
}

/// Trains and checks that the bytes of every rank are within a range.
fn assert_contained(runs: &mut Runs, recipe: &Recipe) -> Vec<ByteRange> {
    let forecast = forecast(recipe);
    let found = measured(&runs.finish(recipe));
    assert_eq!(forecast.len(), found.len());
    for (range, bytes) in forecast.iter().zip(found) {
        assert!(!range.is_exact() && range.contains(bytes), "{range:?}: {bytes:?}");
    }
    forecast
}

#[test]
fn bytes_of_synchronous_servers_are_exact() {
    let mut runs = Runs::new("forecasts");
    let variants: &[&[&str]] = &[
        &["run.workers=1"],
        &["run.workers=2", "sync.servers=3", "checkpoint.every=2", "optim.name=adamw"],
        &["run.workers=3", "sync.replicas=1", "optim.clip=0"],
        &["run.workers=4", "sync.servers=2", "sync.group_workers=2", "checkpoint.every=1"],
    ];
    for variant in variants {
        let sets = [&[SERVER, "sync.consistency=sync"], &SHORT[..], *variant].concat();
        assert_exact(&mut runs, &LLAMA.with(&sets));
    }
    let tied = [SERVER, "sync.consistency=sync", "sync.servers=2", "run.workers=2"];
    assert_exact(&mut runs, &GPT2.with(&[&tied[..], &SHORT].concat()));
}

#[test]
fn bytes_of_asynchronous_and_compressed_pushes_are_exact() {
    let mut runs = Runs::new("forecasts");
    let variants: &[&[&str]] = &[
        &["sync.consistency=async", "sync.switch_to_sync_after=0.5"],
        &["sync.consistency=bounded", "sync.staleness=1", "sync.stale_gradients=discard"],
        &["sync.consistency=async", "sync.group_workers=2", "checkpoint.every=3"],
        &["sync.consistency=sync", "compress.method=top-k", "compress.ratio=0.1"],
        &["sync.consistency=async", "compress.method=sign", "sync.group_workers=2"],
        &["sync.consistency=bounded", "compress.method=int8"],
        &["sync.consistency=sync", "compress.method=bf16"],
        &["sync.consistency=sync", "compress.method=qsgd"],
    ];
    for variant in variants {
        let sets = [&[SERVER, "run.workers=4", "sync.servers=2"], &SHORT[..], *variant].concat();
        assert_exact(&mut runs, &LLAMA.with(&sets));
    }
}

#[test]
fn bytes_of_elastic_servers_and_sparse_rows_are_within_a_range() {
    let mut runs = Runs::new("forecasts");
    let sets = [&[SERVER, "sync.servers=3", "run.workers=4"], &SHORT[..]].concat();
    let slow = ["sync.consistency=elastic", "sync.quorum=2", "emulate.slow=[{rank=3,factor=9}]"];
    assert_contained(&mut runs, &LLAMA.with(&[&sets[..], &slow].concat()));
    let zipf = ["data.source=zipf", "model.vocab=1000", "model.context=32", "train.batch=8"];
    let zipf = [&zipf[..], &["train.microbatch=1", "numerics.invariant_up_to=8"]].concat();
    let variants: &[&[&str]] = &[
        &["sync.consistency=sync"],
        &["sync.consistency=sync", "sync.group_workers=2", "checkpoint.every=2"],
        &["sync.row_cache=50", "sync.row_cache_every=2"],
        &["sync.consistency=sync", "sync.replicated_rows=40", "sync.row_sharding=range"],
    ];
    for variant in variants {
        let sparse = ["sync.sparse_rows=true"];
        let recipe = LLAMA.with(&[&sets[..], &zipf, &sparse, variant].concat());
        let ranges = assert_contained(&mut runs, &recipe);
        // Rows cost less than the table does, which has a thousand of them.
        let dense = forecast(&LLAMA.with(&[&sets[..], &zipf, &["sync.consistency=sync"]].concat()));
        if !variant.contains(&"sync.group_workers=2") {
            assert!(ranges[1].low < dense[1].low, "{ranges:?} {dense:?}");
        }
    }
}

/// Decisions that a run has recorded, with the embedding rows that its tokens select.
fn recorded(runs: &Runs, recipe: &Recipe, outcome: &Outcome) -> RecordedDecisions {
    let rows_by_step = rows_by_step(recipe);
    let mut decisions = RecordedDecisions { rows_by_step, ..RecordedDecisions::default() };
    let events = load_events(runs.world(), &outcome.dir.join("events.jsonl")).expect("events");
    for stamped in events {
        match stamped.event {
            Event::ServerRequests { pulls_by_worker, pushes_by_worker, repeats, .. } => {
                decisions.pulls_by_worker = pulls_by_worker;
                decisions.pushes_by_worker = pushes_by_worker;
                decisions.repeats = repeats;
            }
            Event::ServerPushes { skipped_by_server, .. } => {
                decisions.skips_by_worker =
                    skipped_by_server.into_iter().next().unwrap_or_default();
            }
            Event::SparseRows { by_worker, .. } => {
                decisions.row_requests_by_worker = by_worker;
            }
            Event::LeavesDivided { step, leaves_by_worker } => {
                decisions.divisions.insert(step - 1, leaves_by_worker);
            }
            Event::Step { step, is_skipped: true, .. } => {
                decisions.skipped_steps.insert(step - 1);
            }
            Event::WorkersMissing { step, missing, .. } => {
                let rows = &mut decisions.rows_by_step[step as usize - 1];
                for rank in missing {
                    rows[rank] = 0;
                }
            }
            _ => {}
        }
    }
    decisions
}

/// Trains and replays the decisions that the run has recorded; its bytes are not known before.
fn assert_replayed(runs: &mut Runs, sets: &[&str]) -> RecordedDecisions {
    let recipe = LLAMA.with(sets);
    let forecast = forecast(&recipe);
    let (replayed, found, decisions) = replay(runs, &recipe);
    assert!(forecast.iter().any(|range| !range.is_exact()), "{sets:?}");
    assert!(forecast.iter().zip(&found).all(|(range, bytes)| range.contains(*bytes)), "{sets:?}");
    let found: Vec<_> = found.into_iter().map(ByteRange::exactly).collect();
    assert_eq!(replayed, found, "{sets:?}: {decisions:?}");
    decisions
}

/// Trains; returns the replayed bytes, those of the counters, and the recorded decisions.
fn replay(runs: &mut Runs, recipe: &Recipe) -> (Vec<ByteRange>, Vec<Bytes>, RecordedDecisions) {
    let outcome = runs.finish(recipe);
    let folder = RunFolder::started(&outcome.dir, runs.world()).expect("a run folder");
    let recipe = load_recipe(&folder, runs.world()).expect("its recipe");
    let decisions = recorded(runs, &recipe, &outcome);
    let interconnect = Interconnect::memory(recipe.run.workers);
    let blueprint = blueprint_of_rank(&recipe, 0);
    let replayed = wire_replay(&recipe, &blueprint, &interconnect, &decisions);
    (replayed, measured(&outcome), decisions)
}

#[test]
fn recorded_divisions_of_leaves_replay_to_the_bytes_of_every_rank() {
    let mut runs = Runs::new("forecasts");
    let slow = ["emulate.microbatch_ms=4", "emulate.slow=[{rank = 0, factor = 40}]"];
    let shares = ["sync.stragglers=shares", "sync.straggler_window=2", "train.steps=7"];
    for workers in ["run.workers=2", "run.workers=3"] {
        let recipe = LLAMA.with(&[&slow[..], &shares, &["train.eval_batches=1", workers]].concat());
        let (replayed, found, decisions) = replay(&mut runs, &recipe);
        assert!(!decisions.divisions.is_empty(), "{workers}");
        let found: Vec<_> = found.into_iter().map(ByteRange::exactly).collect();
        assert_eq!(replayed, found, "{workers}: {decisions:?}");
    }
}

#[test]
fn recorded_decisions_replay_to_the_bytes_of_every_rank() {
    let mut runs = Runs::new("forecasts");
    let servers = [SERVER, "sync.servers=3", "run.workers=4", "sync.consistency=elastic"];
    let slow = ["sync.quorum=2", "emulate.slow=[{rank=3,factor=9}]", "checkpoint.every=2"];
    assert_replayed(&mut runs, &[&servers[..], &slow, &SHORT].concat());
    let auto = ["sync.mode=local-sgd", "sync.local_steps=auto", "run.workers=2"];
    assert_replayed(&mut runs, &[&auto[..], &SHORT].concat());
}

#[test]
fn skipped_updates_replay_to_the_bytes_of_every_rank() {
    let mut runs = Runs::new("forecasts");
    // So few targets that gradients overflow at the largest loss scale.
    let overflows = ["precision.compute=fp16", "precision.loss_scale_start=16777216"];
    let small = ["train.batch=8", "train.microbatch=1", "model.context=8", "train.steps=6"];
    let small = [&small[..], &["parallel.bucket_bytes=65536", "train.eval_batches=1"]].concat();
    let layouts: [&[&str]; 2] = [
        &["run.workers=2", "parallel.zero=1"],
        &["run.workers=2", "parallel.zero=2", "optim.name=muon"],
    ];
    for layout in layouts {
        let decisions = assert_replayed(&mut runs, &[&overflows[..], &small, layout].concat());
        let num_skipped = decisions.skipped_steps.len();
        assert!((1..6).contains(&num_skipped), "{layout:?}: {num_skipped} are skipped");
    }
}

#[test]
fn pushes_without_a_gradient_replay_to_the_bytes_of_every_worker() {
    let mut runs = Runs::new("forecasts");
    // Every step multiplies the weights, until activations overflow.
    let diverging = ["optim.name=sgd", "optim.lr=1000", "optim.weight_decay=1000"];
    let steps = ["train.steps=9", "train.max_skipped=9", "train.eval_batches=1"];
    let servers = [SERVER, "run.workers=4", "sync.servers=2", "optim.schedule=constant"];
    // Without clipping, gradients leave before they are known to be finite.
    let policies: [(&[&str], bool); 5] = [
        (&["sync.consistency=sync", "optim.clip=0"], false),
        (&["sync.consistency=sync", "checkpoint.every=3"], true),
        (&["sync.consistency=async", "parallel.overlap=false", "optim.clip=0"], true),
        (&["sync.consistency=sync", "sync.group_workers=2"], true),
        (&["sync.consistency=sync", "compress.method=int8"], true),
    ];
    for (policy, are_spared) in policies {
        let recipe = LLAMA.with(&[&diverging[..], &steps, &servers, policy].concat());
        let (replayed, found, decisions) = replay(&mut runs, &recipe);
        // An asynchronous worker may pull after others have made every later gradient overflow.
        let is_some = |skips: &u64| (1..=9).contains(skips);
        assert!(decisions.skips_by_worker.iter().all(is_some), "{policy:?}: {decisions:?}");
        assert_eq!(forecast(&recipe)[0].contains(found[0]), !are_spared, "{policy:?}: {found:?}");
        let found: Vec<_> = found.into_iter().map(ByteRange::exactly).collect();
        assert_eq!(replayed, found, "{policy:?}: {decisions:?}");
    }
}

#[test]
fn selected_rows_replay_to_the_bytes_of_every_rank() {
    let mut runs = Runs::new("forecasts");
    let zipf = ["data.source=zipf", "model.vocab=2000", "model.context=16", "train.batch=8"];
    let zipf = [&zipf[..], &["train.microbatch=1", "numerics.invariant_up_to=8"], &SHORT].concat();
    let servers = [SERVER, "sync.consistency=sync", "sync.servers=3", "sync.sparse_rows=true"];
    let group = ["sync.group_workers=2", "sync.row_sharding=range", "checkpoint.every=2"];
    assert_replayed(&mut runs, &[&zipf[..], &servers, &["run.workers=3"]].concat());
    assert_replayed(&mut runs, &[&zipf[..], &servers, &["run.workers=4"], &group].concat());
    // Versions decide which rows a bounded cache and replicas spare a worker, and which steps of
    // elastic servers it takes part in.
    let servers = &servers[..1];
    let sparse = ["sync.sparse_rows=true", "sync.servers=3", "run.workers=4"];
    let cache = ["sync.row_cache=30", "sync.row_cache_every=3", "train.steps=8"];
    let replicas = ["sync.replicated_rows=40", "sync.row_sharding=range"];
    // All workers together make as many updates, so that the bound never empties the cache.
    let bounded = ["sync.consistency=bounded", "sync.staleness=32"];
    let slow = ["sync.quorum=2", "emulate.slow=[{rank=3,factor=9}]"];
    let policies: &[&[&str]] = &[
        &[&cache[..], &bounded].concat(),
        &[&cache[..], &["sync.consistency=async", "checkpoint.every=2"]].concat(),
        &[&replicas[..], &["sync.consistency=sync", "sync.group_workers=2"]].concat(),
        &[&replicas[..], &["sync.consistency=async", "sync.replicated_rows_age=99"]].concat(),
        &[&cache[..], &replicas, &bounded].concat(),
        &[&slow[..], &["sync.consistency=elastic"]].concat(),
        &[&slow[..], &cache, &replicas, &["sync.consistency=elastic"]].concat(),
    ];
    for policy in policies {
        let sets = [&zipf[..], servers, &sparse, policy].concat();
        let found = assert_replayed(&mut runs, &sets).row_requests_by_worker;
        assert_eq!(found.iter().any(|it| it.looked_up > 0), policy.contains(&replicas[0]));
        if policy.contains(&cache[0]) {
            assert!(found.iter().any(|it| it.pulled < it.pushed), "{policy:?}: {found:?}");
        }
    }
}

#[test]
fn rows_of_steps_without_slow_ranks_replay_to_the_bytes_of_every_rank() {
    let mut runs = Runs::new("forecasts");
    let zipf = ["data.source=zipf", "model.vocab=2000", "model.context=16", "train.batch=8"];
    let zipf = [&zipf[..], &["train.microbatch=1", "numerics.invariant_up_to=8"], &SHORT].concat();
    // A busy machine may slow the others down, but not a hundredfold.
    let slow = ["emulate.microbatch_ms=8", "emulate.slow=[{rank = 3, factor = 100}]"];
    let policies: &[&[&str]] = &[
        &["sync.stragglers=backup"],
        &["sync.stragglers=timeout", "sync.timeout_ms=300"],
        &["sync.stragglers=drop-slowest", "sync.straggler_factor=8"],
        &["sync.stragglers=exclude", "sync.straggler_factor=8", "sync.straggler_window=1"],
    ];
    for policy in policies {
        let layout = ["run.workers=4", "parallel.bucket_bytes=65536"];
        let sets = [&zipf[..], &slow, &layout, policy].concat();
        let decisions = assert_replayed(&mut runs, &sets);
        let is_left_out = |rows: &Vec<usize>| rows.contains(&0);
        assert!(decisions.rows_by_step.iter().any(is_left_out), "{policy:?}: {decisions:?}");
    }
}

#[test]
fn bytes_of_federated_rounds_are_exact() {
    let mut runs = Runs::new("forecasts");
    let sets = ["sync.mode=federated", "federated.clients=9", "federated.sampled=4"];
    let optim = ["optim.name=sgd", "optim.schedule=constant", "train.eval_batches=1"];
    let variants: &[&[&str]] = &[
        &["run.workers=1", "sync.local_steps=2"],
        &["run.workers=2", "sync.local_steps=3"],
        &["run.workers=4", "sync.local_steps=2", "federated.dropout=0.4"],
        &["run.workers=3", "sync.local_steps=1", "federated.method=scaffold"],
        &["run.workers=3", "sync.local_steps=2", "federated.secure_aggregation=true"],
        &["run.workers=4", "sync.local_steps=2", "federated.late_fraction=0.4"],
    ];
    for variant in variants {
        let recipe = LLAMA.with(&[&sets[..], &optim, &["train.steps=7"], *variant].concat());
        assert_exact(&mut runs, &recipe);
    }
}

#[test]
fn bytes_of_straggler_policies_are_exact_unless_rows_are_sparse() {
    let mut runs = Runs::new("forecasts");
    let sets = [&["run.workers=4", "parallel.bucket_bytes=65536"], &SHORT[..]].concat();
    let slow = ["emulate.microbatch_ms=1", "emulate.slow=[{rank = 3, factor = 20}]"];
    let policies: &[&[&str]] = &[
        &["sync.stragglers=backup"],
        &["sync.stragglers=timeout", "sync.timeout_ms=20"],
        &["sync.stragglers=drop-slowest", "sync.straggler_factor=2"],
        &["sync.stragglers=exclude", "sync.straggler_factor=2", "sync.straggler_window=1"],
    ];
    for policy in policies {
        assert_exact(&mut runs, &LLAMA.with(&[&sets[..], &slow, policy].concat()));
    }
    let zipf = ["data.source=zipf", "model.vocab=2000", "model.context=16", "train.batch=8"];
    let zipf = [&zipf[..], &["train.microbatch=1", "numerics.invariant_up_to=8"]].concat();
    assert_contained(&mut runs, &LLAMA.with(&[&sets[..], &slow, &zipf, policies[0]].concat()));
}

#[test]
fn bytes_of_averaged_state_groups_and_robust_gossip_are_exact() {
    let mut runs = Runs::new("forecasts");
    let rounds = ["sync.mode=local-sgd", "sync.local_steps=2"];
    let groups = ["sync.group_workers=2", "sync.inner_rounds=2"];
    let variants: &[&[&str]] = &[
        &[&rounds[..], &["sync.average=state", "optim.name=adamw"]].concat(),
        &[&rounds[..], &groups, &["sync.average=state", "optim.name=adamw"]].concat(),
        &["compress.method=top-k", "compress.ratio=0.1", "compress.group_workers=2"],
        &["compress.method=power-sgd", "compress.group_workers=2", "compress.warmup_steps=2"],
        &["sync.mode=gossip", "sync.aggregation=median", "sync.graph=complete"],
    ];
    for variant in variants {
        let sets = [&["run.workers=4", "parallel.bucket_bytes=65536"], &SHORT[..], *variant];
        assert_exact(&mut runs, &LLAMA.with(&sets.concat()));
    }
}

#[test]
fn bytes_of_hogwild_are_none_and_those_of_chosen_rounds_within_a_range() {
    let mut runs = Runs::new("forecasts");
    let hogwild = ["sync.mode=hogwild", "sync.threads=2", "run.workers=1"];
    let optim = ["optim.name=sgd", "optim.weight_decay=0"];
    let recipe = LLAMA.with(&[&hogwild[..], &optim, &SHORT].concat());
    assert_eq!(forecast(&recipe), [ByteRange::exactly(Bytes(0))]);
    assert_exact(&mut runs, &recipe);
    let auto = ["sync.mode=local-sgd", "sync.local_steps=auto", "run.workers=2"];
    assert_contained(&mut runs, &LLAMA.with(&[&auto[..], &SHORT].concat()));
}
