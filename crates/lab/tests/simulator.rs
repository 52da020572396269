//! The simulator against the planner: without jitter, times are equal bit for bit.

use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};
use lockstep_lab::sim::{
    CompiledSchedule, Fabric, SharedLinks, simulate_collective, simulate_pipeline,
    simulate_with_failures,
};
use lockstep_planner::timeline::{PassTimes, StageTimes, simulate as planned};
use lockstep_schedule::collective::{GroupSpec, algorithms, build};
use lockstep_schedule::pipeline::{self, Kind, Pass, Shape};
use lockstep_schedule::{Algorithm, Costs, Layout, Link, Links, Op, price};

const LINK: Link = Link { latency: Seconds(3e-6), bandwidth: BytesPerSecond(7e9) };

#[test]
fn simulated_collectives_match_the_planner_bit_for_bit() {
    let uniform = Costs::plain(LINK, BytesPerSecond(f64::INFINITY));
    for num_ranks in [2, 3, 4, 7, 8, 16] {
        let links = Links::new(num_ranks, |from, to| Link {
            latency: Seconds(1e-6 * (1 + from) as f64),
            bandwidth: BytesPerSecond(1e9 * (1 + to) as f64),
        });
        let per_pair = Costs { links: links.clone(), ..uniform.clone() };
        for op in Op::all(num_ranks) {
            for &algorithm in algorithms(op) {
                let Ok(schedule) = build(op, algorithm, &GroupSpec::new(num_ranks)) else {
                    continue;
                };
                if schedule.needs_memory() {
                    continue;
                }
                for count in [0, 5, 1_000_003] {
                    let layout = Layout::even(&schedule, count);
                    let compiled = CompiledSchedule::new(&schedule, &layout, Bytes(4));
                    let starts = vec![0.0; num_ranks];
                    for (fabric, costs) in
                        [(Fabric::Uniform(LINK), &uniform), (Fabric::PerPair(&links), &per_pair)]
                    {
                        let found = simulate_collective(&compiled, fabric, &starts).end;
                        let price = price(&schedule, &layout, Bytes(4), costs, None).0;
                        assert_eq!(
                            found.to_bits(),
                            price.to_bits(),
                            "{op} by {algorithm}, {num_ranks} ranks, {count}: {found}, {price}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn simulated_pipelines_match_the_planner_bit_for_bit() {
    let stage =
        StageTimes { forward: Seconds(1.1), input_grad: Seconds(1.3), weight_grad: Seconds(0.7) };
    for kind in Kind::ALL {
        let num_chunks = if kind == Kind::Interleaved { 2 } else { 1 };
        let shape = Shape { num_devices: 4, num_chunks, num_microbatches: 8 };
        let pipeline = pipeline::build(kind, shape).expect("a valid shape");
        let times = PassTimes::even(shape, stage, Seconds(0.0));
        let timeline = planned(&pipeline, &times).expect("no deadlock");
        let run = simulate_pipeline(&pipeline, 0.0, |stage, task| {
            let StageTimes { forward, input_grad, weight_grad } = times.stages[stage];
            match task.pass {
                Pass::Forward => forward,
                Pass::Backward => input_grad + weight_grad,
                Pass::InputGrad => input_grad,
                Pass::WeightGrad => weight_grad,
            }
            .0
        })
        .expect("no deadlock");
        assert_eq!(run.end.to_bits(), timeline.seconds().0.to_bits(), "{kind}");
        assert_eq!(run.bubble().to_bits(), timeline.bubble().to_bits(), "{kind}");
    }
}

#[test]
fn missing_rank_blocks_a_collective_and_a_delayed_rank_delays_it() {
    let ring = build(Op::AllReduce, Algorithm::RING, &GroupSpec::new(4)).expect("a ring");
    let compiled = CompiledSchedule::new(&ring, &Layout::even(&ring, 1000), Bytes(4));
    let all = simulate_collective(&compiled, Fabric::Uniform(LINK), &[0.0; 4]).end;
    let delayed = simulate_collective(&compiled, Fabric::Uniform(LINK), &[0.0, 0.0, 1.0, 0.0]).end;
    assert!(delayed > 1.0 && delayed <= 1.0 + all, "{delayed}");
    let lost =
        simulate_collective(&compiled, Fabric::Uniform(LINK), &[0.0, 0.0, f64::INFINITY, 0.0]);
    assert!(lost.ends.iter().all(|end| end.is_infinite()), "{:?}", lost.ends);
}

#[test]
fn flows_share_the_bandwidth_of_a_nic() {
    let fast = Link { latency: Seconds(0.0), bandwidth: BytesPerSecond(1e12) };
    let slow = Link { latency: Seconds(0.0), bandwidth: BytesPerSecond(1e9) };
    // All-to-all over two nodes of two ranks: two flows per NIC, or one.
    let schedule =
        build(Op::AllToAll, Algorithm::Pairwise, &GroupSpec::new(4)).expect("all to all");
    let compiled = CompiledSchedule::new(&schedule, &Layout::even(&schedule, 16_000_000), Bytes(1));
    let seconds = |nics| {
        let shared = SharedLinks::nodes(2, 2, nics, fast, slow);
        simulate_collective(&compiled, Fabric::Shared(&shared), &[0.0; 4]).end
    };
    // Three rounds of chunks of a million bytes; in the second, both ranks of a node send to the
    // other node, through one NIC each or through a shared NIC.
    assert!((seconds(1) - 4e-3).abs() < 2e-5, "{}", seconds(1));
    assert!((seconds(2) - 3e-3).abs() < 2e-5, "{}", seconds(2));
}

#[test]
fn failed_rank_blocks_dependent_ranks_only_after_its_failure() {
    let ring = build(Op::AllReduce, Algorithm::RING, &GroupSpec::new(4)).expect("a ring");
    let compiled = CompiledSchedule::new(&ring, &Layout::even(&ring, 1000), Bytes(4));
    let shared = SharedLinks::nodes(2, 2, 1, LINK, LINK);
    for fabric in [Fabric::Uniform(LINK), Fabric::Shared(&shared)] {
        let whole = simulate_collective(&compiled, fabric, &[0.0; 4]);
        let never = [f64::INFINITY; 4];
        assert_eq!(simulate_with_failures(&compiled, fabric, &[0.0; 4], &never), whole);
        let after = [f64::INFINITY, whole.end, f64::INFINITY, f64::INFINITY];
        assert_eq!(simulate_with_failures(&compiled, fabric, &[0.0; 4], &after).ends, whole.ends);
        let midway = [f64::INFINITY, whole.end / 2.0, f64::INFINITY, f64::INFINITY];
        let lost = simulate_with_failures(&compiled, fabric, &[0.0; 4], &midway);
        assert!(lost.ends.iter().all(|end| end.is_infinite()), "{:?}", lost.ends);
        assert!(lost.num_events < whole.num_events, "{lost:?}");
    }
}
