//! Formulas of layers that are divided, of the references' planners (p): what they keep, what
//! holders of slices and stages of a pipeline hand each other, and another library's constants.
//! Where this engine does something else, the row says so.

mod common;

use common::row;
use lockstep_config::units::{Bytes, BytesPerSecond};
use lockstep_config::{Recipe, Sources, resolve};
use lockstep_mesh::Axis;
use lockstep_model::{Pass, Recompute, Slices, describe_slices};
use lockstep_parallel::asked::blueprint_on;
use lockstep_planner::collective::nccl::{Cluster, Protocol};
use lockstep_planner::collective::ring;
use lockstep_planner::forecast::wires;
use lockstep_planner::memory::activations::{Kept, Layer, best_segments, segmented_bytes};
use lockstep_planner::traffic::{self, Cause, Known};

/// Of GPT-3, one sequence.
const LAYER: Layer = Layer { tokens: 2048, sequences: 1, width: 12_288, heads: 96, holders: 8 };

#[test]
fn what_a_layer_keeps() {
    let stream = f64::from(2048 * 12_288);
    let each = |kept| LAYER.bytes(kept) / stream;
    let whole = Layer { holders: 1, ..LAYER };
    let all = Kept::All { rows_are_divided: false };
    row("p 2c, sbh(34 + 5as/h)", whole.bytes(all) / stream, "114");
    row("p 2c, TP", each(all), "23");
    row("p 2c, TP+SP", each(Kept::All { rows_are_divided: true }), "14.25");
    row("p 2c, TP + selective", each(Kept::Selective { rows_are_divided: false }), "13");
    row("p 2c, TP+SP + selective", each(Kept::Selective { rows_are_divided: true }), "4.25");
    row("p 2c, full recompute", each(Kept::Input), "2");
    row("p 2c, 34 = 11 + 19 + 4", 11.0 + 19.0 + 4.0, "34");
    row("p 2c, head", LAYER.head_bytes(51_200) / stream, "2.58");
    // A general hidden width f: 18 + 4f/h, which is 34 at 4h.
    row("p 2c, 18 + 4f/h", 18.0 + 4.0 * 4.0, "34");
}

#[test]
fn segments_that_are_computed_again() {
    // Printed: 300 MB of 3.2 GB; √32 segments of which one is there at a time leave √32/32 of it.
    let layers = 32;
    let segments = best_segments(layers, 100.0, 100.0);
    row("a O56, segments", segments, "5.66");
    row("a O56", 3200.0 / segments, "566");
    row("a O56, with the inputs", segmented_bytes(layers, segments, 100.0, 100.0), "1131");
    let best = best_segments(layers, 2.0, 34.0);
    let taken = |segments| segmented_bytes(layers, segments, 2.0, 34.0);
    assert!(taken(best) < taken(best / 1.5) && taken(best) < taken(best * 1.5), "p 2c");
    row("p 2c, c* = sqrt(l A_mid/A_in)", best_segments(32, 2.0, 34.0), "23.3");
}

fn recipe(sets: &[&str]) -> Recipe {
    let sets = sets.iter().map(|set| (*set).to_owned()).collect();
    resolve(&Sources { sets, ..Sources::default() }).expect("a sound recipe")
}

#[test]
fn holders_of_slices_move_what_is_published() {
    let recipe = recipe(&[
        "model.width=64",
        "model.heads=4",
        "model.kv_heads=4",
        "model.layers=1",
        "model.context=32",
    ]);
    let shape = lockstep_parallel::asked::microbatch_shape(&recipe);
    for t in [2, 4] {
        for sequence in [false, true] {
            let slices = Slices::part(t, t, 0, sequence);
            let blueprint = describe_slices(&recipe.model, &slices, recipe.precision.compute);
            let layer = &blueprint.blocks[1];
            let volume = |pass| -> f64 {
                let calls = layer.exchanges(shape, pass).into_iter();
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
            // With divided rows backward gathers what forward had gathered and not kept, once for
            // each half: a quarter more, where the formula says as much.
            let ours = if sequence { both / 1.25 } else { both };
            assert!((ours - published).abs() < 1e-6, "p 2d, TP volume: {ours}, {published}");
            // Published: half as much again. Here the second product of a layer is not made again,
            // since nothing behind it needs it.
            let again = volume(Pass::Recompute(Recompute::Full));
            let quarter = if sequence { 3.0 / 8.0 } else { 0.25 };
            assert!((again - quarter * published).abs() < 1e-6, "p 2d: {again} of {published}");
        }
    }
}

#[test]
fn stages_hand_each_other_a_stream_a_microbatch() {
    let recipe =
        recipe(&["run.workers=2", "parallel.pipeline=2", "train.microbatch=2", "model.tied=false"]);
    let wires = wires(&recipe);
    let blueprint = blueprint_on(&recipe, 0);
    let (_, moved) = traffic::of_recipe(&recipe, &blueprint, 0, &wires, Known::default());
    let cause = Cause { axis: Axis::Pipeline, op: None };
    let microbatches = (recipe.train.batch / recipe.train.microbatch_size) as u64;
    // Published: 2bsh bytes a microbatch and direction, of numbers of 16 bits; here they have 32.
    let bsh = (2 * recipe.model.context * recipe.model.width) as u64;
    for rank in &moved {
        assert_eq!(rank[&cause].sent, Bytes(4 * bsh * microbatches), "p 2d, p2p pipeline");
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
        let blueprint = blueprint_on(&recipe, 0);
        let calls = traffic::of_recipe(&recipe, &blueprint, 0, &wires(&recipe), Known::default()).1;
        let all: u64 = calls.iter().map(|rank| traffic::total(rank).sent.0).sum();
        all as f64 / (3.0 * 4.0 * blueprint.num_params() as f64)
    };
    // Of N parameters, (n-1)/n of it n times: sums and parameters once each.
    row("p 2d, DP volume, ZeRO-1", bytes("1"), "2.0");
    // One leaf a worker: as many bytes as a reduce-scatter.
    row("p 2d, DP volume, ZeRO-2", bytes("2"), "2.0");
}

#[test]
fn constants_of_another_library() {
    let us = |seconds: lockstep_config::units::Seconds| seconds.0 * 1e6;
    let one = Cluster { num_nodes: 1, num_devices: 8 };
    let four = Cluster { num_nodes: 4, num_devices: 8 };
    // base + 14 hops inside.
    for (protocol, ring, tree) in [
        (Protocol::Ll, "15.0", "15.2"),
        (Protocol::Ll128, "40.6", "31.5"),
        (Protocol::Simple, "56.0", "64.4"),
    ] {
        row("p 2d, NCCL ring, 8 devices", us(one.ring_latency(protocol)), ring);
        row("p 2d, NCCL tree, 8 devices", us(one.tree_latency(protocol)), tree);
    }
    // 62 steps, six of them between nodes; a tree of two levels.
    row("p 2d, NCCL ring, 4 x 8", us(four.ring_latency(Protocol::Simple)), "282.8");
    row("p 2d, NCCL tree, 4 x 8", us(four.tree_latency(Protocol::Simple)), "120.4");
    let channels = BytesPerSecond(240e9);
    let long = Bytes(1 << 30);
    let time = |seconds: lockstep_config::units::Seconds| seconds.0 * 1e3;
    row("p 2d, NCCL ring", time(one.ring_all_reduce(Protocol::Simple, long, channels)), "7.885");
    row("p 2d, NCCL tree", time(one.tree_all_reduce(Protocol::Simple, long, channels)), "9.012");
    assert!(
        four.tree_all_reduce(Protocol::Ll, Bytes(1024), channels)
            < four.ring_all_reduce(Protocol::Ll, Bytes(1024), channels),
        "p 2d: short vectors want a tree"
    );
}
