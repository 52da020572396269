//! The simulator against the planner: without jitter, the same times to the last bit.

use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};
use lockstep_lab::sim::{Compiled, Fabric, Shared, play, play_pipeline, play_until};
use lockstep_planner::timeline::{PassTimes, StageTimes, simulate as planned};
use lockstep_schedule::collective::{GroupSpec, algorithms, build};
use lockstep_schedule::pipeline::{self, Kind, Pass, Shape};
use lockstep_schedule::{Algorithm, Costs, Layout, Link, Links, Op, price};

const LINK: Link = Link { latency: Seconds(3e-6), bandwidth: BytesPerSecond(7e9) };

#[test]
fn collectives_take_as_long_as_the_planner_says_to_the_last_bit() {
    let even = Costs::plain(LINK, BytesPerSecond(f64::INFINITY));
    for num_ranks in [2, 3, 4, 7, 8, 16] {
        let links = Links::new(num_ranks, |from, to| Link {
            latency: Seconds(1e-6 * (1 + from) as f64),
            bandwidth: BytesPerSecond(1e9 * (1 + to) as f64),
        });
        let uneven = Costs { links: links.clone(), ..even.clone() };
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
                    let compiled = Compiled::new(&schedule, &layout, Bytes(4));
                    let starts = vec![0.0; num_ranks];
                    for (fabric, costs) in
                        [(Fabric::Even(LINK), &even), (Fabric::Pairs(&links), &uneven)]
                    {
                        let found = play(&compiled, fabric, &starts).end;
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
fn pipelines_idle_as_the_planner_says_to_the_last_bit() {
    let stage =
        StageTimes { forward: Seconds(1.1), input_grad: Seconds(1.3), weight_grad: Seconds(0.7) };
    for kind in Kind::ALL {
        let num_chunks = if kind == Kind::Interleaved { 2 } else { 1 };
        let shape = Shape { num_devices: 4, num_chunks, num_microbatches: 8 };
        let pipeline = pipeline::build(kind, shape).expect("it is for this");
        let pace = PassTimes::even(shape, stage, Seconds(0.0));
        let timeline = planned(&pipeline, &pace).expect("it ends");
        let played = play_pipeline(&pipeline, 0.0, |stage, task| {
            let StageTimes { forward, input_grad, weight_grad } = pace.stages[stage];
            match task.pass {
                Pass::Forward => forward,
                Pass::Backward => input_grad + weight_grad,
                Pass::InputGrad => input_grad,
                Pass::WeightGrad => weight_grad,
            }
            .0
        })
        .expect("it ends");
        assert_eq!(played.end.to_bits(), timeline.seconds().0.to_bits(), "{kind}");
        assert_eq!(played.bubble().to_bits(), timeline.bubble().to_bits(), "{kind}");
    }
}

#[test]
fn a_rank_that_never_comes_is_waited_for_and_a_late_one_delays_all() {
    let ring = build(Op::AllReduce, Algorithm::RING, &GroupSpec::new(4)).expect("a ring");
    let compiled = Compiled::new(&ring, &Layout::even(&ring, 1000), Bytes(4));
    let all = play(&compiled, Fabric::Even(LINK), &[0.0; 4]).end;
    let late = play(&compiled, Fabric::Even(LINK), &[0.0, 0.0, 1.0, 0.0]).end;
    assert!(late > 1.0 && late <= 1.0 + all, "{late}");
    let lost = play(&compiled, Fabric::Even(LINK), &[0.0, 0.0, f64::INFINITY, 0.0]);
    assert!(lost.ends.iter().all(|end| end.is_infinite()), "{:?}", lost.ends);
}

#[test]
fn flows_that_share_a_card_take_turns_and_alone_they_do_not() {
    let fast = Link { latency: Seconds(0.0), bandwidth: BytesPerSecond(1e12) };
    let slow = Link { latency: Seconds(0.0), bandwidth: BytesPerSecond(1e9) };
    // Two nodes of two; everybody swaps with everybody: two flows out of each card, or one.
    let schedule =
        build(Op::AllToAll, Algorithm::Pairwise, &GroupSpec::new(4)).expect("all to all");
    let compiled = Compiled::new(&schedule, &Layout::even(&schedule, 16_000_000), Bytes(1));
    let seconds = |cards| {
        let shared = Shared::nodes(2, 2, cards, fast, slow);
        play(&compiled, Fabric::Shared(&shared), &[0.0; 4]).end
    };
    // Three rounds of chunks of a million bytes; in the second, both ranks of a node send to the
    // other node, at once with a card each or in turn with one.
    assert!((seconds(1) - 4e-3).abs() < 2e-5, "{}", seconds(1));
    assert!((seconds(2) - 3e-3).abs() < 2e-5, "{}", seconds(2));
}

#[test]
fn a_rank_that_fails_on_the_way_stops_those_who_need_it_and_nobody_before() {
    let ring = build(Op::AllReduce, Algorithm::RING, &GroupSpec::new(4)).expect("a ring");
    let compiled = Compiled::new(&ring, &Layout::even(&ring, 1000), Bytes(4));
    let shared = Shared::nodes(2, 2, 1, LINK, LINK);
    for fabric in [Fabric::Even(LINK), Fabric::Shared(&shared)] {
        let whole = play(&compiled, fabric, &[0.0; 4]);
        let never = [f64::INFINITY; 4];
        assert_eq!(play_until(&compiled, fabric, &[0.0; 4], &never), whole);
        let after = [f64::INFINITY, whole.end, f64::INFINITY, f64::INFINITY];
        assert_eq!(play_until(&compiled, fabric, &[0.0; 4], &after).ends, whole.ends);
        let midway = [f64::INFINITY, whole.end / 2.0, f64::INFINITY, f64::INFINITY];
        let lost = play_until(&compiled, fabric, &[0.0; 4], &midway);
        assert!(lost.ends.iter().all(|end| end.is_infinite()), "{:?}", lost.ends);
        assert!(lost.num_events < whole.num_events, "{lost:?}");
    }
}
