//! Emulated latency, bandwidth, jitter and loss: timing changes, bytes do not.

use std::time::Duration;

use crate::common::{run_checks, run_ranks};
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

fn all_links(default_link: LinkConditions) -> Emulate {
    Emulate { default_link, seed: 3, ..Emulate::none() }
}

#[test]
fn groups_over_emulated_links_pass_every_check() {
    let default_link = LinkConditions {
        bandwidth: BytesPerSecond(1e9),
        latency: Seconds(20e-6),
        jitter: Seconds(50e-6),
        loss: 0.0,
    };
    run_emulated(3, &all_links(default_link), |comm| run_checks(&comm));
}

#[test]
fn messages_in_transit_overlap_and_none_arrives_early() {
    const LATENCY: Duration = Duration::from_millis(200);
    const NUM_MESSAGES: u64 = 20;
    let default_link =
        LinkConditions { latency: Seconds(LATENCY.as_secs_f64()), ..LinkConditions::NONE };
    run_emulated(2, &all_links(default_link), |comm| {
        let world = real();
        comm.barrier().unwrap();
        let start = world.clock().now();
        let mut data = [0_u64; 4];
        let mut arrivals = Vec::new();
        for tag in 0..NUM_MESSAGES {
            if comm.group_rank() == 0 {
                comm.send(&[tag; 4], 1, tag).unwrap();
            } else {
                comm.recv(&mut data, 0, tag).unwrap();
                assert_eq!(data, [tag; 4]);
                arrivals.push(world.clock().since(start));
            }
        }
        if comm.group_rank() == 1 {
            // One after the other, most would arrive a latency apart. A busy machine may hold up
            // the whole, but not every message.
            let is_close = |pair: &&[Duration]| pair[1] < pair[0] + LATENCY / 2;
            let num_close = arrivals.windows(2).filter(is_close).count();
            assert!(num_close > arrivals.len() / 2, "sequential transit: {arrivals:?}");
            comm.send(&[0_u8], 0, 100).unwrap();
        } else {
            comm.recv(&mut [1_u8], 1, 100).unwrap();
            assert!(world.clock().since(start) >= 2 * LATENCY, "a round trip");
        }
    });
}

#[test]
fn one_slow_link_delays_only_its_ranks() {
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
fn lost_packets_are_retransmitted() {
    let default_link =
        LinkConditions { loss: 0.05, latency: Seconds(100e-6), ..LinkConditions::NONE };
    run_emulated(2, &all_links(default_link), |comm| {
        let mut data: Vec<u32> = (0..200_000).collect();
        comm.broadcast(&mut data, 0).unwrap();
        assert!(data.iter().zip(0..).all(|(found, expected)| *found == expected));
    });
}
