//! Published formulas of tensor and pipeline parallelism: activations, communication volumes, and
//! the constants of NCCL's tuner. Where this engine differs, a comment says how.

use crate::common::check;
use crate::nccl::{Cluster, Protocol};
use lockstep_config::units::{Bytes, BytesPerSecond};
use lockstep_config::{Recipe, Recompute, Sources, resolve};
use lockstep_mesh::Axis;
use lockstep_model::{Pass, TensorShards, describe_shards};
use lockstep_parallel::from_recipe::blueprint_of_rank;
use lockstep_planner::collective::ring;
use lockstep_planner::memory::activations::{Layer, best_segments, segmented_bytes};
use lockstep_planner::traffic::{self, CommOp, Interconnect, StepInputs};

/// GPT-3, one sequence.
const LAYER: Layer =
    Layer { tokens: 2048, sequences: 1, width: 12_288, heads: 96, tensor_degree: 8 };

#[test]
fn activations_of_a_layer() {
    let stream = f64::from(2048 * 12_288);
    let each = |recompute, sequence| LAYER.bytes(recompute, sequence) / stream;
    let whole = Layer { tensor_degree: 1, ..LAYER };
    check!("sbh(34 + 5as/h)", whole.bytes(Recompute::None, false) / stream, "114");
    check!("TP", each(Recompute::None, false), "23");
    check!("TP+SP", each(Recompute::None, true), "14.25");
    check!("TP + selective", each(Recompute::Selective, false), "13");
    check!("TP+SP + selective", each(Recompute::Selective, true), "4.25",);
    check!("full recompute", each(Recompute::Full, false), "2");
    check!("34 = 11 + 19 + 4", 11.0 + 19.0 + 4.0, "34");
    check!("head", LAYER.head_bytes(51_200) / stream, "2.58");
    // A general hidden width f: 18 + 4f/h, which is 34 at 4h.
    check!("18 + 4f/h", 18.0 + 4.0 * 4.0, "34");
}

#[test]
fn recomputation_segments() {
    // Misprint: 300 MB of 3.2 GB; √32 segments of which one is there at a time leave √32/32 of it.
    let layers = 32;
    let segments = best_segments(layers, 100.0, 100.0);
    check!("segments", segments, "5.66");
    check!(3200.0 / segments, "566");
    check!("with the inputs", segmented_bytes(layers, segments, 100.0, 100.0), "1131");
    let best = best_segments(layers, 2.0, 34.0);
    let taken = |segments| segmented_bytes(layers, segments, 2.0, 34.0);
    assert!(taken(best) < taken(best / 1.5) && taken(best) < taken(best * 1.5), "p 2c");
    check!("c* = sqrt(l A_mid/A_in)", best_segments(32, 2.0, 34.0), "23.3");
}

fn recipe(sets: &[&str]) -> Recipe {
    let sets = sets.iter().map(|set| (*set).to_owned()).collect();
    // A preset outlives a change of the defaults.
    let preset = Some("bible-small".to_owned());
    resolve(&Sources { sets, preset, ..Sources::default() }).expect("a sound recipe")
}

#[test]
fn tensor_parallel_volumes_match_the_published_formulas() {
    let recipe = recipe(&[
        "model.width=64",
        "model.heads=4",
        "model.kv_heads=4",
        "model.layers=1",
        "model.context=32",
    ]);
    let shape = lockstep_parallel::from_recipe::microbatch_shape(&recipe);
    for t in [2, 4] {
        for sequence in [false, true] {
            let slices = TensorShards::for_tp_rank(t, t, 0, sequence);
            let blueprint = describe_shards(&recipe.model, &slices, recipe.precision.compute);
            let layer = &blueprint.blocks[1];
            let volume = |pass| -> f64 {
                let calls = layer.collective_calls(shape, pass).into_iter();
                // A sum is a ring's two halves; the halves alone are half of it. Sums of norms'
                // gradients are none of the formula's.
                let bsh = shape.rows() * 64;
                let calls = calls.filter(|call| call.len == bsh);
                let half = ring::half(t).bytes(Bytes(bsh as u64));
                calls.map(|_| if sequence { half } else { 2.0 * half }).sum()
            };
            let both = volume(Pass::Forward) + volume(Pass::Backward(&[]));
            let bsh = (shape.rows() * 64) as f64;
            let published = 8.0 * bsh * (t as f64 - 1.0) / t as f64;
            // With sequence parallelism backward gathers once more, for each half, the activations
            // that forward gathered and did not save: a quarter more than the formula.
            let ours = if sequence { both / 1.25 } else { both };
            assert!((ours - published).abs() < 1e-6, "TP volume: {ours}, {published}");
            // Published: recomputation adds half. Here the second matmul of a layer is not
            // recomputed, since nothing behind it needs it.
            let recomputed = volume(Pass::Recompute(lockstep_model::Recompute::Full));
            let quarter = if sequence { 3.0 / 8.0 } else { 0.25 };
            assert!((recomputed - quarter * published).abs() < 1e-6, "{recomputed} of {published}");
        }
    }
}

#[test]
fn stages_exchange_one_activation_per_microbatch() {
    let recipe =
        recipe(&["run.workers=2", "parallel.pipeline=2", "train.microbatch=2", "model.tied=false"]);
    let interconnect = Interconnect::of_recipe(&recipe);
    let blueprint = blueprint_of_rank(&recipe, 0);
    let (_, moved) =
        traffic::of_recipe(&recipe, &blueprint, 0, &interconnect, StepInputs::default());
    let cause = CommOp { axis: Axis::Pipeline, op: None };
    let microbatches = (recipe.train.batch / recipe.train.microbatch_size) as u64;
    // Published: 2bsh bytes per micro-batch and direction, in 16 bits; here in 32.
    let bsh = (2 * recipe.model.context * recipe.model.width) as u64;
    for rank in &moved {
        assert_eq!(rank[&cause].sent, Bytes(4 * bsh * microbatches), "p2p pipeline");
        assert_eq!(rank[&cause].received, rank[&cause].sent);
    }
}

#[test]
fn data_parallel_volumes() {
    let bytes = |zero: &str| {
        let zero = format!("parallel.zero={zero}");
        let recipe = recipe(&[
            "run.workers=4",
            "run.transport=tcp",
            "train.batch=8",
            "train.microbatch=2",
            "numerics.invariant_up_to=4",
            "model.tied=false",
            &zero,
        ]);
        let blueprint = blueprint_of_rank(&recipe, 0);
        let calls = traffic::of_recipe(
            &recipe,
            &blueprint,
            0,
            &Interconnect::of_recipe(&recipe),
            StepInputs::default(),
        )
        .1;
        let all: u64 = calls.iter().map(|rank| traffic::total(rank).sent.0).sum();
        all as f64 / (3.0 * 4.0 * blueprint.num_params() as f64)
    };
    // Of N parameters, (n-1)/n of it n times: sums and parameters once each.
    check!("DP volume, ZeRO-1", bytes("1"), "2.0");
    // One leaf per worker: as many bytes as a reduce-scatter.
    check!("DP volume, ZeRO-2", bytes("2"), "2.0");
}

#[test]
fn constants_of_nccls_tuner() {
    let us = |seconds: lockstep_config::units::Seconds| seconds.0 * 1e6;
    let one = Cluster { num_nodes: 1, num_devices: 8 };
    let four = Cluster { num_nodes: 4, num_devices: 8 };
    // base + 14 hops inside.
    for (protocol, ring, tree) in [
        (Protocol::Ll, "15.0", "15.2"),
        (Protocol::Ll128, "40.6", "31.5"),
        (Protocol::Simple, "56.0", "64.4"),
    ] {
        check!("NCCL ring, 8 devices", us(one.ring_latency(protocol)), ring);
        check!("NCCL tree, 8 devices", us(one.tree_latency(protocol)), tree);
    }
    // 62 steps, six of them between nodes; a tree of two levels.
    check!("NCCL ring, 4 x 8", us(four.ring_latency(Protocol::Simple)), "282.8");
    check!("NCCL tree, 4 x 8", us(four.tree_latency(Protocol::Simple)), "120.4");
    let channels = BytesPerSecond(240e9);
    let long = Bytes(1 << 30);
    let time = |seconds: lockstep_config::units::Seconds| seconds.0 * 1e3;
    check!("NCCL ring", time(one.ring_all_reduce(Protocol::Simple, long, channels)), "7.885");
    check!("NCCL tree", time(one.tree_all_reduce(Protocol::Simple, long, channels)), "9.012");
    assert!(
        four.tree_all_reduce(Protocol::Ll, Bytes(1024), channels)
            < four.ring_all_reduce(Protocol::Ll, Bytes(1024), channels),
        "short vectors favour a tree"
    );
}
