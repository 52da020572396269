//! Parts of a step's time: each constant of a calibration alone.

use lockstep_config::{Dtype, Recipe, Sources, resolve};
use lockstep_model::describe;
use lockstep_planner::calibration::machine::{
    CompressorTime, Format, Machine, Point, SumPoint, VERSION,
};
use lockstep_planner::time::engine::{StepTime, mean};
use lockstep_planner::traffic::Interconnect;

fn recipe(sets: &[&str]) -> Recipe {
    let sets = sets.iter().map(|set| (*set).to_owned()).collect();
    // A preset outlives a change of the defaults.
    let preset = Some("bible-small".to_owned());
    resolve(&Sources { sets, preset, ..Sources::default() }).expect("a sound recipe")
}

/// Two cores on which FLOPs and calls take next to no time.
fn machine() -> Machine {
    Machine {
        version: VERSION,
        host: String::new(),
        cores: 2,
        kernels: String::new(),
        accelerator: None,
        formats: vec![format()],
        sums: sums(0.0),
        serial_sums: sums(0.0),
        compressors: Vec::new(),
        update_seconds_per_param: 0.0,
        step_overhead_seconds: 0.0,
        latency_factor: 0.0,
        transfer_factor: 0.0,
    }
}

fn format() -> Format {
    Format {
        compute: "f32".to_owned(),
        peak_flops_per_second: 1.0,
        points: vec![Point { width: 64, flops_per_second: 1e40 }],
        block_seconds: 0.0,
        block_seconds_alone: 0.0,
        score_seconds: 0.0,
        microbatch_seconds_per_param: 0.0,
    }
}

/// The machine with matmuls that take time.
fn with(format: Format) -> Machine {
    Machine { formats: vec![format], ..machine() }
}

/// A machine without caches.
fn sums(seconds_per_element: f64) -> Vec<SumPoint> {
    vec![SumPoint { len: 1, seconds_per_element }]
}

fn time(recipe: &Recipe, machine: &Machine) -> StepTime {
    let machine = machine.with(Dtype::F32).expect("it was measured");
    mean(recipe, &Interconnect::of_recipe(recipe), &machine)
}

fn close(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-9, "{found}, not {expected}");
}

#[test]
fn short_microbatches_pay_per_block_and_workers_share_them() {
    // An embedding, four layers and a head; eight micro-batches of two sequences.
    let base = ["model.layers=4", "train.batch=16", "train.microbatch=2"];
    let of = |more: &[&str]| recipe(&[&base[..], more].concat());
    let machine = with(Format { block_seconds: 2.0, block_seconds_alone: 1.0, ..format() });
    let compute = |more: &[&str]| time(&of(more), &machine).compute.0;
    close(compute(&["run.workers=1"]), 8.0 * 6.0 * 2.0);
    close(compute(&["run.workers=1", "run.threads=1"]), 8.0 * 6.0);
    close(compute(&["run.workers=2"]), 4.0 * 6.0);
    // Four workers on two cores take turns.
    close(compute(&["run.workers=4"]), 2.0 * 6.0 * 2.0);
}

#[test]
fn parameters_cost_time_per_microbatch_leaf_and_update() {
    let alone = recipe(&["run.workers=1", "train.batch=32", "train.microbatch=2"]);
    let params = describe(&alone.model).num_params() as f64;
    // Sixteen micro-batches in eight leaves.
    let by_microbatch = with(Format { microbatch_seconds_per_param: 1.0, ..format() });
    close(time(&alone, &by_microbatch).compute.0, 16.0 * params);
    let by_leaf = Machine { sums: sums(1.0), ..machine() };
    close(time(&alone, &by_leaf).compute.0, 8.0 * params);
    let by_update = Machine { update_seconds_per_param: 1.0, ..machine() };
    close(time(&alone, &by_update).update.0, params);
    // Both workers of ZeRO-0 update everything, on half of the machine each.
    let update = |zero: &str| {
        let recipe = recipe(&["run.workers=2", "train.batch=32", zero]);
        time(&recipe, &by_update).update.0
    };
    close(update("parallel.zero=0"), 2.0 * params);
    // The first of two shards has a few parameters more.
    let sharded = update("parallel.zero=1") / params;
    assert!((1.0..1.001).contains(&sharded), "{sharded}");
}

#[test]
fn heads_cost_time_per_score() {
    let machine = with(Format { score_seconds: 1.0, ..format() });
    let compute = |heads: usize| {
        let heads = [format!("model.heads={heads}"), format!("model.kv_heads={heads}")];
        let sets = ["run.workers=1", "model.context=4", "model.layers=3", "train.microbatch=2"];
        let sets = [&sets[..], &heads.each_ref().map(String::as_str)].concat();
        time(&recipe(&sets), &machine).compute.0
    };
    // Eight micro-batches of two sequences of 1 + 2 + 3 + 4 scores.
    close(compute(2), f64::from(8 * 2 * 3 * 2 * 10));
    close(compute(4), 2.0 * compute(2));
}

#[test]
fn a_round_pays_for_one_exchange() {
    let links = Machine { latency_factor: 1.0, transfer_factor: 1.0, ..machine() };
    let exposed = |more: &[&str]| {
        let sets = ["run.workers=4", "train.steps=64", "parallel.overlap=false"];
        time(&recipe(&[&sets[..], more].concat()), &links).exposed.0
    };
    let rounds = |steps: &str| exposed(&["sync.mode=local-sgd", steps]);
    let (every, two, eight) =
        (exposed(&[]), rounds("sync.local_steps=2"), rounds("sync.local_steps=8"));
    close(two, 4.0 * eight);
    assert!(two < 0.7 * every && every < 4.0 * two, "{every} {two}");
    // Half of the run all-reduces in every step, half in rounds.
    let half_rounds =
        exposed(&["sync.mode=local-sgd", "sync.local_steps=8", "sync.synchronous_fraction=0.5"]);
    close(half_rounds, f64::midpoint(every, eight));
}

#[test]
fn recomputation_takes_time() {
    let machine =
        with(Format { points: vec![Point { width: 64, flops_per_second: 1e9 }], ..format() });
    let compute = |policy: &str| {
        let policy = format!("parallel.recompute={policy}");
        time(&recipe(&["run.workers=1", &policy]), &machine).compute.0
    };
    let (none, selective, full) = (compute("none"), compute("selective"), compute("full"));
    assert!(none < selective && selective < full, "{none}, {selective}, {full}");
    // One more forward pass: a third, except for the head.
    assert!(full / none > 1.25 && full / none < 1.0 + 1.0 / 3.0, "{}", full / none);
}

#[test]
fn calls_hide_behind_computation_where_cores_are_free() {
    let of = |cores: usize, overlap: &str| {
        let links = Machine { latency_factor: 1.0, transfer_factor: 1.0, cores, ..machine() };
        let points = vec![Point { width: 64, flops_per_second: 1e12 }];
        let machine = Machine { formats: vec![Format { points, ..format() }], ..links };
        let recipe = recipe(&["run.workers=2", "run.threads=1", overlap]);
        time(&recipe, &machine)
    };
    let (on, off) = ("parallel.overlap=true", "parallel.overlap=false");
    for blocking in [of(2, on), of(2, off), of(3, off)] {
        close(blocking.exposed.0, blocking.communication.0);
    }
    let hidden = of(3, on);
    close(hidden.communication.0, of(3, off).communication.0);
    assert!(hidden.exposed.0 < 0.9 * hidden.communication.0, "{hidden:?}");
    // The reduction of the first blocks and the agreement have nothing to hide behind.
    assert!(hidden.exposed.0 > 0.0, "{hidden:?}");
}

#[test]
fn a_pipeline_waits_for_its_stages() {
    let machine = with(Format { block_seconds_alone: 1.0, ..format() });
    let of = |batch: &str| {
        let sets = ["model.layers=6", "parallel.stage_layers=3,3", "train.microbatch=1", batch];
        let cores = Machine { cores: 2, ..machine.clone() };
        let workers = ["run.workers=2", "run.threads=1", "parallel.pipeline=2"];
        time(&recipe(&[&sets[..], &workers].concat()), &cores)
    };
    // Each stage has three layers and the embedding or the head: four seconds a micro-batch.
    for (batch, num) in [("train.batch=8", 8.0), ("train.batch=16", 16.0)] {
        let step = of(batch);
        close(step.compute.0, 4.0 * (num + 1.0));
        close(step.bubble, 1.0 / (num + 1.0));
    }
}

#[test]
fn compression_takes_the_time_that_was_measured() {
    let compressor = CompressorTime {
        method: "top-k".to_owned(),
        seconds_per_element: 2.0,
        decode_seconds_per_element: 0.5,
    };
    let machine = Machine { compressors: vec![compressor], cores: 4, ..machine() };
    for workers in [2, 4] {
        let recipe = recipe(&[&format!("run.workers={workers}"), "compress.method=top-k"]);
        let params = describe(&recipe.model).num_params() as f64;
        // Each worker adds the messages of all of them, on its own cores.
        let step = time(&recipe, &machine);
        close(step.update.0, params * (2.0 + 0.5 * f64::from(workers - 1)));
        assert!(step.exposed.0 < 1e-9 * step.update.0, "calls take no time");
    }
}

#[test]
fn compressed_buckets_are_exchanged_during_backward() {
    let links = Machine { transfer_factor: 1.0, cores: 16, ..machine() };
    let busy = Format { block_seconds: 1.0, block_seconds_alone: 1.0, ..format() };
    let links = Machine { formats: vec![busy], ..links };
    let of = |overlap: &str| {
        let sets = ["run.workers=2", "run.threads=1", "compress.method=top-k", overlap];
        time(&recipe(&[&sets[..], &["parallel.bucket_bytes=1"]].concat()), &links)
    };
    let [hidden, exposed] = ["parallel.overlap=true", "parallel.overlap=false"].map(of);
    close(hidden.communication.0, exposed.communication.0);
    close(exposed.exposed.0, exposed.communication.0);
    // Only the first layer is not followed by another backward pass.
    assert!(hidden.exposed.0 < 0.5 * exposed.exposed.0, "{hidden:?}, {exposed:?}");
}

#[test]
fn servers_update_their_shards_side_by_side() {
    let machine = Machine { update_seconds_per_param: 1.0, cores: 4, ..machine() };
    let update = |servers: &str| {
        let sets = ["sync.mode=parameter-server", "run.workers=4", "sync.consistency=sync"];
        let recipe = recipe(&[&sets[..], &[servers]].concat());
        time(&recipe, &machine).update.0 / describe(&recipe.model).num_params() as f64
    };
    // A rank has one of four cores.
    close(update("sync.servers=1"), 4.0);
    let half = update("sync.servers=2") / 4.0;
    assert!((0.5..0.55).contains(&half), "{half}");
}

#[test]
fn a_server_receives_the_pushes_of_all_workers_one_after_the_other() {
    let links = Machine { latency_factor: 0.0, transfer_factor: 1.0, cores: 16, ..machine() };
    let exposed = |workers: usize| {
        let sets = ["sync.mode=parameter-server", "sync.consistency=async", "train.batch=32"];
        let workers = format!("run.workers={workers}");
        let recipe = recipe(&[&sets[..], &[workers.as_str()]].concat());
        time(&recipe, &links).exposed.0
    };
    let (one, eight) = (exposed(1), exposed(8));
    // Pulls of some workers overlap with pushes of others.
    assert!(eight > 4.0 * one && eight < 10.0 * one, "{one} {eight}");
}

#[test]
fn threads_of_hogwild_compute_side_by_side_and_pass_over_shared_weights() {
    let sets = ["sync.mode=hogwild", "run.workers=1", "optim.name=sgd", "optim.weight_decay=0"];
    let step = |threads: usize, machine: &Machine| {
        let threads = format!("sync.threads={threads}");
        let recipe =
            recipe(&[&sets[..], &["train.batch=16", "train.microbatch=2", &threads]].concat());
        let params = describe(&recipe.model).num_params() as f64;
        (time(&recipe, machine).seconds().0, params, recipe.model.layers as f64)
    };
    let blocks = with(Format { block_seconds: 9.0, block_seconds_alone: 1.0, ..format() });
    // Eight micro-batches through the layers, the embedding and the head.
    let (two, _, layers) = step(2, &blocks);
    close(two, 4.0 * (layers + 2.0));
    // Four threads share two cores.
    close(step(4, &blocks).0, 4.0 * (layers + 2.0));
    let passes = Machine { serial_sums: sums(4.0), ..machine() };
    let (seconds, params, _) = step(2, &passes);
    // Reads shared weights, writes its own; reads gradients, reads and writes shared weights.
    assert!(seconds >= 5.0 * params && seconds <= 7.0 * params, "{}", seconds / params);
}

#[test]
fn an_automatic_round_is_as_long_as_the_run_will_choose() {
    let sets =
        ["sync.mode=local-sgd", "run.workers=4", "train.steps=500", "parallel.overlap=false"];
    let links = Machine { latency_factor: 1.0, transfer_factor: 1.0, ..machine() };
    let machine = Machine { step_overhead_seconds: 1e-4, ..links };
    let exposed = |steps: &str| {
        let recipe = recipe(&[&sets[..], &[steps]].concat());
        let step = time(&recipe, &machine);
        (step.exposed.0, step.seconds().0)
    };
    let (auto, seconds) = exposed("sync.local_steps=auto");
    let (every, _) = exposed("sync.local_steps=1");
    // The exchange takes about a tenth of the time, or less; rounds of one step exchange more.
    assert!(auto < every && auto <= 0.11 * seconds, "{auto} of {seconds}, {every}");
}

/// Consecutive numbers of micro-batches that are played whole give the time of each further one.
#[test]
fn time_grows_by_equal_micro_batches_up_to_millions() {
    let machine =
        with(Format { points: vec![Point { width: 64, flops_per_second: 1e9 }], ..format() });
    for sets in [&["run.workers=1"][..], &["run.workers=2", "parallel.pipeline=2"]] {
        let of = |microbatches_per_leaf: usize| {
            let batch = format!("train.batch={}", 8 * microbatches_per_leaf);
            let fixed = ["train.microbatch=1", "numerics.invariant_up_to=8", &batch];
            time(&recipe(&[sets, &fixed].concat()), &machine)
        };
        let (before, last, many) = (of(30), of(31), of(1 << 20));
        let each = last.seconds() - before.seconds();
        let expected = last.seconds() + each * f64::from((1 << 20) - 31);
        assert!((many.seconds() / expected - 1.0).abs() < 1e-6, "{sets:?}: {many:?}, {expected:?}");
        assert!(many.bubble <= last.bubble, "{sets:?}: {many:?}, {last:?}");
    }
}
