//! Runs that come together, with and without strangers.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

use lockstep_platform::{JoinHandle, Stream, real};

use super::wire::{Answer, FRONT_BYTES, Hello, Join, Pair};
use super::*;

const LIMIT: Duration = Duration::from_secs(20);

fn settings() -> Settings {
    Settings { timeout: LIMIT, ..Settings::default() }
}

fn within_ms(timeout_ms: u64) -> Settings {
    Settings { timeout: Duration::from_millis(timeout_ms), ..Settings::default() }
}

type Outcome = Result<Joined, RendezvousError>;

/// A rank on its way into a run.
struct Joining {
    thread: Box<dyn JoinHandle>,
    outcome: Arc<Mutex<Option<Outcome>>>,
}

impl Joining {
    fn start(run: impl FnOnce(&World) -> Outcome + Send + 'static) -> Self {
        let outcome = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&outcome);
        let body = Box::new(move || {
            let joined = run(&real());
            *slot.lock().unwrap() = Some(joined);
        });
        Self { thread: real().threads().spawn("rank", body).unwrap(), outcome }
    }

    fn finish(self) -> Outcome {
        self.thread.join().unwrap();
        self.outcome.lock().unwrap().take().unwrap()
    }
}

/// Rank 0 of a run, and where it is.
fn first(num_ranks: usize, settings: Settings) -> (Joining, String) {
    let listener = listen(&real(), "127.0.0.1:0").unwrap();
    let addr = listener.local_addr();
    let place = Place { rank: Rank(0), num_ranks, master: addr.clone() };
    let joining = Joining::start(move |world| join_as_first(world, listener, &place, &settings));
    (joining, addr)
}

fn other(rank: usize, num_ranks: usize, master: &str, settings: Settings) -> Joining {
    let place = Place { rank: Rank(rank), num_ranks, master: master.to_owned() };
    Joining::start(move |world| join(world, &place, &settings))
}

fn all(num_ranks: usize, settings: Settings, meddle: impl FnOnce(&str)) -> Vec<Joined> {
    let (first, addr) = first(num_ranks, settings);
    meddle(&addr);
    let others = (1..num_ranks).map(|rank| other(rank, num_ranks, &addr, settings));
    let ranks: Vec<Joining> = std::iter::once(first).chain(others).collect();
    ranks.into_iter().map(|rank| rank.finish().unwrap()).collect()
}

fn call(addr: &str) -> Box<dyn Stream> {
    let mut stream = real().net().connect(addr, LIMIT).unwrap();
    stream.set_deadline(Some(LIMIT));
    stream
}

/// What the door says to some bytes.
fn answer(stream: &mut dyn Stream, bytes: &[u8]) -> String {
    stream.write_all(bytes).unwrap();
    let mut front = [0; FRONT_BYTES];
    stream.read_exact(&mut front).unwrap();
    let (kind, len) = Answer::read_front(&front, 1).unwrap();
    let mut body = vec![0; len];
    stream.read_exact(&mut body).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "nothing follows");
    match Answer::decode(kind, &body, 1).unwrap() {
        Answer::Refused(reason) => reason,
        other => panic!("{other:?}"),
    }
}

fn hello(rank: u64, num_ranks: u64) -> Join {
    let member = Member { host: "stranger".to_owned(), addr: "127.0.0.1:1".to_owned() };
    Join { rank, num_ranks, num_streams: 2, shares_memory: true, member }
}

#[test]
fn runs_of_one_to_five_ranks_come_together() {
    for num_ranks in 1..=5 {
        let joined = all(num_ranks, settings(), |_| ());
        for (rank, end) in joined.iter().enumerate() {
            assert_eq!((end.rank, end.num_ranks), (Rank(rank), num_ranks));
            assert_eq!(end.run, joined[0].run);
            assert_eq!(end.hosts, joined[0].hosts);
            assert_eq!(end.num_local(), num_ranks);
            let others: Vec<Rank> = (0..num_ranks).map(Rank).filter(|&r| r != end.rank).collect();
            assert_eq!(end.local_peers(), others, "all are on this machine");
            assert_eq!(end.domains, vec![0; num_ranks]);
            for (peer, cable) in end.cables.iter().flat_map(|lane| lane.iter().enumerate()) {
                let num_streams = cable.as_ref().map(|cable| cable.data.len());
                assert_eq!(num_streams, (peer != rank).then_some(2));
            }
        }
    }
}

#[test]
fn streams_lead_to_the_rank_they_are_for() {
    let joined = all(3, settings(), |_| ());
    // By rank: every stream with the peer it leads to.
    let mut streams: Vec<Vec<(usize, Box<dyn Stream>)>> = Vec::new();
    for end in joined {
        let lanes = end.cables.into_iter().flat_map(|lane| lane.into_iter().enumerate());
        let cables = lanes.filter_map(|(peer, cable)| Some((peer, cable?)));
        let opened = cables.flat_map(|(peer, cable)| {
            std::iter::once(cable.control).chain(cable.data).map(move |stream| (peer, stream))
        });
        streams.push(opened.collect());
    }
    let number = |rank: usize, peer: usize, index: usize| [rank as u8, peer as u8, index as u8];
    // A rank's streams to one peer have the same order at both ends.
    for (rank, peers) in streams.iter_mut().enumerate() {
        let mut counts = [0; 3];
        for (peer, stream) in peers {
            stream.set_deadline(Some(LIMIT));
            stream.write_all(&number(rank, *peer, counts[*peer])).unwrap();
            counts[*peer] += 1;
        }
    }
    for (rank, peers) in streams.iter_mut().enumerate() {
        let mut counts = [0; 3];
        for (peer, stream) in peers {
            let mut said = [0; 3];
            stream.read_exact(&mut said).unwrap();
            assert_eq!(said, number(*peer, rank, counts[*peer]));
            counts[*peer] += 1;
        }
        assert_eq!(counts.iter().sum::<usize>(), 2 * NUM_LANES * 3);
    }
}

#[test]
fn sharing_memory_is_found_out_only_when_asked_for() {
    let apart = Settings { shares_memory: false, num_streams: 1, ..settings() };
    for end in all(2, apart, |_| ()) {
        assert!(end.local_peers().is_empty());
        assert_eq!(end.domains, [0, 1]);
        assert!(end.cables.iter().flatten().flatten().all(|cable| cable.data.len() == 1));
    }
}

#[test]
fn strangers_are_turned_away_and_nobody_else_is_disturbed() {
    let mut silent = Vec::new();
    all(3, settings(), |addr| {
        // Some never speak, some begin and stop, some leave.
        silent.push(call(addr));
        let mut half = call(addr);
        half.write_all(&Hello::Join(hello(1, 3)).encode()[..20]).unwrap();
        silent.push(half);
        drop(call(addr));

        let refused = |bytes: &[u8]| answer(&mut *call(addr), bytes);
        let garbage = b"GET / HTTP/1.1\r\n\r\n";
        assert_eq!(refused(garbage), "these are not the bytes of a lockstep run");
        let mut endless = Hello::Join(hello(1, 3)).encode();
        endless[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(refused(&endless), "4294967295 bytes are announced, and 1024 allowed");
        let mut future = Hello::Join(hello(1, 3)).encode();
        future[8] = 200;
        assert_eq!(refused(&future), "it speaks protocol 200 and not 1");
        let join = |join: Join| refused(&Hello::Join(join).encode());
        assert_eq!(join(hello(1, 4)), "it expects 4 ranks and this run has 3");
        assert_eq!(join(hello(3, 3)), "it calls itself rank 3, and callers are 1 to 2");
        assert_eq!(join(hello(0, 3)), "it calls itself rank 0, and callers are 1 to 2");
        assert_eq!(join(hello(u64::MAX, 3)).split(',').count(), 2);
        let other = Join { num_streams: 7, ..hello(1, 3) };
        assert_eq!(join(other), "it expects 7 streams and this run uses 2");
        let pair = Hello::Pair(Pair { run: [1; 16], rank: 1, stream: 0 });
        assert!(refused(&pair.encode()).starts_with("it belongs to another run"));
    });
}

#[test]
fn a_second_rank_of_the_same_number_is_turned_away() {
    let (first, addr) = first(3, settings());
    let mut one = call(&addr);
    one.write_all(&Hello::Join(hello(1, 3)).encode()).unwrap();
    let refused = other(1, 3, &addr, settings()).finish().err().unwrap();
    assert!(
        matches!(&refused, RendezvousError::Refused { by: Rank(0), reason }
        if reason.starts_with("rank 1 has come already, from 127.0.0.1:")),
        "{refused}"
    );
    drop(one);
    let others: Vec<Joining> = (1..3).map(|rank| other(rank, 3, &addr, settings())).collect();
    first.finish().unwrap();
    for rank in others {
        rank.finish().unwrap();
    }
}

#[test]
fn a_rank_that_left_while_others_were_awaited_may_come_again() {
    let (first, addr) = first(3, settings());
    let mut gone = call(&addr);
    gone.write_all(&Hello::Join(hello(1, 3)).encode()).unwrap();
    drop(gone);
    let others: Vec<Joining> = (1..3).map(|rank| other(rank, 3, &addr, settings())).collect();
    let table = first.finish().unwrap();
    assert!(table.hosts.iter().all(|host| host != "stranger"));
    for rank in others {
        rank.finish().unwrap();
    }
}

#[test]
fn missing_ranks_and_what_kept_them_away_are_named() {
    let (first, addr) = first(4, within_ms(500));
    let wrong = other(2, 3, &addr, settings());
    let three = other(3, 4, &addr, within_ms(1000));
    let error = wrong.finish().err().unwrap();
    assert_eq!(error.to_string(), "rank 0 refused: it expects 3 ranks and this run has 4");
    let error = first.finish().err().unwrap();
    let RendezvousError::Missing { missing, refused, .. } = &error else { panic!("{error}") };
    assert_eq!(missing, &[Rank(1), Rank(2)]);
    assert!(refused[0].ends_with("it expects 3 ranks and this run has 4"), "{refused:?}");
    assert_eq!(error.blame(), lockstep_config::Blame::Peer(1));
    assert!(three.finish().is_err());
}

#[test]
fn a_run_without_rank_0_ends_with_the_deadline() {
    let listener = listen(&real(), "127.0.0.1:0").unwrap();
    let addr = listener.local_addr();
    drop(listener);
    let (world, timeout) = (real(), within_ms(100));
    let start = world.clock().now();
    let error = other(1, 2, &addr, timeout).finish().err().unwrap();
    assert!(error.to_string().contains("connection refused"), "{error}");
    assert_eq!(error.blame(), lockstep_config::Blame::Peer(0));
    let waited = world.clock().since(start);
    assert!(waited >= timeout.timeout && waited < LIMIT, "{waited:?}");
}

#[test]
fn ranks_that_come_before_rank_0_wait_for_it() {
    let listener = listen(&real(), "127.0.0.1:0").unwrap();
    let addr = listener.local_addr();
    drop(listener);
    let early = other(1, 2, &addr, settings());
    let place = Place { rank: Rank(0), num_ranks: 2, master: addr };
    let first = Joining::start(move |world| join(world, &place, &settings()));
    first.finish().unwrap();
    early.finish().unwrap();
}

#[test]
fn something_else_at_the_meeting_point_is_not_mistaken_for_rank_0() {
    let listener = real().net().listen("127.0.0.1:0").unwrap();
    let addr = listener.local_addr();
    let body = Box::new(move || {
        let mut stream = listener.accept(LIMIT).unwrap();
        stream.set_deadline(Some(LIMIT));
        stream.write_all(b"220 mail.example.org ESMTP ready\r\n").unwrap();
        let _ = stream.read(&mut [0; 2000]);
    });
    let server = real().threads().spawn("mail", body).unwrap();
    let error = other(1, 2, &addr, settings()).finish().err().unwrap();
    assert!(error.to_string().contains("not the bytes of a lockstep run"), "{error}");
    server.join().unwrap();
}

#[test]
fn crowds_of_silent_strangers_do_not_keep_ranks_out() {
    let mut crowd = Vec::new();
    all(2, settings(), |addr| crowd = (0..100).map(|_| call(addr)).collect());
}
