//! Threads as ranks over loopback sockets.

use std::io::{Read, Write};
use std::sync::{Arc, Barrier};

use lockstep_platform::{Source, Stream, Target, real};
use proptest::prelude::*;

use super::frame::Header;
use super::stripe::SEGMENT_BYTES;
use super::*;
use crate::element::Dtype;
use crate::signature::Signature;
use crate::transport::PURPOSE_BIT;

const LIMIT: Duration = Duration::from_secs(20);
const SIZES: [usize; 8] = [0, 1, 3, 1024, 65_537, SEGMENT_BYTES, 3 * SEGMENT_BYTES + 1, 1_000_003];

fn envelope(number: u64, bytes: usize) -> Envelope {
    Envelope {
        group: 7 | 1 << PURPOSE_BIT,
        number,
        signature: Signature::message(Dtype::U8, bytes),
    }
}

/// Bytes that differ by sender, receiver and offset.
fn pattern(from: usize, to: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251 + from * 7 + to * 13) as u8).collect()
}

/// Runs `body` for each rank on its own thread.
fn on_ranks(ends: Vec<TcpTransport>, body: impl Fn(TcpTransport) + Clone + Send + 'static) {
    let world = real();
    let start = |end: TcpTransport| {
        let body = body.clone();
        let run = Box::new(move || body(end));
        world.threads().spawn("rank", run).expect("a thread starts")
    };
    let threads: Vec<_> = ends.into_iter().map(start).collect();
    for thread in threads {
        thread.join().expect("the rank does not panic");
    }
}

fn ends(num_ranks: usize, num_streams: usize) -> Vec<TcpTransport> {
    let channels =
        TcpTransport::loopback(&real(), num_ranks, num_streams, &TcpOptions::default()).unwrap();
    channels.into_iter().map(|[caller, ..]| caller).collect()
}

fn pair() -> (TcpTransport, TcpTransport) {
    let mut both = ends(2, 2);
    let second = both.pop().unwrap();
    (both.pop().unwrap(), second)
}

/// Sends and receives buffers, one of each for every peer named.
fn exchange(
    end: &mut TcpTransport,
    envelope: Envelope,
    sends: &[(usize, Vec<u8>)],
    recvs: &mut [(usize, Vec<u8>)],
    timeout: Duration,
) -> (Result<(), Interruption>, u64) {
    let sends: Vec<_> = sends.iter().map(|(peer, b)| (Rank(*peer), Source::of(b))).collect();
    let recvs: Vec<_> = recvs.iter_mut().map(|(peer, b)| (Rank(*peer), Target::of(b))).collect();
    let mut round = Round { envelope, sends: &sends, recvs: &recvs, done_bytes: 0, arrived: &drop };
    let result = end.exchange(&mut round, timeout);
    assert!(result.is_err() || round.done_bytes == round.expected_bytes());
    (result, round.done_bytes)
}

fn all_to_all(end: &mut TcpTransport, number: u64, len: usize) {
    let (rank, num_ranks) = (end.rank().0, end.num_ranks());
    let peers = || (0..num_ranks).filter(|&peer| peer != rank);
    let sends: Vec<_> = peers().map(|peer| (peer, pattern(rank, peer, len))).collect();
    let mut recvs: Vec<_> = peers().map(|peer| (peer, vec![0; len])).collect();
    let (result, _) = exchange(end, envelope(number, len), &sends, &mut recvs, LIMIT);
    result.unwrap();
    for (peer, bytes) in recvs {
        assert!(bytes == pattern(peer, rank, len), "rank {rank}, {len} bytes from {peer}");
    }
}

#[test]
fn every_size_crosses_between_any_number_of_ranks() {
    for (num_ranks, num_streams) in [(1, 2), (2, 1), (2, 2), (3, 3), (4, 2), (5, 2)] {
        on_ranks(ends(num_ranks, num_streams), |mut end| {
            for (number, len) in SIZES.into_iter().enumerate() {
                all_to_all(&mut end, number as u64, len);
            }
        });
    }
}

#[test]
fn both_directions_at_once_do_not_deadlock() {
    // Far more than all socket buffers of a pair can hold.
    on_ranks(ends(2, 2), |mut end| all_to_all(&mut end, 1, 64 << 20));
}

#[test]
fn messages_of_one_round_between_a_pair_keep_their_order() {
    on_ranks(ends(2, 3), |mut end| {
        let (rank, peer) = (end.rank().0, 1 - end.rank().0);
        let sizes = [5, 900_000, 0, 300_000, 17, SEGMENT_BYTES + 1, 0];
        let message = |from: usize, i: usize| pattern(from, i, sizes[i]);
        for number in 0..20 {
            let sends: Vec<_> = (0..sizes.len()).map(|i| (peer, message(rank, i))).collect();
            let mut recvs: Vec<_> = sizes.iter().map(|&len| (peer, vec![0; len])).collect();
            // Lengths differ, so the signature is that of the round and not of a message.
            exchange(&mut end, envelope(number, 0), &sends, &mut recvs, LIMIT).0.unwrap();
            for (i, (_, bytes)) in recvs.into_iter().enumerate() {
                assert!(bytes == message(peer, i), "message {i}");
            }
        }
    });
}

#[test]
fn a_ring_moves_long_messages_round_and_round() {
    on_ranks(ends(3, 2), |mut end| {
        let (rank, len) = (end.rank().0, 2_000_003);
        let (next, previous) = ((rank + 1) % 3, (rank + 2) % 3);
        let mut mine = pattern(rank, 0, len);
        for number in 0..6 {
            let sends = [(next, mine)];
            let mut recvs = [(previous, vec![0; len])];
            exchange(&mut end, envelope(number, len), &sends, &mut recvs, LIMIT).0.unwrap();
            let [(_, received)] = recvs;
            mine = received;
        }
        assert!(mine == pattern(rank, 0, len), "after two tours every rank has its own data");
    });
}

#[test]
fn messages_are_received_by_tag_in_any_order() {
    on_ranks(ends(2, 2), |mut end| {
        let sizes = [10, 0, 700_000, 33, 400_000];
        if end.rank() == Rank(0) {
            for (tag, len) in sizes.into_iter().enumerate() {
                let sends = [(1, pattern(0, tag, len))];
                exchange(&mut end, envelope(tag as u64, len), &sends, &mut [], LIMIT).0.unwrap();
            }
        }
        for (tag, len) in sizes.into_iter().enumerate().rev() {
            if end.rank() == Rank(1) {
                let mut recvs = [(0, vec![0; len])];
                let expected = envelope(tag as u64, len);
                exchange(&mut end, expected, &[], &mut recvs, LIMIT).0.unwrap();
                assert!(recvs[0].1 == pattern(0, tag, len), "tag {tag}");
            }
        }
    });
}

#[test]
fn unexpected_messages_of_a_peer_are_bounded() {
    let options = TcpOptions { max_unexpected_bytes: 100_000, ..TcpOptions::default() };
    let channels = TcpTransport::loopback(&real(), 2, 1, &options).unwrap();
    on_ranks(channels.into_iter().map(|[caller, ..]| caller).collect(), |mut end| {
        if end.rank() == Rank(0) {
            let sends = [(1, vec![1; 60_000]), (1, vec![2; 60_000])];
            let _ = exchange(&mut end, envelope(1, 60_000), &sends, &mut [], LIMIT);
            let _ = exchange(&mut end, envelope(3, 1), &[], &mut [(1, vec![0])], LIMIT);
        } else {
            let mut recvs = [(0, vec![0; 1])];
            let (result, _) = exchange(&mut end, envelope(2, 1), &[], &mut recvs, LIMIT);
            let Err(Interruption::Lost { peer: Rank(0), reason }) = result else {
                panic!("{result:?}")
            };
            assert!(reason.contains("before any receive was posted"), "{reason}");
        }
    });
}

#[test]
fn a_mismatch_reports_the_signature_of_the_peer() {
    on_ranks(ends(2, 2), |mut end| {
        let peer = 1 - end.rank().0;
        let theirs = 100 + peer;
        let mine = 100 + end.rank().0;
        let sends = [(peer, vec![0; mine])];
        let mut recvs = [(peer, vec![0; mine])];
        let (result, _) = exchange(&mut end, envelope(1, mine), &sends, &mut recvs, LIMIT);
        let expected = Interruption::Mismatch {
            peer: Rank(peer),
            theirs: Signature::message(Dtype::U8, theirs),
            number: None,
        };
        assert_eq!(result, Err(expected));
    });
}

#[test]
fn a_message_of_another_length_for_the_same_call_is_rejected() {
    on_ranks(ends(2, 2), |mut end| {
        if end.rank() == Rank(0) {
            let sends = [(1, vec![0; 40])];
            let _ = exchange(&mut end, envelope(1, 7), &sends, &mut [], LIMIT);
            let _ = exchange(&mut end, envelope(2, 7), &[], &mut [(1, vec![0])], LIMIT);
        } else {
            let mut recvs = [(0, vec![0; 50])];
            let (result, done) = exchange(&mut end, envelope(1, 7), &[], &mut recvs, LIMIT);
            let Err(Interruption::Lost { peer: Rank(0), reason }) = result else {
                panic!("{result:?}")
            };
            assert!(reason.starts_with("it sent 40 bytes where 50 were expected"), "{reason}");
            assert_eq!(done, 0);
        }
    });
}

#[test]
fn a_peer_that_leaves_is_named_with_the_bytes_received() {
    let (mut first, second) = pair();
    drop(second);
    let mut recvs = [(1, vec![0; 10])];

    let (result, done) = exchange(&mut first, envelope(1, 10), &[], &mut recvs, LIMIT);
    let reason = "it has left the run".to_owned();
    assert_eq!((result, done), (Err(Interruption::Lost { peer: Rank(1), reason }), 0));
    // Later exchanges fail alike.
    let (repeated, _) = exchange(&mut first, envelope(2, 0), &[], &mut [], LIMIT);
    assert!(matches!(repeated, Err(Interruption::Lost { peer: Rank(1), .. })));
}

#[test]
fn messages_of_a_peer_that_left_still_arrive() {
    let (mut first, mut second) = pair();
    let message = pattern(1, 0, 50_000);
    let sends = [(0, message.clone())];
    exchange(&mut second, envelope(1, 50_000), &sends, &mut [], LIMIT).0.unwrap();
    drop(second);
    let mut recvs = [(1, vec![0; 50_000])];
    exchange(&mut first, envelope(1, 50_000), &[], &mut recvs, LIMIT).0.unwrap();
    assert!(recvs[0].1 == message);
}

/// Report of a rank about itself.
fn out_of_memory(rank: usize) -> Verdict {
    Verdict {
        epoch: 0,
        culprit: Rank(rank),
        process: None,
        cause: crate::Cause::Lost { reason: "out of memory".to_owned() },
        noticed_by: Rank(rank),
        call: Signature::message(Dtype::U8, 1),
        number: 1,
        group: "world".to_owned(),
        label: crate::Label::NONE,
        done_bytes: 0,
        expected_bytes: 1,
    }
}

#[test]
fn a_rank_that_waits_for_one_peer_receives_the_report_of_another() {
    // Neither rank may leave before the other has received the report too.
    let known_report = Arc::new(Barrier::new(2));
    on_ranks(ends(3, 2), move |mut end| {
        if end.rank() == Rank(2) {
            end.agree_on_verdict(out_of_memory(2));
            return;
        }
        // Ranks 0 and 1 wait for each other's second message, which never comes.
        let peer = 1 - end.rank().0;
        let mut recvs = [(peer, vec![0; 8])];
        let (result, _) = exchange(&mut end, envelope(1, 8), &[], &mut recvs, LIMIT);
        known_report.wait();
        assert_eq!(result, Err(Interruption::Reported(Box::new(out_of_memory(2)))));
    });
}

#[test]
fn a_failure_on_one_channel_interrupts_the_others() {
    let mut channels = TcpTransport::loopback(&real(), 2, 1, &TcpOptions::default()).unwrap();
    let [mut caller, mut background, _sends, _recvs] = channels.pop().unwrap();
    let [_peer_caller, mut peer_background, _peer_sends, _peer_recvs] = channels.pop().unwrap();
    let wait = |end: &mut TcpTransport, peer: usize| {
        exchange(end, envelope(1, 8), &[], &mut [(peer, vec![0; 8])], LIMIT).0
    };
    let world = real();
    let start = world.clock().now();
    let body = Box::new(move || drop(caller.agree_on_verdict(out_of_memory(1))));
    let settler = world.threads().spawn("settler", body).unwrap();
    let reported = Interruption::Reported(Box::new(out_of_memory(1)));
    assert_eq!(wait(&mut peer_background, 1), Err(reported.clone()));
    assert_eq!(wait(&mut background, 0), Err(reported));
    assert!(world.clock().since(start) < LIMIT);
    settler.join().unwrap();
}

#[test]
fn a_rank_may_leave_while_others_continue() {
    on_ranks(ends(3, 2), |mut end| {
        if end.rank() == Rank(2) {
            return;
        }
        for number in 0..200 {
            all_between(&mut end, 1, number);
        }
    });
}

/// Ranks 0 and 1 exchange a byte, with a pause that makes them sleep now and then.
fn all_between(end: &mut TcpTransport, len: usize, number: u64) {
    let peer = 1 - end.rank().0;
    if number.is_multiple_of(50) && peer == 0 {
        real().clock().sleep(Duration::from_millis(1));
    }
    let sends = [(peer, vec![3; len])];
    let mut recvs = [(peer, vec![0; len])];
    exchange(end, envelope(number, len), &sends, &mut recvs, LIMIT).0.unwrap();
}

#[test]
fn a_wait_ends_with_the_deadline_and_names_the_peer() {
    let world = real();
    let (mut first, _second) = pair();
    let timeout = Duration::from_millis(30);
    let start = world.clock().now();
    let mut recvs = [(1, vec![0; 10])];
    let (result, _) = exchange(&mut first, envelope(1, 10), &[], &mut recvs, timeout);
    assert_eq!(result, Err(Interruption::Deadline { peer: Rank(1) }));
    let waited = world.clock().since(start);
    assert!(waited >= timeout && waited < LIMIT, "{waited:?}");
}

#[test]
fn sending_to_a_peer_that_does_not_read_ends_with_the_deadline() {
    let (mut first, _second) = pair();
    let timeout = Duration::from_millis(30);
    let sends = [(1, vec![0; 64 << 20])];
    let (result, done) = exchange(&mut first, envelope(1, 64 << 20), &sends, &mut [], timeout);
    assert_eq!(result, Err(Interruption::Deadline { peer: Rank(1) }));
    assert!(done > 0 && done < 64 << 20, "{done} bytes left");
}

/// A rank whose peer is the test itself, on plain streams: one control and two data streams.
fn rank_and_raw_streams() -> (TcpTransport, Vec<Box<dyn Stream>>) {
    let world = real();
    let listener = world.net().listen("127.0.0.1:0").unwrap();
    let (mut own, mut peer_streams) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        own.push(world.net().connect(&listener.local_addr(), LIMIT).unwrap());
        peer_streams.push(listener.accept(LIMIT).unwrap());
    }
    let control = own.remove(0);
    let connections = [
        vec![None, Some(Connection { control, data: own })],
        vec![None, None],
        vec![None, None],
        vec![None, None],
    ];
    let channels = TcpTransport::channels(&world, Rank(0), connections, 1, &TcpOptions::default());
    let [caller, ..] = channels.unwrap();
    (caller, peer_streams)
}

fn header(sequence: u64, number: u64, length: usize) -> Header {
    let envelope = envelope(number, length);
    Header { epoch: 0, stream: 0, sequence, length: length as u64, envelope }
}

fn result_for(bytes: &[u8], len: usize) -> (Result<(), Interruption>, Vec<u8>) {
    let (mut end, mut peer_streams) = rank_and_raw_streams();
    peer_streams[1].write_all(bytes).unwrap();
    for stream in &peer_streams {
        stream.shutdown().unwrap();
    }
    let mut recvs = [(1, vec![0; len])];
    let (result, _) = exchange(&mut end, envelope(5, len), &[], &mut recvs, LIMIT);
    let [(_, received)] = recvs;
    (result, received)
}

fn lost(result: &Result<(), Interruption>) -> &str {
    let Err(Interruption::Lost { peer: Rank(1), reason }) = result else { panic!("{result:?}") };
    reason
}

#[test]
fn malformed_and_truncated_bytes_are_rejected_with_a_reason() {
    let good = header(0, 5, 4).encode();
    let with = |bytes: &[u8]| [&good[..], bytes].concat();
    assert_eq!(result_for(&with(&[1, 2, 3, 4]), 4), (Ok(()), vec![1, 2, 3, 4]));
    assert_eq!(lost(&result_for(&[], 4).0), "it closed the connection");
    assert_eq!(lost(&result_for(&good[..63], 4).0), "it closed the connection");
    assert_eq!(lost(&result_for(&with(&[1, 2, 3]), 4).0), "it closed the connection");
    let garbage = b"GET / HTTP/1.1\r\nHost: example.org\r\nAccept: text/html, and so on and on\r\n";
    assert_eq!(lost(&result_for(garbage, 4).0), "it sent bytes that are no message");
    let skipped = header(1, 5, 4).encode();
    let reason = "it sent message 1 where message 0 was expected";
    assert_eq!(lost(&result_for(&skipped, 4).0), reason);
    let elsewhere = Header { stream: 1, ..header(0, 5, 4) }.encode();
    let reason = "it sent on stream 0 what belongs on stream 1";
    assert_eq!(lost(&result_for(&elsewhere, 4).0), reason);
    for length in [u64::MAX, 1 << 62, (1 << 30) + 1] {
        let endless = Header { length, ..header(0, 6, 4) }.encode();
        assert!(lost(&result_for(&endless, 4).0).contains("before any receive was posted"));
        let endless = Header { length, ..header(0, 5, 4) }.encode();
        assert!(lost(&result_for(&endless, 4).0).contains("where 4 were expected"));
    }
}

#[test]
fn a_second_stream_with_another_header_is_rejected() {
    let (mut end, mut peer_streams) = rank_and_raw_streams();
    let len = 2 * SEGMENT_BYTES;
    peer_streams[1].write_all(&header(0, 5, len).encode()).unwrap();
    let other = Header { stream: 1, ..header(0, 5, len + 1) };
    peer_streams[2].write_all(&other.encode()).unwrap();
    let mut recvs = [(1, vec![0; len])];
    let (result, _) = exchange(&mut end, envelope(5, len), &[], &mut recvs, LIMIT);
    assert!(lost(&result).contains("on stream 1"), "{result:?}");
}

#[test]
fn a_slow_writer_does_not_time_out_while_bytes_arrive() {
    let (mut end, mut peer_streams) = rank_and_raw_streams();
    let message = pattern(1, 0, 300);
    let bytes = [&header(0, 5, 300).encode()[..], &message].concat();
    let body = Box::new(move || {
        let world = real();
        for piece in bytes.chunks(7) {
            peer_streams[1].write_all(piece).unwrap();
            world.clock().sleep(Duration::from_micros(300));
        }
        // Closing a stream with unread control messages would reset it before the message is read.
        while peer_streams[0].read(&mut [0; 64]).is_ok_and(|len| len > 0) {}
    });
    let writer = real().threads().spawn("slow", body).unwrap();
    // The whole message takes longer than the timeout; no single pause does.
    let mut recvs = [(1, vec![0; 300])];
    let timeout = Duration::from_millis(500);
    exchange(&mut end, envelope(5, 300), &[], &mut recvs, timeout).0.unwrap();
    assert!(recvs[0].1 == message);
    drop(end);
    writer.join().unwrap();
}

#[test]
fn a_peer_that_sends_single_bytes_times_out_in_total() {
    let (mut end, mut peer_streams) = rank_and_raw_streams();
    let bytes = [&header(0, 5, 3000).encode()[..], &[1; 3000]].concat();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let body = move || {
        // A pause between two bytes is far below the timeout.
        for byte in bytes {
            let is_over = stopped.recv_timeout(Duration::from_millis(2)).is_ok();
            if is_over || peer_streams[1].write_all(&[byte]).is_err() {
                return peer_streams;
            }
        }
        panic!("the rank has waited for 3000 single bytes");
    };
    #[expect(clippy::disallowed_methods, reason = "the test takes the streams back")]
    let writer = std::thread::spawn(body);
    let mut recvs = [(1, vec![0; 3000])];
    let timeout = Duration::from_millis(200);
    let (result, done) = exchange(&mut end, envelope(5, 3000), &[], &mut recvs, timeout);
    assert_eq!(result, Err(Interruption::Deadline { peer: Rank(1) }));
    assert!(done > 0, "bytes have moved all the time");
    stop.send(()).unwrap();
    drop(writer.join().unwrap());
}

/// The death of such a rank does not end the run, so a caller may ask it once more before it turns
/// to another.
#[test]
fn an_expendable_peer_that_died_inside_a_message_is_lost_at_every_call() {
    let (mut end, mut peer_streams) = rank_and_raw_streams();
    end.mark_expendable(&[Rank(1)]);
    peer_streams[1].write_all(&header(0, 5, 300).encode()).unwrap();
    peer_streams[1].write_all(&[1; 100]).unwrap();
    drop(peer_streams);
    for (number, len) in [(5, 300), (6, 8), (7, 300)] {
        let mut recvs = [(1, vec![0; len])];
        let (result, _) = exchange(&mut end, envelope(number, len), &[], &mut recvs, LIMIT);
        let Err(Interruption::Lost { peer: Rank(1), .. }) = result else { panic!("{result:?}") };
    }
}

#[test]
fn the_death_of_a_process_interrupts_ranks_that_exchange_nothing_with_it() {
    let (mut end, peer_streams) = rank_and_raw_streams();
    drop(peer_streams);
    let error = end.sleep(LIMIT).unwrap_err();
    // It had unread control messages, so the system may report the end in either way.
    let Interruption::Lost { peer: Rank(1), reason } = error else { panic!("{error:?}") };
    let ends = ["it closed the connection", "the connection broke"];
    assert!(ends.contains(&reason.as_str()), "{reason}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any bytes of a peer yield an error or the expected message.
    #[test]
    fn arbitrary_bytes_never_break_the_reader(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        magic: bool, length in 0_u64..6, number in 4_u64..6,
    ) {
        let mut bytes = bytes;
        if magic && bytes.len() >= 64 {
            let front = Header { length, ..header(0, number, 4) };
            bytes[..64].copy_from_slice(&front.encode());
        }
        let (result, received) = result_for(&bytes, 4);
        if result.is_ok() {
            prop_assert!(magic && length == 4);
            prop_assert!(bytes.windows(4).any(|window| window == received));
        }
    }
}

#[test]
fn a_left_over_message_reveals_an_earlier_mismatch() {
    let call = |number, bytes| Envelope { group: 7, ..envelope(number, bytes) };
    let (mut first, mut second) = pair();
    let (result, _) = exchange(&mut first, call(1, 3), &[(1, vec![0; 3])], &mut [], LIMIT);
    assert_eq!(result, Ok(()));
    let (result, _) = exchange(&mut second, call(2, 5), &[], &mut [(0, vec![0; 5])], LIMIT);
    let theirs = Signature::message(Dtype::U8, 3);
    let expected = Interruption::Mismatch { peer: Rank(0), theirs, number: Some(1) };
    assert_eq!(result, Err(expected));
}

#[test]
fn a_peer_in_the_next_call_is_a_mismatch_and_not_a_timeout() {
    let call = |number, bytes| Envelope { group: 7, ..envelope(number, bytes) };
    let (mut first, mut second) = pair();
    let (result, _) = exchange(&mut first, call(2, 3), &[(1, vec![0; 3])], &mut [], LIMIT);
    assert_eq!(result, Ok(()));
    let timeout = Duration::from_millis(30);
    let (result, _) = exchange(&mut second, call(1, 5), &[], &mut [(0, vec![0; 5])], timeout);
    let theirs = Signature::message(Dtype::U8, 3);
    let expected = Interruption::Mismatch { peer: Rank(0), theirs, number: None };
    assert_eq!(result, Err(expected));
}
