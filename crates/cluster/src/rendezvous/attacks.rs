//! Everything that may come to a meeting point beside the ranks of the run: one test each. In all
//! of them the caller is turned away, the reason is told to whoever runs the run, and the run comes
//! together.

use std::io::{Read, Write};

use lockstep_platform::{Stream, real};

use super::tests::{
    Joining, LIMIT, all, call, first, first_with, other, other_with, settings, ticket, told_about,
};
use super::wire::{Answer, FRONT_BYTES, Hello, Join, MAX_HELLO_BYTES, Pair};
use super::*;
use lockstep_auth::handshake::{Call, GREETING_BYTES, Greeting};
use lockstep_auth::stream::SealedStream;

const NOT_OURS: &str = "these are not the bytes of a lockstep run";
const STRANGER: &str = "it does not know the run's secret";

/// Calls as one who knows a secret.
fn prove(addr: &str, secret: &Secret) -> SealedStream {
    let mut stream = call(addr);
    let (call, greeting) = Call::new(&real(), secret);
    stream.write_all(&greeting).unwrap();
    let mut reply = [0; GREETING_BYTES];
    stream.read_exact(&mut reply).unwrap();
    SealedStream::new(stream, call.finish(&reply).unwrap())
}

/// What one who knows the secret is told, and that the same is told at the door.
fn refused(addr: &str, bytes: &[u8]) -> String {
    let mut stream = prove(addr, &ticket().secret);
    stream.write_all(bytes).unwrap();
    let mut front = [0; FRONT_BYTES];
    stream.read_exact(&mut front).unwrap();
    let (kind, len) = Answer::read_front(&front, 1).unwrap();
    let mut body = vec![0; len];
    stream.read_exact(&mut body).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "nothing follows");
    match Answer::decode(kind, &body, 1).unwrap() {
        Answer::Refused(reason) => {
            assert_eq!(told_about(&stream.local_addr()), reason);
            reason
        }
        other => panic!("{other:?}"),
    }
}

/// What is told at the door of one who sends these bytes, and that it is told nothing itself.
fn unanswered(addr: &str, bytes: &[u8]) -> String {
    let mut stream = call(addr);
    stream.write_all(bytes).unwrap();
    let told = told_about(&stream.local_addr());
    // It may be closed with bytes unread, which resets the connection.
    assert_eq!(stream.read(&mut [0; 64]).unwrap_or(0), 0, "a stranger is told nothing");
    told
}

fn hello(rank: u64, num_ranks: u64) -> Join {
    let member = Member { host: "stranger".to_owned(), addr: "127.0.0.1:1".to_owned() };
    let (num_streams, shares_memory, encrypts, run) = (2, true, false, String::new());
    Join { rank, num_ranks, num_streams, shares_memory, encrypts, run, member }
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
        let (_, greeting) = Call::new(&real(), &wrong.secret);
        let mut stream = call(addr);
        stream.write_all(&greeting).unwrap();
        assert_eq!(told_about(&stream.local_addr()), STRANGER);
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
    let mut one = prove(&addr, &ticket().secret);
    one.write_all(&Hello::Join(hello(1, 3)).encode()).unwrap();
    let told = refused(&addr, &Hello::Join(hello(1, 3)).encode());
    assert_eq!(told, format!("rank 1 has come already, from {}", one.local_addr()));
    // The first one leaves, and its place is free again.
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
        assert_eq!(join(hello(3, 3)), "it calls itself rank 3, and callers are 1 to 2");
        assert_eq!(join(hello(0, 3)), "it calls itself rank 0, and callers are 1 to 2");
        assert_eq!(join(hello(u64::MAX, 3)).split(',').count(), 2);
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
        assert_eq!(unanswered(addr, b"GET / HTTP/1.1\r\n\r\n"), NOT_OURS);
        assert_eq!(unanswered(addr, &[0xff; 5000]), NOT_OURS);
        assert_eq!(unanswered(addr, b"lockstep but not really"), NOT_OURS);
        let endless = [&b"lockstep\x02\0\x01"[..], &[7; 300]].concat();
        let mut stream = call(addr);
        stream.write_all(&endless).unwrap();
        assert_eq!(told_about(&stream.local_addr()), STRANGER);
    });
}

#[test]
fn lying_lengths() {
    all(2, settings(), |addr| {
        let mut endless = Hello::Join(hello(1, 2)).encode();
        endless[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        let told = refused(addr, &endless);
        assert_eq!(told, format!("4294967295 bytes are announced, and {MAX_HELLO_BYTES} allowed"));
        // The record itself may lie as well; then it is not even read.
        let mut stream = call(addr);
        stream.write_all(&Call::new(&real(), &ticket().secret).1).unwrap();
        stream.read_exact(&mut [0; GREETING_BYTES]).unwrap();
        stream.write_all(&[0xff; 2]).unwrap();
        assert_eq!(told_about(&stream.local_addr()), "it announces more than a hello has");
    });
}

#[test]
fn slow_loris() {
    let greeting_limit = Duration::from_millis(500);
    let mut slow = Vec::new();
    let impatient = Settings { greeting_limit, ..settings() };
    let (first, addr) = first(2, impatient);
    // One says nothing, one begins, one stops after the greeting: each has the same time.
    let (_, greeting) = Call::new(&real(), &ticket().secret);
    for len in [0, 20, GREETING_BYTES] {
        let mut stream = call(&addr);
        stream.write_all(&greeting[..len]).unwrap();
        slow.push(stream);
    }
    for stream in &slow {
        let told = told_about(&stream.local_addr());
        assert_eq!(told, "it did not say who it is within 500 ms");
    }
    other(1, 2, &addr, impatient).finish().unwrap();
    first.finish().unwrap();
}

#[test]
fn port_scanner() {
    all(2, settings(), |addr| {
        let scanner = call(addr);
        let own = scanner.local_addr();
        drop(scanner);
        assert_eq!(told_about(&own), "it said nothing");
        let mut half = call(addr);
        half.write_all(b"lock").unwrap();
        let own = half.local_addr();
        drop(half);
        assert_eq!(told_about(&own), "it left while greeting");
    });
}

#[test]
fn crowd_of_silent_strangers() {
    let mut crowd = Vec::new();
    all(2, settings(), |addr| crowd = (0..200).map(|_| call(addr)).collect());
}

#[test]
fn one_who_knows_the_secret_and_speaks_out_of_turn() {
    all(3, settings(), |addr| {
        let mut stream = prove(addr, &ticket().secret);
        stream.write_all(&Hello::Join(hello(1, 3)).encode()).unwrap();
        stream.write_all(&[7; 100]).unwrap();
        assert_eq!(told_about(&stream.local_addr()), "it spoke before it was answered");
    });
}

#[test]
fn recorded_conversation() {
    // What a genuine rank says is written down on its way, and said again by somebody else.
    let (first, addr) = first(3, settings());
    let ear = real().net().listen("127.0.0.1:0").unwrap();
    let rank = other(1, 3, &ear.local_addr(), settings());
    let mut near = ear.accept(LIMIT).unwrap();
    near.set_deadline(Some(LIMIT));
    let mut far = call(&addr);
    let (mut greeting, mut reply) = ([0; GREETING_BYTES], [0; GREETING_BYTES]);
    near.read_exact(&mut greeting).unwrap();
    far.write_all(&greeting).unwrap();
    far.read_exact(&mut reply).unwrap();
    near.write_all(&reply).unwrap();
    let mut said = vec![0; 2000];
    let len = near.read(&mut said).unwrap();
    said.truncate(len);

    let mut again = call(&addr);
    again.write_all(&greeting).unwrap();
    let mut second: Greeting = [0; GREETING_BYTES];
    again.read_exact(&mut second).unwrap();
    assert_ne!(second, reply, "the host never says the same twice");
    again.write_all(&said).unwrap();
    assert_eq!(told_about(&again.local_addr()), "it repeats the greeting of somebody else");
    // The genuine one was not delivered yet, and still is welcome.
    far.write_all(&said).unwrap();
    let told = refused(&addr, &Hello::Join(hello(1, 3)).encode());
    assert!(told.starts_with("rank 1 has come already"), "{told}");
    // Its listener for others is its own; here the test ends with the eavesdropper.
    drop((near, far, ear));
    drop(rank);
    drop(first);
}

#[test]
fn something_else_at_the_meeting_point() {
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
    assert!(error.to_string().contains(NOT_OURS), "{error}");
    server.join().unwrap();
}

#[test]
fn false_host() {
    // It knows another secret, and must not learn anything from a rank that falls for its address.
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
    // Runs of their own secrets, and runs of one secret with names of their own.
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
fn a_sealed_stream_that_was_meddled_with_is_an_error_and_no_message() {
    let encrypt = Settings { encrypt: true, shares_memory: false, ..settings() };
    let mut ends = all(2, encrypt, |_| ()).into_iter();
    let (zero, one) = (ends.next().unwrap(), ends.next().unwrap());
    let control = |end: Joined| {
        let [channel, ..] = end.connections;
        channel.into_iter().flatten().next().unwrap().control
    };
    let (mut near, far) = (control(zero), control(one));
    near.set_deadline(Some(LIMIT));
    // What is written below the seal is what somebody on the way would have put there.
    let mut below = far.into_any().downcast::<SealedStream>().unwrap().proceed_unsealed();
    below.write_all(&[30, 0]).unwrap();
    below.write_all(&[1; 30]).unwrap();
    let error = near.read(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
}
