//! Link measurements over emulated links.

use lockstep_config::units::{BytesPerSecond, Seconds};
use lockstep_config::{Emulate, EmulatedLink, LinkConditions};
use lockstep_platform::real;
use lockstep_schedule::{Algorithm, Op};

use crate::transport::tcp::{TcpOptions, TcpTransport};
use crate::{Comm, Options, Reduction};

fn with_ranks(num_ranks: usize, emulate: &Emulate, body: impl Fn(Comm) + Sync) {
    let world = real();
    let options = TcpOptions { emulate: emulate.clone(), ..TcpOptions::default() };
    let channels = TcpTransport::loopback(&world, num_ranks, 2, &options).unwrap();
    std::thread::scope(|scope| {
        for channels in channels {
            let comm = Comm::world(&world, TcpTransport::into_channels(channels)).unwrap();
            scope.spawn(|| body(comm));
        }
    });
}

fn far(millis: f64) -> Emulate {
    let default_link = LinkConditions { latency: Seconds(millis / 1e3), ..LinkConditions::NONE };
    Emulate { default_link, ..Emulate::none() }
}

#[test]
fn all_ranks_and_later_groups_share_the_measurements() {
    let found = std::sync::Mutex::new(Vec::new());
    with_ranks(3, &far(3.0), |comm| {
        let measured = comm.probe().unwrap().expect("there are links");
        assert_eq!(comm.lock().engine.private_bytes(), 0, "trial runs leave no memory behind");
        let mut data = vec![1.0_f32; 1000];
        comm.all_reduce(&mut data, Reduction::Sum).unwrap();
        let pairs = [vec![0, 1], vec![2]].map(|ranks| {
            lockstep_mesh::Group::new(ranks.into_iter().map(lockstep_mesh::Rank).collect())
        });
        let pair = comm.split(&pairs, "pair").unwrap();
        if pair.group_size() == 2 {
            let forecast = pair.forecast::<f32>(Op::AllReduce, 10).unwrap();
            assert!(forecast[0].seconds.0 >= 3e-3, "{forecast:?}");
        }
        found.lock().unwrap().push(measured);
    });
    let found = found.into_inner().unwrap();
    assert!(found.iter().all(|measured| *measured == found[0]));
    let link = found[0].links.between(0, 2).unwrap();
    assert!(link.latency >= Seconds(3e-3), "{link:?}");
}

#[test]
fn high_latency_selects_few_rounds_and_a_forced_algorithm_stays() {
    with_ranks(4, &far(4.0), |comm| {
        comm.probe().unwrap();
        let chosen = comm.choice::<f32>(Op::AllReduce, 1 << 10).unwrap();
        assert!(matches!(chosen, Algorithm::Butterfly), "{chosen}");
        let forced = comm.using(Algorithm::RING);
        assert_eq!(forced.choice::<f32>(Op::AllReduce, 1 << 10).unwrap(), Algorithm::RING);
        let forecast = comm.forecast::<f32>(Op::AllReduce, 1 << 10).unwrap();
        assert_eq!(forecast[0].algorithm, chosen);
        assert!(forecast.iter().all(|other| other.seconds >= forecast[0].seconds));
    });
}

#[test]
fn a_ring_avoids_a_slow_link() {
    let slow = EmulatedLink {
        bandwidth: Some(BytesPerSecond(20e6)),
        latency: Some(Seconds(0.01)),
        ..EmulatedLink::between(1, 2)
    };
    let emulate = Emulate { links: vec![slow], ..Emulate::none() };
    with_ranks(4, &emulate, |comm| {
        comm.probe().unwrap();
        let ring = comm.lock().schedules.ring().to_vec();
        let next = ring.iter().cycle().skip(1);
        let is_it = |pair: (&usize, &usize)| pair == (&1, &2) || pair == (&2, &1);
        assert!(!ring.iter().zip(next).any(is_it), "{ring:?}");
        // The reordered ring computes the right sums.
        let mut data: Vec<f32> = (0..1000).map(|i| (i % 7 + comm.group_rank()) as f32).collect();
        comm.using(Algorithm::RING).all_reduce(&mut data, Reduction::Sum).unwrap();
        let expected = |i: usize| (4 * (i % 7) + 6) as f32;
        assert!(data.iter().enumerate().all(|(i, x)| x.to_bits() == expected(i).to_bits()));
    });
}

#[test]
fn shared_memory_has_no_links() {
    let ends = Comm::threads(&real(), 2, &Options::default()).unwrap();
    for comm in ends {
        assert_eq!(comm.probe().unwrap(), None);
    }
}

#[test]
fn calls_continue_through_votes_and_new_measurements() {
    with_ranks(3, &Emulate::none(), |comm| {
        comm.probe().unwrap();
        for call in 0..200_u32 {
            if call == 70 {
                // Pretends that calls were instant, so that all ranks find the next ones slow.
                comm.lock().schedules.expect_instant_calls();
            }
            let mut data = [call, 1];
            comm.all_reduce(&mut data, Reduction::Sum).unwrap();
            assert_eq!(data, [3 * call, 3]);
        }
    });
}

#[test]
fn slower_links_are_remeasured() {
    // Many times what a busy machine measures at first.
    let bad = Seconds(20e-3);
    let between = |one, other| EmulatedLink {
        latency: Some(bad),
        after: Seconds(1.5),
        ..EmulatedLink::between(one, other)
    };
    let links = vec![between(0, 1), between(0, 2), between(1, 2)];
    let emulate = Emulate { links, ..far(0.1) };
    with_ranks(3, &emulate, |comm| {
        comm.probe().unwrap();
        let latency = || {
            let links = comm.lock().schedules.costs().links.clone();
            links.between(0, 1).expect("it was measured").latency
        };
        let clock = comm.core.endpoint.world().clock();
        let start = clock.now();
        while latency() < bad {
            let mut data = [1_u32, 2];
            comm.all_reduce(&mut data, Reduction::Sum).unwrap();
            assert_eq!(data, [3, 6]);
            assert!(clock.since(start).as_secs() < 40, "no new measurement was made");
        }
    });
}

#[test]
fn autotuning_gives_all_ranks_the_same_corrections() {
    let found = std::sync::Mutex::new(Vec::new());
    with_ranks(4, &Emulate::none(), |comm| {
        let measured = comm.probe().unwrap().expect("there are links");
        let costs = comm.lock().schedules.costs().clone();
        assert_eq!(costs.tuning, measured.tuning, "selection uses it");
        let pairs = comm
            .split(&[lockstep_mesh::Group::new((0..4).map(lockstep_mesh::Rank).collect())], "all");
        let later = pairs.unwrap().lock().schedules.costs().clone();
        assert_eq!(later.tuning, measured.tuning, "groups created later use it too");
        found.lock().unwrap().push(measured.tuning);
    });
    let found = found.into_inner().unwrap();
    assert!(found.iter().all(|tuning| *tuning == found[0]));
    let trials = found[0].trials();
    assert!(trials.iter().all(|trial| trial.factor.is_finite() && trial.factor > 0.0));
    let sizes: std::collections::BTreeSet<_> = trials.iter().map(|trial| trial.bytes).collect();
    assert!(!sizes.is_empty(), "some predictions are always close");
}
