//! Links that are made worse than they are: late, slow, unsteady, lossy; the bytes stay the same.

mod common;

use std::time::Duration;

use common::{run_checks, run_ranks};
use lockstep_comm::transport::tcp::{TcpOptions, TcpTransport};
use lockstep_comm::{Comm, Reduction};
use lockstep_config::units::{BytesPerSecond, Seconds};
use lockstep_config::{Emulate, EmulatedLink, LinkConditions};
use lockstep_platform::real;

fn run_emulated(num_ranks: usize, emulate: &Emulate, body: impl Fn(Comm) + Sync) {
    let options = TcpOptions { emulate: emulate.clone(), ..TcpOptions::default() };
    let channels = TcpTransport::loopback(&real(), num_ranks, 2, &options);
    run_ranks(
        channels.expect("loopback works"),
        |_, channels| TcpTransport::into_channels(channels),
        body,
    );
}

fn all_links(usual: LinkConditions) -> Emulate {
    Emulate { usual, seed: 3, ..Emulate::none() }
}

#[test]
fn groups_over_bad_links_pass_every_check() {
    let usual = LinkConditions {
        bandwidth: BytesPerSecond(1e9),
        latency: Seconds(20e-6),
        jitter: Seconds(50e-6),
        loss: 0.0,
    };
    run_emulated(3, &all_links(usual), |comm| run_checks(&comm));
}

#[test]
fn messages_are_under_way_together_and_none_arrives_early() {
    const LATENCY: Duration = Duration::from_millis(200);
    const NUM_MESSAGES: u64 = 20;
    let usual = LinkConditions { latency: Seconds(LATENCY.as_secs_f64()), ..LinkConditions::NONE };
    run_emulated(2, &all_links(usual), |comm| {
        let world = real();
        comm.barrier().unwrap();
        let start = world.clock().now();
        let mut data = [0_u64; 4];
        for tag in 0..NUM_MESSAGES {
            if comm.group_rank() == 0 {
                comm.send(&[tag; 4], 1, tag).unwrap();
            } else {
                comm.recv(&mut data, 0, tag).unwrap();
                assert_eq!(data, [tag; 4]);
            }
        }
        let took = world.clock().since(start);
        if comm.group_rank() == 1 {
            // The sender may have left the barrier up to a latency before.
            assert!(took < LATENCY * NUM_MESSAGES as u32 / 2, "one after the other: {took:?}");
            comm.send(&[0_u8], 0, 100).unwrap();
        } else {
            comm.recv(&mut [1_u8], 1, 100).unwrap();
            assert!(world.clock().since(start) >= 2 * LATENCY, "there and back again");
        }
    });
}

#[test]
fn one_bad_link_among_good_ones_is_the_only_one_that_waits() {
    let link = EmulatedLink {
        bandwidth: Some(BytesPerSecond(10e6)),
        latency: Some(Seconds(0.05)),
        jitter: Some(Seconds(0.001)),
        ..EmulatedLink::between(1, 2)
    };
    let emulate = Emulate { links: vec![link], ..Emulate::none() };
    run_emulated(3, &emulate, |comm| {
        let world = real();
        let start = world.clock().now();
        let mut data = vec![comm.group_rank() as f32; 50_000];
        comm.all_reduce(&mut data, Reduction::Sum).unwrap();
        assert!(data.iter().all(|x| x.to_bits() == 3_f32.to_bits()));
        if comm.group_rank() != 0 {
            assert!(world.clock().since(start) >= Duration::from_millis(50));
        }
    });
}

#[test]
fn what_is_lost_on_the_way_is_sent_again() {
    let usual = LinkConditions { loss: 0.05, latency: Seconds(100e-6), ..LinkConditions::NONE };
    run_emulated(2, &all_links(usual), |comm| {
        let mut data: Vec<u32> = (0..200_000).collect();
        comm.broadcast(&mut data, 0).unwrap();
        assert!(data.iter().zip(0..).all(|(found, expected)| *found == expected));
    });
}
