//! Bubble and live micro-batches of every small pipeline, against their closed forms.

use lockstep_config::units::Seconds;
use lockstep_planner::pipeline::{bubble, live_microbatches};
use lockstep_planner::timeline::{PassTimes, StageTimes, Timeline, simulate};
use lockstep_schedule::pipeline::{Kind, Shape, build, verify};

/// Simulated with forward 1 and backward 2, and free transfers.
fn simulated(
    kind: Kind,
    num_devices: usize,
    num_microbatches: usize,
    num_chunks: usize,
) -> Timeline {
    let shape = Shape { num_devices, num_chunks, num_microbatches };
    let pipeline = build(kind, shape).expect("it is for this");
    assert_eq!(verify(&pipeline), Ok(()), "{pipeline}");
    let one = Seconds(1.0);
    let device = StageTimes { forward: one, input_grad: one, weight_grad: one };
    simulate(&pipeline, &PassTimes::even(shape, device, Seconds(0.0))).expect("it ends")
}

#[test]
fn every_small_pipeline_matches_the_closed_form() {
    for p in 1..=8 {
        for m in 1..=16 {
            for kind in [Kind::GPipe, Kind::OneFOneB] {
                let idle = simulated(kind, p, m, 1).bubble();
                assert!((idle - bubble(p, m, 1)).abs() < 1e-12, "{kind}, {p}, {m}: {idle}");
            }
            for v in 1..=4 {
                let idle = simulated(Kind::Interleaved, p, m, v).bubble();
                let closed = bubble(p, m, v);
                // Where the last group is not full some of its slots stay empty.
                let is_whole = m.is_multiple_of(p);
                let padded = m.next_multiple_of(p) as f64;
                let most = 1.0 - (1.0 - bubble(p, m.next_multiple_of(p), v)) * m as f64 / padded;
                assert!(idle >= closed - 1e-12 && idle <= most + 1e-12, "{p}, {m}, {v}: {idle}");
                assert!(!is_whole || (idle - closed).abs() < 1e-12, "{p}, {m}, {v}: {idle}");
            }
        }
    }
}

#[test]
fn live_microbatches_match_the_closed_form() {
    for p in [1, 2, 4, 8] {
        for m in [p, 2 * p, 4 * p] {
            for kind in Kind::ALL {
                for v in if kind == Kind::Interleaved { 1..=3 } else { 1..=1 } {
                    let shape = Shape { num_devices: p, num_chunks: v, num_microbatches: m };
                    if build(kind, shape).is_err() {
                        continue;
                    }
                    let timeline = simulated(kind, p, m, v);
                    let live = |device| timeline.peak_live_microbatches(device);
                    for device in 0..p {
                        let closed = live_microbatches(kind, shape, device);
                        // The outer devices of Chimera keep fewer than those in the middle.
                        let most = if kind == Kind::Chimera {
                            (0..p).map(live).fold(0.0, f64::max)
                        } else {
                            live(device)
                        };
                        assert!((most - closed).abs() < 1e-9, "{kind}, {p}, {m}, {v}: {most}");
                    }
                }
            }
        }
    }
}

#[test]
fn chimera_has_a_smaller_bubble_and_pipedream_none() {
    for p in [4, 6, 8] {
        for m in [p, 2 * p] {
            let (both, one) =
                (simulated(Kind::Chimera, p, m, 1), simulated(Kind::OneFOneB, p, m, 1));
            assert!(both.bubble() < one.bubble(), "{p}, {m}: {} {}", both.bubble(), one.bubble());
        }
        // A device never waits between its first backward and its last forward pass.
        let endless = simulated(Kind::PipeDream, p, 16, 1);
        for (device, spans) in endless.devices.iter().enumerate() {
            let full = &spans[p - device..2 * 16 - (p - device)];
            let gaps = full.windows(2).filter(|pair| pair[1].start.0 - pair[0].end.0 > 1e-12);
            assert_eq!(gaps.count(), 0, "device {device} of {p}");
            assert_eq!(endless.pipeline.weight_versions(device), p - device);
        }
    }
}
