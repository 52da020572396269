//! Hostile and misconfigured clients of a rendezvous, one test each. In all of them the client is
//! rejected, the reason is logged, and the ranks of the run join.

use std::io::{Read, Write};

use lockstep_platform::{Stream, real};

use super::tests::{
    Joining, LIMIT, all, call, first, first_with, logged_reason, other, other_with, settings,
    ticket,
};
use super::wire::{Answer, HEADER_BYTES, Hello, Join, MAX_HELLO_BYTES, Pair};
use super::*;
use lockstep_auth::handshake::{HANDSHAKE_BYTES, HandshakeMessage, Initiator};
use lockstep_auth::stream::SealedStream;

const UNKNOWN_PROTOCOL: &str = "these are not the bytes of a lockstep run";
const WRONG_SECRET: &str = "it does not know the run's secret";

/// Connects and authenticates with a secret.
fn authenticate(addr: &str, secret: &Secret) -> SealedStream {
    let mut stream = call(addr);
    let (call, message) = Initiator::new(&real(), secret);
    stream.write_all(&message).unwrap();
    let mut reply = [0; HANDSHAKE_BYTES];
    stream.read_exact(&mut reply).unwrap();
    SealedStream::new(stream, call.finish(&reply).unwrap())
}

/// Reason that an authenticated client receives; checks that the same reason is logged.
fn refused(addr: &str, bytes: &[u8]) -> String {
    let mut stream = authenticate(addr, &ticket().secret);
    stream.write_all(bytes).unwrap();
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).unwrap();
    let (kind, len) = Answer::read_header(&header, 1).unwrap();
    let mut body = vec![0; len];
    stream.read_exact(&mut body).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "nothing follows");
    match Answer::decode(kind, &body, 1).unwrap() {
        Answer::Refused(reason) => {
            assert_eq!(logged_reason(&stream.local_addr()), reason);
            reason
        }
        other => panic!("{other:?}"),
    }
}

/// Logged reason for a client that sends these bytes; checks that the client receives nothing.
fn unanswered(addr: &str, bytes: &[u8]) -> String {
    let mut stream = call(addr);
    stream.write_all(bytes).unwrap();
    let reason = logged_reason(&stream.local_addr());
    // Closing with unread bytes resets the connection.
    assert_eq!(
        stream.read(&mut [0; 64]).unwrap_or(0),
        0,
        "an unauthenticated client receives nothing"
    );
    reason
}

fn hello(rank: u64, num_ranks: u64) -> Join {
    let peer = PeerInfo { host: "stranger".to_owned(), addr: "127.0.0.1:1".to_owned() };
    let (num_streams, shares_memory, encrypts, run) = (2, true, false, String::new());
    Join { rank, num_ranks, num_streams, shares_memory, encrypts, run, peer }
}

#[test]
fn wrong_secret() {
    let wrong = Ticket::new(&real());
    all(2, settings(), |addr| {
        let error = other_with(1, 2, addr, settings(), &wrong).finish().err().unwrap();
        let text = "rank 0 refused: it has another secret; LOCKSTEP_SECRET must be the same for \
                    all workers of a run";
        assert_eq!(error.to_string(), text);
        assert_eq!(error.blame(), lockstep_config::Blame::User);
        let (_, message) = Initiator::new(&real(), &wrong.secret);
        let mut stream = call(addr);
        stream.write_all(&message).unwrap();
        assert_eq!(logged_reason(&stream.local_addr()), WRONG_SECRET);
    });
}

#[test]
fn wrong_run() {
    all(2, settings(), |addr| {
        let named = Ticket { run: "other".to_owned(), ..ticket() };
        let error = other_with(1, 2, addr, settings(), &named).finish().err().unwrap();
        let text = r#"rank 0 refused: it belongs to run "other" and this is run """#;
        assert_eq!(error.to_string(), text);
        let pair = Hello::Pair(Pair { run: [1; 16], rank: 1, stream: 0 });
        assert!(refused(addr, &pair.encode()).starts_with("it belongs to another run"));
    });
}

#[test]
fn duplicate_rank() {
    let (first, addr) = first(3, settings());
    let mut one = authenticate(&addr, &ticket().secret);
    one.write_all(&Hello::Join(hello(1, 3)).encode()).unwrap();
    let reason = refused(&addr, &Hello::Join(hello(1, 3)).encode());
    assert_eq!(reason, format!("rank 1 has joined already, from {}", one.local_addr()));
    // The first client disconnects, and its rank is free.
    drop(one);
    let others: Vec<Joining> = (1..3).map(|rank| other(rank, 3, &addr, settings())).collect();
    let table = first.finish().unwrap();
    assert!(table.hosts.iter().all(|host| host != "stranger"));
    for rank in others {
        rank.finish().unwrap();
    }
}

#[test]
fn wrong_world_size() {
    all(3, settings(), |addr| {
        let join = |join: Join| refused(addr, &Hello::Join(join).encode());
        assert_eq!(join(hello(1, 4)), "it expects 4 ranks and this run has 3");
        assert_eq!(join(hello(3, 3)), "it claims rank 3; expected ranks are 1 to 2");
        assert_eq!(join(hello(0, 3)), "it claims rank 0; expected ranks are 1 to 2");
        assert_eq!(join(hello(u64::MAX, 3)).split(';').count(), 2);
    });
}

#[test]
fn other_settings() {
    all(2, settings(), |addr| {
        let join = |join: Join| refused(addr, &Hello::Join(join).encode());
        let streams = Join { num_streams: 7, ..hello(1, 2) };
        assert_eq!(join(streams), "it expects 7 streams and this run uses 2");
        let memory = Join { shares_memory: false, ..hello(1, 2) };
        assert_eq!(join(memory), "it differs on whether ranks of one machine share memory");
        let sealed = Join { encrypts: true, ..hello(1, 2) };
        assert_eq!(join(sealed), "it differs on whether traffic is encrypted");
    });
}

#[test]
fn another_version() {
    all(2, settings(), |addr| {
        let mut future = Hello::Join(hello(1, 2)).encode();
        future[8] = 200;
        assert_eq!(refused(addr, &future), "it speaks protocol 200 and not 2");
    });
}

#[test]
fn garbage_bytes() {
    all(2, settings(), |addr| {
        assert_eq!(unanswered(addr, b"GET / HTTP/1.1\r\n\r\n"), UNKNOWN_PROTOCOL);
        assert_eq!(unanswered(addr, &[0xff; 5000]), UNKNOWN_PROTOCOL);
        assert_eq!(unanswered(addr, b"lockstep but not really"), UNKNOWN_PROTOCOL);
        let endless = [&b"lockstep\x02\0\x01"[..], &[7; 300]].concat();
        let mut stream = call(addr);
        stream.write_all(&endless).unwrap();
        assert_eq!(logged_reason(&stream.local_addr()), WRONG_SECRET);
    });
}

#[test]
fn false_lengths() {
    all(2, settings(), |addr| {
        let mut endless = Hello::Join(hello(1, 2)).encode();
        endless[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        let reason = refused(addr, &endless);
        assert_eq!(
            reason,
            format!("4294967295 bytes are announced, and {MAX_HELLO_BYTES} allowed")
        );
        // A record with a false length is not read at all.
        let mut stream = call(addr);
        stream.write_all(&Initiator::new(&real(), &ticket().secret).1).unwrap();
        stream.read_exact(&mut [0; HANDSHAKE_BYTES]).unwrap();
        stream.write_all(&[0xff; 2]).unwrap();
        assert_eq!(logged_reason(&stream.local_addr()), "it announces more bytes than a hello has");
    });
}

#[test]
fn slow_loris() {
    let handshake_timeout = Duration::from_millis(500);
    let mut slow = Vec::new();
    let short_timeout = Settings { handshake_timeout, ..settings() };
    let (first, addr) = first(2, short_timeout);
    // One sends nothing, one a part of the message, one stops after it: all have the same limit.
    let (_, message) = Initiator::new(&real(), &ticket().secret);
    for len in [0, 20, HANDSHAKE_BYTES] {
        let mut stream = call(&addr);
        stream.write_all(&message[..len]).unwrap();
        slow.push(stream);
    }
    for stream in &slow {
        let reason = logged_reason(&stream.local_addr());
        assert_eq!(reason, "it did not complete the handshake within 500 ms");
    }
    other(1, 2, &addr, short_timeout).finish().unwrap();
    first.finish().unwrap();
}

#[test]
fn port_scanner() {
    all(2, settings(), |addr| {
        let scanner = call(addr);
        let own = scanner.local_addr();
        drop(scanner);
        assert_eq!(logged_reason(&own), "it sent nothing");
        let mut half = call(addr);
        half.write_all(b"lock").unwrap();
        let own = half.local_addr();
        drop(half);
        assert_eq!(logged_reason(&own), "it disconnected during the handshake");
    });
}

#[test]
fn many_silent_connections() {
    let mut crowd = Vec::new();
    // Two tests may have clients with one port at the same time; lines about these are not logged.
    let silent = Settings { log: None, ..settings() };
    all(2, silent, |addr| crowd = (0..200).map(|_| call(addr)).collect());
}

#[test]
fn authenticated_client_that_sends_before_the_answer() {
    all(3, settings(), |addr| {
        let mut stream = authenticate(addr, &ticket().secret);
        stream.write_all(&Hello::Join(hello(1, 3)).encode()).unwrap();
        stream.write_all(&[7; 100]).unwrap();
        assert_eq!(logged_reason(&stream.local_addr()), "it sent data before it was answered");
    });
}

#[test]
fn replayed_handshake() {
    // A man in the middle records the bytes of a genuine rank and replays them.
    let (first, addr) = first(3, settings());
    let listener = real().net().listen("127.0.0.1:0").unwrap();
    let rank = other(1, 3, &listener.local_addr(), settings());
    let mut client_side = listener.accept(LIMIT).unwrap();
    client_side.set_deadline(Some(LIMIT));
    let mut host_side = call(&addr);
    let (mut message, mut reply) = ([0; HANDSHAKE_BYTES], [0; HANDSHAKE_BYTES]);
    client_side.read_exact(&mut message).unwrap();
    host_side.write_all(&message).unwrap();
    host_side.read_exact(&mut reply).unwrap();
    client_side.write_all(&reply).unwrap();
    let mut recorded = vec![0; 2000];
    let len = client_side.read(&mut recorded).unwrap();
    recorded.truncate(len);

    let mut replay = call(&addr);
    replay.write_all(&message).unwrap();
    let mut second: HandshakeMessage = [0; HANDSHAKE_BYTES];
    replay.read_exact(&mut second).unwrap();
    assert_ne!(second, reply, "the host never repeats a reply");
    replay.write_all(&recorded).unwrap();
    assert_eq!(
        logged_reason(&replay.local_addr()),
        "it replays the handshake of another connection"
    );
    // The genuine hello was not delivered yet and is still accepted.
    host_side.write_all(&recorded).unwrap();
    let reason = refused(&addr, &Hello::Join(hello(1, 3)).encode());
    assert!(reason.starts_with("rank 1 has joined already"), "{reason}");
    // The run cannot complete through the man in the middle; the test ends here.
    drop((client_side, host_side, listener));
    drop(rank);
    drop(first);
}

#[test]
fn another_service_at_the_rendezvous_address() {
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
    assert!(error.to_string().contains(UNKNOWN_PROTOCOL), "{error}");
    server.join().unwrap();
}

#[test]
fn host_with_another_secret() {
    // A rank that connects to it must not reveal anything about its own secret.
    let theirs = Ticket::new(&real());
    let (host, addr) = first_with(2, settings(), &theirs);
    let error = other(1, 2, &addr, settings()).finish().err().unwrap();
    assert!(error.to_string().contains("it has another secret"), "{error}");
    other_with(1, 2, &addr, settings(), &theirs).finish().unwrap();
    host.finish().unwrap();
}

#[test]
fn two_runs_on_one_host_do_not_mix() {
    let tickets = [Ticket::new(&real()), Ticket::new(&real())];
    let named = |name: &str| Ticket { run: name.to_owned(), ..ticket() };
    // Runs with different secrets, and runs with one secret and different names.
    for tickets in [tickets, [named("one"), named("two")]] {
        let hosts = tickets.each_ref().map(|ticket| first_with(3, settings(), ticket));
        let addrs = hosts.each_ref().map(|(_, addr)| addr.clone());
        let start = |rank: usize, own: usize, at: usize| {
            other_with(rank, 3, &addrs[at], settings(), &tickets[own])
        };
        let lost = [start(1, 0, 1), start(1, 1, 0), start(2, 0, 1)];
        for rank in lost {
            let error = rank.finish().err().unwrap();
            assert!(matches!(error, RendezvousError::Refused { .. }), "{error}");
        }
        let ranks: Vec<Joining> = [(1, 0), (1, 1), (2, 0), (2, 1)]
            .iter()
            .map(|&(rank, run)| start(rank, run, run))
            .collect();
        let names = hosts.map(|(host, _)| host.finish().unwrap().run);
        assert_ne!(names[0], names[1]);
        for (index, rank) in ranks.into_iter().enumerate() {
            assert_eq!(rank.finish().unwrap().run, names[index % 2]);
        }
    }
}

#[test]
fn injected_bytes_on_an_encrypted_stream_are_an_error() {
    let encrypt = Settings { encrypt: true, shares_memory: false, ..settings() };
    let mut ends = all(2, encrypt, |_| ()).into_iter();
    let (zero, one) = (ends.next().unwrap(), ends.next().unwrap());
    let control = |end: ConnectedRank| {
        let [channel, ..] = end.connections;
        channel.into_iter().flatten().next().unwrap().control
    };
    let (mut client_side, host_side) = (control(zero), control(one));
    client_side.set_deadline(Some(LIMIT));
    // Bytes written below the encryption are those of a man in the middle.
    let mut below = host_side.into_any().downcast::<SealedStream>().unwrap().proceed_unsealed();
    below.write_all(&[30, 0]).unwrap();
    below.write_all(&[1; 30]).unwrap();
    let error = client_side.read(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
}
