//! Memory in closed form against published tables, and rejected runs.

use crate::common::check;
use lockstep_config::units::Bytes;
use lockstep_config::{Model, Recipe, Sources, resolve};
use lockstep_model::describe;
use lockstep_parallel::from_recipe;
use lockstep_planner::memory::process::{PEER_BYTES, PROBE_BYTES, TRAINING_CODE_BYTES};
use lockstep_planner::memory::zero::PerParameter;
use lockstep_planner::memory::{Memory, MemoryBudget, Process, activations_by_block, check};

const GB: u64 = 1_000_000_000;

fn gigabytes(params: f64, stage: u8, workers: u64) -> f64 {
    let num_params = (params * 1e9) as u64;
    PerParameter::MIXED_ADAM.bytes(num_params, stage, workers).0 as f64 / GB as f64
}

/// Gigabytes per worker by ZeRO stage and number of workers (1, 4, 16, 64, 256, 1024): ZeRO
/// (Rajbhandari et al. 2020, arXiv:1910.02054), Table 1.
const TABLE: [(f64, [[&str; 6]; 3]); 3] = [
    (
        7.5,
        [
            ["120", "52.5", "35.6", "31.4", "30.4", "30.1"],
            ["120", "41.3", "21.6", "16.6", "15.4", "15.1"],
            ["120", "30", "7.5", "1.88", "0.47", "0.12"],
        ],
    ),
    (
        128.0,
        [
            ["2048", "896", "608", "536", "518", "513"],
            ["2048", "704", "368", "284", "263", "257"],
            ["2048", "512", "128", "32", "8", "2"],
        ],
    ),
    (
        1000.0,
        [
            ["16000", "7000", "4750", "4187", "4046", "4011"],
            ["16000", "5500", "2875", "2218", "2054", "2013"],
            ["16000", "4000", "1000", "250", "62.5", "15.6"],
        ],
    ),
];

#[test]
fn zero_stages_match_the_published_table() {
    for (params, stages) in TABLE {
        for (stage, cells) in (1..).zip(stages) {
            for (workers, expected) in [1, 4, 16, 64, 256, 1024].into_iter().zip(cells) {
                let name = format!("zero-memory-table1 {params}B, stage {stage}, {workers}");
                let found = gigabytes(params, stage, workers);
                let printed: f64 = expected.parse().expect("a number");
                // The table rounds inconsistently.
                let digits = expected.split_once('.').map_or(0, |(_, digits)| digits.len());
                let unit = [1.0, 0.1, 0.01][digits];
                assert!((found - printed).abs() < unit, "{name}: {found}, not {expected}");
            }
        }
    }
}

#[test]
fn model_states_of_worked_examples() {
    check!(192.0 / 8.0, "24");
    let adam = |stage, workers| PerParameter::ADAM.bytes(12 * GB, stage, workers).0 / GB;
    assert_eq!(adam(3, 8), 24, "192 GB over 8 workers fit into 28");
    assert_eq!(adam(3, 6), 32, "over 6 they do not");
    let fits = PerParameter::ADAM.workers_to_fit(12 * GB, 3, Bytes(28 * GB));
    assert_eq!(fits, Some(7));
    let gpt3 = PerParameter { weight: 4, gradient: 0, optimizer: 8 };
    assert_eq!(gpt3.bytes(175 * GB, 0, 1).0, 2100 * GB);
    // Misprint: 0.7 GB a worker with data parallelism alone, which copies everything.
    let weights = PerParameter { weight: 4, gradient: 0, optimizer: 0 };
    assert_eq!(weights.bytes(175 * GB, 0, 1024).0, 700 * GB);
    check!("stage 3", weights.bytes(175 * GB, 3, 1024).0 as f64 / 1e9, "0.68");
    check!(weights.bytes(175 * GB, 3, 8).0 as f64 / 1e9, "87.5");
    check!(weights.bytes(175 * GB, 3, 64).0 as f64 / 1e9, "10.94");
    check!("all states", PerParameter::ADAM.bytes(175 * GB, 3, 64).0 as f64 / 1e9, "43.75");
    // Misprint: stage 2's formula for stage 1.
    check!("stage 1", gigabytes(7.5, 1, 64), "31.4");
    check!("16 bytes a parameter", gigabytes(175.0, 0, 1), "2800");
    check!(2800.0 / 8.0, "350");
}

fn recipe(sets: &[&str]) -> Recipe {
    let sets = sets.iter().map(|set| (*set).to_owned()).collect();
    // A preset outlives a change of the defaults.
    let preset = Some("bible-small".to_owned());
    resolve(&Sources { sets, preset, ..Sources::default() }).expect("a sound recipe")
}

#[test]
fn memory_of_ranks_equals_the_engines_count() {
    for workers in [1, 2, 3] {
        for zero in 0..4 {
            let workers_set = format!("run.workers={workers}");
            let zero_set = format!("parallel.zero={zero}");
            let recipe = recipe(&[&workers_set, &zero_set, "parallel.bucket_bytes=1MiB"]);
            let blueprint = describe(&recipe.model);
            let memory = Memory::of(&recipe, &blueprint);
            for (worker, rank) in memory.ranks.iter().enumerate() {
                let held = from_recipe::footprint(&recipe, &blueprint, worker);
                assert_eq!(rank.own(), Bytes(held.total() as u64 * 4), "{workers}, {zero}");
            }
        }
    }
}

#[test]
fn the_peak_is_where_the_batch_is_largest() {
    let grows = recipe(&[
        "run.workers=2",
        "parallel.zero=2",
        "parallel.bucket_bytes=1MiB",
        "train.batch_schedule=[{tokens = 100000, batch = 32}]",
    ]);
    let memory = Memory::of(&grows, &describe(&grows.model));
    // More micro-batches per leaf, so whole leaves must be kept until they are full.
    assert!(memory.peak_step > 0, "{memory:?}");
    let same = Memory::of(&recipe(&[]), &describe(&recipe(&[]).model));
    assert_eq!(same.peak_step, 0);
}

#[test]
fn recomputed_layers_save_less() {
    let saved = |policy: &str| {
        let recipe = recipe(&[&format!("parallel.recompute={policy}")]);
        let blocks = activations_by_block(&recipe, &describe(&recipe.model));
        blocks.into_iter().map(|(_, bytes)| bytes.0).collect::<Vec<_>>()
    };
    let (none, selective, full) = (saved("none"), saved("selective"), saved("full"));
    let layer = 1;
    assert!(none[layer] > selective[layer] && selective[layer] > full[layer]);
    assert_eq!(none[0], full[0], "the embedding has nothing to recompute");
}

#[test]
fn a_run_that_does_not_fit_is_rejected_with_one_that_does() {
    let sets = ["run.workers=4", "model.width=1024", "model.heads=8", "model.layers=12"];
    let recipe = recipe(&sets);
    let needed = Memory::of(&recipe, &describe(&recipe.model)).total();
    let process = Process { start: Bytes(10 << 20), text: Bytes(0) };
    let room = |memory: u64| MemoryBudget { memory: Bytes(memory), process, is_accelerator: false };
    assert!(check(&recipe, room(0)).is_ok(), "unknown memory rejects nothing");
    assert!(check(&recipe, room(2 * needed.0)).is_ok());
    let rejection = check(&recipe, room(needed.0 * 3 / 4)).expect_err("it does not fit");
    let text = rejection.to_string();
    assert!(text.starts_with("run.workers = 4 takes "), "{text}");
    assert!(text.contains("; try parallel."), "{text}");
    assert_eq!(rejection.part, "optimizer", "{text}");
    // A suggested model fits with no layer to spare, is valid, and has a similar shape.
    for part in [3, 8, 16, 40] {
        let room = room(needed.0 / part);
        let Some(instead) = check(&recipe, room).expect_err("it does not fit").instead else {
            panic!("a smaller model fits into 1 / {part} of the memory")
        };
        let settings: Vec<String> =
            instead.replace(" and ", ", ").split(", ").map(|set| set.replace(" = ", "=")).collect();
        if !settings.iter().any(|set| set.starts_with("model.")) {
            continue;
        }
        let sets = [&sets[..], &settings.iter().map(String::as_str).collect::<Vec<_>>()].concat();
        let mut smaller = self::recipe(&sets);
        let ratio = |model: &Model| model.width as f64 / model.layers as f64;
        let shape = ratio(&smaller.model) / ratio(&recipe.model);
        assert!((0.5..=2.0).contains(&shape), "{instead}: {shape} times as wide for its layers");
        assert!(check(&smaller, room).is_ok(), "{instead}");
        smaller.model.layers += 1;
        let is_at_limit = ratio(&smaller.model) < ratio(&recipe.model) / 2.0;
        assert!(is_at_limit || check(&smaller, room).is_err(), "{instead}");
    }
    let hopeless = check(&recipe, room(1 << 20)).expect_err("nothing fits").to_string();
    assert!(hopeless.ends_with("try a machine with more memory"), "{hopeless}");
}

#[test]
fn a_small_run_over_links_needs_most_memory_while_it_measures_them() {
    let process = Process { start: Bytes(10 << 20), text: Bytes(1 << 20) };
    let of = |sets: &[&str]| {
        let recipe = recipe(sets);
        let memory = Memory::of(&recipe, &describe(&recipe.model));
        let found = memory.processes(&recipe, process)[0].total();
        (found, memory.ranks[0].allocated() + process.besides(1, 1))
    };
    let tiny = ["run.workers=2", "model.layers=1", "model.width=8", "model.heads=1"];
    let over = |transport: &str, model: &[&str]| of(&[&[transport], model].concat());
    let probing = process.probing(1, 1);
    assert_eq!(probing, process.start + TRAINING_CODE_BYTES + PEER_BYTES + PROBE_BYTES);
    let (found, steady) = over("run.transport=tcp", &tiny);
    assert!(found == probing && found > steady, "{found:?}, {steady:?}");
    // Workers that share memory have no links, and a larger model takes more than the probe.
    let (found, steady) = over("run.transport=shm", &tiny);
    assert_eq!(found, steady);
    let (found, steady) = over("run.transport=tcp", &["run.workers=2", "model.width=384"]);
    assert_eq!(found, steady);
}

#[test]
fn state_in_a_file_keeps_one_window_and_is_suggested_where_it_helps() {
    let sets = ["run.workers=2", "model.width=1024", "model.heads=8", "model.layers=12"];
    let with = |more: &[&str]| recipe(&[&sets[..], more].concat());
    let of = |recipe: &Recipe| Memory::of(recipe, &describe(&recipe.model));
    let most = ["parallel.zero=3", "parallel.recompute=full"];
    let here = with(&most);
    let away = with(&[&most[..], &["offload.state=file"]].concat());
    let (held, window) = (of(&here).ranks[0], of(&away).ranks[0]);
    // 2^20 elements of each of two moments.
    assert_eq!(window.optimizer, Bytes((2 * 4) << 20));
    assert!(held.optimizer > Bytes(100 << 20), "{held:?}");
    assert_eq!(held.own() - held.optimizer, window.own() - window.optimizer);
    let process = Process { start: Bytes(10 << 20), text: Bytes(0) };
    let enough = of(&away).total() + process.besides(1, 0) * 2;
    let room = MemoryBudget { memory: enough, process, is_accelerator: false };
    let error = check(&with(&[]), room).expect_err("it does not fit");
    let text = error.to_string();
    assert!(text.contains(" of memory and this machine has "), "{text}");
    let on_device = error.on("NVIDIA H200 (cuda:0)").to_string();
    assert!(on_device.contains(" of memory and NVIDIA H200 (cuda:0) has "), "{on_device}");
    let offered = "try parallel.recompute = full and parallel.zero = 3 and offload.state = file";
    assert!(text.contains(offered), "{text}");
    assert!(check(&away, room).is_ok());
    // A stateless optimizer has nothing to offload.
    let tight = MemoryBudget { memory: Bytes(enough.0 / 2), process, is_accelerator: false };
    let text = check(&with(&["optim.name=sgd"]), tight).expect_err("it does not fit").to_string();
    assert!(!text.contains("offload"), "{text}");
}
