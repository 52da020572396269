//! Two threads as ranks, one of which writes to the ring by hand.

use std::sync::mpsc;

use lockstep_platform::real;

use super::*;
use crate::element::Dtype;

#[test]
fn a_rank_that_writes_single_lines_times_out_in_total() {
    const LEN: usize = 4 << 10;
    let worlds = SharedWorld::threads(&real(), 2, 1 << 20).unwrap();
    let ends = worlds.into_iter().map(|world| SharedTransport::new(Arc::new(world), 0));
    let [mut receiver, mut sender]: [SharedTransport; 2] =
        ends.collect::<Vec<_>>().try_into().ok().unwrap();
    let envelope = Envelope { group: 1, number: 2, signature: Signature::message(Dtype::U8, LEN) };
    let (stop, stopped) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let [a, b, c] = envelope.signature.pack();
            let fields = [envelope.group, envelope.number, a, b, c, LEN as u64, 0, 0];
            let start = sender.world.header.ring(0, 0);
            target::<u64>(sender.world.own(), start, 8).as_chunks::<8>().0.set(0, fields);
            // The envelope, and then one line of zeros after another. No pause is as long as the
            // timeout, but together they are slower than any network.
            for _ in 0..=LEN / LINE {
                sender.written[0] += LINE as u64;
                sender.publish_written(Rank(0));
                sender.world.wake([Rank(0)]);
                if stopped.recv_timeout(Duration::from_millis(20)).is_ok() {
                    return;
                }
            }
            panic!("the other rank has waited for {LEN} bytes");
        });
        let mut bytes = vec![0; LEN];
        let recvs = [(Rank(1), Target::of(&mut bytes))];
        let mut round =
            Round { envelope, sends: &[], recvs: &recvs, done_bytes: 0, arrived: &|_| {} };
        let result = receiver.exchange(&mut round, Duration::from_millis(100));
        assert_eq!(result, Err(Interruption::Deadline { peer: Rank(1) }));
        assert!(round.done_bytes > 0, "bytes have moved all the time");
        stop.send(()).unwrap();
    });
}
