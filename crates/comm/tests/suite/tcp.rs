//! Ranks over TCP and on several emulated hosts, all of them threads of one process.

use std::sync::Barrier;
use std::time::Duration;

use crate::common::{OPTIONS, run_checks, run_ranks, run_tcp, run_threads};
use lockstep_cluster::rendezvous::{
    ConnectedRank, RankEnv, Settings, Ticket, join, join_as_first, listen,
};
use lockstep_comm::transport::hosts;
use lockstep_comm::transport::tcp::TcpOptions;
use lockstep_comm::{Cause, Comm, Reduction};
use lockstep_conformance::cases::some;
use lockstep_mesh::Rank;
use lockstep_platform::{World, real};

/// Emulates hosts: only ranks of one domain share memory.
fn run_hosts(domains: &[usize], body: impl Fn(Comm) + Sync) {
    run_hosts_with(domains, false, body);
}

fn run_hosts_with(domains: &[usize], encrypt: bool, body: impl Fn(Comm) + Sync) {
    let world = real();
    let num_ranks = domains.len();
    let listener = listen(&world, "127.0.0.1:0").expect("a free port");
    let master = listener.local_addr();
    let settings = Settings { timeout: OPTIONS.timeout, encrypt, ..Settings::default() };
    let ticket = Ticket::new(&world);
    let mut listeners = vec![Some(listener)];
    listeners.resize_with(num_ranks, || None);
    let open = |world: &World, (rank, listener): (usize, Option<_>)| {
        let rank_env = RankEnv::new(Rank(rank), num_ranks, &master, &ticket);
        let joined = match listener {
            Some(listener) => join_as_first(world, listener, &rank_env, &settings),
            None => join(world, &rank_env, &settings),
        };
        let joined = ConnectedRank { domains: domains.to_vec(), ..joined.expect("all ranks come") };
        let options = TcpOptions::default();
        let memory = settings.memory(OPTIONS.arena_bytes);
        hosts::connect(world, joined, memory, &options).expect("channels")
    };
    run_ranks(listeners.into_iter().enumerate().collect(), open, body);
}

#[test]
fn groups_over_tcp_pass_every_check() {
    for (num_ranks, num_streams) in some([(1, 1), (2, 2), (3, 1), (4, 2), (5, 3)], 3) {
        run_tcp(num_ranks, num_streams, |comm| run_checks(&comm));
    }
}

#[test]
fn groups_over_several_hosts_pass_every_check() {
    for domains in some([&[0, 1][..], &[0, 0, 2], &[0, 1, 0, 1], &[0, 0, 2, 2, 2]], 2) {
        run_hosts(domains, |comm| {
            assert_eq!(comm.transport(), "shm+tcp");
            run_checks(&comm);
        });
    }
}

#[test]
fn groups_over_several_hosts_pass_every_check_with_encryption() {
    for domains in some([&[0, 1][..], &[0, 1, 2], &[0, 0, 2, 2]], 2) {
        run_hosts_with(domains, true, |comm| run_checks(&comm));
    }
}

#[test]
fn ranks_of_one_host_use_shared_memory_only() {
    run_hosts(&[0, 0, 0], |comm| {
        assert_eq!(comm.transport(), "shm");
        run_checks(&comm);
    });
}

#[test]
fn a_rank_that_leaves_is_named_on_every_host() {
    run_hosts(&[0, 0, 2, 2], |comm| {
        if comm.rank() == Rank(3) {
            return;
        }
        let mut data = vec![1.0_f32; 300_000];
        let error = loop {
            if let Err(error) = comm.all_reduce(&mut data, Reduction::Max) {
                break error;
            }
        };
        let text = error.to_string();
        assert!(text.contains("rank 3"), "rank {} says: {text}", comm.rank());
        let verdict = error.verdict().expect("the ranks agree on a verdict");
        assert!(!matches!(verdict.cause, Cause::Timeout { .. }), "{text}");
    });
}

#[test]
fn a_missing_rank_is_named_after_the_deadline() {
    let over = Barrier::new(3);
    run_hosts(&[0, 0, 2], |comm| {
        if comm.rank() == Rank(2) {
            // Stays alive without calling until the others have failed.
            over.wait();
            return;
        }
        let comm = comm.within(Duration::from_millis(100));
        let error = comm.all_reduce(&mut [1.0_f32; 1000], Reduction::Sum).unwrap_err();
        over.wait();
        let verdict = error.verdict().expect("the ranks agree on a verdict");
        assert_eq!(verdict.culprit, Rank(2), "{error}");
        assert!(matches!(verdict.cause, Cause::Timeout { deadline_ms: 100 }), "{error}");
    });
}

/// Rank 0 requests a signal from each rank, the last first, and receives it before the next
/// request: a pending signal does not hide one that has arrived.
fn check_signals_arrive_in_any_order(comm: &Comm) {
    const GO: u64 = 3;
    const THERE: u64 = 4;
    if comm.group_rank() > 0 {
        for _ in 0..2 {
            comm.wait_for(0, GO).expect("no rank fails");
            comm.signal(0, THERE).expect("no rank fails");
        }
        return;
    }
    for _ in 0..2 {
        let (sender, received) = std::sync::mpsc::channel();
        let all = comm
            .start_wait_for_each(THERE, move |from| sender.send(from).expect("no rank fails"))
            .expect("no rank fails");
        for peer in (1..comm.group_size()).rev() {
            comm.signal(peer, GO).expect("no rank fails");
            assert_eq!(received.recv_timeout(OPTIONS.timeout).expect("it signals"), peer);
        }
        all.finish().expect("no rank fails");
    }
}

#[test]
fn signals_arrive_in_any_order_on_all_transports() {
    run_threads(4, |comm| check_signals_arrive_in_any_order(&comm));
    run_tcp(4, 2, |comm| check_signals_arrive_in_any_order(&comm));
    run_hosts(&[0, 0, 1, 1], |comm| check_signals_arrive_in_any_order(&comm));
}
