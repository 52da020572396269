//! Every small pipeline idles as the closed forms say, and keeps what they say.

use lockstep_config::units::Seconds;
use lockstep_planner::pipeline::bubble;
use lockstep_planner::timeline::{Pace, StagePace, Timeline, play};
use lockstep_schedule::pipeline::{Kind, Shape, build, verify};

/// Played with forward 1 and backward 2, transfers for nothing.
fn played(kind: Kind, num_devices: usize, num_microbatches: usize, num_chunks: usize) -> Timeline {
    let shape = Shape { num_devices, num_chunks, num_microbatches };
    let pipeline = build(kind, shape).expect("it is for this");
    assert_eq!(verify(&pipeline), Ok(()), "{pipeline}");
    let one = Seconds(1.0);
    let device = StagePace { forward: one, input_grad: one, weight_grad: one };
    play(&pipeline, &Pace::even(shape, device, Seconds(0.0))).expect("it ends")
}

#[test]
fn every_small_pipeline_idles_as_the_closed_form_says() {
    for p in 1..=8 {
        for m in 1..=16 {
            for kind in [Kind::GPipe, Kind::OneFOneB] {
                let idle = played(kind, p, m, 1).bubble();
                assert!((idle - bubble(p, m, 1)).abs() < 1e-12, "{kind}, {p}, {m}: {idle}");
            }
            for v in 1..=4 {
                let idle = played(Kind::Interleaved, p, m, v).bubble();
                let closed = bubble(p, m, v);
                // Where the last group is not full some of its places stay empty.
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
fn two_directions_idle_less_and_a_pipeline_that_never_drains_not_at_all() {
    for p in [4, 6, 8] {
        for m in [p, 2 * p] {
            let (both, one) = (played(Kind::Chimera, p, m, 1), played(Kind::OneFOneB, p, m, 1));
            assert!(both.bubble() < one.bubble(), "{p}, {m}: {} {}", both.bubble(), one.bubble());
        }
        // From the first backward pass on, until its last forward pass, a device never waits.
        let endless = played(Kind::PipeDream, p, 16, 1);
        for (device, spans) in endless.devices.iter().enumerate() {
            let full = &spans[p - device..2 * 16 - (p - device)];
            let gaps = full.windows(2).filter(|pair| pair[1].start.0 - pair[0].end.0 > 1e-12);
            assert_eq!(gaps.count(), 0, "device {device} of {p}");
            assert_eq!(endless.pipeline.weight_versions(device), p - device);
        }
    }
}
